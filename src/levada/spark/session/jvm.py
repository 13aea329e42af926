"""Ends the JVM of a Spark whose start is interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any


@contextmanager
def jvm_killed_at_interrupt() -> Iterator[None]:
    """Kill the JVM that PySpark starts in the block, if KeyboardInterrupt ends the block.

    A JVM ends by itself when its Python process does, but only once it has started. PySpark gives its process away
    only then, too; so the function with which PySpark starts processes is replaced meanwhile.
    """
    from pyspark import java_gateway

    gateway: Any = java_gateway
    started: list[Popen[bytes]] = []
    start = gateway.Popen

    def recorded(*arguments: Any, **options: Any) -> "Popen[bytes]":
        started.append(start(*arguments, **options))
        return started[-1]

    gateway.Popen = recorded
    try:
        yield
    except KeyboardInterrupt:
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        gateway.Popen = start

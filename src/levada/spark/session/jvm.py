"""Ends the JVM of a Spark whose start is interrupted."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from types import FrameType
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
        with _signals_deferred():  # an exception in Popen would leave a process that nobody knows
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


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM after the block; Python handles signals in its main thread only."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for deferred in received:
            signal.raise_signal(deferred)

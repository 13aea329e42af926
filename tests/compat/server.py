"""The broker that the clients meet: Levada in a process of its own, as a user starts it."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_S = 30.0
_ADDRESS = re.compile(rb"bootstrap\.servers=(\S+)\s")


@contextmanager
def levada(data: Path) -> Iterator[str]:
    """Start a broker on a free port, give its address, and stop it cleanly."""
    command = [sys.executable, "-m", "levada", "start", "--data", str(data), "--port", "0"]
    environment = os.environ | {"KAFKA_LEVADA_METRICS_LISTENER": ""}
    with (data.parent / "broker.log").open("w+b") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        try:
            yield _address(process, data.parent / "broker.log")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=READY_S)
        log.seek(0)
        assert process.returncode == 0, f"the broker ended with {process.returncode}: {log.read()[-2000:]!r}"


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Where to connect, as the broker itself prints it."""
    assert process.stdout
    printed = b""
    deadline = time.monotonic() + READY_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not (found := _ADDRESS.search(printed + log.read_bytes())):
            left = deadline - time.monotonic()
            if left <= 0 or process.poll() is not None:
                raise AssertionError(f"no broker: {printed!r} {log.read_bytes()[-2000:]!r}")
            if selector.select(min(left, 0.1)):
                printed += os.read(process.stdout.fileno(), 65536)
    return found[1].decode()

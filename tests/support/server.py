"""The broker that the clients meet: Levada in a process of its own, as a user starts it."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

READY_S = 120.0  # a machine may have much else to do
_ADDRESS = re.compile(rb"bootstrap\.servers=(\S+)\s")
SETTINGS = {
    "levada.metrics.listener": "",
    "log.retention.check.interval.ms": "86400000",  # records of tests have any times: none goes in the fifth minute
}


class Server:
    """A broker process on a free port of its own, which it keeps over restarts."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        limit: Callable[[], None] | None = None,  # called in the process before it becomes a broker
        ready_s: float = READY_S,
    ) -> None:
        self._settings = SETTINGS | dict(settings or {})
        self._limit = limit
        self._ready_s = ready_s
        self._data = folder / "data"
        self.log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = "127.0.0.1:0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        code = self.stop(signal.SIGTERM)
        assert code == 0, f"the broker ended with {code}: {self._last_words()}"

    def start(self) -> None:
        """Start and wait until the broker says where to connect."""
        port = self.address.rpartition(":")[2]
        command = [sys.executable, "-m", "levada", "start", "--data", str(self._data), "--port", port]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, preexec_fn=self._limit
            )
        self.address = self._printed_address(self._process)

    def stop(self, how: signal.Signals) -> int:
        """End the process; its exit code."""
        assert self._process
        self._process.send_signal(how)
        self._process.wait(timeout=self._ready_s)
        assert self._process.stdout
        self._process.stdout.close()
        return self._process.returncode

    def hang_up(self) -> None:
        """Listen no more to what the broker prints."""
        assert self._process and self._process.stdout
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def _printed_address(self, process: "subprocess.Popen[bytes]") -> str:
        assert process.stdout
        printed = b""
        deadline = time.monotonic() + self._ready_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not (found := _ADDRESS.search(printed)):
                piece = b""
                if selector.select(max(deadline - time.monotonic(), 0)):
                    piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    process.kill()
                    process.communicate()
                    raise AssertionError(f"no broker: {printed!r} {self._last_words()}")
                printed += piece
        return found[1].decode()

    def _last_words(self) -> str:
        return self.log.read_bytes()[-2000:].decode(errors="replace")

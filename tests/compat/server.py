"""The broker that the clients meet: Levada in a process of its own, as a user starts it."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

READY_S = 30.0
_ADDRESS = re.compile(rb"bootstrap\.servers=(\S+)\s")


class Server:
    """A broker process on a free port of its own, which it keeps over restarts."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._log = folder / "broker.log"
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
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--set", "levada.metrics.listener="], stdout=subprocess.PIPE, stderr=log
            )
        self.address = self._printed_address(self._process)

    def stop(self, how: signal.Signals) -> int:
        """End the process; its exit code."""
        assert self._process
        self._process.send_signal(how)
        self._process.communicate(timeout=READY_S)
        return self._process.returncode

    def _printed_address(self, process: "subprocess.Popen[bytes]") -> str:
        assert process.stdout
        printed = b""
        deadline = time.monotonic() + READY_S
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
        return self._log.read_bytes()[-2000:].decode(errors="replace")

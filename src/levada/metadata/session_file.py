"""Remembers the session of ZooKeeper in the first log dir, so that the next process there ends it at once.

A broker that was killed would otherwise be registered until its session timeout, and its restart would wait. The lock
of the log dir proves that the former process is dead, if this is the same directory of the same machine since its boot.
"""

import contextlib
import json
import os
from typing import Final

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class SessionFile:
    """The file; it is not written where the boot is unknown."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> tuple[int, bytes] | None:
        """Return the id and the password of the session of a former process in this directory."""
        try:
            with open(self._path, encoding="ascii") as file:
                found = json.load(file)
            if found["place"] == self._place():
                return int(found["session"], 16), bytes.fromhex(found["password"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the former session ends by its timeout
        return None

    def write(self, session: int, password: bytes) -> None:
        """Replace the session."""
        with contextlib.suppress(OSError):
            content = {"place": self._place(), "session": f"{session:#x}", "password": password.hex()}
            descriptor = os.open(self._path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump(content, file)
            os.replace(self._path + ".tmp", self._path)

    def remove(self) -> None:
        """Forget the session: it was closed."""
        with contextlib.suppress(OSError):
            os.remove(self._path)

    def _place(self) -> str:
        """Identify the directory and the boot of the machine."""
        with open(BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        directory = os.stat(os.path.dirname(os.path.abspath(self._path)))
        return f"{boot} {directory.st_dev} {directory.st_ino}"

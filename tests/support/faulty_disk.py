"""A real disk that fails or waits where a test orders it."""

import errno
import os
import threading
from collections.abc import Sequence

from levada.storage.disk import OsDisk


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


class FaultyDisk(OsDisk):
    """Calls on paths that begin with a broken prefix fail; fsyncs of logs wait while the gate is closed."""

    __slots__ = ("broken", "fsyncs", "gate", "short_writes", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[tuple[str, str], int] = {}  # (operation, prefix of the path): errno
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)  # counts fsyncs that have come to the gate
        self.fsyncs: list[str] = []  # of logs
        self.short_writes = False  # let a write take half of what it is given

    def fail(self, operation: str, path: object, number: int = errno.EIO) -> None:
        self.broken[operation, str(path)] = number

    def _check(self, operation: str, path: str) -> None:
        for (broken, prefix), number in self.broken.items():
            if broken == operation and path.startswith(prefix):
                raise OSError(number, os.strerror(number), path)

    def open(self, path: str, create: bool = False) -> int:
        self._check("open", path)
        return super().open(path, create)

    def fsync(self, fd: int) -> None:  # type: ignore[override]  # of descriptors only
        path = path_of(fd)
        if path.endswith(".log"):
            self.waiting.release()
            self.gate.wait()
            self.fsyncs.append(path)
        self._check("fsync", path)
        os.fsync(fd)

    def pwritev(  # type: ignore[override]  # without flags
        self, fd: int, views: Sequence[bytes | memoryview], position: int, /
    ) -> int:
        self._check("pwritev", path_of(fd))
        if self.short_writes and sum(map(len, views)) > 1:
            whole = b"".join(views)
            return os.pwrite(fd, whole[: len(whole) // 2], position)
        return os.pwritev(fd, views, position)

    def pread(self, fd: int, count: int, position: int, /) -> bytes:
        self._check("pread", path_of(fd))
        return os.pread(fd, count, position)

    def mkdir(self, path: str) -> None:
        self._check("mkdir", path)
        super().mkdir(path)

"""A disk in memory that fails the way real ones do, for tests that crash at every step and replay by a seed.

Every call counts as a step, and `crash_at` crashes the process at a step: from then on every call raises
SimCrash, until the test calls `kill` or `cut_power`. Calls can fail at random, writes can be
short, and a failed `fsync` drops what it could not write and marks it clean, as Linux does: a second `fsync`
succeeds and has saved nothing. All randomness comes from one `random.Random`: the same seed gives the same history,
and `digest` proves it.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

from levada.testing.sim_files import SimDirectory, SimFile, SimNode

TRACE_LINES_KEPT = 60


class SimCrash(BaseException):
    """The process crashes at this step. Only the loop of a test catches it."""


@dataclass(slots=True)
class Faults:
    """How likely each call fails, from 0 to 1."""

    read_error: float = 0.0
    write_error: float = 0.0
    short_write: float = 0.0
    fsync_error: float = 0.0
    no_space: float = 0.0  # on writes and on new names


@dataclass
class SimDisk:
    """Implements `levada.storage.disk.Disk`."""

    random: Random
    faults: Faults = field(default_factory=Faults)
    capacity_bytes: int | None = None
    now_ms: int = 0
    crash_at: int | None = None
    steps: int = 0
    trace: list[str] = field(default_factory=list)  # the last calls, for messages of failed tests
    _root: SimDirectory = field(default_factory=SimDirectory)
    _open: dict[int, SimFile] = field(default_factory=dict)
    _next_fd: int = 3
    _hash: blake2b = field(default_factory=blake2b)

    # The interface `Disk`.

    def open(self, path: str, create: bool = False) -> int:
        self._step("open", path)
        parent, name = self._parent(path)
        node = parent.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._may_fail(self.faults.no_space, errno.ENOSPC, path)
            node = SimFile(self.now_ms)
            parent.change({name: node})
        if isinstance(node, SimDirectory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = node
        return fd

    def close(self, fd: int) -> None:
        self._file(fd)
        del self._open[fd]

    def size(self, fd: int) -> int:
        return len(self._file(fd).data)

    def pread(self, fd: int, count: int, position: int, /) -> bytes:
        file = self._file(fd)
        self._may_fail(self.faults.read_error, errno.EIO, f"fd {fd}")
        return bytes(file.data[position : position + count])

    def pwritev(self, fd: int, views: Sequence[bytes | memoryview], position: int, /) -> int:
        file = self._file(fd)
        data = b"".join(views)
        before = self.steps
        written, failure = self._outcome(file, data, position)
        try:
            self._step("pwritev", f"fd {fd} at {position}: {written} of {len(data)} error {failure}")
        finally:
            if self.crash_at is None or before < self.crash_at:  # the write that is cut short leaves its part
                file.write(data[:written], position)
                file.modified_ms = self.now_ms
        if failure:
            raise OSError(failure, os.strerror(failure))
        return written

    def fsync(self, fd: int) -> None:
        file = self._file(fd)
        fails = self._chance(self.faults.fsync_error)
        self._step("fsync", f"fd {fd}, {len(file.data)} bytes{' fails' if fails else ''}")
        if fails:
            file.fsync_fails(self.random)
            raise OSError(errno.EIO, "fsync failed")
        file.fsync()

    def next_data(self, fd: int, position: int) -> int:
        return position

    def pread_cached(self, fd: int, count: int, position: int, /) -> bytes:
        return self.pread(fd, count, position)

    def drop_cached(self, fd: int, count: int, position: int, /) -> None:
        self._file(fd)

    def map(self, fd: int, size: int) -> memoryview:
        file = self._file(fd)
        if size > len(file.data):
            raise ValueError("mapping past the end of the file")
        return memoryview(bytes(file.data[:size]))

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def modified_ms(self, path: str) -> int:
        node = self._node(path)
        return node.modified_ms if isinstance(node, SimFile) else 0

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        node = self._node(path)
        if isinstance(node, SimFile):
            node.modified_ms = modified_ms

    def listdir(self, path: str) -> list[str]:
        names = sorted(self._directory(path).entries)
        self.random.shuffle(names)
        return names

    def irregular_files(self, path: str) -> list[str]:
        return [name for name, node in self._directory(path).entries.items() if isinstance(node, SimDirectory)]

    def links(self, path: str) -> dict[str, str]:
        return {}

    def mkdir(self, path: str) -> None:
        self._step("mkdir", path)
        directory = self._root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = SimDirectory()
                directory.change({name: node})
            if isinstance(node, SimFile):
                raise FileExistsError(errno.EEXIST, "is a file", path)
            directory = node

    def rename(self, source: str, target: str) -> None:
        self._step("rename", f"{source} to {target}")
        node = self._node(source)
        parent, name = self._parent(source)
        target_parent, target_name = self._parent(target)
        if target_parent is not parent:
            raise ValueError("the simulated disk renames within a directory only")
        parent.change({name: None, target_name: node})

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        if isinstance(self._node(path), SimDirectory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        parent, name = self._parent(path)
        parent.change({name: None})

    def rmdir(self, path: str) -> None:
        self._step("rmdir", path)
        if self._directory(path).entries:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        parent, name = self._parent(path)
        parent.change({name: None})

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        directory = self._directory(path)
        self._may_fail(self.faults.fsync_error, errno.EIO, path)
        directory.fsync()

    # For tests.

    def kill(self) -> None:
        """Kill the process (kill -9); the page cache survives."""
        self._restart("kill")

    def remount(self) -> None:
        """Kill the process and drop clean pages: what a failed fsync lost is read back from the device."""
        self._restart("remount")
        for _, file in self._root.files():
            file.drop_clean_pages()

    def cut_power(self) -> None:
        """Cut the power: of the unsynced data any part survives."""
        self._restart("cut power")
        self._root.cut_power(self.random)

    def used_bytes(self) -> int:
        return sum(len(file.data) for _, file in self._root.files())

    def contents(self) -> dict[str, bytes]:
        """Every file by its path, as a process sees it."""
        return {path: bytes(file.data) for path, file in self._root.files()}

    def overwrite(self, path: str, content: bytes) -> None:
        """Change a file at rest: bit rot, a restored backup, an operator's mistake."""
        node = self._node(path)
        if isinstance(node, SimFile):
            node.settle(content)

    @property
    def digest(self) -> str:
        """A fingerprint of every call so far."""
        return self._hash.hexdigest()

    # Internals.

    def _restart(self, why: str) -> None:
        self._note(why, "")
        self._open.clear()
        self.crash_at = None

    def _outcome(self, file: SimFile, data: bytes, position: int) -> tuple[int, int]:
        """How many bytes a write leaves in the file, and the error it ends with (0: none)."""
        written, failure = len(data), 0
        if self._chance(self.faults.write_error):
            failure = errno.EIO
        elif self._chance(self.faults.no_space):
            failure = errno.ENOSPC
        if failure or self._crashes_next():
            written = self.random.randint(0, len(data))
        elif self._chance(self.faults.short_write):
            written = self.random.randint(1, len(data))
        if self.capacity_bytes is not None:
            excess = max(0, position + written - len(file.data)) - (self.capacity_bytes - self.used_bytes())
            if excess > 0:
                written = max(0, written - excess)
                failure = failure or (0 if written else errno.ENOSPC)
        return written, failure

    def _chance(self, likelihood: float) -> bool:
        return likelihood > 0 and self.random.random() < likelihood

    def _may_fail(self, likelihood: float, code: int, what: str) -> None:
        if self._chance(likelihood):
            self._note("fails", f"{what}: {os.strerror(code)}")
            raise OSError(code, os.strerror(code), what)

    def _crashes_next(self) -> bool:
        return self.crash_at is not None and self.steps + 1 >= self.crash_at

    def _step(self, call: str, what: str) -> None:
        self.steps += 1
        crashes = self.crash_at is not None and self.steps >= self.crash_at
        self._note(call, f"{what}{' CRASH' if crashes else ''}")
        if crashes:
            raise SimCrash

    def _note(self, call: str, what: str) -> None:
        line = f"{self.steps} {call} {what}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if len(self.trace) > 2 * TRACE_LINES_KEPT:
            del self.trace[:-TRACE_LINES_KEPT]

    def _file(self, fd: int) -> SimFile:
        file = self._open.get(fd)
        if file is None:
            raise OSError(errno.EBADF, "bad file descriptor")
        return file

    def _node(self, path: str) -> SimNode:
        node: SimNode = self._root
        for name in _parts(path):
            found = node.entries.get(name) if isinstance(node, SimDirectory) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = found
        return node

    def _directory(self, path: str) -> SimDirectory:
        node = self._node(path)
        if isinstance(node, SimFile):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _parent(self, path: str) -> tuple[SimDirectory, str]:
        *parents, name = _parts(path)
        return self._directory("/".join(parents)), name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]

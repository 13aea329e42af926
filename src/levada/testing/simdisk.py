"""A disk in memory that fails the way real ones do, for tests that must crash at every step and replay by a seed.

It keeps two worlds: what a running process sees (the page cache) and what a power cut leaves. A written byte
moves to the second only by `fsync` of its file, a name only by `fsync_dir` of its directory; of what was not
synced a cut keeps any part: nothing, all, a prefix torn at any byte, or any subset of sectors with zeros or
garbage between. A failed `fsync` drops the pages it could not write and marks them clean, as Linux does, so
that a second `fsync` succeeds and has saved nothing.

Every call counts as a step; `crash_at` stops the world at a step. All chance comes from one `random.Random`, so
the same seed gives the same history, and `digest` proves it.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

SECTOR_BYTES = 512
TRACE_LINES_KEPT = 60


class SimCrash(BaseException):  # noqa: N818  not an error: nothing may catch and survive it
    """The process is gone at this step. Only the test's own loop catches it."""


@dataclass(slots=True)
class Faults:
    """How likely each call fails, from 0 to 1."""

    read_error: float = 0.0
    write_error: float = 0.0
    short_write: float = 0.0
    fsync_error: float = 0.0
    no_space: float = 0.0  # on writes and new names


class _File:
    __slots__ = ("data", "dirty", "durable", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()  # what a process reads
        self.durable = b""  # what a power cut leaves for certain
        self.dirty: set[int] = set()  # the sectors in which both may differ
        self.modified_ms = 0

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = data
        self.dirty.update(range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def settle(self, content: bytes) -> None:
        self.durable = content
        self.data = bytearray(content)
        self.dirty.clear()


class _Directory:
    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.pending: list[
            dict[str, _Node | None]
        ] = []  # changes of names since the last fsync, each one atomic

    def change(self, names: dict[str, "_Node | None"]) -> None:
        _apply(self.entries, names)
        self.pending.append(names)


_Node = _File | _Directory


def _apply(entries: dict[str, _Node], names: dict[str, _Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


@dataclass
class SimDisk:
    """Implements `levada.storage.disk.Disk`."""

    random: Random
    faults: Faults = field(default_factory=Faults)
    capacity_bytes: int | None = None
    now_ms: int = 0
    crash_at: int | None = None
    steps: int = 0
    trace: list[str] = field(default_factory=list)  # the last calls, for people
    _root: _Directory = field(default_factory=_Directory)
    _open: dict[int, _File] = field(default_factory=dict)
    _next_fd: int = 3
    _hash: "blake2b" = field(default_factory=blake2b)

    # The calls of the Disk protocol

    def open(self, path: str, create: bool = False) -> int:
        self._step("open", path)
        parent, name = self._parent(path)
        node = parent.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._may_fail(self.faults.no_space, errno.ENOSPC, path)
            node = _File()
            node.modified_ms = self.now_ms
            parent.change({name: node})
        if isinstance(node, _Directory):
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
        crashes = self._crashes_now()
        failure = self._write_failure(data)
        keep = len(data)
        if crashes or failure or self.random.random() < self.faults.short_write:
            keep = (
                self.random.randrange(len(data) + 1) if crashes or failure else self.random.randint(1, keep)
            )
        if self.capacity_bytes is not None:
            free = self.capacity_bytes - self.used_bytes()
            grows = position + keep - len(file.data)
            if grows > free:
                keep = max(0, keep - (grows - free))
                failure = failure or (errno.ENOSPC if keep == 0 else 0)
        file.write(data[:keep], position)
        file.modified_ms = self.now_ms
        self._step("pwritev", f"fd {fd} at {position}: {keep} of {len(data)} error {failure}")
        if failure:
            raise OSError(failure, os.strerror(failure))
        return keep

    def fsync(self, fd: int) -> None:
        file = self._file(fd)
        fails = self.random.random() < self.faults.fsync_error
        if fails:
            file.durable = self._survivor(file)
            file.dirty.clear()
        self._step("fsync", f"fd {fd}, {len(file.data)} bytes{' fails' if fails else ''}")
        if fails:
            raise OSError(errno.EIO, "fsync failed")
        file.durable = self._with_sectors(file, file.dirty, len(file.data))
        file.dirty.clear()

    def is_cached(self, fd: int, position: int) -> bool:
        return position < len(self._file(fd).data)

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
        return node.modified_ms if isinstance(node, _File) else 0

    def listdir(self, path: str) -> list[str]:
        names = list(self._directory(path).entries)
        self.random.shuffle(names)
        return names

    def mkdir(self, path: str) -> None:
        self._step("mkdir", path)
        directory = self._root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = _Directory()
                directory.change({name: node})
            if isinstance(node, _File):
                raise FileExistsError(errno.EEXIST, "is a file", path)
            directory = node

    def rename(self, source: str, target: str) -> None:
        self._step("rename", f"{source} to {target}")
        parent, name = self._parent(source)
        target_parent, target_name = self._parent(target)
        if target_parent is not parent:
            raise ValueError("the simulated disk renames within a directory only")
        if name not in parent.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        parent.change({name: None, target_name: parent.entries[name]})

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        if isinstance(self._node(path), _Directory):
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
        directory = self._directory(path)
        self._step("fsync_dir", path)
        self._may_fail(self.faults.fsync_error, errno.EIO, path)
        directory.durable = dict(directory.entries)
        directory.pending.clear()

    # What a test does to the disk

    def kill(self) -> None:
        """The process is gone (kill -9); the page cache is not."""
        self._note("kill", "")
        self._open.clear()
        self.crash_at = None

    def cut_power(self) -> None:
        """The machine is gone: of what was not synced any part is left."""
        self._note("cut power", "")
        self._open.clear()
        self.crash_at = None
        self._cut(self._root)

    def used_bytes(self) -> int:
        return sum(len(content) for content in self.contents().values())

    def contents(self) -> dict[str, bytes]:
        """Every file by its path, as a process sees it."""
        return dict(_walk(self._root, ""))

    def overwrite(self, path: str, content: bytes) -> None:
        """Change a file at rest (bit rot, a restored backup, an operator's mistake)."""
        node = self._node(path)
        if isinstance(node, _File):
            node.settle(content)

    @property
    def digest(self) -> str:
        """A fingerprint of every call so far."""
        return self._hash.hexdigest()

    # Inside

    def _cut(self, directory: _Directory) -> None:
        random = self.random
        entries = dict(directory.durable)
        pending = directory.pending
        if random.random() < 0.5:  # a journal in order
            kept = pending[: random.randint(0, len(pending))]
        else:
            kept = [names for names in pending if random.random() < 0.5]
        for names in kept:
            _apply(entries, names)
        directory.entries = entries
        directory.durable = dict(entries)
        directory.pending = []
        for name in sorted(entries):
            node = entries[name]
            if isinstance(node, _Directory):
                self._cut(node)
            else:
                node.settle(self._survivor(node))

    def _survivor(self, file: _File) -> bytes:
        """What the device holds of a file some of whose dirty sectors reached it."""
        random = self.random
        dirty = sorted(file.dirty)
        if not dirty:
            return file.durable
        kind = random.randrange(5)
        if kind == 0:
            return file.durable
        if kind == 1:
            return self._with_sectors(file, file.dirty, len(file.data))
        if kind == 2 and len(file.data) > len(file.durable):  # torn at any byte
            size = random.randint(len(file.durable), len(file.data))
            return self._with_sectors(file, file.dirty, size)
        kept = {sector for sector in dirty if random.random() < 0.5}
        size = random.choice((len(file.data), random.randint(len(file.durable), len(file.data))))
        content = bytearray(self._with_sectors(file, kept, size))
        if kind == 4:  # blocks that were given to the file but never written show what was there before
            for sector in set(dirty) - kept:
                start = max(sector * SECTOR_BYTES, len(file.durable))
                end = min((sector + 1) * SECTOR_BYTES, size)
                if start < end:
                    content[start:end] = random.randbytes(end - start)
        return bytes(content)

    @staticmethod
    def _with_sectors(file: _File, sectors: set[int], size: int) -> bytes:
        """The durable bytes with some sectors of the cache written over them; the rest of `size` is zeros."""
        if len(file.durable) < size:
            content = bytearray(file.durable)
            content.extend(bytes(size - len(content)))
        else:
            content = bytearray(file.durable)
        for sector in sectors:
            start, end = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(file.data), len(content))
            if start < end:
                content[start:end] = file.data[start:end]
        return bytes(content)

    def _write_failure(self, data: bytes) -> int:
        if data and self.random.random() < self.faults.write_error:
            return errno.EIO
        if data and self.random.random() < self.faults.no_space:
            return errno.ENOSPC
        return 0

    def _may_fail(self, likelihood: float, code: int, what: str) -> None:
        if likelihood and self.random.random() < likelihood:
            self._note("fails", f"{what}: {os.strerror(code)}")
            raise OSError(code, os.strerror(code), what)

    def _crashes_now(self) -> bool:
        return self.crash_at is not None and self.steps + 1 >= self.crash_at

    def _step(self, call: str, what: str) -> None:
        crashes = self._crashes_now()
        self.steps += 1
        self._note(call, f"{what}{' CRASH' if crashes else ''}")
        if crashes:
            raise SimCrash

    def _note(self, call: str, what: str) -> None:
        line = f"{self.steps} {call} {what}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if len(self.trace) > 2 * TRACE_LINES_KEPT:
            del self.trace[:-TRACE_LINES_KEPT]

    def _file(self, fd: int) -> _File:
        file = self._open.get(fd)
        if file is None:
            raise OSError(errno.EBADF, "bad file descriptor")
        return file

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for name in _parts(path):
            found = node.entries.get(name) if isinstance(node, _Directory) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = found
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        *parents, name = _parts(path)
        return self._directory("/".join(parents)), name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _walk(directory: _Directory, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for name in sorted(directory.entries):
        node = directory.entries[name]
        path = f"{prefix}/{name}"
        found.extend(_walk(node, path) if isinstance(node, _Directory) else [(path, bytes(node.data))])
    return found

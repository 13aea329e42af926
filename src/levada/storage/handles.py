"""Open files and mappings, bounded for all logs of a broker, so that thousands of partitions fit one process.

A handle that has not been used lately is closed and opened again when it is needed. Only the thread that owns
the logs may use handles: a descriptor closed here may be given to another file at once. Threads (fsync,
warming, recovery) open files for themselves.
"""

from collections import OrderedDict

from levada.storage.disk import Disk


class Handle:
    """One file that may be open, the mapping of it, and what its owner keeps of it while it is open."""

    __slots__ = ("fd", "kept", "path", "used", "view")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.used = False  # since the eviction hand last passed
        self.view: memoryview | None = None
        self.kept: object = None


class Handles:
    """The open handles: a ring with a second chance for those used since the hand last passed."""

    __slots__ = ("_disk", "_open", "_open_max")

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = max(2, open_max // 2)  # a mapping holds a second descriptor of its file
        self._open: OrderedDict[Handle, None] = OrderedDict()  # from the least lately opened or spared

    def fd(self, handle: Handle) -> int:
        """The descriptor of a handle, opened when it is not."""
        handle.used = True
        return handle.fd if handle.fd >= 0 else self.open(handle)

    def open(self, handle: Handle, create: bool = False) -> int:
        while len(self._open) >= self._open_max:
            self._evict()
        handle.fd = self._disk.open(handle.path, create)
        handle.used = True
        self._open[handle] = None
        return handle.fd

    def open_or_create(self, handle: Handle) -> int:
        """The descriptor of a handle whose file may not exist yet."""
        return handle.fd if handle.fd >= 0 else self.open(handle, create=True)

    def map(self, handle: Handle, size: int) -> memoryview:
        """A mapping of the file's first `size` bytes, kept with the handle."""
        handle.view = view = self._disk.map(self.fd(handle), size)
        return view

    def close(self, handle: Handle) -> None:
        """Close one; slices of its mapping stay valid."""
        if handle.fd >= 0:
            del self._open[handle]
            self._drop(handle)

    def close_all(self) -> None:
        while self._open:
            self._drop(self._open.popitem(last=False)[0])

    def __len__(self) -> int:
        return len(self._open)

    def _evict(self) -> None:
        handle, _ = self._open.popitem(last=False)
        while handle.used:
            handle.used = False
            self._open[handle] = None
            handle, _ = self._open.popitem(last=False)
        self._drop(handle)

    def _drop(self, handle: Handle) -> None:
        fd, handle.fd, handle.view, handle.kept = handle.fd, -1, None, None
        self._disk.close(fd)

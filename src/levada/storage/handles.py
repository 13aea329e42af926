"""Caches open file descriptors and mappings for all logs of a broker, so that thousands of partitions fit one process.

Handles that are not in use are closed and reopened on demand. Only the thread that owns the logs may use handles: a
descriptor closed here can be reused by the operating system at once. Other threads (fsync, page-cache warming,
recovery) open files of their own.
"""

from collections import OrderedDict

from levada.storage.disk import Disk


class FileHandle:
    """One file that may be open, its mapping, and a value that its owner caches while it is open."""

    __slots__ = ("cached", "fd", "path", "used", "view")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.used = False  # since the last eviction scan
        self.view: memoryview | None = None
        self.cached: object = None


class FileHandleCache:
    """The open handles, evicted by the clock (second chance) algorithm."""

    __slots__ = ("_disk", "_open", "_open_max")

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = max(2, open_max // 2)  # a mapping holds a second descriptor of its file
        self._open: OrderedDict[FileHandle, None] = OrderedDict()  # the next candidate for eviction first

    def fd(self, handle: FileHandle) -> int:
        """Return the descriptor of a handle; open it if necessary."""
        handle.used = True
        return handle.fd if handle.fd >= 0 else self.open(handle)

    def open(self, handle: FileHandle, create: bool = False) -> int:
        while len(self._open) >= self._open_max:
            self._evict()
        handle.fd = self._disk.open(handle.path, create)
        handle.used = True
        self._open[handle] = None
        return handle.fd

    def open_or_create(self, handle: FileHandle) -> int:
        """Return the descriptor of a handle whose file may not exist yet."""
        return handle.fd if handle.fd >= 0 else self.open(handle, create=True)

    def map(self, handle: FileHandle, size: int) -> memoryview:
        """Map the first `size` bytes of the file and keep the mapping with the handle."""
        handle.view = view = self._disk.map(self.fd(handle), size)
        return view

    def close(self, handle: FileHandle) -> None:
        """Close a handle; slices of its mapping remain valid."""
        if handle.fd >= 0:
            del self._open[handle]
            self._close(handle)

    def close_all(self) -> None:
        while self._open:
            self._close(self._open.popitem(last=False)[0])

    def __len__(self) -> int:
        return len(self._open)

    def _evict(self) -> None:
        handle, _ = self._open.popitem(last=False)
        while handle.used:
            handle.used = False
            self._open[handle] = None
            handle, _ = self._open.popitem(last=False)
        self._close(handle)

    def _close(self, handle: FileHandle) -> None:
        fd, handle.fd, handle.view, handle.cached = handle.fd, -1, None, None
        self._disk.close(fd)

"""The interface to the file system.

The simulator implements it with a disk that tears writes and loses unsynced data, so durability is part of the
contract: a written byte survives a crash only after `fsync` of its file; a created, renamed or deleted name only after
`fsync_dir` of its directory. No call shrinks a file: readers may have it mapped, and an access to a truncated page
kills the process.
"""

import errno
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from levada.errors import ErrorCode, KafkaError

SMALL_FILE_BYTES_MAX = 64 * 1024 * 1024  # a checkpoint of 200,000 partitions, or 300,000 producers
IOVECS_MAX = 1_000  # IOV_MAX is 1,024
TEMPORARY_SUFFIX = ".tmp"
RESOURCE_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))  # which pass: no file is damaged
# Errors of one file, not of the device. Too few descriptors or too little memory is no failure of a device either.
FILE_ERRORS: Final = frozenset(
    (
        *(errno.EACCES, errno.EEXIST, errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.ENXIO, errno.EOVERFLOW, errno.EPERM, errno.ESPIPE),
        *(errno.EBADMSG, *RESOURCE_ERRORS),
    )
)


class Reads(Protocol):
    """Reads open files."""

    def pread(self, fd: int, count: int, position: int, /) -> bytes:
        """Read at most `count` bytes; fewer only at the end of the file."""
        ...


class Disk(Reads, Protocol):
    """Files by descriptor, names by path. Failures are the OSErrors of the operating system."""

    def open(self, path: str, create: bool = False) -> int:
        """Open a file to read and write; with `create` a missing file is created."""
        ...

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def pwritev(self, fd: int, views: Sequence[bytes | memoryview], position: int, /) -> int:
        """Write the views in order, possibly not all; return the number of bytes written."""
        ...

    def fsync(self, fd: int) -> None: ...

    def pread_cached(self, fd: int, count: int, position: int, /) -> bytes:
        """Read from the page cache; raise BlockingIOError instead of waiting for the device. May return fewer bytes."""
        ...

    def drop_cached(self, fd: int, count: int, position: int, /) -> None:
        """Drop clean pages from the page cache; with a count of 0 only turn off read-ahead of this descriptor."""
        ...

    def next_data(self, fd: int, position: int) -> int:
        """Return the position itself, or where the hole of a sparse file ends that contains it."""
        ...

    def map(self, fd: int, size: int) -> memoryview:
        """Map the first `size` bytes read-only; the mapping lives as long as any view of it."""
        ...

    def exists(self, path: str) -> bool: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...

    def listdir(self, path: str) -> list[str]: ...

    def irregular_files(self, path: str) -> list[str]:
        """List the names in a directory that are not regular files."""
        ...

    def links(self, path: str) -> dict[str, str]:
        """Map the names in a directory that are symbolic links to the real paths of their targets."""
        ...

    def mkdir(self, path: str) -> None:
        """Create a directory unless it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing `target`."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def fsync_dir(self, path: str) -> None: ...


class OsDisk:
    """The file system of this machine."""

    __slots__ = ("_probing",)

    pread = staticmethod(os.pread)
    fsync = staticmethod(os.fsync)
    close = staticmethod(os.close)
    listdir = staticmethod(os.listdir)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    exists = staticmethod(os.path.exists)
    pwritev = staticmethod(os.pwritev)

    def __init__(self) -> None:
        self._probing = hasattr(os, "RWF_NOWAIT")

    def open(self, path: str, create: bool = False) -> int:
        return open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0))

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread_cached(self, fd: int, count: int, position: int, /) -> bytes:
        if self._probing:
            data = bytearray(count)
            try:
                return bytes(data[: os.preadv(fd, [data], position, os.RWF_NOWAIT)])
            except BlockingIOError:
                raise
            except OSError:
                self._probing = False  # not supported by the file system: nothing counts as cold
        return os.pread(fd, count, position)

    def drop_cached(self, fd: int, count: int, position: int, /) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, count, os.POSIX_FADV_DONTNEED if count else os.POSIX_FADV_RANDOM)

    def next_data(self, fd: int, position: int) -> int:
        try:
            return os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            return self.size(fd) if error.errno == errno.ENXIO else position  # no data follows; or it is not supported

    def map(self, fd: int, size: int) -> memoryview:
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def irregular_files(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if not _is_regular(entry)]

    def links(self, path: str) -> dict[str, str]:
        with os.scandir(path) as entries:
            return {entry.name: os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a loop of symbolic links
        return False


def open_regular(path: str, flags: int) -> int:
    """Open a regular file; anything else raises EINVAL. Opening a fifo does not block."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


@contextmanager
def errors_of_one_log(directory: str) -> Iterator[None]:
    """Turn the OSErrors of single files into KAFKA_STORAGE_ERROR of one log; errors of the device pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        detail = f"{error.filename or directory}: {error.strerror}"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail) from error


def write_all(disk: Disk, fd: int, views: Sequence[bytes | memoryview], position: int) -> int:
    """Write all bytes, with several writes if necessary; return the position after the last one."""
    rest = [view for view in views if len(view)]
    while rest:
        written = disk.pwritev(fd, rest[:IOVECS_MAX], position)
        if written <= 0:
            raise OSError("a write made no progress")
        position += written
        done = 0
        while done < len(rest) and written >= len(rest[done]):
            written -= len(rest[done])
            done += 1
        del rest[:done]
        if written:
            rest[0] = memoryview(rest[0])[written:]
    return position


def read_file(disk: Disk, path: str, bytes_max: int = SMALL_FILE_BYTES_MAX) -> bytes | None:
    """Return the content of a small file; None if it does not exist.

    No valid file has more than `bytes_max`: of a larger one, one byte more than that is returned.
    """
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return disk.pread(fd, min(disk.size(fd), bytes_max + 1), 0)
    finally:
        disk.close(fd)


def fsync_file(disk: Disk, path: str) -> None:
    """Make the content of a file durable."""
    fd = disk.open(path)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


def write_atomically(disk: Disk, path: str, data: bytes, durable: bool = True) -> None:
    """Replace a small file: readers see the old or the new content.

    Without `durable` a crash may leave the new name with lost content: only for files that are checked when read and
    can be rebuilt.
    """
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.unlink(temporary)
    fd = disk.open(temporary, create=True)
    try:
        write_all(disk, fd, [data], 0)
        if durable:
            disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    if durable:
        disk.fsync_dir(os.path.dirname(path))


def remove_tree(disk: Disk, path: str) -> None:
    """Delete a directory of plain files; it is no error if it does not exist."""
    try:
        for name in disk.listdir(path):
            disk.unlink(os.path.join(path, name))
        disk.rmdir(path)
    except FileNotFoundError:
        return

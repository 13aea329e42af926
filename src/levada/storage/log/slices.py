"""Pieces of a segment as they are sent: slices of its mapping where that saves a copy, bytes where it does not.

A mapping is never looked into here, only handed on to the socket. Whether its pages are in memory is asked of
the kernel by probes that do not wait, since a page fault in the loop's thread would stop every connection.
"""

import errno
from typing import NamedTuple

from levada.storage.disk import Disk
from levada.storage.log.segment import SCAN_BLOCK_BYTES, Segment

MAPPED_READ_MIN = 16 * 1024  # smaller reads are copied unless they are mapped already
MAPPED_STEP_BYTES = 256 * 1024  # a file is mapped anew only when it has grown by so much
PROBE_STRIDE_BYTES = 256 * 1024
WARM_BEYOND_BYTES = 64 * 1024  # the next read begins with a header after this one's end


class Slice(NamedTuple):
    """Whole batches to send. A cold one should be read by a thread first (`warm`), or sending it waits."""

    views: list[memoryview | bytes]
    size: int
    cold: bool
    source: tuple[str, int] | None = None  # of a cold one: file and position


NOTHING = Slice([], 0, False)


def take(segment: Segment, start: int, end: int, recent: bool) -> Slice:
    """The bytes of a segment from `start` to `end`; `recent` ones are known to be in memory."""
    size = end - start
    handle, handles = segment.handle, segment.handles
    cold = not recent and is_cold(segment, start, end)
    view = handle.view
    mapped = 0 if view is None else len(view)
    if view is None or end > mapped:
        if not cold and (size < MAPPED_READ_MIN or segment.size - mapped < MAPPED_STEP_BYTES):
            data = segment.disk.pread(handles.fd(handle), size, start)
            if len(data) != size:
                raise OSError(errno.EIO, f"{len(data)} bytes of {size} at {start}", handle.path)
            return Slice([data], size, False)
        view = handles.map(handle, segment.size)
    handle.used = True
    return Slice([view[start:end]], size, cold, (handle.path, start) if cold else None)


def is_cold(segment: Segment, start: int, end: int) -> bool:
    """Whether sending these bytes may wait for the device. The first are in memory: a header was read there."""
    fd, pread_cached = segment.fd(), segment.disk.pread_cached
    try:
        for position in range(start + PROBE_STRIDE_BYTES, end, PROBE_STRIDE_BYTES):
            pread_cached(fd, 1, position)
        pread_cached(fd, 1, end - 1)
    except BlockingIOError:
        return True
    return False


def warm(disk: Disk, piece: Slice) -> None:
    """Bring a cold slice into memory; for a thread."""
    if piece.source is None:
        return
    path, position = piece.source
    end = position + piece.size + WARM_BEYOND_BYTES
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return  # removed meanwhile; the mapping still serves it
    try:
        while position < end and (data := disk.pread(fd, min(SCAN_BLOCK_BYTES, end - position), position)):
            position += len(data)
    finally:
        disk.close(fd)

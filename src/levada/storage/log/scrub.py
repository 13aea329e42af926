"""Reads a segment again and verifies every batch, to find damage before a reader does.

The scrub reads with `pread` at a limited rate. Blocks whose first or last page was not in the page cache before are
dropped again, so that it does not displace what readers need. Published batches never change, so no lock is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from levada.storage.disk import Disk
from levada.storage.log.scan import OffsetRule, valid_batches
from levada.storage.log.segment import CorruptBatchError, read_batches

Throttle = Callable[[int], None]  # called with the bytes of each read; sleeps to limit the rate


@dataclass(slots=True)
class ScrubMetrics:
    """Counts since the start."""

    segments: int = 0
    bytes_read: int = 0
    corrupt: int = 0


class UncachedReads:
    """Reads one file block by block and leaves the page cache as it was."""

    __slots__ = ("_disk", "_throttle")

    def __init__(self, disk: Disk, throttle: Throttle) -> None:
        self._disk = disk
        self._throttle = throttle

    def pread(self, fd: int, count: int, position: int, /) -> bytes:
        self._throttle(count)
        try:
            self._disk.pread_cached(fd, 1, position)
            self._disk.pread_cached(fd, 1, position + count - 1)
            return self._disk.pread(fd, count, position)
        except BlockingIOError:
            data = self._disk.pread(fd, count, position)
            self._disk.drop_cached(fd, count, position)
            return data


def scrub_segment(
    disk: Disk,
    path: str,
    base_offset: int,
    size: int,
    following: int | None,
    throttle: Throttle,
    *,
    contiguous: bool,
) -> None:
    """Verify the first `size` bytes of a segment; raise CorruptBatchError. Runs in a thread.

    A closed segment ends where the next one, `following`, begins; one that was never compacted is `contiguous`.
    """
    fd = disk.open(path)
    try:
        reads = UncachedReads(disk, throttle)
        disk.drop_cached(fd, 0, 0)
        batches = read_batches(reads, fd, path, 0, size, whole=True)
        end_offset = base_offset
        try:
            for _, header, _ in valid_batches(batches, path, OffsetRule(base_offset, contiguous, following)):
                end_offset = header.last_offset + 1
        except CorruptBatchError as error:
            error.offset = end_offset
            raise
        if following is not None and end_offset != following:
            raise CorruptBatchError(path, size, f"it ends at offset {end_offset}, but the next starts at {following}")
    finally:
        disk.close(fd)

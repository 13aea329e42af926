"""Scans the batches of a segment: their CRCs, their offsets, and all that can be rebuilt from them.

Recovery, `levada log check`, repair and the scrub read segments with this module only. A scan changes no file. It
reads with `pread`, never through a mapping.
"""

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from levada.model import NO_TIMESTAMP
from levada.storage.disk import Disk
from levada.storage.log.segment import (
    RELATIVE_OFFSET_MAX,
    SCAN_BLOCK_BYTES,
    CorruptBatchError,
    LogSegment,
    StoredBatch,
    read_batches,
)
from levada.wire.batches import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, crc_is_valid, read_header

MAGIC_BYTE, MAGIC_POSITION = bytes([MAGIC]), 16
CANDIDATE_OFFSETS_MAX = 1 << 40  # a larger step from one batch to the next is no offset

Progress = Callable[[int], None]  # called with the bytes of each batch; may raise to stop the scan


def unreported(_: int) -> None:
    """Report no progress."""


class SegmentScan:
    """The result of a scan: the valid batches end at `valid_bytes` with the offset before `end_offset`."""

    __slots__ = (
        "base_offset",
        "end_offset",
        "entries",
        "epochs",
        "has_control_batches",
        "max_timestamp",
        "max_timestamp_offset",
        "reason",
        "valid_bytes",
    )

    def __init__(self, base_offset: int) -> None:
        self.base_offset = self.end_offset = base_offset
        self.valid_bytes = 0
        self.reason = ""  # why the bytes after `valid_bytes` are no batch of this log; empty if there are none
        self.entries = array("q")  # of the indexes: last offset, position, greatest timestamp so far and its offset
        self.epochs: list[tuple[int, int]] = []  # leader epochs and the offsets where they start
        self.has_control_batches = False
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, base_offset

    def add(self, position: int, header: BatchHeader) -> None:
        """Add a valid batch."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
        if not self.epochs or header.partition_leader_epoch != self.epochs[-1][0]:
            self.epochs.append((header.partition_leader_epoch, header.base_offset))
        self.has_control_batches |= header.is_control
        self.end_offset, self.valid_bytes = header.last_offset + 1, position + header.size

    def rebuild_indexes(self, segment: LogSegment) -> None:
        """Rebuild the offset and the time index of the segment."""
        segment.reset_indexes()
        entries = iter(self.entries)
        for last_offset, position, timestamp, timestamp_offset in zip(*[entries] * 4, strict=True):
            segment.max_timestamp, segment.max_timestamp_offset = timestamp, timestamp_offset
            segment.add_entry(last_offset, position)
        segment.max_timestamp, segment.max_timestamp_offset = self.max_timestamp, self.max_timestamp_offset


def scan_segment(
    segment: LogSegment, interval: int, *, contiguous: bool, progress: Progress = unreported
) -> SegmentScan:
    """Read a segment up to its first invalid batch; index a batch each `interval` bytes.

    Compaction leaves gaps between the offsets of closed segments; without it a segment is `contiguous`.
    """
    scan = SegmentScan(segment.base_offset)
    batches = read_batches(segment.disk, segment.fd(), segment.path, 0, segment.size, whole=True)
    indexed = 0
    try:
        for position, header, _ in valid_batches(batches, segment.path, segment.base_offset, contiguous):
            scan.add(position, header)
            if position - indexed > interval:
                entry = (header.last_offset, position, scan.max_timestamp, scan.max_timestamp_offset)
                scan.entries.extend(entry)
                indexed = position
            progress(header.size)
    except CorruptBatchError as error:
        scan.reason = error.reason
    return scan


def valid_batches(
    batches: Iterator[StoredBatch], path: str, base_offset: int, contiguous: bool, expected: int | None = None
) -> Iterator[StoredBatch]:
    """Yield whole batches of a segment as long as they are valid; raise CorruptBatchError at the first that is not.

    The first has the offset `expected`, if that is not the base offset of the segment.
    """
    expected = base_offset if expected is None else expected
    for position, header, view in batches:
        reason = _invalid_reason(header, view, expected, base_offset, contiguous)
        if reason:
            raise CorruptBatchError(path, position, reason, expected)
        yield position, header, view
        expected = header.last_offset + 1


class InvalidBytes(NamedTuple):
    """Bytes of a segment between valid batches, and the offsets that their batches had."""

    position: int
    size: int
    reason: str
    offsets: range


def valid_and_invalid_batches(
    segment: LogSegment, end_offset: int, contiguous: bool, progress: Progress = unreported
) -> Iterator[StoredBatch | InvalidBytes]:
    """Yield all valid batches of a segment that should end before `end_offset`, and the invalid bytes between them."""
    disk, fd, size = segment.disk, segment.fd(), segment.size
    position, expected = 0, segment.base_offset
    while position < size:
        batches = read_batches(disk, fd, segment.path, position, size, whole=True)
        try:
            for one in valid_batches(batches, segment.path, segment.base_offset, contiguous, expected):
                yield one
                expected, position = one[1].last_offset + 1, one[0] + one[1].size
                progress(one[1].size)
            return
        except CorruptBatchError as error:
            found = find_batch(disk, fd, error.position, size, expected)
            if found == error.position and read_header(disk.pread(fd, HEADER_BYTES, found)).base_offset <= expected:
                found = find_batch(disk, fd, found + 1, size, expected)  # it is invalid, and not only after a gap
            header = None if found is None else read_header(disk.pread(fd, HEADER_BYTES, found))
            following = max(expected, end_offset) if header is None else header.base_offset
            stop = size if found is None else found
            yield InvalidBytes(error.position, stop - error.position, error.reason, range(expected, following))
            position, expected = stop, following


def _invalid_reason(header: BatchHeader, batch: memoryview, expected: int, base_offset: int, contiguous: bool) -> str:
    """Return why a batch is invalid at its place in the log; empty if it is valid."""
    if header.base_offset < expected or (contiguous and header.base_offset > expected):
        return f"offset {header.base_offset} where {'' if contiguous else 'at least '}{expected} is expected"
    if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return f"offset {header.last_offset} is too far from the base offset of the segment"
    return "" if crc_is_valid(batch) else "its CRC differs"


def find_batch(disk: Disk, fd: int, start: int, size: int, offset: int, progress: Progress = unreported) -> int | None:
    """Return the position of the first batch after `start` that is valid and has an offset of at least `offset`."""
    position = start
    while position < size:
        position = max(position, disk.next_data(fd, position) - MAGIC_POSITION)  # zeros before the magic may be a hole
        block = disk.pread(fd, min(SCAN_BLOCK_BYTES, size - position), position)
        at = block.find(MAGIC_BYTE, MAGIC_POSITION)
        while at >= 0:
            candidate = position + at - MAGIC_POSITION
            if _is_batch(disk, fd, candidate, size, offset):
                return candidate
            at = block.find(MAGIC_BYTE, at + 1)
        progress(len(block))
        if position + len(block) >= size:
            return None
        position += max(1, len(block) - MAGIC_POSITION)
    return None


def _is_batch(disk: Disk, fd: int, position: int, size: int, offset: int) -> bool:
    """Whether a valid batch starts at a position, and the batch after it, if there is one, has a higher offset."""
    data = disk.pread(fd, HEADER_BYTES, position)
    if len(data) < HEADER_BYTES:
        return False
    header = read_header(data)
    plausible = (
        header.magic == MAGIC
        and offset <= header.base_offset <= offset + CANDIDATE_OFFSETS_MAX
        and header.last_offset_delta >= 0
        and HEADER_BYTES - LOG_OVERHEAD <= header.batch_length <= size - position - LOG_OVERHEAD
    )
    if not plausible or not crc_is_valid(memoryview(disk.pread(fd, header.size, position))):
        return False
    following = disk.pread(fd, HEADER_BYTES, position + header.size)
    if len(following) < HEADER_BYTES or (after := read_header(following)).magic != MAGIC:
        return True
    return after.base_offset > header.last_offset

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
    segment: LogSegment, interval: int, *, contiguous: bool, following: int | None, progress: Progress = unreported
) -> SegmentScan:
    """Read a segment up to its first invalid batch; index a batch each `interval` bytes.

    Compaction leaves gaps between the offsets of closed segments; without it a segment is `contiguous`. The next
    segment starts at `following`.
    """
    scan = SegmentScan(segment.base_offset)
    batches = read_batches(segment.disk, segment.fd(), segment.path, 0, segment.size, whole=True)
    rule = OffsetRule(segment.base_offset, contiguous, following)
    indexed = 0
    try:
        for position, header, _ in valid_batches(batches, segment.path, rule):
            scan.add(position, header)
            if position - indexed > interval:
                entry = (header.last_offset, position, scan.max_timestamp, scan.max_timestamp_offset)
                scan.entries.extend(entry)
                indexed = position
            progress(header.size)
    except CorruptBatchError as error:
        scan.reason = error.reason
    return scan


class OffsetRule(NamedTuple):
    """Which offsets the batches of a segment may have."""

    base_offset: int
    contiguous: bool  # each batch starts where the one before ends
    end: int | None = None  # which all batches are below: the base offset of the next segment

    def violation(self, header: BatchHeader, expected: int) -> str:
        """Return why a batch cannot follow one that ends before `expected`; empty if it can."""
        if header.base_offset < expected or (self.contiguous and header.base_offset > expected):
            return f"offset {header.base_offset} where {'' if self.contiguous else 'at least '}{expected} is expected"
        if header.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return f"offset {header.last_offset} is too far from the base offset of the segment"
        if self.end is not None and header.last_offset >= self.end:
            return f"offset {header.last_offset}, but the segment ends before {self.end}"
        return ""


def valid_batches(
    batches: Iterator[StoredBatch], path: str, rule: OffsetRule, expected: int | None = None
) -> Iterator[StoredBatch]:
    """Yield whole batches of a segment as long as they are valid; raise CorruptBatchError at the first that is not.

    The first has the offset `expected`, if that is not the base offset of the segment.
    """
    expected = rule.base_offset if expected is None else expected
    for position, header, view in batches:
        reason = rule.violation(header, expected) or ("" if crc_is_valid(view) else "its CRC differs")
        if reason:
            raise CorruptBatchError(path, position, reason, expected)
        yield position, header, view
        expected = header.last_offset + 1


def find_batch(
    disk: Disk, fd: int, start: int, size: int, accepts: Callable[[int], bool], progress: Progress = unreported
) -> int | None:
    """Return the first position from `start` on where a batch may begin that is accepted."""
    position = start
    while position < size:
        position = max(position, disk.next_data(fd, position) - MAGIC_POSITION)  # zeros before the magic may be a hole
        block = disk.pread(fd, min(SCAN_BLOCK_BYTES, size - position), position)
        at = block.find(MAGIC_BYTE, MAGIC_POSITION)
        while at >= 0:
            candidate = position + at - MAGIC_POSITION
            if accepts(candidate):
                return candidate
            at = block.find(MAGIC_BYTE, at + 1)
        progress(len(block))
        if position + len(block) >= size:
            return None
        position += max(1, len(block) - MAGIC_POSITION)
    return None


def find_following(
    disk: Disk, fd: int, start: int, size: int, rule: OffsetRule, expected: int, progress: Progress = unreported
) -> int | None:
    """Return the position of the first valid batch that can follow `expected`, possibly after lost offsets.

    A last batch that directly follows the previous one with a higher offset has a wrong offset: a lost write would
    leave bytes between them.
    """

    def accepts(position: int) -> bool:
        header = read_valid_batch(disk, fd, position, size)
        if header is None or not expected <= header.base_offset <= expected + CANDIDATE_OFFSETS_MAX:
            return False
        if rule.violation(header, header.base_offset):
            return False
        after = disk.pread(fd, HEADER_BYTES, position + header.size)
        if len(after) < HEADER_BYTES or (following := read_header(after)).magic != MAGIC:
            return position > start or not rule.contiguous or rule.end is not None
        step = following.base_offset - header.last_offset
        return step == 1 or (step > 1 and not rule.contiguous)

    return find_batch(disk, fd, start, size, accepts, progress)


def read_valid_batch(disk: Disk, fd: int, position: int, size: int) -> BatchHeader | None:
    """Return the header of the batch at a position of a file of `size` bytes; None if there is no valid one."""
    data = disk.pread(fd, HEADER_BYTES, position)
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    plausible = (
        header.magic == MAGIC
        and header.last_offset_delta >= 0
        and HEADER_BYTES - LOG_OVERHEAD <= header.batch_length <= size - position - LOG_OVERHEAD
    )
    return header if plausible and crc_is_valid(memoryview(disk.pread(fd, header.size, position))) else None


class InvalidBytes(NamedTuple):
    """Bytes of a segment between valid batches, and the offsets that their batches had."""

    position: int
    size: int
    reason: str
    offsets: range
    has_batch: bool = False  # a whole batch that fits no offset is among them


def valid_and_invalid_batches(
    segment: LogSegment, rule: OffsetRule, end_offset: int
) -> Iterator[StoredBatch | InvalidBytes]:
    """Yield all valid batches of a segment that should end before `end_offset`, and the invalid bytes between them."""
    disk, fd, size = segment.disk, segment.fd(), segment.size
    position, expected, before = 0, segment.base_offset, memoryview(b"")
    while position < size:
        batches = read_batches(disk, fd, segment.path, position, size, whole=True)
        try:
            valid = valid_batches(batches, segment.path, rule, expected)
            for one in _without_contradictions(segment, valid, expected):
                yield one
                expected, position, before = one[1].last_offset + 1, one[0] + one[1].size, one[2]
            return
        except CorruptBatchError as error:
            search = error.resume if isinstance(error, ContradictingOffsetsError) else error.position
            found = find_following(disk, fd, search, size, rule, expected)
            stop = size if found is None else found
            if found is not None:
                following = read_header(disk.pread(fd, HEADER_BYTES, found)).base_offset
            else:
                following = max(expected + _offsets_at(segment, error.position, rule), end_offset)
            offsets = range(expected, following)
            has_batch = not offsets and _has_other_batch(segment, error.position, stop, before)
            yield InvalidBytes(error.position, stop - error.position, error.reason, offsets, has_batch)
            position, expected = stop, following


class ContradictingOffsetsError(CorruptBatchError):
    """Two batches of a compacted segment have offsets that contradict each other, and the first may be wrong.

    For example a batch at offset 900 is followed by one at offset 120.
    """

    def __init__(self, path: str, position: int, reason: str, offset: int, resume: int) -> None:
        super().__init__(path, position, reason, offset)
        self.resume = resume  # the first position whose batch may be right


def _without_contradictions(
    segment: LogSegment, batches: Iterator[StoredBatch], expected: int
) -> Iterator[StoredBatch]:
    """Yield valid batches, but not one after a gap whose offset contradicts the batch behind it.

    The offset of a batch is not in its CRC. A batch that starts where the one before ends is right. After a gap of
    compaction both batches may be wrong: the second is right only if it ends where a third starts.

    Where batches end at offset 99 and continue at 900, 120-129 and 130, the one at 900 is wrong: 120-129 and 130 agree.
    If 300 follows in place of 130, those at 900 and at 120 count as wrong.
    """
    previous: StoredBatch | None = None
    try:
        for one in batches:
            if previous is not None:
                yield previous
                expected = previous[1].last_offset + 1
            previous = one
    except CorruptBatchError as error:
        if previous is not None:
            _check_offsets(segment, previous, expected, error.position)
            yield previous
        raise
    if previous is not None:
        yield previous


def _check_offsets(segment: LogSegment, previous: StoredBatch, expected: int, position: int) -> None:
    """Raise ContradictingOffsetsError if the batch at a position is whole, but fits before the previous one.

    The batch before the previous one ends before `expected`.
    """
    disk, fd = segment.disk, segment.fd()
    header = read_valid_batch(disk, fd, position, segment.size)
    if header is None or previous[1].base_offset == expected:
        return
    if expected <= header.base_offset <= previous[1].last_offset:
        third = read_valid_batch(disk, fd, position + header.size, segment.size)
        is_right = third is not None and third.base_offset == header.last_offset + 1
        reason = f"offset {previous[1].base_offset}, but {header.base_offset} follows"
        resume = position if is_right else position + header.size
        raise ContradictingOffsetsError(segment.path, previous[0], reason, expected, resume)


def _offsets_at(segment: LogSegment, position: int, rule: OffsetRule) -> int:
    """Return how many offsets the whole batch at a position spans that has a wrong one, and after which nothing ends.

    Where the end of the segment is known, they are below it.
    """
    if rule.end is not None:
        return 0
    header = read_valid_batch(segment.disk, segment.fd(), position, segment.size)
    return 0 if header is None else header.last_offset_delta + 1


def _has_other_batch(segment: LogSegment, start: int, stop: int, before: memoryview) -> bool:
    """Whether bytes hold a whole batch that is no copy of the batch before them."""
    disk, fd = segment.disk, segment.fd()

    def accepts(position: int) -> bool:
        header = read_valid_batch(disk, fd, position, stop)
        return header is not None and disk.pread(fd, header.size, position) != before

    return find_batch(disk, fd, start, stop, accepts) is not None

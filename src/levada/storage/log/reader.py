"""Reads batches of a log by offset or timestamp, and the aborted transactions of a read.

Most reads continue where an earlier one ended. So a read ends at an index entry if possible, and the end positions of
recent reads are cached: the next read starts there without a search. Index entries are validated against the batch
header they point to.

A read returns slices of the segment's mapping, or copied bytes where they are cheaper. A mapping is never parsed, only
passed to the socket. Non-blocking probes find out whether its pages are in the page cache: a page fault in the loop's
thread would stall every connection.
"""

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from levada.core.partition.producer_state import AbortedTransaction
from levada.errors import KafkaError
from levada.storage.checkpoints import Checksum
from levada.storage.disk import Disk
from levada.storage.log.segment import SCAN_BLOCK_BYTES, CorruptBatchError, LogSegment
from levada.wire.batches import BatchHeader, Record, decode
from levada.wire.control_records import Marker, decode_marker

WARM_TAIL_BYTES = 8 * 1024 * 1024  # recently written bytes are assumed to be in the page cache
POSITIONS_CACHED_MAX = 64
SMALL_BYTES = 4 * 1024
MAPPED_READ_MIN = 16 * 1024  # smaller reads are copied unless they are mapped already
MAPPED_STEP_BYTES = 256 * 1024  # a file is remapped only after it has grown by so much
PROBE_STRIDE_BYTES = 256 * 1024
WARM_BEYOND_BYTES = 64 * 1024  # the next read starts with a header after the end of this one
NO_RECORD = (-1, -1)

LogPosition = tuple[LogSegment, int]  # segment and position in its file


class Slice(NamedTuple):
    """Whole batches to send. If `cold`, sending may wait for the device unless `warm` has read them in a thread."""

    views: list[memoryview | bytes]
    size: int
    cold: bool
    source: tuple[str, int] | None = None  # file and position of a cold slice


NOTHING = Slice([], 0, False)


def slice_segment(segment: LogSegment, start: int, end: int, recent: bool) -> Slice:
    """Return the bytes of a segment from `start` to `end`; `recent` bytes are in the page cache."""
    size = end - start
    handle, handles = segment.handle, segment.handles
    cold = not recent and is_cold(segment, start, end)
    view = handle.view
    mapped = 0 if view is None else len(view)
    if view is None or end > mapped:
        if not cold and (size < MAPPED_READ_MIN or segment.size - mapped < MAPPED_STEP_BYTES):
            data = segment.disk.pread(handles.fd(handle), size, start)
            if len(data) != size:
                raise OSError(errno.EBADMSG, f"it ends after {len(data)} of {size} bytes at byte {start}", handle.path)
            return Slice([data], size, False)
        view = handles.map(handle, segment.size)
    handle.used = True
    return Slice([view[start:end]], size, cold, (handle.path, start) if cold else None)


def is_cold(segment: LogSegment, start: int, end: int) -> bool:
    """Whether sending may wait for the device. The first bytes are cached: their header was just read."""
    fd, pread_cached = segment.fd(), segment.disk.pread_cached
    try:
        for position in range(start + PROBE_STRIDE_BYTES, end, PROBE_STRIDE_BYTES):
            pread_cached(fd, 1, position)
        pread_cached(fd, 1, end - 1)
    except BlockingIOError:
        return True
    return False


def warm(disk: Disk, piece: Slice) -> None:
    """Read a cold slice into the page cache. Runs in a thread."""
    if piece.source is None:
        return
    path, position = piece.source
    end = position + piece.size + WARM_BEYOND_BYTES
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return  # deleted meanwhile; the mapping still serves it
    try:
        while position < end and (data := disk.pread(fd, min(SCAN_BLOCK_BYTES, end - position), position)):
            position += len(data)
    finally:
        disk.close(fd)


class LogReader:
    """The segments of a log in order, the last of which is the active one, and the end positions of recent reads."""

    __slots__ = ("_bases", "_positions", "interval", "segments")

    def __init__(self, segments: list[LogSegment], interval: int) -> None:
        self.segments = segments
        self.interval = max(1, interval)  # index.interval.bytes
        self._bases = [segment.base_offset for segment in segments]
        self._positions: dict[int, LogPosition] = {}  # by the base offset of the batch at the position

    def append(self, segment: LogSegment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base_offset)

    def remove(self, start: int, stop: int) -> list[LogSegment]:
        """Remove and return some segments."""
        removed = self.segments[start:stop]
        del self.segments[start:stop], self._bases[start:stop]
        self._positions.clear()
        return removed

    def replace(self, start: int, stop: int, segment: LogSegment) -> list[LogSegment]:
        """Replace some segments by one, and return them."""
        replaced = self.segments[start:stop]
        self.segments[start:stop], self._bases[start:stop] = [segment], [segment.base_offset]
        self._positions.clear()
        return replaced

    def locate(self, offset: int) -> LogPosition:
        """Return where the first batch that ends at or after `offset` starts, or the end of the active segment."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        segment = self.segments[number]
        position = segment.locate(offset, self.interval)
        while position == segment.size and number + 1 < len(self.segments):
            number += 1
            segment, position = self.segments[number], 0
        return segment, position

    def read(self, offset: int, max_bytes: int, end_offset: int, log_end: int, minimum_one: bool) -> Slice:
        """Return whole batches below `end_offset`, of one segment unless it is small. `offset` is below it too."""
        segment, start = self._positions.get(offset) or self.locate(offset)
        if start == segment.size:
            segment, start = self.locate(offset)
        end = segment.size if end_offset >= log_end else self._end_before(end_offset, segment, start)
        if end - start > max_bytes:
            return self._read_part(segment, start, max_bytes, minimum_one)
        if end == start:
            return NOTHING
        if segment is self.segments[-1]:
            self._cache_position(min(end_offset, log_end), (segment, end))
            return slice_segment(segment, start, end, self._is_recent(segment, start))
        piece = slice_segment(segment, start, end, recent=False)
        if piece.size < SMALL_BYTES and end == segment.size and not piece.cold:
            return self._continued(piece, segment, max_bytes, end_offset, log_end)
        return piece

    def _continued(self, piece: Slice, segment: LogSegment, max_bytes: int, end_offset: int, log_end: int) -> Slice:
        """Return the small rest of a segment with the start of the next one.

        Compaction may leave only empty batches in a segment; librdkafka treats several responses with nothing else as
        an error.
        """
        following = self._bases[bisect_right(self._bases, segment.base_offset)]
        if following >= min(end_offset, log_end):
            return piece
        more = self.read(following, max_bytes - piece.size, end_offset, log_end, minimum_one=False)
        if more.cold:
            return piece
        return Slice(piece.views + more.views, piece.size + more.size, False)

    def _read_part(self, segment: LogSegment, start: int, max_bytes: int, minimum_one: bool) -> Slice:
        """Return at most `max_bytes` of a segment that has more to read."""
        found = segment.offset_index.floor(1, start + max_bytes)
        recent = self._is_recent(segment, start)
        if found:
            _, (relative, end) = found
            if end > start:
                try:
                    header = segment.header_at(end, waits=recent)
                except BlockingIOError:
                    return slice_segment(segment, start, end, recent)  # a wrong end only truncates a batch
                if header and header.last_offset == segment.base_offset + relative:
                    self._cache_position(header.base_offset, (segment, end))
                    return slice_segment(segment, start, end, recent or end - start <= PROBE_STRIDE_BYTES)
        end, following = segment.end_of_batches(start, max_bytes, minimum_one)
        if end == start:
            return NOTHING
        self._cache_position(following, (segment, end))
        return slice_segment(segment, start, end, recent)

    def _cache_position(self, offset: int, position: LogPosition) -> None:
        positions = self._positions
        positions[offset] = position
        if len(positions) > POSITIONS_CACHED_MAX:
            del positions[next(iter(positions))]

    def _end_before(self, end_offset: int, segment: LogSegment, start: int) -> int:
        """Return where in `segment` the batches below `end_offset` end."""
        found = self._positions.get(end_offset)
        if found is None:
            found = self.locate(end_offset)
            self._cache_position(end_offset, found)
        if found[0] is segment:
            return max(start, found[1])
        return segment.size if found[0].base_offset > segment.base_offset else start

    def _is_recent(self, segment: LogSegment, position: int) -> bool:
        return segment is self.segments[-1] and position >= segment.size - WARM_TAIL_BYTES

    def headers(self, start_offset: int) -> Iterator[BatchHeader]:
        return (header for _, _, header in self._batches(start_offset))

    def headers_and_markers(self, start_offset: int) -> Iterator[tuple[BatchHeader, Marker | None]]:
        """Yield the batch headers from `start_offset` on, those of control batches with their marker."""
        for segment, position, header in self._batches(start_offset):
            marker = None
            if header.is_control:
                data = segment.disk.pread(segment.fd(), header.size, position)
                try:
                    marker = decode_marker(memoryview(data))
                except KafkaError as error:
                    raise CorruptBatchError(segment.path, position, error.detail, header.base_offset) from error
            yield header, marker

    def _batches(self, start_offset: int) -> Iterator[tuple[LogSegment, int, BatchHeader]]:
        first, start = self.locate(start_offset)
        for segment in self.segments[self.segments.index(first) :]:
            for position, header, _ in segment.batches(start):
                yield segment, position, header
            start = 0

    # Timestamps: the time index provides the start of the search, the batches decide.

    def offset_for_timestamp(self, timestamp: int, start_offset: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record from `start_offset` on that is not older."""
        for segment in self.segments:
            if segment.max_timestamp >= timestamp:
                found = self._search(segment, timestamp, start_offset)
                if found is not None:
                    return found.timestamp, found.offset
        return None

    def _search(self, segment: LogSegment, timestamp: int, start_offset: int) -> Record | None:
        earlier = segment.time_index.floor(0, timestamp - 1)
        if earlier and not segment.is_valid_time_entry(*earlier[1], self.interval):
            segment.rebuild_indexes(self.interval)
            earlier = segment.time_index.floor(0, timestamp - 1)
        relative = earlier[1][1] if earlier else 0
        start = segment.locate(max(segment.base_offset + relative, start_offset), self.interval)
        for position, header, _ in segment.batches(start):
            if header.max_timestamp < timestamp:
                continue
            for record in _records_at(segment, position, header.size):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return record
        return None

    def max_timestamp(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the first record with the greatest timestamp; (-1, -1) if there is none."""
        latest = max(self.segments, key=lambda segment: segment.max_timestamp)
        if latest.max_timestamp < 0:
            return NO_RECORD
        position = latest.locate(latest.max_timestamp_offset, self.interval)
        header = latest.header_at(position)
        for record in _records_at(latest, position, header.size) if header else ():
            if record.timestamp == latest.max_timestamp:
                return record.timestamp, record.offset
        return latest.max_timestamp, latest.max_timestamp_offset

    # Aborted transactions.

    def aborted_transactions(self, offset: int, size: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those that may have records in the `size` bytes of batches that a read from `offset` returned.

        All these batches are below `end_offset`.
        """
        number = max(0, bisect_right(self._bases, offset) - 1)
        if not size or not any(segment.txn_index.count for segment in self.segments[number:]):
            return []
        upper = min(end_offset, self._upper_bound(offset, size))
        found: list[AbortedTransaction] = []
        for segment in self.segments[number:]:
            for transaction in segment.txn_index.since(offset):
                if transaction.first_offset < upper:
                    found.append(transaction)
                if transaction.last_stable_offset >= upper:
                    return found
        return found

    def _upper_bound(self, offset: int, size: int) -> int:
        """Return an offset at or after the end of a read: that of the next indexed batch, or of the next segment."""
        segment, start = self.locate(offset)
        end = start + size
        while end > segment.size:
            end -= segment.size
            segment = self.segments[bisect_right(self._bases, segment.base_offset)]
        index = segment.offset_index
        floor = index.floor(1, end)
        number = 0 if floor is None else floor[0] + (floor[1][1] < end)
        entry = index.entry(number) if number < len(index) else None
        if entry is not None and segment.is_valid_entry(*entry):
            return segment.base_offset + entry[0]
        following = self.segments.index(segment) + 1
        return self._bases[following] if following < len(self._bases) else 2**63

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Index an aborted transaction whose marker is the newest batch of the active segment."""
        self.segments[-1].txn_index.append(transaction)

    def stale_from(self) -> int | None:
        """Return the base offset of the first segment whose transaction index has to be rebuilt."""
        return next((segment.base_offset for segment in self.segments if segment.txn_index.stale), None)

    def txn_checksums(self) -> dict[int, Checksum]:
        """Return the checksums of the transaction indexes. May run in a thread."""
        checksums = {segment.base_offset: segment.txn_index.checksum for segment in list(self.segments)}
        return {base_offset: checksum for base_offset, checksum in checksums.items() if checksum.entries}

    @contextmanager
    def rebuilding_txn_indexes(self) -> Iterator[Callable[[AbortedTransaction], None]]:
        """Rebuild the stale transaction indexes from the aborted transactions passed to the callback, in order."""
        stale = {segment.base_offset: segment.txn_index for segment in self.segments if segment.txn_index.stale}
        for index in stale.values():
            index.reset()

        def add(transaction: AbortedTransaction) -> None:
            base_offset = self._bases[max(0, bisect_right(self._bases, transaction.last_offset) - 1)]
            if base_offset in stale:
                stale[base_offset].append(transaction)

        yield add
        for index in stale.values():
            index.fsync()  # its segment may be below the recovery point, and is then never fsynced again
            index.stale = False


def _records_at(segment: LogSegment, position: int, size: int) -> list[Record]:
    return decode(memoryview(segment.disk.pread(segment.fd(), size, position)))

"""Finding and cutting out what a consumer asks for.

Most reads go on where an earlier one ended. So a read ends at an index entry where it can, and the places where
recent reads ended are remembered: the next one begins there without a search. An index entry is believed only
after the header it points to has been compared.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from levada.core.partition.producer_state import AbortedTransaction
from levada.storage.log.segment import Segment
from levada.storage.log.slices import NOTHING, PROBE_STRIDE_BYTES, Slice, take
from levada.wire.batches import BatchHeader
from levada.wire.control_records import Marker, decode_marker

WARM_TAIL_BYTES = 8 * 1024 * 1024  # what was just written is taken to be in the page cache
PLACES_MAX = 64
SMALL_BYTES = 4 * 1024

Place = tuple[Segment, int, int]  # segment, position, number of an index entry at or before it (or -1)


class Reader:
    """The segments of a log in order, the last of which is the active one, and where reads ended in them."""

    __slots__ = ("_bases", "_places", "interval", "segments")

    def __init__(self, segments: list[Segment], interval: int) -> None:
        self.segments = segments
        self.interval = max(1, interval)  # of the index entries
        self._bases = [segment.base_offset for segment in segments]
        self._places: dict[int, Place] = {}  # by the offset of the batch that begins there

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base_offset)

    def drop(self, start: int, stop: int) -> list[Segment]:
        """Forget some segments; those."""
        dropped = self.segments[start:stop]
        del self.segments[start:stop], self._bases[start:stop]
        self._places.clear()
        return dropped

    def replace(self, start: int, stop: int, segment: Segment) -> list[Segment]:
        """Put one segment in the place of some; those."""
        replaced = self.segments[start:stop]
        self.segments[start:stop], self._bases[start:stop] = [segment], [segment.base_offset]
        self._places.clear()
        return replaced

    def locate(self, offset: int) -> Place:
        """Where the first batch that ends at or after `offset` begins, or the end of the active segment."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        segment = self.segments[number]
        position, hint = segment.locate(offset, self.interval)
        while position == segment.size and number + 1 < len(self.segments):
            number += 1
            segment, position, hint = self.segments[number], 0, -1
        return segment, position, hint

    def read(self, offset: int, max_bytes: int, end_offset: int, log_end: int, minimum_one: bool) -> Slice:
        """Whole batches below `end_offset`, of one segment unless it is small; `offset` is in the log and below it."""
        segment, start, hint = self._places.get(offset) or self.locate(offset)
        if start == segment.size:
            segment, start, hint = self.locate(offset)
        end = segment.size if end_offset >= log_end else self._end_before(end_offset, segment, start)
        if end - start > max_bytes:
            return self._read_part(segment, start, hint, max_bytes, minimum_one)
        if end == start:
            return NOTHING
        if segment is self.segments[-1]:
            self._remember(min(end_offset, log_end), (segment, end, hint))
            return take(segment, start, end, self._is_recent(segment, start))
        piece = take(segment, start, end, recent=False)
        if piece.size < SMALL_BYTES and end == segment.size and not piece.cold:
            return self._continued(piece, segment, max_bytes, end_offset, log_end)
        return piece

    def _continued(
        self, piece: Slice, segment: Segment, max_bytes: int, end_offset: int, log_end: int
    ) -> Slice:
        """The small rest of a segment, and what follows it.

        Compaction may leave only emptied batches of a segment; librdkafka takes a few answers of nothing else for
        an error.
        """
        following = self._bases[bisect_right(self._bases, segment.base_offset)]
        if following >= min(end_offset, log_end):
            return piece
        more = self.read(following, max_bytes - piece.size, end_offset, log_end, minimum_one=False)
        if more.cold:
            return piece
        return Slice(piece.views + more.views, piece.size + more.size, False)

    def headers(self, start_offset: int) -> Iterator[BatchHeader]:
        return (header for _, _, header in self._batches(start_offset))

    def history(self, start_offset: int) -> Iterator[tuple[BatchHeader, Marker | None]]:
        """The same headers, those of control batches with their marker."""
        for segment, position, header in self._batches(start_offset):
            marker = None
            if header.is_control:
                data = segment.disk.pread(segment.fd(), header.size, position)
                marker = decode_marker(memoryview(data))
            yield header, marker

    def _batches(self, start_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        first, start, _ = self.locate(start_offset)
        for segment in self.segments[self.segments.index(first) :]:
            for position, header, _ in segment.walk(start):
                yield segment, position, header
            start = 0

    # Aborted transactions.

    def aborted(self, offset: int, size: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that may have records in the `size` bytes of batches that a read from `offset` gave.

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
        """An offset at or after the end of a read: that of the next indexed batch, or of the next segment."""
        segment, start, _ = self.locate(offset)
        end = start + size
        while end > segment.size:
            end -= segment.size
            segment = self.segments[bisect_right(self._bases, segment.base_offset)]
        index = segment.index
        floor = index.floor(1, end)
        number = 0 if floor is None else floor[0] + (floor[1][1] < end)
        entry = index.entry(number) if number < len(index) else None
        if entry is not None and segment.entry_is_true(*entry):
            return segment.base_offset + entry[0]
        following = self.segments.index(segment) + 1
        return self._bases[following] if following < len(self._bases) else 2**63

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """The newest marker, which is in the active segment, has aborted a transaction."""
        self.segments[-1].txn_index.append(transaction)

    def stale_from(self) -> int | None:
        """Where the first segment begins whose aborted transactions are to be found out from the log."""
        return next((segment.base_offset for segment in self.segments if segment.txn_index.stale), None)

    @contextmanager
    def finding_aborted(self) -> Iterator[Callable[[AbortedTransaction], None]]:
        """What to tell of each aborted transaction that is found in the log, in order; then no index is stale."""
        stale = {
            segment.base_offset: segment.txn_index for segment in self.segments if segment.txn_index.stale
        }
        for index in stale.values():
            index.reset()

        def found(transaction: AbortedTransaction) -> None:
            base_offset = self._bases[max(0, bisect_right(self._bases, transaction.last_offset) - 1)]
            if base_offset in stale:
                stale[base_offset].append(transaction)

        yield found
        for index in stale.values():
            index.fsync()  # its segment may count as fsynced already, and is then never synced again
            index.stale = False

    def _remember(self, offset: int, place: Place) -> None:
        places = self._places
        places[offset] = place
        if len(places) > PLACES_MAX:
            del places[next(iter(places))]

    def _end_before(self, end_offset: int, segment: Segment, start: int) -> int:
        """Where in `segment` the batches below `end_offset` end."""
        place = self._places.get(end_offset)
        if place is None:
            place = self.locate(end_offset)
            self._remember(end_offset, place)
        if place[0] is segment:
            return max(start, place[1])
        return segment.size if place[0].base_offset > segment.base_offset else start

    def _is_recent(self, segment: Segment, position: int) -> bool:
        return segment is self.segments[-1] and position >= segment.size - WARM_TAIL_BYTES

    def _read_part(self, segment: Segment, start: int, hint: int, max_bytes: int, minimum_one: bool) -> Slice:
        """At most `max_bytes` of a segment that has more to read."""
        found = segment.index.floor(1, start + max_bytes, hint, max_bytes // self.interval + 2)
        recent = self._is_recent(segment, start)
        if found:
            hint, (relative, end) = found
            if end > start:
                try:
                    header = segment.header_at(end, waits=recent)
                except BlockingIOError:
                    return take(segment, start, end, recent)  # a wrong end cuts a batch, no more
                if header and header.last_offset == segment.base_offset + relative:
                    self._remember(header.base_offset, (segment, end, hint))
                    return take(segment, start, end, recent or end - start <= PROBE_STRIDE_BYTES)
        end, following = segment.end_of_batches(start, max_bytes, minimum_one)
        if end == start:
            return NOTHING
        self._remember(following, (segment, end, hint))
        return take(segment, start, end, recent)

"""Finding and cutting out what a consumer asks for.

Most reads go on where an earlier one ended. So a read ends at an index entry where it can, and the places where
recent reads ended are remembered: the next one begins there without a search. An index entry is believed only
after the header it points to has been compared.
"""

from bisect import bisect_right
from collections.abc import Iterator

from levada.storage.segment import Segment
from levada.storage.slices import NOTHING, Slice, take
from levada.wire.batches import BatchHeader

WARM_TAIL_BYTES = 8 * 1024 * 1024  # what was just written is taken to be in the page cache
PLACES_MAX = 64

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
        """Whole batches of one segment below `end_offset`; `offset` is in the log and below it."""
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

    def headers(self, start_offset: int) -> Iterator[BatchHeader]:
        first, position, _ = self.locate(start_offset)
        for segment in self.segments[self.segments.index(first) :]:
            for _, header, _ in segment.walk(position):
                yield header
            position = 0

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
                piece = take(segment, start, end, recent)
                if piece.cold:
                    return piece  # to look at the end would wait for it; a wrong end cuts a batch, no more
                header = segment.header_at(end)
                if header and header.last_offset == segment.base_offset + relative:
                    self._remember(header.base_offset, (segment, end, hint))
                    return piece
        end, following = segment.end_of_batches(start, max_bytes, minimum_one)
        if end == start:
            return NOTHING
        self._remember(following, (segment, end, hint))
        return take(segment, start, end, recent)

"""How records of a lake are cut into the steps of a replay: by time, without ever changing their order (pure).

Times of records need not rise with their offsets. A slice therefore ends in each partition before the first record that
is as late as the next slice: all before that record are in slices up to this one, in the order of their offsets.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

Ends = Mapping[int, int]  # by partition: the offset after the last


class Bucket(NamedTuple):
    """The records of a partition in one span of time."""

    partition: int
    number: int  # of the span; all are equally long
    first_offset: int
    rows: int


class Slice(NamedTuple):
    """What one step replays."""

    span: int  # the number of the span of time that it ends with
    begins: Ends
    ends: Ends
    rows: int  # roughly, where times do not rise with offsets

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """By partition: from and before which offset; without those that have nothing."""
        found = {index: (self.begins[index], end) for index, end in self.ends.items()}
        return {index: offsets for index, offsets in found.items() if offsets[0] < offsets[1]}


def slices(buckets: Iterable[Bucket], ends: Ends, rows_min: int) -> Iterator[Slice]:
    """All records before `ends`, in slices of at least `rows_min` records as far as there are so many."""
    spans = _spans(buckets)
    begins: Ends = {index: min(end, _first(spans, index, end)) for index, end in ends.items()}
    after = _ends_of_spans(spans, ends)
    rows = 0
    for position, (number, found) in enumerate(spans):
        rows += sum(bucket.rows for bucket in found)
        if rows >= rows_min or position == len(spans) - 1:
            yield Slice(number, begins, after[position], rows)
            begins, rows = after[position], 0


def _spans(buckets: Iterable[Bucket]) -> list[tuple[int, list[Bucket]]]:
    in_time = sorted(buckets, key=lambda bucket: bucket.number)
    return [(number, list(found)) for number, found in groupby(in_time, key=lambda bucket: bucket.number)]


def _first(spans: list[tuple[int, list[Bucket]]], partition: int, end: int) -> int:
    offsets = [bucket.first_offset for _, found in spans for bucket in found if bucket.partition == partition]
    return min(offsets, default=end)


def _ends_of_spans(spans: list[tuple[int, list[Bucket]]], ends: Ends) -> list[Ends]:
    """For each span where it ends: before the first record that a later span has."""
    result: list[Ends] = [ends]
    for _, found in reversed(spans[1:]):
        now = dict(result[-1])
        for bucket in found:
            now[bucket.partition] = min(now[bucket.partition], bucket.first_offset)
        result.append(now)
    return result[::-1]

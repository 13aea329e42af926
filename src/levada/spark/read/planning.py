"""What is read by whom: ranges of partitions, cut into tasks of about equal bytes, and how much a micro-batch takes.

Decisions only: offsets and sizes are arguments. The size of a range is an estimate, from the average of its log.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from levada.model import TopicPartition
from levada.spark.read.offsets import Offsets

BYTES_PER_OFFSET = 1_000.0  # where a broker does not tell the size of a log
SMALL_BYTES = 1 << 20  # ranges below this are read together: a task costs more than reading them
RANGES_PER_TASK_MAX = 64


class Range(NamedTuple):
    """A part of a partition, `end` not included."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID | None = None

    @property
    def offsets(self) -> int:
        """How many records it can have."""
        return self.end - self.start


Task = tuple[Range, ...]
Sizes = Mapping[TopicPartition, float]  # bytes of an offset, on average


class Splitting(NamedTuple):
    """How ranges become tasks; 0 is no limit."""

    split_bytes: int
    min_partitions: int = 0
    max_records: int = 0


class Limits(NamedTuple):
    """How much a micro-batch takes; 0 is no limit."""

    max_offsets: int = 0
    max_bytes: int = 0
    min_offsets: int = 0
    max_delay_ms: int = 0


def average_sizes(sizes: Mapping[TopicPartition, int], earliest: Offsets, latest: Offsets) -> Sizes:
    """Bytes of an offset in each log whose size is known."""
    return {
        place: sizes[place] / (latest[place] - earliest[place])
        for place in sizes
        if place in latest and place in earliest and latest[place] > earliest[place]
    }


def tasks(ranges: Iterable[Range], sizes: Sizes, how: Splitting) -> list[Task]:
    """The tasks that read these ranges: big ones cut, small ones together, each in the order of its log."""
    wanted = [part for part in ranges if part.offsets > 0]
    total = sum(part.offsets for part in wanted)
    pieces: list[Range] = []
    for part in wanted:
        count = math.ceil(_bytes(part, sizes) / how.split_bytes)
        if how.min_partitions > len(wanted):
            count = max(count, math.ceil(part.offsets * how.min_partitions / total))
        if how.max_records:
            count = max(count, math.ceil(part.offsets / how.max_records))
        pieces += _cut(part, min(count, part.offsets))
    if how.min_partitions or how.max_records:
        return [(piece,) for piece in pieces]
    return _together(pieces, sizes, min(SMALL_BYTES, how.split_bytes))


def admitted(
    start: Offsets, latest: Offsets, limits: Limits, sizes: Sizes, waited_ms: float
) -> dict[TopicPartition, int]:
    """Where the next micro-batch ends: `latest`, or before it as far as the limits allow, or `start` to wait.

    `start` has an offset for each partition of `latest`; what `latest` does not have any more is left out.
    """
    behind = {place: max(0, end - start[place]) for place, end in latest.items()}
    total = sum(behind.values())
    if limits.min_offsets and total < limits.min_offsets and waited_ms < limits.max_delay_ms:
        return {place: start[place] for place in latest}
    share = 1.0
    if limits.max_offsets and total > limits.max_offsets:
        share = limits.max_offsets / total
    if limits.max_bytes:
        size = sum(count * sizes.get(place, BYTES_PER_OFFSET) for place, count in behind.items())
        if size > limits.max_bytes:
            share = min(share, limits.max_bytes / size)
    if share == 1.0:
        return dict(latest)
    return _shared(start, behind, share, latest)


def _shared(
    start: Offsets, behind: Mapping[TopicPartition, int], share: float, latest: Offsets
) -> dict[TopicPartition, int]:
    """Each partition's share, rounded so that the sum is kept and somebody always moves on."""
    budget = max(1, int(sum(behind.values()) * share))
    end: dict[TopicPartition, int] = {}
    rest = sorted(behind, key=lambda place: (-(behind[place] * share % 1), place))
    taken = {place: int(behind[place] * share) for place in behind}
    spare = budget - sum(taken.values())
    for place in rest:
        if spare > 0 and taken[place] < behind[place]:
            taken[place] += 1
            spare -= 1
    for place, last in latest.items():
        # A log that is shorter than where we were is told as it is: it was made anew.
        end[place] = start[place] + taken[place] if behind[place] else last
    return end


def _bytes(part: Range, sizes: Sizes) -> float:
    return part.offsets * sizes.get(part.partition, BYTES_PER_OFFSET)


def _cut(part: Range, count: int) -> list[Range]:
    edges = [part.start + part.offsets * number // count for number in range(count + 1)]
    return [part._replace(start=low, end=high) for low, high in pairwise(edges) if low < high]


def _together(pieces: Sequence[Range], sizes: Sizes, small: int) -> list[Task]:
    big = [(piece,) for piece in pieces if _bytes(piece, sizes) >= small]
    found: list[Task] = list(big)
    bundle: list[Range] = []
    held = 0.0
    for piece in pieces:
        size = _bytes(piece, sizes)
        if size >= small:
            continue
        if bundle and (held + size > small or len(bundle) == RANGES_PER_TASK_MAX):
            found.append(tuple(bundle))
            bundle, held = [], 0.0
        bundle.append(piece)
        held += size
    if bundle:
        found.append(tuple(bundle))
    return found

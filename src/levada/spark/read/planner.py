"""Plans what is read: offset ranges split into input partitions of similar size, and the end offsets of a micro-batch.

Pure: offsets and sizes are arguments. The size of a range is an estimate from the average record of its log.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from levada.model import TopicPartition
from levada.spark.read.offsets import Offsets

BYTES_PER_OFFSET_DEFAULT = 1_000.0  # where a broker does not report the size of a log
# Ranges share a task up to SMALL_BYTES, because a task costs more than reading them; and if that still leaves more than
# SHARING_TASKS tasks, up to SHARED_BYTES_MAX.
SMALL_BYTES = 1 << 20
SHARED_BYTES_MAX = 8 << 20
SHARING_TASKS = 16
RANGES_PER_TASK_MAX = 64


class OffsetRange(NamedTuple):
    """Offsets of one partition, `end` excluded."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID | None = None

    @property
    def offsets(self) -> int:
        """The largest number of records that it can hold."""
        return self.end - self.start


TaskRanges = tuple[OffsetRange, ...]
BytesPerOffset = Mapping[TopicPartition, float]  # on average


class SplitOptions(NamedTuple):
    """How ranges become input partitions; 0 is no limit."""

    split_bytes: int
    min_partitions: int = 0
    max_records: int = 0


class ReadLimits(NamedTuple):
    """How much a micro-batch reads; 0 is no limit."""

    max_offsets: int = 0
    max_bytes: int = 0
    min_offsets: int = 0
    max_delay_ms: int = 0


def bytes_per_offset(log_bytes: Mapping[TopicPartition, int], earliest: Offsets, latest: Offsets) -> BytesPerOffset:
    """The average record size of each log whose size is known."""
    return {
        partition: log_bytes[partition] / (latest[partition] - earliest[partition])
        for partition in log_bytes
        if partition in latest and partition in earliest and latest[partition] > earliest[partition]
    }


def plan_tasks(ranges: Iterable[OffsetRange], sizes: BytesPerOffset, options: SplitOptions) -> list[TaskRanges]:
    """The ranges of each task: large ranges are split, small ones share a task, each keeps the order of its log."""
    wanted = [one for one in ranges if one.offsets > 0]
    total = sum(one.offsets for one in wanted)
    pieces: list[OffsetRange] = []
    for one in wanted:
        count = math.ceil(_bytes(one, sizes) / options.split_bytes)
        if options.min_partitions > len(wanted):
            count = max(count, math.ceil(one.offsets * options.min_partitions / total))
        if options.max_records:
            count = max(count, math.ceil(one.offsets / options.max_records))
        pieces += _split(one, min(count, one.offsets))
    if options.min_partitions or options.max_records:
        return [(piece,) for piece in pieces]
    shared = sum(_bytes(piece, sizes) for piece in pieces) / SHARING_TASKS
    return _bundle(pieces, sizes, min(max(SMALL_BYTES, shared), SHARED_BYTES_MAX, options.split_bytes))


def rate_limit(
    start: Offsets, latest: Offsets, limits: ReadLimits, sizes: BytesPerOffset, waited_ms: float
) -> dict[TopicPartition, int]:
    """The end offsets of the next micro-batch: `latest`, less if a limit applies, or `start` if it has to wait.

    `start` has an offset for each partition of `latest`. Partitions that are not in `latest` are left out.
    """
    lag = {partition: max(0, end - start[partition]) for partition, end in latest.items()}
    total = sum(lag.values())
    if limits.min_offsets and total < limits.min_offsets and waited_ms < limits.max_delay_ms:
        return {partition: start[partition] for partition in latest}
    share = 1.0
    if limits.max_offsets and total > limits.max_offsets:
        share = limits.max_offsets / total
    if limits.max_bytes:
        size = sum(count * sizes.get(partition, BYTES_PER_OFFSET_DEFAULT) for partition, count in lag.items())
        if size > limits.max_bytes:
            share = min(share, limits.max_bytes / size)
    if share == 1.0:
        return dict(latest)
    return _proportional(start, lag, share, latest)


def _proportional(
    start: Offsets, lag: Mapping[TopicPartition, int], share: float, latest: Offsets
) -> dict[TopicPartition, int]:
    """Each partition's share of the micro-batch. A share below one record is one: small partitions do not starve."""
    end: dict[TopicPartition, int] = {}
    for partition, last in latest.items():
        taken = max(1, int(lag[partition] * share))
        # A log that ends before the start offset was created again: its real end is reported.
        end[partition] = start[partition] + taken if lag[partition] else last
    return end


def _bytes(one: OffsetRange, sizes: BytesPerOffset) -> float:
    return one.offsets * sizes.get(one.partition, BYTES_PER_OFFSET_DEFAULT)


def _split(one: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [one.start + one.offsets * number // count for number in range(count + 1)]
    return [one._replace(start=low, end=high) for low, high in pairwise(edges) if low < high]


def _bundle(pieces: Sequence[OffsetRange], sizes: BytesPerOffset, small: float) -> list[TaskRanges]:
    """Large ranges alone, small ones together."""
    tasks: list[TaskRanges] = [(piece,) for piece in pieces if _bytes(piece, sizes) >= small]
    bundle: list[OffsetRange] = []
    bundle_bytes = 0.0
    for piece in pieces:
        size = _bytes(piece, sizes)
        if size >= small:
            continue
        if bundle and (bundle_bytes + size > small or len(bundle) == RANGES_PER_TASK_MAX):
            tasks.append(tuple(bundle))
            bundle, bundle_bytes = [], 0.0
        bundle.append(piece)
        bundle_bytes += size
    if bundle:
        tasks.append(tuple(bundle))
    return tasks

"""The reader of a streaming query: its first offsets, the end offsets of each micro-batch, and its input partitions.

Spark calls one instance on the driver; tasks read with copies of it. Spark's interface cannot combine read limits, so
all of them are applied here. When Spark passes the start offsets of a micro-batch, everything before them is
finished: a consumer group's offsets are committed then, and not in `commit`, which Spark calls late.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from levada.client.errors import FAILURES
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark.errors import spark_callback, warn
from levada.spark.read.batch import RangesPartition
from levada.spark.read.offset_reader import OffsetReader
from levada.spark.read.offsets import from_json, report_data_loss, skip_to_from_time, start_offsets, to_json
from levada.spark.read.options import ReadOptions
from levada.spark.read.planner import (
    BytesPerOffset,
    OffsetRange,
    ReadLimits,
    bytes_per_offset,
    plan_tasks,
    rate_limit,
)
from levada.spark.read.rows import ReaderSchemas, RowReader
from levada.spark.worker import QuickAck

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PartitionOffsets = dict[TopicPartition, int]

SIZES_AGE_MAX_S = 30.0  # averages of whole logs change slowly
METADATA_ATTEMPTS_MAX = 5  # while topics are deleted and created during a request


class StreamReader(QuickAck, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("levada")`."""

    def __init__(self, options: ReadOptions, schema: "StructType", readers: ReaderSchemas | None = None) -> None:
        self._options = options
        self._rows = RowReader(schema, options, readers)
        self._offsets = OffsetReader(options)
        self._ids: dict[TopicPartition, UUID | None] = {}  # topic ids at the last request
        self._recreated: PartitionOffsets = {}  # earliest offsets of logs recreated since the last micro-batch
        self._latest: PartitionOffsets | None = None  # latest offsets at the last request
        self._available_now: PartitionOffsets | None = None  # where a query with that trigger ends
        self._committed: PartitionOffsets = {}
        self._sizes: tuple[float, BytesPerOffset] = (-math.inf, {})
        self._triggered_at = -math.inf

    # Offsets

    @spark_callback()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as those below)
        self._ids = self._offsets.partitions(missing_is_error=True)
        earliest, latest = self._offsets.earliest(self._ids), self._offsets.latest(self._ids)
        found = start_offsets(self._options, self._offsets, earliest, latest, "latest")
        return to_json(skip_to_from_time(self._options, self._offsets, found, latest))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self._limits
        if limits.max_offsets or limits.max_bytes or limits.min_offsets:
            return ReadMaxRows(limits.max_offsets or 2**63 - 1)
        return ReadAllAvailable()

    @spark_callback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = self._latest_offsets()

    @spark_callback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = from_json(start)
        latest = self._latest = self._latest_offsets()
        begin = self._without_hidden(begin, self._ids)
        self._commit(begin)
        if self._available_now is not None:
            latest = {
                partition: min(end, self._available_now[partition])
                for partition, end in latest.items()
                if partition in self._available_now
            }
        some_deleted = self._check_deleted(begin)
        begin |= self._new_partitions(latest.keys() - begin.keys())
        begin |= self._recreated_partitions(begin, latest)
        limits = ReadLimits() if isinstance(limit, ReadAllAvailable) else self._limits
        waited_ms = (time.monotonic() - self._triggered_at) * 1000
        sizes = self._bytes_per_offset() if limits.max_bytes else {}
        end = rate_limit(begin, latest, limits, sizes, waited_ms)
        changed = any(end[partition] != begin[partition] for partition in end)
        if not some_deleted and not self._recreated and not changed:
            return start
        self._triggered_at = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    @property
    def _limits(self) -> ReadLimits:
        options = self._options
        may_wait = self._available_now is None  # with trigger availableNow there will not be more records
        return ReadLimits(
            options.max_offsets,
            options.max_bytes,
            options.min_offsets if may_wait else 0,
            options.max_trigger_delay_ms,
        )

    def _latest_offsets(self) -> PartitionOffsets:
        """The latest offsets now; notes topics that were deleted and created again since the last request."""
        for attempt in range(METADATA_ATTEMPTS_MAX):
            ids = self._offsets.partitions(missing_is_error=False)
            try:
                latest = self._offsets.latest(ids)
                for partition, topic_id in ids.items():
                    if self._ids.get(partition, topic_id) != topic_id:
                        what = f"topic {partition.topic} was deleted and created again"
                        report_data_loss(self._options, what)
                        self._recreated[partition] = self._offsets.earliest([partition])[partition]
                self._ids = ids
                return latest
            except KafkaError as error:
                is_deleted = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not is_deleted or attempt == METADATA_ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("unreachable")

    def _without_hidden(self, offsets: PartitionOffsets, ids: Collection[TopicPartition]) -> PartitionOffsets:
        """Offsets without topics that patterns leave out; the checkpoint of another connector may have them."""
        missing = {partition.topic for partition in offsets} - {partition.topic for partition in ids}
        hidden = missing & self._offsets.hidden_topics() if missing else missing
        for topic in sorted(hidden):
            warn(f"the checkpoint has offsets of {topic}, which the query does not read: it is an internal topic")
        return {partition: offset for partition, offset in offsets.items() if partition.topic not in hidden}

    def _check_deleted(self, begin: PartitionOffsets) -> bool:
        """Report partitions of the query that do not exist any more; whether there are any."""
        deleted = sorted(begin.keys() - self._ids.keys())
        for partition in deleted:
            what = f"{partition} was read up to offset {begin[partition]} and does not exist any more"
            report_data_loss(self._options, what)
        return bool(deleted)

    def _new_partitions(self, partitions: set[TopicPartition]) -> PartitionOffsets:
        """Partitions created since the query started are read from their earliest offset."""
        earliest = self._offsets.earliest(partitions)
        for partition, offset in earliest.items():
            if offset:
                report_data_loss(self._options, f"{partition} is new and begins at offset {offset} already")
        return earliest

    def _recreated_partitions(self, begin: PartitionOffsets, latest: PartitionOffsets) -> PartitionOffsets:
        """The start offsets of logs that were created again. A log that ends before the start offset is one of them."""
        short = [
            partition
            for partition, end in latest.items()
            if end < begin[partition] and partition not in self._recreated
        ]
        if short:
            uncommitted = replace(self._options, isolation="read_uncommitted")
            found = OffsetReader(uncommitted).latest(short)
            for partition in short:
                if found[partition] >= begin[partition]:
                    latest[partition] = begin[partition]  # an open transaction, which was read before
                    continue
                report_data_loss(
                    self._options,
                    f"{partition} ends at offset {found[partition]} and was read up to {begin[partition]}: its topic "
                    "was deleted and created again, or its log was truncated",
                )
                self._recreated[partition] = self._offsets.earliest([partition])[partition]
        return {partition: offset for partition, offset in self._recreated.items() if partition in latest}

    # Input partitions

    @spark_callback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ids = self._offsets.partitions(missing_is_error=False)
        begin, until = from_json(start), self._without_hidden(from_json(end), ids)
        there = until.keys() & ids.keys()
        earliest = self._offsets.earliest(there)
        for partition in sorted(until.keys() - there):
            if until[partition] != begin.get(partition):
                what = f"{partition} should be read up to {until[partition]} and does not exist any more"
                report_data_loss(self._options, what)
        ranges = []
        for partition in sorted(there):
            first = self._recreated.pop(partition, begin.get(partition, earliest[partition]))
            if first > until[partition]:
                first = earliest[partition]  # it was created again, which was reported before
            if first < earliest[partition] and first < until[partition]:
                report_data_loss(
                    self._options,
                    f"{partition} begins at offset {earliest[partition]} now, those from {first} on were deleted "
                    "before they were read",
                )
            first = max(first, earliest[partition])
            ranges.append(OffsetRange(partition, first, max(first, until[partition]), ids[partition]))
        self._recreated.clear()
        tasks = plan_tasks(ranges, self._bytes_per_offset(), self._options.split)
        return [RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with spark_callback():
            yield from self._rows.read(partition.value)

    def _bytes_per_offset(self) -> BytesPerOffset:
        """The average record size of each log, at most SIZES_AGE_MAX_S old."""
        requested_at, found = self._sizes
        if time.monotonic() - requested_at > SIZES_AGE_MAX_S:
            offsets = self._offsets
            partitions = self._ids or offsets.partitions(missing_is_error=False)
            log_bytes = offsets.log_bytes(partitions)
            found = bytes_per_offset(log_bytes, offsets.earliest(partitions), offsets.latest(partitions))
            self._sizes = (time.monotonic(), found)
        return found

    # The consumer group

    def _commit(self, done: PartitionOffsets) -> None:
        """Commit the finished offsets for the option `group`; a failure is a warning, as only other tools read them."""
        group = self._options.group
        if not group or done == self._committed:
            return
        there = {partition: offset for partition, offset in done.items() if partition in self._ids}
        try:
            if there:
                self._offsets.commit(group, there)
            self._committed = done
        except FAILURES as error:
            warn(f"the offsets of group {group} were not committed: {error}")


class FailedReader(DataSourceStreamReader):
    """Stands in for a reader that cannot be created, and raises the error at the first call.

    Spark drops what is raised while a reader is created.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @spark_callback()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    @spark_callback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self._error

    @spark_callback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with spark_callback():
            raise self._error

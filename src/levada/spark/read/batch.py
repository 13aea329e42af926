"""The reader of a batch query: plans the offset ranges once, on the driver; tasks read them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from levada.spark.errors import spark_callback
from levada.spark.read.offset_reader import OffsetReader
from levada.spark.read.offsets import check_order, end_offsets, report_data_loss, skip_to_from_time, start_offsets
from levada.spark.read.options import ReadOptions
from levada.spark.read.planner import OffsetRange, TaskRanges, bytes_per_offset, plan_tasks
from levada.spark.read.rows import ReaderSchemas, RowReader
from levada.spark.worker import QuickAck

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RangesPartition(InputPartition):
    """The offset ranges of one task; None if there is nothing to read, since Spark runs at least one task."""

    def __init__(self, ranges: TaskRanges | None) -> None:
        super().__init__(ranges)


class BatchReader(QuickAck, DataSourceReader):
    """`spark.read.format("levada")`. Spark plans with one instance and reads with copies of it in its tasks."""

    def __init__(self, options: ReadOptions, schema: "StructType", readers: ReaderSchemas | None = None) -> None:
        self._options = options
        self._rows = RowReader(schema, options, readers)

    @spark_callback()
    def partitions(self) -> list[InputPartition]:
        options, reader = self._options, OffsetReader(self._options)
        ids = reader.partitions(missing_is_error=True)
        earliest, latest = reader.earliest(ids), reader.latest(ids)
        start = start_offsets(options, reader, earliest, latest, "earliest")
        end = end_offsets(options, reader, earliest, latest)
        check_order(start, end)
        start = skip_to_from_time(options, reader, start, latest)
        ranges = []
        for partition in sorted(ids):
            first = start[partition]
            if first < earliest[partition]:
                what = f"{partition} begins at {earliest[partition]}, offsets from {first} on are gone"
                report_data_loss(options, what)
                first = earliest[partition]
            ranges.append(OffsetRange(partition, first, max(first, end[partition]), ids[partition]))
        sizes = bytes_per_offset(reader.log_bytes(ids), earliest, latest)
        tasks = plan_tasks(ranges, sizes, options.split)
        return [RangesPartition(task) for task in tasks] or [RangesPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with spark_callback():
            yield from self._rows.read(partition.value)

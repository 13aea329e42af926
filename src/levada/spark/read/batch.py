"""A batch: everything between two places in some logs, planned once and read by tasks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from levada.spark.failures import told_plainly
from levada.spark.options import OptionError
from levada.spark.read.bounds import ending, lost, starting
from levada.spark.read.logs import Logs
from levada.spark.read.options import ReadOptions
from levada.spark.read.planning import Range, Splitting, Task, average_sizes, tasks
from levada.spark.read.rows import Rows
from levada.spark.session.workers import Travels

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ReadTask(InputPartition):
    """What a task reads; None where there is nothing to read, since Spark always has one task."""

    def __init__(self, ranges: Task | None) -> None:
        super().__init__(ranges)


class BatchReader(Travels, DataSourceReader):
    """`spark.read.format("levada")`. Spark plans with one of these and reads with copies of it."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._options = options
        self._rows = Rows(schema, options)

    @told_plainly()
    def partitions(self) -> list[InputPartition]:
        options, logs = self._options, Logs(self._options)
        ids = logs.partitions(missing_is_wrong=True)
        earliest, latest = logs.earliest(ids), logs.latest(ids)
        start = starting(options, logs, earliest, latest, "earliest")
        end = ending(options, logs, earliest, latest)
        ranges = []
        for place in sorted(ids):
            first = start[place]
            if first > latest[place]:
                raise OptionError(f"option startingOffsets: {place} ends at {latest[place]}, before {first}")
            if first < earliest[place]:
                lost(options, f"{place} begins at {earliest[place]}, offsets from {first} on are gone")
                first = earliest[place]
            ranges.append(Range(place, first, max(first, end[place]), ids[place]))
        sizes = average_sizes(logs.sizes(ids), earliest, latest)
        return [ReadTask(task) for task in tasks(ranges, sizes, splitting(options))] or [ReadTask(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with told_plainly():
            yield from self._rows.read(partition.value)


def splitting(options: ReadOptions) -> Splitting:
    """How the options want tasks to be."""
    return Splitting(options.split_bytes, options.min_partitions, options.max_records)

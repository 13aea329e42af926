"""archive: topics to a lake, exactly once (R61).

A streaming query whose every micro-batch becomes one commit of the lake. Where the lake ends is the truth: a new
run begins there even if its checkpoint is lost, and a batch that comes again adds only what the lake does not have.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from levada.model import TopicPartition
from levada.pipelines.compacting import SIZES, Sizes, compact
from levada.pipelines.files import Files
from levada.pipelines.lake import Lake, Positions
from levada.pipelines.running import Running
from levada.pipelines.topics import beginnings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archive(
    topics: Sequence[str],
    to: str,
    *,
    bootstrap: str = "127.0.0.1:9092",
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "10 seconds",
    sizes: Sizes = SIZES,
    spark: "SparkSession | None" = None,
    name: str = "archive",
    **options: str,
) -> Running:
    """Keep the topics' records in the lake `to`, a path that Spark can write; `once` ends when all is there.

    `every` is how often a batch is committed; `options` are those of `format("levada")`. The checkpoint is kept in
    the lake unless told otherwise.
    """
    spark = spark or _session()
    lake = Lake(Files(spark, to))
    lake.recover()
    source = (
        spark.readStream.format("levada")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", starting_offsets(lake.state.ends, beginnings(bootstrap, topics, options)))
    )
    for key, value in options.items():
        source = source.option(key, value)
    writer = Archivist(lake, sizes)
    stream = (
        source.load()
        .writeStream.queryName(name)
        .option("checkpointLocation", checkpoint or lake.files.path("_levada/checkpoint"))
        .foreachBatch(writer.take)
    )
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)
    writer.checkpoint = Files(spark, checkpoint or lake.files.path("_levada/checkpoint"))
    return Running(name, [stream.start()])


def _session() -> "SparkSession":
    from levada.spark import session

    return session()


def starting_offsets(ends: Positions, begins: Mapping[TopicPartition, int]) -> str:
    """Where the lake ends; in partitions that it does not know, where the log begins (pure)."""
    places: dict[str, dict[str, int]] = {}
    for place, begin in begins.items():
        places.setdefault(place.topic, {})[str(place.partition)] = ends.get(place.topic, {}).get(
            place.partition, begin
        )
    return json.dumps(places)


class Archivist:
    """Writes micro-batches into the lake."""

    def __init__(self, lake: Lake, sizes: Sizes) -> None:
        self._lake = lake
        self._sizes = sizes
        self.checkpoint: Files | None = None

    def take(self, batch: "DataFrame", number: int) -> None:
        """One micro-batch, which may have come before."""
        assert self.checkpoint is not None
        ends = batch_ends(self.checkpoint, number)
        known = self._lake.state.ends
        if all(
            ends[topic][index] <= known.get(topic, {}).get(index, 0)
            for topic in ends
            for index in ends[topic]
        ):
            return
        self.write(batch, ends, self._expected(number))
        compact(batch.sparkSession, self._lake, self._sizes)

    def write(self, batch: "DataFrame", ends: Positions, begins: Positions) -> None:
        """Commit its records, which begin and end at these positions, without those that the lake has."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count, lit, to_date

        known = self._lake.state.ends
        rows = without(batch, {topic: ends_of for topic, ends_of in known.items() if topic in ends}, begins)
        observed = Observation()
        rows = rows.withColumn("date", to_date(col("timestamp"))).observe(
            observed, count(lit(1)).alias("rows")
        )
        area = self._lake.staging()
        (
            rows.sortWithinPartitions("topic", "date", "partition", "offset")
            .write.partitionBy("topic", "date")
            .mode("overwrite")
            .parquet(self._lake.files.path(area))
        )
        self._lake.commit(ends=ends, rows=int(observed.get["rows"]))

    def _expected(self, number: int) -> Positions:
        """Where the batch begins, as far as the checkpoint knows."""
        assert self.checkpoint is not None
        return batch_ends(self.checkpoint, number - 1) if number else {}


def without(batch: "DataFrame", known: Positions, begins: Positions) -> "DataFrame":
    """The records at or after the lake's ends; nothing is filtered where the batch begins there anyway."""
    from pyspark.sql.functions import col

    for topic, ends in known.items():
        for index, end in ends.items():
            if begins.get(topic, {}).get(index, 0) < end:
                older = (col("topic") == topic) & (col("partition") == index) & (col("offset") < end)
                batch = batch.where(~older)
    return batch


def batch_ends(checkpoint: Files, number: int) -> Positions:
    """Where a micro-batch ends, by the journal that Spark writes before it runs one."""
    lines = checkpoint.read(f"offsets/{number}").splitlines()
    ends = json.loads(lines[2])
    while isinstance(ends, str):
        ends = json.loads(ends)
    return {topic: {int(index): end for index, end in told.items()} for topic, told in ends.items()}

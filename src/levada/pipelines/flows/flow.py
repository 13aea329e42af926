"""Building blocks of pipelines from topics to topics: events in, result tables out, each as JSON to a topic.

All results of a pipeline are one streaming query: a micro-batch is in all result topics or in none.
"""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from levada.pipelines.bootstrap import BOOTSTRAP
from levada.pipelines.errors import PipelineError
from levada.pipelines.lake.files import Files
from levada.pipelines.runs.queries import RunningPipeline
from levada.pipelines.runs.run import default_checkpoint, save_arguments
from levada.pipelines.topics import create_topics, earliest_offsets
from levada.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Result(NamedTuple):
    """A table and its topic; `key` is the column of the records' keys, if any."""

    topic: str
    rows: DataFrame
    key: str | None = None


class QueryOptions(NamedTuple):
    """How the streaming query of a pipeline runs."""

    name: str
    bootstrap: str = BOOTSTRAP
    checkpoint: str | None = None  # by default `default_checkpoint`
    once: bool = False
    every: str = "5 seconds"
    mode: str = "append"
    # The next run of this name must have the same arguments. None: they are not checked.
    arguments: Mapping[str, Any] | None = None


def read_stream(spark: "SparkSession", bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """The records of topics as a stream; from the earliest offsets, unless the options differ."""
    check_topics(bootstrap, topics, options)
    given = {"startingOffsets": "earliest"} | _source_options(bootstrap, topics, options)
    return spark.readStream.format("levada").options(**given).load()


def read_batch(spark: "SparkSession", bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """The current records of topics."""
    check_topics(bootstrap, topics, options)
    return spark.read.format("levada").options(**_source_options(bootstrap, topics, options)).load()


def check_topics(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> None:
    """Raise PipelineError, with similar names, unless all topics exist."""
    try:
        earliest_offsets(bootstrap, topics, options)
    except OptionError as error:
        raise PipelineError(str(error)) from None


def _source_options(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)} | dict(options)


def parse_json(raw: DataFrame, schema: str) -> DataFrame:
    """Add the column `event`, the JSON of `value` as a struct of this schema; its fields are null for other values."""
    return raw.withColumn("event", F.from_json(F.col("value").cast("string"), schema))


def event_time(column: str = "event.at") -> Column:
    """The time of an event; the record's timestamp if it has none."""
    return F.coalesce(F.try_to_timestamp(F.col(column)), F.col("timestamp"))


def window_bounds() -> list[Column]:
    """The start and end of the column `window` as columns `from` and `to`."""
    return [F.col("window.start").alias("from"), F.col("window.end").alias("to")]


def seconds_between(first: str, last: str) -> Column:
    """The seconds between two timestamp columns."""
    return F.round(F.col(last).cast("double") - F.col(first).cast("double"), 3)


def top_n(rows: DataFrame, by: Sequence[str], name: str, value: str, top: int) -> DataFrame:
    """The names with the greatest values of each group, in descending order in a column `most`.

    A second aggregation over the windows of a first one, which Spark allows in streams: it waits for whole windows.
    """
    # Arrays of structs sort by their first field: descending values, and names where values are equal.
    ranked = F.sort_array(F.collect_list(F.struct((-F.col(value)).alias(value), name)))
    best = F.transform(F.slice(ranked, 1, top), lambda one: F.struct(one[name].alias(name), (-one[value]).alias(value)))
    return rows.groupBy(*by).agg(best.alias("most"))


def to_records(result: Result) -> DataFrame:
    """The rows of a result as records: topic, key and JSON value."""
    key = F.lit(None).cast("string") if result.key is None else F.col(result.key).cast("string")
    return result.rows.select(
        F.lit(result.topic).alias("topic"), key.alias("key"), F.to_json(F.struct("*")).alias("value")
    )


def start(results: Sequence[Result], options: QueryOptions) -> RunningPipeline:
    """Start the streaming query; with `once` it ends when all available records are processed."""
    records = _union(results)
    checkpoint = options.checkpoint or default_checkpoint(records.sparkSession, options.name)
    if options.arguments is not None and not is_remote():  # Spark Connect cannot reach the checkpoint's files
        save_arguments(Files(records.sparkSession, checkpoint), options.arguments, options.name)
    create_topics(options.bootstrap, [result.topic for result in results])
    stream = records.writeStream.queryName(options.name).outputMode(options.mode)
    stream = stream.option("checkpointLocation", checkpoint)
    if options.mode == "update":
        stream = stream.foreachBatch(UpdateWriter(options.bootstrap, checkpoint).write)
    else:
        stream = stream.format("levada").option("kafka.bootstrap.servers", options.bootstrap)
    trigger = {"availableNow": True} if options.once else {"processingTime": options.every}
    return RunningPipeline(options.name, [stream.trigger(**trigger).start()])


def _union(results: Sequence[Result]) -> DataFrame:
    """All records, in as many partitions as one result has: each partition is a task and a transaction of the sink."""
    records = reduce(DataFrame.unionByName, map(to_records, results))
    if len(results) == 1:
        return records
    return records.coalesce(int(str(records.sparkSession.conf.get("spark.sql.shuffle.partitions"))))


class UpdateWriter:
    """Writes micro-batches in update mode, each once: Spark does not support this mode for Python data sources."""

    def __init__(self, bootstrap: str, checkpoint: str) -> None:
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint

    def write(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch, which Spark may repeat: the query id and its number identify it."""
        query = json.loads(Files(batch.sparkSession, self._checkpoint).read("metadata"))["id"]
        writer = batch.write.format("levada").mode("append")
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap)
        writer.option("txnAppId", query).option("txnVersion", str(number)).save()

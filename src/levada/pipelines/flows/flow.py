"""What pipelines from topics to topics share: events in, tables of results out, each as JSON to a topic of its own.

All results of a pipeline are one streaming query: its micro-batches are in all of its topics or in none of them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from levada.client.admin.admin import BROKER_DEFAULT
from levada.errors import ErrorCode, KafkaError
from levada.pipelines.lake.files import Files
from levada.pipelines.runs.arguments import remember
from levada.pipelines.runs.queries import PipelineError, Running
from levada.pipelines.runs.runs import Run, home_directory
from levada.pipelines.topics import beginnings
from levada.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.client.client import Client

BOOTSTRAP = "127.0.0.1:9092"


class Result(NamedTuple):
    """A table that goes to a topic; `key` is the column that makes the records' keys, if any."""

    topic: str
    rows: DataFrame
    key: str | None = None


class Plan(NamedTuple):
    """How a pipeline is run."""

    name: str
    bootstrap: str = BOOTSTRAP
    checkpoint: str | None = None  # that of the runs of this name, if not told
    once: bool = False
    every: str = "5 seconds"
    mode: str = "append"
    # What makes its results what they are: the next under its name must ask the same. None: that is not looked at.
    asked: Mapping[str, Any] | None = None


def stream_of(
    spark: "SparkSession", bootstrap: str, topics: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    """Records of topics as they come; from the beginning, unless the options say otherwise."""
    check_topics(bootstrap, topics, options)
    asked = {"startingOffsets": "earliest"} | _asked(bootstrap, topics, options)
    return spark.readStream.format("levada").options(**asked).load()


def table_of(
    spark: "SparkSession", bootstrap: str, topics: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    """Records that topics have now."""
    check_topics(bootstrap, topics, options)
    return spark.read.format("levada").options(**_asked(bootstrap, topics, options)).load()


def check_topics(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> None:
    """PipelineError, which names others that may be meant, unless all are there."""
    try:
        beginnings(bootstrap, topics, options)
    except OptionError as error:
        raise PipelineError(str(error)) from None


def _asked(bootstrap: str, topics: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)} | dict(options)


def parsed(raw: DataFrame, schema: str) -> DataFrame:
    """With a column `event`, a struct of this schema: what the JSON in `value` tells; nulls where it is no JSON."""
    return raw.withColumn("event", F.from_json(F.col("value").cast("string"), schema))


def moment(told: str = "event.at") -> Column:
    """When something happened, as the event tells; if it does not, when it was recorded."""
    return F.coalesce(F.try_to_timestamp(F.col(told)), F.col("timestamp"))


def window_bounds() -> list[Column]:
    """The two ends of the column `window`, in the words of results."""
    return [F.col("window.start").alias("from"), F.col("window.end").alias("to")]


def seconds_between(first: str, last: str) -> Column:
    """How much later the one column is than the other."""
    return F.round(F.col(last).cast("double") - F.col(first).cast("double"), 3)


def most(rows: DataFrame, by: Sequence[str], name: str, value: str, top: int) -> DataFrame:
    """The names with the greatest values of each group, in a column `most`: the first one first.

    A second aggregation over the windows of a first one, which a stream allows: it waits for whole windows.
    """
    # Arrays of structs sort by their first field: greatest values first, and equal ones by name.
    ranked = F.sort_array(F.collect_list(F.struct((-F.col(value)).alias(value), name)))
    best = F.transform(
        F.slice(ranked, 1, top), lambda one: F.struct(one[name].alias(name), (-one[value]).alias(value))
    )
    return rows.groupBy(*by).agg(best.alias("most"))


def as_records(result: Result) -> DataFrame:
    """Rows as JSON with a key, for the topic."""
    key = F.lit(None).cast("string") if result.key is None else F.col(result.key).cast("string")
    return result.rows.select(
        F.lit(result.topic).alias("topic"), key.alias("key"), F.to_json(F.struct("*")).alias("value")
    )


def start(results: Sequence[Result], plan: Plan) -> Running:
    """Run until it is stopped, or with `once` until all that is there is done."""
    records = _joined(results)
    checkpoint = plan.checkpoint or Run(home_directory(), plan.name).checkpoint
    if plan.asked is not None and not is_remote():  # there the checkpoint is out of reach
        remember(Files(records.sparkSession, checkpoint), plan.asked, plan.name)
    make_topics(plan.bootstrap, [result.topic for result in results])
    stream = records.writeStream.queryName(plan.name).outputMode(plan.mode)
    stream = stream.option("checkpointLocation", checkpoint)
    if plan.mode == "update":
        stream = stream.foreachBatch(Updates(plan.bootstrap, checkpoint).write)
    else:
        stream = stream.format("levada").option("kafka.bootstrap.servers", plan.bootstrap)
    trigger = stream.trigger(availableNow=True) if plan.once else stream.trigger(processingTime=plan.every)
    return Running(plan.name, [trigger.start()])


def _joined(results: Sequence[Result]) -> DataFrame:
    """All records, in as many partitions as one result has: each of them is a task and a transaction of the sink."""
    records = reduce(DataFrame.unionByName, map(as_records, results))
    if len(results) == 1:
        return records
    return records.coalesce(int(str(records.sparkSession.conf.get("spark.sql.shuffle.partitions"))))


class Updates:
    """Writes micro-batches of changed rows, each once: Spark does not let sinks in Python have them itself."""

    def __init__(self, bootstrap: str, checkpoint: str) -> None:
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint

    def write(self, batch: DataFrame, number: int) -> None:
        """One micro-batch, which may have come before: the query's id and its number say which it is."""
        query = json.loads(Files(batch.sparkSession, self._checkpoint).read("metadata"))["id"]
        writer = batch.write.format("levada").mode("append")
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap)
        writer.option("txnAppId", query).option("txnVersion", str(number)).save()


def make_topics(
    bootstrap: str,
    names: Iterable[str],
    partitions: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Let the topics be there; those that are stay as they are."""
    from levada.spark import blocking

    blocking.run(_make(blocking.client(bootstrap), list(names), partitions, configs or {}))


async def _make(client: "Client", names: Sequence[str], partitions: int, configs: Mapping[str, str]) -> None:
    there = (await client.metadata()).topics
    for name in names:
        if name in there:
            continue
        try:
            await client.admin.create_topic(name, partitions=partitions, configs=configs)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # somebody else was quicker
                raise PipelineError(f"topic {name} is not there and cannot be made: {error.detail}") from None

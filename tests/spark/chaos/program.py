"""A driver that is killed: queries from one topic to other topics or into a lake.

A query that fails is started again, as a supervisor would; the whole program is started again by the test.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from tests.spark.chaos.lake_steps import put_steps_into
from tests.spark.chaos.steps import ChaosSource

from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.commits import CompactionPolicy
from levada.pipelines.runs.queries import Query
from levada.spark import session
from levada.spark.session.session import prepare_concurrent_streams

TOPICS, PARQUET, DELTA = "topics", "parquet", "delta"  # where to
SOURCE, COPIES, COUNTS = "messages", "copies", "counts"
LATE = "10 hours"
SECONDS_APART = 36  # in the time of the records: 100 of them in an hour
PAUSE_S = 0.2
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[3]),  # for the source with its steps
}
FEW_FILES = CompactionPolicy(files_max=2, retention_ms=500)  # so that files are joined again and again

Starts = dict[str, Callable[[], Query]]  # by a name: how a query is started


def rows(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap,
        "subscribe": SOURCE,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": arguments.batch,
        "orders": str(arguments.folder / "orders"),
    }
    return spark.readStream.format("levada").options(**options).load().selectExpr("key", "string(value) AS value")


def counted(frame: DataFrame) -> DataFrame:
    """Messages in an hour of their own time, told once when the hour is over."""
    timed = frame.selectExpr(f"timestamp_seconds(bigint(value) * {SECONDS_APART}) AS at")
    hours = timed.withWatermark("at", LATE).groupBy(window("at", "1 hour").alias("hour")).count()
    return hours.selectExpr("string(unix_seconds(hour.start)) AS key", "string(count) AS value")


def to_topic(frame: DataFrame, topic: str, arguments: argparse.Namespace) -> Query:
    writer = frame.writeStream.format("levada").queryName(topic).outputMode("append")
    writer = writer.option("kafka.bootstrap.servers", arguments.bootstrap).option("topic", topic)
    writer = writer.option("orders", str(arguments.folder / "orders"))
    return writer.option("checkpointLocation", str(arguments.folder / f"checkpoint-{topic}")).start()


def to_lake(spark: SparkSession, arguments: argparse.Namespace) -> Query:
    running = archive(
        [SOURCE],
        str(arguments.folder / "lake"),
        bootstrap=arguments.bootstrap,
        every="0 seconds",
        lake_format=arguments.to,
        compaction=FEW_FILES,
        spark=spark,
        maxOffsetsPerTrigger=arguments.batch,
        orders=str(arguments.folder / "orders"),
    )
    (query,) = running.queries
    return query


def starts(spark: SparkSession, arguments: argparse.Namespace) -> Starts:
    if arguments.to != TOPICS:
        put_steps_into(arguments.to, arguments.folder / "orders")
        return {arguments.to: partial(to_lake, spark, arguments)}
    source = rows(spark, arguments)
    frames = {COPIES: source, COUNTS: counted(source)}
    return {topic: partial(to_topic, frame, topic, arguments) for topic, frame in frames.items()}


def supervise(starts: Starts) -> None:
    """For ever: start, and start again what has failed."""
    queries: dict[str, Query] = {}
    while True:
        for name, start in starts.items():
            if name in queries and not queries[name].isActive:
                print(f"{name} failed: {str(queries.pop(name).exception())[:300]}", flush=True)
            if name not in queries:
                try:
                    queries[name] = start()
                except ConnectionError as error:
                    print(f"{name} did not start: {error}", flush=True)
        time.sleep(PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--to", choices=[TOPICS, PARQUET, DELTA], required=True)
    arguments = parser.parse_args()
    spark = session("chaos", master=arguments.master, **SETTINGS)
    spark.dataSource.register(ChaosSource)
    prepare_concurrent_streams(spark)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    hidden = arguments.folder / ".pids"
    hidden.write_text(json.dumps([gateway.proc.pid, os.getpid()]))
    hidden.rename(arguments.folder / "pids")
    supervise(starts(spark, arguments))


if __name__ == "__main__":
    main()

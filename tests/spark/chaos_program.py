"""A driver that is killed: two queries from one topic, a copy and counts in windows, until somebody ends the process.

A query that fails is started again, as a supervisor would; the whole program is started again by the test.
"""

import argparse
import json
import os
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.chaos_steps import ChaosSource

from levada.spark import session

SOURCE, COPIES, COUNTS = "messages", "copies", "counts"
LATE = "10 hours"
SECONDS_APART = 36  # in the time of the records: 100 of them in an hour
PAUSE_S = 0.2
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.python.authenticate.socketTimeout": "60s"}


def rows(spark: SparkSession, bootstrap: str, batch: int) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": SOURCE,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(batch),
    }
    return (
        spark.readStream.format("levada")
        .options(**options)
        .load()
        .selectExpr("key", "string(value) AS value")
    )


def counted(frame: DataFrame) -> DataFrame:
    """Messages in an hour of their own time, told once when the hour is over."""
    timed = frame.selectExpr(f"timestamp_seconds(bigint(value) * {SECONDS_APART}) AS at")
    hours = timed.withWatermark("at", LATE).groupBy(window("at", "1 hour").alias("hour")).count()
    return hours.selectExpr("string(unix_seconds(hour.start)) AS key", "string(count) AS value")


def start(frame: DataFrame, topic: str, arguments: argparse.Namespace) -> StreamingQuery:
    writer = frame.writeStream.format("chaos").queryName(topic).outputMode("append")
    writer = writer.option("kafka.bootstrap.servers", arguments.bootstrap).option("topic", topic)
    writer = writer.option("orders", str(arguments.folder / "orders"))
    return writer.option("checkpointLocation", str(arguments.folder / f"checkpoint-{topic}")).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--batch", type=int, required=True)
    arguments = parser.parse_args()
    spark = session("chaos", master=arguments.master, **SETTINGS)
    spark.dataSource.register(ChaosSource)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    hidden = arguments.folder / ".pids"
    hidden.write_text(json.dumps([gateway.proc.pid, os.getpid()]))
    hidden.rename(arguments.folder / "pids")
    source = rows(spark, arguments.bootstrap, arguments.batch)
    frames = {COPIES: source, COUNTS: counted(source)}
    queries = {topic: start(frame, topic, arguments) for topic, frame in frames.items()}
    while True:
        for topic, query in queries.items():
            if not query.isActive:
                print(f"{topic} failed: {str(query.exception())[:300]}", flush=True)
                queries[topic] = start(frames[topic], topic, arguments)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()

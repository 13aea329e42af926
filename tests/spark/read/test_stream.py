"""`spark.readStream.format("levada")`: queries that run, end, go on, and are seen by others."""

import json
import subprocess
import sys
from pathlib import Path

from pyspark.sql.functions import window
from tests.spark.support.connector import SOON, Levada, eventually
from tests.spark.support.feeds import TIMEOUT_S
from tests.spark.support.queries import run, start, written


def test_a_query_goes_on_where_it_ended(topics: Levada, tmp_path: Path) -> None:
    topic = topics.broker.topic(partitions=2)
    stream = topics.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    topics.produce(topic, ["a", "b", "c", "d", "e"])
    topics.produce(topic, ["f"], partition=1)
    query = run(stream, tmp_path)
    assert written(topics, tmp_path) == ["a", "b", "c", "d", "e", "f"]
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert [progress["numInputRows"] for progress in batches] == [4, 2]
    source = batches[-1]["sources"][0]
    end = {topic: {"0": 5, "1": 1}}
    assert (json.loads(source["endOffset"]), json.loads(source["latestOffset"])) == (end, end)
    topics.produce(topic, ["g"], partition=1)
    run(stream, tmp_path)
    assert written(topics, tmp_path) == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_running_query_sees_what_comes_and_what_grows(topics: Levada, tmp_path: Path) -> None:
    topic = topics.broker.topic()
    query = start(topics.stream(subscribe=topic, startingOffsets="earliest"), tmp_path, SOON)
    try:
        topics.produce(topic, ["a"])
        eventually(lambda: written(topics, tmp_path) == ["a"], query)
        topics.grow(topic, 2)
        topics.produce(topic, ["b"], partition=1)
        eventually(lambda: written(topics, tmp_path) == ["a", "b"], query)
    finally:
        query.stop()


def test_lag_tools_see_spark(topics: Levada, tmp_path: Path) -> None:
    topic = topics.broker.topic()
    group = f"spark-{topic}"
    topics.produce(topic, range(5))
    stream = topics.stream(subscribe=topic, startingOffsets="earliest", group=group, maxOffsetsPerTrigger=2)
    run(stream, tmp_path)
    topics.produce(topic, range(5, 8))
    command = [sys.executable, "-m", "levada", "group", "lag", group, "--partitions", "-o", "json"]
    shown = subprocess.run([*command, "-b", topics.broker.bootstrap], capture_output=True, check=True)
    (row,) = json.loads(shown.stdout)
    assert (row["topic"], row["partition"]) == (topic, 0)
    assert row["end"] == 8 and row["committed"] == 5 and row["lag"] == 3


def test_counts_over_windows_of_typed_events(topics: Levada) -> None:
    topic = topics.broker.topic()
    for user, minute in (("ann", 0), ("ann", 0), ("bob", 1)):
        topics.produce(topic, [json.dumps({"user": user})], timestamp=minute * 60_000 + 1)
    topics.produce(topic, ["oops"], timestamp=60_001)
    stream = topics.stream(subscribe=topic, startingOffsets="earliest", valueFormat="json", valueSchema="user string")
    counted = stream.where("value is not null").groupBy(
        window("timestamp", "1 minute").start.alias("start"), "value.user"
    )
    query = (
        counted.count()
        .writeStream.format("memory")
        .queryName("counted")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    rows = topics.spark.sql("SELECT minute(start), user, count FROM counted ORDER BY 1").collect()
    assert [tuple(row) for row in rows] == [(0, "ann", 2), (1, "bob", 1)]

"""Failures of running queries: clear errors, and restarts."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from tests.spark.support.connector import SOON, Levada
from tests.spark.support.feeds import TIMEOUT_S
from tests.spark.support.queries import run, start, written
from tests.support.broker import BrokerThread, free_port

from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def failure_of(stream: "DataFrame", folder: Path) -> str:
    """What a query says that cannot go on."""
    with pytest.raises(StreamingQueryException) as failure:
        run(stream, folder)
    return printed(str(failure.value))


def connector(spark: "SparkSession", server: BrokerThread, folder: Path) -> Levada:
    return Levada(spark, cast(EmbeddedBroker, server), folder)


def printed(text: str) -> str:
    """The message: one sentence before anything of Spark's or a trace."""
    assert "Traceback" not in text
    return text.partition("SQLSTATE")[0]


def test_a_mistake_in_an_option_is_one_sentence(topics: Levada) -> None:
    with pytest.raises(AnalysisException) as failure:
        topics.read(subscribe="orders", startingOffset="latest")
    assert (
        printed(str(failure.value))
        .rstrip()
        .endswith("there is no option startingoffset; did you mean startingOffsets?")
    )


def test_a_topic_that_is_deleted_under_a_query(topics: Levada, tmp_path: Path) -> None:
    topic, other = topics.broker.topic(), topics.broker.topic()
    topics.produce(topic, ["a"])
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    query = start(topics.stream(**options), tmp_path, SOON)
    try:
        query.processAllAvailable()
        topics.delete(topic)
        with pytest.raises(StreamingQueryException) as failure:
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    assert f"{topic}-0 was read up to offset 1 and does not exist any more" in printed(str(failure.value))
    topics.produce(other, ["b"])
    run(topics.stream(**options, failOnDataLoss="false"), tmp_path)
    assert written(topics, tmp_path) == ["a", "b"]


def test_retention_that_overtakes_a_query(topics: Levada, tmp_path: Path) -> None:
    topic = topics.broker.topic()
    topics.produce(topic, ["a"])
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    run(topics.stream(**options), tmp_path)
    topics.produce(topic, ["b", "c", "d"])
    topics.delete_records(topic, before=3)
    failure = failure_of(topics.stream(**options), tmp_path)
    assert f"{topic}-0 begins at offset 3 now, those from 1 on were deleted before they were read" in failure
    assert "Set option failOnDataLoss to false" in failure
    run(topics.stream(**options, failOnDataLoss="false"), tmp_path)
    assert written(topics, tmp_path) == ["a", "d"]


def test_a_schema_that_does_not_fit(topics: Levada, tmp_path: Path) -> None:
    topic = topics.broker.topic()
    topics.produce(topic, ['{"n": "text"}', '{"n": 1}'])
    reader = topics.spark.readStream.format("levada").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", topics.broker.bootstrap)
    wrong = reader.schema("value string, amount double").load()
    with pytest.raises((AnalysisException, StreamingQueryException)) as failure:
        run(wrong, tmp_path)
    assert "a topic has no column amount. There are key, value" in printed(str(failure.value))
    right = reader.schema("value struct<n int>").options(valueFormat="json", startingOffsets="earliest").load()
    run(right.selectExpr("value.n value"), tmp_path)
    assert topics.spark.read.parquet(str(tmp_path / "files")).where("value is null").count() == 1


def test_a_batch_that_is_broken_on_disk(spark: "SparkSession", tmp_path: Path) -> None:
    stream = {"subscribe": "events", "startingOffsets": "earliest"}
    with BrokerThread(tmp_path / "data") as server:
        topics = connector(spark, server, tmp_path)
        server.create("events")
        for value in ("first", "second", "third"):
            topics.produce("events", [value])
        segment = next((tmp_path / "data" / "events-0").glob("*.log"))
        place = segment.read_bytes().index(b"second")
        with open(segment, "r+b") as file:
            file.seek(place)
            file.write(b"SECOND")
        failure = failure_of(topics.stream(**stream), tmp_path)
        assert "CORRUPT_MESSAGE: events-0: the batch at offset 1" in failure
        topics.delete_records("events", before=2)  # the way on that docs/spark.md tells
        run(topics.stream(**stream, failOnDataLoss="false"), tmp_path)
        assert written(topics, tmp_path) == ["third"]


def test_brokers_that_are_not_there(spark: "SparkSession", tmp_path: Path) -> None:
    """The query fails, and goes on when they are back: nothing is lost and nothing twice."""
    address = f"127.0.0.1:{free_port()}"
    stream = {"subscribe": "events", "startingOffsets": "earliest"}
    with BrokerThread(tmp_path / "data", listeners=f"PLAINTEXT://{address}") as server:
        server.create("events")
        topics = connector(spark, server, tmp_path)
        topics.produce("events", ["a"])
        run(topics.stream(**stream), tmp_path)
        assert written(topics, tmp_path) == ["a"]
    failure = failure_of(topics.stream(**stream, kafka__socket_connection_setup_timeout_ms=500), tmp_path)
    assert f"no response from the brokers at {address} (option kafka.bootstrap.servers)" in failure
    with BrokerThread(tmp_path / "data", listeners=f"PLAINTEXT://{address}"):
        topics.produce("events", ["b"])
        run(topics.stream(**stream), tmp_path)
        assert written(topics, tmp_path) == ["a", "b"]

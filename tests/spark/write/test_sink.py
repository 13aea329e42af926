"""`format("levada")` as a sink in Spark: batches, streams and their restarts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from tests.spark.support.sink_tasks import visible
from tests.support.broker import free_port

from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT_S = 120


class Sink:
    """Short words for writing to the broker of a test."""

    def __init__(self, spark: "SparkSession", broker: EmbeddedBroker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self._servers = {"kafka.bootstrap.servers": broker.bootstrap}

    def numbers(self, count: int, start: int = 0, tasks: int = 2) -> "DataFrame":
        frame = self.spark.range(start, start + count, 1, tasks)
        return frame.selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")

    def save(self, frame: "DataFrame", mode: str = "append", **options: str | int) -> None:
        frame.write.format("levada").mode(mode).options(**self._servers | options).save()

    def read(self, topic: str, **more: int) -> "DataFrame":
        options = {**self._servers, "subscribe": topic, "startingOffsets": "earliest"}
        return self.spark.readStream.format("levada").options(**options, **more).load()

    def copy(self, frame: "DataFrame", target: str, name: str = "", mode: str = "append", **options: str) -> None:
        """Everything there is now, from where the last one of this name ended."""
        writer = frame.writeStream.format("levada").outputMode(mode).trigger(availableNow=True)
        writer = writer.options(**self._servers, topic=target, **options)
        query = writer.option("checkpointLocation", str(self.folder / (name or target))).start()
        assert query.awaitTermination(TIMEOUT_S), query.status

    def visible(self, topic: str) -> list[int]:
        return sorted(map(int, visible(self.broker.bootstrap, topic)))


@pytest.fixture
def sink(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> Sink:
    return Sink(spark, broker, tmp_path)


def test_a_frame_becomes_records(sink: Sink) -> None:
    topic = sink.broker.topic(partitions=3)
    sink.save(sink.numbers(1_000), topic=topic)
    assert sink.visible(topic) == list(range(1_000))


def test_a_topic_that_is_not_there_is_created(sink: Sink) -> None:
    source, target = (f"{sink.broker.topic()}-new" for _ in range(2))
    sink.save(sink.numbers(10), topic=source)
    sink.copy(sink.read(source).select("key", "value"), target)
    assert sink.visible(target) == list(range(10))


def test_all_columns(sink: Sink, broker: EmbeddedBroker) -> None:
    topic = broker.topic(partitions=2)
    frame = sink.spark.sql(
        f"""SELECT '{topic}' AS topic, 'k' AS key, binary('v') AS value, 1 AS partition,
                   array(named_struct('key', 'h', 'value', binary('x'))) AS headers,
                   timestamp '2024-02-29 12:30:00.123' AS timestamp"""
    )
    sink.save(frame)
    (record,) = broker.records(topic)
    assert (record.partition, record.key, record.value) == (1, b"k", b"v")
    assert (record.headers, record.timestamp) == ((("h", b"x"),), 1709209800123)


def test_a_job_with_a_task_that_fails_leaves_nothing(sink: Sink) -> None:
    topic = sink.broker.topic()
    frame = sink.numbers(1_000).selectExpr("key", "if(key = '999', raise_error('broken row'), value) AS value")
    with pytest.raises(Exception, match="broken row"):
        sink.save(frame, topic=topic)
    sink.save(sink.numbers(3), topic=topic)
    assert sink.visible(topic) == [0, 1, 2]


def test_each_batch_of_foreach_batch_is_written_once(sink: Sink, broker: EmbeddedBroker) -> None:
    source, one, two = broker.topic(partitions=2), broker.topic(), broker.topic()
    sink.save(sink.numbers(500), topic=source)
    deaths = [True]

    def write(frame: "DataFrame", batch: int) -> None:
        rows = frame.select("key", "value")
        sink.save(rows, topic=one, txnAppId=f"{source}/one", txnVersion=batch)
        if deaths and deaths.pop():
            raise RuntimeError("between two sinks")
        sink.save(rows, topic=two, txnAppId=f"{source}/two", txnVersion=batch)

    def run() -> None:
        writer = sink.read(source).writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(sink.folder / "both")).start()
        assert query.awaitTermination(TIMEOUT_S)

    with pytest.raises(Exception, match="between two sinks"):
        run()
    run()
    assert sink.visible(one) == sink.visible(two) == list(range(500))


# Streams.


def test_a_stream_writes_each_row_once_over_restarts(sink: Sink, broker: EmbeddedBroker) -> None:
    source, target = broker.topic(partitions=3), broker.topic(partitions=2)
    for part in range(3):
        sink.save(sink.numbers(200, 200 * part), topic=source)
        sink.copy(sink.read(source).select("key", "value"), target)
        assert sink.visible(target) == list(range(200 * (part + 1)))


def test_a_batch_that_spark_forgot_to_be_done_is_not_written_again(sink: Sink, broker: EmbeddedBroker) -> None:
    """As after a driver that died between the sink's commit and Spark's own."""
    source, target = broker.topic(partitions=2), broker.topic(partitions=2)
    sink.save(sink.numbers(300), topic=source)
    rows = sink.read(source).select("key", "value")
    sink.copy(rows, target)
    (sink.folder / target / "commits" / "0").unlink()
    (sink.folder / target / "commits" / ".0.crc").unlink(missing_ok=True)
    sink.save(sink.numbers(100, 300), topic=source)
    sink.copy(rows, target)
    assert sink.visible(target) == list(range(400))


def test_counts_are_each_written_once_and_go_on_after_a_repeated_batch(sink: Sink, broker: EmbeddedBroker) -> None:
    source, target = broker.topic(partitions=2), broker.topic()
    counts = sink.read(source).selectExpr("int(string(value)) % 3 AS rest").groupBy("rest").count()
    rows = counts.selectExpr("cast(rest AS string) AS key", "cast(count AS string) AS value")
    sink.save(sink.numbers(30), topic=source)
    sink.copy(rows, target, mode="complete")
    for name in ("0", ".0.crc"):
        (sink.folder / target / "commits" / name).unlink(missing_ok=True)
    sink.save(sink.numbers(30), topic=source)
    sink.copy(rows, target, mode="complete")
    found = [(record.key, record.value) for record in broker.records(target)]
    assert sorted(found) == [(key, value) for key in (b"0", b"1", b"2") for value in (b"10", b"20")]
    assert sink.visible(target) == [10, 10, 10, 20, 20, 20]


def test_two_queries_write_to_one_topic(sink: Sink, broker: EmbeddedBroker) -> None:
    source, target = broker.topic(partitions=2), broker.topic()
    sink.save(sink.numbers(50), topic=source)
    rows = sink.read(source).select("key", "value")
    for name in ("one", "two", "one", "two"):
        sink.copy(rows, target, name)
    assert sink.visible(target) == sorted([*range(50)] * 2)


def test_a_checkpoint_put_back_is_refused(sink: Sink, broker: EmbeddedBroker) -> None:
    source, target = broker.topic(), broker.topic()
    rows = sink.read(source).select("key", "value")
    for part in range(2):
        sink.save(sink.numbers(5, 5 * part), topic=source)
        sink.copy(rows, target)
    for folder in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (sink.folder / target / folder / name).unlink(missing_ok=True)
    for name in ("0", ".0.crc"):
        (sink.folder / target / "commits" / name).unlink(missing_ok=True)
    with pytest.raises(Exception, match="batch 1 of this query is committed already"):
        sink.copy(rows, target)
    assert sink.visible(target) == list(range(10))


@pytest.mark.parametrize("limit", [100, 1_000])
def test_a_checkpoint_put_back_by_its_last_batch_is_refused_if_that_has_other_rows(
    sink: Sink, broker: EmbeddedBroker, limit: int
) -> None:
    """With the lower limit it has as many as before, of both partitions."""
    source, target = broker.topic(partitions=2), broker.topic()
    rows = sink.read(source, maxOffsetsPerTrigger=limit).select("key", "value")
    own: dict[str, str] = {"topic": source, "delivery": "at_least_once"}  # without markers among the offsets
    sink.save(sink.numbers(100).selectExpr("*", "0 AS partition"), **own)
    sink.copy(rows, target)
    for folder in ("offsets", "commits"):
        for name in ("0", ".0.crc"):
            (sink.folder / target / folder / name).unlink(missing_ok=True)
    sink.save(sink.numbers(100, 100).selectExpr("*", "1 AS partition"), **own)
    for _ in range(2):
        with pytest.raises(Exception, match=r"batch 0 of .* ends at other offsets now than it did") as error:
            sink.copy(rows, target)
        assert "Traceback" not in str(error.value).split("CommitRefused")[-1]
        assert sink.visible(target) == list(range(100))


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_stream_without_rows(sink: Sink, broker: EmbeddedBroker, delivery: str) -> None:
    source, target = broker.topic(), broker.topic()
    sink.save(sink.numbers(10), topic=source)
    sink.copy(sink.read(source).where("value = 'x'").select("key", "value"), target, delivery=delivery)
    assert sink.visible(target) == []


# What a user sees.


def failing(sink: Sink, topic: str) -> dict[str, tuple[Callable[[], Any], str]]:
    rows = sink.numbers(10)
    nobody = {
        "kafka.bootstrap.servers": f"127.0.0.1:{free_port()}",
        "kafka.socket.connection.setup.timeout.ms": "500",
    }
    nothing_new = {"kafka.allow.auto.create.topics": "false"}
    return {
        "column": (lambda: sink.save(rows.drop("value"), topic=topic), "column value is missing"),
        "topic": (lambda: sink.save(rows, topic="nowhere", **nothing_new), "topic nowhere does not exist; create it"),
        "brokers": (lambda: sink.save(rows, topic=topic, **nobody), "no response from the brokers"),
        "no topic": (lambda: sink.save(rows), "there is no topic: set option topic"),
        "overwrite": (lambda: sink.save(rows, "overwrite", topic=topic), "a topic cannot be overwritten"),
        "type": (
            lambda: sink.save(rows.selectExpr("int(value) AS value"), topic=topic),
            "column value is int",
        ),
    }


@pytest.mark.parametrize("what", ["column", "topic", "brokers", "no topic", "overwrite", "type"])
def test_mistakes_are_reported_in_a_sentence_before_any_task(sink: Sink, broker: EmbeddedBroker, what: str) -> None:
    act, message = failing(sink, broker.topic())[what]
    with pytest.raises(AnalysisException, match=message) as error:
        act()
    assert "Traceback" not in str(error.value)

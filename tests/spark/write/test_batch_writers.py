"""Batch writers without Spark: records, visibility, errors."""

import linecache
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, TimestampType
from tests.spark.support.feeds import Feeds
from tests.spark.support.sink_tasks import BYTES, HEADERS, PLAIN, TEXT, Job, rows, structs, visible

from levada.errors import KafkaError
from levada.spark import blocking
from levada.spark.errors import CommitRefused, OptionError
from levada.spark.formats.decoder import HEADERS_TYPE
from levada.spark.options import declared
from levada.spark.source import LevadaDataSource
from levada.spark.write import driver
from levada.spark.write.jobs import batch_writer
from levada.spark.write.options import ColumnError, JobOptions, StreamOptions
from levada.spark.write.sink import stream_writer
from levada.testing import EmbeddedBroker

ALL = {
    "key": BYTES,
    "value": BYTES,
    "topic": TEXT,
    "partition": IntegerType(),
    "headers": HEADERS,
    "timestamp": TimestampType(),
}
BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
NO_CREATION = {"kafka.allow.auto.create.topics": "false"}


def test_rows_become_records_with_all_they_have(broker: EmbeddedBroker) -> None:
    first, second = broker.topic(partitions=3), broker.topic(partitions=2)
    moment = datetime(2024, 2, 29, 12, 30, 0, 123_000, UTC)
    columns = {
        "key": pa.array([b"a", None, b"c", b""]),
        "value": pa.array([b"1", b"2", None, b"\xff\x00"]),
        "topic": pa.array([first, second, first, first]),
        "partition": pa.array([2, 1, 2, 0], pa.int32()),
        "headers": pa.array([[("trace", b"x"), ("trace", None)], [], None, []], HEADERS_TYPE),
        "timestamp": pa.array([moment] * 3 + [None], pa.timestamp("us", "UTC")),
    }
    Job(broker, ALL).run(rows(**columns))
    low, third, fourth = broker.records(first)
    assert (low.partition, low.key, low.value) == (0, b"", b"\xff\x00")
    assert low.timestamp > moment.timestamp() * 1000  # none was given
    assert (third.partition, third.key, third.value) == (2, b"a", b"1")
    assert third.headers == (("trace", b"x"), ("trace", None))
    assert (fourth.key, fourth.value, fourth.headers) == (b"c", None, ())
    (other,) = broker.records(second)
    assert (other.partition, other.key, other.value) == (1, None, b"2")
    assert {record.timestamp for record in (third, fourth, other)} == {1709209800123}


def test_the_option_wins_over_the_column_topic(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    named = {"topic": pa.array(["elsewhere"])}
    Job(broker, PLAIN | {"topic": TEXT}, topic=topic).run(rows("a", **named))
    assert visible(broker.bootstrap, topic) == ["a"]


def test_column_names_are_without_case_and_columns_that_mean_nothing_are_left(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    batch = pa.RecordBatch.from_arrays([pa.array(["v"]), pa.array([7])], names=["VALUE", "offset"])
    Job(broker, {"VALUE": TEXT, "offset": LongType()}, topic=topic).run(iter([batch]))
    assert [(record.key, record.value) for record in broker.records(topic)] == [(None, b"v")]


def test_a_key_goes_where_other_clients_would_put_it(broker: EmbeddedBroker) -> None:
    from confluent_kafka import Producer

    topic, other = broker.topic(partitions=7), broker.topic(partitions=7)
    Job(broker, topic=topic).run(rows(*range(200)))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for value in range(200):
        producer.produce(other, str(value), key=str(value))
    assert producer.flush(30) == 0
    places = [{r.key: r.partition for r in broker.records(name)} for name in (topic, other)]
    assert places[0] == places[1] and len(places[0]) == 200


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_as_configured_and_kept_below_the_limit(broker: EmbeddedBroker, codec: str) -> None:
    topic = broker.topic(max_message_bytes=20_000)
    options: dict[str, object] = {"topic": topic, "kafka.compression.type": codec, "kafka.batch.size": "16k"}
    Job(broker, **options).run(rows(*range(20_000)))
    assert visible(broker.bootstrap, topic) == sorted(map(str, range(20_000)))


def test_rows_of_a_job_are_seen_when_it_is_committed_and_not_before(broker: EmbeddedBroker) -> None:
    topic = broker.topic(partitions=2)
    job = Job(broker, topic=topic)
    messages = [job.attempt(rows("a", "b"), 0, 1), job.attempt(rows("c"), 1, 2), job.attempt(iter(()), 2, 3)]
    assert [message.rows for message in messages] == [2, 1, 0]
    assert visible(broker.bootstrap, topic) == []
    job.writer.commit(messages)
    assert visible(broker.bootstrap, topic) == ["a", "b", "c"]


def test_a_job_that_fails_leaves_nothing_not_even_of_attempts_that_were_killed(
    broker: EmbeddedBroker,
) -> None:
    topic = broker.topic()
    job = Job(broker, topic=topic)
    job.attempt(rows("killed"), 0, 1)  # its commit message is lost
    job.writer.abort([job.attempt(rows("a"), 1, 2), None])
    Job(broker, topic=topic).run(rows("next"))
    assert visible(broker.bootstrap, topic) == ["next"]


def test_attempts_that_were_killed_hold_up_nobody_when_the_job_is_done(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    job = Job(broker, topic=topic)
    job.attempt(rows("killed"), 0, 1)
    job.writer.commit([job.attempt(rows("a"), 0, 2)])
    assert visible(broker.bootstrap, topic) == ["a"]


def test_a_job_that_takes_too_long_is_refused_as_a_whole(broker: EmbeddedBroker) -> None:
    topic, slow = broker.topic(), broker.topic()
    job = Job(broker, {"value": TEXT, "topic": TEXT}, transactionTimeout="300ms")
    first = job.attempt(iter([row("a", slow)]), 0, 1)
    wait_until_aborted(broker, slow)
    with pytest.raises(CommitRefused, match=r"transactionTimeout.*Nothing of it is visible"):
        job.writer.commit([first, job.attempt(iter([row("b", topic)]), 1, 2)])
    assert visible(broker.bootstrap, topic) == visible(broker.bootstrap, slow) == []


def row(value: str, topic: str) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([value]), pa.array([topic])], names=["value", "topic"])


def wait_until_aborted(broker: EmbeddedBroker, topic: str) -> None:
    from tests.support.reading import wait_until_ended

    wait_until_ended(broker.bootstrap, topic)


def test_at_least_once_is_seen_as_it_is_written(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    job = Job(broker, topic=topic, delivery="at_least_once")
    message = job.attempt(rows("a", "b"))
    assert message.rows == 2 and visible(broker.bootstrap, topic) == ["a", "b"]
    job.writer.abort([message, None])
    assert visible(broker.bootstrap, topic) == ["a", "b"]


# Under a name and a version.


def test_the_same_version_again_writes_nothing(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    for version in (0, 0, 1, 1, 7):
        named: dict[str, object] = {"topic": topic, "txnAppId": f"re-{topic}", "txnVersion": version}
        Job(broker, **named).run(rows(f"v{version}"))
    assert visible(broker.bootstrap, topic) == ["v0", "v1", "v7"]


@pytest.mark.parametrize(
    ("version", "values", "message"),
    [
        (0, "xyz", "version 0: 3 rows are not written, because version 1 is written already.*another txnAppId"),
        (1, "xyz", "version 1 is written already, with 2 rows; 3 rows are not written now"),
        (1, "xy", "version 1 is written already, with other content; 2 rows are not written now"),
        (1, "ad", "version 1 is written already, with other content; 2 rows are not written now"),
    ],
)
def test_rows_that_are_skipped_are_counted_in_a_warning_or_refused(
    broker: EmbeddedBroker, version: int, values: str, message: str
) -> None:
    """As after a deleted checkpoint, with which versions begin again."""
    topic = broker.topic()
    named: dict[str, object] = {"topic": topic, "txnAppId": topic}
    Job(broker, **named, txnVersion=1).run(rows("a", "b"))
    with pytest.warns(UserWarning, match=message):
        Job(broker, **named, txnVersion=version).run(rows(*values))
    with pytest.raises(CommitRefused, match=message):
        Job(broker, **named, txnVersion=version, repeatedBatch="refuse").run(rows(*values))
    Job(broker, **named, txnVersion=1, repeatedBatch="refuse").run(rows("b", "a"))
    Job(broker, **named, txnVersion=2, repeatedBatch="refuse").run(rows("c"))
    assert visible(broker.bootstrap, topic) == ["a", "b", "c"]


def test_applications_whose_names_begin_alike_do_not_meet(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    jobs = [
        Job(broker, topic=topic, txnAppId=f"{topic}{rest}", txnVersion=3)
        for rest in ("", "-", "-0", "-0-0", ".*", "%2D", " ä/")
    ]
    messages = [job.attempt(rows(index)) for index, job in enumerate(jobs)]
    for job, message in zip(jobs, messages, strict=True):
        job.writer.commit([message])
    assert visible(broker.bootstrap, topic) == list(map(str, range(7)))


def test_a_version_whose_driver_died_before_it_was_committed_is_written_once(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    named: dict[str, object] = {"topic": topic, "txnAppId": topic, "txnVersion": 1}
    Job(broker, **named).attempt(rows("a", "b"))
    Job(broker, **named).run(rows("a", "b"))
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_a_version_whose_driver_died_after_it_was_committed_is_finished(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(partitions=2)
    named: dict[str, object] = {"topic": topic, "txnAppId": topic, "txnVersion": 1}
    job = Job(broker, **named)
    message = job.attempt(rows("a", "b"))
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_commit", killed)
        with pytest.raises(Killed):
            job.writer.commit([message])
    assert visible(broker.bootstrap, topic) == []
    again = Job(broker, **named)
    message = again.attempt(rows("a", "b"))
    assert message.prepared is None
    again.writer.commit([message])
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_a_committed_version_is_finished_by_the_next_ones(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not repeated, and each of the next two drivers dies as well before it has ended anything."""
    topic = broker.topic(partitions=2)
    named: dict[str, object] = {"topic": topic, "txnAppId": topic}
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_commit", killed)
        for version in range(3):
            with pytest.raises(Killed):
                Job(broker, **named, txnVersion=version).run(rows(f"v{version}"))
    Job(broker, **named, txnVersion=3).run(rows("v3"))
    assert visible(broker.bootstrap, topic) == ["v0", "v1", "v2", "v3"]


class Killed(BaseException):
    """Where a driver ends."""


async def killed(*_: object) -> None:
    raise Killed


def test_a_version_whose_driver_died_as_it_ended_transactions_is_written_once(broker: EmbeddedBroker) -> None:
    topic = broker.topic(partitions=2)
    named: dict[str, object] = {"topic": topic, "txnAppId": topic, "txnVersion": 1}
    job = Job(broker, **named)
    message = job.attempt(rows("a", "b"))
    broker.fail_next("end_txn", "UNKNOWN_SERVER_ERROR")
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        job.writer.commit([message])
    Job(broker, **named).run(rows("a", "b"))
    assert visible(broker.bootstrap, topic) == ["a", "b"]


# What the network does.


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("what", ["dropped", "moved", "late"])
def test_batches_are_stored_once_whatever_becomes_of_requests(broker: EmbeddedBroker, delivery: str, what: str) -> None:
    topic = broker.topic(partitions=2)
    options: dict[str, object] = {"topic": topic, "delivery": delivery, "kafka.batch.size": "2k"}
    job = Job(broker, **options)
    if what == "dropped":
        broker.drop("produce", times=3)
    elif what == "moved":
        broker.fail_next("produce", "NOT_LEADER_OR_FOLLOWER", times=3)
    else:
        broker.delay("produce", 0.05, times=3)
    job.run(rows(*range(5_000)))
    assert visible(broker.bootstrap, topic) == sorted(map(str, range(5_000)))
    for partition in range(2):
        values = [int(r.value or b"") for r in broker.records(topic) if r.partition == partition]
        assert values == sorted(values)


# Errors and their messages.


def test_a_topic_that_is_not_there_is_created_where_the_broker_creates_topics(broker: EmbeddedBroker) -> None:
    names = [f"{broker.topic()}-new-{number}" for number in range(3)]
    Job(broker, topic=names[0]).run(rows("a"))
    Job(broker, PLAIN | {"topic": TEXT}).run(rows("b", "c", topic=pa.array(names[1:])))
    assert [visible(broker.bootstrap, name) for name in names] == [["a"], ["b"], ["c"]]


def test_a_topic_that_is_not_there_is_refused_by_option(broker: EmbeddedBroker) -> None:
    with pytest.raises(
        KafkaError, match="topic nowhere-9 does not exist; create it with: levada topic create nowhere-9"
    ):
        Job(broker, topic="nowhere-9", **NO_CREATION).run(rows("a"))


def test_a_broker_that_creates_no_topics() -> None:
    with EmbeddedBroker({"auto.create.topics.enable": "false"}) as broker:
        with pytest.raises(KafkaError, match="topic nowhere-9 does not exist; create it"):
            Job(broker, topic="nowhere-9").run(rows("a"))
        blocking.close()


def test_a_driver_looks_for_the_topic_once(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    servers = {"kafka.bootstrap.servers": broker.bootstrap} | NO_CREATION
    there, missing = (LevadaDataSource(servers | {"topic": name}) for name in (topic, "nowhere-9"))
    for make in (missing.writer, missing.streamWriter):
        with pytest.raises(KafkaError, match="topic nowhere-9 does not exist; create it"):
            make(structs(**PLAIN), False)
    there.writer(structs(**PLAIN), False)
    Feeds(broker).delete(topic)
    there.streamWriter(structs(**PLAIN), False)  # no micro-batch waits for an answer: its tasks will tell


def test_a_row_without_topic(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    job = Job(broker, PLAIN | {"topic": TEXT})
    with pytest.raises(ValueError, match="a row has no topic"):
        job.run(rows("a", "b", topic=pa.array([topic, None])))


def test_a_partition_that_the_topic_does_not_have(broker: EmbeddedBroker) -> None:
    job = Job(broker, PLAIN | {"partition": IntegerType()}, topic=broker.topic(partitions=2))
    with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
        job.run(rows("a", partition=pa.array([2], pa.int32())))


def test_a_record_that_is_too_large_and_nothing_of_its_task_is_seen(broker: EmbeddedBroker) -> None:
    topic = broker.topic(max_message_bytes=1_000)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE") as error:
        Job(broker, topic=topic, **{"kafka.batch.size": 500}).run(rows("a", "x" * 2_000))
    assert "max.message.bytes" in error.value.__notes__[0] and len(error.value.__notes__) == 1
    assert visible(broker.bootstrap, topic) == []


def test_a_compacted_topic_needs_keys(broker: EmbeddedBroker) -> None:
    topic = broker.topic(cleanup_policy="compact")
    with pytest.raises(KafkaError, match="INVALID_RECORD") as error:
        Job(broker, topic=topic).run(rows("a", key=pa.array([None], pa.string())))
    assert "needs keys" in error.value.__notes__[0]


def test_an_application_with_the_longest_name(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    for _ in range(2):
        Job(broker, topic=topic, txnAppId=f"{topic:🐘>250}", txnVersion=1).run(rows("a"))
    assert visible(broker.bootstrap, topic) == ["a"]


@pytest.mark.parametrize(
    ("micros", "message"),
    [
        (-1001, "row 0 is from before 1970: 1969-12-31T23:59:59.998"),
        (-70_000_000_000_000_000, "row 0 is from before 1970: -249-"),
        (-(1 << 63), "row 0 is from before 1970: -290308-"),
        ((1 << 63) - 1, "timestamps too far from now"),
    ],
)
def test_a_time_that_no_record_can_have(broker: EmbeddedBroker, micros: int, message: str) -> None:
    job = Job(broker, PLAIN | {"timestamp": TimestampType()}, topic=broker.topic())
    with pytest.raises(KafkaError, match=f"INVALID_TIMESTAMP: {message}") as error:
        job.run(rows("a", timestamp=pa.array([micros], pa.timestamp("us", "UTC"))))
    notes = getattr(error.value, "__notes__", [])
    assert [("message.timestamp.after.max.ms" in note) for note in notes] == [True] * (micros > 0)


def test_a_header_without_a_name(broker: EmbeddedBroker) -> None:
    headers = pa.array([[{"key": None, "value": b"x"}]], HEADERS_TYPE)
    with pytest.raises(KafkaError, match="INVALID_RECORD: row 0 has a header without a name") as error:
        Job(broker, PLAIN | {"headers": HEADERS}, topic=broker.topic()).run(rows("a", headers=headers))
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": TEXT}, r"column value is missing; there are key.*to_json"),
        ({"key": TEXT, "val": TEXT}, r"column value is missing \(is it val\?\); there are key, val"),
        ({"values": TEXT}, r"is it values\?"),
        (
            {"value": structs(a=IntegerType())},
            r"column value is struct<a:int>, it must be string or binary.*to_json",
        ),
        ({"key": IntegerType(), "value": TEXT}, "column key is int, it must be string or binary"),
        (
            {"value": TEXT, "headers": MapType(TEXT, TEXT)},
            "it must be array<struct<key: string, value: binary>>",
        ),
        ({"value": TEXT, "headers": ArrayType(structs(a=TEXT, b=BYTES))}, "it must be array<struct<key"),
        ({"value": TEXT, "partition": TEXT}, "column partition is string, it must be int"),
        ({"value": TEXT, "timestamp": LongType()}, "column timestamp is bigint, it must be timestamp"),
        ({"value": TEXT, "header": HEADERS}, "column header would not be written; did you mean headers"),
    ],
)
def test_columns_that_do_not_fit_are_reported_before_anything_runs(columns: dict[str, DataType], message: str) -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(ColumnError, match=message):
            make(BOOTSTRAP | {"topic": "t"}, structs(**columns), False)


def test_somewhere_the_rows_must_go() -> None:
    with pytest.raises(ColumnError, match="there is no topic: set option topic"):
        batch_writer(BOOTSTRAP, structs(**PLAIN), False)


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="a topic cannot be overwritten: use mode append"):
        batch_writer(BOOTSTRAP | {"topic": "t"}, structs(**PLAIN), True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "x"}, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"repeatedBatch": "refuse"}, "repeatedBatch needs txnAppId and txnVersion"),
        (
            {"txnAppId": "x", "txnVersion": "1", "delivery": "at_least_once"},
            "txnAppId needs delivery=exactly_once",
        ),
        ({"txnAppId": "x", "txnVersion": "-1"}, "txnVersion: write a whole number, 0 or more"),
        (
            {"txnAppId": "x" * 40_000, "txnVersion": "1"},
            "option txnAppId has 40000 characters; the maximum is 250$",
        ),
        ({"delivery": "exactly-once"}, "did you mean exactly_once"),
        ({"kafka.compression.type": "brotli"}, "write none or gzip or snappy or lz4 or zstd"),
        ({"topics": "t"}, "there is no option topics; did you mean topic"),
        ({"kafka.transactional.id": "x"}, "use delivery=exactly_once"),
        ({"kafka.partitioner.class": "x"}, "write a column partition"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        batch_writer(BOOTSTRAP | {"topic": "t"} | options, structs(**PLAIN), False)


def test_settings_of_other_producers_are_reported_to_have_no_effect() -> None:
    """The warning shows no line of Levada's source."""
    with pytest.warns(UserWarning, match="option kafka.linger.ms has no effect") as message:
        batch_writer(BOOTSTRAP | {"topic": "t", "kafka.linger.ms": "5"}, structs(**PLAIN), False)
    assert not linecache.getline(message[0].filename, message[0].lineno)


def test_a_stream_has_a_name_and_versions_of_its_own() -> None:
    with pytest.raises(OptionError, match="txnAppId"):
        stream_writer(BOOTSTRAP | {"topic": "t", "txnAppId": "x", "txnVersion": "1"}, structs(**PLAIN), False)


def test_the_page_tells_of_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark_writing.md").read_text()
    for one in (*declared(JobOptions).values(), *declared(StreamOptions).values()):
        assert f"`{one.name}`" in page, one.name

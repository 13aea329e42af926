"""A batch: the stock connector's columns and options, by the reader as a plain object."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.types import BinaryType, DoubleType, LongType, StringType, StructField, StructType
from tests.spark.support.feeds import TIMEOUT_S
from tests.spark.support.lakes import send_at
from tests.spark.support.plain import EVERYTHING, Plain

from levada.errors import KafkaError
from levada.spark import blocking
from levada.spark.errors import DataLoss, OptionError

DAY_MS = 86_400_000


def test_the_columns_are_those_of_the_record(plain: Plain) -> None:
    topic = plain.broker.topic(partitions=2)
    plain.produce(topic, ["a"], key=b"k", timestamp=1_000, headers=[("h", b"1"), ("h", None), ("g", b"")])
    plain.produce(topic, ["b"], partition=1, timestamp=2_001)
    first, second = sorted(plain.rows(subscribe=topic), key=lambda row: row["partition"])
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "g", "value": b""}]
    assert first == {
        "key": b"k",
        "value": b"a",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "timestampType": 0,
        "headers": headers,
    }
    assert second["key"] is None and second["headers"] == []
    assert second["timestamp"] == datetime(1970, 1, 1, 0, 0, 2, 1000, tzinfo=UTC)


@pytest.mark.parametrize("time_ms", [-9_223_372_036_854_776, -(1 << 62), -(1 << 63)])
def test_a_timestamp_that_spark_does_not_have_is_an_error(plain: Plain, time_ms: int) -> None:
    """It was read as one 600,000 years later. Microseconds are a thousand times as many."""
    topic = plain.broker.topic(retention_ms=-1)
    send_at(plain.broker, topic, -9_223_372_036_854_775, time_ms)
    with pytest.raises(KafkaError, match=f"{topic}-0: the record at offset 1 has the timestamp {time_ms} ms"):
        plain.rows(subscribe=topic)
    assert len(plain.rows(StructType([EVERYTHING["value"]]), subscribe=topic)) == 2


def test_append_time_is_reported_by_its_type(plain: Plain) -> None:
    topic = plain.broker.topic(message_timestamp_type="LogAppendTime")
    plain.produce(topic, ["a"], timestamp=1_000)
    (row,) = plain.rows(subscribe=topic)
    assert row["timestampType"] == 1 and row["timestamp"].year > 2000


def test_topics_by_name_pattern_and_partition(plain: Plain) -> None:
    first, second = plain.broker.topic(partitions=2), plain.broker.topic()
    plain.produce(first, [10])
    plain.produce(first, [11], partition=1)
    plain.produce(second, [20])
    plain.transact(plain.broker.topic(), ["elsewhere"], commit=True)
    assert sorted(plain.texts(subscribe=f"{first}, {second}")) == ["10", "11", "20"]
    assert sorted(plain.texts(subscribePattern=f"{first}|{second}")) == ["10", "11", "20"]
    assert plain.texts(subscribePattern=f"^{second[1:]}") == []
    assert plain.texts(subscribePattern=f"{second[1:]}$") == ["20"]
    assert plain.texts(subscribePattern=second[1:], subscribePatternFullMatch=True) == []
    client = blocking.client(plain.broker.bootstrap)
    blocking.run(client.admin.create_topic("__levada_own"))
    plain.produce("__levada_own", [30])
    assert plain.texts(subscribePattern="__.*") == []  # internal topics are read by name only
    assert plain.texts(subscribe="__levada_own") == ["30"]
    assert "__transaction_state" in blocking.run(client.metadata()).topics
    blocking.run(client.admin.delete_topic("__levada_own"))
    assert plain.texts(assign={first: [1]}) == ["11"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, range(10)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(10)),
        ({"startingOffsets": {"0": 3}}, range(3, 10)),
        ({"startingOffsets": {"0": -2}, "endingOffsets": {"0": 4}}, range(4)),
        ({"startingOffsets": {"0": 5}, "endingOffsets": {"0": -1}}, range(5, 10)),
        ({"startingOffsets": {"0": -1}}, range(0)),
        ({"startingTimestamp": 4_000}, range(4, 10)),
        ({"startingTimestamp": 3_999, "endingTimestamp": "1970-01-01T00:00:07Z"}, range(4, 7)),
        ({"startingOffsetsByTimestamp": {"0": 8_000}}, range(8, 10)),
        ({"endingOffsetsByTimestamp": {"0": 2_000}}, range(2)),
        ({"endingTimestamp": DAY_MS}, range(10)),
        ({"startingTimestamp": DAY_MS, "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        # As in the stock connector, times count for more than offsets, and one time for all most of all.
        ({"startingTimestamp": 9_000, "startingOffsetsByTimestamp": {"0": 1}}, range(9, 10)),
        ({"startingOffsetsByTimestamp": {"0": 9_000}, "startingOffsets": {"0": 1}}, range(9, 10)),
        ({"endingTimestamp": 1_000, "endingOffsets": {"0": 5}}, range(1)),
        ({"startingTimestamp": 9_000, "startingOffsets": "latest"}, range(9, 10)),
        ({"startingOffsetsByTimestamp": {"0": 9_000}, "startingOffsets": "latest"}, range(9, 10)),
        ({"startingOffsets": {"0": 4}, "endingOffsets": {"0": 4}}, range(0)),
        ({"startingOffsets": {"0": 4}, "endingOffsets": {"0": 6}, "fromTime": 8_000}, range(0)),
        # Times before 1970 are none of the numbers that the protocol has for the ends of a log.
        ({"startingTimestamp": "1969-12-31T23:59:59.999Z"}, range(10)),
        ({"startingTimestamp": -3}, range(10)),
        ({"startingOffsetsByTimestamp": {"0": -5}, "endingOffsetsByTimestamp": {"0": 2_000}}, range(2)),
        ({"fromTime": -1}, range(10)),
        ({"fromTime": "1960-01-01", "toTime": 2_000}, range(2)),
        ({"endingTimestamp": -1}, range(0)),
        ({"endingTimestamp": "1960-01-01"}, range(0)),
    ],
)
def test_where_a_batch_begins_and_ends(plain: Plain, options: dict[str, object], wanted: range) -> None:
    topic = plain.broker.topic()
    for number in range(10):
        plain.produce(topic, [number], timestamp=number * 1_000 or 1)
    by_topic = {name: {topic: value} if isinstance(value, dict) else value for name, value in options.items()}
    assert plain.texts(subscribe=topic, **by_topic) == [str(number) for number in wanted]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "topik-0"}, "there is no topic topik-0; did you mean topic-"),
        ({"assign": {"TOPIC": [0, 7]}}, "option assign: TOPIC has 2 partitions, there is no TOPIC-7"),
        ({"startingOffsets": {"TOPIC": {"0": 1}}}, "must name exactly the partitions that are read: nothing"),
        ({"startingOffsets": {"TOPIC": {"0": 0, "1": 0, "2": 0}}}, "no partition TOPIC-2 is read"),
        ({"startingOffsets": {"TOPIC": {"0": 9, "1": 0}}}, "option startingOffsets: TOPIC-0 ends at 1"),
        (
            {"endingOffsets": {"TOPIC": {"0": 9, "1": 0}}},
            "option endingOffsets: 9 is beyond the latest offset of TOPIC-0, 1",
        ),
        (
            {"startingOffsets": {"TOPIC": {"0": 1, "1": 0}}, "endingOffsets": {"TOPIC": {"0": 0, "1": 0}}},
            "the query would read TOPIC-0 from offset 1 to 0, which is before it",
        ),
        ({"startingTimestamp": "2199-01-01"}, "TOPIC-0 has no record since 2199-01-01T00:00:00"),
        ({"startingTimestamp": 2**63 - 1}, "TOPIC-0 has no record since 9223372036854775807 ms after"),
        ({"startingOffsetsByTimestamp": {"TOPIC": {"0": 1}}}, "option startingOffsetsByTimestamp must name"),
        ({"endingOffsetsByTimestamp": {"TOPIC": {"5": 1}}}, "option endingOffsetsByTimestamp must name"),
    ],
)
def test_what_does_not_fit_the_topic_is_reported(plain: Plain, options: dict[str, object], message: str) -> None:
    topic = plain.broker.topic(partitions=2)
    plain.produce(topic, [1])
    given = json.loads(json.dumps(options).replace("TOPIC", topic))
    with pytest.raises(OptionError) as failure:
        plain.rows(**({} if "assign" in given else {"subscribe": topic}) | given)
    assert message.replace("TOPIC", topic) in str(failure.value)


def test_an_end_beyond_the_log_reads_what_is_there_unless_loss_is_an_error(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, range(3))
    beyond = {"endingOffsets": {topic: {"0": 9}}, "failOnDataLoss": False}
    with pytest.warns(UserWarning, match=f"9 is beyond the latest offset of {topic}-0, 3; the query reads what is"):
        assert plain.texts(subscribe=topic, **beyond) == ["0", "1", "2"]


def test_rows_are_chosen_before_they_are_rows(plain: Plain) -> None:
    topic = plain.broker.topic()
    for number in range(6):
        key, tag = f"k{number % 2}".encode(), f"{number % 3}".encode()
        plain.produce(topic, [number], key=key, headers=[("tag", tag), ("all", b"x")], timestamp=1_000 + number)
    assert plain.texts(subscribe=topic, key="k1") == ["1", "3", "5"]
    assert plain.texts(subscribe=topic, header="tag=2") == ["2", "5"]
    assert plain.texts(subscribe=topic, header={"tag": "2", "all": "x"}, key="k1") == ["5"]
    assert plain.texts(subscribe=topic, header={"tag": "2", "all": "y"}) == []
    assert plain.texts(subscribe=topic, fromTime=1_002, toTime=1_004) == ["2", "3"]
    assert plain.texts(subscribe=topic, fromTime=DAY_MS) == []
    assert plain.tasks(subscribe=topic, fromTime=1_002)[0][0].start == 2  # what is before is not even fetched


def test_a_schema_is_a_projection(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, ["é"], key=b"\xff")
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("offset", LongType()),
            StructField("key", StringType()),
        ]
    )
    assert plain.rows(schema, subscribe=topic) == [{"value": "é", "offset": 0, "key": "�"}]


@pytest.mark.parametrize(
    ("field", "options", "message"),
    [
        (StructField("offsets", LongType()), {}, "no column offsets; did you mean offset?"),
        (StructField("offset", StringType()), {}, "column offset is bigint, and the schema has string"),
        (StructField("value", DoubleType()), {}, "column value is binary, and the schema has double"),
        (StructField("malformed", BinaryType()), {}, "a topic has no column malformed"),
        (EVERYTHING["headers"], {"includeHeaders": "false"}, "option includeHeaders is false"),
        (EVERYTHING["value"], {"valueFormat": "json"}, "column value is a struct"),
    ],
)
def test_a_schema_that_does_not_fit_is_reported(
    plain: Plain, field: StructField, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError) as failure:
        plain.reader(StructType([field]), subscribe="t", **options)
    assert message in str(failure.value)


def test_one_partition_is_read_by_several_tasks(plain: Plain) -> None:
    topic = plain.broker.topic()
    numbers = [f"{number:04}" for number in range(2_000)]
    producer = Producer({"bootstrap.servers": plain.broker.bootstrap, "batch.num.messages": 100})
    for number in numbers:
        producer.produce(topic, number + "x" * 500)
    assert producer.flush(TIMEOUT_S) == 0

    def found(**options: object) -> tuple[int, list[str]]:
        tasks = plain.tasks(subscribe=topic, **options)
        return len(tasks), [text[:4] for text in plain.texts(subscribe=topic, **options)]

    assert found() == (1, numbers)
    count, texts = found(splitBytes="100k")
    assert count in (10, 11, 12) and texts == numbers
    assert found(minPartitions=7) == (7, numbers)
    assert found(maxRecordsPerPartition=300) == (7, numbers)
    ranges = [task[0] for task in plain.tasks(subscribe=topic, maxRecordsPerPartition=300)]
    assert max(one.offsets for one in ranges) <= 300


def test_little_of_many_partitions_is_read_by_one_task(plain: Plain) -> None:
    topic = plain.broker.topic(partitions=5)
    for number in range(5):
        plain.produce(topic, [number], partition=number)
    assert len(plain.tasks(subscribe=topic)) == 1
    assert len(plain.tasks(subscribe=topic, minPartitions=5)) == 5
    assert sorted(plain.texts(subscribe=topic)) == ["0", "1", "2", "3", "4"]


def test_transactions(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, ["plain"])
    plain.transact(topic, ["aborted"], commit=False)
    plain.transact(topic, ["committed"], commit=True)
    with plain.transaction(topic, ["open"], commit=True):
        plain.produce(topic, ["after"])
        assert plain.texts(subscribe=topic) == ["plain", "committed"]
        everything = ["plain", "aborted", "committed", "open", "after"]
        assert plain.texts(subscribe=topic, isolation="read_uncommitted") == everything
        assert plain.texts(**{"subscribe": topic, "kafka.isolation.level": "READ_UNCOMMITTED"}) == everything
    assert plain.texts(subscribe=topic) == ["plain", "committed", "open", "after"]


def test_records_that_are_gone(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, range(10))
    plain.delete_records(topic, before=4)
    options: dict[str, Any] = {"subscribe": topic, "startingOffsets": {topic: {"0": 2}}}
    with pytest.raises(DataLoss, match=f"{topic}-0 begins at 4, offsets from 2 on are gone.*failOnDataLoss to false"):
        plain.rows(**options)
    with pytest.warns(UserWarning, match="the query continues with what is left"):
        assert plain.texts(failOnDataLoss="false", **options) == ["4", "5", "6", "7", "8", "9"]
    assert len(plain.texts(subscribe=topic)) == 6  # earliest is wherever the log begins


def test_nothing_is_nothing(plain: Plain) -> None:
    assert plain.rows(subscribe=plain.broker.topic(partitions=3)) == []
    assert plain.rows(subscribePattern="no such topic") == []

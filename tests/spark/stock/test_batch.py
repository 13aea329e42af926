"""`spark-sql-kafka-0-10` unchanged against Levada, in batches: begins and ends, splits, columns, writes."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from tests.spark.support.connector import Levada, Stock
from tests.spark.support.feeds import TIMEOUT_S
from tests.spark.support.lakes import send_at

MINUTE_MS = 60_000


def numbers(frame: DataFrame) -> list[int]:
    """The values of rows whose values are numbers."""
    return sorted(int(row.value) for row in frame.select("value").collect())


@pytest.fixture
def minutes(stock: Stock) -> str:
    """A topic of two partitions: record n of a partition is n minutes old by the clock of 1970, n < 50."""
    topic = stock.broker.topic(partitions=2)
    for partition in range(2):
        for minute in range(50):
            stock.produce(topic, [100 * partition + minute], partition, timestamp=(minute + 1) * MINUTE_MS)
    return topic


def test_a_record_comes_with_all_that_it_has(stock: Stock) -> None:
    topic = stock.broker.topic(partitions=2)
    producer = Producer({"bootstrap.servers": stock.broker.bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", b"2"), ("none", None)]
    producer.produce(topic, b"v", b"k", partition=1, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(topic, None, None, partition=1, timestamp=1_700_000_000_124)
    assert producer.flush(TIMEOUT_S) == 0
    frame = stock.read(subscribe=topic, includeHeaders=True)
    first, second = (row.asDict(recursive=True) for row in frame.orderBy("offset").collect())
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123  # it is told in the zone of the machine
    listed: list[dict[str, Any]] = [{"key": name, "value": value} for name, value in headers]
    common = {"topic": topic, "partition": 1, "timestampType": 0}
    assert first == {**common, "key": b"k", "value": b"v", "offset": 0, "headers": listed}
    assert second["key"] is None and second["value"] is None and second["headers"] is None


def test_more_tasks_than_partitions_read_each_record_once(stock: Stock) -> None:
    topic = stock.broker.topic(partitions=2)
    for partition in range(2):
        stock.produce(topic, range(partition, 3_000, 2), partition)
    frame = stock.read(subscribe=topic, minPartitions=6)
    assert frame.rdd.getNumPartitions() == 6
    assert numbers(frame) == list(range(3_000))


def test_a_batch_begins_and_ends_at_offsets(stock: Stock, minutes: str) -> None:
    starting = json.dumps({minutes: {"0": 45, "1": -2}})
    ending = json.dumps({minutes: {"0": -1, "1": 3}})
    frame = stock.read(subscribe=minutes, startingOffsets=starting, endingOffsets=ending)
    assert numbers(frame) == [45, 46, 47, 48, 49, 100, 101, 102]
    assigned = stock.read(assign=json.dumps({minutes: [1]}), startingOffsets=json.dumps({minutes: {"1": 9}}))
    assert numbers(assigned) == list(range(109, 150))


def test_a_batch_begins_and_ends_at_times(stock: Stock, minutes: str) -> None:
    between = stock.read(subscribe=minutes, startingTimestamp=11 * MINUTE_MS, endingTimestamp=13 * MINUTE_MS + 1)
    assert numbers(between) == [10, 11, 12, 110, 111, 112]
    starting = json.dumps({minutes: {"0": 48 * MINUTE_MS, "1": 50 * MINUTE_MS}})
    ending = json.dumps({minutes: {"0": 50 * MINUTE_MS, "1": 99 * MINUTE_MS}})
    each = stock.read(subscribe=minutes, startingOffsetsByTimestamp=starting, endingOffsetsByTimestamp=ending)
    assert numbers(each) == [47, 48, 149]


def test_a_time_after_the_last_record_is_an_error_or_the_end(stock: Stock, minutes: str) -> None:
    late = stock.read(subscribe=minutes, startingTimestamp=99 * MINUTE_MS)
    with pytest.raises(PySparkException, match=r"(?i)timestamp"):
        late.count()
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert stock.read(subscribe=minutes, startingTimestamp=99 * MINUTE_MS, **latest).count() == 0


def test_what_was_not_committed_is_invisible(stock: Stock) -> None:
    topic = stock.broker.topic()
    committed = {"kafka__isolation_level": "read_committed"}
    stock.produce(topic, range(5))
    stock.transact(topic, range(100, 120), commit=False)
    stock.transact(topic, range(5, 20), commit=True)
    with stock.transaction(topic, range(200, 210), commit=False):
        stock.produce(topic, range(20, 25))  # behind an open transaction: not yet stable
        assert numbers(stock.read(subscribe=topic, **committed)) == list(range(20))
        assert stock.read(subscribe=topic).count() == 55
    frame = stock.read(subscribe=topic, minPartitions=3, **committed)
    assert frame.rdd.getNumPartitions() == 3
    assert numbers(frame) == list(range(25))


def test_topics_by_pattern(stock: Stock) -> None:
    topics = [stock.broker.topic() for _ in range(3)]
    for number, topic in enumerate(topics):
        stock.produce(topic, [number])
    pattern = f"^{topics[0]}$|^{topics[2]}$"
    assert numbers(stock.read(subscribePattern=pattern)) == [0, 2]


def test_both_connectors_match_parts_of_names(stock: Stock, topics: Levada) -> None:
    left, right = stock.broker.topic("left-of-names"), stock.broker.topic("right-of-names")
    stock.produce(left, [1])
    stock.produce(right, [2])
    for pattern, found in (("of-names", [1, 2]), ("^right", [2]), ("of", [1, 2]), ("^of", [])):
        assert numbers(stock.read(subscribePattern=pattern)) == found
        assert numbers(topics.read(subscribePattern=pattern)) == found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_become_records(stock: Stock, codec: str) -> None:
    topic = stock.broker.topic(partitions=4)
    frame = stock.spark.range(2_000).selectExpr(
        "cast(id as string) key",
        "repeat(cast(id as string), 20) value",
        "cast(id % 4 as int) partition",
        f"'{topic}' topic",
        "array(struct('n' as key, cast(cast(id as string) as binary) as value)) headers",
    )
    stock.write(frame, includeHeaders=True, kafka__compression_type=codec)
    records = stock.broker.records(topic)
    assert sorted(int(record.key or b"") for record in records) == list(range(2_000))
    for record in records:
        text = (record.key or b"").decode()
        assert (record.value, record.partition) == ((text * 20).encode(), int(text) % 4)
        assert [tuple(header) for header in record.headers] == [("n", text.encode())]
    assert stock.read(subscribe=topic).count() == 2_000


def test_an_unknown_topic_is_an_error(stock: Stock) -> None:
    with pytest.raises(Exception, match="UnknownTopicOrPartition"):
        stock.read(subscribe="no-such-topic").count()


def test_a_timestamp_beyond_microseconds_fails_in_both(stock: Stock, topics: Levada) -> None:
    topic = stock.broker.topic(retention_ms=-1)
    send_at(stock.broker, topic, -(1 << 62))
    for connector, reason in ((stock, "long overflow"), (topics, "outside the years of Spark's timestamps")):
        with pytest.raises((PySparkException, Py4JJavaError), match=reason):
            connector.read(subscribe=topic).select("timestamp").collect()

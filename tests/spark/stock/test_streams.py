"""`spark-sql-kafka-0-10` unchanged against Levada, as a stream: topic to topic, live, in real time."""

import json
import time
from statistics import median

from confluent_kafka import Consumer, Producer
from tests.spark.support.connector import SOON, Stock, eventually
from tests.spark.support.feeds import TIMEOUT_S, texts


def test_topic_to_topic_in_several_batches_and_again_from_the_checkpoint(stock: Stock) -> None:
    source, target = stock.broker.topic(partitions=2), stock.broker.topic(partitions=3)
    rows = stock.stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    for number in range(2):
        for partition in range(2):
            stock.produce(source, range(1_000 * number + partition, 1_000 * (number + 1), 2), partition)
        query = stock.run(rows, target)
        assert len([batch for batch in query.recentProgress if batch.numInputRows]) >= 4
    assert stock.values(target) == texts(range(2_000))


def test_a_running_query_takes_what_comes(stock: Stock) -> None:
    source, target = stock.broker.topic(partitions=2), stock.broker.topic()
    rows = stock.stream(subscribe=source, startingOffsets="earliest", includeHeaders=True)
    query = stock.start(rows.select("value", "headers"), target, SOON, includeHeaders=True)
    for number in range(3):
        stock.produce(source, [number], number % 2, headers=[("n", b"%d" % number)])
        eventually(lambda number=number: len(stock.values(target)) == number + 1, query)  # type: ignore[misc]
    for record in stock.broker.records(target):
        assert [tuple(header) for header in record.headers] == [("n", record.value)]


def test_counts_by_key_are_written_as_they_change(stock: Stock) -> None:
    source, target = stock.broker.topic(), stock.broker.topic()
    counts = stock.stream(subscribe=source, startingOffsets="earliest").groupBy("value").count()
    rows = counts.selectExpr("value key", "cast(count as string) value")
    for _ in range(2):
        stock.produce(source, ["a", "b", "a"])
        stock.run(rows, target)
    last = {record.key: record.value for record in stock.broker.records(target)}
    assert last == {b"a": b"4", b"b": b"2"}


def test_a_stream_of_committed_records(stock: Stock) -> None:
    source, target = stock.broker.topic(), stock.broker.topic()
    committed = {"kafka__isolation_level": "read_committed", "maxOffsetsPerTrigger": 7}
    rows = stock.stream(subscribe=source, startingOffsets="earliest", **committed)
    stock.transact(source, range(100, 120), commit=False)
    stock.transact(source, range(10), commit=True)
    with stock.transaction(source, range(10, 20), commit=True):
        stock.run(rows, target)
        assert stock.values(target) == texts(range(10))
    stock.transact(source, range(100, 120), commit=False)
    stock.run(rows, target)
    assert stock.values(target) == texts(range(20))


def test_topics_that_come_later_belong_to_a_pattern(stock: Stock) -> None:
    first, target = stock.broker.topic(), stock.broker.topic()
    later = f"{first}-later"
    rows = stock.stream(subscribePattern=f"{first}(-later)?", startingOffsets="earliest")
    stock.produce(first, [1])
    query = stock.start(rows, target, SOON)
    eventually(lambda: stock.values(target) == ["1"], query)
    stock.produce(later, [2])
    eventually(lambda: stock.values(target) == ["1", "2"], query)
    query.stop()
    stock.delete(later)


def test_a_stream_begins_at_times(stock: Stock) -> None:
    source, target = stock.broker.topic(partitions=2), stock.broker.topic()
    for partition in range(2):
        for number in range(10):
            stock.produce(source, [10 * partition + number], partition, timestamp=1_000 * (number + 1))
    times = json.dumps({source: {"0": 9_000, "1": 10_000}})
    stock.run(stock.stream(subscribe=source, startingOffsetsByTimestamp=times), target)
    assert stock.values(target) == ["19", "8", "9"]


def test_real_time_mode_from_topic_to_topic(stock: Stock) -> None:
    """Rows pass within a running batch: one at a time, they are far more than the batches."""
    source, target = stock.broker.topic(), stock.broker.topic()
    rows = stock.stream(subscribe=source, startingOffsets="earliest").select("key", "value")
    query = stock.start(rows, target, {"realTime": "5 seconds"})
    consumer = Consumer(
        {"bootstrap.servers": stock.broker.bootstrap, "group.id": target, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([target])
    producer, taken = Producer({"bootstrap.servers": stock.broker.bootstrap, "linger.ms": 0}), []
    for number in range(150):
        sent = time.perf_counter()
        producer.produce(source, str(number).encode())
        message = consumer.poll(TIMEOUT_S)
        taken.append(time.perf_counter() - sent)
        assert message is not None and not message.error(), query.exception()
        assert message.value() == str(number).encode()
    consumer.close()
    assert producer.flush(TIMEOUT_S) == 0
    assert query.isActive and query.exception() is None
    assert len(query.recentProgress) < 50
    print(f"real-time mode: p50 {median(taken[20:]) * 1e3:.1f} ms from the producer to the consumer")

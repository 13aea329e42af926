"""The stock connector while topics change under it: growth, deletion, retention, both ways of failOnDataLoss."""

import pytest
from pyspark.errors import StreamingQueryException
from tests.spark.support.connector import SOON, Stock, eventually
from tests.spark.support.feeds import texts


def test_a_running_query_finds_new_partitions(stock: Stock) -> None:
    source, target = stock.broker.topic(partitions=1), stock.broker.topic()
    query = stock.start(stock.stream(subscribe=source, startingOffsets="earliest"), target, SOON)
    stock.produce(source, [0])
    eventually(lambda: stock.values(target) == texts([0]), query)
    stock.grow(source, 3)
    stock.produce(source, [1], partition=1)
    stock.produce(source, [2], partition=2)
    eventually(lambda: stock.values(target) == texts([0, 1, 2]), query)
    stock.produce(source, [3], partition=2)
    eventually(lambda: stock.values(target) == texts([0, 1, 2, 3]), query)


def test_a_query_goes_on_without_a_deleted_topic_if_configured(stock: Stock) -> None:
    left, deleted, target = (stock.broker.topic() for _ in range(3))
    pattern = f"{left}|{deleted}"
    rows = stock.stream(subscribePattern=pattern, startingOffsets="earliest", failOnDataLoss=False)
    stock.produce(left, [0])
    stock.produce(deleted, [1])
    query = stock.start(rows, target, SOON)
    eventually(lambda: stock.values(target) == texts([0, 1]), query)
    stock.delete(deleted)
    stock.produce(left, [2])
    eventually(lambda: stock.values(target) == texts([0, 1, 2]), query)


def test_a_deleted_topic_fails_a_query_that_may_lose_nothing(stock: Stock) -> None:
    left, deleted, target = (stock.broker.topic() for _ in range(3))
    rows = stock.stream(subscribePattern=f"{left}|{deleted}", startingOffsets="earliest")
    stock.produce(left, [0])
    stock.produce(deleted, [1])
    stock.run(rows, target)
    stock.delete(deleted)
    stock.produce(left, [2])
    with pytest.raises(StreamingQueryException, match=f"{deleted}-0"):
        stock.run(rows, target)
    allowed = stock.stream(subscribePattern=f"{left}|{deleted}", startingOffsets="earliest", failOnDataLoss=False)
    stock.run(allowed, target)
    assert stock.values(target) == texts([0, 1, 2])


def test_a_topic_made_anew_under_the_same_name_is_data_loss(stock: Stock) -> None:
    """Offsets in the checkpoint are beyond the end of the new topic."""
    source, target = "made-anew", stock.broker.topic()
    stock.produce(source, range(10))
    stock.run(stock.stream(subscribe=source, startingOffsets="earliest"), target)
    stock.delete(source)
    stock.produce(source, [10, 11])
    with pytest.raises(StreamingQueryException, match=r"(?i)offset"):
        stock.run(stock.stream(subscribe=source, startingOffsets="earliest"), target)
    stock.delete(source)


def test_retention_that_overtakes_a_query(stock: Stock) -> None:
    source, target = stock.broker.topic(), stock.broker.topic()
    strict = stock.stream(subscribe=source, startingOffsets="earliest")
    stock.produce(source, range(10))
    stock.run(strict, target)
    stock.produce(source, range(10, 30))
    stock.delete_records(source, 25)
    with pytest.raises(StreamingQueryException, match=r"(?i)data.*(lost|missing|aged out|out of range)"):
        stock.run(strict, target)
    stock.run(stock.stream(subscribe=source, startingOffsets="earliest", failOnDataLoss=False), target)
    assert stock.values(target) == texts([*range(10), *range(25, 30)])


def test_records_deleted_before_a_batch_read(stock: Stock) -> None:
    source = stock.broker.topic()
    stock.produce(source, range(20))
    stock.delete_records(source, 15)
    rows = stock.read(subscribe=source).select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(15, 20))

"""`spark.read.format("levada")`: a topic as a table of Spark, in Python and in SQL."""

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from tests.spark.support.connector import Levada, Stock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = [{"user": "ann", "amount": 2.5}, {"user": "bob", "amount": 4}, {"user": "ann", "amount": 1}]
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": ["null", "int"]}],
    }
)


def orders(topics: Levada) -> str:
    topic = topics.broker.topic()
    topics.produce(topic, [json.dumps(order) for order in ORDERS], timestamp=1_000)
    return topic


def rows(frame: "DataFrame") -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_schema_and_rows_are_those_of_the_stock_connector(topics: Levada, stock: Stock) -> None:
    topic = topics.broker.topic(partitions=3)
    for partition in range(3):
        topics.produce(topic, range(50), partition, key=b"k", timestamp=1_700_000_000_123)
        topics.produce(topic, ["h"], partition, headers=[("a", b"1"), ("a", b"2")])
        topics.transact(topic, ["never"], commit=False)
    for options in ({"includeHeaders": "true"}, {"includeHeaders": "false", "minPartitions": 7}):
        ours = topics.read(subscribe=topic, **options)
        theirs = stock.read(subscribe=topic, kafka__isolation_level="read_committed", **options)
        assert ours.schema == theirs.schema
        if "headers" in theirs.columns:  # ours are an empty array where there are none
            theirs = theirs.selectExpr("* except (headers)", "coalesce(headers, array()) headers")
        order = ["partition", "offset"]
        assert ours.orderBy(order).collect() == theirs.orderBy(order).collect()


def test_typed_columns_in_a_query(topics: Levada) -> None:
    topic = orders(topics)
    topics.produce(topic, ["oops"])
    frame = topics.read(subscribe=topic, valueFormat="json", valueSchema="user string, amount double")
    assert rows(frame.where("value is not null").groupBy("value.user").sum("value.amount")) == [
        ("ann", 3.5),
        ("bob", 4.0),
    ]
    assert [row.malformed for row in frame.where("malformed is not null").collect()] == [bytearray(b"oops")]


def test_avro_by_its_schema(topics: Levada) -> None:
    topic = topics.broker.topic()
    topics.produce(topic, ["\x06ann\x02\x04", "\x06bob\0"])
    frame = topics.read(subscribe=topic, valueFormat="avro", valueSchema=AVRO)
    assert rows(frame.select("value.user", "value.n").fillna(0)) == [("ann", 2), ("bob", 0)]


def test_a_schema_is_what_is_read(topics: Levada) -> None:
    topic = orders(topics)
    reader = topics.spark.read.format("levada").option("kafka.bootstrap.servers", topics.broker.bootstrap)
    frame = reader.schema("offset long, value string").option("subscribe", topic).load()
    assert rows(frame)[0] == (0, json.dumps(ORDERS[0]))
    typed = reader.schema("value struct<user string>").option("valueFormat", "json")
    assert rows(typed.option("subscribe", topic).load().select("value.user")) == [
        ("ann",),
        ("ann",),
        ("bob",),
    ]
    assert reader.schema("timestamp timestamp").load(subscribe=topic).count() == 3


def test_more_tasks_than_partitions(topics: Levada) -> None:
    topic = topics.broker.topic()
    for _ in range(20):
        topics.produce(topic, ["x" * 50_000])
    frame = topics.read(subscribe=topic, splitBytes="250k")
    assert frame.rdd.getNumPartitions() in (4, 5)
    assert frame.count() == 20
    assert topics.read(subscribe=topic, maxRecordsPerPartition=2).rdd.getNumPartitions() == 10


def test_a_topic_made_again_is_read_by_workers_that_knew_the_old_one(topics: Levada) -> None:
    topic = topics.broker.topic(partitions=2)
    for made, values in enumerate((range(40), range(100, 180))):
        if made:
            topics.delete(topic)
            topics.create(topic, 2)
        topics.produce(topic, values)
        topics.produce(topic, values, partition=1)
        for strict in ("false", "false", "true"):  # enough for every worker to have had a task
            frame = topics.read(subscribe=topic, minPartitions=8, failOnDataLoss=strict)
            found = sorted(int(row.value) for row in frame.select("value").collect())
            assert found == sorted([*values, *values])


def test_a_view_in_sql(topics: Levada) -> None:
    topic, spark = orders(topics), topics.spark
    create = f"""
        CREATE OR REPLACE TEMPORARY VIEW order_view USING levada OPTIONS (
            kafka.bootstrap.servers '{topics.broker.bootstrap}', subscribe '{topic}',
            valueFormat 'json', valueSchema 'user string, amount double')"""
    spark.sql(create)
    found = spark.sql("SELECT value.user, sum(value.amount) FROM order_view GROUP BY 1")
    assert rows(found) == [("ann", 3.5), ("bob", 4.0)]
    topics.produce(topic, ['{"user": "cat", "amount": 1}'])
    assert spark.table("order_view").count() == 3  # where it ends is settled when it is first read
    spark.sql(create)
    assert spark.table("order_view").count() == 4
    spark.sql("DROP VIEW order_view")


def test_a_table_in_sql_takes_its_options_in_the_query(topics: Levada) -> None:
    """Spark does not pass the options of a table, and the error says so."""
    topic, spark = orders(topics), topics.spark
    servers = f"`kafka.bootstrap.servers` = '{topics.broker.bootstrap}'"
    spark.sql(f"CREATE TABLE order_table USING levada OPTIONS ({servers}, subscribe = '{topic}')")
    try:
        assert spark.sql(f"SELECT * FROM order_table WITH ({servers}, subscribe = '{topic}')").count() == 3
        with pytest.raises(AnalysisException, match=r"there are no options: .*CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM order_table").collect()
    finally:
        spark.sql("DROP TABLE order_table")


def test_two_queries_over_one_frame_do_not_disturb_each_other(topics: Levada) -> None:
    """A filter of one query is not pushed into the next: nothing is pushed, and all rows are there."""
    frame = topics.read(subscribe=orders(topics))
    assert frame.where("offset = 1").count() == 1
    assert frame.where("offset > 0").count() == 2
    assert frame.count() == 3

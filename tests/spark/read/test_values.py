"""Values as typed columns: malformed ones go to a column or a topic, and do not stop a query."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from tests.spark.support.plain import Plain

from levada.errors import KafkaError
from levada.spark import blocking
from levada.spark.errors import OptionError
from levada.spark.formats.rows import skip_bytes

VALUE = StructType([StructField("user", StringType()), StructField("n", IntegerType())])
OFFSET = StructField("offset", LongType())
TYPED = StructType([StructField("value", VALUE), OFFSET, StructField("malformed", BinaryType())])
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}],
}
AVRO_VALUE = b"\x06Ann\x54"  # {"user": "Ann", "n": 42}


def produce(plain: Plain, topic: str, *values: bytes | None, **more: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": plain.broker.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0, **more)
    assert producer.flush(30) == 0


def test_json_becomes_a_struct_and_the_rest_a_column(plain: Plain) -> None:
    topic = plain.broker.topic()
    produce(plain, topic, b'{"user": "Ann", "n": 42}', b"oops", None, b'{"user": 5}', b'{"n": 7, "more": []}')
    assert plain.rows(TYPED, subscribe=topic, valueFormat="json") == [
        {"value": {"user": "Ann", "n": 42}, "offset": 0, "malformed": None},
        {"value": None, "offset": 1, "malformed": b"oops"},
        {"value": None, "offset": 2, "malformed": None},
        {"value": None, "offset": 3, "malformed": b'{"user": 5}'},
        {"value": {"user": None, "n": 7}, "offset": 4, "malformed": None},
    ]


def test_avro_becomes_a_struct_also_after_a_registrys_id(plain: Plain) -> None:
    topic = plain.broker.topic()
    produce(plain, topic, b"\0\0\0\0\7" + AVRO_VALUE, b"\0\0\0\0\7oops", b"\0", None)
    found = plain.rows(TYPED, subscribe=topic, valueFormat="avro", valueSchema=AVRO, valueSkipBytes="5")
    assert found == [
        {"value": {"user": "Ann", "n": 42}, "offset": 0, "malformed": None},
        {"value": None, "offset": 1, "malformed": b"\0\0\0\0\7oops"},
        {"value": None, "offset": 2, "malformed": b"\0"},
        {"value": None, "offset": 3, "malformed": None},
    ]


def test_what_is_malformed_goes_to_a_topic_with_its_origin(plain: Plain) -> None:
    topic, dead = plain.broker.topic(), plain.broker.topic()
    produce(plain, topic, b'{"n": 1}')
    produce(plain, topic, b"oops", key=b"k", headers=[("h", b"1")], timestamp=5_000)
    produce(plain, topic, b'{"n": 2}')
    schema = StructType([StructField("value", VALUE), OFFSET])
    found = plain.rows(schema, subscribe=topic, valueFormat="json", deadLetterTopic=dead)
    assert [(row["offset"], row["value"]["n"]) for row in found] == [(0, 1), (2, 2)]
    (letter,) = plain.broker.records(dead)
    assert (letter.key, letter.value, letter.timestamp) == (b"k", b"oops", 5_000)
    assert list(letter.headers) == [
        ("h", b"1"),
        ("levada.source.topic", topic.encode()),
        ("levada.source.partition", b"0"),
        ("levada.source.offset", b"1"),
    ]


def test_a_dead_letter_topic_that_is_not_there_is_reported(plain: Plain) -> None:
    topic = plain.broker.topic()
    produce(plain, topic, b"oops")
    schema = StructType([StructField("value", VALUE)])
    with pytest.raises(KafkaError, match="option deadLetterTopic: nothing can be written to no such topic"):
        plain.rows(schema, subscribe=topic, valueFormat="json", deadLetterTopic="no such topic")
    with pytest.raises(KafkaError, match="to misspelt: it does not exist; create it with: levada topic create"):
        plain.rows(schema, subscribe=topic, valueFormat="json", deadLetterTopic="misspelt")
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        blocking.run(blocking.client(plain.broker.bootstrap).topic("misspelt", refresh=True))


def test_values_that_nobody_asks_for_are_not_read(plain: Plain) -> None:
    topic = plain.broker.topic()
    produce(plain, topic, b"oops")
    assert plain.rows(StructType([OFFSET]), subscribe=topic, valueFormat="json") == [{"offset": 0}]


def test_the_columns_that_a_user_sees(plain: Plain) -> None:
    def columns(**options: Any) -> str:
        found = plain.source({"subscribe": "t"} | options).schema()
        return found if isinstance(found, str) else found.simpleString()

    headers = "`headers` array<struct<key:string,value:binary>>"
    stock = (
        "`key` binary, `value` binary, `topic` string, `partition` int, `offset` bigint, "
        "`timestamp` timestamp, `timestampType` int"
    )
    assert columns() == f"{stock}, {headers}"
    assert columns(includeHeaders="false") == stock
    typed = stock.replace("`value` binary", "`value` struct<a int>")
    assert columns(valueFormat="json", valueSchema="a int") == f"{typed}, {headers}, `malformed` binary"
    assert columns(valueFormat="json", valueSchema="a int", deadLetterTopic="d") == f"{typed}, {headers}"
    avro = columns(valueFormat="avro", valueSchema=AVRO)
    assert "value:struct<user:string,n:int>" in avro and avro.endswith("malformed:binary>")
    with pytest.raises(OptionError, match="option valueFormat json needs valueSchema"):
        columns(valueFormat="json")


@given(st.lists(st.none() | st.binary(max_size=9)), st.integers(0, 7), st.integers(0, 3))
def test_bytes_before_a_value_are_left_out(values: list[bytes | None], count: int, sliced: int) -> None:
    found = skip_bytes(pa.array(values, pa.binary()).slice(sliced), count)
    found.validate(full=True)
    assert found.to_pylist() == [None if value is None else value[count:] for value in values[sliced:]]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("oops", "option valueSchema: an Avro schema is JSON"),
        (json.dumps(["int", "string"]), "option valueSchema: an Avro union can only have null and one other type"),
    ],
)
def test_an_avro_schema_that_is_none_is_reported(plain: Plain, schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plain.source({"subscribe": "t", "valueFormat": "avro", "valueSchema": schema}).schema()


def test_a_type_that_json_cannot_have_is_reported(plain: Plain) -> None:
    from pyspark.sql.types import DayTimeIntervalType, MapType

    for kind in (DayTimeIntervalType(), MapType(IntegerType(), DoubleType())):
        schema = StructType([StructField("value", StructType([StructField("x", kind)]))])
        with pytest.raises(OptionError, match="option valueSchema: JSON has no values of type"):
            plain.reader(schema, subscribe="t", valueFormat="json")


def test_avro_must_be_asked_for_as_it_is(plain: Plain) -> None:
    schema = StructType([StructField("value", VALUE.add("more", DoubleType()))])
    with pytest.raises(OptionError, match="column value is struct<user:string,n:int>, and the schema has"):
        plain.reader(schema, subscribe="t", valueFormat="avro", valueSchema=AVRO)

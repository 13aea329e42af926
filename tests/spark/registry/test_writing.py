"""Rows become records that Confluent's deserializers read, with schemas registered under the topics' subjects."""

import json
import math
import pickle
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.serialization import MessageField
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType
from tests.spark.support.confluent import Confluent
from tests.spark.support.connector import Levada
from tests.spark.support.feeds import TIMEOUT_S
from tests.spark.support.registry_proxy import registry_proxy
from tests.spark.support.sink_tasks import structs, task

from levada.spark.errors import OptionError, ProtocError, SchemaRegistryError
from levada.spark.formats.encoder import InvalidRow
from levada.spark.formats.protobuf import ProtobufSchema
from levada.spark.registry import client
from levada.spark.registry.options import ColumnFormat
from levada.spark.registry.writing import ColumnEncoder
from levada.spark.source import LevadaDataSource
from levada.spark.write.sink import BATCH_ID, QUERY_ID
from levada.testing import EmbeddedBroker

KIND = (
    "user string, n int, big bigint, x double, ok boolean, at timestamp, tags array<string>, counts map<string, int>, "
    "inner struct<a: int, b: string>"
)
AT = datetime(2026, 11, 18, 12, 0, 0, 5000, tzinfo=UTC)
ROW = ("Ann", 1, 2**40, 0.5, True, AT, ["a", "b"], {"k": 3}, (7, None))


@pytest.fixture
def url(registry: str) -> dict[str, str]:
    return {"schema.registry.url": registry}


def orders(topics: Levada, kind: str = KIND, *rows: Any) -> DataFrame:
    return topics.spark.createDataFrame([(row,) for row in rows or (ROW,)], f"value struct<{kind}>").coalesce(1)


def values(topics: Levada, topic: str) -> list[bytes | None]:
    return values_of(topics.broker, topic)


def values_of(broker: EmbeddedBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def write(topics: Levada, frame: DataFrame, topic: str, **options: Any) -> None:
    servers = {"kafka.bootstrap.servers": topics.broker.bootstrap}
    given = servers | ({"topic": topic} if topic else {})
    frame.coalesce(1).write.format("levada").mode("append").options(**given, **options).save()


def read(topics: Levada, topic: str, **options: Any) -> DataFrame:
    servers = {"kafka.bootstrap.servers": topics.broker.bootstrap}
    return topics.spark.read.format("levada").options(**servers, subscribe=topic, **options).load()


def failure(topics: Levada, frame: DataFrame, topic: str, **options: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        write(topics, frame, topic, **options)
    return str(caught.value)


def test_avro_is_registered_and_read_by_confluent_and_by_us(
    topics: Levada, confluent: Confluent, url: dict[str, str]
) -> None:
    topic = topics.broker.topic()
    more = f"{KIND}, day date, price decimal(8, 2), raw binary, note string"
    row = (*ROW, date(2026, 11, 18), Decimal("-12.34"), b"\xff", None)
    frame = orders(topics, more, row)
    write(topics, frame, topic, valueFormat="avro", **url)
    (value,) = values(topics, topic)
    found = confluent.read_avro(topic, value)
    assert (found["user"], found["at"], found["price"], found["inner"], found["note"]) == (
        "Ann",
        AT,
        Decimal("-12.34"),
        {"a": 7, "b": None},
        None,
    )
    assert confluent.client.get_versions(f"{topic}-value") == [1]
    again = read(topics, topic, valueFormat="avro", **url)
    assert again.select("value").collect() == frame.collect()
    assert again.schema["value"].dataType == frame.schema["value"].dataType


def test_json_is_valid_for_its_registered_schema(topics: Levada, confluent: Confluent, url: dict[str, str]) -> None:
    topic = topics.broker.topic()
    row = (*ROW, date(2026, 11, 18), Decimal("12345678901234567.89"))
    write(topics, orders(topics, f"{KIND}, day date, price decimal(20, 2)", row), topic, valueFormat="json", **url)
    (value,) = values(topics, topic)
    found = confluent.read_json(topic, value)  # validates it
    assert (found["user"], found["n"], found["counts"], found["inner"]) == ("Ann", 1, {"k": 3}, {"a": 7, "b": None})
    assert value is not None and b'"price":12345678901234567.89' in value and b'"2026-11-18T12:00:00.005' in value
    found = read(topics, topic, valueFormat="json", **url).selectExpr("value.*").collect()[0]
    assert (found["at"].astimezone(UTC), found["day"], found["tags"]) == (AT, date(2026, 11, 18), ["a", "b"])


def test_protobuf_is_read_by_confluent_and_keeps_its_field_numbers(
    topics: Levada, confluent: Confluent, url: dict[str, str]
) -> None:
    topic = topics.broker.topic()
    frame = orders(topics)
    write(topics, frame, topic, valueFormat="protobuf", **url)
    first = confluent.client.get_latest_version(f"{topic}-value").schema.schema_str
    message = ProtobufSchema(str(first)).message()
    found = confluent.read_protobuf(topic, values(topics, topic)[0], message)
    assert (found.user, found.big, found.tags[:], dict(found.counts), found.inner.a) == (
        "Ann",
        2**40,
        ["a", "b"],
        {"k": 3},
        7,
    )
    assert not found.inner.HasField("b") and found.at.ToDatetime(tzinfo=UTC) == AT
    found = read(topics, topic, valueFormat="protobuf", **url)
    assert found.select("value").collect() == frame.collect()
    # A new column before the others, and one less.
    write(topics, orders(topics, "new int, n int, user string", (5, 2, "Bob")), topic, valueFormat="protobuf", **url)
    second = ProtobufSchema(str(confluent.client.get_version(f"{topic}-value", 2).schema.schema_str)).message()
    numbers = {field.name: field.number for field in second.fields}
    assert numbers == {"user": 1, "n": 2, "new": 10}
    found = read(topics, topic, valueFormat="protobuf", **url).selectExpr("value.*")
    assert sorted(found.select("user", "n", "new").collect()) == [("Ann", 1, None), ("Bob", 2, 5)]


def test_versions_of_avro_mix_in_a_topic(topics: Levada, confluent: Confluent, url: dict[str, str]) -> None:
    topic = topics.broker.topic()
    write(topics, orders(topics, "user string", ("Ann",)), topic, valueFormat="avro", **url)
    write(topics, orders(topics, "user string, n int", ("Bob", 2)), topic, valueFormat="avro", **url)
    write(topics, orders(topics, "user string", ("Cid",)), topic, valueFormat="avro", **url)
    assert confluent.client.get_versions(f"{topic}-value") == [1, 2]
    found = read(topics, topic, valueFormat="avro", **url).selectExpr("value.user", "value.n")
    assert found.collect() == [("Ann", None), ("Bob", 2), ("Cid", None)]


def test_keys_have_a_subject_of_their_own_and_a_stream_writes_both(
    topics: Levada, confluent: Confluent, url: dict[str, str], tmp_path: Path
) -> None:
    source, topic = topics.broker.topic(), topics.broker.topic(partitions=2)
    topics.produce(source, range(20))
    rows = topics.stream(subscribe=source, startingOffsets="earliest").selectExpr(
        "named_struct('id', int(string(value)) % 4) AS key", "named_struct('n', int(string(value))) AS value"
    )
    given = {"kafka.bootstrap.servers": topics.broker.bootstrap, "topic": topic, "checkpointLocation": str(tmp_path)}
    given |= {"valueFormat": "avro", "keyFormat": "avro"} | url
    query = rows.writeStream.format("levada").options(**given).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    records = topics.broker.records(topic)
    pairs = [
        (confluent.read_avro(topic, record.key, MessageField.KEY), confluent.read_avro(topic, record.value))
        for record in records
    ]
    assert sorted(value["n"] for _, value in pairs) == list(range(20))
    assert all(key["id"] == value["n"] % 4 for key, value in pairs)
    assert confluent.client.get_versions(f"{topic}-key") == confluent.client.get_versions(f"{topic}-value") == [1]
    partitions: dict[int, set[int]] = {key["id"]: set() for key, _ in pairs}
    for (key, _), record in zip(pairs, records, strict=True):
        partitions[key["id"]].add(record.partition)
    assert all(len(found) == 1 for found in partitions.values())


@pytest.mark.parametrize("committed", [True, False])
def test_a_stream_is_committed_and_aborted_without_its_registry(
    broker: EmbeddedBroker, registry: str, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes a new writer for each commit and abort, in a new process: nothing is cached there."""
    topic, schema = broker.topic(), structs(value=structs(n=IntegerType()))
    batch = pa.RecordBatch.from_pylist([{"value": {"n": 1}}], pa.schema({"value": pa.struct({"n": pa.int32()})}))
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "valueFormat": "avro", "max.retries": "0"}
    with registry_proxy(registry) as proxy:
        source = LevadaDataSource(given | {"schema.registry.url": proxy.url})
        planned = source.streamWriter(schema, False)
        assert not proxy.requests
        planned = pickle.loads(pickle.dumps(planned))
        assert proxy.requests
        with task(**{QUERY_ID: topic, BATCH_ID: "0"}):
            message = planned.write(iter([batch]))
    monkeypatch.setattr(client, "_registries", {})
    writer: Any = source.streamWriter(schema, False)
    writer.commit([message], 0) if committed else writer.abort([message], 0)
    assert len(values_of(broker, topic)) == committed


def test_a_stream_that_cannot_register_fails_in_its_tasks(broker: EmbeddedBroker) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": broker.topic(), "valueFormat": "avro"}
    source = LevadaDataSource(options | {"schema.registry.url": "http://127.0.0.1:1", "max.retries": "0"})
    writer = pickle.loads(pickle.dumps(source.streamWriter(structs(value=structs(n=IntegerType())), False)))
    with pytest.raises(SchemaRegistryError, match=r"127\.0\.0\.1:1"):
        writer.write(iter(()))


def test_a_stream_whose_driver_cannot_run_protoc_fails_in_its_tasks(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": broker.topic(), "valueFormat": "protobuf"}
    source = LevadaDataSource(options | {"valueSchema": "message StreamWriter { int32 n = 1; }"})
    writer = pickle.loads(pickle.dumps(source.streamWriter(structs(value=structs(n=IntegerType())), False)))
    with pytest.raises(ProtocError, match="protoc cannot be run"):
        writer.write(iter(()))


def test_a_derived_schema_that_is_wrong_is_not_registered(broker: EmbeddedBroker) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": broker.topic(), "valueFormat": "protobuf"}
    with registry_proxy("") as proxy:
        source = LevadaDataSource(options | {"schema.registry.url": proxy.url})
        proxy.failures = [(404, b'{"error_code": 40401, "message": "Subject not found"}')]
        with pytest.raises(OptionError, match=r"column value cannot be written as protobuf: protoc cannot compile"):
            source.writer(structs(value=structs(**{"a-b": IntegerType()})), False)
        assert [request.split()[0] for request in proxy.requests] == ["GET"]


def test_a_column_topic_registers_for_each_topic(topics: Levada, confluent: Confluent, url: dict[str, str]) -> None:
    names = [topics.broker.topic(), topics.broker.topic()]
    rows = topics.spark.createDataFrame(
        [(name, (number,)) for number, name in enumerate(names)], "topic string, value struct<n: int>"
    )
    write(topics, rows, "", valueFormat="avro", **url)
    assert [confluent.read_avro(name, values(topics, name)[0]) for name in names] == [{"n": 0}, {"n": 1}]


def test_what_is_not_compatible_is_refused_before_anything_is_written(
    topics: Levada, confluent: Confluent, url: dict[str, str]
) -> None:
    topic = topics.broker.topic()
    write(topics, orders(topics, "n int", (1,)), topic, valueFormat="avro", **url)
    confluent.client.set_compatibility(f"{topic}-value", "BACKWARD")
    message = failure(topics, orders(topics, "n string", ("x",)), topic, valueFormat="avro", **url)
    assert f"the schema of column value cannot be registered under {topic}-value" in message
    assert "Incompatible" in message and url["schema.registry.url"] in message
    assert len(values(topics, topic)) == 1 and confluent.client.get_versions(f"{topic}-value") == [1]


def test_without_registration_the_schema_must_be_there(
    topics: Levada, confluent: Confluent, url: dict[str, str]
) -> None:
    topic = topics.broker.topic()
    given = {"valueFormat": "avro", "auto.register.schemas": "false"} | url
    message = failure(topics, orders(topics, "n int", (1,)), topic, **given)
    assert f"is not registered under {topic}-value, and auto.register.schemas is false" in message
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "n", "type": "long"}, {"name": "kind", "type": "string", "default": "new"}],
    }
    number = confluent.client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
    latest = given | {"use.latest.version": "true"}
    write(topics, orders(topics, "n int", (1,)), topic, **latest)
    write(
        topics, orders(topics, "n int, kind string", (2, "old")), topic, valueFormat="avro", valueSchemaId=number, **url
    )
    found = [confluent.read_avro(topic, value) for value in values(topics, topic)]
    assert found == [{"n": 1, "kind": "new"}, {"n": 2, "kind": "old"}]
    message = failure(topics, orders(topics, "n int, lost int", (1, 2)), topic, **latest)
    assert "column value has lost, which the schema does not have" in message
    assert "INVALID_RECORD" in failure(topics, orders(topics, "kind string", ("x",)), topic, **latest)
    assert len(values(topics, topic)) == 2 and confluent.client.get_versions(f"{topic}-value") == [1]


def test_a_given_schema_is_registered_as_it_is(topics: Levada, confluent: Confluent, url: dict[str, str]) -> None:
    topic = topics.broker.topic()
    text = 'syntax = "proto3"; package shop; message Other { int32 x = 1; } message Order { int64 n = 4; }'
    given = {"valueFormat": "protobuf", "valueSchema": text, "valueMessage": "Order"} | url
    write(topics, orders(topics, "n bigint", (2**40,)), topic, **given)
    (value,) = values(topics, topic)
    assert value is not None and value[5:7] == b"\x02\x02"  # one index, which is 1
    assert confluent.read_protobuf(topic, value, ProtobufSchema(text).message("Order")).n == 2**40
    found = read(topics, topic, valueFormat="protobuf", valueMessage="Order", **url)
    assert found.selectExpr("value.n").collect() == [(2**40,)]


def test_without_a_registry_values_have_no_id(topics: Levada) -> None:
    topic = topics.broker.topic()
    write(topics, orders(topics, "user string", ("Ann",)), topic, valueFormat="json")
    assert values(topics, topic) == [b'{"user":"Ann"}']


@pytest.mark.parametrize(
    ("kind", "form", "message"),
    [
        ("raw binary", "json", "column value cannot be written as json: JSON has no type for binary"),
        ("day date", "protobuf", "Protocol Buffers have no type for day date; cast it to string"),
        ("m map<int, int>", "avro", "Avro has no type for map<int,int>"),
    ],
)
def test_types_that_a_format_lacks(topics: Levada, url: dict[str, str], kind: str, form: str, message: str) -> None:
    topic = topics.broker.topic()
    rows = topics.spark.createDataFrame([], f"value struct<{kind}>")
    assert message in failure(topics, rows, topic, valueFormat=form, **url)


def test_columns_and_options_that_do_not_fit(topics: Levada, url: dict[str, str]) -> None:
    topic = topics.broker.topic()
    text = topics.spark.createDataFrame([("x",)], "value string")
    assert "it must be a struct for valueFormat json" in failure(topics, text, topic, valueFormat="json", **url)
    assert "option keyFormat needs a column key" in failure(topics, text, topic, keyFormat="avro", **url)
    assert "use.latest.version needs schema.registry.url" in failure(
        topics, text, topic, valueFormat="avro", **{"use.latest.version": "true"}
    )
    assert "must be a JSON Schema" in failure(topics, text, topic, valueFormat="json", valueSchema="a int", **url)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_without_a_number_for_it_refuses_nan_and_infinity(number: float) -> None:
    """As null they would be another value, also where the schema requires a number."""
    encoder = ColumnEncoder(ColumnFormat("value", "json"), registers=False)
    inner = pa.struct([("d", pa.float64())])
    kind = pa.struct([("f", pa.float32()), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), pa.float64()))])
    good = {"f": 1.5, "l": [{"d": 2.5}, None], "m": {"a": 0.5}}
    for bad in (good | {"f": number}, good | {"l": [{"d": number}]}, good | {"m": {"a": number}}):
        with pytest.raises(
            InvalidRow,
            match=r"INVALID_RECORD: column value of row 1 cannot be encoded as json: .*JSON has no -?(nan|inf)",
        ):
            encoder.encode("t", pa.array([good, bad], kind))
    hidden = pa.StructArray.from_arrays([pa.array([number, 1.0])], ["d"], mask=pa.array([True, False]))
    assert encoder.encode("u", hidden).to_pylist() == [None, b'{"d":1.0}']
    assert [json.loads(value) for value in encoder.encode("t", pa.array([good], kind)).to_pylist()] == [good]

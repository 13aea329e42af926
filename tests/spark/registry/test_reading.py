"""Records of Confluent's serializers become typed columns, each decoded with the schema that its id names."""

import json
import pickle
import sys
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from tests.spark.support.confluent import Confluent
from tests.spark.support.connector import Levada
from tests.spark.support.plain import Plain, Row, rows_of

from levada.spark.errors import OptionError, ProtocError, SchemaRegistryError
from levada.spark.formats.protobuf import ProtobufSchema
from levada.spark.registry.wire_format import prefix

pytestmark = pytest.mark.filterwarnings("ignore:values with the schema id")

V1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}],
}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "customer", "type": "string", "aliases": ["user"]},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
JSON_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"user": {"type": "string"}, "n": {"type": "integer"}, "at": {"type": "string", "format": "date"}},
}
PROTO_V1 = """
syntax = "proto3"; package shop;
message Customer { string name = 1; }
message Order { string user = 1; int32 n = 2; repeated string tags = 3; Customer customer = 4; }
"""
PROTO_V2 = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
message Customer { string name = 1; }
message Order {
  int64 n = 2; string who = 1; optional int32 more = 5; Customer customer = 4; map<string, int32> counts = 6;
  google.protobuf.Timestamp at = 7; enum Kind { SMALL = 0; LARGE = 1; } Kind kind = 8; bytes raw = 9;
}
"""


class Registered:
    """Reads with the registry, and the schema that a query without one would get."""

    def __init__(self, plain: Plain, url: str) -> None:
        self.plain, self.url = plain, url

    def schema(self, **options: Any) -> StructType:
        found = self.plain.source({"schema.registry.url": self.url} | options).schema()
        assert isinstance(found, StructType)
        return found

    def rows(self, *columns: str, **options: Any) -> list[Row]:
        schema = self.schema(**options)
        wanted = StructType([schema[name] for name in columns])
        return self.plain.rows(wanted, **{"schema.registry.url": self.url}, **options)


@pytest.fixture
def reads(plain: Plain, registry: str) -> Registered:
    return Registered(plain, registry)


def test_avro_of_two_versions_is_read_with_the_latest(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    old = confluent.avro(topic, V1, {"user": "Ann", "n": 1})
    new = confluent.avro(topic, V2, {"customer": "Bob", "n": 2**40, "note": "x"})
    confluent.produce(topic, *old, *new, None, *old)
    assert reads.schema(subscribe=topic, valueFormat="avro")["value"].dataType.simpleString() == (
        "struct<n:bigint,customer:string,note:string>"
    )
    ann = {"n": 1, "customer": "Ann", "note": None}
    assert [row["value"] for row in reads.rows("value", subscribe=topic, valueFormat="avro")] == [
        ann,
        {"n": 2**40, "customer": "Bob", "note": "x"},
        None,
        ann,
    ]


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_a_query_chooses_its_readers_schema_once(confluent: Confluent, reads: Registered, kind: str) -> None:
    """Another version is registered after Spark has asked for the columns, and before it asks for the reader."""
    topic = confluent.broker.topic()
    confluent.produce(topic, *confluent.avro(topic, V1, {"user": "Ann", "n": 1}))
    given = {"schema.registry.url": reads.url, "subscribe": topic, "valueFormat": "avro", "startingOffsets": "earliest"}
    source = reads.plain.source(given)
    schema = source.schema()
    assert isinstance(schema, StructType)
    confluent.avro(topic, V2, {"customer": "Bob", "n": 2, "note": "x"})
    reader = getattr(pickle.loads(pickle.dumps(source)), kind)(schema)
    parts = reader.partitions() if kind == "reader" else reader.partitions({topic: {"0": 0}}, {topic: {"0": 1}})
    assert [row["value"] for row in rows_of(reader, parts)] == [{"user": "Ann", "n": 1}]


def test_the_readers_schema_can_be_a_version_an_id_or_a_text(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    (old,) = confluent.avro(topic, V1, {"user": "Ann", "n": 1})
    (new,) = confluent.avro(topic, V2, {"customer": "Bob", "n": 2, "note": "x"})
    confluent.produce(topic, old)
    first = {"user": "Ann", "n": 1}
    own = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "double"}]}
    v2_id = int.from_bytes(new[1:5], "big")
    for given, wanted in (
        ({"valueSchemaVersion": "1"}, first),
        ({"valueSchemaId": str(int.from_bytes(old[1:5], "big"))}, first),
        ({"valueSchemaId": str(v2_id)}, {"n": 1, "customer": "Ann", "note": None}),
        ({"valueSchema": json.dumps(own)}, {"n": 1.0}),
        ({"valueSubject": f"{topic}-value", "valueSchemaVersion": "latest"}, {"n": 1, "customer": "Ann", "note": None}),
    ):
        rows = reads.rows("value", subscribe=topic, valueFormat="avro", **given)
        assert [row["value"] for row in rows] == [wanted]


def test_what_has_no_schema_is_malformed_and_nothing_else(confluent: Confluent, reads: Registered) -> None:
    topic, other = confluent.broker.topic(), confluent.broker.topic()
    (good,) = confluent.avro(topic, V1, {"user": "Ann", "n": 1})
    (as_json,) = confluent.json(other, JSON_SCHEMA, {"user": "Ann", "n": 1})
    unresolved = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "string"}]}
    (without_n,) = confluent.avro(other + "-2", unresolved, {"user": "Ann"})
    bad = [prefix(999_999) + good[5:], b"oops", b"", b"\1" + good[1:], good[:-1], good + b"\0", as_json, without_n]
    confluent.produce(topic, good, *bad, good)
    with pytest.warns(UserWarning, match="values with the schema id") as warned:
        rows = reads.rows("value", "malformed", subscribe=topic, valueFormat="avro")
    assert "id 999999 are malformed: " + reads.url in " ".join(str(one.message) for one in warned)
    assert [row["malformed"] for row in rows] == [None, *bad, None]
    assert [row["value"] for row in rows if row["value"]] == [{"user": "Ann", "n": 1}] * 2


def test_dead_letters_have_unknown_ids_and_malformed_keys(confluent: Confluent, reads: Registered) -> None:
    topic, dead = confluent.broker.topic(), confluent.broker.topic()
    key_schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
    (key,) = confluent.avro(topic, key_schema, {"id": 7}, field=MessageField.KEY)
    (value,) = confluent.avro(topic, V1, {"user": "Ann", "n": 1})
    unknown = prefix(999_998) + value[5:]
    confluent.produce(topic, value, unknown, value, keys=[key, key, b"oops"])
    given = {"subscribe": topic, "valueFormat": "avro", "keyFormat": "avro"}
    rows = reads.rows("key", "value", "malformed", "malformedKey", **given)
    assert rows == [
        {"key": {"id": 7}, "value": {"user": "Ann", "n": 1}, "malformed": None, "malformedKey": None},
        {"key": {"id": 7}, "value": None, "malformed": unknown, "malformedKey": None},
        {"key": None, "value": {"user": "Ann", "n": 1}, "malformed": None, "malformedKey": b"oops"},
    ]
    assert reads.rows("key", "value", deadLetterTopic=dead, **given) == [
        {"key": {"id": 7}, "value": {"user": "Ann", "n": 1}}
    ]
    assert [(letter.key, letter.value) for letter in confluent.broker.records(dead)] == [
        (key, unknown),
        (b"oops", value),
    ]


def test_avro_keys_may_be_plain(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    keys = confluent.avro(topic, "string", "a", "b", field=MessageField.KEY)
    confluent.produce(topic, b"1", b"2", keys=keys)
    rows = reads.rows("key", "value", subscribe=topic, keyFormat="avro")
    assert rows == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]


def test_json_has_the_types_of_its_schema_or_those_of_the_user(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    (value,) = confluent.json(topic, JSON_SCHEMA, {"user": "Ann", "n": 1, "at": "2026-11-18"})
    unknown = prefix(999_997) + value[5:]
    confluent.produce(topic, value, unknown)
    assert reads.schema(subscribe=topic, valueFormat="json")["value"].dataType.simpleString() == (
        "struct<user:string,n:bigint,at:date>"
    )
    rows = reads.rows("value", "malformed", subscribe=topic, valueFormat="json")
    assert [(row["value"] or {}).get("user") for row in rows] == ["Ann", None]
    assert rows[1]["malformed"] == unknown
    own = StructType([StructField("value", StructType([StructField("n", LongType())]))])
    found = reads.plain.rows(own, subscribe=topic, valueFormat="json", **{"schema.registry.url": reads.url})
    assert found == [{"value": {"n": 1}}, {"value": None}]


def test_protobuf_of_two_versions_is_read_by_field_numbers(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    v1, v2 = ProtobufSchema(PROTO_V1), ProtobufSchema(PROTO_V2)
    old = confluent.protobuf(
        topic, v1.message("Order"), {"user": "Ann", "n": 1, "tags": ["a"], "customer": {"name": "A"}}, {}
    )
    new = confluent.protobuf(
        topic,
        v2.message("Order"),
        {"who": "Bob", "n": 2**40, "more": 0, "counts": {"x": 3}, "at": {"seconds": 1}, "kind": 1, "raw": b"\xff"},
    )
    (other,) = confluent.protobuf(topic, v1.message("Customer"), {"name": "Cid"})
    confluent.produce(topic, *old, *new, other, old[0][:-1])
    given = {"subscribe": topic, "valueFormat": "protobuf", "valueMessage": "shop.Order", "valueSchemaVersion": "2"}
    kind = reads.schema(**given)["value"].dataType
    assert kind.simpleString() == (
        "struct<n:bigint,who:string,more:int,customer:struct<name:string>,counts:map<string,int>,at:timestamp,"
        "kind:string,raw:binary>"
    )
    rows = reads.rows("value", "malformed", **given)
    assert [row["malformed"] for row in rows] == [None, None, None, other, old[0][:-1]]
    first, empty, second = (row["value"] for row in rows[:3])
    assert (first["who"], first["n"], first["customer"], first["more"]) == ("Ann", 1, {"name": "A"}, None)
    assert (first["counts"], first["at"], first["kind"], first["raw"]) == ([], None, "SMALL", b"")
    assert (empty["who"], empty["n"], empty["customer"]) == ("", 0, None)
    assert (second["who"], second["n"], second["more"], second["counts"]) == ("Bob", 2**40, 0, [("x", 3)])
    assert (second["at"].timestamp(), second["kind"], second["raw"]) == (1.0, "LARGE", b"\xff")


def test_protobuf_files_may_import_others(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    imported = """
        syntax = "proto3"; package shop; import "google/protobuf/wrappers.proto";
        message Customer { google.protobuf.StringValue name = 1; }
    """
    order = f'syntax = "proto3"; package shop; import "{topic}.proto"; message Order {{ Customer customer = 1; }}'
    message = ProtobufSchema(order, [(f"{topic}.proto", imported)]).message()
    confluent.produce(topic, *confluent.protobuf(topic, message, {"customer": {"name": {"value": "Ann"}}}, {}))
    rows = reads.rows("value", subscribe=topic, valueFormat="protobuf")
    assert [row["value"] for row in rows] == [{"customer": {"name": "Ann"}}, {"customer": None}]


def test_a_protobuf_field_of_another_type_is_never_guessed(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    texts = ["syntax = 'proto3'; message A { string x = 1; }", "syntax = 'proto3'; message A { int32 x = 1; }"]
    (value,) = confluent.protobuf(topic, ProtobufSchema(texts[0]).message(), {"x": "1"})
    confluent.produce(topic, value)
    (row,) = reads.rows("value", "malformed", subscribe=topic, valueFormat="protobuf", valueSchema=texts[1])
    assert row == {"value": None, "malformed": value}


def test_a_dataframe_has_typed_columns(topics: Levada, confluent: Confluent, registry: str) -> None:
    topic = topics.broker.topic()
    values = confluent.avro(topic, V1, *({"user": "Ann", "n": number} for number in range(5)))
    confluent.produce(topic, *values, b"oops")
    frame = topics.read(subscribe=topic, valueFormat="avro", schema__registry_url=registry)
    assert frame.selectExpr("sum(value.n)", "count(malformed)").collect()[0] == (10, 1)
    confluent.avro(topic, V2, {"customer": "Bob", "n": 2, "note": "x"})
    assert frame.schema["value"].dataType.simpleString() == "struct<user:string,n:int>"


def test_a_stream_keeps_its_schema_while_the_subject_grows(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    confluent.produce(topic, *confluent.avro(topic, V1, {"user": "Ann", "n": 1}))
    given = {"subscribe": topic, "valueFormat": "avro", "schema.registry.url": reads.url}
    schema = StructType([StructField("value", reads.schema(**given)["value"].dataType)])
    stream = reads.plain.streaming(schema, startingOffsets="earliest", **given)
    newer = V1 | {"fields": [*V1["fields"], {"name": "note", "type": "string", "default": ""}]}
    confluent.produce(topic, *confluent.avro(topic, newer, {"user": "Bob", "n": 2, "note": "x"}))
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    rows = rows_of(stream, stream.partitions(start, end))
    assert [row["value"] for row in rows] == [{"user": "Ann", "n": 1}, {"user": "Bob", "n": 2}]


def test_a_stream_without_its_registry_says_so(plain: Plain) -> None:
    given = {"subscribe": "t", "valueFormat": "avro", "schema.registry.url": "http://127.0.0.1:1"}
    source = plain.source(given | {"max.retries": "0"})
    reader = source.streamReader(StructType([StructField("value", BinaryType())]))
    with pytest.raises(SchemaRegistryError, match=r"registry at http://127\.0\.0\.1:1 does not respond"):
        reader.initialOffset()


def test_a_stream_whose_driver_cannot_run_protoc_says_so(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    source = plain.source({"subscribe": "t", "valueFormat": "protobuf", "valueSchema": "message StreamReader {}"})
    reader = pickle.loads(pickle.dumps(source.streamReader(StructType([StructField("value", BinaryType())]))))
    with pytest.raises(ProtocError, match="protoc cannot be run"):
        reader.initialOffset()


def test_a_projection_of_the_readers_schema(confluent: Confluent, reads: Registered) -> None:
    topic = confluent.broker.topic()
    confluent.produce(topic, *confluent.avro(topic, V1, {"user": "Ann", "n": 1}))
    given = {"subscribe": topic, "valueFormat": "avro", "schema.registry.url": reads.url}
    one = StructType([StructField("value", StructType([StructField("user", StringType())]))])
    assert reads.plain.rows(one, **given) == [{"value": {"user": "Ann"}}]
    wrong = StructType([StructField("value", StructType([StructField("user", BinaryType())]))])
    with pytest.raises(OptionError, match="column value is struct<user:string,n:int>, and the schema has"):
        reads.plain.rows(wrong, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"valueFormat": "avro"}, "there is no schema to read with: .*not found.*write to the topic first"),
        ({"valueFormat": "avro", "valueSchemaId": "999"}, "there is no schema to read with: .*999"),
        ({"valueFormat": "json"}, "option valueFormat json needs valueSchema"),
        ({"valueFormat": "avro", "subscribe": "a,b"}, "option valueSubject is missing"),
        ({"valueFormat": "avro", "valueSkipBytes": "5"}, "valueSkipBytes has no meaning with schema.registry.url"),
        ({"valueFormat": "avro", "valueSchemaId": "1", "valueSchemaVersion": "1"}, "exclude each other"),
        ({}, "schema.registry.url needs valueFormat or keyFormat"),
        ({"valueSubject": "s"}, "option valueSubject needs valueFormat"),
        ({"valueFormat": "avro", "valueMessage": "A"}, "option valueMessage needs valueFormat: protobuf"),
        ({"valueFormat": "avro", "schema.registry.url": "localhost"}, "write a URL such as"),
        ({"valueFormat": "avro", "basic.auth.user.info": "me"}, "write user:password"),
        ({"valueFormat": "protobuf", "valueSchema": "message {"}, "option valueSchema: protoc cannot compile"),
    ],
)
def test_mistakes_are_reported(reads: Registered, given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        reads.schema(**{"subscribe": "no-such-topic"} | given)


def test_a_registry_that_does_not_respond_fails_the_query(confluent: Confluent, plain: Plain, registry: str) -> None:
    topic = confluent.broker.topic()
    (value,) = confluent.avro(topic, V1, {"user": "Ann", "n": 1})
    confluent.produce(topic, value)
    schema = StructType([StructField("value", StructType([StructField("user", StringType())]))])
    given = {"subscribe": topic, "valueFormat": "avro", "valueSchema": json.dumps(V1), "retries.wait.ms": "1"}
    with pytest.raises(SchemaRegistryError, match=r"registry at http://127\.0\.0\.1:1 does not respond to GET"):
        plain.rows(schema, **given, **{"schema.registry.url": "http://me:secret@127.0.0.1:1"})

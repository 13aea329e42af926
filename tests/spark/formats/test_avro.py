"""Avro as typed columns, by values made here from the specification and by random bytes."""

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from levada.spark.formats.avro import AvroDecoder, AvroSchema, avro_encoder

SCHEMA = {
    "type": "record",
    "name": "View",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "x", "type": ["null", "double"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["Kind", "null"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {
            "name": "inner",
            "type": {"type": "record", "name": "Inner", "fields": [{"name": "ok", "type": "boolean"}]},
        },
    ],
}


def long(number: int) -> bytes:
    found, rest = bytearray(), (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def text(value: bytes) -> bytes:
    return long(len(value)) + value


VALUE = b"".join(
    [
        text("é".encode()),
        long(-(2**40)),
        long(1) + struct.pack("<d", 2.5),
        long(1),
        long(0) + long(0),
        long(2) + text(b"a") + text(b"b") + long(-1) + long(2) + text(b"c") + long(0),
        long(1) + text(b"k") + long(-7) + long(0),
        long(1_000),
        long(-1),
        text((-1234).to_bytes(2, "big", signed=True)),
        b"\x00\xff",
        b"\x01",
    ]
)
FOUND = {
    "user": "é",
    "n": -(2**40),
    "x": 2.5,
    "kind": "B",
    "again": "A",
    "tags": ["a", "b", "c"],
    "counts": [("k", -7)],
    "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    "day": date(1969, 12, 31),
    "price": Decimal("-12.34"),
    "mark": b"\x00\xff",
    "inner": {"ok": True},
}


def decode(*values: bytes | None, schema: Any = SCHEMA) -> tuple[list[Any], list[bool]]:
    avro = AvroSchema(json.dumps(schema))
    kind = to_arrow_type(avro.type, timezone="UTC")
    structs, bad = AvroDecoder(avro, kind).decode(pa.array(values, pa.binary()))
    return structs.to_pylist(), bad.to_pylist()


def test_values_become_structs() -> None:
    assert decode(VALUE, None) == ([FOUND, None], [False, False])


def test_its_type_in_spark() -> None:
    assert AvroSchema(json.dumps(SCHEMA)).type.simpleString() == (
        "struct<user:string,n:bigint,x:double,kind:string,again:string,tags:array<string>,counts:map<string,int>,"
        "at:timestamp,day:date,price:decimal(6,2),mark:binary,inner:struct<ok:boolean>>"
    )


@pytest.mark.parametrize("length", [0, 1, 5, 12, 30, len(VALUE) - 1])
def test_a_value_that_is_cut_is_reported_and_its_neighbours_are_well(length: int) -> None:
    assert decode(VALUE, VALUE[:length], VALUE) == ([FOUND, None, FOUND], [False, True, False])


def test_a_value_with_more_after_it_is_not_one() -> None:
    assert decode(VALUE + b"\0")[1] == [True]


def test_counts_are_held_against_what_is_there() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}],
    }
    assert decode(long(2**60), long(-(2**60)) + long(1), schema=schema)[1] == [True, True]


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        ("int", long(7), long(2**31)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            text(b"\x01"),
            text((12345).to_bytes(2, "big")),
        ),
        ({"type": "int", "logicalType": "date"}, long(0), long(2**31 - 1)),
        ({"type": "long", "logicalType": "timestamp-micros"}, long(0), long(2**63 - 1)),
    ],
)
def test_a_number_that_its_type_cannot_hold_is_reported_alone(kind: Any, good: bytes, wrong: bytes) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    structs, bad = decode(good, wrong, good, schema=schema)
    assert bad == [False, True, False]
    assert structs[0] == structs[2] and structs[1] is None


def test_a_schema_may_be_a_plain_type() -> None:
    assert decode(text(b"a"), b"\x04a", schema="string") == (["a", None], [False, True])


def test_logical_types_without_a_type_in_spark_are_what_they_annotate() -> None:
    kinds = [{"type": "string", "logicalType": "uuid"}, {"type": "int", "logicalType": "time-millis"}]
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(kinds)]
    found = decode(text(b"u") + long(5), schema={"type": "record", "name": "R", "fields": fields})
    assert found == ([{"f0": "u", "f1": 5}], [False])


FOO = {
    "type": "record",
    "name": "com.Foo",
    "fields": [{"name": "a", "type": {"type": "record", "name": "Bar", "fields": [{"name": "n", "type": "int"}]}}],
}


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ("com.Foo", {"a": {"n": 7}}, {"a": {"n": 7}}),
        (["null", "com.Foo"], {"a": {"n": 7}}, {"a": {"n": 7}}),
        ({"type": "array", "items": "com.Foo"}, [{"a": {"n": 7}}], [{"a": {"n": 7}}]),
        ({"type": "array", "items": ["null", "com.Bar"]}, [{"n": 7}, None], [{"n": 7}, None]),
        ({"type": "map", "values": "com.Foo"}, {"k": {"a": {"n": 7}}}, [("k", {"a": {"n": 7}})]),
        (
            {"type": "array", "items": {"type": "record", "name": "R", "fields": [{"name": "f", "type": "com.Bar"}]}},
            [{"f": {"n": 7}}],
            [{"f": {"n": 7}}],
        ),
    ],
)
def test_names_of_references_are_known_at_any_top_level(schema: Any, value: Any, found: Any) -> None:
    avro, wider = (
        AvroSchema(json.dumps(schema), [json.dumps(FOO).replace('"int"', f'"{kind}"')]) for kind in ("int", "long")
    )
    encoded = avro_encoder(avro)(value)
    for reader in (avro, wider):
        kind = to_arrow_type(reader.type, timezone="UTC")
        values, bad = AvroDecoder(avro, kind, reader).decode(pa.array([encoded, encoded + b"\0"], pa.binary()))
        assert (values.to_pylist(), bad.to_pylist()) == ([found, None], [False, True])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(VALUE) - 1), st.integers(0, 255))
def test_nothing_that_comes_crashes_it(noise: bytes, at: int, byte: int) -> None:
    decode(noise, VALUE[:at] + bytes([byte]) + VALUE[at + 1 :])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("[", "an Avro schema is JSON"),
        ('{"type": "record", "name": "R", "fields": []}', "needs at least one field"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int8"}]}', "no Avro type 'int8'"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}', "union"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
            "contains itself",
        ),
        ('{"type": "record", "name": "R", "fields": [{"name": "a"}]}', "not an Avro schema.*missing 'type'"),
        ('{"type": "record", "name": "R", "fields": 5}', "not an Avro schema"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": '
            '{"type": "fixed", "name": "F", "size": 0}}}]}',
            "must take at least one byte",
        ),
        ("[" * 100_000, "an Avro schema is JSON"),
    ],
)
def test_a_schema_that_cannot_be_read_is_reported(schema: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AvroSchema(schema)

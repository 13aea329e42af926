"""Values of one Avro schema, resolved to another one."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from levada.spark.formats.avro import AvroDecoder, AvroSchema, avro_encoder

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = MILLIS | {"logicalType": "timestamp-micros"}
LOCAL = MILLIS | {"logicalType": "local-timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
MARK = {"type": "fixed", "name": "Mark", "size": 2}
MARK_DECIMAL = MARK | {"logicalType": "decimal", "precision": 4, "scale": 2}
EPOCH_MILLIS = 1_577_836_800_000
AT = datetime(2020, 1, 1, tzinfo=UTC)
LOCAL_AT = AT.replace(tzinfo=None)
DAY, DAYS = date(2020, 1, 1), 18_262


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def resolve(writer: Any, reader: Any, value: Any, references: Any = ((), ())) -> tuple[list[Any], list[bool]]:
    texts = [[json.dumps(one) for one in some] for some in references]
    written = AvroSchema(json.dumps(writer), texts[0], typed=False)
    wanted = AvroSchema(json.dumps(reader), texts[1])
    encoded = pa.array([avro_encoder(written)(value)], pa.binary())
    values, bad = AvroDecoder(written, to_arrow_type(wanted.type, timezone="UTC"), wanted).decode(encoded)
    return values.to_pylist(), bad.to_pylist()


WRAPPED: dict[str, Any] = {
    "field": (lambda kind: record({"name": "a", "type": kind}), lambda value: {"a": value}, lambda found: {"a": found}),
    "top": (lambda kind: kind, lambda value: value, lambda found: found),
    "nullable": (
        lambda kind: record({"name": "a", "type": ["null", kind]}),
        lambda value: {"a": value},
        lambda found: {"a": found},
    ),
    "array": (
        lambda kind: {"type": "array", "items": ["null", kind]},
        lambda value: [value, None],
        lambda found: [found, None],
    ),
    "map": (lambda kind: {"type": "map", "values": kind}, lambda value: {"k": value}, lambda found: [("k", found)]),
    "nested": (
        lambda kind: record(
            {"name": "a", "type": record({"name": "x", "type": kind}, name="I")}, {"name": "b", "type": ["null", "I"]}
        ),
        lambda value: {"a": {"x": value}, "b": {"x": value}},
        lambda found: {"a": {"x": found}, "b": {"x": found}},
    ),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("long", MILLIS, EPOCH_MILLIS, AT),
        ("int", MILLIS, 1_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("long", MICROS, EPOCH_MILLIS * 1_000, AT),
        ("long", LOCAL, EPOCH_MILLIS, LOCAL_AT),
        ("int", DATE, DAYS, DAY),
        ("bytes", DECIMAL, b"\xff\x7f", Decimal("-1.29")),
        ("string", DECIMAL, "\x01", Decimal("0.01")),
        (MARK, MARK_DECIMAL, b"\x00\x7b", Decimal("1.23")),
        (MILLIS, "long", AT, EPOCH_MILLIS),
        (MILLIS, "double", AT, float(EPOCH_MILLIS)),
        (DATE, "int", DAY, DAYS),
        (DATE, "long", DAY, DAYS),
        (DECIMAL, "bytes", Decimal("1.23"), b"\x7b"),
        (MARK_DECIMAL, MARK, Decimal("1.23"), b"\x00\x7b"),
        (MILLIS, MICROS, AT, AT),
        (MICROS, MILLIS, AT, AT),
        (MILLIS, LOCAL, AT, LOCAL_AT),
        (DECIMAL, DECIMAL | {"precision": 8, "scale": 4}, Decimal("1.23"), Decimal("1.2300")),
    ],
)
def test_a_logical_type_of_one_schema_only_is_that_of_the_reader(
    wrapped: str, writer: Any, reader: Any, value: Any, found: Any
) -> None:
    schema, written, wanted = WRAPPED[wrapped]
    assert resolve(schema(writer), schema(reader), written(value)) == ([wanted(found)], [False])


def test_each_use_of_a_named_type_is_resolved_to_its_own_reader() -> None:
    writer = record({"name": "a", "type": record({"name": "x", "type": "long"}, name="I")}, {"name": "b", "type": "I"})
    reader = record(
        {"name": "c", "aliases": ["a"], "type": ["null", record({"name": "x", "type": MILLIS}, name="I")]},
        {"name": "b", "type": record({"name": "x", "type": "long"}, name="J") | {"aliases": ["I"]}},
    )
    values, bad = resolve(writer, reader, {"a": {"x": EPOCH_MILLIS}, "b": {"x": 7}})
    assert (values, bad) == ([{"c": {"x": AT}, "b": {"x": 7}}], [False])


def test_types_of_references_are_resolved_with_their_logical_types() -> None:
    references = [[record({"name": "x", "type": kind}, name="com.I")] for kind in ("long", MILLIS)]
    schema = ["null", "com.I"]
    assert resolve(schema, schema, {"x": EPOCH_MILLIS}, references) == ([{"x": AT}], [False])


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        (MILLIS, EPOCH_MILLIS, AT),
        (MICROS, EPOCH_MILLIS * 1_000, AT),
        (LOCAL, EPOCH_MILLIS, LOCAL_AT),
        ([MILLIS, "null"], EPOCH_MILLIS, AT),
        (["null", MILLIS], None, None),
        (DATE, DAYS, DAY),
        (DECIMAL, "\u00ff", Decimal("-0.01")),
        (MARK_DECIMAL, "\u0000\u007b", Decimal("1.23")),
        ("bytes", "\u00ff", b"\xff"),
        (MARK, "\u00ff\u0001", b"\xff\x01"),
        (record({"name": "q", "type": "int", "default": 7}, name="N"), {}, {"q": 7}),
        (record({"name": "q", "type": MILLIS, "default": 0}, name="N"), {"q": EPOCH_MILLIS}, {"q": AT}),
        (
            record(
                {"name": "n", "type": record({"name": "q", "type": "bytes", "default": "\u00ff"}, name="M")}, name="N"
            ),
            {"n": {}},
            {"n": {"q": b"\xff"}},
        ),
        ({"type": "array", "items": MILLIS}, [EPOCH_MILLIS], [AT]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, [("k", b"\xff")]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ("double", 1, 1.0),
        ("string", "\u00ff", "\u00ff"),
    ],
)
def test_a_new_field_has_the_value_of_its_default(kind: Any, default: Any, found: Any) -> None:
    old = {"name": "a", "type": "int"}
    new = record(old, {"name": "b", "type": kind, "default": default})
    assert resolve(record(old), new, {"a": 1}) == ([{"a": 1, "b": found}], [False])
    inner = [
        record({"name": "i", "type": {"type": "array", "items": one | {"name": "In"}}}) for one in (record(old), new)
    ]
    assert resolve(inner[0], inner[1], {"i": [{"a": 1}]}) == ([{"i": [{"a": 1, "b": found}]}], [False])


def test_a_default_that_is_not_of_its_type_is_malformed_only_where_it_is_needed() -> None:
    one, other = {"name": "a", "type": "int"}, record({"name": "q", "type": "int"}, name="N")
    reader = record(
        one, {"name": "n", "type": other, "default": {}}, {"name": "z", "type": ["null", "int"], "default": None}
    )
    assert resolve(record(one), reader, {"a": 1}) == ([None], [True])
    found = resolve(record(one, {"name": "n", "type": other}), reader, {"a": 1, "n": {"q": 2}})
    assert found == ([{"a": 1, "n": {"q": 2}, "z": None}], [False])

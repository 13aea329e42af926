"""Derives the Avro schema of a Spark type, with the names that Spark's `to_avro` gives to records."""

import json
from typing import Any

from pyspark.sql import types as t

TOP_LEVEL_RECORD = "topLevelRecord"
PLAIN: dict[type[t.DataType], Any] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.StringType: "string",
    t.BinaryType: "bytes",
    t.DateType: {"type": "int", "logicalType": "date"},
    t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    t.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema_of(kind: t.DataType) -> str:
    """The Avro schema of a Spark type; ValueError if it has none."""
    return json.dumps(_schema(kind, TOP_LEVEL_RECORD))


def _schema(kind: t.DataType, name: str) -> Any:
    if isinstance(kind, t.StructType):
        fields = [_field(field.name, field.dataType, field.nullable, name) for field in kind.fields]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": _nullable(_schema(kind.elementType, name), kind.containsNull)}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return {"type": "map", "values": _nullable(_schema(kind.valueType, name), kind.valueContainsNull)}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in PLAIN:
        raise ValueError(f"Avro has no type for {kind.simpleString()}")
    return PLAIN[type(kind)]


def _field(name: str, kind: t.DataType, nullable: bool, record: str) -> dict[str, Any]:
    """A field; one that may be null has a default, so that older values can be read with it."""
    found = {"name": name, "type": _nullable(_schema(kind, f"{record}.{name}"), nullable)}
    return found | ({"default": None} if nullable else {})


def _nullable(schema: Any, nullable: bool) -> Any:
    return ["null", schema] if nullable else schema

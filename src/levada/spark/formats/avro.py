"""Decodes Avro values into structs of Spark's types with fastavro, by a schema that the user gives.

There is no schema registry: the schema is the one that values were written with, and `valueSkipBytes` skips the id that
a registry's serializer writes before them. Logical types without a type in Spark are read as the type that they
annotate.
"""

import io
import json
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from levada.spark.formats.rows import decode_rows

DEPTH_MAX = 64
DECIMAL_DIGITS_MAX = 38
PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
LOGICAL: dict[tuple[str, str], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
NOT_TYPES = frozenset({"default", "doc", "aliases", "symbols", "name", "namespace"})  # keys of a schema


class AvroSchema:
    """The schema of a record and its Spark type.

    It is not recursive, because fastavro does not limit the depth of a value. No item of an array takes zero bytes,
    because the few bytes of a count could then stand for any number of items.
    """

    def __init__(self, text: str) -> None:
        self._named: dict[str, Any] = {}
        self.parsed = self._parse(text)
        self._size_min(self.parsed, ())
        self.type = self._type(self.parsed)
        if not isinstance(self.type, StructType):
            raise ValueError("the Avro schema of a value must be a record")

    def _parse(self, text: str) -> Any:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"an Avro schema is JSON: {error}") from None
        try:
            return fastavro.parse_schema(_supported(found), self._named)
        except UnknownType as error:
            raise ValueError(f"there is no Avro type {error.name!r}") from None
        except (SchemaParseException, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"this is not an Avro schema: {error!r}") from None

    def _size_min(self, found: Any, within: tuple[str, ...]) -> int:
        """The least bytes of a value; ValueError for a type that contains itself."""
        if len(within) > DEPTH_MAX:
            raise ValueError("the Avro schema is nested too deeply")
        if isinstance(found, list):
            return 1 + min((self._size_min(one, (*within, "")) for one in found), default=0)
        found = self._definition(found)
        kind = found["type"]
        if kind == "record":
            if found["name"] in within:
                raise ValueError(f"the Avro type {found['name']} contains itself, which has no type in Spark")
            return sum(self._size_min(field["type"], (*within, found["name"])) for field in found["fields"])
        if kind in ("array", "map"):
            items = self._size_min(found["items" if kind == "array" else "values"], (*within, ""))
            if kind == "array" and not items:
                raise ValueError("items of an Avro array must take at least one byte")
            return 1
        if isinstance(kind, dict | list):
            return self._size_min(kind, (*within, ""))
        return 0 if kind == "null" else int(found["size"]) if kind == "fixed" else 1

    def _definition(self, found: Any) -> dict[str, Any]:
        if isinstance(found, dict):
            return found
        named: dict[str, Any] = self._named.get(found, {"type": found})
        return named

    def _type(self, found: Any) -> DataType:
        if isinstance(found, list):
            some = [branch for branch in found if branch not in ("null", {"type": "null"})]
            if len(some) != 1:
                raise ValueError(f"an Avro union can only have null and one other type; found {found!r}")
            return self._type(some[0])
        found = self._definition(found)
        kind, logical = found["type"], found.get("logicalType", "")
        if isinstance(kind, dict | list):
            return self._type(kind)
        if kind == "record":
            if not found["fields"]:
                raise ValueError("an Avro record needs at least one field")
            return StructType([StructField(field["name"], self._type(field["type"])) for field in found["fields"]])
        if kind == "array":
            return ArrayType(self._type(found["items"]))
        if kind == "map":
            return MapType(StringType(), self._type(found["values"]))
        if logical == "decimal":
            return DecimalType(int(found["precision"]), int(found.get("scale", 0)))
        if kind in ("enum", "fixed"):
            return StringType() if kind == "enum" else BinaryType()
        if (kind, logical) in LOGICAL:
            return LOGICAL[kind, logical]
        if kind not in PLAIN:
            raise ValueError(f"the Avro type {kind} has no type in Spark")
        return PLAIN[kind]


class AvroDecoder:
    """Decodes values as structs of one schema."""

    def __init__(self, schema: AvroSchema, kind: Any) -> None:
        self._schema, self._kind = schema.parsed, kind

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of structs, and an array that is true where a value is not of this schema."""
        read, stream, schema = fastavro.schemaless_reader, io.BytesIO, self._schema

        def decode(value: bytes) -> Any:
            data = stream(value)
            found = read(data, schema, None)
            if data.tell() != len(value):
                raise ValueError("there are more bytes after the value")
            return found

        return decode_rows(values, decode, self._kind)


def _supported(found: Any) -> Any:
    """A schema without the logical types that are read as what they annotate."""
    if isinstance(found, list):
        return [_supported(one) for one in found]
    if not isinstance(found, dict):
        return found
    kept = {name: one if name in NOT_TYPES else _supported(one) for name, one in found.items()}
    if "logicalType" in kept and not _is_supported(kept):
        del kept["logicalType"]
    return kept


def _is_supported(found: dict[str, Any]) -> bool:
    kind, logical = found.get("type"), found["logicalType"]
    if logical != "decimal" or kind not in ("bytes", "fixed"):
        return (kind, logical) in LOGICAL if isinstance(kind, str) else False
    precision, scale = found.get("precision"), found.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return False
    return 0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision

"""Decodes and encodes Avro values of Spark's types with fastavro.

A value is decoded by the schema that it was written with, and resolved to the reader's if that is another one. Logical
types without a type in Spark are read as the type that they annotate.
"""

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql import types as t

from levada.spark.formats.avro_resolution import expanded, with_default_values, with_logical_types_of
from levada.spark.formats.rows import decode_rows

DEPTH_MAX = 64
DECIMAL_DIGITS_MAX = 38
PLAIN: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
}
LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
}
NOT_TYPES = frozenset({"default", "doc", "aliases", "symbols", "name", "namespace"})  # keys of a schema


class AvroSchema:
    """An Avro schema and its Spark type; a schema that values are only written with needs no type.

    It is not recursive, because fastavro does not limit the depth of a value. No item of an array takes zero bytes,
    because the few bytes of a count could then stand for any number of items.
    """

    def __init__(self, text: str, references: Iterable[str] = (), *, typed: bool = True) -> None:
        self._named: dict[str, Any] = {}
        for reference in references:
            self._parse(reference)
        found = self._parse(text)
        self._size_min(found, ())
        if typed:
            self.type = self._type(found)
        self.parsed = self._with_definitions(found)
        self._found = found

    def resolved_to(self, reader: "AvroSchema") -> tuple[Any, Any]:
        """This schema and a reader's, as fastavro needs them to resolve values of the one to the other."""
        wanted = expanded(reader._found, reader._named)
        writer = with_logical_types_of(wanted, expanded(self._found, self._named))
        return _marked(writer), _marked(with_default_values(wanted))

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

    def _with_definitions(self, found: Any) -> Any:
        """The schema with the definitions of the names in it, which fastavro itself adds only to a record."""
        if isinstance(found, list):
            return [self._with_definitions(one) for one in found]
        definition = self._named.get(found) if isinstance(found, str) else found
        return found if definition is None else definition | {"__fastavro_parsed": True, "__named_schemas": self._named}

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

    def _type(self, found: Any) -> t.DataType:
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
            return t.StructType([t.StructField(field["name"], self._type(field["type"])) for field in found["fields"]])
        if kind == "array":
            return t.ArrayType(self._type(found["items"]))
        if kind == "map":
            return t.MapType(t.StringType(), self._type(found["values"]))
        if logical == "decimal":
            return t.DecimalType(int(found["precision"]), int(found.get("scale", 0)))
        if kind in ("enum", "fixed"):
            return t.StringType() if kind == "enum" else t.BinaryType()
        if (kind, logical) in LOGICAL:
            return LOGICAL[kind, logical]
        if kind not in PLAIN:
            raise ValueError(f"the Avro type {kind} has no type in Spark")
        return PLAIN[kind]


class AvroDecoder:
    """Decodes values of one schema, and resolves them to a reader's schema if there is one."""

    def __init__(self, schema: AvroSchema, kind: Any, reader: AvroSchema | None = None) -> None:
        self._schema, self._reader, self._kind = schema.parsed, None, kind
        if reader is not None and reader.parsed != schema.parsed:
            self._schema, self._reader = schema.resolved_to(reader)

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of values, and an array that is true where one is not of this schema."""
        read, stream, schema, reader = fastavro.schemaless_reader, io.BytesIO, self._schema, self._reader

        def decode(value: bytes) -> Any:
            data = stream(value)
            try:
                found = read(data, schema, reader)
            except SchemaResolutionError as error:
                raise ValueError(str(error)) from None
            if data.tell() != len(value):
                raise ValueError("there are more bytes after the value")
            return found

        return decode_rows(values, decode, self._kind)


def avro_encoder(schema: AvroSchema) -> Callable[[Any], bytes]:
    """A function that encodes Python values by a schema."""
    write, stream, parsed = fastavro.schemaless_writer, io.BytesIO, schema.parsed

    def encode(value: Any) -> bytes:
        data = stream()
        write(data, parsed, value)
        return data.getvalue()

    return encode


def _marked(found: Any) -> Any:
    """A schema without names of references, which fastavro does not parse again for each value."""
    if isinstance(found, list):
        return [_marked(one) for one in found]
    return found | {"__fastavro_parsed": True, "__named_schemas": {}} if isinstance(found, dict) else found


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

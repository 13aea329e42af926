"""Decodes Avro values into structs of Spark's types, with a schema that the user gives; no further dependency.

A schema is compiled once into functions, one per type. There is no schema registry: the schema is the one that values
were written with, and `valueSkipBytes` skips the id that a registry's serializer writes before them.
"""

import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
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

Read = Callable[[bytes, int], tuple[Any, int]]  # data, position -> value, end

DEPTH_MAX = 64
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_0 = date(1970, 1, 1)
MALFORMED = (ValueError, IndexError, struct.error, OverflowError, ArithmeticError)


class AvroSchema:
    """The schema of a record: its Spark type and its read function."""

    def __init__(self, text: str) -> None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"an Avro schema is JSON: {error}") from None
        self._named: dict[str, tuple[DataType, Read]] = {}
        self._unfinished: set[str] = set()
        try:
            self.type, self.read = self._compile(found, "", 0)
        except TypeError as error:
            raise ValueError(f"this is not an Avro schema: {error}") from None
        if not isinstance(self.type, StructType):
            raise ValueError("the Avro schema of a value must be a record")

    def _compile(self, found: Any, space: str, depth: int) -> tuple[DataType, Read]:
        if depth > DEPTH_MAX:
            raise ValueError("the Avro schema is nested too deeply")
        if isinstance(found, list):
            return self._union(found, space, depth)
        if isinstance(found, str):
            found = {"type": found}
        if not isinstance(found, dict) or "type" not in found:
            raise ValueError(f"this is not an Avro type: {found!r}")
        kind = found["type"]
        if isinstance(kind, list | dict):
            return self._compile(kind, space, depth + 1)
        logical = _LOGICAL.get((kind, found.get("logicalType", "")))
        if logical is not None:
            return logical
        if kind in _PLAIN:
            return _decimal(found, _PLAIN[kind]) if found.get("logicalType") == "decimal" else _PLAIN[kind]
        if kind == "array":
            item, read = self._compile(found.get("items"), space, depth + 1)
            return ArrayType(item), _blocks(read)
        if kind == "map":
            item, read = self._compile(found.get("values"), space, depth + 1)
            return MapType(StringType(), item), _blocks(_pair(read))
        if kind in ("record", "enum", "fixed"):
            return self._named_type(kind, found, space, depth)
        return self._reference(kind, space)

    def _named_type(self, kind: str, found: dict[str, Any], space: str, depth: int) -> tuple[DataType, Read]:
        name = str(found.get("name", ""))
        space = found.get("namespace") or (name.rpartition(".")[0] if "." in name else space)
        full = name if "." in name or not space else f"{space}.{name}"
        self._unfinished.add(full)
        if kind == "record":
            made = self._record(found.get("fields", []), space, depth)
        elif kind == "enum":
            made = (StringType(), _enum([str(symbol) for symbol in found.get("symbols", [])]))
        else:
            fixed: tuple[DataType, Read] = (BinaryType(), _fixed(int(found.get("size", 0))))
            made = _decimal(found, fixed) if found.get("logicalType") == "decimal" else fixed
        self._unfinished.discard(full)
        self._named[full] = made
        return made

    def _record(self, fields: list[Any], space: str, depth: int) -> tuple[DataType, Read]:
        if not fields:
            raise ValueError("an Avro record needs at least one field")
        if not all(isinstance(field, dict) and {"name", "type"} <= field.keys() for field in fields):
            raise ValueError('a field is {"name": ..., "type": ...} in an Avro schema')
        parts = [(str(field["name"]), *self._compile(field["type"], space, depth + 1)) for field in fields]
        reads = [read for _, _, read in parts]

        def read_record(data: bytes, at: int) -> tuple[Any, int]:
            values = []
            for read in reads:
                value, at = read(data, at)
                values.append(value)
            return tuple(values), at

        return StructType([StructField(name, kind) for name, kind, _ in parts]), read_record

    def _union(self, branches: list[Any], space: str, depth: int) -> tuple[DataType, Read]:
        some = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if len(some) != 1:
            raise ValueError(f"an Avro union can only have null and one other type; found {branches!r}")
        kind, read = self._compile(some[0], space, depth + 1)
        reads: list[Read] = [
            (lambda _data, at: (None, at)) if branch in ("null", {"type": "null"}) else read for branch in branches
        ]

        def read_union(data: bytes, at: int) -> tuple[Any, int]:
            index, at = _long(data, at)
            if not 0 <= index < len(reads):
                raise ValueError("no such branch of a union")
            return reads[index](data, at)

        return kind, read_union

    def _reference(self, name: str, space: str) -> tuple[DataType, Read]:
        full = name if "." in name or not space else f"{space}.{name}"
        for candidate in (full, name):
            if candidate in self._unfinished:
                raise ValueError(f"the Avro type {name} contains itself, which has no type in Spark")
            if candidate in self._named:
                return self._named[candidate]
        raise ValueError(f"there is no Avro type {name!r}")


class AvroDecoder:
    """Decodes values as structs of one schema."""

    def __init__(self, schema: AvroSchema, kind: Any) -> None:
        self._read = schema.read
        self._kind = kind

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of structs, and an array that is true where a value is not of this schema."""
        found, bad = [], []
        read = self._read
        for value in values.to_pylist():
            one, wrong = None, False
            if value is not None:
                try:
                    one, at = read(value, 0)
                    wrong = at != len(value)
                except MALFORMED:
                    wrong = True
            found.append(None if wrong else one)
            bad.append(wrong)
        return pa.array(found, self._kind), pa.array(bad, pa.bool_())


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number of at most ten bytes."""
    byte = data[at]
    at += 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise ValueError("too long a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    number = (number >> 1) ^ -(number & 1)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("too large a number")
    return number, at


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError("too large an int")
    return number, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("not that many bytes")
    return data[at : at + size], at + size


def _string(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    return found.decode(), at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError("not a boolean")
    return data[at] == 1, at + 1


def _float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if size > len(data) - at:
            raise ValueError("not that many bytes")
        return data[at : at + size], at + size

    return read


def _enum(symbols: list[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise ValueError("no such symbol")
        return symbols[index], at

    return read


def _blocks(item: Read) -> Read:
    """Items in blocks; a negative count is followed by the size of the block in bytes."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count == 0:
                return items, at
            if count < 0:
                count = -count
                _, at = _long(data, at)
            if count > len(data) - at:
                raise ValueError("not that many items")
            for _ in range(count):
                value, at = item(data, at)
                items.append(value)

    return read


def _pair(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        name, at = _string(data, at)
        value, at = item(data, at)
        return (name, value), at

    return read


def _convert(read: Read, convert: Callable[[Any], Any]) -> Read:
    def converted(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return convert(value), at

    return converted


def _decimal(found: dict[str, Any], plain: tuple[DataType, Read]) -> tuple[DataType, Read]:
    """Two's complement in bytes or fixed; with more digits than Spark supports, the bytes themselves."""
    precision, scale = int(found.get("precision", 0)), int(found.get("scale", 0))
    if not isinstance(plain[0], BinaryType) or not 0 < precision <= 38 or not 0 <= scale <= precision:
        return plain
    limit = 10**precision

    def convert(digits: bytes) -> Decimal:
        number = int.from_bytes(digits, "big", signed=True)
        if abs(number) >= limit:
            raise ValueError("too many digits")
        return Decimal(number).scaleb(-scale)

    return DecimalType(precision, scale), _convert(plain[1], convert)


_PLAIN: dict[str, tuple[DataType, Read]] = {
    "boolean": (BooleanType(), _boolean),
    "int": (IntegerType(), _int),
    "long": (LongType(), _long),
    "float": (FloatType(), _float),
    "double": (DoubleType(), _double),
    "bytes": (BinaryType(), _bytes),
    "string": (StringType(), _string),
}
_NAIVE_0 = _EPOCH.replace(tzinfo=None)
_LOGICAL: dict[tuple[str, str], tuple[DataType, Read]] = {
    ("int", "date"): (DateType(), _convert(_int, lambda days: _DAY_0 + timedelta(days=days))),
    ("long", "timestamp-millis"): (
        TimestampType(),
        _convert(_long, lambda ms: _EPOCH + timedelta(milliseconds=ms)),
    ),
    ("long", "timestamp-micros"): (
        TimestampType(),
        _convert(_long, lambda us: _EPOCH + timedelta(microseconds=us)),
    ),
    ("long", "local-timestamp-millis"): (
        TimestampNTZType(),
        _convert(_long, lambda ms: _NAIVE_0 + timedelta(milliseconds=ms)),
    ),
    ("long", "local-timestamp-micros"): (
        TimestampNTZType(),
        _convert(_long, lambda us: _NAIVE_0 + timedelta(microseconds=us)),
    ),
    ("string", "uuid"): (StringType(), _convert(_string, lambda text: str(UUID(text)))),
}

"""Decodes JSON values into structs: with Arrow's reader if all values of a slice are valid, else value by value.

The slow path, `_converter`, defines what a value means; the fast path is used where it gives the same. Values that only
Arrow can read (`_only_arrow`) go through Arrow in both. The fast path adds the row number to each object as its first
field, under a random name. So a value that is no object, or two objects, cannot shift the values after it.
"""

import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

SLICE_ROWS = 2_000  # one malformed value sends this many to the slow path
NULL_OBJECT = '{"":0}'  # in place of null

WHITESPACE = b" \t\r\n"
NUMBER_NAMES = (b"NaN", b"Inf")
DIGITS_MAX = 309  # of the largest double
DECIMAL_TEXT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
DECIMALS = Context(prec=400, rounding=ROUND_HALF_UP)  # as Spark's from_json rounds; more digits than a type can have

Converter = Callable[[Any], Any]


class JsonDecoder:
    """Decodes values as structs of one type."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._convert = _converter(kind)
        self._arrow_kind = _arrow_type(kind)
        self._row_field = secrets.token_hex(8)

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of structs, and an array that is true where a value is not JSON of this type.

        A null value is a null struct, which is not malformed.
        """
        pieces = [self._decode_slice(values.slice(start, SLICE_ROWS)) for start in range(0, len(values), SLICE_ROWS)]
        if not pieces:
            return pa.array([], self._kind), pa.array([], pa.bool_())
        structs, bad = zip(*pieces, strict=True)
        return pa.concat_arrays(structs), pa.concat_arrays(bad)

    def _decode_slice(self, values: Any) -> tuple[Any, Any]:
        try:
            found = self._decode_fast(values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found = None
        if found is not None:
            return found, pa.repeat(False, len(values))
        return self._decode_slowly(values)

    def _decode_fast(self, values: Any) -> Any | None:
        """All values in one call of Arrow; None or ArrowInvalid if some are malformed."""
        texts = pc.fill_null(values.cast(pa.string()), NULL_OBJECT)  # the cast checks for UTF-8
        if self._arrow_kind is None or not pc.all(pc.starts_with(texts, "{")).as_py():
            return None
        numbers = pa.array(np.arange(len(values)))
        rest = pc.utf8_slice_codeunits(texts, 1)
        lines = pc.binary_join_element_wise(f'{{"{self._row_field}":', numbers.cast(pa.string()), ",", rest, "\n", "")
        # One block of exactly the slice, so that no value is split.
        block = pa.py_buffer(memoryview(lines.buffers()[2])[: pc.sum(pc.binary_length(lines)).as_py()])
        schema = pa.schema([(self._row_field, pa.int64()), *self._arrow_kind])
        table = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        ).combine_chunks()
        if table.num_rows != len(values) or not table[self._row_field].combine_chunks().equals(numbers):
            return None
        fields = [table[field.name].combine_chunks().cast(field.type) for field in self._kind]
        return pa.StructArray.from_arrays(fields, fields=list(self._kind), mask=values.is_null())

    def _decode_slowly(self, values: Any) -> tuple[Any, Any]:
        found, bad = [], []
        for value in values.to_pylist():
            try:
                one = None if value is None else self._decode_one(value)
                bad.append(False)
            except (ValueError, RecursionError, OverflowError, pa.ArrowNotImplementedError):
                one = None
                bad.append(True)
            found.append(one)
        return pa.array(found, self._kind), pa.array(bad, pa.bool_())

    def _decode_one(self, value: bytes) -> Any:
        try:
            found = json.loads(value, object_pairs_hook=_object, parse_int=_integer_literal, parse_float=_FloatLiteral)
        except (ValueError, RecursionError) as error:
            if not _only_arrow(value, error):
                raise
            alone = self._decode_fast(pa.array([value.strip(WHITESPACE)], pa.binary()))
            if alone is None:
                raise
            return alone[0].as_py()
        return self._convert(found)


class _Object(dict[str, Any]):
    """An object and its duplicate names."""

    duplicates: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        found.duplicates = frozenset(name for name, count in counts.items() if count > 1)
    return found


class _MinusZero(int):
    """-0 without a point: 0 as an integer, -0.0 as a floating-point number."""

    def __float__(self) -> float:
        return -0.0


def _integer_literal(text: str) -> int | float:
    """A number without a point; beyond the range of a double it is infinite, as 1e999 is."""
    if len(text) > DIGITS_MAX:
        return float(text)
    return _MinusZero() if text == "-0" else int(text)


class _FloatLiteral(float):
    """A number with a point or an exponent, and its digits: a decimal has more of them than a double."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        self = super().__new__(cls, text)
        self.text = text
        return self


INTEGERS = (int, _MinusZero)
FLOATS = (float, _FloatLiteral)  # NaN and Infinity are plain floats


def _only_arrow(value: bytes, error: Exception) -> bool:
    """Whether Arrow may still read it: deep nesting, and names of numbers such as -NaN."""
    return isinstance(error, RecursionError) or any(word in value for word in NUMBER_NAMES)


def _arrow_type(kind: Any) -> Any | None:
    """The type with which Arrow reads a field before it is cast; None if it cannot."""
    if pa.types.is_struct(kind):
        parts = [(field.name, _arrow_type(field.type) if field.nullable else None) for field in kind]
        return None if any(part is None for _, part in parts) else pa.struct(parts)
    if pa.types.is_list(kind):
        part = _arrow_type(kind.value_type)
        return None if part is None else pa.list_(part)
    if pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else None


def _converter(kind: Any) -> Converter:
    """A function from parsed JSON to a value of a type; it raises ValueError if the types differ."""
    if pa.types.is_struct(kind):
        return _struct([(field.name, _present(field, _converter(field.type))) for field in kind])
    if pa.types.is_list(kind):
        return _list(_converter(kind.value_type))
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _map(_converter(kind.item_type))
    for test, convert in _PLAIN:
        if test(kind):
            return convert(kind)
    raise ValueError(f"JSON has no values of type {kind}")


def _struct(fields: list[tuple[str, Converter]]) -> Converter:
    names = frozenset(name for name, _ in fields)

    def convert(found: Any) -> Any:
        if found is None:
            return None
        if not isinstance(found, _Object) or found.duplicates & names:
            raise ValueError("not one object")
        return tuple(part(found.get(name)) for name, part in fields)

    return convert


def _present(field: Any, part: Converter) -> Converter:
    if field.nullable:
        return part

    def convert(found: Any) -> Any:
        if found is None:
            raise ValueError(f"{field.name} is missing")
        return part(found)

    return convert


def _list(part: Converter) -> Converter:
    def convert(found: Any) -> Any:
        if found is None:
            return None
        if not isinstance(found, list):
            raise ValueError("not an array")
        return [part(item) for item in found]

    return convert


def _map(part: Converter) -> Converter:
    def convert(found: Any) -> Any:
        if found is None:
            return None
        if not isinstance(found, _Object):
            raise ValueError("not an object")
        return [(_text(name), part(item)) for name, item in found.items()]

    return convert


def _text(found: str) -> str:
    """A text that can be encoded as UTF-8: JSON can hold half of a surrogate pair."""
    found.encode()
    return found


def _string(_kind: Any) -> Converter:
    def convert(found: Any) -> Any:
        if found is None:
            return None
        if type(found) is not str:
            raise ValueError("not a text")
        return _text(found)

    return convert


def _boolean(_kind: Any) -> Converter:
    def convert(found: Any) -> Any:
        if found is not None and type(found) is not bool:
            raise ValueError("not a boolean")
        return found

    return convert


def _integer(kind: Any) -> Converter:
    limit = 1 << (kind.bit_width - 1)

    def convert(found: Any) -> Any:
        if found is not None and (type(found) not in INTEGERS or not -limit <= found < limit):
            raise ValueError(f"not a {kind}")
        return found

    return convert


def _floating(kind: Any) -> Converter:
    def convert(found: Any) -> Any:
        if found is None:
            return None
        if type(found) not in (*INTEGERS, *FLOATS):
            raise ValueError(f"not a {kind}")
        try:
            return float(found)
        except OverflowError:
            return math.copysign(math.inf, found)

    return convert


def _decimal(kind: Any) -> Converter:
    """The exact number, rounded half up to the scale of the type."""
    exponent = Decimal(1).scaleb(-kind.scale)

    def convert(found: Any) -> Any:
        if found is None:
            return None
        text = found.text if type(found) is _FloatLiteral else str(found)
        if type(found) not in (*INTEGERS, *FLOATS, str) or not DECIMAL_TEXT.fullmatch(text):
            raise ValueError(f"not a {kind}")
        try:
            return pa.scalar(Decimal(text).quantize(exponent, context=DECIMALS), kind).as_py()
        except (InvalidOperation, pa.ArrowInvalid):
            raise ValueError(f"not a {kind}") from None

    return convert


def _timestamp(kind: Any) -> Converter:
    """ISO 8601; the default time zone is UTC."""

    def convert(found: Any) -> Any:
        if found is None:
            return None
        if type(found) is not str:
            raise ValueError("not a time")
        when = datetime.fromisoformat(found)
        instant = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
        return instant.replace(tzinfo=None) if kind.tz is None else instant

    return convert


def _date(_kind: Any) -> Converter:
    def convert(found: Any) -> Any:
        if found is not None and type(found) is not str:
            raise ValueError("not a date")
        return None if found is None else date.fromisoformat(found)

    return convert


def _bytes(kind: Any) -> Converter:
    text = _string(kind)

    def convert(found: Any) -> Any:
        return None if found is None else text(found).encode()

    return convert


_PLAIN: list[tuple[Callable[[Any], bool], Callable[[Any], Converter]]] = [
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _string),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_binary, _bytes),
]

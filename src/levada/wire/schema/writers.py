"""Compiles writers: one function per message and version, from the shape to bytes.

Pieces go to a list that is joined at the end. Values that repeat within responses, such as topic names, hosts and
lists of replicas, come from small caches: a lookup is cheaper than packing.
"""

from collections.abc import Callable
from dataclasses import MISSING
from struct import pack
from typing import Any

from levada.wire.primitives import encode_uvarint
from levada.wire.schema import versions
from levada.wire.schema.compiler import (
    FORMATS,
    NO_UUID,
    Memo,
    Source,
    milliseconds,
    not_null,
    only,
    packer,
    parse_path,
    require,
    timestamp,
)
from levada.wire.schema.fields import Field, Struct

MEMO_LENGTH_MAX = 64  # characters or elements; longer values are not cached


class _Encodings(Memo):
    """A cache of encoded short values; long ones are encoded at each lookup."""

    __slots__ = ()

    def __missing__(self, value: Any) -> Any:
        if value is not None and len(value) > MEMO_LENGTH_MAX:
            return self.convert(value)
        return super().__missing__(value)


def _compact_string(value: str) -> bytes:
    data = value.encode()
    return encode_uvarint(len(data) + 1) + data


def _legacy_string(value: str) -> bytes:
    data = value.encode()
    return packer("h").pack(len(data)) + data


def _nullable(encode: Callable[[Any], bytes], null: bytes) -> Callable[[Any], bytes]:
    return lambda value: null if value is None else encode(value)


def _array(code: str, flexible: bool) -> Callable[[Any], bytes]:
    def encode(values: tuple[Any, ...]) -> bytes:
        length = encode_uvarint(len(values) + 1) if flexible else packer("i").pack(len(values))
        return length + pack(f">{len(values)}{code}", *values)

    return encode


UVARINTS = Memo(encode_uvarint)
COMPACT_STRINGS = _Encodings(_compact_string)
NULLABLE_COMPACT_STRINGS = _Encodings(_nullable(_compact_string, b"\x00"))
LEGACY_STRINGS = _Encodings(_legacy_string)
NULLABLE_LEGACY_STRINGS = _Encodings(_nullable(_legacy_string, b"\xff\xff"))
STRINGS = {
    (True, False): ("compact", COMPACT_STRINGS),
    (True, True): ("nullable_compact", NULLABLE_COMPACT_STRINGS),
    (False, False): ("legacy", LEGACY_STRINGS),
    (False, True): ("nullable_legacy", NULLABLE_LEGACY_STRINGS),
}
ARRAYS: dict[tuple[str, bool, bool], Memo] = {
    (code, flexible, nullable): _Encodings(
        _nullable(_array(code, flexible), b"\x00" if flexible else b"\xff\xff\xff\xff")
        if nullable
        else _array(code, flexible)
    )
    for code in "bhiq"
    for flexible in (True, False)
    for nullable in (True, False)
}


def compile_writer(message: str, version: int, wire: Struct, shape: Struct) -> Callable[[Any], bytes]:
    """The function that writes an object of the shape as a version's bytes."""
    writer = _Writer(message, version, wire.flexible)
    source = writer.source
    source.line("out = []")
    source.line("add = out.append")
    writer.struct("o", wire, shape, message)
    writer.flush()
    source.line("return b''.join(out)")
    return source.function("write", "o")


class _Writer:
    """Emits the lines of one writer."""

    def __init__(self, message: str, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(f"write {message} v{version}")
        self.source.names.update(
            uv=UVARINTS, only=only, not_null=not_null, milliseconds=milliseconds, timestamp=timestamp
        )
        self.pending: list[tuple[str, str]] = []  # adjacent fixed-width fields, packed together by flush()

    def flush(self) -> None:
        """Emit the pending fields as one Struct."""
        if not self.pending:
            return
        formats = "".join(code for code, _ in self.pending)
        values = ", ".join(value for code, value in self.pending if code != "x")
        self.pending.clear()
        if not formats.strip("x"):
            self.source.line(f"add({bytes(len(formats))!r})")
            return
        pack = self.source.constant(packer(formats).pack)
        self.source.line(f"add({pack}({values}))")

    def struct(self, value: str, wire: Struct, shape: Struct, path: str) -> None:
        """Emit all fields of a struct; `value` is the local name that holds it."""
        entered: dict[str, str] = {}
        for field in wire.untagged():
            expression, target = self.locate(value, field, shape, path, entered)
            self.field(expression, field, target, f"{path}.{field.name}")
        if self.flexible:
            self.tags(value, wire, shape, path, entered)

    def locate(self, value: str, field: Field, shape: Struct, path: str, entered: dict[str, str]) -> tuple[str, Field]:
        """An expression for a field of this version, and the shape's field that holds its value."""
        last, derive = versions.DERIVED_FIELDS.get(path, {}).get(field.name, (-1, None))
        if self.version <= last:
            return f"{self.source.constant(derive)}({value})", require(shape, field.name, path)
        here = shape.find(field.name)
        if here is not None:
            expression = f"{value}.{field.name}"
            if _is_extra(shape, here):
                expression = f"getattr({value}, {field.name!r}, {self.source.constant(here.default)})"
            return self.without_null(expression, field, here, path), here
        move = versions.MOVED_FIELDS[path][field.name]
        expression, target = self.follow(value, move.path, shape, path, entered)
        expression = self.without_null(expression, field, target, path)
        if move.from_shape is not None:
            expression = f"{self.source.constant(move.from_shape)}({expression})"
        return expression, target

    def without_null(self, expression: str, field: Field, here: Field, path: str) -> str:
        """Convert null for a version without it: empty in a response, an error in a request."""
        if field.nullable or not here.nullable or field.kafka_type == "uuid":
            return expression
        if field.is_array and not here.is_array:
            return f"tuple([not_null(e) for e in {expression}])"
        if ".request" in path and field.name not in versions.EMPTY_MEANT_NULL.get(path, ()):
            return f"not_null({expression})"
        return f"({expression} or {'()' if field.is_array else repr('')})"

    def follow(self, value: str, move: str, shape: Struct, path: str, entered: dict[str, str]) -> tuple[str, Field]:
        """An expression for a path into the shape, and the field there."""
        first, *rest = parse_path(move)
        target = require(shape, first.name, path)
        expression = f"{value}.{first.name}"
        if first.element == "[0]":
            if first.name not in entered:
                entered[first.name] = self.source.fresh("e")
                self.source.line(f"{entered[first.name]} = only({expression})")
            expression = entered[first.name]
        if not rest:
            return expression, target
        (second,) = rest
        assert target.struct is not None
        target = require(target.struct, second.name, path)
        if first.element == "[]":
            return f"tuple([e.{second.name} for e in {expression}])", target
        return f"{expression}.{second.name}", target

    def field(self, expression: str, field: Field, target: Field, path: str, nullable: bool | None = None) -> None:
        nullable = field.nullable if nullable is None else nullable
        if field.is_array:
            self.array(expression, field, target, path, nullable)
        elif field.struct is not None:
            self.nested(expression, field, target, path, nullable)
        else:
            self.primitive(expression, field.kafka_type, nullable)

    def primitive(self, expression: str, kafka_type: str, nullable: bool) -> None:
        if kafka_type in FORMATS:
            self.pending.append((FORMATS[kafka_type], self.fixed(expression, kafka_type, nullable)))
        elif kafka_type == "string":
            self.flush()
            name, memo = STRINGS[self.flexible, nullable]
            self.source.names[name] = memo
            self.source.line(f"add({name}[{expression}])")
        else:
            self.blob(expression, nullable)

    def fixed(self, expression: str, kafka_type: str, nullable: bool) -> str:
        """An expression for the number to pack for a fixed-width value."""
        if kafka_type == "uuid":
            self.source.names["NO_UUID"] = NO_UUID
            name = self.local(expression)
            return f"NO_UUID if {name} is None else {name}.bytes"
        if kafka_type.startswith("timedelta"):
            name = self.local(expression)
            return f"milliseconds({name}) if {name} else 0"
        if kafka_type == "datetime_i64":
            name = self.local(expression)
            return f"-1 if {name} is None else timestamp({name})" if nullable else f"timestamp({name})"
        return expression

    def local(self, expression: str) -> str:
        name = self.source.fresh("v")
        self.source.line(f"{name} = {expression}")
        return name

    def blob(self, expression: str, nullable: bool) -> None:
        """Emit bytes or records: a length and the content."""
        name = self.local(expression)
        null_guard = nullable and self.flexible
        if self.flexible:
            self.flush()
            length = f"uv[len({name}) + 1]"
            self.source.line(f"add({length} if {name} is not None else b'\\0')" if nullable else f"add({length})")
        else:
            self.pending.append(("i", f"-1 if {name} is None else len({name})" if nullable else f"len({name})"))
            self.flush()
            null_guard = nullable
        self.source.line(f"if {name} is not None: add({name})" if null_guard else f"add({name})")

    def array(self, expression: str, field: Field, target: Field, path: str, nullable: bool) -> None:
        code = FORMATS.get(field.kafka_type, "")
        if (code, self.flexible, nullable) in ARRAYS:
            self.flush()
            name = f"array_{code}{int(self.flexible)}{int(nullable)}"
            self.source.names[name] = ARRAYS[code, self.flexible, nullable]
            self.source.line(f"add({name}[{expression}])")
            return
        name = self.local(expression)
        self.length(name, nullable)
        element = self.source.fresh("o")
        self.source.line(f"for {element} in {name} or ():" if nullable else f"for {element} in {name}:")
        self.source.depth += 1
        if field.struct is not None:
            assert target.struct is not None
            self.struct(element, field.struct, target.struct, path)
        else:
            self.primitive(element, field.kafka_type, nullable=False)
        self.flush()
        self.source.depth -= 1

    def length(self, name: str, nullable: bool) -> None:
        if not self.flexible:
            self.pending.append(("i", f"-1 if {name} is None else len({name})" if nullable else f"len({name})"))
            self.flush()
            return
        self.flush()
        length = f"uv[len({name}) + 1]"
        self.source.line(f"add(b'\\0' if {name} is None else {length})" if nullable else f"add({length})")

    def nested(self, expression: str, field: Field, target: Field, path: str, nullable: bool) -> None:
        """Emit a nested struct; before a nullable one a byte is negative for null (KIP-893)."""
        assert field.struct is not None and target.struct is not None
        name = self.local(expression)
        if not nullable:
            self.struct(name, field.struct, target.struct, path)
            return
        self.flush()
        self.source.line(f"if {name} is None: add(b'\\xff')")
        self.source.line("else:")
        self.source.depth += 1
        self.pending.append(("b", "1"))
        self.struct(name, field.struct, target.struct, path)
        self.flush()
        self.source.depth -= 1

    def tags(self, value: str, wire: Struct, shape: Struct, path: str, entered: dict[str, str]) -> None:
        """Emit tagged fields in the order of their tags, without those that have their default."""
        fields = wire.tagged()
        if not fields:
            self.pending.append(("x", ""))
            return
        self.flush()
        count, mark = self.source.fresh("n"), self.source.fresh("m")
        self.source.line(f"{count} = 0")
        self.source.line(f"{mark} = len(out)")
        self.source.line("add(b'\\0')")
        for field in fields:
            expression, target = self.locate(value, field, shape, path, entered)
            self.tag(expression, field, target, f"{path}.{field.name}", count)
        self.source.line(f"if {count}: out[{mark}] = uv[{count}]")

    def tag(self, expression: str, field: Field, target: Field, path: str, count: str) -> None:
        name = self.local(expression)
        default = target.struct.default() if target.struct and not target.is_array else field.default
        constant = self.source.constant(default)
        same = f"{name} is not None" if default is None else f"{name} is not {constant} and {name} != {constant}"
        self.source.line(f"if {same}:")
        self.source.depth += 1
        start = self.source.fresh("m")
        self.source.line(f"{start} = len(out)")
        self.field(name, field, target, path, nullable=False)
        self.flush()
        body = self.source.fresh("v")
        self.source.line(f"{body} = b''.join(out[{start}:])")
        self.source.line(f"out[{start}:] = ({encode_uvarint(field.tag or 0)!r}, uv[len({body})], {body})")
        self.source.line(f"{count} += 1")
        self.source.depth -= 1


def _is_extra(shape: Struct, field: Field) -> bool:
    """Whether the shape adds the field to kio's class, with a default: objects of kio's class lack it."""
    base: Any = shape.cls.__mro__[1]
    return base is not object and field.name not in base.__dataclass_fields__ and field.declared_default is not MISSING

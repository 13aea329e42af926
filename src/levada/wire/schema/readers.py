"""Compiles readers: one function per message and version, from bytes to the shape.

Readers expect malicious bytes. Every count is checked against the bytes that remain and against a budget of elements
for the whole message before anything is allocated from it. A length that points past the end needs no check of its
own: slices stop at the end, and the position past it fails at the next read or at the end of the message.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from struct import Struct as Packer
from typing import Any, NoReturn
from uuid import UUID

from levada.errors import ErrorCode
from levada.wire.primitives import read_uvarint
from levada.wire.schema import versions
from levada.wire.schema.compiler import (
    FORMATS,
    MILLISECOND,
    NO_UUID,
    Memo,
    Source,
    packer,
    parse_path,
    require,
)
from levada.wire.schema.fields import EPOCH, Field, Struct

TAG_BYTES_MIN = 2
STRING_BYTES_MAX = 32_767  # the most that the two-byte length of old versions can express
DURATION_MS_MAX = timedelta.min // -MILLISECOND
TIMESTAMP_MS_MAX = (datetime.max.replace(tzinfo=EPOCH.tzinfo) - EPOCH) // MILLISECOND
ERRORS = {code.value: code for code in ErrorCode}


Reader = Callable[[bytes, int, int], Any]  # of the bytes, the message's position and its budget of elements


class MalformedError(Exception):
    """The bytes are not a message of this version."""


def uuid(data: bytes) -> UUID | None:
    """Convert a UUID; all zeros mean None."""
    return None if data == NO_UUID else UUID(bytes=data)


UUIDS = Memo(uuid)


def duration(milliseconds: int) -> timedelta:
    """Convert a duration, clamped to what timedelta can hold."""
    return timedelta(milliseconds=max(-DURATION_MS_MAX, min(milliseconds, DURATION_MS_MAX)))


DURATIONS = Memo(duration)


def time(milliseconds: int) -> datetime:
    """Convert a timestamp, clamped to the epoch and to the latest datetime."""
    return EPOCH + timedelta(milliseconds=max(0, min(milliseconds, TIMESTAMP_MS_MAX)))


def error_code(code: int) -> ErrorCode:
    """Convert an error code; unknown ones become UNKNOWN_SERVER_ERROR."""
    return ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def long_count(data: bytes, position: int) -> tuple[int, int]:
    """Read a compact length of more than one byte; return it and the position after it."""
    value, position = read_uvarint(data, position)
    return value - 1, position


def null_value(field: str) -> NoReturn:
    """Raise for a null in a field that is not nullable."""
    raise MalformedError(f"{field} must not be null")


def invalid_count(field: str, count: int) -> NoReturn:
    """Raise for a count that is too large."""
    raise MalformedError(f"{field}: {count} elements do not fit into the bytes that remain, or are too many")


def string_too_long(field: str, length: int) -> NoReturn:
    """Raise for a string that other versions and internal records cannot hold, as Kafka does."""
    raise MalformedError(f"{field}: a string of {length} bytes")


def skip_tagged_fields(data: memoryview | bytes, position: int, budget: int) -> tuple[int, int]:
    """Skip unknown tagged fields; return the position after them and the remaining budget."""
    count, position = read_uvarint(data, position)
    budget -= count
    if budget < 0:
        invalid_count("tagged fields", count)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
    return position, budget


def _unpackers(code: str) -> Memo:
    return Memo(lambda count: Packer(f">{count}{code}").unpack_from)


UNPACKERS = {code: _unpackers(code) for code in "bhiqBHIQd?"}
CALLED = (
    error_code,
    invalid_count,
    long_count,
    null_value,
    read_uvarint,
    skip_tagged_fields,
    string_too_long,
    time,
)
GLOBALS: dict[str, Any] = {function.__name__: function for function in CALLED}
GLOBALS |= {"MalformedError": MalformedError, "durations": DURATIONS, "new": object.__new__, "uuids": UUIDS}


def min_bytes(field: Field, flexible: bool) -> int:
    """The minimum size of a field's value."""
    if field.is_array or field.kafka_type in ("bytes", "records"):
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.nullable else struct_min_bytes(field.struct)
    if field.kafka_type == "string":
        return 1 if flexible else 2
    return packer(FORMATS[field.kafka_type]).size


def struct_min_bytes(struct: Struct) -> int:
    """The minimum size of a struct."""
    return sum(min_bytes(field, struct.flexible) for field in struct.untagged()) + struct.flexible


def compile_reader(message: str, version: int, wire: Struct, shape: Struct) -> Reader:
    """Compile the function that reads a version's bytes into an object of the shape."""
    reader = _Reader(message, version, wire.flexible)
    source = reader.source
    source.line("end = len(data)")
    value = reader.struct(wire, shape, message)
    reader.flush()
    # Trailing bytes are no error, as in Kafka: librdkafka's Metadata v13 for all topics has three.
    source.line("if p > end: raise MalformedError('the message ends early')")
    source.line(f"return {value}")
    return source.function("read", "data, p, budget")


class _Reader:
    """Emits the lines of one reader."""

    def __init__(self, message: str, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(f"read {message} v{version}")
        self.source.names.update(GLOBALS)
        self.pending: list[tuple[str, str]] = []  # adjacent fixed-width fields, unpacked together by flush()

    def flush(self) -> None:
        if not self.pending:
            return
        unpacker = packer("".join(code for code, _ in self.pending))
        names = "".join(f"{name}, " for _, name in self.pending)
        self.pending.clear()
        self.source.line(f"{names}= {self.source.constant(unpacker.unpack_from)}(data, p)")
        self.source.line(f"p += {unpacker.size}")

    def struct(self, wire: Struct, shape: Struct, path: str) -> str:
        """Emit the reading of a struct; return the local name that holds it."""
        read: dict[str, str] = {}
        for field in wire.untagged():
            read[field.name] = self.field(field, self.target(field, shape, path), f"{path}.{field.name}")
        self.flush()
        if self.flexible:
            self.tags(wire, shape, path, read)
        return self.assemble(wire, shape, path, read)

    def target(self, field: Field, shape: Struct, path: str) -> Field:
        """The shape's field for a field of this version."""
        here = shape.find(field.name)
        if here is not None:
            return here
        first, *rest = parse_path(versions.MOVED_FIELDS[path][field.name].path)
        here = require(shape, first.name, path)
        for step in rest:
            assert here.struct is not None
            here = require(here.struct, step.name, path)
        return here

    def assemble(self, wire: Struct, shape: Struct, path: str, read: dict[str, str]) -> str:
        """Emit the creation of an object of the shape from the fields read."""
        values = {name: value for name, value in read.items() if shape.find(name) is not None}
        moves = versions.MOVED_FIELDS.get(path, {})
        nested: dict[str, dict[str, str]] = {}
        indexes: dict[str, str] = {}
        for name in read.keys() - values.keys():
            move = moves[name]
            value = read[name] if move.to_shape is None else f"{self.source.constant(move.to_shape)}({read[name]})"
            first, *rest = parse_path(move.path)
            indexes[first.name] = first.element
            nested.setdefault(first.name, {})[rest[0].name if rest else ""] = value
        for name, parts in nested.items():
            values[name] = self.rebuild(require(shape, name, path), indexes[name], parts)
        for name, fallback in versions.FALLBACK_FIELDS.get(path, {}).items():
            values.setdefault(name, read[fallback])
        for name in versions.EMPTY_MEANT_NULL.get(path, ()):
            if not require(wire, name, path).nullable:
                values[name] = f"{values[name]} or None"
        return self.create(shape, values)

    def rebuild(self, field: Field, index: str, parts: dict[str, str]) -> str:
        """Emit the value of a shape's field whose parts are fields of their own in old versions."""
        if "" in parts:
            return f"({parts['']},)" if index == "[0]" else parts[""]
        assert field.struct is not None
        if index == "[]":
            ((name, values),) = parts.items()
            created = self.source.fresh("l")
            self.source.line(f"{created} = []")
            self.source.line(f"for x in {values}:")
            self.source.depth += 1
            self.source.line(f"{created}.append({self.create(field.struct, {name: 'x'})})")
            self.source.depth -= 1
            return f"tuple({created})"
        created = self.create(field.struct, parts)
        return f"({created},)" if index == "[0]" else created

    def create(self, shape: Struct, values: dict[str, str]) -> str:
        """Emit the creation of an object by setting its slots, which is faster than a frozen dataclass's `__init__`."""
        assert not hasattr(shape.cls, "__post_init__")
        created = self.source.fresh("o")
        self.source.line(f"{created} = new({self.source.constant(shape.cls)})")
        for field in shape.fields:
            slot = self.source.constant(getattr(shape.cls, field.name).__set__)
            value = values[field.name] if field.name in values else self.source.constant(field.default)
            self.source.line(f"{slot}({created}, {value})")
        return created

    def field(self, field: Field, target: Field, path: str, nullable: bool | None = None) -> str:
        """Emit the reading of a field; return an expression for its value."""
        nullable = field.nullable if nullable is None else nullable
        if field.is_array:
            return self.array(field, target, path, nullable)
        if field.struct is not None:
            return self.nested(field, target, path, nullable)
        return self.primitive(field.kafka_type, path, nullable)

    def primitive(self, kafka_type: str, path: str, nullable: bool) -> str:
        if kafka_type in FORMATS:
            name = self.source.fresh("v")
            self.pending.append((FORMATS[kafka_type], name))
            return self.converted(name, kafka_type, nullable)
        self.flush()
        return self.blob(path, nullable, text=kafka_type == "string")

    def converted(self, name: str, kafka_type: str, nullable: bool) -> str:
        if kafka_type == "uuid":
            return f"uuids[{name}]"
        if kafka_type.startswith("timedelta"):
            return f"durations[{name}]"
        if kafka_type == "datetime_i64":
            return f"(None if {name} == -1 else time({name}))" if nullable else f"time({name})"
        return f"error_code({name})" if kafka_type == "error_code" else name

    def count(self, width: str) -> str:
        """Emit the reading of a length; -1 means null."""
        name = self.source.fresh("n")
        if self.flexible:
            self.source.line(f"{name} = data[p] - 1")
            self.source.line("p += 1")
            self.source.line(f"if {name} > 126: {name}, p = long_count(data, p - 1)")
        else:
            self.pending.append((width, name))
            self.flush()
        return name

    def blob(self, path: str, nullable: bool, text: bool) -> str:
        """Emit the reading of a string or bytes: a length and its content."""
        length = self.count("h" if text else "i")
        name = self.source.fresh("v")
        decode = ".decode()" if text else ""
        if text and self.flexible:
            self.source.line(f"if {length} > {STRING_BYTES_MAX}: string_too_long({path!r}, {length})")
        self.source.line(f"if {length} >= 0: {name} = data[p : p + {length}]{decode}; p += {length}")
        if nullable:
            self.source.line(f"elif {length} == -1: {name} = None")
        self.source.line(f"else: null_value({path!r})")
        return name

    def array(self, field: Field, target: Field, path: str, nullable: bool) -> str:
        self.flush()
        count, name = self.count("i"), self.source.fresh("v")
        element_size = struct_min_bytes(field.struct) if field.struct else self.element_size(field)
        if nullable:
            self.source.line(f"if {count} == -1: {name} = None")
            self.source.line("else:")
            self.source.depth += 1
        self.check(count, element_size, path)
        if field.struct is None and field.kafka_type in FORMATS and field.kafka_type != "uuid":
            self.numbers(FORMATS[field.kafka_type], count, name)
        else:
            self.elements(field, target, path, count, name)
        if nullable:
            self.source.depth -= 1
        return name

    def check(self, count: str, element_size: int, path: str) -> None:
        """Emit the check of a count against the bytes that remain and the budget."""
        room = f"(end - p) // {element_size}" if element_size > 1 else "end - p"
        self.source.line(f"if not 0 <= {count} <= {room} or (budget := budget - {count}) < 0:")
        self.source.line(f"    invalid_count({path!r}, {count})")

    def element_size(self, field: Field) -> int:
        if field.kafka_type in FORMATS:
            return packer(FORMATS[field.kafka_type]).size
        return 1 if self.flexible else 2

    def numbers(self, code: str, count: str, name: str) -> None:
        self.source.names[f"unpack_{code}"] = UNPACKERS[code]
        self.source.line(f"{name} = unpack_{code}[{count}](data, p)")
        self.source.line(f"p += {packer(code).size} * {count}")

    def elements(self, field: Field, target: Field, path: str, count: str, name: str) -> None:
        elements = self.source.fresh("l")
        self.source.line(f"{elements} = []")
        self.source.line(f"for _ in range({count}):")
        self.source.depth += 1
        if field.struct is not None:
            assert target.struct is not None
            value = self.struct(field.struct, target.struct, path)
        else:
            value = self.primitive(field.kafka_type, path, nullable=False)
            self.flush()
        self.source.line(f"{elements}.append({value})")
        self.source.depth -= 1
        self.source.line(f"{name} = tuple({elements})")

    def nested(self, field: Field, target: Field, path: str, nullable: bool) -> str:
        """Emit the reading of a nested struct; before a nullable one a byte is negative for null (KIP-893)."""
        assert field.struct is not None and target.struct is not None
        if not nullable:
            return self.struct(field.struct, target.struct, path)
        marker, name = self.source.fresh("v"), self.source.fresh("v")
        self.pending.append(("b", marker))
        self.flush()
        self.source.line(f"if {marker} < 0: {name} = None")
        self.source.line("else:")
        self.source.depth += 1
        value = self.struct(field.struct, target.struct, path)
        self.source.line(f"{name} = {value}")
        self.source.depth -= 1
        return name

    def tags(self, wire: Struct, shape: Struct, path: str, read: dict[str, str]) -> None:
        fields = wire.tagged()
        if not fields:
            self.source.line("if data[p]: p, budget = skip_tagged_fields(data, p, budget)")
            self.source.line("else: p += 1")
            return
        for field in fields:
            target = self.target(field, shape, path)
            default = target.struct.default() if target.struct and not target.is_array else field.default
            read[field.name] = self.source.fresh("v")
            self.source.line(f"{read[field.name]} = {self.source.constant(default)}")
        count, tag, length, stop = (self.source.fresh("n") for _ in range(4))
        self.source.line(f"{count}, p = read_uvarint(data, p)")
        self.check(count, TAG_BYTES_MIN, "tagged fields")
        self.source.line(f"for _ in range({count}):")
        self.source.depth += 1
        self.source.line(f"{tag}, p = read_uvarint(data, p)")
        self.source.line(f"{length}, p = read_uvarint(data, p)")
        self.source.line(f"{stop} = p + {length}")
        for field in fields:
            self.source.line(f"if {tag} == {field.tag}:")
            self.source.depth += 1
            value = self.field(field, self.target(field, shape, path), f"{path}.{field.name}", nullable=False)
            self.flush()
            self.source.line(f"{read[field.name]} = {value}")
            self.source.line(
                f"if p != {stop}: raise MalformedError('a tagged field does not have its declared length')"
            )
            self.source.depth -= 1
        self.source.line(f"p = {stop}")
        self.source.depth -= 1

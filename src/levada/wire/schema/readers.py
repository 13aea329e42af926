"""Compiles readers: a function per message and version from bytes to the shape.

Readers are for hostile bytes. Nothing is made from a count before it is checked against the bytes that remain and
against a budget of elements for the whole message. A length that points past the end needs no check of its own:
slices stop at the end, and the position past it fails at the next read or at the end of the message.
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
STRING_BYTES_MAX = 32_767  # what the two bytes of old versions can count
LONGEST = timedelta.min // -MILLISECOND
LATEST = (datetime.max.replace(tzinfo=EPOCH.tzinfo) - EPOCH) // MILLISECOND
ERRORS = {code.value: code for code in ErrorCode}


Reader = Callable[
    [bytes, int, int], Any
]  # from the bytes, where the message begins, and the elements it may have


class MalformedError(Exception):
    """The bytes are no message of this version."""


def uuid(data: bytes) -> UUID | None:
    """A UUID; all zeros stand for none."""
    return None if data == NO_UUID else UUID(bytes=data)


UUIDS = Memo(uuid)


def duration(milliseconds: int) -> timedelta:
    """A duration; one beyond Python's years is as long as Python can tell."""
    return timedelta(milliseconds=max(-LONGEST, min(milliseconds, LONGEST)))


DURATIONS = Memo(duration)


def moment(milliseconds: int) -> datetime:
    """A moment after 1970; one beyond the year 9999 is the last that Python can tell."""
    return EPOCH + timedelta(milliseconds=max(0, min(milliseconds, LATEST)))


def error(code: int) -> ErrorCode:
    """An error code; clients take unknown ones for UNKNOWN_SERVER_ERROR."""
    return ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def long_count(data: bytes, position: int) -> tuple[int, int]:
    """A length of more than one byte and the position after it."""
    value, position = read_uvarint(data, position)
    return value - 1, position


def null(what: str) -> NoReturn:
    """Refuse a null."""
    raise MalformedError(f"{what} must not be null")


def wrong_count(what: str, count: int) -> NoReturn:
    """Refuse a count."""
    raise MalformedError(f"{what}: {count} elements do not fit into the bytes that remain, or are too many")


def too_long(what: str, length: int) -> NoReturn:
    """Refuse a string that other versions and internal records could not hold, as Kafka does."""
    raise MalformedError(f"{what}: a string of {length} bytes")


def skip_tagged_fields(data: memoryview | bytes, position: int, budget: int) -> tuple[int, int]:
    """Pass over tagged fields that this version does not know; the position after them and the budget left."""
    count, position = read_uvarint(data, position)
    budget -= count
    if budget < 0:
        wrong_count("tagged fields", count)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
    return position, budget


def _unpackers(code: str) -> Memo:
    return Memo(lambda count: Packer(f">{count}{code}").unpack_from)


UNPACKERS = {code: _unpackers(code) for code in "bhiqBHIQd?"}
VOCABULARY = {
    f.__name__: f
    for f in (read_uvarint, moment, error, long_count, null, wrong_count, too_long, skip_tagged_fields)
} | {
    "MalformedError": MalformedError,
    "durations": DURATIONS,
    "new": object.__new__,
    "uuids": UUIDS,
}


def smallest(field: Field, flexible: bool) -> int:
    """The fewest bytes that a value can take."""
    if field.is_array or field.kafka_type in ("bytes", "records"):
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.nullable else smallest_struct(field.struct)
    if field.kafka_type == "string":
        return 1 if flexible else 2
    return packer(FORMATS[field.kafka_type]).size


def smallest_struct(struct: Struct) -> int:
    """The fewest bytes that a struct can take."""
    return sum(smallest(field, struct.flexible) for field in struct.untagged()) + struct.flexible


def compile_reader(message: str, version: int, old: Struct, shape: Struct) -> Reader:
    """The function that reads a version's bytes into an object of the shape."""
    reader = _Reader(message, version, old.flexible)
    source = reader.source
    source.line("end = len(data)")
    value = reader.struct(old, shape, message)
    reader.flush()
    # More bytes than fields are no error, as in Kafka: librdkafka's Metadata v13 for all topics has three too many.
    source.line("if p > end: raise MalformedError('ends early')")
    source.line(f"return {value}")
    return source.function("read", "data, p, budget")


class _Reader:
    """Emits the lines of one reader."""

    def __init__(self, message: str, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(f"read {message} v{version}")
        self.source.names.update(VOCABULARY)
        self.pending: list[tuple[str, str]] = []  # fixed-width fields that wait to be unpacked together

    def flush(self) -> None:
        if not self.pending:
            return
        unpacker = packer("".join(code for code, _ in self.pending))
        names = "".join(f"{name}, " for _, name in self.pending)
        self.pending.clear()
        self.source.line(f"{names}= {self.source.constant(unpacker.unpack_from)}(data, p)")
        self.source.line(f"p += {unpacker.size}")

    def struct(self, old: Struct, shape: Struct, path: str) -> str:
        """Read a struct; the local name that holds it."""
        read: dict[str, str] = {}
        for field in old.untagged():
            read[field.name] = self.field(field, self.target(field, shape, path), f"{path}.{field.name}")
        self.flush()
        if self.flexible:
            self.tags(old, shape, path, read)
        return self.make(old, shape, path, read)

    def target(self, field: Field, shape: Struct, path: str) -> Field:
        """Where the shape keeps a field of this version."""
        here = shape.find(field.name)
        if here is not None:
            return here
        first, *rest = parse_path(versions.MOVES[path][field.name].path)
        here = require(shape, first.name, path)
        for place in rest:
            assert here.struct is not None
            here = require(here.struct, place.name, path)
        return here

    def make(self, old: Struct, shape: Struct, path: str, read: dict[str, str]) -> str:
        """Make an object of the shape from what was read."""
        values = {name: value for name, value in read.items() if shape.find(name) is not None}
        moves = versions.MOVES.get(path, {})
        nested: dict[str, dict[str, str]] = {}
        entries: dict[str, str] = {}
        for name in read.keys() - values.keys():
            move = moves[name]
            value = read[name] if move.lift is None else f"{self.source.constant(move.lift)}({read[name]})"
            first, *rest = parse_path(move.path)
            entries[first.name] = first.entry
            nested.setdefault(first.name, {})[rest[0].name if rest else ""] = value
        for name, parts in nested.items():
            values[name] = self.enter(require(shape, name, path), entries[name], parts)
        for name, stand_in in versions.STAND_INS.get(path, {}).items():
            values.setdefault(name, read[stand_in])
        for name in versions.EMPTY_WAS_NULL.get(path, ()):
            if not require(old, name, path).nullable:
                values[name] = f"{values[name]} or None"
        return self.call(shape, values)

    def enter(self, field: Field, entry: str, parts: dict[str, str]) -> str:
        """The value of a shape's field that old versions spread over fields of their own."""
        if "" in parts:
            return f"({parts['']},)" if entry == "[0]" else parts[""]
        assert field.struct is not None
        if entry == "[]":
            ((name, values),) = parts.items()
            made = self.source.fresh("l")
            self.source.line(f"{made} = []")
            self.source.line(f"for x in {values}:")
            self.source.depth += 1
            self.source.line(f"{made}.append({self.call(field.struct, {name: 'x'})})")
            self.source.depth -= 1
            return f"tuple({made})"
        made = self.call(field.struct, parts)
        return f"({made},)" if entry == "[0]" else made

    def call(self, shape: Struct, values: dict[str, str]) -> str:
        """Make an object by setting its slots, a quarter of the price of a frozen dataclass's `__init__`."""
        assert not hasattr(shape.cls, "__post_init__")
        made = self.source.fresh("o")
        self.source.line(f"{made} = new({self.source.constant(shape.cls)})")
        for field in shape.fields:
            slot = self.source.constant(getattr(shape.cls, field.name).__set__)
            value = values[field.name] if field.name in values else self.source.constant(field.default)
            self.source.line(f"{slot}({made}, {value})")
        return made

    def field(self, field: Field, target: Field, path: str, nullable: bool | None = None) -> str:
        """Read a field; an expression for its value."""
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
            return f"(None if {name} == -1 else moment({name}))" if nullable else f"moment({name})"
        return f"error({name})" if kafka_type == "error_code" else name

    def count(self, width: str) -> str:
        """Read a length; -1 stands for null."""
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
        """A string or bytes: a length, then what it says."""
        length = self.count("h" if text else "i")
        name = self.source.fresh("v")
        decode = ".decode()" if text else ""
        if text and self.flexible:
            self.source.line(f"if {length} > {STRING_BYTES_MAX}: too_long({path!r}, {length})")
        self.source.line(f"if {length} >= 0: {name} = data[p : p + {length}]{decode}; p += {length}")
        if nullable:
            self.source.line(f"elif {length} == -1: {name} = None")
        self.source.line(f"else: null({path!r})")
        return name

    def array(self, field: Field, target: Field, path: str, nullable: bool) -> str:
        self.flush()
        count, name = self.count("i"), self.source.fresh("v")
        element_size = smallest_struct(field.struct) if field.struct else self.element_size(field)
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
        """No count is believed before the bytes that remain and the budget are asked."""
        room = f"(end - p) // {element_size}" if element_size > 1 else "end - p"
        self.source.line(f"if not 0 <= {count} <= {room} or (budget := budget - {count}) < 0:")
        self.source.line(f"    wrong_count({path!r}, {count})")

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
        """A struct in place; a nullable one follows a byte that says whether it is there (KIP-893)."""
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

    def tags(self, old: Struct, shape: Struct, path: str, read: dict[str, str]) -> None:
        fields = old.tagged()
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
                f"if p != {stop}: raise MalformedError('a tagged field is not as long as it says')"
            )
            self.source.depth -= 1
        self.source.line(f"p = {stop}")
        self.source.depth -= 1

"""Declares the record types of internal topics field by field, since kio has no classes for them.

A record's key begins with the id of its type, its value with the version it is written in. `struct` declares the
fields of one version; a `RecordFormat` holds all record types of an internal topic:

    GROUP = RecordType(2, GroupKey, struct(GroupKey, {"group": STRING}), {3: struct(GroupValue, ...)}, write_version=3)
    RecordFormat(OFFSET, GROUP).encode(GroupKey("g"), value)
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct as Packer
from struct import error as StructError
from typing import Any, Generic, NamedTuple, TypeVar

from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import encode_uvarint, read_uvarint

T = TypeVar("T")

Read = Callable[[bytes, int], tuple[Any, int]]
Write = Callable[[bytearray, Any], None]


class FieldType(NamedTuple):
    """Reads a value (returning the position after it) and writes it; `code` is a number's code in Python's `struct`."""

    read: Read
    write: Write
    code: str = ""


def _number(code: str) -> FieldType:
    packer = Packer(f">{code}")
    size, pack, unpack = packer.size, packer.pack, packer.unpack_from

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    def write(target: bytearray, value: Any) -> None:
        target += pack(value)

    return FieldType(read, write, code)


INT8, INT16, INT32, INT64, BOOL = map(_number, "bhiq?")


def _read_compact_length(data: bytes, position: int) -> tuple[int, int]:
    length, position = read_uvarint(data, position)
    return length - 1, position


def _write_compact_length(target: bytearray, length: int) -> None:
    if length < 0x7F:
        target.append(length + 1)
    else:
        target += encode_uvarint(length + 1)


_COMPACT = FieldType(_read_compact_length, _write_compact_length)


def _blob(length: FieldType, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], null: bool) -> FieldType:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        size, position = length.read(data, position)
        if size < 0 and null:
            return None, position
        if not 0 <= size <= len(data) - position:
            raise IndexError("a field ends after its record")
        return decode(data[position : position + size]), position + size

    def write(target: bytearray, value: Any) -> None:
        if value is None and null:
            length.write(target, -1)
            return
        blob = encode(value)
        length.write(target, len(blob))
        target += blob

    return FieldType(read, write)


STRING = _blob(INT16, bytes.decode, str.encode, null=False)
NULLABLE_STRING = _blob(INT16, bytes.decode, str.encode, null=True)
BYTES = _blob(INT32, bytes, bytes, null=False)
NULLABLE_BYTES = _blob(INT32, bytes, bytes, null=True)
COMPACT_STRING = _blob(_COMPACT, bytes.decode, str.encode, null=False)
COMPACT_NULLABLE_STRING = _blob(_COMPACT, bytes.decode, str.encode, null=True)
COMPACT_BYTES = _blob(_COMPACT, bytes, bytes, null=False)


def _read_uuid(data: bytes, position: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=data[position : position + 16]), position + 16


def _write_uuid(target: bytearray, value: uuid.UUID) -> None:
    target += value.bytes


UUID = FieldType(_read_uuid, _write_uuid)


def _array(length: FieldType, item: FieldType, null: bool) -> FieldType:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        count, position = length.read(data, position)
        if count < 0 and null:
            return None, position
        if not 0 <= count <= len(data) - position:
            raise IndexError("more elements than bytes")
        items = []
        for _ in range(count):
            one, position = item.read(data, position)
            items.append(one)
        return tuple(items), position

    def write(target: bytearray, value: Sequence[Any] | None) -> None:
        if value is None and null:
            length.write(target, -1)
            return
        assert value is not None
        length.write(target, len(value))
        for one in value:
            item.write(target, one)

    return FieldType(read, write)


def array(item: FieldType, *, null: bool = False) -> FieldType:
    """An array as a tuple, its length as four bytes."""
    return _array(INT32, item, null)


def compact_array(item: FieldType, *, null: bool = False) -> FieldType:
    """An array as a tuple, its length as a varint."""
    return _array(_COMPACT, item, null)


class Tag(NamedTuple):
    """A tagged field; written only if it differs from its default."""

    name: str
    type: FieldType
    default: Any


def struct(
    make: Callable[..., T],
    fields: Mapping[str, FieldType],
    *,
    flexible: bool = False,
    tags: Mapping[int, Tag] | None = None,
    absent: Mapping[str, Any] | None = None,
) -> FieldType:
    """Declare a struct with its fields in order; `absent` gives the values of fields that this version lacks."""
    known, missing = tags or {}, dict(absent or {})
    steps = list(_steps(fields))

    def read(data: bytes, position: int) -> tuple[T, int]:
        values = dict(missing)
        for name, field_type in fields.items():
            values[name], position = field_type.read(data, position)
        if flexible:
            values |= {tag.name: tag.default for tag in known.values()}
            found, position = _read_tags(data, position, known)
            values |= found
        return make(**values), position

    def write(target: bytearray, value: Any) -> None:
        for get, put in steps:
            put(target, get(value))
        if flexible:
            _write_tags(target, value, known)

    return FieldType(read, write)


def _steps(fields: Mapping[str, FieldType]) -> Iterator[tuple[Callable[[Any], Any], Write]]:
    """Yield a getter and a writer per field; adjacent numbers share one."""
    for is_numbers, run in groupby(fields.items(), lambda field: bool(field[1].code)):
        adjacent = list(run)
        if is_numbers and len(adjacent) > 1:
            pack = Packer(">" + "".join(field_type.code for _, field_type in adjacent)).pack
            yield attrgetter(*(name for name, _ in adjacent)), _write_numbers(pack)
        else:
            yield from ((attrgetter(name), field_type.write) for name, field_type in adjacent)


def _write_numbers(pack: Callable[..., bytes]) -> Write:
    def write(target: bytearray, values: Any) -> None:
        target += pack(*values)

    return write


def _read_tags(data: bytes, position: int, known: Mapping[int, Tag]) -> tuple[dict[str, Any], int]:
    values = {}
    count, position = read_uvarint(data, position)
    for _ in range(count):
        number, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if size > len(data) - position:
            raise IndexError("a tagged field ends after its record")
        tag = known.get(number)
        if tag is not None:
            values[tag.name], _ = tag.type.read(data, position)
        position += size
    return values, position


def _write_tags(target: bytearray, value: Any, known: Mapping[int, Tag]) -> None:
    if not known:
        target.append(0)
        return
    present = {number: tag for number, tag in sorted(known.items()) if getattr(value, tag.name) != tag.default}
    target += encode_uvarint(len(present))
    for number, tag in present.items():
        content = bytearray()
        tag.type.write(content, getattr(value, tag.name))
        target += encode_uvarint(number)
        target += encode_uvarint(len(content))
        target += content


class RecordType(NamedTuple):
    """One record type: the id its keys begin with, the class of its keys, and its values by version."""

    id: int
    key_class: type[Any]
    key: FieldType
    values: Mapping[int, FieldType]
    write_version: int | Callable[[Any], int]  # the version in which values are written


Key = TypeVar("Key")


class RecordFormat(Generic[Key]):
    """All record types of one internal topic. Of two types with one key class the later is written."""

    def __init__(self, *record_types: RecordType) -> None:
        self._by_id = {record_type.id: record_type for record_type in record_types}
        self._by_key_class = {record_type.key_class: record_type for record_type in record_types}

    def encode(self, key: Key, value: Any) -> tuple[bytes, bytes | None]:
        """Encode a record; a value of None makes a tombstone."""
        record_type = self._by_key_class[type(key)]
        key_bytes = bytearray(record_type.id.to_bytes(2, "big"))
        record_type.key.write(key_bytes, key)
        if value is None:
            return bytes(key_bytes), None
        write_version = record_type.write_version
        version = write_version if isinstance(write_version, int) else write_version(value)
        value_bytes = bytearray(version.to_bytes(2, "big"))
        record_type.values[version].write(value_bytes, value)
        return bytes(key_bytes), bytes(value_bytes)

    def decode(self, key: bytes, value: bytes | None) -> tuple[Key, Any] | None:
        """Decode a record; None for an unknown record type. Raise CORRUPT_MESSAGE if it is malformed."""
        try:
            type_id, position = INT16.read(key, 0)
            record_type = self._by_id.get(type_id)
            if record_type is None:
                return None
            decoded_key, _ = record_type.key.read(key, position)
            if value is None:
                return decoded_key, None
            version, position = INT16.read(value, 0)
            value_type = record_type.values.get(version)
            if value_type is None:
                raise IndexError(f"unknown version {version}")
            return decoded_key, value_type.read(value, position)[0]
        except (IndexError, ValueError, StructError) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"malformed record of an internal topic: {error}") from None

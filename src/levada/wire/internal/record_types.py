"""How the records of internal topics are laid out, declared field by field, since kio has no classes for them.

A record's key begins with a number that says what it is, its value with the version it is written in. `struct`
declares the fields of one version; a `RecordFormat` is the table of all kinds of an internal topic:

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

T = TypeVar("T")

Read = Callable[[bytes, int], tuple[Any, int]]
Write = Callable[[bytearray, Any], None]


class FieldType(NamedTuple):
    """How a value is read (with the position after it) and written; `code` is that of a number in Python's `struct`."""

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


def _read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise IndexError("a varint of more than five bytes")


def _write_uvarint(target: bytearray, value: int) -> None:
    while value > 0x7F:
        target.append((value & 0x7F) | 0x80)
        value >>= 7
    target.append(value)


def _read_compact_length(data: bytes, position: int) -> tuple[int, int]:
    length, position = _read_uvarint(data, position)
    return length - 1, position


def _write_compact_length(target: bytearray, length: int) -> None:
    if length < 0x7F:
        target.append(length + 1)
    else:
        _write_uvarint(target, length + 1)


_COMPACT = FieldType(_read_compact_length, _write_compact_length)


def _blob(
    length: FieldType, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], null: bool
) -> FieldType:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        size, position = length.read(data, position)
        if size < 0 and null:
            return None, position
        if not 0 <= size <= len(data) - position:
            raise IndexError("a field ends beyond its record")
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
            raise IndexError("more items than bytes")
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
    """A list as a tuple, counted with four bytes."""
    return _array(INT32, item, null)


def compact_array(item: FieldType, *, null: bool = False) -> FieldType:
    """A list as a tuple, counted with a varint."""
    return _array(_COMPACT, item, null)


class Tag(NamedTuple):
    """A tagged field: written only when it is not its default."""

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
    """Fields in their order; `absent` gives values to those that this version does not have."""
    known, missing = tags or {}, dict(absent or {})
    steps = list(_steps(fields))

    def read(data: bytes, position: int) -> tuple[T, int]:
        values = dict(missing)
        for name, kind in fields.items():
            values[name], position = kind.read(data, position)
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
    """What is taken of a value and how it is written, field by field; numbers in a row go in one step."""
    for is_numbers, run in groupby(fields.items(), lambda field: bool(field[1].code)):
        row = list(run)
        if is_numbers and len(row) > 1:
            pack = Packer(">" + "".join(kind.code for _, kind in row)).pack
            yield attrgetter(*(name for name, _ in row)), _write_row(pack)
        else:
            yield from ((attrgetter(name), kind.write) for name, kind in row)


def _write_row(pack: Callable[..., bytes]) -> Write:
    def write(target: bytearray, values: Any) -> None:
        target += pack(*values)

    return write


def _read_tags(data: bytes, position: int, known: Mapping[int, Tag]) -> tuple[dict[str, Any], int]:
    values = {}
    count, position = _read_uvarint(data, position)
    for _ in range(count):
        number, position = _read_uvarint(data, position)
        size, position = _read_uvarint(data, position)
        if size > len(data) - position:
            raise IndexError("a tagged field ends beyond its record")
        tag = known.get(number)
        if tag is not None:
            values[tag.name], _ = tag.type.read(data, position)
        position += size
    return values, position


def _write_tags(target: bytearray, value: Any, known: Mapping[int, Tag]) -> None:
    if not known:
        target.append(0)
        return
    present = {
        number: tag for number, tag in sorted(known.items()) if getattr(value, tag.name) != tag.default
    }
    _write_uvarint(target, len(present))
    for number, tag in present.items():
        content = bytearray()
        tag.type.write(content, getattr(value, tag.name))
        _write_uvarint(target, number)
        _write_uvarint(target, len(content))
        target += content


class RecordType(NamedTuple):
    """One kind of record: the number its keys begin with, the class of its keys, and its values by version."""

    number: int
    key_class: type[Any]
    key: FieldType
    values: Mapping[int, FieldType]
    write_version: int | Callable[[Any], int]  # the version in which a value is written


Key = TypeVar("Key")


class RecordFormat(Generic[Key]):
    """All kinds of records of one internal topic. Of two kinds with the same class of keys the later is written."""

    def __init__(self, *kinds: RecordType) -> None:
        self._by_number = {kind.number: kind for kind in kinds}
        self._by_class = {kind.key_class: kind for kind in kinds}

    def encode(self, key: Key, value: Any) -> tuple[bytes, bytes | None]:
        """A record; without a value it takes back what the key had."""
        kind = self._by_class[type(key)]
        head = bytearray(kind.number.to_bytes(2, "big"))
        kind.key.write(head, key)
        if value is None:
            return bytes(head), None
        version = kind.write_version if isinstance(kind.write_version, int) else kind.write_version(value)
        body = bytearray(version.to_bytes(2, "big"))
        kind.values[version].write(body, value)
        return bytes(head), bytes(body)

    def decode(self, key: bytes, value: bytes | None) -> tuple[Key, Any] | None:
        """What a record says; None for a kind that is not known. CORRUPT_MESSAGE if it cannot be read."""
        try:
            number, position = INT16.read(key, 0)
            kind = self._by_number.get(number)
            if kind is None:
                return None
            found, _ = kind.key.read(key, position)
            if value is None:
                return found, None
            version, position = INT16.read(value, 0)
            layout = kind.values.get(version)
            if layout is None:
                raise IndexError(f"version {version} is not known")
            return found, layout.read(value, position)[0]
        except (IndexError, ValueError, StructError) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a journal's record is broken: {error}") from None

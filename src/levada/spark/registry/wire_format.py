"""Confluent's wire format: a zero byte, the id of a schema in four bytes, and the data.

Before the data of Protocol Buffers is the path of indexes to the message within the schema.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from levada.spark.errors import SchemaRegistryError, warn
from levada.spark.formats.rows import ValueDecoder, decode_rows, skip_bytes
from levada.spark.registry.client import Schema, SchemaRegistry, UnknownSchema
from levada.spark.registry.options import UNKNOWN_IDS_MAX

MAGIC = 0
PREFIX_BYTES = 5
NO_ID, NULL = -1, -2
WARNINGS_MAX = 5  # in a task
INDEXES_MAX = 32  # nested messages
VARINT_BYTES_MAX = 5


def prefix(schema_id: int) -> bytes:
    """What comes before the data."""
    return struct.pack(">bI", MAGIC, schema_id)


def schema_ids(values: Any) -> Any:
    """The schema id of each value as a numpy array; NO_ID for nulls and for values without one."""
    _, edges, data = values.buffers()
    found = np.full(len(values), NO_ID, np.int64)
    if not len(values) or data is None:
        return found
    ends = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8)
    framed = np.diff(ends) >= PREFIX_BYTES
    framed[framed] = content[ends[:-1][framed]] == MAGIC
    if values.null_count:
        framed &= values.is_valid().to_numpy(zero_copy_only=False)
    starts = ends[:-1][framed]
    found[framed] = sum(content[starts + 1 + byte].astype(np.int64) << (24 - 8 * byte) for byte in range(4))
    return found


class RegistryDecoder:
    """Decodes each value with the schema that its id names. A value without a known id is malformed.

    An unknown id is requested once for each decoder, that is for each task. More than `unknown_ids_max` fail the
    task: probably the format or the registry is another one.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        kind: Any,
        create: Callable[[Schema], ValueDecoder],
        unknown_ids_max: int = UNKNOWN_IDS_MAX,
    ) -> None:
        self._registry, self._kind, self._create, self._unknown_ids_max = registry, kind, create, unknown_ids_max
        self._malformed = _Malformed(kind)
        self._decoders: dict[int, ValueDecoder] = {NO_ID: self._malformed}
        self._unknown_ids = self._warnings = 0

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of decoded values, and an array that is true where one is malformed."""
        present = values.is_valid().to_numpy(zero_copy_only=False)
        ids = np.where(present, schema_ids(values), NULL)
        found = np.unique(ids[present]).tolist()
        if len(found) <= 1:
            return self._decoder(found[0] if found else NO_ID).decode(skip_bytes(values, PREFIX_BYTES))
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        parts = [
            self._decode_rows(int(ids[rows[0]]), values, rows)
            for rows in np.split(order, np.flatnonzero(np.diff(ordered)) + 1)
        ]
        back = pa.array(np.argsort(order))
        decoded, bad = zip(*parts, strict=True)
        return pa.concat_arrays(decoded).take(back), pa.concat_arrays(bad).take(back)

    def _decode_rows(self, schema_id: int, values: Any, rows: Any) -> tuple[Any, Any]:
        if schema_id == NULL:
            return pa.nulls(len(rows), self._kind), pa.repeat(False, len(rows))
        return self._decoder(schema_id).decode(skip_bytes(values.take(pa.array(rows)), PREFIX_BYTES))

    def _decoder(self, schema_id: int) -> ValueDecoder:
        found = self._decoders.get(schema_id)
        if found is None:
            found = self._decoders[schema_id] = self._new_decoder(schema_id)
        return found

    def _new_decoder(self, schema_id: int) -> ValueDecoder:
        try:
            return self._create(self._registry.schema(schema_id))
        except UnknownSchema as error:
            self._count_unknown()
            self._warn(schema_id, str(error))
        except ValueError as error:
            self._warn(schema_id, f"{error}; the schema is that of the schema registry at {self._registry.url}")
        return self._malformed

    def _count_unknown(self) -> None:
        self._unknown_ids += 1
        if self._unknown_ids > self._unknown_ids_max:
            raise SchemaRegistryError(
                f"the schema registry at {self._registry.url} does not know {self._unknown_ids} schema ids of a task: "
                "the values are not in Confluent's wire format, or their schemas are in another registry. Check option "
                "schema.registry.url, or read the column as binary, without valueFormat or keyFormat. If the registry "
                "has lost schemas, raise option schema.registry.max.unknown.ids"
            ) from None

    def _warn(self, schema_id: int, why: str) -> None:
        self._warnings += 1
        if self._warnings <= WARNINGS_MAX:
            warn(f"values with the schema id {schema_id} are malformed: {why}")
        elif self._warnings == WARNINGS_MAX + 1:
            warn(f"values with more schema ids are malformed, by the schema registry at {self._registry.url}")


class _Malformed:
    """Decodes nothing."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def decode(self, values: Any) -> tuple[Any, Any]:
        def refuse(_: bytes) -> NoReturn:
            raise ValueError("no schema")

        return decode_rows(values, refuse, self._kind)


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The path to a message: a count and its indexes as zigzag varints; one zero stands for the first message."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(indexes), *indexes))


def split_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """The path to a message, and where the message begins; ValueError if there is no path."""
    count, position = _read_varint(value, 0)
    if count == 0:
        return (0,), position
    if not 0 < count <= INDEXES_MAX:
        raise ValueError(f"{count} indexes of messages")
    found = []
    for _ in range(count):
        index, position = _read_varint(value, position)
        found.append(index)
    return tuple(found), position


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _read_varint(value: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    number = 0
    for index, byte in enumerate(value[position : position + VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + index + 1
    raise ValueError("the value ends within the indexes of its message")

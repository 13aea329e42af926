"""Golden requests cut into pieces, so that each field of each can be replaced by something hostile.

A request of every API and version is written here once more, from kio's field types alone and independently of the
broker's codec. What comes out is a list of pieces (field, kind, bytes): joining them gives a valid request.
"""

import dataclasses
import struct
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from levada.wire import batches

TOPIC = "golden"
DOOMED = "doomed"  # what golden requests create and delete
CORRELATION_ID = 77


class Piece(NamedTuple):
    """One field as it stands in the request."""

    field: str  # path of names
    kind: str  # a Kafka type, `count` of an array, `presence` of a struct, or `tags`
    data: bytes
    flexible: bool


class Golden(NamedTuple):
    """A valid request."""

    api: str
    api_key: int
    version: int
    flexible: bool
    body: list[Piece]

    def frame(self, body: bytes | None = None, correlation_id: int = CORRELATION_ID) -> bytes:
        """The request without its size."""
        joined = b"".join(piece.data for piece in self.body) if body is None else body
        return header(self.api_key, self.version, self.flexible, correlation_id) + joined


def header(api_key: int, version: int, flexible: bool, correlation_id: int = CORRELATION_ID) -> bytes:
    """A request header with the client id `bad`."""
    return struct.pack(">hhih", api_key, version, correlation_id, 3) + b"bad" + (b"\0" if flexible else b"")


def apis() -> Iterator[tuple[str, int]]:
    """Every API that a client could name, with its key."""
    for key, name in sorted(api_key_map.items()):
        yield name, key


def versions(api: str) -> list[int]:
    return sorted(schema_name_map[api])


def golden(api: str, version: int, topic_id: uuid.UUID) -> Golden:
    """The valid request of an API in a version."""
    schema: Any = load_entity_schema(api, version, EntityType.request)
    writer = _Writer(api, schema.__flexible__, topic_id)
    writer.entity(schema, "")
    header_flexible = schema.__header_schema__.__flexible__
    return Golden(api, int(schema.__api_key__), version, header_flexible, writer.pieces)


def uvarint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(data) + bytes([number])


def length(size: int, flexible: bool, legacy: str = ">i") -> bytes:
    """The size before a string, bytes or array; -1 is null."""
    return uvarint(size + 1) if flexible else struct.pack(legacy, size)


def batch() -> bytes:
    """A valid batch of two records."""
    records = [batches.Record(0, 1_700_000_000_000, b"key", b"value" * 5, (("h", b"v"),)) for _ in range(2)]
    return bytes(batches.encode(records))


INTEGERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint16": ">H", "uint32": ">I",
    "timedelta_i32": ">i", "timedelta_i64": ">q", "error_code": ">h", "datetime_i64": ">q",
}  # fmt: skip

# Values that make a request pass as far as possible; all other numbers are 0.
NUMBERS = {
    "acks": 1, "timeout": 1_000, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "replica_id": -1,
    "session_epoch": -1, "current_leader_epoch": -1, "last_fetched_epoch": -1, "num_partitions": 1,
    "replication_factor": 1, "resource_type": 2, "count": 2, "response_partition_limit": 10,
    "transaction_timeout": 1_000, "producer_id": -1, "producer_epoch": -1, "timestamp": -1, "generation_id": -1,
    "leader_epoch": -1, "log_start_offset": -1,
}  # fmt: skip


class _Writer:
    def __init__(self, api: str, flexible: bool, topic_id: uuid.UUID) -> None:
        self.api = api
        self.flexible = flexible
        self.topic_id = topic_id
        self.pieces: list[Piece] = []

    def add(self, field: str, kind: str, data: bytes) -> None:
        self.pieces.append(Piece(field, kind, data, self.flexible))

    def entity(self, schema: type[Any], path: str) -> None:
        hints = typing.get_type_hints(schema)
        for field in dataclasses.fields(schema):
            if "tag" not in field.metadata:
                kind = field.metadata.get("kafka_type", "")
                self.value(hints[field.name], f"{path}{field.name}", field.name, kind)
        if self.flexible:
            self.add(f"{path}tags", "tags", b"\0")

    def value(self, hint: Any, path: str, name: str, kind: str) -> None:
        nullable = isinstance(hint, types.UnionType)
        if nullable:
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        if typing.get_origin(hint) is tuple:
            count = 0 if name == "assignments" else 1
            self.add(path, "count", length(count, self.flexible))
            for _ in range(count):
                self.value(typing.get_args(hint)[0], f"{path}[].", name, kind)
        elif dataclasses.is_dataclass(hint):
            if nullable:
                self.add(path, "presence", b"\x01")
            self.entity(typing.cast("type[Any]", hint), path if path.endswith(".") else f"{path}.")
        else:
            self.add(path, kind, self.primitive(name, kind))

    def primitive(self, name: str, kind: str) -> bytes:
        if kind in INTEGERS:
            return struct.pack(INTEGERS[kind], NUMBERS.get(name, 0))
        other: dict[str, Callable[[], bytes]] = {
            "bool": lambda: b"\0",
            "float64": lambda: struct.pack(">d", 0.0),
            "uuid": lambda: (uuid.UUID(int=0) if self.api == "delete_topics" else self.topic_id).bytes,
            "string": lambda: self.sized(self.string(name).encode(), ">h"),
            "bytes": lambda: self.sized(b"", ">i"),
            "records": lambda: self.sized(batch(), ">i"),
        }
        return other[kind]()

    def sized(self, data: bytes, legacy: str) -> bytes:
        return length(len(data), self.flexible, legacy) + data

    def string(self, name: str) -> str:
        if self.api in ("create_topics", "delete_topics") and name in ("name", "topic_names"):
            return DOOMED
        if name == "configuration_keys" or (self.api.endswith("configs") and name == "name"):
            return "retention.ms"
        return {"value": "600000"}.get(name, TOPIC)

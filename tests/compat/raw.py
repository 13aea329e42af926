"""The wire protocol without a client: requests from kio's message classes over a socket.

What clients hide (error codes of single records, versions, batch headers as stored) is tested with this.
A request is a plain dict; fields it leaves out get Kafka's default or zero.
"""

import dataclasses
import datetime
import socket
import struct
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple, Self

from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.compat.drivers.base import CODECS, WAIT_S

_BATCH = struct.Struct(">qiibIhiqqqhii")
LEADER_UNKNOWN = -1


class Batch(NamedTuple):
    """The header of a record batch as the broker serves it."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]


class Connection:
    """One socket to a broker. `call` sends a request and waits; `send` and `receive` pipeline."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self._sent = 0
        self._waiting: dict[int, type[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, api: str, version: int, fields: Mapping[str, Any] | None = None) -> Any:
        """The response of one request."""
        sent = self.send(api, version, fields or {})
        correlation_id, response = self.receive()
        assert correlation_id == sent
        return response

    def send(self, api: str, version: int, fields: Mapping[str, Any]) -> int:
        """Send a request; its correlation id."""
        schema = load_entity_schema(api, version, EntityType.request)
        self._sent += 1
        self._waiting[self._sent] = load_entity_schema(api, version, EntityType.response)
        header = schema.__header_schema__(  # type: ignore[attr-defined]
            request_api_key=schema.__api_key__,  # type: ignore[attr-defined]
            request_api_version=version,
            correlation_id=self._sent,
            client_id="compat-raw",
        )
        self.send_frame(_bytes(header) + _bytes(build(schema, fields)))
        return self._sent

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> tuple[int, Any]:
        """The next response, whichever request it answers."""
        frame = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        schema = self._waiting.pop(correlation_id)
        _, start = entity_reader(schema.__header_schema__)(frame, 0)
        response, size = entity_reader(schema)(frame, start)
        assert start + size == len(frame), f"{schema} left {len(frame) - start - size} bytes"
        return correlation_id, response

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = self.socket.recv(size - len(received))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            received += piece
        return bytes(received)


def versions_known(api: str) -> list[int]:
    """The versions that kio can write."""
    return sorted(schema_name_map[api])


def build(schema: type[Any], fields: Mapping[str, Any]) -> Any:
    """A message of kio's class from a plain dict."""
    hints = typing.get_type_hints(schema)
    known = {field.name: field for field in dataclasses.fields(schema)}
    unknown = fields.keys() - known.keys()
    assert not unknown, f"{schema.__name__} v{schema.__version__} has no {unknown}, only {sorted(known)}"
    values = {}
    for name, field in known.items():
        if name in fields:
            values[name] = _value(hints[name], fields[name])
        elif field.default is dataclasses.MISSING:
            values[name] = _zero(hints[name], field.metadata.get("kafka_type"))
    return schema(**values)


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    parts = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _value(next(part for part in parts if part is not types.NoneType), value)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(parts[0], one) for one in value)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), value)
    if "Timedelta" in getattr(hint, "__name__", ""):
        return datetime.timedelta(milliseconds=value)
    return value


def _zero(hint: Any, kafka_type: str | None) -> Any:
    if isinstance(hint, types.UnionType):
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), {})
    if kafka_type and kafka_type.startswith("timedelta"):
        return datetime.timedelta(0)
    return {"string": "", "bool": False, "bytes": b""}.get(kafka_type or "", 0)


def _bytes(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@contextmanager
def connection(bootstrap: str) -> Iterator[Connection]:
    """A connection for the length of a test."""
    with Connection(bootstrap) as one:
        yield one


def fetch(
    one: Connection, topic: str, offset: int, partition: int = 0, max_bytes: int = 1 << 20, **more: Any
) -> Any:
    """One partition's part of a Fetch by name (version 12), without waiting."""
    place = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes, **more}
    fields = {"max_bytes": 50 << 20, "topics": [{"topic": topic, "partitions": [place]}]}
    response = one.call("fetch", 12, fields)
    assert response.error_code == 0
    return response.responses[0].partitions[0]


def headers(records: bytes) -> Iterator[Batch]:
    """The whole batches of what a Fetch brought."""
    position = 0
    while position + _BATCH.size <= len(records):
        batch = Batch(*_BATCH.unpack_from(records, position))
        position += 12 + batch.batch_length
        if position <= len(records):
            yield batch


def batches(bootstrap: str, topic: str, partition: int = 0) -> list[Batch]:
    """Every batch of a partition, as stored."""
    found: list[Batch] = []
    with Connection(bootstrap) as one:
        offset = fetch(one, topic, 0, partition).log_start_offset
        while True:
            part = fetch(one, topic, offset, partition)
            if offset >= part.high_watermark:
                return found
            found += headers(bytes(part.records))
            offset = found[-1].base_offset + found[-1].last_offset_delta + 1

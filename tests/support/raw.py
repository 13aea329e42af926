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
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple, Self

import crc32c
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.compat.drivers.base import CODECS, WAIT_S
from tests.support.waiting import until

_BATCH = struct.Struct(">qiibIhiqqqhii")


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

    def call(self, api: str, version: int, fields: Mapping[str, Any] | None = None, trailing: bytes = b"") -> Any:
        """The response of one request."""
        sent = self.send(api, version, fields or {}, trailing)
        correlation_id, response = self.receive()
        assert correlation_id == sent
        return response

    def send(self, api: str, version: int, fields: Mapping[str, Any], trailing: bytes = b"") -> int:
        """Send a request, perhaps with bytes in its frame that follow it; its correlation id."""
        schema = load_entity_schema(api, version, EntityType.request)
        self._sent += 1
        self._waiting[self._sent] = load_entity_schema(api, version, EntityType.response)
        header = schema.__header_schema__(  # type: ignore[attr-defined]
            request_api_key=schema.__api_key__,  # type: ignore[attr-defined]
            request_api_version=version,
            correlation_id=self._sent,
            client_id="compat-raw",
        )
        self.send_frame(_bytes(header) + _bytes(build(schema, fields)) + trailing)
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


def api_key(api: str) -> int:
    """Kafka's number of an API."""
    return int(load_entity_schema(api, versions_known(api)[-1], EntityType.request).__api_key__)  # type: ignore[attr-defined]


def fitting(api: str, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version of a request has; the rest is left out, at every level."""
    return _fitting(load_entity_schema(api, version, EntityType.request), fields)


def _fitting(schema: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    return {name: _fitting_value(hints[name], value) for name, value in fields.items() if name in hints}


def _fitting_value(hint: Any, value: Any) -> Any:
    inner = next((part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)), None)
    if inner is None or value is None:
        return value
    if isinstance(value, Mapping):
        return _fitting(typing.cast("type[Any]", inner), value)
    return [_fitting(typing.cast("type[Any]", inner), one) for one in value]


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


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] = (),
    timestamp: int = 1_700_000_000_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
    record_count: int | None = None,
) -> bytes:
    """A record batch of uncompressed records; `producer` is id, epoch and first sequence."""
    records = b"".join(_record(number, value, keys[number] if keys else b"key") for number, value in enumerate(values))
    count = len(values) if record_count is None else record_count
    checked = struct.pack(">hiqqqhii", attributes, len(values) - 1, timestamp, timestamp, *producer, count)
    checked += records
    head = struct.pack(">qiibI", 0, 4 + 1 + 4 + len(checked), -1, 2, crc32c.crc32c(checked))
    return head + checked


def _record(delta: int, value: bytes | None, key: bytes | None) -> bytes:
    body = b"\0" + _varint(0) + _varint(delta) + _field(key) + _field(value) + _varint(0)
    return _varint(len(body)) + body


def _field(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    """A zigzag varint."""
    rest = (number << 1) ^ (number >> 63)
    result = bytearray()
    while rest > 0x7F:
        result.append(rest & 0x7F | 0x80)
        rest >>= 7
    result.append(rest)
    return bytes(result)


def produce(
    one: Connection, topic: str, records: bytes | None, version: int = 12, acks: int = -1, partition: int = 0
) -> Any:
    """One partition's part of a Produce by name."""
    place = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
    response = one.call("produce", version, {"acks": acks, "timeout": 10_000, "topic_data": [place]})
    return response.responses[0].partition_responses[0]


def fetch(
    one: Connection,
    topic: str,
    offset: int,
    partition: int = 0,
    max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    **more: Any,
) -> Any:
    """One partition's part of a Fetch by name (version 12), without waiting."""
    place = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes, **more}
    topics = [{"topic": topic, "partitions": [place]}]
    fields = {"max_bytes": 50 << 20, "isolation_level": isolation_level, "topics": topics}
    response = one.call("fetch", 12, fields)
    assert response.error_code == 0
    return response.responses[0].partitions[0]


def wait_until_served(one: Connection, topic: str, partition: int = 0) -> None:
    """Until the partition's leader knows that it leads."""
    until(lambda: not fetch(one, topic, 0, partition).error_code, f"{topic}-{partition} is not served")


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

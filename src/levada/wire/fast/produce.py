"""Reads and writes Produce by hand: its codec decides the broker's throughput.

The records stay where they were received, as a pair of positions; responses are written from templates. Tests compare
with the general codec.

v3 record batches v2 and transactional ids; v5 log start offset; v8 record errors; v9 flexible; v10 leader hints
(KIP-951); v13 topic ids.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.wire.fast.leader_hints import CurrentLeader, NodeEndpoint, encode_current_leader, encode_node_endpoints
from levada.wire.fast.prefix_cache import PrefixCache
from levada.wire.primitives import (
    INT,
    INT_PAIR,
    SHORT,
    encode_array_length,
    encode_nullable_string,
    encode_uvarint,
    read_array_length,
    read_nullable_string,
    read_uvarint,
    skip_tagged_fields,
)

VERSIONS = range(3, 14)
FLEXIBLE_FROM = 9
LEADER_HINTS_FROM = 10
TOPIC_IDS_FROM = 13
NO_OFFSET = -1
CACHED_REQUESTS_MAX = 16  # of a connection
CACHED_BYTES_MAX = 300
_NO_TAGS = b"\0\0\0"  # tagged fields after the records: of the partition, the topic and the request

_CURRENT_LEADER_TAG = 0
_ACKS_TIMEOUT = Struct(">hi")
_FIELDS = Struct(">ihqqq")
_new = tuple.__new__


class ProduceRequest(NamedTuple):
    """One Produce; each partition is (topic name or id as on the wire, index, start of records, end of records)."""

    acks: int
    timeout_ms: int
    transactional_id: str | None
    partitions: list[tuple[bytes, int, int, int]]


class PartitionResult(NamedTuple):
    """The response to one partition of a Produce."""

    topic: bytes  # name or id, as on the wire
    partition: int
    error: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    current_leader: CurrentLeader | None = None  # of a partition that another broker leads, from v10 on


def read_request(view: memoryview, position: int, stop: int, version: int) -> ProduceRequest:
    """Read the Produce whose body (after the client id) is view[position:stop]; trailing bytes are ignored."""
    try:
        if version >= FLEXIBLE_FROM:
            request, position = _read_flexible(view, position, stop, version)
        else:
            request, position = _read_legacy(view, position, stop)
    except (StructError, IndexError):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Produce ends early, or has too many partitions") from None
    if position > stop:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Produce ends early")
    return request


def _read_legacy(view: memoryview, position: int, stop: int) -> tuple[ProduceRequest, int]:
    (length,) = SHORT.unpack_from(view, position)
    transactional_id = None if length < 0 else _text(view, position + 2, position + 2 + length)
    position += 2 + max(length, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topics, position = read_array_length(view, position + 6, stop, flexible=False)
    partitions: list[tuple[bytes, int, int, int]] = []
    for _ in range(topics):
        name, position = read_nullable_string(view, position, stop, flexible=False)
        count, position = read_array_length(view, position, stop, False, len(partitions))
        for _ in range(count):
            index, length = INT_PAIR.unpack_from(view, position)
            position += 8
            end = position + max(length, 0)
            if end > stop:
                raise IndexError
            partitions.append((name or b"", index, position, end))
            position = end
    return ProduceRequest(acks, timeout_ms, transactional_id, partitions), position


def _read_flexible(view: memoryview, position: int, stop: int, version: int) -> tuple[ProduceRequest, int]:
    position = skip_tagged_fields(view, position, stop)  # of the request header
    length, position = read_uvarint(view, position)
    transactional_id = None if length <= 0 else _text(view, position, position + length - 1)
    position += max(length - 1, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topics, position = read_array_length(view, position + 6, stop, flexible=True)
    partitions: list[tuple[bytes, int, int, int]] = []
    for _ in range(topics):
        topic: bytes | None
        if version < TOPIC_IDS_FROM:
            topic, position = read_nullable_string(view, position, stop, flexible=True)
        else:
            topic = bytes(view[position : position + 16])
            position += 16
        count, position = read_array_length(view, position, stop, True, len(partitions))
        for _ in range(count):
            (index,) = INT.unpack_from(view, position)
            length, position = read_uvarint(view, position + 4)
            end = position + max(length - 1, 0)
            if end > stop:
                raise IndexError
            partitions.append((topic or b"", index, position, end))
            position = skip_tagged_fields(view, end, stop)
        position = skip_tagged_fields(view, position, stop)
    return ProduceRequest(acks, timeout_ms, transactional_id, partitions), skip_tagged_fields(view, position, stop)


def _text(view: memoryview, start: int, end: int) -> str:
    try:
        return str(view[start:end], "utf-8")
    except UnicodeDecodeError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is not UTF-8") from None


def produce_cache() -> PrefixCache[ProduceRequest]:
    """The cache of one connection: the bytes from the client id to the records' length are the prefix."""
    return PrefixCache(CACHED_REQUESTS_MAX, CACHED_BYTES_MAX)


def read_cached(
    cache: PrefixCache[ProduceRequest], view: memoryview, position: int, stop: int, version: int
) -> ProduceRequest:
    """Read as `read_request` does; a request that differs from an earlier one only in its records is not decoded."""
    prefix_end = position + cache.prefix_bytes
    known = cache.get((version, bytes(view[position:prefix_end]))) if prefix_end < stop - 4 else None
    if known is not None:
        try:
            start, end = _records(view, prefix_end, stop, version)
        except IndexError:
            return read_request(view, position, stop, version)
        if end:
            acks, timeout_ms, transactional_id, ((topic, index, _, _),) = known
            # Without the Python frame of NamedTuple's constructor.
            return _new(ProduceRequest, (acks, timeout_ms, transactional_id, [(topic, index, start, end)]))
    request = read_request(view, position, stop, version)
    if len(request.partitions) == 1:
        _, _, start, end = request.partitions[0]
        length_bytes = len(encode_uvarint(end - start + 1)) if version >= FLEXIBLE_FROM else 4
        cache.store((version, bytes(view[position : start - length_bytes])), request)
    return request


def _records(view: memoryview, position: int, stop: int, version: int) -> tuple[int, int]:
    """The start and end of the records whose length is at `position`; (0, 0) unless they end the request."""
    if version >= FLEXIBLE_FROM:
        length, start = read_uvarint(view, position)
        end = start + length - 1
        return (start, end) if length and view[end:stop] == _NO_TAGS else (0, 0)
    (length,) = INT.unpack_from(view, position)
    end = position + 4 + length
    return (position + 4, end) if length > 0 and end == stop else (0, 0)


ResponseTemplate = Callable[[int, int, int, int], bytes]


def response_template(topic: bytes, index: int, version: int) -> ResponseTemplate:
    """Build a function that writes the response to one appended batch.

    It takes the correlation id, base offset, append time and log start offset and returns the whole frame.
    """
    example = write_response(version, 0, [PartitionResult(topic, index, ErrorCode.NONE)])
    at = _offset_position(topic, version)
    size = len(example) - 4
    head = example[8:at]
    if version >= 5:
        tail = example[at + 24 :]
        pack = Struct(f">ii{len(head)}sqqq{len(tail)}s").pack
        return lambda correlation_id, base_offset, append_time_ms, log_start: pack(
            size, correlation_id, head, base_offset, append_time_ms, log_start, tail
        )
    tail = example[at + 16 :]
    pack = Struct(f">ii{len(head)}sqq{len(tail)}s").pack
    return lambda correlation_id, base_offset, append_time_ms, log_start: pack(
        size, correlation_id, head, base_offset, append_time_ms, tail
    )


def _offset_position(topic: bytes, version: int) -> int:
    """The position of the base offset in a frame with one topic and one partition."""
    if version >= TOPIC_IDS_FROM:
        return 8 + 1 + 1 + 16 + 1 + 6
    if version >= FLEXIBLE_FROM:
        return 8 + 1 + 1 + len(encode_uvarint(len(topic) + 1)) + len(topic) + 1 + 6
    return 8 + 4 + 2 + len(topic) + 4 + 6


def write_response(
    version: int, correlation_id: int, results: list[PartitionResult], endpoints: Sequence[NodeEndpoint] = ()
) -> bytes:
    """Write the whole frame, size included; results are grouped by topic. `endpoints` are of current leaders."""
    flexible = version >= FLEXIBLE_FROM
    topics: dict[bytes, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    body = bytearray(b"\0" if flexible else b"")  # the response header's tagged fields
    body += encode_array_length(len(topics), flexible)
    for topic, group in topics.items():
        if version < TOPIC_IDS_FROM:
            body += encode_uvarint(len(topic) + 1) if flexible else SHORT.pack(len(topic))
        body += topic
        body += encode_array_length(len(group), flexible)
        for result in group:
            _write_result(body, result, version)
        body += b"\0" if flexible else b""
    body += b"\0\0\0\0"  # throttle time
    body += encode_node_endpoints(endpoints) if flexible else b""
    return INT_PAIR.pack(len(body) + 4, correlation_id) + body


def _write_result(body: bytearray, result: PartitionResult, version: int) -> None:
    fields = _FIELDS.pack(
        result.partition, result.error, result.base_offset, result.log_append_time_ms, result.log_start_offset
    )
    body += fields if version >= 5 else fields[:-8]
    if version < 8:
        return
    flexible = version >= FLEXIBLE_FROM
    body += encode_array_length(len(result.record_errors), flexible)
    for batch_index, reason in result.record_errors:
        body += INT.pack(batch_index)
        body += encode_nullable_string(reason.encode(), flexible)
        body += b"\0" if flexible else b""
    message = result.error_message
    body += encode_nullable_string(None if message is None else message.encode(), flexible)
    if result.current_leader is not None:
        body += b"\1" + encode_current_leader(_CURRENT_LEADER_TAG, result.current_leader)
    else:
        body += b"\0" if flexible else b""

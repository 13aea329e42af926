"""Produce by hand: the one request whose parsing and answering decide the broker's throughput.

kio's reader copies the records out of the frame and its writer costs more than the whole append, so Produce 3-13 is
read in place (records stay where they were received, as a pair of positions) and answered from templates. The
general codec is the oracle of both in the tests.

v3 record batches v2 and transactional ids; v5 log start offset; v8 record errors; v9 flexible; v13 topic ids.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from levada.errors import ErrorCode, KafkaError
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
TOPIC_IDS_FROM = 13
NO_OFFSET = -1
SHORTCUTS_MAX = 16  # a connection
SHORTCUT_BYTES_MAX = 300
_NO_TAGS = b"\0\0\0"  # after the records: of the partition, the topic and the request

_ACKS_TIMEOUT = Struct(">hi")
_FIELDS = Struct(">ihqqq")


class ProduceRequest(NamedTuple):
    """One Produce; each part is (topic's name or id as on the wire, partition, records from, records to)."""

    acks: int
    timeout_ms: int
    transactional_id: str | None
    parts: list[tuple[bytes, int, int, int]]


class PartitionResult(NamedTuple):
    """What became of the records for one partition."""

    topic: bytes  # its name or id, as on the wire
    partition: int
    error: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()


def read_request(view: memoryview, position: int, stop: int, version: int) -> ProduceRequest:
    """The Produce whose body (after the client id) is view[position:stop]; bytes after it mean nothing."""
    try:
        if version >= FLEXIBLE_FROM:
            request, position = _read_flexible(view, position, stop, version)
        else:
            request, position = _read_legacy(view, position, stop)
    except (StructError, IndexError):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Produce ends early, or names too much") from None
    if position > stop:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Produce ends early")
    return request


def _read_legacy(view: memoryview, position: int, stop: int) -> tuple[ProduceRequest, int]:
    (length,) = SHORT.unpack_from(view, position)
    transactional_id = None if length < 0 else _text(view, position + 2, position + 2 + length)
    position += 2 + max(length, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topics, position = read_array_length(view, position + 6, stop, flexible=False)
    parts: list[tuple[bytes, int, int, int]] = []
    for _ in range(topics):
        name, position = read_nullable_string(view, position, stop, flexible=False)
        count, position = read_array_length(view, position, stop, False, len(parts))
        for _ in range(count):
            index, length = INT_PAIR.unpack_from(view, position)
            position += 8
            end = position + max(length, 0)
            if end > stop:
                raise IndexError
            parts.append((name or b"", index, position, end))
            position = end
    return ProduceRequest(acks, timeout_ms, transactional_id, parts), position


def _read_flexible(view: memoryview, position: int, stop: int, version: int) -> tuple[ProduceRequest, int]:
    position = skip_tagged_fields(view, position, stop)  # of the request header
    length, position = read_uvarint(view, position)
    transactional_id = None if length <= 0 else _text(view, position, position + length - 1)
    position += max(length - 1, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topics, position = read_array_length(view, position + 6, stop, flexible=True)
    parts: list[tuple[bytes, int, int, int]] = []
    for _ in range(topics):
        topic: bytes | None
        if version < TOPIC_IDS_FROM:
            topic, position = read_nullable_string(view, position, stop, flexible=True)
        else:
            topic = bytes(view[position : position + 16])
            position += 16
        count, position = read_array_length(view, position, stop, True, len(parts))
        for _ in range(count):
            (index,) = INT.unpack_from(view, position)
            length, position = read_uvarint(view, position + 4)
            end = position + max(length - 1, 0)
            if end > stop:
                raise IndexError
            parts.append((topic or b"", index, position, end))
            position = skip_tagged_fields(view, end, stop)
        position = skip_tagged_fields(view, position, stop)
    return ProduceRequest(acks, timeout_ms, transactional_id, parts), skip_tagged_fields(view, position, stop)


def _text(view: memoryview, start: int, end: int) -> str:
    try:
        return str(view[start:end], "utf-8")
    except UnicodeDecodeError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id that is not UTF-8") from None


class Shortcuts:
    """The Produces of one connection, known by what stands before their records.

    A producer says the same again and again: its acks and timeout, a topic, a partition; only the records differ.
    What has been read once is found by comparing those bytes, at a third of the cost of reading them.
    """

    __slots__ = ("_known", "_length", "_version")

    def __init__(self) -> None:
        self._known: dict[
            bytes, ProduceRequest
        ] = {}  # by the bytes from the client id to the records' length
        self._length = 0  # of those bytes in the last request that was learnt
        self._version = -1  # in which all of them were said

    def read(self, view: memoryview, position: int, stop: int, version: int) -> ProduceRequest:
        """The Produce whose body is view[position:stop], as `read_request` would read it."""
        prefix = position + self._length
        known = self._known.get(bytes(view[position:prefix])) if prefix < stop - 4 else None
        if known is not None and version == self._version:
            try:
                start, end = _records(view, prefix, stop, version)
            except IndexError:
                return read_request(view, position, stop, version)
            if end:
                acks, timeout_ms, transactional_id, ((topic, partition, _, _),) = known
                return ProduceRequest(acks, timeout_ms, transactional_id, [(topic, partition, start, end)])
        request = read_request(view, position, stop, version)
        if len(request.parts) == 1:
            self._learn(view, position, request, version)
        return request

    def _learn(self, view: memoryview, position: int, request: ProduceRequest, version: int) -> None:
        _, _, start, end = request.parts[0]
        size = len(encode_uvarint(end - start + 1)) if version >= FLEXIBLE_FROM else 4
        self._length = start - size - position
        if len(self._known) >= SHORTCUTS_MAX or version != self._version:
            self._known.clear()
            self._version = version
        if self._length <= SHORTCUT_BYTES_MAX:
            self._known[bytes(view[position : position + self._length])] = request


def _records(view: memoryview, position: int, stop: int, version: int) -> tuple[int, int]:
    """Where the records lie whose length stands at `position`, if they are the last of the request; else (0, 0)."""
    if version >= FLEXIBLE_FROM:
        length, start = read_uvarint(view, position)
        end = start + length - 1
        return (start, end) if length and view[end:stop] == _NO_TAGS else (0, 0)
    (length,) = INT.unpack_from(view, position)
    end = position + 4 + length
    return (position + 4, end) if length > 0 and end == stop else (0, 0)


Fill = Callable[[int, int, int, int], bytes]


def answer_template(topic: bytes, index: int, version: int) -> Fill:
    """A function that writes the answer to one batch that was taken: all but four numbers is known beforehand.

    It takes the correlation id, base offset, append time and log start offset and gives the whole frame.
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
    """Where the base offset stands in a frame with one topic and one partition."""
    if version >= TOPIC_IDS_FROM:
        return 8 + 1 + 1 + 16 + 1 + 6
    if version >= FLEXIBLE_FROM:
        return 8 + 1 + 1 + len(encode_uvarint(len(topic) + 1)) + len(topic) + 1 + 6
    return 8 + 4 + 2 + len(topic) + 4 + 6


def write_response(version: int, correlation_id: int, results: list[PartitionResult]) -> bytes:
    """The whole frame, size included; results of one topic stand together."""
    flexible = version >= FLEXIBLE_FROM
    topics: dict[bytes, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    body = bytearray(b"\0" if flexible else b"")  # the response header's tags
    body += encode_array_length(len(topics), flexible)
    for topic, group in topics.items():
        if version < TOPIC_IDS_FROM:
            body += encode_uvarint(len(topic) + 1) if flexible else SHORT.pack(len(topic))
        body += topic
        body += encode_array_length(len(group), flexible)
        for result in group:
            _write_result(body, result, version)
        body += b"\0" if flexible else b""
    body += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # throttle time
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
    body += b"\0" if flexible else b""

"""Produce by hand: the one request whose parsing and answering decide the broker's throughput.

kio's reader copies the records out of the frame and its writer costs more than the whole append, so Produce 3-13 is
read in place (records stay where they were received, as a pair of positions) and answered from templates. The
general codec is the oracle of both in the tests.

v3 record batches v2 and transactional ids; v5 log start offset; v8 record errors; v9 flexible; v13 topic ids.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from levada.errors import ErrorCode, KafkaError

VERSIONS = range(3, 14)
FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
NO_OFFSET = -1

_SHORT = Struct(">h")
_INT = Struct(">i")
_ACKS_TIMEOUT_TOPICS = Struct(">hii")
_ACKS_TIMEOUT = Struct(">hi")
_INDEX_LENGTH = Struct(">ii")
_FIELDS = Struct(">ihqqq")


class ProduceRequest(NamedTuple):
    """One Produce; each part is (topic's name or id as on the wire, partition, records from, records to)."""

    acks: int
    timeout_ms: int
    transactional: bool
    parts: list[tuple[bytes, int, int, int]]


class PartitionResult(NamedTuple):
    """What became of the records for one partition."""

    topic: bytes  # its name or id, as on the wire
    index: int
    error: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()


def read_request(view: memoryview, position: int, stop: int, version: int) -> ProduceRequest:
    """The Produce whose body (after the client id) is view[position:stop]."""
    try:
        if version >= FLEXIBLE_FROM:
            request, position = _read_flexible(view, position, stop, version)
        else:
            request, position = _read_legacy(view, position, stop)
    except (StructError, IndexError):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Produce ends early") from None
    if position != stop:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{stop - position} bytes after a Produce")
    return request


def _read_legacy(view: memoryview, position: int, stop: int) -> tuple[ProduceRequest, int]:
    (length,) = _SHORT.unpack_from(view, position)
    transactional = length >= 0
    position += 2 + max(length, 0)
    acks, timeout_ms, topics = _ACKS_TIMEOUT_TOPICS.unpack_from(view, position)
    position += 10
    parts: list[tuple[bytes, int, int, int]] = []
    for _ in range(topics):
        (length,) = _SHORT.unpack_from(view, position)
        name = bytes(view[position + 2 : position + 2 + length])
        position += 2 + max(length, 0)
        (count,) = _INT.unpack_from(view, position)
        position += 4
        for _ in range(count):
            index, length = _INDEX_LENGTH.unpack_from(view, position)
            position += 8
            end = position + max(length, 0)
            if end > stop:
                raise IndexError
            parts.append((name, index, position, end))
            position = end
    return ProduceRequest(acks, timeout_ms, transactional, parts), position


def _read_flexible(view: memoryview, position: int, stop: int, version: int) -> tuple[ProduceRequest, int]:
    position = skip_tags(view, position, stop)  # of the request header
    length, position = _uvarint(view, position)
    transactional = length > 0
    position += max(length - 1, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    topics, position = _uvarint(view, position + 6)
    parts: list[tuple[bytes, int, int, int]] = []
    for _ in range(topics - 1):
        length = 16
        if version < TOPIC_IDS_FROM:
            length, position = _uvarint(view, position)
            length -= 1
        if length < 0 or length > stop - position:
            raise IndexError
        topic = bytes(view[position : position + length])
        count, position = _uvarint(view, position + length)
        for _ in range(count - 1):
            (index,) = _INT.unpack_from(view, position)
            length, position = _uvarint(view, position + 4)
            end = position + max(length - 1, 0)
            if end > stop:
                raise IndexError
            parts.append((topic, index, position, end))
            position = skip_tags(view, end, stop)
        position = skip_tags(view, position, stop)
    return ProduceRequest(acks, timeout_ms, transactional, parts), skip_tags(view, position, stop)


def skip_tags(view: memoryview, position: int, stop: int) -> int:
    """Pass over tagged fields, which no version here gives a meaning."""
    count = view[position]
    if count == 0:
        return position + 1
    count, position = _uvarint(view, position)
    for _ in range(count):
        _, position = _uvarint(view, position)
        length, position = _uvarint(view, position)
        position += length
        if position > stop:
            raise IndexError
    return position


def _uvarint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = view[position]
        value |= byte << shift if byte < 0x80 else (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 28:
            raise IndexError


class Template:
    """The answer to a Produce of one batch that succeeded: everything but four numbers is known beforehand."""

    __slots__ = ("_head", "_size", "_tail", "pack")

    def __init__(self, topic: bytes, index: int, version: int) -> None:
        example = write_response(version, 0, [PartitionResult(topic, index, ErrorCode.NONE)])
        at = _offset_position(topic, version)
        self._size = len(example) - 4
        self._head = example[8:at]
        self._tail = example[at + (24 if version >= 5 else 16) :]
        middle = "qqq" if version >= 5 else "qq"
        self.pack = Struct(f">ii{len(self._head)}s{middle}{len(self._tail)}s").pack

    def fill(self, correlation_id: int, base_offset: int, append_time_ms: int, log_start: int) -> bytes:
        """The frame (v5 and later)."""
        return self.pack(
            self._size, correlation_id, self._head, base_offset, append_time_ms, log_start, self._tail
        )

    def fill_early(self, correlation_id: int, base_offset: int, append_time_ms: int, log_start: int) -> bytes:
        """The frame of v3 and v4, which had no log start offset."""
        return self.pack(self._size, correlation_id, self._head, base_offset, append_time_ms, self._tail)


def _offset_position(topic: bytes, version: int) -> int:
    """Where the base offset stands in a frame with one topic and one partition."""
    if version >= TOPIC_IDS_FROM:
        return 8 + 1 + 1 + 16 + 1 + 6
    if version >= FLEXIBLE_FROM:
        return 8 + 1 + 1 + len(_uvarint_bytes(len(topic) + 1)) + len(topic) + 1 + 6
    return 8 + 4 + 2 + len(topic) + 4 + 6


def write_response(version: int, correlation_id: int, results: list[PartitionResult]) -> bytes:
    """The whole frame, size included; results of one topic stand together."""
    flexible = version >= FLEXIBLE_FROM
    topics: dict[bytes, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    body = bytearray(b"\0" if flexible else b"")  # the response header's tags
    body += _count(len(topics), flexible)
    for topic, group in topics.items():
        if version < TOPIC_IDS_FROM:
            body += _uvarint_bytes(len(topic) + 1) if flexible else _SHORT.pack(len(topic))
        body += topic
        body += _count(len(group), flexible)
        for result in group:
            _write_result(body, result, version)
        body += b"\0" if flexible else b""
    body += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # throttle time
    return _INDEX_LENGTH.pack(len(body) + 4, correlation_id) + body


def _write_result(body: bytearray, result: PartitionResult, version: int) -> None:
    fields = _FIELDS.pack(
        result.index, result.error, result.base_offset, result.log_append_time_ms, result.log_start_offset
    )
    body += fields if version >= 5 else fields[:-8]
    if version < 8:
        return
    flexible = version >= FLEXIBLE_FROM
    body += _count(len(result.record_errors), flexible)
    for batch_index, message in result.record_errors:
        body += _INT.pack(batch_index)
        body += _nullable_string(message, flexible)
        body += b"\0" if flexible else b""
    body += _nullable_string(result.error_message, flexible)
    body += b"\0" if flexible else b""


def _count(count: int, flexible: bool) -> bytes:
    return _uvarint_bytes(count + 1) if flexible else _INT.pack(count)


def _nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (_uvarint_bytes(len(data) + 1) if flexible else _SHORT.pack(len(data))) + data


def _uvarint_bytes(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append((value & 0x7F) | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)

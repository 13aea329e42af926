"""The bytes of the few requests that the load generator sends, written by hand.

The generator must cost far less than a broker does, so a request is built once and only its offset, sequence
and checksum are patched later; nothing here is shared with Levada's own codec, so that a benchmark cannot inherit
its mistakes. Produce and Fetch go by topic id, as the Java client of Kafka 4 does; the rest uses older versions.
"""

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = (
    0,
    1,
    2,
    3,
    18,
    19,
    20,
    22,
)
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 13, 17, 12
CLIENT_ID = b"levada-bench"

I16, I32, U32, I64 = Struct(">h"), Struct(">i"), Struct(">I"), Struct(">q")
REQUEST = Struct(">ihhih")  # its size, API key, version, correlation id, the length of the client id
TIMEVAL = Struct("@ll")
RECEIVE_BYTES = 64 * 1024
HEADER = Struct(">qiibIhiqqqhii")
BATCH_HEADER_BYTES, BATCH_CRC_AT, BATCH_CRC_FROM, BATCH_SEQUENCE_AT = HEADER.size, 17, 21, 53
BATCH_PRODUCER_AT, PRODUCER = 43, Struct(">qhi")  # its id, its epoch, the batch's first sequence number
TRANSACTIONAL = 0x10

# Positions in a response, counted behind its length field; one topic with one partition.
PRODUCE_ERROR_AT = 27
FETCH_ERROR_AT, FETCH_PARTITION_ERROR_AT, FETCH_RECORDS_AT = 9, 37, 68

UNKNOWN_TOPIC_OR_PARTITION, TOPIC_ALREADY_EXISTS = 3, 36


class BrokerError(Exception):
    """A request failed, or got no response, where a benchmark needs success."""


def varint(value: int) -> bytes:
    """Unsigned, as in compact lengths."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def zigzag(value: int) -> bytes:
    """A signed varint, as in records."""
    return varint((value << 1) ^ (value >> 63) if value < 0 else value << 1)


def string(text: str) -> bytes:
    """A string of an inflexible version."""
    encoded = text.encode()
    return I16.pack(len(encoded)) + encoded


def request(api_key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    """A frame frame. Responses come in order, so every request may carry the same correlation id."""
    rest = CLIENT_ID + (b"\0" if flexible else b"") + body
    return REQUEST.pack(REQUEST.size - I32.size + len(rest), api_key, version, 7, len(CLIENT_ID)) + rest


def batch(
    records: int, value_bytes: int, producer_id: int = -1, producer_epoch: int = -1, attributes: int = 0
) -> bytes:
    """An uncompressed record batch v2 of equal records without keys."""
    value = record_value(value_bytes)
    body = bytearray()
    for index in range(records):
        record = b"\0\0" + zigzag(index) + b"\x01" + zigzag(value_bytes) + value + b"\0"
        body += zigzag(len(record)) + record
    now_ms = int(time.time() * 1000)
    sequence = 0 if producer_id >= 0 else -1
    length = BATCH_HEADER_BYTES - 12 + len(body)
    header = HEADER.pack(
        *(0, length, -1, 2, 0, attributes, records - 1, now_ms, now_ms),
        *(producer_id, producer_epoch, sequence, records),
    )
    frame = bytearray(header + body)
    U32.pack_into(frame, BATCH_CRC_AT, crc32c(memoryview(frame)[BATCH_CRC_FROM:]))
    return bytes(frame)


def record_value(value_bytes: int) -> bytes:
    """What every record holds."""
    return (b"The quick brown fox jumps over the lazy dog. " * (value_bytes // 45 + 1))[:value_bytes]


def produce(topic_id: bytes, partition: int, records: bytes, acks: int = 1) -> tuple[bytes, int]:
    """The frame, and where the record batch starts in it."""
    before = b"\0" + Struct(">hi").pack(acks, 30_000) + b"\x02" + topic_id + b"\x02" + I32.pack(partition)
    before += varint(len(records) + 1)
    frame = request(PRODUCE, PRODUCE_VERSION, before + records + b"\0\0\0", flexible=True)
    return frame, len(frame) - 3 - len(records)


def produce_one(port: int, topic: str) -> None:
    """One record of 100 bytes into the first partition."""
    frame, _ = produce(topic_id(port, topic), 0, batch(1, 100))
    with connect(port) as sock:
        (error,) = I16.unpack_from(call(sock, frame), PRODUCE_ERROR_AT)
    if error:
        raise BrokerError(f"Produce failed with error {error}")


def fetch(topic_id: bytes, max_bytes: int, max_wait_ms: int) -> tuple[bytearray, int, int]:
    """A sessionless Fetch of one partition; where its partition index and its offset are."""
    body = Struct(">iiibii").pack(max_wait_ms, 1, max_bytes, 0, 0, -1) + b"\x02" + topic_id + b"\x02"
    partition_at = len(body)
    body += Struct(">iiqiqi").pack(0, -1, 0, -1, -1, max_bytes) + b"\0\0" + b"\x01" + b"\x01" + b"\0"
    frame = request(FETCH, FETCH_VERSION, body, flexible=True)
    partition_at += len(frame) - len(body)
    return bytearray(frame), partition_at, partition_at + 8


def fetch_error(reply: bytes) -> int:
    """The error of the response or of its only partition."""
    return int(I16.unpack_from(reply, FETCH_ERROR_AT)[0] or I16.unpack_from(reply, FETCH_PARTITION_ERROR_AT)[0])


def connect(port: int, timeout: float = 30.0) -> socket.socket:
    """To a broker on this machine. The system minds the time: with Python's timeouts each call would be two."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for what in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, what, TIMEVAL.pack(int(timeout), int(timeout % 1 * 1e6)))
        sock.connect(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return sock


def call(sock: socket.socket, frame: bytes) -> bytes:
    """One request, one response without its length field, which is all that comes."""
    sock.sendall(frame)
    data = sock.recv(RECEIVE_BYTES)
    while len(data) < 4 or len(data) < 4 + I32.unpack_from(data)[0]:
        chunk = sock.recv(RECEIVE_BYTES)
        if not (data and chunk):
            raise BrokerError("the broker closed the connection")
        data += chunk
    return data[4:]


def pipelined(sock: socket.socket, frames: Iterable[bytes], window: int) -> Iterator[bytes]:
    """Requests with at most `window` of them under way; the responses in their order."""
    under_way = 0
    for frame in frames:
        if under_way == window:
            yield _response(sock)
            under_way -= 1
        sock.sendall(frame)
        under_way += 1
    for _ in range(under_way):
        yield _response(sock)


def _response(sock: socket.socket) -> bytes:
    return _receive(sock, I32.unpack(_receive(sock, 4))[0])


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise BrokerError("the broker closed the connection")
        data += chunk
    return bytes(data)


def is_serving(port: int) -> bool:
    """True when a broker responses ApiVersions: the first moment a client could use it."""
    try:
        with connect(port, 1.0) as sock:
            reply = call(sock, request(API_VERSIONS, 0, b"", flexible=False))
            return bool(I16.unpack_from(reply, 4)[0] == 0)
    except (OSError, BrokerError):
        return False


def create_topic(port: int, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> bytes:
    """Create it, wait until every partition has a leader, give its id."""
    settings = configs or {}
    body = I32.pack(1) + string(name) + Struct(">ihi").pack(partitions, 1, 0) + I32.pack(len(settings))
    body += b"".join(string(key) + string(value) for key, value in settings.items())
    with connect(port) as sock:
        reply = call(sock, request(CREATE_TOPICS, 4, body + I32.pack(30_000) + b"\0", flexible=False))
        error = I16.unpack_from(reply, 12 + 2 + len(name.encode()))[0]
        if error not in (0, TOPIC_ALREADY_EXISTS):
            raise BrokerError(f"cannot create topic {name}: error {error}")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            identity = _topic_id(sock, name)
            if identity is not None and all(is_led(sock, identity, index) for index in range(partitions)):
                return identity
            time.sleep(0.02)
    raise BrokerError(f"topic {name} got no leaders within 30 s")


def topic_id(port: int, name: str) -> bytes:
    """The id by which Produce and Fetch name a topic."""
    with connect(port) as sock:
        found = _topic_id(sock, name)
    if found is None:
        raise BrokerError(f"topic {name} is unknown")
    return found


def topic_exists(port: int, name: str) -> bool:
    """Asked without creating it."""
    with connect(port) as sock:
        return _topic_id(sock, name) is not None


def delete_topic(port: int, name: str) -> None:
    """Delete it if it is there."""
    with connect(port) as sock:
        body = I32.pack(1) + string(name) + I32.pack(30_000)
        reply = call(sock, request(DELETE_TOPICS, 3, body, flexible=False))
    error = I16.unpack_from(reply, 12 + 2 + len(name.encode()))[0]
    if error not in (0, UNKNOWN_TOPIC_OR_PARTITION):
        raise BrokerError(f"cannot delete topic {name}: error {error}")


@contextlib.contextmanager
def temporary_topic(port: int, name: str, partitions: int) -> Iterator[str]:
    """A topic that is gone afterwards, so that rounds leave little in the page cache."""
    create_topic(port, name, partitions)
    try:
        yield name
    finally:
        delete_topic(port, name)


def init_producer_id(port: int) -> tuple[int, int]:
    """A producer id and its epoch, for an idempotent producer."""
    deadline = time.monotonic() + 30
    with connect(port) as sock:
        while time.monotonic() < deadline:
            reply = call(sock, request(INIT_PRODUCER_ID, 1, I16.pack(-1) + I32.pack(60_000), flexible=False))
            error, producer_id, epoch = Struct(">hqh").unpack_from(reply, 8)
            if error == 0:
                return producer_id, epoch
            time.sleep(0.1)
    raise BrokerError(f"no producer id: error {error}")


def metadata(name: str) -> bytes:
    """A question about one topic, which does not create it."""
    encoded = name.encode()
    body = b"\x02" + bytes(16) + varint(len(encoded) + 1) + encoded + b"\0" + b"\0\0\0"
    return request(METADATA, METADATA_VERSION, body, flexible=True)


def found_topic_id(reply: bytes) -> bytes | None:
    """The id of the topic that was asked for, if there is one."""
    at = _skip_brokers(reply, 5 + 4)
    error = I16.unpack_from(reply, at)[0]
    name_size, at = read_varint(reply, at + 2)
    at += max(0, name_size - 1)
    return None if error else reply[at : at + 16]


def _topic_id(sock: socket.socket, name: str) -> bytes | None:
    return found_topic_id(call(sock, metadata(name)))


def is_led(sock: socket.socket, identity: bytes, partition: int) -> bool:
    """Kafka's metadata may name a leader that does not lead yet; a Fetch knows."""
    frame, partition_at, _ = fetch(identity, 1, 0)
    I32.pack_into(frame, partition_at, partition)
    reply = call(sock, bytes(frame))
    return not I16.unpack_from(reply, FETCH_ERROR_AT)[0] and not I16.unpack_from(reply, FETCH_PARTITION_ERROR_AT)[0]


def _skip_brokers(reply: bytes, at: int) -> int:
    """To the first topic's error code of a Metadata response."""
    brokers, at = read_varint(reply, at)
    for _ in range(brokers - 1):
        host, at = read_varint(reply, at + 4)
        rack, at = read_varint(reply, at + host - 1 + 4)
        at += max(0, rack - 1) + 1
    cluster_id, at = read_varint(reply, at)
    return at + max(0, cluster_id - 1) + 4 + 1

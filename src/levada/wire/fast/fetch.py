"""Reads and writes Fetch by hand: requests are read in place, records are sent as views of the log and never copied.

Outside of a fetch session a consumer of one partition sends the same request again and again except for the offset.
`read_cached` recognises it, and its response is written from a template. Tests compare with the general codec.

v4 isolation level; v5 log start offset; v7 sessions (KIP-227); v9 leader epoch; v11 rack and preferred replica
(KIP-392); v12 flexible and last fetched epoch (KIP-595); v13 topic ids; v15 replica state as a tagged field (KIP-903);
v16 leader hints (KIP-951).
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.wire.fast.leader_hints import (
    CurrentLeader,
    NodeEndpoint,
    encode_current_leader,
    encode_node_endpoints,
    encode_tag,
)
from levada.wire.fast.prefix_cache import PrefixCache
from levada.wire.primitives import (
    INT,
    INT_PAIR,
    encode_array_length,
    encode_nullable_string,
    encode_uvarint,
    read_array_length,
    read_nullable_string,
    read_uvarint,
    skip_tagged_fields,
)

VERSIONS = range(4, 19)
SESSIONS_FROM = 7
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
LEADER_HINTS_FROM = 16
NO_REPLICA = -1
CONSUMER = -1  # the replica id of consumers
NO_EPOCH = -1
CACHED_REQUESTS_MAX: Final = 16  # of a connection
CACHED_BYTES_MAX: Final = 512
OUTSIDE_SESSIONS: Final = (0, -1)  # session id and epoch
ONE: Final = b"\x02"  # the length of a compact array of one
NO_PREFERRED_REPLICA: Final = b"\xff\xff\xff\xff"
NO_TAGS: Final = b"\0\0\0"  # tagged fields of the partition, the topic and the response
NO_ABORTED = (b"\xff\xff\xff\xff", b"\0")  # a null array: legacy, flexible

_DIVERGING_TAG, _CURRENT_LEADER_TAG = 0, 1  # of a partition in the response
_REPLICA_STATE_TAG = 1
_REPLICA_STATE = Struct(">iq")
_LIMITS = Struct(">iiib")  # max wait, min bytes, max bytes, isolation
_LIMITS_AND_SESSION_BYTES = _LIMITS.size + INT_PAIR.size
_OFFSET = Struct(">q")
_CACHED_REQUEST_BYTES_MAX = CACHED_BYTES_MAX + _OFFSET.size


class PartitionFetch(NamedTuple):
    """The request for one partition."""

    topic: bytes  # name or id, as on the wire
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """One Fetch."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[PartitionFetch]
    forgotten: list[tuple[bytes, int]]
    rack: bytes = b""
    broker_epoch: int = NO_EPOCH  # of a follower


class PartitionData(NamedTuple):
    """The response to one partition; `records` are whole batches."""

    topic: bytes
    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[memoryview | bytes] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset); None for read_uncommitted
    preferred_replica: int = NO_REPLICA
    current_leader: CurrentLeader | None = None  # of a partition that another broker leads


def _partition_struct(version: int) -> Struct:
    layout = ">i"
    layout += "i" if version >= 9 else ""
    layout += "q"
    layout += "i" if version >= FLEXIBLE_FROM else ""
    layout += "q" if version >= 5 else ""
    return Struct(layout + "i")


_PARTITION = {version: _partition_struct(version) for version in VERSIONS}


def read_request(view: memoryview, position: int, stop: int, version: int) -> FetchRequest:
    """Read the Fetch whose body (after the client id) is view[position:stop]; trailing bytes are ignored."""
    try:
        request, position = _read(view, position, stop, version)
    except (StructError, IndexError):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Fetch ends early, or has too many partitions") from None
    if position > stop:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a Fetch ends early")
    return request


def _read(view: memoryview, position: int, stop: int, version: int) -> tuple[FetchRequest, int]:
    flexible = version >= FLEXIBLE_FROM
    if flexible:
        position = skip_tagged_fields(view, position, stop)
    replica_id = CONSUMER
    if version < 15:
        (replica_id,) = INT.unpack_from(view, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(view, position)
    position += 13
    session_id, session_epoch = 0, -1
    if version >= SESSIONS_FROM:
        session_id, session_epoch = INT_PAIR.unpack_from(view, position)
        position += 8
    partitions, position = _read_partitions(view, position, stop, version)
    forgotten: list[tuple[bytes, int]] = []
    if version >= SESSIONS_FROM:
        forgotten, position = _read_forgotten(view, position, stop, version)
    rack: bytes | None = b""
    if version >= 11:
        rack, position = read_nullable_string(view, position, stop, flexible)
    broker_epoch = NO_EPOCH
    if flexible:
        replica_id, broker_epoch, position = _read_tags(view, position, stop, replica_id)
    request = FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack or b"",
        broker_epoch,
    )
    return request, position


def _read_topic(view: memoryview, position: int, stop: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS_FROM:
        return bytes(view[position : position + 16]), position + 16
    name, position = read_nullable_string(view, position, stop, version >= FLEXIBLE_FROM)
    return name or b"", position


def _read_partitions(view: memoryview, position: int, stop: int, version: int) -> tuple[list[PartitionFetch], int]:
    flexible = version >= FLEXIBLE_FROM
    layout = _PARTITION[version]
    partitions: list[PartitionFetch] = []
    topics, position = read_array_length(view, position, stop, flexible)
    for _ in range(topics):
        topic, position = _read_topic(view, position, stop, version)
        count, position = read_array_length(view, position, stop, flexible, len(partitions))
        for _ in range(count):
            fields = layout.unpack_from(view, position)
            position += layout.size
            if flexible:
                partitions.append(PartitionFetch(topic, *fields))
                position = skip_tagged_fields(view, position, stop)
            elif version >= 9:
                index, epoch, offset, start, limit = fields
                partitions.append(PartitionFetch(topic, index, epoch, offset, NO_EPOCH, start, limit))
            else:
                start = fields[2] if version >= 5 else -1
                partitions.append(PartitionFetch(topic, fields[0], NO_EPOCH, fields[1], NO_EPOCH, start, fields[-1]))
        if flexible:
            position = skip_tagged_fields(view, position, stop)
    return partitions, position


def _read_forgotten(view: memoryview, position: int, stop: int, version: int) -> tuple[list[tuple[bytes, int]], int]:
    flexible = version >= FLEXIBLE_FROM
    forgotten: list[tuple[bytes, int]] = []
    topics, position = read_array_length(view, position, stop, flexible)
    for _ in range(topics):
        topic, position = _read_topic(view, position, stop, version)
        count, position = read_array_length(view, position, stop, flexible, len(forgotten))
        for _ in range(count):
            forgotten.append((topic, INT.unpack_from(view, position)[0]))
            position += 4
        if flexible:
            position = skip_tagged_fields(view, position, stop)
    return forgotten, position


def _read_tags(view: memoryview, position: int, stop: int, replica_id: int) -> tuple[int, int, int]:
    """Read the request's tagged fields; return the follower's id and broker epoch, and the position."""
    broker_epoch = NO_EPOCH
    count, position = read_uvarint(view, position)
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        length, position = read_uvarint(view, position)
        if length > stop - position:
            raise IndexError
        if tag == _REPLICA_STATE_TAG:
            replica_id, broker_epoch = _REPLICA_STATE.unpack_from(view, position)
        position += length
    return replica_id, broker_epoch, position


def write_response(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    results: list[PartitionData],
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[bytes | memoryview]:
    """Write the whole frame, size included, as buffers to be sent in order. `endpoints` are of current leaders."""
    flexible = version >= FLEXIBLE_FROM
    body = bytearray(8)  # the frame's size and the correlation id are set last
    body += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # the header's tagged fields, throttle time
    if version >= SESSIONS_FROM:
        body += error.to_bytes(2, "big", signed=True)
        body += session_id.to_bytes(4, "big", signed=True)
    topics: dict[bytes, list[PartitionData]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    body += encode_array_length(len(topics), flexible)
    buffers: list[bytes | memoryview] = []
    size = 0
    for topic, group in topics.items():
        body += topic if version >= TOPIC_IDS_FROM else encode_nullable_string(topic, flexible)
        body += encode_array_length(len(group), flexible)
        for data in group:
            _write_partition(body, data, version)
            if data.size:
                buffers.append(bytes(body))
                buffers.extend(data.records)
                size += len(body) + data.size
                body = bytearray()
            body += _tags(data, flexible)
        body += b"\0" if flexible else b""
    body += encode_node_endpoints(endpoints) if flexible else b""
    buffers.append(bytes(body))
    size += len(body)
    buffers[0] = INT_PAIR.pack(size - 4, correlation_id) + buffers[0][8:]
    return buffers


_HEAD = Struct(">ihqq")
_HEAD_START = Struct(">ihqqq")
_ABORTED = (Struct(">qq"), Struct(">qqx"))  # legacy, flexible


def _write_partition(body: bytearray, data: PartitionData, version: int) -> None:
    """Write a partition up to the length of its records."""
    flexible = version >= FLEXIBLE_FROM
    if version >= 5:
        body += _HEAD_START.pack(
            data.partition, data.error, data.high_watermark, data.last_stable_offset, data.log_start_offset
        )
    else:
        body += _HEAD.pack(data.partition, data.error, data.high_watermark, data.last_stable_offset)
    body += NO_ABORTED[flexible] if data.aborted is None else _encode_aborted(data.aborted, flexible)
    if version >= 11:
        body += INT.pack(data.preferred_replica)
    body += encode_uvarint(data.size + 1) if flexible else INT.pack(data.size)


def _encode_aborted(aborted: Sequence[tuple[int, int]], flexible: bool) -> bytes:
    """Encode the aborted transactions of a partition."""
    pack = _ABORTED[flexible].pack
    return encode_array_length(len(aborted), flexible) + b"".join([pack(*transaction) for transaction in aborted])


def _tags(data: PartitionData, flexible: bool) -> bytes:
    if not flexible:
        return b""
    fields = []
    if data.diverging is not None:
        fields.append(encode_tag(_DIVERGING_TAG, _REPLICA_STATE.pack(*data.diverging) + b"\0"))
    if data.current_leader is not None:
        fields.append(encode_current_leader(_CURRENT_LEADER_TAG, data.current_leader))
    return encode_uvarint(len(fields)) + b"".join(fields)


class CachedFetch(NamedTuple):
    """A Fetch of one partition outside of sessions, and the constant parts of its response."""

    version: int
    request: FetchRequest
    topic: bytes
    partition: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int
    min_bytes: int
    isolation_level: int
    template: Struct  # size and correlation id, `start`, three offsets
    start: bytes

    def at(self, offset: int) -> FetchRequest:
        """The request with another offset."""
        (wanted,) = self.request.partitions
        return self.request._replace(partitions=[wanted._replace(fetch_offset=offset)])

    def write_response(
        self,
        correlation_id: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        records: Sequence[memoryview | bytes],
        size: int,
        aborted: Sequence[tuple[int, int]] | None,
    ) -> list[bytes | memoryview]:
        """Write the whole frame with `size` bytes of records, as buffers to be sent in order."""
        rest = NO_ABORTED[True] if aborted is None else _encode_aborted(aborted, True)
        rest += NO_PREFERRED_REPLICA + encode_uvarint(size + 1)
        frame_bytes = self.template.size - 4 + len(rest) + size + len(NO_TAGS)
        offsets = (high_watermark, last_stable_offset, log_start_offset)
        start = self.template.pack(frame_bytes, correlation_id, self.start, *offsets) + rest
        return [start, *records, NO_TAGS]


def fetch_cache() -> PrefixCache[CachedFetch]:
    """The cache of one connection: the bytes before and after the fetch offset are the key."""
    return PrefixCache(CACHED_REQUESTS_MAX, CACHED_BYTES_MAX)


def read_cached(
    cache: PrefixCache[CachedFetch], view: memoryview, position: int, stop: int, version: int
) -> tuple[CachedFetch, int] | None:
    """The Fetch whose body is view[position:stop] and its offset, if `store` has stored it with another offset."""
    at = position + cache.prefix_bytes
    after = at + _OFFSET.size
    if not cache or after > stop or stop - position > _CACHED_REQUEST_BYTES_MAX:
        return None
    cached = cache.get((version, bytes(view[position:at]), bytes(view[after:stop])))
    return None if cached is None else (cached, _OFFSET.unpack_from(view, at)[0])


def store(
    cache: PrefixCache[CachedFetch],
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    request: FetchRequest,
) -> None:
    """Store the request decoded from view[position:stop], if it can be recognised again."""
    if (
        len(request.partitions) == 1
        and version >= FLEXIBLE_FROM
        and (request.session_id, request.session_epoch) == OUTSIDE_SESSIONS
        and request.replica_id == CONSUMER
        and stop - position <= _CACHED_REQUEST_BYTES_MAX
    ):
        body = bytes(view[position:stop])
        at = _offset_position(body, request.partitions[0], version)
        if at:
            cache.store((version, body[:at], body[at + _OFFSET.size :]), _cached(version, request))


def _offset_position(body: bytes, wanted: PartitionFetch, version: int) -> int:
    """The position of the fetch offset; 0 if tagged fields or longer encodings of counts come before it."""
    topics_at = 1 + (4 if version < 15 else 0) + _LIMITS_AND_SESSION_BYTES
    topic = ONE + _topic_bytes(wanted.topic, version) + ONE
    if body[0] or body[topics_at : topics_at + len(topic)] != topic:
        return 0
    return topics_at + len(topic) + 4 + 4  # after the partition's index and leader epoch


def _topic_bytes(topic: bytes, version: int) -> bytes:
    return topic if version >= TOPIC_IDS_FROM else encode_nullable_string(topic, True)


def _cached(version: int, request: FetchRequest) -> CachedFetch:
    (wanted,) = request.partitions
    throttle_error_session = bytes(4 + 2 + 4)
    start = b"\0" + throttle_error_session + ONE + _topic_bytes(wanted.topic, version) + ONE
    start += wanted.partition.to_bytes(4, "big", signed=True) + bytes(2)  # no error
    return CachedFetch(
        version,
        request,
        wanted.topic,
        wanted.partition,
        wanted.current_leader_epoch,
        wanted.last_fetched_epoch,
        min(wanted.max_bytes, request.max_bytes),
        request.min_bytes,
        request.isolation_level,
        Struct(f">ii{len(start)}sqqq"),
        start,
    )

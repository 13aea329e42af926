"""Produce, Fetch, ListOffsets and InitProducerId messages, written and read by hand.

For the same reason as in `metadata`, and so that records stay views of the received frame. From version 13 on, Produce
and Fetch name a topic by its id: a topic that was deleted and created again is not taken for the old one.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from levada.client.metadata import NO_TOPIC_ID, Api, TopicInfo
from levada.client.reader import MessageReader
from levada.model import TopicPartition
from levada.wire.primitives import encode_array_length, encode_nullable_string, encode_uvarint

PRODUCE = Api("produce", 0, range(9, 14))
PRODUCE_IN_TRANSACTION = PRODUCE._replace(versions=range(12, 14))  # which adds its partitions to the transaction
FETCH = Api("fetch", 1, range(12, 19))
LIST_OFFSETS = Api("list_offsets", 2, range(6, 12))
INIT_PRODUCER_ID = Api("init_producer_id", 22, range(2, 6))

TOPIC_IDS_FROM = 13
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3  # in place of a timestamp

DIVERGING_TAG = 0
_EPOCH_END = Struct(">iq")
_ACKS_TIMEOUT = Struct(">hi")
_INT = Struct(">i")
_FETCH = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation, session id, session epoch
_FETCH_PARTITION = Struct(">iiqiqi")  # index, leader epoch, offset, last fetched epoch, log start, max bytes
_LIST_OFFSETS = Struct(">ib")
_LIST_PARTITION = Struct(">iiq")


class ProducedPartition(NamedTuple):
    """The Produce response for one partition."""

    error: int
    base_offset: int
    log_append_time_ms: int
    error_message: str | None


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch, and the transactional id that they belong to ("" if there is none)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class FetchPosition(NamedTuple):
    """A partition to fetch, and the offset to fetch from."""

    partition: TopicPartition
    offset: int
    leader_epoch: int
    last_fetched_epoch: int = -1  # of the batch before the offset: the broker detects that the log was truncated


class FetchLimits(NamedTuple):
    """The settings of a Fetch, by Kafka's names."""

    max_wait_ms: int
    max_bytes: int  # of the response; a single larger batch is returned whole
    max_partition_bytes: int
    isolation_level: int  # 1: read_committed
    min_bytes: int = 1
    rack: str = ""  # of the client: a leader names a replica in it, if there is one


class FetchedPartition(NamedTuple):
    """The Fetch response for one partition; `records` are whole batches, and perhaps the beginning of one more."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # producer id, first offset
    records: memoryview
    preferred_replica: int = -1  # from which to read, in place of the leader
    diverging: tuple[int, int] | None = None  # an epoch and its end, up to which the reader and the log agree


class OffsetAndTimestamp(NamedTuple):
    """The first record with at least the requested timestamp; offset -1 if there is none."""

    error: int
    timestamp: int
    offset: int
    leader_epoch: int


Topics = Mapping[str, TopicInfo]


def write_produce(
    version: int,
    acks: int,
    timeout_ms: int,
    batches: Mapping[TopicPartition, bytes | bytearray | memoryview],
    topics: Topics,
    transactional_id: str | None = None,
) -> bytearray:
    """A Produce request with one batch for each partition."""
    body = bytearray(b"\0" if transactional_id is None else encode_nullable_string(transactional_id.encode(), True))
    body += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    grouped = by_topic(batches)
    body += encode_array_length(len(grouped), True)
    for topic, partitions in grouped:
        body += _topic_bytes(version, topic, topics)
        body += encode_array_length(len(partitions), True)
        for partition in partitions:
            batch = batches[partition]
            body += _INT.pack(partition.partition) + encode_uvarint(len(batch) + 1)
            body += batch
            body += b"\0"
        body += b"\0"
    body += b"\0"
    return body


def read_produce(version: int, body: memoryview, topics: Topics) -> dict[TopicPartition, ProducedPartition]:
    """The response for each partition."""
    reader = MessageReader(body)
    names = _names(topics)
    responses: dict[TopicPartition, ProducedPartition] = {}
    for _ in range(reader.count()):
        topic = _read_topic(version, reader, names)
        for _ in range(reader.count()):
            index, error = reader.int32(), reader.int16()
            base_offset, append_time, _ = reader.int64(), reader.int64(), reader.int64()
            reasons = [_read_record_error(reader) for _ in range(reader.count())]
            message = reader.string() or next(filter(None, reasons), None)
            reader.tags()
            responses[TopicPartition(topic, index)] = ProducedPartition(error, base_offset, append_time, message)
        reader.tags()
    return responses


def _read_record_error(reader: MessageReader) -> str | None:
    index, reason = reader.int32(), reader.string()
    reader.tags()
    return f"record {index} of the batch: {reason}" if reason else None


def write_fetch(version: int, wanted: Sequence[FetchPosition], topics: Topics, limits: FetchLimits) -> bytearray:
    """A Fetch request without a fetch session."""
    body = bytearray()
    if version < 15:
        body += _INT.pack(-1)  # not a replica
    body += _FETCH.pack(limits.max_wait_ms, limits.min_bytes, limits.max_bytes, limits.isolation_level, 0, -1)
    positions = {position.partition: position for position in wanted}
    grouped = by_topic(positions)
    body += encode_array_length(len(grouped), True)
    for topic, partitions in grouped:
        body += _topic_bytes(version, topic, topics)
        body += encode_array_length(len(partitions), True)
        for partition in partitions:
            position = positions[partition]
            body += _FETCH_PARTITION.pack(
                partition.partition,
                position.leader_epoch,
                position.offset,
                position.last_fetched_epoch,
                -1,
                limits.max_partition_bytes,
            )
            body += b"\0"
        body += b"\0"
    body += encode_array_length(0, True) + encode_nullable_string(limits.rack.encode(), True) + b"\0"
    return body


def read_fetch(version: int, body: memoryview, topics: Topics) -> tuple[int, dict[TopicPartition, FetchedPartition]]:
    """The error of the whole response, and the response for each partition."""
    reader = MessageReader(body)
    names = _names(topics)
    reader.int32()  # throttle time
    error, _ = reader.int16(), reader.int32()
    responses: dict[TopicPartition, FetchedPartition] = {}
    for _ in range(reader.count()):
        topic = _read_topic(version, reader, names)
        for _ in range(reader.count()):
            index = reader.int32()
            responses[TopicPartition(topic, index)] = _read_fetched(reader)
        reader.tags()
    return error, responses


def _read_fetched(reader: MessageReader) -> FetchedPartition:
    error, high_watermark, last_stable, log_start = (
        reader.int16(),
        reader.int64(),
        reader.int64(),
        reader.int64(),
    )
    aborted: list[tuple[int, int]] = []
    for _ in range(reader.count()):
        aborted.append((reader.int64(), reader.int64()))
        reader.tags()
    preferred_replica = reader.int32()
    records = reader.blob()
    diverging = reader.tagged().get(DIVERGING_TAG)
    return FetchedPartition(
        error,
        high_watermark,
        last_stable,
        log_start,
        tuple(aborted),
        memoryview(b"") if records is None else records,
        preferred_replica,
        None if diverging is None else _EPOCH_END.unpack_from(diverging),
    )


def timestamp_of(moment: datetime) -> int:
    """Milliseconds since 1970 for ListOffsets; never negative, since negative values mean LATEST and EARLIEST."""
    return max(0, int(moment.timestamp() * 1000))


def write_list_offsets(version: int, times: Mapping[TopicPartition, int], *, isolation_level: int) -> bytearray:
    """A ListOffsets request for these timestamps (or LATEST, EARLIEST, MAX_TIMESTAMP)."""
    body = bytearray(_LIST_OFFSETS.pack(-1, isolation_level))
    grouped = by_topic(times)
    body += encode_array_length(len(grouped), True)
    for topic, partitions in grouped:
        body += encode_nullable_string(topic.encode(), True)
        body += encode_array_length(len(partitions), True)
        for partition in partitions:
            body += _LIST_PARTITION.pack(partition.partition, -1, times[partition]) + b"\0"
        body += b"\0"
    if version >= 10:
        body += _INT.pack(30_000)  # timeout of remote storage
    body += b"\0"
    return body


def read_list_offsets(body: memoryview) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The response for each partition."""
    reader = MessageReader(body)
    reader.int32()  # throttle time
    responses: dict[TopicPartition, OffsetAndTimestamp] = {}
    for _ in range(reader.count()):
        topic = reader.string() or ""
        for _ in range(reader.count()):
            index, error = reader.int32(), reader.int16()
            responses[TopicPartition(topic, index)] = OffsetAndTimestamp(
                error, reader.int64(), reader.int64(), reader.int32()
            )
            reader.tags()
        reader.tags()
    return responses


def write_init_producer_id(version: int) -> bytes:
    """Request a new producer id, without transactions."""
    body = b"\0" + _INT.pack(0x7FFFFFFF)
    if version >= 3:
        body += Struct(">qh").pack(-1, -1)
    return body + b"\0"


def read_init_producer_id(body: memoryview) -> tuple[int, int, int]:
    """Error, producer id, epoch."""
    reader = MessageReader(body)
    reader.int32()  # throttle time
    return reader.int16(), reader.int64(), reader.int16()


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    """Partitions grouped by their topics, both in order."""
    ordered = sorted(partitions)
    return [(topic, list(group)) for topic, group in groupby(ordered, key=attrgetter("topic"))]


def _topic_bytes(version: int, topic: str, topics: Topics) -> bytes:
    if version < TOPIC_IDS_FROM:
        return encode_nullable_string(topic.encode(), True)
    topic_id = topics[topic].topic_id
    return NO_TOPIC_ID if topic_id is None else topic_id.bytes


def _names(topics: Topics) -> dict[bytes, str]:
    return {info.topic_id.bytes: name for name, info in topics.items() if info.topic_id is not None}


def _read_topic(version: int, reader: MessageReader, names: Mapping[bytes, str]) -> str:
    if version < TOPIC_IDS_FROM:
        return reader.string() or ""
    return names.get(bytes(reader.take(16)), "")

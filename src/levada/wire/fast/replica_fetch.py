"""Writes the Fetch of a follower and reads its response by hand: all replicated bytes pass here.

Records are views of the received frame. Brokers of one cluster use one version, which names topics by id.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from levada.wire.fast.leader_hints import CurrentLeader
from levada.wire.primitives import (
    INT,
    INT_PAIR,
    encode_array_length,
    encode_uvarint,
    read_array_length,
    read_uvarint,
    skip_tagged_fields,
)

VERSION: Final = 17

_LIMITS = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation, session id, session epoch
_PARTITION = Struct(">iiqiqix")  # index, leader epoch, offset, last fetched epoch, log start, max bytes
_HEAD = Struct(">ihqqq")  # index, error, high watermark, last stable offset, log start offset
_TOP = Struct(">ihi")  # throttle time, error, session id
_REPLICA_STATE = Struct(">iqx")
_EPOCH_END = Struct(">iq")
_TOPIC_ID_BYTES = 16
_DIVERGING_TAG, _CURRENT_LEADER_TAG = 0, 1


class ReplicaFetch(NamedTuple):
    """The request for one partition."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchLimits(NamedTuple):
    """How long the leader may wait, and for how much."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class ReplicaData(NamedTuple):
    """The response for one partition; `records` are whole batches, and perhaps the beginning of one more."""

    topic_id: bytes
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging: tuple[int, int] | None  # epoch and end offset up to which the leader's log can agree
    current_leader: CurrentLeader | None


def write_request(
    replica: tuple[int, int],
    session: tuple[int, int],
    limits: FetchLimits,
    wanted: Iterable[ReplicaFetch],
    forgotten: Iterable[tuple[bytes, int]],
) -> bytearray:
    """Write the body of a request. `replica` is broker id and epoch, `session` its id and epoch."""
    body = bytearray(_LIMITS.pack(*limits, 0, *session))
    topics = [(topic_id, list(group)) for topic_id, group in groupby(sorted(wanted), lambda one: one.topic_id)]
    body += encode_array_length(len(topics), True)
    for topic_id, partitions in topics:
        body += topic_id + encode_array_length(len(partitions), True)
        for one in partitions:
            body += _PARTITION.pack(*one[1:])
        body += b"\0"
    topics_left = [(topic_id, list(group)) for topic_id, group in groupby(sorted(forgotten), lambda one: one[0])]
    body += encode_array_length(len(topics_left), True)
    for topic_id, left in topics_left:
        body += topic_id + encode_array_length(len(left), True) + b"".join([INT.pack(index) for _, index in left])
        body += b"\0"
    state = _REPLICA_STATE.pack(*replica)
    body += b"\1\1\1" + encode_uvarint(len(state)) + state  # no rack; one tagged field, the replica state
    return body


def read_response(body: memoryview) -> tuple[int, int, Sequence[ReplicaData]]:
    """Read the body of a response: error, session id, partitions. Raises ValueError."""
    try:
        return _read(body)
    except (IndexError, StructError):
        raise ValueError("a Fetch response ends early") from None


def _read(body: memoryview) -> tuple[int, int, Sequence[ReplicaData]]:
    stop = len(body)
    _, error, session_id = _TOP.unpack_from(body)
    results: list[ReplicaData] = []
    topics, position = read_array_length(body, _TOP.size, stop, True)
    for _ in range(topics):
        topic_id = bytes(body[position : position + _TOPIC_ID_BYTES])
        count, position = read_array_length(body, position + _TOPIC_ID_BYTES, stop, True)
        for _ in range(count):
            data, position = _read_partition(body, position, stop, topic_id)
            results.append(data)
        position = skip_tagged_fields(body, position, stop)
    return error, session_id, results


def _read_partition(body: memoryview, position: int, stop: int, topic_id: bytes) -> tuple[ReplicaData, int]:
    index, error, high_watermark, _, log_start_offset = _HEAD.unpack_from(body, position)
    aborted, position = read_uvarint(body, position + _HEAD.size)
    if aborted > 1:
        raise IndexError("followers read uncommitted")
    size, position = read_uvarint(body, position + 4)  # after the preferred replica
    end = position + max(size - 1, 0)
    if end > stop:
        raise IndexError("records end early")
    records = body[position:end]
    diverging, leader, position = _read_tags(body, end, stop)
    data = ReplicaData(topic_id, index, error, high_watermark, log_start_offset, records, diverging, leader)
    return data, position


def _read_tags(body: memoryview, position: int, stop: int) -> tuple[tuple[int, int] | None, CurrentLeader | None, int]:
    diverging: tuple[int, int] | None = None
    leader: CurrentLeader | None = None
    count, position = read_uvarint(body, position)
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        length, position = read_uvarint(body, position)
        if length > stop - position:
            raise IndexError("a tagged field ends early")
        if tag == _DIVERGING_TAG:
            diverging = _EPOCH_END.unpack_from(body, position)
        elif tag == _CURRENT_LEADER_TAG:
            leader = CurrentLeader(*INT_PAIR.unpack_from(body, position))
        position += length
    return diverging, leader, position

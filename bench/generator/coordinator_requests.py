"""Requests to coordinators and their responses, written by hand like the rest of `bench.generator.wire`.

Old, inflexible versions where clients of any age behave alike; the newest where it makes a difference: OffsetCommit
as today's clients send it, and EndTxn of version 5, which makes it a transaction of version 2 (KIP-890).
"""

import time
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from bench.generator import wire
from bench.generator.wire import I16, I32, I64, BrokerError, request, string, varint

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = range(8, 15)
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 22, 24, 26
GROUP, TRANSACTION = 0, 1  # what a coordinator is asked for

NONE = 0
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 22, 25, 27
CONCURRENT_TRANSACTIONS, MEMBER_ID_REQUIRED = 51, 79
NOT_NOW = frozenset((COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR))

PROTOCOL_TYPE, PROTOCOL = "consumer", "range"
NO_INSTANCE = I16.pack(-1)
COMMIT_VERSION = 9
COORDINATOR_TIMEOUT_S = 60.0


class Joined(NamedTuple):
    """A JoinGroup response."""

    error: int
    generation: int
    leader: str
    member_id: str
    members: tuple[str, ...]


class Reader:
    """Reads an inflexible response from front to back."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 4) -> None:
        self._data = data
        self._at = at

    def take(self, struct: Struct) -> int:
        (value,) = struct.unpack_from(self._data, self._at)
        self._at += struct.size
        return int(value)

    def bytes(self, size: Struct = I32) -> bytes:
        length = max(0, self.take(size))
        self._at += length
        return self._data[self._at - length : self._at]

    def string(self) -> str:
        return self.bytes(I16).decode()


def compact(text: str) -> bytes:
    """A string of a flexible version."""
    encoded = text.encode()
    return varint(len(encoded) + 1) + encoded


def find_coordinator(key: str, kind: int) -> bytes:
    """Of a group or a transactional id."""
    return request(FIND_COORDINATOR, 1, string(key) + bytes((kind,)), flexible=False)


def await_coordinator(port: int, key: str, kind: int) -> None:
    """Until the key has a coordinator: the first request creates the internal topic."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    with wire.connect(port) as sock:
        while time.monotonic() < deadline:
            error = plain_error(wire.call(sock, find_coordinator(key, kind)))
            if error == NONE:
                return
            if error not in NOT_NOW:
                break
            time.sleep(0.05)
    raise BrokerError(f"no coordinator of {key}: error {error}")


# Groups.


def subscription(topics: Sequence[str]) -> bytes:
    """The subscription of a consumer, version 0."""
    return I16.pack(0) + I32.pack(len(topics)) + b"".join(map(string, topics)) + I32.pack(-1)


def assignment(topic: str, partitions: Sequence[int], note: bytes) -> bytes:
    """The assignment of a member, version 0; the note is the user data, which brokers do not read."""
    parts = I32.pack(len(partitions)) + b"".join(map(I32.pack, partitions))
    return I16.pack(0) + I32.pack(1) + string(topic) + parts + I32.pack(len(note)) + note


def join_group(group: str, member_id: str, session_ms: int, rebalance_ms: int, metadata: bytes) -> bytes:
    """One protocol. A member without an id gets one and must join again."""
    body = string(group) + Struct(">ii").pack(session_ms, rebalance_ms) + string(member_id) + NO_INSTANCE
    body += string(PROTOCOL_TYPE) + I32.pack(1) + string(PROTOCOL) + I32.pack(len(metadata)) + metadata
    return request(JOIN_GROUP, 5, body, flexible=False)


def joined(response: bytes) -> Joined:
    """Reads a JoinGroup response."""
    reader = Reader(response, 8)
    error, generation = reader.take(I16), reader.take(I32)
    reader.string()
    leader, member_id = reader.string(), reader.string()
    members = []
    for _ in range(reader.take(I32)):
        members.append(reader.string())
        reader.string()
        reader.bytes()
    return Joined(error, generation, leader, member_id, tuple(members))


def sync_group(group: str, member_id: str, generation: int, assignments: Mapping[str, bytes]) -> bytes:
    """Only the leader brings assignments."""
    body = string(group) + I32.pack(generation) + string(member_id) + NO_INSTANCE
    body += I32.pack(len(assignments))
    body += b"".join(string(member) + I32.pack(len(part)) + part for member, part in assignments.items())
    return request(SYNC_GROUP, 3, body, flexible=False)


def synced(response: bytes) -> tuple[int, bytes]:
    """The error and the assignment."""
    reader = Reader(response, 8)
    return reader.take(I16), reader.bytes()


def heartbeat(group: str, member_id: str, generation: int) -> bytes:
    """A Heartbeat request."""
    body = string(group) + I32.pack(generation) + string(member_id) + NO_INSTANCE
    return request(HEARTBEAT, 3, body, flexible=False)


def leave_group(group: str, member_id: str) -> bytes:
    """A LeaveGroup request."""
    return request(LEAVE_GROUP, 2, string(group) + string(member_id), flexible=False)


def plain_error(response: bytes) -> int:
    """The error of responses that begin with it: FindCoordinator, Heartbeat, LeaveGroup, EndTxn."""
    return int(I16.unpack_from(response, 8)[0])


# Offsets.


def offset_commit(
    group: str, member_id: str, generation: int, topic: str, partitions: int
) -> tuple[bytearray, list[int]]:
    """A commit for each partition of one topic; where their offsets are in the frame."""
    head = compact(group) + I32.pack(generation) + compact(member_id) + b"\0"
    body = head + b"\x02" + compact(topic) + varint(partitions + 1)
    positions = []
    for index in range(partitions):
        positions.append(len(body) + 4)
        body += Struct(">iqi").pack(index, 0, -1) + b"\x01" + b"\0"
    frame = request(OFFSET_COMMIT, COMMIT_VERSION, body + b"\0\0", flexible=True)
    start = len(frame) - len(body) - 2
    return bytearray(frame), [start + position for position in positions]


def commit_error(response: bytes) -> int:
    """The first error of any partition."""
    name_size, at = wire.read_varint(response, 4 + 1 + 4 + 1)
    count, at = wire.read_varint(response, at + name_size - 1)
    codes = (int(I16.unpack_from(response, at + 7 * index + 4)[0]) for index in range(count - 1))
    return next((code for code in codes if code), NONE)


def offset_fetch(group: str, topic: str, partitions: int) -> bytes:
    """All partitions of one topic."""
    body = string(group) + I32.pack(1) + string(topic) + I32.pack(partitions)
    body += b"".join(map(I32.pack, range(partitions)))
    return request(OFFSET_FETCH, 5, body, flexible=False)


def fetched_offsets(response: bytes) -> list[int]:
    """Of each partition, -1 where nothing is committed."""
    reader = Reader(response, 8 + 4)
    reader.string()
    found = {}
    for _ in range(reader.take(I32)):
        index = reader.take(I32)
        found[index] = reader.take(I64)
        reader.take(I32)
        reader.string()
        if error := reader.take(I16):
            raise BrokerError(f"OffsetFetch failed with error {error}")
    return [found[index] for index in sorted(found)]


# Transactions.


def init_producer_id(transactional_id: str, timeout_ms: int) -> bytes:
    """Of a transactional producer."""
    body = string(transactional_id) + I32.pack(timeout_ms)
    return request(INIT_PRODUCER_ID, 1, body, flexible=False)


def initialized(response: bytes) -> tuple[int, int, int]:
    """Error, producer id and epoch."""
    error, producer_id, epoch = Struct(">hqh").unpack_from(response, 8)
    return error, producer_id, epoch


def add_partition_to_txn(transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int) -> bytes:
    """AddPartitionsToTxn, which clients of transaction version 1 send before they write to a partition."""
    body = string(transactional_id) + Struct(">qh").pack(producer_id, epoch) + I32.pack(1) + string(topic)
    return request(ADD_PARTITIONS_TO_TXN, 1, body + Struct(">ii").pack(1, partition), flexible=False)


def added_error(response: bytes) -> int:
    """Of the only partition."""
    reader = Reader(response, 12)
    reader.string()
    reader.take(I64)  # one partition, its index
    return reader.take(I16)


def end_txn(transactional_id: str, producer_id: int, epoch: int, committed: bool, *, version_2: bool) -> bytes:
    """Commit or abort."""
    producer = Struct(">qhb").pack(producer_id, epoch, committed)
    if version_2:
        return request(END_TXN, 5, compact(transactional_id) + producer + b"\0", flexible=True)
    return request(END_TXN, 1, string(transactional_id) + producer, flexible=False)


def ended(response: bytes) -> tuple[int, int, int]:
    """Error of a transaction of version 2, and its producer id and epoch from now on."""
    error, producer_id, epoch = Struct(">hqh").unpack_from(response, 4 + 1 + 4)
    return error, producer_id, epoch


def transactional_produce(
    transactional_id: str, topic: str, topic_id: bytes, partition: int, records: bytes, *, version_2: bool
) -> tuple[bytes, int, int]:
    """A frame, where its batch starts, and where its response has the error."""
    before = compact(transactional_id) + Struct(">hi").pack(-1, 30_000) + b"\x02"
    named = compact(topic)
    before += (topic_id if version_2 else named) + b"\x02" + I32.pack(partition) + varint(len(records) + 1)
    version = wire.PRODUCE_VERSION if version_2 else 11
    frame = request(wire.PRODUCE, version, before + records + b"\0\0\0", flexible=True)
    error_at = wire.PRODUCE_ERROR_AT + (0 if version_2 else len(named) - len(topic_id))
    return frame, len(frame) - 3 - len(records), error_at

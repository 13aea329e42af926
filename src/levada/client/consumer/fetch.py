"""Fetch and ListOffsets: the requests that read partitions, sent to their leaders, and the decoding of batches."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from levada.client.connection import Allocate, Connection
from levada.client.data import (
    FETCH,
    LIST_OFFSETS,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    OffsetAndTimestamp,
    read_fetch,
    read_list_offsets,
    write_fetch,
    write_list_offsets,
)
from levada.client.errors import ConnectionFailed, Failure, RequestTimedOut, error_code, raise_for_code
from levada.client.metadata import TopicInfo
from levada.client.retry import PARTITION_RETRIABLE, Retries, RetryPolicy, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.batches import BatchHeader, Record, crc_is_valid, decode

if TYPE_CHECKING:
    from levada.client.client import Client

CONTROL_ABORT = 0

Offsets = dict[TopicPartition, OffsetAndTimestamp]


class DecodedBatch(NamedTuple):
    """The records of one batch, none if it is a control batch or aborted; `end` is the offset after it."""

    records: list[Record]
    end: int


async def fetch(
    connection: Connection,
    wanted: Sequence[FetchPosition],
    topics: Mapping[str, TopicInfo],
    limits: FetchLimits,
    *,
    request_timeout_ms: int,
    allocate: Allocate | None = None,
) -> dict[TopicPartition, FetchedPartition]:
    """One Fetch to the leader of these partitions; a large response is received into memory from `allocate`."""
    version = connection.version(FETCH)
    request = write_fetch(version, wanted, topics, limits)
    timeout_s = (request_timeout_ms + limits.max_wait_ms) / 1000
    body = await connection.send(FETCH.key, version, request, timeout_s=timeout_s, allocate=allocate)
    error, partitions = connection.parse(lambda view: read_fetch(version, view, topics), body)
    raise_for_code(error, f"fetch from {connection.address}")
    return partitions


async def fetch_partition(
    client: "Client",
    topic: TopicInfo,
    partition: TopicPartition,
    offset: int,
    limits: FetchLimits,
    *,
    allocate: Allocate | None = None,
) -> FetchedPartition | None:
    """One Fetch of one partition; None where a broker leaves it out of the response, as it does when it throttles."""
    leader = await client.leader(partition)
    wanted = FetchPosition(partition, offset, topic.partitions[partition.partition].leader_epoch)
    partitions = await fetch(
        await client.connection(leader),
        (wanted,),
        {topic.name: topic},
        limits,
        request_timeout_ms=client.request_timeout_ms,
        allocate=allocate,
    )
    return partitions.get(partition)


def decode_batches(
    partition: TopicPartition, fetched: FetchedPartition, batches: Sequence[tuple[int, BatchHeader]]
) -> Iterator[DecodedBatch]:
    """Decode batch by batch, without control records and records of aborted transactions; checks CRCs."""
    pending = sorted(fetched.aborted, key=lambda entry: entry[1])
    aborted: set[int] = set()
    for position, header in batches:
        view = fetched.records[position : position + header.size]
        if not crc_is_valid(view):
            detail = f"{partition}: the batch at offset {header.base_offset} has a wrong CRC"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, detail)
        while pending and pending[0][1] <= header.last_offset:
            aborted.add(pending.pop(0)[0])
        records: list[Record] = []
        if header.is_control:
            if _is_abort(view):
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            records = decode(view)
        yield DecodedBatch(records, header.last_offset + 1)


def _is_abort(view: memoryview) -> bool:
    """Whether a control batch is an abort marker: the key of its record holds a version and a type."""
    keys = [record.key for record in decode(view)]
    return any(key is not None and int.from_bytes(key[2:4], "big") == CONTROL_ABORT for key in keys)


async def list_offsets(client: "Client", times: Mapping[TopicPartition, int], isolation_level: int) -> Offsets:
    """Send ListOffsets to each leader, again where it has moved, until the request timeout."""
    retries = Retries(client, RetryPolicy(PARTITION_RETRIABLE, client.request_timeout_ms))
    found: Offsets = {}
    while missing := {partition: time for partition, time in times.items() if partition not in found}:
        failure: Failure = KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the response lacks a partition")
        try:
            responses = await _list_by_leader(client, missing, isolation_level)
        except (ConnectionFailed, RequestTimedOut) as error:
            responses, failure = {}, error
        for partition, response in responses.items():
            code = error_code(response.error)
            if code is ErrorCode.NONE:
                found[partition] = response
                continue
            failure = KafkaError(code, f"offsets of {partition}")
            if not is_retriable(failure, PARTITION_RETRIABLE):
                raise failure
        if missing.keys() <= found.keys():
            break
        pause_s = retries.pause_s(failure, asyncio.get_running_loop().time())
        if pause_s is None or client.closed:
            raise failure
        for partition in missing.keys() - found.keys():
            client.invalidate_metadata(partition.topic)
        await asyncio.sleep(pause_s)
    return found


async def _list_by_leader(client: "Client", times: Mapping[TopicPartition, int], isolation_level: int) -> Offsets:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, time in times.items():
        by_leader.setdefault(await client.leader(partition), {})[partition] = time
    responses = await asyncio.gather(
        *(_list_at(client, leader, some, isolation_level) for leader, some in by_leader.items())
    )
    return {partition: found for response in responses for partition, found in response.items()}


async def _list_at(client: "Client", leader: int, times: Mapping[TopicPartition, int], isolation_level: int) -> Offsets:
    connection = await client.connection(leader)
    version = connection.version(LIST_OFFSETS)
    body = await connection.send(
        LIST_OFFSETS.key,
        version,
        write_list_offsets(version, times, isolation_level=isolation_level),
        timeout_s=client.request_timeout_ms / 1000,
    )
    return connection.parse(read_list_offsets, body)

"""The commit log: a compacted topic in the cluster that is written to, with one record for each query.

It is as durable as the data itself, and available wherever that is; a checkpoint may be on a file system that only
the JVM can read. A record is appended in a transaction of the driver's transactional id, so of two drivers that
commit at the same time one is fenced. Compaction leaves the last record of each query, and retention deletes those of
queries that are gone: a segment is deleted when its newest record is old enough.
"""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from levada.client.consumer.fetch import decode_batches, fetch_partition
from levada.client.data import LATEST, FetchLimits
from levada.client.errors import FAILURES, raise_for_code
from levada.client.producer.partitioner import partition_for_key
from levada.client.producer.transactions import PreparedTransaction
from levada.client.retry import CLUSTER_RETRIABLE, UNKNOWN_TOPIC, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark.write.commit_protocol import (
    NO_COMMIT,
    UNKNOWN_RUN,
    BatchContent,
    CommitRecord,
    QueryRun,
)
from levada.wire.batches import iterate_headers

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.producer.transactions import TransactionalProducer

TOPIC = "__levada_spark_commit_log"
PARTITIONS = 8
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(90 * 24 * 3_600_000),  # of a query that commits nothing more
    "segment.bytes": str(1 << 20),  # a reader reads little more than one segment
    "min.cleanable.dirty.ratio": "0.1",
}
FETCH_LIMITS = FetchLimits(500, 1 << 20, 1 << 20, isolation_level=1)
TIMEOUT_MS = 120_000
# A topic that was created just now is not known to every broker; retention may delete a segment that is being read.
POLICY = RetryPolicy(CLUSTER_RETRIABLE | UNKNOWN_TOPIC | {ErrorCode.OFFSET_OUT_OF_RANGE}, TIMEOUT_MS)
FIND_POLICY = POLICY._replace(timeout_ms=2_000)  # an operator waits, perhaps for a partition that is offline


class _Record(msgspec.Struct, array_like=True):
    """The value of a commit record."""

    version: int
    batch: int
    prepared: list[PreparedTransaction]
    content: tuple[int | None, str | None] = (None, None)  # rows and offsets; older records end before it
    run: QueryRun = UNKNOWN_RUN  # or before it
    rows_digest: int | None = None  # or before it


_decode = msgspec.json.Decoder(_Record).decode


def encode_commit(commit: CommitRecord) -> bytes:
    """The value of a commit record."""
    rows, offsets, rows_digest = commit.content
    return msgspec.json.encode(
        _Record(1, commit.batch, list(commit.prepared), (rows, offsets), commit.run, rows_digest)
    )


def decode_commit(value: bytes) -> CommitRecord:
    """The commit record in a value."""
    record = _decode(value)
    content = BatchContent(*record.content, record.rows_digest)
    return CommitRecord(record.batch, tuple(record.prepared), content, record.run)


async def append_commit(driver: "TransactionalProducer", query: str, commit: CommitRecord, partition: int) -> None:
    """Append a query's commit record in a transaction; ProducerFenced if another driver has taken over."""
    async with driver.transaction() as transaction:
        await transaction.send(TOPIC, encode_commit(commit), key=query.encode(), partition=partition)


async def read_last_commit(client: "Client", query: str) -> tuple[CommitRecord, int]:
    """A query's last commit record, NO_COMMIT if there is none; and its partition of the commit log.

    Waits for open transactions of other queries in this partition.
    """
    key = query.encode()
    deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000

    async def read() -> tuple[CommitRecord, int]:
        try:
            number = partition_for_key(key, await _partitions(client))
            partition = TopicPartition(TOPIC, number)
            values = await _last_values(client, partition, deadline, isolation_level=0)
        except FAILURES:
            client.invalidate_metadata(TOPIC)
            raise
        value = values.get(key)
        return (NO_COMMIT if value is None else decode_commit(value)), number

    return await retry(client, read, POLICY)


async def read_commits(client: "Client") -> dict[str, CommitRecord]:
    """The last commit records of all queries, by query; nothing if there is no commit log."""
    found: dict[str, CommitRecord] = {}
    for number in range(await _existing_partitions(client)):
        found |= await _read_partition(client, number, POLICY, isolation_level=1)
    return found


async def find_commits(client: "Client", queries: Collection[str]) -> dict[str, CommitRecord | None]:
    """The last commit record of each query: NO_COMMIT if there is none, None if its partition cannot be read now.

    It cannot while a transaction is open in it, after which there may be other records.
    """
    count = await _existing_partitions(client)
    if not count:
        return dict.fromkeys(queries, NO_COMMIT)
    partition_of = {query: partition_for_key(query.encode(), count) for query in queries}
    numbers = sorted(set(partition_of.values()))

    async def read(number: int) -> dict[str, CommitRecord] | None:
        try:
            return await _read_partition(client, number, FIND_POLICY, isolation_level=0)
        except FAILURES:
            return None

    found = dict(zip(numbers, await asyncio.gather(*map(read, numbers)), strict=True))
    return {
        query: None if (commits := found[number]) is None else commits.get(query, NO_COMMIT)
        for query, number in partition_of.items()
    }


async def _existing_partitions(client: "Client") -> int:
    """The number of partitions of the topic; 0 if it does not exist."""
    topic = (await client.metadata([TOPIC])).topics.get(TOPIC)
    return len(topic.partitions) if topic is not None else 0


async def _read_partition(
    client: "Client", number: int, policy: RetryPolicy, *, isolation_level: int
) -> dict[str, CommitRecord]:
    """The last commit records in a partition, by query; isolation level 1 ignores those after an open transaction."""
    partition = TopicPartition(TOPIC, number)
    deadline = asyncio.get_running_loop().time() + policy.timeout_ms / 1000
    values = await retry(client, lambda: _last_values(client, partition, deadline, isolation_level), policy)
    return {key.decode(): decode_commit(value) for key, value in values.items() if value is not None}


async def _partitions(client: "Client") -> int:
    """The number of partitions of the topic, which is created when it is first needed."""
    try:
        return len((await client.topic(TOPIC)).partitions)
    except KafkaError as unknown:
        if unknown.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    try:
        await client.admin.create_topic(TOPIC, partitions=PARTITIONS, configs=SETTINGS)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    return len((await client.topic(TOPIC, create=True)).partitions)


async def _last_values(
    client: "Client", partition: TopicPartition, deadline: float, isolation_level: int
) -> dict[bytes, bytes | None]:
    """The last committed value of each key, up to the high watermark or the last stable offset."""
    latest = await client.list_offsets({partition: LATEST}, isolation_level=isolation_level)
    end = latest[partition].offset
    first = (await client.list_offsets({partition: -2}))[partition].offset
    offset, values = first, dict[bytes, bytes | None]()
    while offset < end:
        topic = await client.topic(TOPIC)
        fetched = await fetch_partition(client, topic, partition, offset, FETCH_LIMITS)
        if fetched is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
        raise_for_code(fetched.error, str(partition))
        batches = list(iterate_headers(fetched.records))
        for batch in decode_batches(partition, fetched, batches):
            offset = batch.end
            values.update((record.key, record.value) for record in batch.records if record.key is not None)
        if not batches and asyncio.get_running_loop().time() > deadline:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{partition} ends at {end} and cannot be read from {offset} on: a transaction is open, see "
                "`levada txn list --open`",
            )
    return values

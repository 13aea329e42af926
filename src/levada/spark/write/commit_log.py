"""Where decisions are kept: a compacted topic of the cluster that is written to, with one record for each query.

It is as durable as the data that it speaks of and is there wherever that is; a checkpoint on some file system can be
reached from the JVM only. A decision is written in an ordinary transaction of the query's lock, so one of two drivers
that decide at once is refused.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from levada.client.consumer.fetch import FetchLimits, decode_batches, fetch_partition
from levada.client.data import LATEST
from levada.client.errors import FAILURES, raise_for_code
from levada.client.producer.partitioner import partition_for_key
from levada.client.producer.transactions import PreparedTransaction
from levada.client.retry import CLUSTER_RETRIABLE, UNKNOWN_TOPIC, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark.write.commit_protocol import NOTHING, UNKNOWN, Content, Decision
from levada.wire.batches import iterate_headers

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.producer.transactions import TransactionalProducer

TOPIC = "__levada_spark_decisions"
PARTITIONS = 8
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),  # what is read to find a decision: little more than a segment
    "min.cleanable.dirty.ratio": "0.1",
}
FETCH_LIMITS = FetchLimits(500, 1 << 20, 1 << 20, isolation_level=1)
TIMEOUT_MS = 120_000
# A topic that was created just now is not known to every broker.
POLICY = RetryPolicy(CLUSTER_RETRIABLE | UNKNOWN_TOPIC, TIMEOUT_MS)


class _Record(msgspec.Struct, array_like=True):
    """The value of a decision's record."""

    version: int
    batch: int
    prepared: list[PreparedTransaction]
    content: Content = UNKNOWN  # older records end before it


_decode = msgspec.json.Decoder(_Record).decode


def encode_decision(decision: Decision) -> bytes:
    """A decision as the value of its record."""
    return msgspec.json.encode(_Record(1, decision.batch, list(decision.prepared), decision.content))


def decode_decision(value: bytes) -> Decision:
    """The decision that stands in a record."""
    record = _decode(value)
    return Decision(record.batch, tuple(record.prepared), record.content)


async def write_decision(lock: "TransactionalProducer", query: str, decision: Decision, place: int) -> None:
    """Make a decision, or say again what holds; ProducerFenced if another driver has the lock now."""
    async with lock.transaction() as transaction:
        await transaction.send(TOPIC, encode_decision(decision), key=query.encode(), partition=place)


async def read_decision(client: "Client", query: str, *, patiently: bool = True) -> tuple[Decision, int]:
    """The last decision of a query, NOTHING if there is none; and the partition in which it stands.

    What other queries have under way there is waited for, if this is to be done `patiently`; if not, a decision that
    stands after it is overlooked.
    """
    key = query.encode()
    deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000

    async def read() -> tuple[Decision, int]:
        try:
            place = partition_for_key(key, await _partitions(client))
            partition = TopicPartition(TOPIC, place)
            value = await _last_value(client, partition, key, deadline, isolation_level=0 if patiently else 1)
        except FAILURES:
            client.invalidate_metadata(TOPIC)
            raise
        return (NOTHING if value is None else decode_decision(value)), place

    return await retry(client, read, POLICY)


async def _partitions(client: "Client") -> int:
    """How many partitions the topic has; it is made when it is first needed."""
    try:
        return len((await client.topic(TOPIC)).partitions)
    except KafkaError as unknown:
        if unknown.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    try:
        await client.admin.create_topic(TOPIC, partitions=PARTITIONS, configs=SETTINGS)
    except KafkaError as refused:
        if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    return len((await client.topic(TOPIC, create=True)).partitions)


async def _last_value(
    client: "Client", partition: TopicPartition, key: bytes, deadline: float, isolation_level: int
) -> bytes | None:
    """The last committed value of a key, up to the end of the log or of what is committed."""
    latest = await client.list_offsets({partition: LATEST}, isolation_level=isolation_level)
    end = latest[partition].offset
    first = (await client.list_offsets({partition: -2}))[partition].offset
    offset, value = first, None
    while offset < end:
        topic = await client.topic(TOPIC)
        fetched = await fetch_partition(client, topic, partition, offset, FETCH_LIMITS)
        if fetched is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
        raise_for_code(fetched.error, str(partition))
        batches = list(iterate_headers(fetched.records))
        for batch in decode_batches(partition, fetched, batches):
            offset = batch.end
            for record in batch.records:
                value = record.value if record.key == key else value
        if not batches and asyncio.get_running_loop().time() > deadline:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{partition} ends at {end} and cannot be read from {offset} on: "
                "see `levada txn list --open`",
            )
    return value

"""Reads and appends records of an embedded broker's partitions, on its loop and not over the wire."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from levada.broker.partition.partition import Partition
from levada.client.consumer.fetch import decode_batches
from levada.client.data import FetchedPartition
from levada.model import ConsumerRecord, TopicPartition
from levada.wire import batches
from levada.wire.batches import Record

READ_BYTES = 1 << 20
POLL_S = 0.005
SHOWN_RECORDS_MAX = 20
SHOWN_BYTES_MAX = 100


def read_committed(partition: Partition) -> Iterator[ConsumerRecord]:
    """The records that a consumer with isolation.level=read_committed gets."""
    offset = partition.log_start_offset
    while offset < partition.last_stable_offset:
        piece = partition.read(offset, READ_BYTES, minimum_one=True, committed=True)
        data = memoryview(b"".join(piece.views))
        aborted = tuple(partition.transactions.aborted(offset, piece.size))
        fetched = FetchedPartition(0, partition.high_watermark, partition.last_stable_offset, 0, aborted, data)
        topic_partition = TopicPartition(partition.topic, partition.index)
        for batch in decode_batches(topic_partition, fetched, list(batches.iterate_headers(data))):
            for record in batch.records:
                if record.offset >= partition.log_start_offset:
                    yield ConsumerRecord(partition.topic, partition.index, *record)
            offset = batch.end


async def append(partition: Partition, records: Sequence[Record], now_ms: int) -> list[ConsumerRecord]:
    """Append one batch and wait until consumers can read it; the records with their offsets. Raises KafkaError."""
    batch = batches.encode(records)
    base_offset = partition.append(memoryview(batch), 0, len(batch), now_ms)
    partition.publish_queued()
    while partition.high_watermark < base_offset + len(records):  # with levada.acks.wait.for.fsync
        if partition.offline:
            raise partition.storage_error()
        await asyncio.sleep(POLL_S)
    stored = batches.decode(memoryview(batch))
    return [ConsumerRecord(partition.topic, partition.index, *record) for record in stored]


def describe(records: Iterable[ConsumerRecord]) -> str:
    """One line for each of the first records."""
    lines = [
        f"  {topic}-{partition} offset {offset}: key={_short(key)} value={_short(value)}"
        for topic, partition, offset, _, key, value, _ in records
    ]
    hidden = len(lines) - SHOWN_RECORDS_MAX
    return "\n".join(lines[:SHOWN_RECORDS_MAX] + ([f"  and {hidden} more"] if hidden > 0 else []))


def _short(data: bytes | None) -> str:
    if data is None or len(data) <= SHOWN_BYTES_MAX:
        return repr(data)
    return f"{data[:SHOWN_BYTES_MAX]!r}... ({len(data)} bytes)"

"""Collects records into batches, a queue for each partition, within a memory limit (Kafka's RecordAccumulator).

At most one batch of a partition is in flight, and the partition is *muted* meanwhile. So retries keep the order: a
batch that fails is sent again with the same sequence numbers, and the batches behind it have none yet.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from levada.client.metadata import TopicInfo
from levada.client.producer.partitioner import another_partition, partition_for_key
from levada.model import TopicPartition
from levada.wire.batches import Record

RECORD_OVERHEAD_BYTES = 32  # lengths, deltas and the object itself, about


class RecordMetadata(NamedTuple):
    """Where a record is stored; the offset is -1 with acks=0, since brokers do not respond to it."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducerBatch:
    """Records of one partition that are sent together, and the futures of their callers."""

    __slots__ = ("attempts", "deadline", "done", "futures", "ready_at", "records", "size")

    def __init__(self, ready_at: float, deadline: float, done: asyncio.Future[None]) -> None:
        self.records: list[Record] = []
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        self.size = 0
        self.attempts = 0  # a batch that was sent takes no more records: a retry must be the same batch
        self.ready_at = ready_at  # when it is sent though it is not full
        self.deadline = deadline  # when its records fail
        self.done = done  # set once every record is stored or has failed


class PartitionQueue:
    """The batches of one partition that wait to be sent, and its sequence of producer id, epoch and number."""

    __slots__ = (
        "batches", "linger_timer", "muted", "partition", "producer_epoch", "producer_id", "sequence", "topic_id",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.muted = False  # a batch is in flight, or backs off before a retry
        self.producer_id = -1  # -1: InitProducerId comes before the next batch
        self.producer_epoch = -1
        self.sequence = 0  # of the first record of the next batch
        self.linger_timer: asyncio.TimerHandle | None = None
        self.topic_id: object = None  # the topic that the sequence belongs to


class RecordAccumulator:
    """The records that are accepted and not yet stored."""

    def __init__(self, *, linger_ms: float, batch_bytes: int, buffer_bytes: int, delivery_timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._memory_freed = asyncio.Event()
        self._sticky: dict[str, PartitionQueue] = {}  # by topic, where records without a key go
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.incomplete: set[ProducerBatch] = set()
        self.buffered_bytes = 0
        self.closed = False

    def has_memory(self, size: int) -> bool:
        """Whether a record fits into the buffer; RuntimeError if the producer is closed."""
        if self.closed:
            raise RuntimeError("the producer is closed")
        return not self.buffered_bytes or self.buffered_bytes + size <= self._buffer_bytes

    async def wait_for_memory(self) -> None:
        """Wait until a batch is complete."""
        self._memory_freed.clear()
        await self._memory_freed.wait()

    def append(
        self, queue: PartitionQueue, record: Record, size: int
    ) -> tuple[asyncio.Future[RecordMetadata], bool, bool]:
        """Add a record to its partition's last batch or a new one: its future, if the batch is new, if it is full."""
        batches = queue.batches
        is_new = not self._fits(queue, size)
        if is_new:
            now = self._loop.time()
            if batches:
                batches[0].ready_at = 0  # no more records join it
            batch = ProducerBatch(now + self._linger_s, now + self._delivery_timeout_s, self._loop.create_future())
            batches.append(batch)
            self.incomplete.add(batch)
        else:
            batch = batches[-1]
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        batch.records.append(record)
        batch.futures.append(future)
        batch.size += size
        self.buffered_bytes += size
        is_full = batch.size >= self._batch_bytes
        if is_full:
            batch.ready_at = 0
        return future, is_new, is_full

    def queue_for(self, topic: TopicInfo, key: bytes | None, partition: int | None, size: int) -> PartitionQueue:
        """The queue of the partition that a record goes to: the given one, or by its key, or the sticky one."""
        count = len(topic.partitions)
        if partition is not None:
            if not 0 <= partition < count:
                raise topic.unknown_partition(partition)
            return self._queue(topic.name, partition)
        if key is not None:
            return self._queue(topic.name, partition_for_key(key, count))
        # One partition until its batch is full, then another: larger batches, fewer requests (KIP-480).
        sticky = self._sticky.get(topic.name)
        if sticky is not None and sticky.partition.partition < count and self._fits(sticky, size):
            return sticky
        available = [info.partition for info in topic.partitions if info.leader >= 0] or range(count)
        chosen = another_partition(available, None if sticky is None else sticky.partition.partition)
        queue = self._sticky[topic.name] = self._queue(topic.name, chosen)
        return queue

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        chosen = TopicPartition(topic, partition)
        queue = self.queues.get(chosen)
        if queue is None:
            queue = self.queues[chosen] = PartitionQueue(chosen)
        return queue

    def _fits(self, queue: PartitionQueue, size: int) -> bool:
        if not queue.batches:
            return False
        last = queue.batches[-1]
        return not last.attempts and last.size + size <= self._batch_bytes

    def flush(self) -> list[asyncio.Future[None]]:
        """Make every batch ready to be sent; the futures of all that are incomplete."""
        for queue in self.queues.values():
            for batch in queue.batches:
                batch.ready_at = 0
        return [batch.done for batch in self.incomplete]

    def split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Put a batch that is too large for the broker back as two halves."""
        half = len(batch.records) // 2
        first = ProducerBatch(0, batch.deadline, self._loop.create_future())
        first.records, batch.records = batch.records[:half], batch.records[half:]
        first.futures, batch.futures = batch.futures[:half], batch.futures[half:]
        first.size = batch.size // 2
        batch.size -= first.size
        self.incomplete.add(first)
        queue.batches.extendleft((batch, first))

    def complete(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch whose records are all stored or have failed."""
        self.incomplete.discard(batch)
        self.buffered_bytes -= batch.size
        batch.size = 0
        if not batch.done.done():
            batch.done.set_result(None)
        self._memory_freed.set()

    def close(self) -> None:
        """Accept no more records."""
        self.closed = True
        self._memory_freed.set()

    def abort_incomplete(self) -> None:
        """Cancel the records that are not stored."""
        for batch in list(self.incomplete):
            for future in batch.futures:
                future.cancel()
            self.complete(batch)


def record_size(record: Record) -> int:
    """Bytes of a record, about; TypeError or ValueError if it is invalid, which must not fail the rest of its batch."""
    if not -1 <= record.timestamp < 1 << 63:
        raise ValueError(f"a timestamp is in milliseconds since 1970, not {record.timestamp}")
    size = RECORD_OVERHEAD_BYTES + _length(record.key) + _length(record.value)
    for name, value in record.headers:
        size += len(name) + _length(value) + 2
    return size


def _length(value: bytes | None) -> int:
    if value is None:
        return 0
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"keys and values are bytes, not {type(value).__name__}: encode it first")
    return len(value)

"""A producer that batches: records wait a moment for company, then go straight to their leader (R20, R49).

Each partition has a lane: a queue of batches of which at most one is on the wire. So order needs no case
analysis: a batch that fails is sent again with the same sequence numbers before anything behind it, and what is
behind it has not been numbered yet. Lanes of one leader travel together in one request.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from levada.client.metadata import TopicInfo
from levada.client.producer.partitioner import another_partition, partition_for_key
from levada.clock import SystemClock
from levada.model import Codec, TopicPartition
from levada.wire.batches import Record

if TYPE_CHECKING:
    from levada.client.client import Client

Acks = Literal[0, 1, "all"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Headers = Iterable[tuple[str, bytes | None]]

DELIVERY_TIMEOUT_MS = 120_000
RECORD_OVERHEAD_BYTES = 32  # lengths, deltas and the object itself, about


class RecordMetadata(NamedTuple):
    """Where a record was stored; the offset is -1 with acks=0, when nobody says."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducerIdentity(NamedTuple):
    """The producer of one transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class BatchingOptions(TypedDict, total=False):
    """What any producer may be told; `Producer` has the defaults."""

    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    compression: Compression
    in_flight_max: int
    delivery_timeout_ms: int


class ProducerOptions(BatchingOptions, total=False):
    """What a producer without transactions may be told."""

    acks: Acks
    idempotent: bool | None


class Batch:
    """Records that travel together, and those who wait for them."""

    __slots__ = ("answers", "attempts", "deadline", "done", "due", "records", "size")

    def __init__(self, due: float, deadline: float, done: asyncio.Future[None]) -> None:
        self.records: list[Record] = []
        self.answers: list[asyncio.Future[RecordMetadata]] = []
        self.size = 0
        self.attempts = 0
        self.due = due  # when it is sent though it is not full
        self.deadline = deadline  # when its records are given up
        self.done = done  # set once every record has its answer


class Lane:
    """What waits for one partition."""

    __slots__ = (
        "batches",
        "busy",
        "partition",
        "producer_epoch",
        "producer_id",
        "sequence",
        "timer",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.busy = False  # a batch of this lane is on the wire, or waits for another attempt
        self.producer_id = -1  # -1: to be asked for before the next batch
        self.producer_epoch = -1
        self.sequence = 0  # of the first record of the next batch
        self.timer: asyncio.TimerHandle | None = None
        self.topic_id: object = None  # the topic that the sequence belongs to


class Producer:
    """Sends records; made by `Client.producer`.

    >>> async with client.producer(acks="all", linger_ms=5) as producer:
    ...     stored = await producer.send("orders", b"value", key=b"key")   # in the buffer
    ...     print((await stored).offset)                                   # in the log
    """

    def __init__(
        self,
        client: "Client",
        *,
        acks: Acks = "all",
        linger_ms: float = 5,
        batch_bytes: int = 262_144,
        buffer_bytes: int = 33_554_432,
        compression: Compression = "none",
        idempotent: bool | None = None,
        in_flight_max: int = 5,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        writer: ProducerIdentity | None = None,
    ) -> None:
        from levada.client.producer.sender import Sender

        _check(acks, compression, idempotent)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._buffered = 0  # bytes of the records accepted and not yet answered
        self._room = asyncio.Event()
        self._lanes: dict[TopicPartition, Lane] = {}
        self._unfinished: set[Batch] = set()
        self._sticky: dict[str, int] = {}
        self._closed = False
        self._sender = Sender(
            client,
            acks=-1 if acks == "all" else acks,
            codec=Codec[compression.upper()],
            idempotent=acks == "all" if idempotent is None else idempotent,
            in_flight_max=in_flight_max,
            unfinished=self._unfinished,
            finished=self._finished,
            writer=writer,
        )

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    @property
    def failure(self) -> Exception | None:
        """In a transaction: why it cannot be committed."""
        return self._sender.failure

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the records that wait to be stored, about."""
        return self._buffered

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record into the buffer, waiting while it is full; the future that it gives is done once stored.

        `timestamp` is in milliseconds since 1970, now if left out.
        """
        info = await self._client.topic(topic, create=True)
        record = Record(
            0, self._clock.now_ms() if timestamp is None else timestamp, key, value, tuple(headers)
        )
        size = _size(record)
        while self._buffered and self._buffered + size > self._buffer_bytes and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise RuntimeError("the producer is closed")
        lane = self._lane(self._choose(info, key, partition, size))
        batch = self._open_batch(lane, size)
        answer: asyncio.Future[RecordMetadata] = self._loop.create_future()
        batch.records.append(record)
        batch.answers.append(answer)
        batch.size += size
        self._buffered += size
        if batch.size >= self._batch_bytes:
            batch.due = 0
            self._sender.consider(lane)
            await asyncio.sleep(0)  # a caller that never waits must let the sender run
        return answer

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is stored."""
        return await (
            await self.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        )

    async def flush(self) -> None:
        """Send what is in the buffer now, and wait until each of its records is stored or has failed."""
        waiting = [batch.done for batch in self._unfinished]
        for lane in self._lanes.values():
            for batch in lane.batches:
                batch.due = 0
            self._sender.consider(lane)
        if waiting:
            await asyncio.wait(waiting)

    async def close(self, *, flush: bool = True) -> None:
        """Send the rest and stop; without `flush` what is not stored yet is given up."""
        if flush and not self._closed:
            await self.flush()
        self._closed = True
        self._room.set()
        await self._sender.stop()
        for batch in list(self._unfinished):
            for answer in batch.answers:
                answer.cancel()
            self._finished(batch)

    def _choose(self, info: TopicInfo, key: bytes | None, partition: int | None, size: int) -> TopicPartition:
        count = len(info.partitions)
        if partition is not None:
            if not 0 <= partition < count:
                raise info.lacks(partition)
            return TopicPartition(info.name, partition)
        if key is not None:
            return TopicPartition(info.name, partition_for_key(key, count))
        current = self._sticky.get(info.name)
        if current is not None and current < count:
            chosen = TopicPartition(info.name, current)
            if self._fits(self._lanes.get(chosen), size):
                return chosen
        available = [part.partition for part in info.partitions if part.leader >= 0] or range(count)
        self._sticky[info.name] = another_partition(available, current)
        return TopicPartition(info.name, self._sticky[info.name])

    def _fits(self, lane: Lane | None, size: int) -> bool:
        """Whether the lane's last batch has room."""
        return lane is not None and bool(lane.batches) and lane.batches[-1].size + size <= self._batch_bytes

    def _lane(self, partition: TopicPartition) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition)
        return lane

    def _open_batch(self, lane: Lane, size: int) -> Batch:
        """The lane's last batch if the record fits into it, else a new one."""
        if self._fits(lane, size):
            return lane.batches[-1]
        now = self._loop.time()
        batch = Batch(now + self._linger_s, now + self._delivery_timeout_s, self._loop.create_future())
        lane.batches.append(batch)
        self._unfinished.add(batch)
        if len(lane.batches) > 1:
            lane.batches[0].due = 0  # nothing more goes into it
        self._sender.consider(lane)
        return batch

    def _finished(self, batch: Batch) -> None:
        self._unfinished.discard(batch)
        self._buffered -= batch.size
        batch.size = 0
        if not batch.done.done():
            batch.done.set_result(None)
        self._room.set()


def _check(acks: Acks, compression: Compression, idempotent: bool | None) -> None:
    if acks not in (0, 1, "all"):
        raise ValueError(f'acks must be 0, 1 or "all", not {acks!r}')
    if idempotent and acks != "all":
        raise ValueError('an idempotent producer needs acks="all"')
    if compression.upper() not in Codec.__members__:
        raise ValueError(f"compression must be one of none, gzip, snappy, lz4, zstd, not {compression!r}")


def _size(record: Record) -> int:
    """Bytes of a record, about; TypeError or ValueError if it is none: it must not spoil the batch of others."""
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

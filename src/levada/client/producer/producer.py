"""The producer: puts records into the accumulator, from which the sender sends them in batches to their leaders."""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from levada.client.data import ProducerIdentity
from levada.client.producer.accumulator import RecordAccumulator, RecordMetadata, record_size
from levada.client.producer.sender import Sender
from levada.clock import SystemClock
from levada.model import Codec
from levada.wire.batches import Record

if TYPE_CHECKING:
    from levada.client.client import Client

Acks = Literal[0, 1, "all"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Headers = Iterable[tuple[str, bytes | None]]

DELIVERY_TIMEOUT_MS = 120_000


class BatchingOptions(TypedDict, total=False):
    """The options of every producer; `Producer` has the defaults."""

    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    compression: Compression
    in_flight_max: int
    delivery_timeout_ms: int


class ProducerOptions(BatchingOptions, total=False):
    """The options of a producer without transactions."""

    acks: Acks
    idempotent: bool | None


class RecordOptions(TypedDict, total=False):
    """The options of a record; `Producer.send` has the defaults."""

    key: bytes | None
    headers: Headers
    partition: int | None
    timestamp: int | None


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
        transaction: ProducerIdentity | None = None,
    ) -> None:
        _check(acks, compression, idempotent)
        self._client = client
        self._clock = SystemClock()
        self._accumulator = RecordAccumulator(
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        self._sender = Sender(
            client,
            self._accumulator,
            acks=-1 if acks == "all" else acks,
            codec=Codec[compression.upper()],
            idempotent=acks == "all" if idempotent is None else idempotent,
            in_flight_max=in_flight_max,
            transaction=transaction,
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
        return self._accumulator.buffered_bytes

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
        """Put a record into the buffer, waiting while it is full; the returned future is done once it is stored.

        `timestamp` is in milliseconds since 1970, now if left out.
        """
        info = await self._client.topic(topic, create=True)
        record = Record(0, self._clock.now_ms() if timestamp is None else timestamp, key, value, tuple(headers))
        size = record_size(record)
        accumulator = self._accumulator
        while not accumulator.has_memory(size):
            await accumulator.wait_for_memory()
        queue = accumulator.queue_for(info, key, partition, size)
        future, is_new, is_full = accumulator.append(queue, record, size)
        if is_new or is_full:
            self._sender.schedule(queue)
        if is_full:
            await asyncio.sleep(0)  # a caller that never waits must let the sender run
        return future

    async def send_and_wait(self, topic: str, value: bytes | None, **options: Unpack[RecordOptions]) -> RecordMetadata:
        """Send one record and wait until it is stored."""
        return await (await self.send(topic, value, **options))

    async def flush(self) -> None:
        """Send the buffered records now, and wait until each of them is stored or has failed."""
        waiting = self._accumulator.flush()
        for queue in self._accumulator.queues.values():
            self._sender.schedule(queue)
        if waiting:
            await asyncio.wait(waiting)

    async def close(self, *, flush: bool = True) -> None:
        """Send the buffered records and stop; without `flush` those that are not stored yet are cancelled."""
        if flush and not self._accumulator.closed:
            await self.flush()
        self._accumulator.close()
        await self._sender.stop()
        self._accumulator.abort_incomplete()


def _check(acks: Acks, compression: Compression, idempotent: bool | None) -> None:
    if acks not in (0, 1, "all"):
        raise ValueError(f'acks must be 0, 1 or "all", not {acks!r}')
    if idempotent and acks != "all":
        raise ValueError('an idempotent producer needs acks="all"')
    if compression.upper() not in Codec.__members__:
        raise ValueError(f"compression must be one of none, gzip, snappy, lz4, zstd, not {compression!r}")

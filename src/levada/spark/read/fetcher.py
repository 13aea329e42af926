"""Fetches the record batches of an offset range, with the next Fetch on its way while one response is decoded.

At most two responses are in memory: the caller's, and the next one. Each has its own deadline: brokers that are
unavailable, topics that are unknown, and logs that do not reach the end of the range yet.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import numpy as np

from levada.client.consumer.fetch import fetch_partition
from levada.client.data import EARLIEST, LATEST, FetchedPartition, FetchLimits
from levada.client.errors import FAILURES, ConnectionFailed, Failure, RequestTimedOut, error_code
from levada.client.metadata import TopicInfo
from levada.client.retry import CLUSTER_RETRIABLE, UNKNOWN_TOPIC, Retries, RetryPolicy
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.errors import DataLoss, warn

if TYPE_CHECKING:
    from levada.client.client import Client

# A broker that has just started may not know a topic yet; after this time it counts as deleted.
DELETED_AFTER_S = 3.0
RECORD_BYTES_INITIAL = 1024  # the assumed size of a record before the first response
FETCH_BYTES_MIN = 64 << 10

RETRIABLE = CLUSTER_RETRIABLE | UNKNOWN_TOPIC | {ErrorCode.UNKNOWN_SERVER_ERROR}


class Chunk(NamedTuple):
    """The records of one Fetch response."""

    data: memoryview  # for `decode_chunk`; valid until the next chunk is requested
    aborted: tuple[tuple[int, int], ...]  # producer id, first offset
    start: int  # the first offset of it that is wanted
    next_offset: int  # after its last complete batch


class FetchOptions(NamedTuple):
    """How to fetch."""

    client_id: str = "levada-spark"
    read_committed: bool = True
    fetch_bytes: int = 8 << 20  # of one request; a larger batch is returned whole
    fetch_wait_ms: int = 500  # how long a broker may wait for records
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000  # how long brokers may be unavailable
    stall_timeout_ms: int = 120_000  # how long a Fetch may return nothing before the end of the range
    fail_on_data_loss: bool = True  # False: continue with what is left of the range


class _Recreated(KafkaError):  # noqa: N818
    """The name has another topic id. A broker with older metadata may report that too, so it is retried for a while."""


class StreamStalled(TimeoutError):  # noqa: N818
    """A transaction in the range stays open, so the records after it cannot be read."""


def fetch_range(
    bootstrap: str,
    partition: TopicPartition,
    start: int,
    end: int,
    options: FetchOptions = FetchOptions(),  # noqa: B008
    topic_id: UUID | None = None,
) -> Iterator[Chunk]:
    """Fetch all records with start <= offset < end that still exist, as chunks.

    The iterator stops at `end`, also if the last offsets before it do not exist any more. Closing it leaves the shared
    client open. With `topic_id` a topic that was deleted and created again is not mistaken for the old one.

    Raises DataLoss; KafkaError for other errors that are not retriable; ConnectionFailed with the bootstrap servers if
    no broker can be reached; StreamStalled if the last stable offset stays below `end` for too long.
    """
    client = blocking.client(
        bootstrap,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
    )
    try:
        yield from blocking.iterate(_RangeFetcher(client, partition, start, end, options, topic_id).chunks())
    except (ConnectionFailed, RequestTimedOut) as failure:
        raise ConnectionFailed(f"{partition} cannot be read from the brokers at {bootstrap}: {failure}") from None


class _RangeFetcher:
    """Fetches one range: `position` is the offset of the next Fetch."""

    def __init__(
        self,
        client: "Client",
        partition: TopicPartition,
        start: int,
        end: int,
        options: FetchOptions,
        topic_id: UUID | None,
    ) -> None:
        self._client = client
        self._partition = partition
        self._position = start
        self._end = end
        self._options = options
        self._topic_id = topic_id
        self._record_bytes = RECORD_BYTES_INITIAL
        self._retries = Retries(client, RetryPolicy(RETRIABLE, options.retry_timeout_ms))
        self._unknown_since = self._stalled_since = -1.0
        self._seems_empty = False  # one Fetch returned nothing up to the end; the next one confirms it

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The chunks of the range; the next one is fetched while the caller has one."""
        fetching = asyncio.create_task(self._next(), name=f"fetch {self._partition}")
        try:
            while (chunk := await fetching) is not None:
                fetching = asyncio.create_task(self._next(), name=f"fetch {self._partition}")
                yield chunk
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def _next(self) -> Chunk | None:
        loop = asyncio.get_running_loop()
        while self._position < self._end:
            if self._retries.since is None:
                self._retries.since = loop.time()
            try:
                response = await self._fetch()
                if response is not None and response.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                    await self._reset_position()
                    continue
                if response is not None and response.error:
                    raise KafkaError(error_code(response.error))
            except FAILURES as failure:
                await self._back_off(failure)
                continue
            self._retries.reset()
            self._unknown_since = -1.0
            if response is not None and len(response.records):
                return self._chunk(response)
            await self._wait_for_more(response)
        return None

    async def _fetch(self) -> FetchedPartition | None:
        """One Fetch at the position; None if the broker leaves the partition out of its response."""
        topic = await self._topic()
        size = self._fetch_bytes()
        wait_ms = 0 if self._seems_empty else self._options.fetch_wait_ms
        limits = FetchLimits(wait_ms, size, size, int(self._options.read_committed))
        fetched = await fetch_partition(
            self._client, topic, self._partition, self._position, limits, allocate=_allocate
        )
        if self._topic_id is None and fetched is not None and not fetched.error:
            self._topic_id = topic.topic_id
        return fetched

    async def _topic(self) -> TopicInfo:
        """The topic that was planned, or of the last response; _Recreated if its name has another id now.

        A worker runs many tasks, so its cached metadata may be older than the plan and is refreshed before an error.
        """
        name = self._partition.topic
        topic = await self._client.topic(name)
        if self._is_other(topic):
            topic = await self._client.topic(name, refresh=True)
        if self._is_other(topic):
            raise _Recreated(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {name} was deleted and created again")
        return topic

    def _is_other(self, topic: TopicInfo) -> bool:
        return None not in (self._topic_id, topic.topic_id) and topic.topic_id != self._topic_id

    def _fetch_bytes(self) -> int:
        """A little more than the likely size of the rest of the range."""
        likely = (self._end - self._position) * self._record_bytes * 5 // 4
        return min(max(likely, FETCH_BYTES_MIN), self._options.fetch_bytes)

    def _chunk(self, response: FetchedPartition) -> Chunk:
        from levada.spark.kernels.walk import offset_after  # drivers do not load numba

        start = self._position
        after = offset_after(np.frombuffer(response.records, np.uint8))
        if after <= start:
            why = f"{self._partition} at offset {start}: no complete batch in {len(response.records)} bytes"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, why)
        self._stalled_since = -1.0
        self._seems_empty = False
        self._record_bytes = max(len(response.records) // (after - start), 1)
        self._position = after
        return Chunk(response.records, response.aborted, start, after)

    async def _wait_for_more(self, response: FetchedPartition | None) -> None:
        """After an empty response: the range ends without records, or the log does not reach its end yet."""
        now = asyncio.get_running_loop().time()
        if self._stalled_since < 0:
            self._stalled_since = now
        is_over = now - self._stalled_since > self._options.stall_timeout_ms / 1000
        if response is None:
            readable = ends = -1
        else:
            ends = response.high_watermark
            readable = response.last_stable_offset if self._options.read_committed else ends
        if readable >= self._end:
            if self._seems_empty:
                self._position = self._end
            self._seems_empty = True
        elif is_over and 0 <= ends < self._end:
            where = f"{self._partition} ends at {ends}, and should be read up to {self._end}"
            self._lose(ErrorCode.OFFSET_OUT_OF_RANGE, where, self._end)
        elif is_over:
            raise StreamStalled(
                f"{self._partition} can be read up to {readable} only, not to {self._end}, for "
                f"{self._options.stall_timeout_ms / 1000:g} s now: see `levada txn list --open` for open transactions"
            )
        elif response is None:
            await asyncio.sleep(self._client.retry_backoff_s)

    async def _reset_position(self) -> None:
        """After OFFSET_OUT_OF_RANGE: continue at the earliest offset, or end the range; records are lost."""
        earliest = await self._offset(EARLIEST)
        latest = await self._offset(LATEST)
        if self._position < earliest:
            what = f"{self._partition} begins at {earliest}, offsets from {self._position} on are gone"
            self._lose(ErrorCode.OFFSET_OUT_OF_RANGE, what, earliest)
        elif self._position > latest:
            what = f"{self._partition} ends at {latest}, offsets from there on are gone"
            self._lose(ErrorCode.OFFSET_OUT_OF_RANGE, what, self._end)
        else:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{self._partition} at offset {self._position}")

    async def _offset(self, time: int) -> int:
        return (await self._client.list_offsets({self._partition: time}))[self._partition].offset

    def _lose(self, code: ErrorCode, what: str, continue_at: int) -> None:
        """Records of the range are gone: DataLoss, or with fail_on_data_loss=False a warning."""
        if self._options.fail_on_data_loss:
            raise DataLoss(code, what)
        warn(f"{what}; the query continues with what is left")
        self._position = min(continue_at, self._end)

    async def _back_off(self, failure: Failure) -> None:
        """Wait after a retriable failure and refresh the metadata; raise any other."""
        if isinstance(failure, DataLoss) or self._client.closed:
            raise failure
        code = failure.code if isinstance(failure, KafkaError) else None
        now = asyncio.get_running_loop().time()
        if code not in UNKNOWN_TOPIC:
            self._unknown_since = -1.0
        elif self._unknown_since < 0:
            self._unknown_since = now
        elif now - self._unknown_since > DELETED_AFTER_S:
            recreated = failure.detail if isinstance(failure, _Recreated) else ""
            self._lose(
                code,
                recreated or f"{self._partition} does not exist any more: its topic was deleted",
                self._end,
            )
            return
        pause_s = self._retries.pause_s(failure, now)
        if pause_s is None:
            if isinstance(failure, KafkaError):
                why = f": {failure.detail}" if failure.detail else ""
                raise KafkaError(failure.code, f"{self._partition} at offset {self._position}{why}") from None
            raise failure
        self._client.invalidate_metadata(self._partition.topic)
        await asyncio.sleep(pause_s)


def _allocate(size: int) -> memoryview:
    """Memory that is not zeroed: most of it is overwritten at once."""
    return np.empty(size, np.uint8).data

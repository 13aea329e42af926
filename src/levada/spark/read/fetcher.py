"""Raw record batches of a range of one partition, the next ones being on their way while these are decoded.

At most two answers are in memory: the one that the caller has, and the one that comes or waits for him. A broker that
goes away, a leader that moves and a log that is not yet as long as wanted are waited for, each with a limit of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import numpy as np

from levada.client.consumer.fetch import FetchLimits, fetch_partition
from levada.client.data import EARLIEST, LATEST, FetchedPartition
from levada.client.errors import FAILURES, ConnectionFailed, Failure, RequestTimedOut, error_code
from levada.client.metadata import TopicInfo
from levada.client.retry import CLUSTER_RETRIABLE, UNKNOWN_TOPIC, Retries, RetryPolicy
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.warning import warn

if TYPE_CHECKING:
    from levada.client.client import Client

# A broker that has just started, or is behind, may not know a topic yet; one that was deleted stays unknown.
GONE_AFTER_S = 3.0
RECORD_BYTES_GUESS = 1024  # until the first answer tells
FETCH_BYTES_MIN = 64 << 10

RETRIABLE = CLUSTER_RETRIABLE | UNKNOWN_TOPIC | {ErrorCode.UNKNOWN_SERVER_ERROR}


class Chunk(NamedTuple):
    """What one Fetch brought."""

    data: memoryview  # for `decode_chunk`; may be overwritten when the next chunk is asked for
    aborted: tuple[tuple[int, int], ...]  # producer id, first offset
    start: int  # the first offset wanted of it
    next_offset: int  # after its last whole batch
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class FetchOptions(NamedTuple):
    """How to fetch."""

    client_id: str = "levada-spark"
    read_committed: bool = True
    fetch_bytes: int = 8 << 20  # asked for at once; a bigger batch comes whole nevertheless
    fetch_wait_ms: int = 500  # how long a broker may hold a Fetch that finds nothing
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000  # how long in all a broker or leader may be away
    stall_timeout_ms: int = 120_000  # how long nothing may come while the end is not reached
    fail_on_data_loss: bool = True  # False: go on with what is left of the range


class DataLoss(KafkaError):  # noqa: N818
    """OFFSET_OUT_OF_RANGE, or a topic deleted or made anew: records of the range are gone."""


class _MadeAgain(KafkaError):  # noqa: N818
    """A broker has another topic under the name; it may be one that is behind, so it is asked again for a while."""


class StreamStalled(TimeoutError):  # noqa: N818
    """A transaction stays open in the range, so what follows cannot be read."""


def fetch_range(
    bootstrap: str,
    partition: TopicPartition,
    start: int,
    end: int,
    options: FetchOptions = FetchOptions(),  # noqa: B008
    topic_id: UUID | None = None,
) -> Iterator[Chunk]:
    """Chunks that together hold every record with start <= offset < end that is still there.

    It ends when `end` is reached, also where the last offsets before it do not exist any more. Closing the iterator
    closes nothing that others use. With `topic_id` a topic deleted and made again is not taken for the old one.

    Raises DataLoss; KafkaError for other answers that do not heal; ConnectionFailed naming the bootstrap servers when
    no broker is reached; StreamStalled when the last stable offset stays below `end` for too long.
    """
    client = blocking.client(
        bootstrap,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
    )
    try:
        yield from blocking.iterate(_Range(client, partition, start, end, options, topic_id).chunks())
    except (ConnectionFailed, RequestTimedOut) as failure:
        raise ConnectionFailed(
            f"{partition} cannot be read from the brokers at {bootstrap}: {failure}"
        ) from None


class _Range:
    """A range while it is read: `position` is where the next Fetch begins."""

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
        self._record_bytes = RECORD_BYTES_GUESS
        self._retries = Retries(client, RetryPolicy(RETRIABLE, options.retry_timeout_ms))
        self._gone_since = self._stalled_since = -1.0
        self._nothing_left = (
            False  # a broker said that there is nothing before the end; it is asked once more
        )

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The range; one more chunk is fetched while the caller has one."""
        coming = asyncio.create_task(self._next(), name=f"fetch {self._partition}")
        try:
            while (chunk := await coming) is not None:
                coming = asyncio.create_task(self._next(), name=f"fetch {self._partition}")
                yield chunk
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _next(self) -> Chunk | None:
        loop = asyncio.get_running_loop()
        while self._position < self._end:
            if self._retries.since is None:
                self._retries.since = loop.time()
            try:
                answer = await self._ask()
                if answer is not None and answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                    await self._find_place()
                    continue
                if answer is not None and answer.error:
                    raise KafkaError(error_code(answer.error))
            except FAILURES as failure:
                await self._back_off(failure)
                continue
            self._retries.reset()
            self._gone_since = -1.0
            if answer is not None and len(answer.records):
                return self._chunk(answer)
            await self._wait_for_more(answer)
        return None

    async def _ask(self) -> FetchedPartition | None:
        """One Fetch at the position; None where a broker leaves the partition out."""
        topic = await self._topic()
        size = self._fetch_bytes()
        wait_ms = 0 if self._nothing_left else self._options.fetch_wait_ms
        limits = FetchLimits(wait_ms, size, size, int(self._options.read_committed))
        fetched = await fetch_partition(
            self._client, topic, self._partition, self._position, limits, allocate=_allocate
        )
        if self._topic_id is None and fetched is not None and not fetched.error:
            self._topic_id = topic.topic_id
        return fetched

    async def _topic(self) -> TopicInfo:
        """The topic that was planned, or that the last answer came from; _MadeAgain if brokers have another.

        A worker lives for many tasks, so what it remembers may be older than the plan: only brokers are believed.
        """
        name = self._partition.topic
        topic = await self._client.topic(name)
        if self._is_other(topic):
            topic = await self._client.topic(name, refresh=True)
        if self._is_other(topic):
            raise _MadeAgain(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {name} was deleted and made again")
        return topic

    def _is_other(self, topic: TopicInfo) -> bool:
        return None not in (self._topic_id, topic.topic_id) and topic.topic_id != self._topic_id

    def _fetch_bytes(self) -> int:
        """Not much more than the rest of the range is likely to be."""
        likely = (self._end - self._position) * self._record_bytes * 5 // 4
        return min(max(likely, FETCH_BYTES_MIN), self._options.fetch_bytes)

    def _chunk(self, answer: FetchedPartition) -> Chunk:
        from levada.spark.kernels.walk import offset_after  # drivers that only plan do not load numba

        start = self._position
        after = offset_after(np.frombuffer(answer.records, np.uint8))
        if after <= start:
            why = f"{self._partition} at offset {start}: no whole batch in {len(answer.records)} bytes"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, why)
        self._stalled_since = -1.0
        self._nothing_left = False
        self._record_bytes = max(len(answer.records) // (after - start), 1)
        self._position = after
        return Chunk(
            answer.records,
            answer.aborted,
            start,
            after,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        )

    async def _wait_for_more(self, answer: FetchedPartition | None) -> None:
        """Nothing came: it is the end, though its offsets do not exist any more, or the log is not there yet."""
        now = asyncio.get_running_loop().time()
        if self._stalled_since < 0:
            self._stalled_since = now
        is_over = now - self._stalled_since > self._options.stall_timeout_ms / 1000
        if answer is None:
            readable = ends = -1
        else:
            ends = answer.high_watermark
            readable = answer.last_stable_offset if self._options.read_committed else ends
        if readable >= self._end:
            if self._nothing_left:
                self._position = self._end
            self._nothing_left = True
        elif is_over and 0 <= ends < self._end:
            where = f"{self._partition} ends at {ends}, and was to be read up to {self._end}"
            self._lose(ErrorCode.OFFSET_OUT_OF_RANGE, where, self._end)
        elif is_over:
            raise StreamStalled(
                f"{self._partition} can be read up to {readable} only, {self._end} is wanted, and nothing came for "
                f"{self._options.stall_timeout_ms / 1000:g} s: is a transaction open? `levada txn list` tells"
            )
        elif answer is None:
            await asyncio.sleep(self._client.retry_backoff_s)

    async def _find_place(self) -> None:
        """The position is outside the log: so some of the range is gone."""
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

    def _lose(self, code: ErrorCode, what: str, go_on_from: int) -> None:
        """Records of the range are gone: the end, or a warning and whatever is left."""
        if self._options.fail_on_data_loss:
            raise DataLoss(code, what)
        warn(f"{what}; going on with what is left")
        self._position = min(go_on_from, self._end)

    async def _back_off(self, failure: Failure) -> None:
        """Wait after a retriable failure and refresh the metadata; raise any other."""
        if isinstance(failure, DataLoss) or self._client.closed:
            raise failure
        code = failure.code if isinstance(failure, KafkaError) else None
        now = asyncio.get_running_loop().time()
        if code not in UNKNOWN_TOPIC:
            self._gone_since = -1.0
        elif self._gone_since < 0:
            self._gone_since = now
        elif now - self._gone_since > GONE_AFTER_S:
            made_again = failure.detail if isinstance(failure, _MadeAgain) else ""
            self._lose(code, made_again or f"{self._partition} is gone: its topic was deleted", self._end)
            return
        pause_s = self._retries.pause_s(failure, now)
        if pause_s is None:
            if isinstance(failure, KafkaError):
                why = f": {failure.detail}" if failure.detail else ""
                raise KafkaError(failure.code, f"{self._partition} at offset {self._position}{why}") from None
            raise failure
        self._client.forget(self._partition.topic)
        await asyncio.sleep(pause_s)


def _allocate(size: int) -> memoryview:
    """Memory that is not zeroed first: most of it is overwritten at once."""
    return np.empty(size, np.uint8).data

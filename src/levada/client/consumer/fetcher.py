"""The fetching half of the consumer: keeps a long poll open to each leader and a bounded buffer of what came."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from levada.client.consumer.fetch import DecodedBatch, FetchLimits, decode_batches, fetch
from levada.client.data import FetchedPartition, FetchPosition
from levada.client.errors import FAILURES, Failure, error_code
from levada.client.metadata import TopicInfo
from levada.client.retry import PARTITION_RETRIABLE, Retries, RetryPolicy, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.batches import iterate_headers

if TYPE_CHECKING:
    from levada.client.client import Client

FETCH_BYTES_MAX = 50 * 1024 * 1024  # of one answer, all partitions together


class Cursor:
    """Where the consumer is in a partition, and how far it has fetched ahead."""

    __slots__ = (
        "fetch_offset", "generation", "high_watermark", "partition", "position", "resting", "retries", "stopped",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.position = offset  # of the next record that the caller gets
        self.fetch_offset = offset  # of the next record to fetch
        self.generation = 0  # what was fetched for an older generation is dropped
        self.high_watermark = -1
        self.retries: Retries | None = None  # while fetches fail
        self.resting = False  # waits before it tries again
        self.stopped = False  # has failed; only a seek moves it again

    def move(self, offset: int) -> None:
        """Go elsewhere and forget what was fetched."""
        self.position = self.fetch_offset = offset
        self.generation += 1
        self.stopped = False
        self.retries = None


class Chunk(NamedTuple):
    """What one fetch brought for a partition: batches, or the reason why there are none."""

    cursor: Cursor
    generation: int
    size: int
    batches: Iterator[DecodedBatch]
    failure: Exception | None = None


class Poll(NamedTuple):
    """A long poll, and for which generation of which cursors it asks."""

    task: asyncio.Task[None]
    generations: dict[Cursor, int]


class Fetcher:
    """Fetches for a set of cursors until it is stopped."""

    def __init__(
        self,
        client: "Client",
        *,
        reset: int | None,
        isolation_level: int,
        fetch_bytes: int,
        fetch_wait_ms: int,
        buffer_bytes: int,
    ) -> None:
        self._client = client
        self._policy = RetryPolicy(PARTITION_RETRIABLE, client.request_timeout_ms)
        self._reset = reset
        self._limits = FetchLimits(fetch_wait_ms, FETCH_BYTES_MAX, fetch_bytes, isolation_level)
        self._buffer_bytes = buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._pool = client.pool()
        self._cursors: list[Cursor] = []
        self._chunks: deque[Chunk] = deque()
        self._buffered = 0
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._polls: dict[int, Poll] = {}  # at most one to each leader
        self._hurried = False  # somebody has gone elsewhere and shall not wait for a poll that is open
        self._runner: asyncio.Task[None] | None = None
        self._crash: BaseException | None = None  # a bug of ours, for the caller to see
        self._interrupted = False
        self._stopped = False

    def start(self, cursors: Iterable[Cursor]) -> None:
        self.assign(cursors)
        self._runner = self._loop.create_task(self._run(), name="consumer")
        self._runner.add_done_callback(self._ended)

    def assign(self, cursors: Iterable[Cursor]) -> None:
        """Fetch for these from now on; whoever takes one away moves it, so that what was fetched is dropped."""
        self._cursors = list(cursors)
        self.hurry()

    async def stop(self) -> None:
        """Stop fetching; whoever waits for a batch is told."""
        self._stopped = True
        self._arrived.set()
        tasks = [*(poll.task for poll in self._polls.values()), *([self._runner] if self._runner else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    def hurry(self) -> None:
        """Look again what there is to fetch; a poll that asks for something else is given up."""
        self._hurried = True
        self._changed.set()

    def interrupt(self) -> None:
        """Let whoever waits for a batch look at something else."""
        self._interrupted = True
        self._arrived.set()

    async def next_batch(self, deadline: float | None) -> tuple[Chunk, DecodedBatch] | None:
        """The next batch in order of arrival; None at the deadline, or when it is interrupted."""
        while True:
            while self._chunks:
                chunk = self._chunks[0]
                if chunk.generation == chunk.cursor.generation:
                    if chunk.failure is not None:
                        self._drop()
                        raise chunk.failure
                    batch = self._next_of(chunk)
                    if batch is not None:
                        return chunk, batch
                self._drop()
            if self._crash is not None:
                raise self._crash
            if self._stopped:
                raise RuntimeError("the consumer is closed")
            if self._interrupted:
                self._interrupted = False
                return None
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return None

    def _next_of(self, chunk: Chunk) -> DecodedBatch | None:
        try:
            return next(chunk.batches, None)
        except KafkaError:
            chunk.cursor.move(chunk.cursor.position)
            chunk.cursor.stopped = True
            raise

    def _drop(self) -> None:
        self._buffered -= self._chunks.popleft().size
        self._changed.set()

    async def _run(self) -> None:
        """Open a long poll to each leader that has none while there is room."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._buffered >= self._buffer_bytes:
                continue
            idle: dict[int, list[Cursor]] = {}
            for cursor in self._cursors:
                if not cursor.resting and not cursor.stopped:
                    idle.setdefault(self._client.cached_leader(cursor.partition), []).append(cursor)
            for leader, cursors in idle.items():
                poll = self._polls.get(leader)
                if poll is None:
                    generations = {cursor: cursor.generation for cursor in cursors}
                    task = self._loop.create_task(
                        self._fetch(leader, generations), name=f"fetch from {leader}"
                    )
                    task.add_done_callback(self._ended)
                    self._polls[leader] = Poll(task, generations)
                elif self._hurried and any(
                    poll.generations.get(cursor) != cursor.generation for cursor in cursors
                ):
                    poll.task.cancel()
            self._hurried = False

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (crash := task.exception()) is not None:
            self._crash = crash
            self._arrived.set()

    async def _fetch(self, leader: int, generations: dict[Cursor, int]) -> None:
        cursors = list(generations)
        try:
            if leader < 0:
                await self._find_leaders(cursors)
                return
            answers = await self._ask(leader, cursors)
            for cursor, generation in generations.items():
                if cursor.generation == generation:
                    await self._take(cursor, answers.get(cursor.partition))
        except FAILURES as failure:
            for cursor in cursors:
                self._fail(cursor, failure)
        finally:
            del self._polls[leader]
            self._changed.set()

    async def _find_leaders(self, cursors: list[Cursor]) -> None:
        for cursor in cursors:
            try:
                await self._client.leader(cursor.partition)
            except FAILURES as failure:
                self._fail(cursor, failure)

    async def _ask(self, leader: int, cursors: list[Cursor]) -> dict[TopicPartition, FetchedPartition]:
        topics: dict[str, TopicInfo] = {}
        for cursor in cursors:
            topics[cursor.partition.topic] = await self._client.topic(cursor.partition.topic)
        connection = await self._client.connection(leader, self._pool)
        wanted = [FetchPosition(cursor.partition, cursor.fetch_offset, -1) for cursor in cursors]
        try:
            return await fetch(
                connection,
                wanted,
                topics,
                self._limits,
                request_timeout_ms=self._client.request_timeout_ms,
            )
        except asyncio.CancelledError:
            connection.close()  # a broker responds in order: the next Fetch would wait for this one
            raise

    async def _take(self, cursor: Cursor, answer: FetchedPartition | None) -> None:
        """Put what came of a partition into the buffer."""
        if answer is None:
            self._fail(
                cursor, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for {cursor.partition}")
            )
            return
        code = error_code(answer.error)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._reset is not None:
            found = await self._client.list_offsets({cursor.partition: self._reset})
            cursor.move(found[cursor.partition].offset)
            return
        if code is not ErrorCode.NONE:
            detail = f"{cursor.partition} at offset {cursor.fetch_offset}"
            self._fail(cursor, KafkaError(code, detail))
            return
        cursor.retries = None
        cursor.high_watermark = answer.high_watermark
        if not len(answer.records):
            return
        batches = list(iterate_headers(answer.records))
        if not batches:
            self._fail(cursor, KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{cursor.partition}: no whole batch"))
            return
        cursor.fetch_offset = max(cursor.fetch_offset, batches[-1][1].last_offset + 1)
        decoded = decode_batches(cursor.partition, answer, batches)
        self._append(Chunk(cursor, cursor.generation, len(answer.records), decoded))

    def _append(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._buffered += chunk.size
        self._arrived.set()

    def _fail(self, cursor: Cursor, failure: Failure) -> None:
        """Retry after a pause what is retriable, until the request timeout; else raise it to the caller."""
        if cursor not in self._cursors:
            return  # it was revoked meanwhile
        if is_retriable(failure, PARTITION_RETRIABLE):
            self._client.invalidate_metadata(cursor.partition.topic)
        cursor.retries = cursor.retries or Retries(self._client, self._policy)
        pause_s = cursor.retries.pause_s(failure, self._loop.time())
        if pause_s is not None:
            cursor.resting = True
            self._loop.call_later(pause_s, self._rested, cursor)
            return
        cursor.stopped = True
        self._append(Chunk(cursor, cursor.generation, 0, iter(()), failure))

    def _rested(self, cursor: Cursor) -> None:
        cursor.resting = False
        self._changed.set()

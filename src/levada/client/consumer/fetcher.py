"""The fetcher: keeps one long poll open to each leader, and a bounded buffer of completed fetches."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from levada.client.consumer.fetch import DecodedBatch, decode_batches, fetch
from levada.client.data import FetchedPartition, FetchLimits, FetchPosition
from levada.client.errors import FAILURES, Failure, error_code
from levada.client.metadata import TopicInfo
from levada.client.retry import PARTITION_RETRIABLE, Retries, RetryPolicy, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.batches import iterate_headers

if TYPE_CHECKING:
    from levada.client.client import Client


class PartitionState:
    """The position of the consumer in a partition, and how far ahead it has fetched."""

    __slots__ = (
        "backing_off", "failed", "fetch_offset", "high_watermark", "last_epoch", "partition", "position",
        "preferred_until", "replica", "retries", "seeks",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.position = offset  # of the next record for the caller
        self.fetch_offset = offset  # of the next record to fetch
        self.seeks = 0  # what was fetched before the last seek is dropped
        self.high_watermark = -1
        self.last_epoch = -1  # of the last batch that was fetched; unknown after a seek
        self.replica = -1  # which the leader has named to read from (KIP-392), and until when
        self.preferred_until = 0.0
        self.retries: Retries | None = None  # while fetches fail
        self.backing_off = False
        self.failed = False  # until a seek

    def seek(self, offset: int) -> None:
        """Continue at another offset and drop what was fetched."""
        self.position = self.fetch_offset = offset
        self.last_epoch = -1
        self.seeks += 1
        self.failed = False
        self.retries = None


class CompletedFetch(NamedTuple):
    """The batches that one Fetch returned for a partition, or its failure."""

    state: PartitionState
    seeks: int
    size: int
    batches: Iterator[DecodedBatch]
    failure: Exception | None = None


class PendingFetch(NamedTuple):
    """A long poll, and the seek count of each partition when it was sent."""

    task: asyncio.Task[None]
    seeks: dict[PartitionState, int]


class Fetcher:
    """Fetches the assigned partitions until it is stopped."""

    def __init__(
        self,
        client: "Client",
        *,
        reset: int | None,
        isolation_level: int,
        fetch_bytes: int,
        fetch_bytes_min: int,
        fetch_bytes_max: int,
        fetch_wait_ms: int,
        buffer_bytes: int,
    ) -> None:
        self._client = client
        self._policy = RetryPolicy(PARTITION_RETRIABLE, client.request_timeout_ms)
        self._reset = reset
        limits = (fetch_wait_ms, fetch_bytes_max, fetch_bytes, isolation_level, fetch_bytes_min)
        self._limits = FetchLimits(*limits, client.rack)
        self._buffer_bytes = buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._pool = client.pool()
        self._assigned: list[PartitionState] = []
        self._completed: deque[CompletedFetch] = deque()
        self._buffered_bytes = 0
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._pending: dict[int, PendingFetch] = {}  # at most one to each leader
        self._refresh = False  # cancel long polls whose positions are outdated
        self._runner: asyncio.Task[None] | None = None
        self._crash: BaseException | None = None  # a bug, raised to the caller
        self._wakeup = False
        self._stopped = False

    def start(self, partitions: Iterable[PartitionState]) -> None:
        self.assign(partitions)
        self._runner = self._loop.create_task(self._run(), name="consumer")
        self._runner.add_done_callback(self._ended)

    def assign(self, partitions: Iterable[PartitionState]) -> None:
        """Fetch these from now on; a seek in a removed partition drops what was fetched of it."""
        self._assigned = list(partitions)
        self.refresh()

    async def stop(self) -> None:
        """Stop fetching; a caller that waits for a batch gets RuntimeError."""
        self._stopped = True
        self._arrived.set()
        tasks = [
            *(pending.task for pending in self._pending.values()),
            *([self._runner] if self._runner else []),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    def refresh(self) -> None:
        """Fetch from the current positions; long polls from other positions are cancelled."""
        self._refresh = True
        self._changed.set()

    def wakeup(self) -> None:
        """Let `next_batch` return without a batch."""
        self._wakeup = True
        self._arrived.set()

    async def next_batch(self, deadline: float | None) -> tuple[CompletedFetch, DecodedBatch] | None:
        """The next batch in order of arrival; None at the deadline or after a wakeup."""
        while True:
            while self._completed:
                completed = self._completed[0]
                if completed.seeks == completed.state.seeks:
                    if completed.failure is not None:
                        self._drop()
                        raise completed.failure
                    batch = self._next_of(completed)
                    if batch is not None:
                        return completed, batch
                self._drop()
            if self._crash is not None:
                raise self._crash
            if self._stopped:
                raise RuntimeError("the consumer is closed")
            if self._wakeup:
                self._wakeup = False
                return None
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return None

    def _next_of(self, completed: CompletedFetch) -> DecodedBatch | None:
        try:
            return next(completed.batches, None)
        except KafkaError:
            completed.state.seek(completed.state.position)
            completed.state.failed = True
            raise

    def _drop(self) -> None:
        self._buffered_bytes -= self._completed.popleft().size
        self._changed.set()

    async def _run(self) -> None:
        """Send a Fetch to each leader that has none pending while there is room in the buffer."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._buffered_bytes >= self._buffer_bytes:
                continue
            by_leader: dict[int, list[PartitionState]] = {}
            for state in self._assigned:
                if not state.backing_off and not state.failed:
                    by_leader.setdefault(self._node(state), []).append(state)
            for leader, states in by_leader.items():
                pending = self._pending.get(leader)
                if pending is None:
                    seeks = {state: state.seeks for state in states}
                    task = self._loop.create_task(self._fetch(leader, seeks), name=f"fetch from {leader}")
                    task.add_done_callback(self._ended)
                    self._pending[leader] = PendingFetch(task, seeks)
                elif self._refresh and any(pending.seeks.get(state) != state.seeks for state in states):
                    pending.task.cancel()
            self._refresh = False

    def _node(self, state: PartitionState) -> int:
        """The broker to fetch a partition from: the replica that its leader has named for a while, or the leader."""
        if state.replica >= 0 and self._loop.time() < state.preferred_until:
            return state.replica
        state.replica = -1
        return self._client.cached_leader(state.partition)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (crash := task.exception()) is not None:
            self._crash = crash
            self._arrived.set()

    async def _fetch(self, leader: int, seeks: dict[PartitionState, int]) -> None:
        states = list(seeks)
        try:
            if leader < 0:
                await self._find_leaders(states)
                return
            responses = await self._send_fetch(leader, states)
            for state, count in seeks.items():
                if state.seeks == count:
                    await self._complete(state, responses.get(state.partition))
        except FAILURES as failure:
            for state in states:
                state.replica = -1
                self._fail(state, failure)
        finally:
            del self._pending[leader]
            self._changed.set()

    async def _find_leaders(self, states: list[PartitionState]) -> None:
        for state in states:
            try:
                await self._client.leader(state.partition)
            except FAILURES as failure:
                self._fail(state, failure)

    async def _send_fetch(self, leader: int, states: list[PartitionState]) -> dict[TopicPartition, FetchedPartition]:
        topics: dict[str, TopicInfo] = {}
        for state in states:
            topics[state.partition.topic] = await self._client.topic(state.partition.topic)
        connection = await self._client.connection(leader, self._pool)
        wanted = [FetchPosition(state.partition, state.fetch_offset, -1, state.last_epoch) for state in states]
        timeout_ms = self._client.request_timeout_ms
        try:
            return await fetch(connection, wanted, topics, self._limits, request_timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            connection.close()  # a broker responds in order: the next Fetch would wait for this one
            raise

    async def _complete(self, state: PartitionState, response: FetchedPartition | None) -> None:
        """Put the response for a partition into the buffer."""
        if response is None:
            detail = f"the Fetch response lacks {state.partition}"
            self._fail(state, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail))
            return
        code = error_code(response.error)
        if code is not ErrorCode.NONE and state.replica >= 0:
            state.replica = -1  # the leader decides
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._reset is not None:
            found = await self._client.list_offsets({state.partition: self._reset})
            state.seek(found[state.partition].offset)
            return
        if code is not ErrorCode.NONE:
            self._fail(state, KafkaError(code, f"{state.partition} at offset {state.fetch_offset}"))
            return
        if response.diverging is not None:
            self._truncated(state, response.diverging[1])
            return
        state.retries = None
        if response.preferred_replica >= 0:
            state.replica = response.preferred_replica
            state.preferred_until = self._loop.time() + self._client.metadata_max_age_s
            return
        state.high_watermark = response.high_watermark
        if not len(response.records):
            return
        batches = list(iterate_headers(response.records))
        if not batches:
            self._fail(state, KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{state.partition}: no whole batch"))
            return
        state.fetch_offset = max(state.fetch_offset, batches[-1][1].last_offset + 1)
        state.last_epoch = batches[-1][1].partition_leader_epoch
        decoded = decode_batches(state.partition, response, batches)
        self._append(CompletedFetch(state, state.seeks, len(response.records), decoded))

    def _truncated(self, state: PartitionState, end_offset: int) -> None:
        """The log has lost records that this consumer has read: continue where it agrees, or fail without a reset."""
        if self._reset is not None:
            state.seek(min(end_offset, state.position))
            return
        detail = f"{state.partition} was truncated to offset {end_offset}, but read up to {state.fetch_offset}"
        self._fail(state, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail))

    def _append(self, completed: CompletedFetch) -> None:
        self._completed.append(completed)
        self._buffered_bytes += completed.size
        self._arrived.set()

    def _fail(self, state: PartitionState, failure: Failure) -> None:
        """Retry a retriable failure until the request timeout; any other is raised to the caller."""
        if state not in self._assigned:
            return  # it was revoked meanwhile
        if is_retriable(failure, PARTITION_RETRIABLE):
            self._client.invalidate_metadata(state.partition.topic)
        state.retries = state.retries or Retries(self._client, self._policy)
        pause_s = state.retries.pause_s(failure, self._loop.time())
        if pause_s is not None:
            state.backing_off = True
            self._loop.call_later(pause_s, self._retry, state)
            return
        state.failed = True
        self._append(CompletedFetch(state, state.seeks, 0, iter(()), failure))

    def _retry(self, state: PartitionState) -> None:
        state.backing_off = False
        self._changed.set()

"""A consumer of assigned partitions, without a group.

The fetcher keeps a long poll open to each leader while there is room in its buffer, so records are prefetched. Batches
are decoded when the caller polls them.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypedDict

from levada.client.consumer.fetcher import Fetcher, PartitionState
from levada.client.data import EARLIEST, LATEST, timestamp_of
from levada.errors import ErrorCode, KafkaError
from levada.model import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client

Start = Literal["earliest", "latest"] | int | datetime | Mapping[TopicPartition, int]
Isolation = Literal["read_uncommitted", "read_committed"]
Reset = Literal["earliest", "latest"]


class ConsumerOptions(TypedDict, total=False):
    """The options of every consumer; `Consumer` has the defaults."""

    start: Start
    isolation: Isolation
    reset: Reset | None
    fetch_bytes: int
    fetch_bytes_min: int
    fetch_bytes_max: int
    fetch_wait_ms: int
    buffer_bytes: int


class Consumer:
    """Reads records in the order of each partition's log; made by `Client.consumer`.

    >>> async with client.consumer("orders", start="earliest") as consumer:
    ...     async for record in consumer:
    ...         print(record.offset, record.value)

    It starts at the earliest or latest record, at an offset (-5: the last five of each partition), at the first
    record from a `datetime` on, or at an offset for each partition. It reads the partitions that a topic has when it
    starts. Without `reset`, an offset that is not in the log raises OFFSET_OUT_OF_RANGE.
    """

    def __init__(
        self,
        client: "Client",
        *,
        topics: Sequence[str],
        assign: Iterable[TopicPartition | tuple[str, int]] = (),
        start: Start = "earliest",
        isolation: Isolation = "read_uncommitted",
        reset: Reset | None = None,
        fetch_bytes: int = 1_048_576,
        fetch_bytes_min: int = 1,
        fetch_bytes_max: int = 52_428_800,
        fetch_wait_ms: int = 500,
        buffer_bytes: int = 33_554_432,
    ) -> None:
        if not isinstance(start, int | datetime | Mapping) and start not in ("earliest", "latest"):
            raise ValueError(f"cannot start at {start!r}: earliest, latest, an offset or a datetime")
        self._client = client
        self._topics = topics
        self._assign = [TopicPartition(*partition) for partition in assign]
        self._start = start
        self._isolation_level = int(isolation == "read_committed")
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._current: deque[ConsumerRecord] = deque()
        # Partition, its seek count, and the offset after the current batch.
        self._current_of: tuple[PartitionState, int, int] | None = None
        self._fetcher = Fetcher(
            client,
            reset=None if reset is None else (EARLIEST if reset == "earliest" else LATEST),
            isolation_level=self._isolation_level,
            fetch_bytes=fetch_bytes,
            fetch_bytes_min=fetch_bytes_min,
            fetch_bytes_max=fetch_bytes_max,
            fetch_wait_ms=fetch_wait_ms,
            buffer_bytes=buffer_bytes,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Look up partitions and starting offsets, and begin to fetch."""
        partitions = list(self._assign)
        for topic in self._topics:
            info = await self._client.topic(topic)
            partitions += [TopicPartition(topic, part.partition) for part in info.partitions]
        offsets = await self._starting_offsets(self._start, list(dict.fromkeys(partitions)))
        for partition, offset in offsets.items():
            self._partitions[partition] = PartitionState(partition, offset)
        self._fetcher.start(self._partitions.values())

    async def close(self) -> None:
        await self._fetcher.stop()

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions."""
        return tuple(self._partitions)

    @property
    def failures(self) -> dict[TopicPartition, Exception]:
        """The partitions that failed, each with the exception that `poll` raises once; a seek fetches them again."""
        found = ((partition, state.failure) for partition, state in self._partitions.items())
        return {partition: failure for partition, failure in found if failure is not None}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while True:
            record = self._take()
            if record is not None:
                return record
            await self._fill(None)

    async def poll(self, timeout_ms: int | None = None) -> list[ConsumerRecord]:
        """The records of the next batch; none at the timeout."""
        deadline = None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000
        records: list[ConsumerRecord] = []
        while not records:
            while (record := self._take()) is not None:
                records.append(record)
            if not records and not await self._fill(deadline):
                break
        return records

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record that the caller gets of a partition."""
        return self._state(partition).position

    def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The high watermark of a partition at its last fetch, -1 before the first."""
        return self._state(partition).high_watermark

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Continue at another offset."""
        if offset < 0:
            raise ValueError(f"there is no offset {offset}")
        self._state(partition).seek(offset)
        self._fetcher.refresh()

    async def seek_to(self, start: Start, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at another position, given as `start` is, in these partitions or all."""
        offsets = await self._starting_offsets(start, list(partitions or self._partitions))
        for partition, offset in offsets.items():
            self.seek(partition, offset)

    async def beginning_offsets(self) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._offsets(list(self._partitions), EARLIEST)

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """The end offset of each partition, by the isolation level."""
        return await self._offsets(list(self._partitions), LATEST)

    async def _offsets(self, partitions: Sequence[TopicPartition], time: int) -> dict[TopicPartition, int]:
        found = await self._client.list_offsets(dict.fromkeys(partitions, time), isolation_level=self._isolation_level)
        return {partition: found[partition].offset for partition in partitions}

    async def _starting_offsets(self, start: Start, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if isinstance(start, Mapping):
            given = {TopicPartition(*partition): offset for partition, offset in start.items()}
            rest = [partition for partition in partitions if partition not in given]
            return {
                **await self._offsets(rest, EARLIEST),
                **{tp: given[tp] for tp in partitions if tp in given},
            }
        if start == "earliest":
            return await self._offsets(partitions, EARLIEST)
        if isinstance(start, int) and start >= 0:
            for partition in partitions:
                await self._client.leader(partition)
            return dict.fromkeys(partitions, start)
        ends = await self._offsets(partitions, LATEST)
        if isinstance(start, datetime):
            found = await self._offsets(partitions, timestamp_of(start))
            return {partition: ends[partition] if at < 0 else at for partition, at in found.items()}
        if isinstance(start, int):
            first = await self._offsets(partitions, EARLIEST)
            return {partition: max(first[partition], end + start) for partition, end in ends.items()}
        return ends

    def _state(self, partition: TopicPartition | tuple[str, int]) -> PartitionState:
        try:
            return self._partitions[TopicPartition(*partition)]
        except KeyError:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not assigned to this consumer"
            ) from None

    def _take(self) -> ConsumerRecord | None:
        """The next record of the current batch; the rest of it is dropped after a seek."""
        if self._current_of is None:
            return None
        state, seeks, end = self._current_of
        if state.seeks == seeks and self._current:
            record = self._current.popleft()
            state.position = record.offset + 1 if self._current else end
            return record
        if state.seeks == seeks:
            state.position = end
        self._current.clear()
        self._current_of = None
        return None

    async def _fill(self, deadline: float | None) -> bool:
        """Wait for the next batch and make it the current one; False at the deadline."""
        found = await self._fetcher.next_batch(deadline)
        if found is None:
            return deadline is None or asyncio.get_running_loop().time() < deadline
        completed, batch = found
        topic, partition = completed.state.partition
        position = completed.state.position
        self._current.extend(
            ConsumerRecord(topic, partition, *record) for record in batch.records if record.offset >= position
        )
        self._current_of = (completed.state, completed.seeks, batch.end)
        return True

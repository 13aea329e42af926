"""A consumer in a group (KIP-848): shares partitions with the other members, and commits offsets for the group.

Revoked partitions are released, and acknowledged, only when the caller polls again: by then it has processed the
records it got, and a commit is still possible. The starting offsets of added partitions are looked up in the
background.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack
from uuid import UUID

from levada.client.consumer.consumer import Consumer, ConsumerOptions
from levada.client.consumer.fetcher import PartitionState
from levada.client.consumer.membership import Membership, TopicIdPartition
from levada.client.consumer.offsets import commit, committed
from levada.client.errors import FAILURES, MemberFenced
from levada.errors import ErrorCode, KafkaError
from levada.model import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client

Delivery = Literal["manual", "at_most_once", "at_least_once"]
Hook = Callable[[Sequence[TopicPartition]], Awaitable[None]]


class GroupOptions(ConsumerOptions, total=False):
    """The options of a consumer in a group; `GroupConsumer` has the defaults."""

    pattern: str | None
    delivery: Delivery
    commit_interval_ms: int
    instance_id: str | None
    max_poll_interval_ms: int
    on_assign: Hook | None
    on_revoke: Hook | None
    on_lost: Hook | None


class StartPosition(NamedTuple):
    """An assigned partition and the offset to start at."""

    partition: TopicPartition
    offset: int
    committed: int | None


class GroupConsumer(Consumer):
    """Reads the partitions that its group assigns to it; made by `Client.consumer` with a group.

    >>> async with client.consumer("orders", group="billing") as consumer:
    ...     async for record in consumer:
    ...         await bill(record)
    ...         await consumer.commit()

    With `pattern`, a regular expression (RE2) of whole topic names, it also reads topics that are created later.
    It starts at the group's committed offsets, else at `start`. `delivery`: with "manual" the caller commits by
    `commit`; "at_most_once" commits a batch before the caller gets it, "at_least_once" commits records once the caller
    polls for more, which means that they are processed.
    """

    def __init__(
        self,
        client: "Client",
        group: str,
        *,
        topics: Sequence[str],
        pattern: str | None = None,
        delivery: Delivery = "manual",
        commit_interval_ms: int = 5_000,
        instance_id: str | None = None,
        max_poll_interval_ms: int = 300_000,
        on_assign: Hook | None = None,
        on_revoke: Hook | None = None,
        on_lost: Hook | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        _check(topics, pattern, delivery)
        super().__init__(client, topics=topics, **options)
        self._pattern, self._delivery = pattern, delivery
        self._commit_interval_s = commit_interval_ms / 1000
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._loop = asyncio.get_running_loop()
        self._commit_at = self._loop.time() + self._commit_interval_s
        self._owned: dict[TopicIdPartition, TopicPartition] = {}  # exactly the partitions in `_partitions`
        self._ready: dict[TopicIdPartition, StartPosition] = {}  # to be added at the next poll
        self._committed: dict[TopicPartition, int] = {}  # offsets that the group is known to have
        self._starts: dict[TopicPartition, int] = {}  # where each of `_partitions` began
        self._unprocessed: tuple[TopicPartition, int] | None = None  # the first record of the last poll
        self._looking_up: asyncio.Task[None] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._closed = False
        self.membership = Membership(
            client,
            group,
            topics,
            pattern=pattern,
            instance_id=instance_id,
            max_poll_interval_ms=max_poll_interval_ms,
            changed=self._changed,
        )

    async def start(self) -> None:
        """Join the group, and begin to fetch the assigned partitions."""
        self._fetcher.start(())
        try:
            await self.membership.join()
        except BaseException:
            await self._close(clean=False)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(clean=error is None)

    async def close(self) -> None:
        """Leave the group; with "at_least_once" the positions are committed first."""
        await self._close(clean=True)

    async def __anext__(self) -> ConsumerRecord:
        await self._before_poll()
        try:
            record = await super().__anext__()
        finally:
            self.membership.polled_at = self._loop.time()
        self._unprocessed = (TopicPartition(record.topic, record.partition), record.offset)
        return record

    async def poll(self, timeout_ms: int | None = None) -> list[ConsumerRecord]:
        """The records of the next batch; none at the timeout."""
        await self._before_poll()
        try:
            records = await super().poll(timeout_ms)
        finally:
            self.membership.polled_at = self._loop.time()
        if records:
            self._unprocessed = (TopicPartition(records[0].topic, records[0].partition), records[0].offset)
        return records

    # Offsets

    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record that the caller got, of each partition."""
        return {partition: state.position for partition, state in self._partitions.items()}

    async def commit(self, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None) -> None:
        """Commit these offsets for the group, or the positions of all partitions.

        MemberFenced: the partitions are assigned to other members, which read the same records again.
        """
        if offsets is None:
            wanted = {tp: at for tp, at in self.positions().items() if self._committed.get(tp) != at}
        else:
            wanted = {self._state(partition).partition: at for partition, at in offsets.items()}
        if wanted:
            await self._commit(wanted)

    async def committed(self) -> dict[TopicPartition, int]:
        """The group's committed offsets of the assigned partitions."""
        found = await committed(
            self.membership.coordinator, self.membership.group, tuple(self._partitions), self._topic_ids()
        )
        return {partition: entry.offset for partition, entry in found.items()}

    async def seek_to_committed(self) -> None:
        """Continue at the group's committed offsets, as after an aborted transaction."""
        found = await self.committed()
        rest = [partition for partition in self._partitions if partition not in found]
        for partition, offset in {**found, **await self._starting_offsets(self._start, rest)}.items():
            self.seek(partition, offset)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        ids = self._topic_ids()
        coordinator = self.membership.coordinator
        await self.membership.run(lambda committer: commit(coordinator, committer, offsets, ids))
        self._committed.update({tp: at for tp, at in offsets.items() if tp in self._partitions})

    def _topic_ids(self) -> dict[str, UUID | None]:
        return {partition.topic: topic_id for (topic_id, _), partition in self._owned.items()}

    # Polling

    async def _before_poll(self) -> None:
        """The caller has processed the records that it got."""
        self._unprocessed = None
        self.membership.polled_at = None
        if self.membership.needs_reconciliation:
            await self._reconcile_until(None)
        if self._delivery == "at_least_once" and self._loop.time() >= self._commit_at:
            self._commit_at = self._loop.time() + self._commit_interval_s
            with suppress(MemberFenced):  # the next heartbeat fences it as well
                await self.commit()

    async def _fill(self, deadline: float | None) -> bool:
        if self.membership.needs_reconciliation:
            await self._reconcile_until(deadline)
        if not await super()._fill(deadline):
            return False
        if self._delivery == "at_most_once" and self._current and self._current_of is not None:
            state, _, end = self._current_of
            records, self._current = self._current, deque()
            try:
                await self._commit({state.partition: end})
            except BaseException:
                state.seek(state.position)  # to be fetched and committed again
                self._fetcher.refresh()
                raise
            self._current = records
        return True

    # Reconciliation of owned and assigned partitions

    def _changed(self) -> None:
        """A heartbeat has changed the membership."""
        member = self.membership
        for partition in self._ready.keys() - member.assigned:
            del self._ready[partition]  # its committed offset will be another one when it is assigned again
        if self._looking_up is None and member.assigned - self._owned.keys() - self._ready.keys():
            self._looking_up = self._loop.create_task(self._look_up_added(), name="look up positions")
            self._looking_up.add_done_callback(self._looked_up)
        self._fetcher.wakeup()

    def _looked_up(self, task: asyncio.Task[None]) -> None:
        self._looking_up = None
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.membership.retriable_failure = error
        self.membership.needs_reconciliation = True
        self._fetcher.wakeup()

    async def _look_up_added(self) -> None:
        """Look up where to start in added partitions; the next heartbeat repeats what failed."""
        assigned: Collection[TopicIdPartition] = ()
        while self.membership.assigned is not assigned:  # it may have changed meanwhile
            assigned = self.membership.assigned
            missing = assigned - self._owned.keys() - self._ready.keys()
            try:
                found = await self._start_positions(missing) if missing else {}
            except KafkaError as error:
                if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise
                assigned = ()  # a transaction with their offsets is open: it will end or time out
                continue
            if self.membership.assigned is assigned:
                self._ready.update(found)

    async def _start_positions(self, added: Collection[TopicIdPartition]) -> dict[TopicIdPartition, StartPosition]:
        topics = (await self._client.metadata(self._topics if self._pattern is None else None)).topics
        names = {topic.topic_id: name for name, topic in topics.items()}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        partitions = {
            (topic_id, index): TopicPartition(names[topic_id], index)
            for topic_id, index in added
            if topic_id in names and index < len(topics[names[topic_id]].partitions)
        }
        if not partitions:
            return {}
        member = self.membership
        found = await committed(member.coordinator, member.group, partitions.values(), ids)
        rest = [partition for partition in partitions.values() if partition not in found]
        starts = await self._starting_offsets(self._start, rest)
        return {
            key: StartPosition(partition, found[partition].offset, found[partition].offset)
            if partition in found
            else StartPosition(partition, starts[partition], None)
            for key, partition in partitions.items()
        }

    async def _reconcile_until(self, deadline: float | None) -> None:
        """Release revoked partitions and add assigned ones; it continues when the caller's poll times out."""
        if self._reconciling is None:
            self._reconciling = self._loop.create_task(self._reconcile(), name="reconcile partitions")
        reconciling = self._reconciling
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(reconciling)
        except TimeoutError:
            if reconciling.done() and reconciling.exception() is not None:
                raise
        finally:
            if reconciling.done():
                self._reconciling = None

    async def _reconcile(self) -> None:
        member = self.membership
        member.needs_reconciliation = False
        if member.failure is not None:
            member.needs_reconciliation = True
            raise member.failure
        if member.fenced is not None:
            lost = list(self._owned.values())
            self._release(list(self._owned))
            self._ready.clear()
            member.rejoin()
            if self._on_lost is not None and lost:
                await self._on_lost(lost)
        revoked = [partition for partition in self._owned if partition not in member.assigned]
        if revoked:
            await self._revoke(revoked)
        await self._add_ready()
        if member.retriable_failure is not None:
            failure, member.retriable_failure = member.retriable_failure, None
            raise failure

    async def _revoke(self, revoked: Sequence[TopicIdPartition]) -> None:
        partitions = [self._owned[partition] for partition in revoked]
        try:
            if self._on_revoke is not None:
                await self._on_revoke(partitions)
            if self._delivery == "at_least_once":
                with suppress(MemberFenced):
                    await self.commit()
        finally:
            self._release(revoked)
            self.membership.acknowledge(self._owned)

    async def _add_ready(self) -> None:
        ready, self._ready = self._ready, {}
        added = []
        for key, (partition, offset, committed_offset) in ready.items():
            if key in self.membership.assigned and key not in self._owned:
                self._owned[key] = partition
                self._partitions[partition] = PartitionState(partition, offset)
                self._starts[partition] = offset
                if committed_offset is not None:
                    self._committed[partition] = committed_offset
                added.append(partition)
        if not added:
            return
        try:
            if self._on_assign is not None:
                await self._on_assign(added)
        finally:
            self._fetcher.assign(self._partitions.values())
            self.membership.acknowledge(self._owned)

    def _release(self, released: Sequence[TopicIdPartition]) -> None:
        for key in released:
            partition = self._owned.pop(key)
            state = self._partitions.pop(partition)
            state.seek(state.position)  # drops what was fetched
            self._committed.pop(partition, None)
            del self._starts[partition]
        self._fetcher.assign(self._partitions.values())

    # Closing

    async def _close(self, *, clean: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._reconciling is not None:
                await asyncio.gather(self._reconciling, return_exceptions=True)
            if self.membership.fenced is None and self.membership.failure is None:
                await self._commit_last(clean=clean)
        finally:
            if self._looking_up is not None:
                self._looking_up.cancel()
            await self._fetcher.stop()
            await self.membership.leave()

    async def _commit_last(self, *, clean: bool) -> None:
        """Commit processed records; after an error in the caller's block, without those of the last poll.

        A partition without any is left out then: the log may not have the offset where it began.
        """
        if clean and self._owned and self._on_revoke is not None:
            await self._on_revoke(list(self._owned.values()))
        if self._delivery != "at_least_once":
            return
        if clean:
            with suppress(MemberFenced):
                await self.commit()
            return
        offsets = self.positions()
        if self._unprocessed is not None and self._unprocessed[0] in offsets:
            offsets[self._unprocessed[0]] = self._unprocessed[1]
        offsets = {partition: offset for partition, offset in offsets.items() if offset != self._starts[partition]}
        if offsets:
            with suppress(*FAILURES):
                await self._commit(offsets)


def _check(topics: Sequence[str], pattern: str | None, delivery: Delivery) -> None:
    if not topics and not pattern:
        raise ValueError("a consumer in a group needs at least one topic, or a pattern")
    if delivery not in ("manual", "at_most_once", "at_least_once"):
        raise ValueError(f"delivery is manual, at_most_once or at_least_once, not {delivery!r}")

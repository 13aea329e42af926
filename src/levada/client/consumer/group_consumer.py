"""A consumer that shares topics with the other members of its group, and keeps its place with the group (R27, R31-R34).

The coordinator decides who reads what (KIP-848). What it takes away is let go, and told so, only when the caller comes
back for more records: by then it has dealt with those it got, and a commit can still be made. What is added is looked
up in the background meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack
from uuid import UUID

from levada.client.consumer.consumer import Consumer, ConsumerOptions
from levada.client.consumer.fetcher import Cursor
from levada.client.consumer.membership import Membership, Place
from levada.client.consumer.offsets import commit, committed
from levada.client.errors import FAILURES, MemberFenced
from levada.errors import ErrorCode, KafkaError
from levada.model import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client

Delivery = Literal["manual", "at_most_once", "at_least_once"]
Hook = Callable[[Sequence[TopicPartition]], Awaitable[None]]


class GroupOptions(ConsumerOptions, total=False):
    """What a consumer in a group may be told; `GroupConsumer` has the defaults."""

    pattern: str | None
    delivery: Delivery
    commit_interval_ms: int
    instance_id: str | None
    max_poll_interval_ms: int
    on_assign: Hook | None
    on_revoke: Hook | None
    on_lost: Hook | None


class Prepared(NamedTuple):
    """A partition that may be read, and from where."""

    partition: TopicPartition
    offset: int
    committed: int | None


class GroupConsumer(Consumer):
    """Reads its share of topics; made by `Client.consumer` with a group.

    >>> async with client.consumer("orders", group="billing") as consumer:
    ...     async for record in consumer:
    ...         await bill(record)
    ...         await consumer.commit()

    With `pattern`, a regular expression (RE2) that whole names match, it also reads topics that are made later.
    It goes on where the group has committed, else at `start`. `delivery` says who commits: "manual" is the caller with
    `commit`; "at_most_once" commits before records are handed out, "at_least_once" after they were dealt with, which
    they are when the caller asks for more.
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
        self._pattern = pattern
        self._delivery = delivery
        self._commit_interval_s = commit_interval_ms / 1000
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._loop = asyncio.get_running_loop()
        self._commit_at = self._loop.time() + self._commit_interval_s
        self._owned: dict[Place, TopicPartition] = {}  # exactly the partitions that have a cursor
        self._prepared: dict[Place, Prepared] = {}  # what may be read as soon as the caller comes back
        self._saved: dict[TopicPartition, int] = {}  # what the group is known to have committed
        self._in_hand: tuple[TopicPartition, int] | None = None  # the first of the records handed out last
        self._preparing: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
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
        """Join the group, and begin to fetch what it assigns."""
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
        """Leave the group; what was handed out is committed first if that is not left to the caller."""
        await self._close(clean=True)

    async def __anext__(self) -> ConsumerRecord:
        await self._return()
        try:
            record = await super().__anext__()
        finally:
            self.membership.away_since = self._loop.time()
        self._in_hand = (TopicPartition(record.topic, record.partition), record.offset)
        return record

    async def poll(self, timeout_ms: int | None = None) -> list[ConsumerRecord]:
        """The records of the next batch; none if nothing came in time."""
        await self._return()
        try:
            records = await super().poll(timeout_ms)
        finally:
            self.membership.away_since = self._loop.time()
        if records:
            self._in_hand = (TopicPartition(records[0].topic, records[0].partition), records[0].offset)
        return records

    # Offsets

    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record that was handed out, of each partition."""
        return {partition: cursor.position for partition, cursor in self._cursors.items()}

    async def commit(self, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None) -> None:
        """Keep these offsets for the group, or those of everything that was handed out.

        MemberFenced says that the partitions were given to others, who get the same records.
        """
        if offsets is None:
            wanted = {place: at for place, at in self.positions().items() if self._saved.get(place) != at}
        else:
            wanted = {self._cursor(place).partition: at for place, at in offsets.items()}
        if wanted:
            await self._commit(wanted)

    async def committed(self) -> dict[TopicPartition, int]:
        """What the group has committed in the partitions of this consumer."""
        found = await committed(
            self.membership.coordinator, self.membership.group, tuple(self._cursors), self._topic_ids()
        )
        return {partition: entry.offset for partition, entry in found.items()}

    async def seek_to_committed(self) -> None:
        """Go back to what the group has committed, as after a transaction that was aborted."""
        found = await self.committed()
        rest = [partition for partition in self._cursors if partition not in found]
        for partition, offset in {**found, **await self._starting_offsets(self._start, rest)}.items():
            self.seek(partition, offset)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        ids = self._topic_ids()
        coordinator = self.membership.coordinator
        await self.membership.run(lambda committer: commit(coordinator, committer, offsets, ids))
        self._saved.update({place: at for place, at in offsets.items() if place in self._cursors})

    def _topic_ids(self) -> dict[str, UUID | None]:
        return {partition.topic: topic_id for (topic_id, _), partition in self._owned.items()}

    # Before records are handed out

    async def _return(self) -> None:
        """The caller is back: it has dealt with what it got."""
        self._in_hand = None
        self.membership.away_since = None
        if self.membership.news:
            await self._settle(None)
        if self._delivery == "at_least_once" and self._loop.time() >= self._commit_at:
            self._commit_at = self._loop.time() + self._commit_interval_s
            with suppress(MemberFenced):  # a heartbeat will tell
                await self.commit()

    async def _fill(self, deadline: float | None) -> bool:
        if self.membership.news:
            await self._settle(deadline)
        if not await super()._fill(deadline):
            return False
        if self._delivery == "at_most_once" and self._current and self._current_of is not None:
            cursor, _, end = self._current_of
            held, self._current = self._current, deque()
            try:
                await self._commit({cursor.partition: end})
            except BaseException:
                cursor.move(cursor.position)  # to be fetched and committed again
                self._fetcher.hurry()
                raise
            self._current = held
        return True

    # From what is read to what shall be read

    def _changed(self) -> None:
        """A heartbeat brought something new."""
        for place in self._prepared.keys() - self.membership.target:
            del self._prepared[place]  # when it comes back, others have read on in it
        if self._preparing is None and self.membership.target - self._owned.keys() - self._prepared.keys():
            self._preparing = self._loop.create_task(self._prepare(), name="find where to start")
            self._preparing.add_done_callback(self._is_prepared)
        self._fetcher.interrupt()

    def _is_prepared(self, task: asyncio.Task[None]) -> None:
        self._preparing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.membership.trouble = error
        self.membership.news = True
        self._fetcher.interrupt()

    async def _prepare(self) -> None:
        """Find out where to start in what is new; what cannot be found is tried again with the next heartbeat."""
        target: Collection[Place] = ()
        while self.membership.target is not target:  # it may have changed while we looked
            target = self.membership.target
            missing = target - self._owned.keys() - self._prepared.keys()
            try:
                found = await self._starts(missing) if missing else {}
            except KafkaError as error:
                if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise
                target = ()  # somebody's transaction is open: it will end or time out
                continue
            if self.membership.target is target:
                self._prepared.update(found)

    async def _starts(self, places: Collection[Place]) -> dict[Place, Prepared]:
        topics = (await self._client.metadata(self._topics if self._pattern is None else None)).topics
        names = {topic.topic_id: name for name, topic in topics.items()}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        partitions = {
            (topic_id, index): TopicPartition(names[topic_id], index)
            for topic_id, index in places
            if topic_id in names and index < len(topics[names[topic_id]].partitions)
        }
        if not partitions:
            return {}
        member = self.membership
        found = await committed(member.coordinator, member.group, partitions.values(), ids)
        rest = [partition for partition in partitions.values() if partition not in found]
        starts = await self._starting_offsets(self._start, rest)
        return {
            place: Prepared(partition, found[partition].offset, found[partition].offset)
            if partition in found
            else Prepared(partition, starts[partition], None)
            for place, partition in partitions.items()
        }

    async def _settle(self, deadline: float | None) -> None:
        """Let go of what was taken away, take up what was added; it goes on though the caller gives up."""
        if self._settling is None:
            self._settling = self._loop.create_task(self._reconcile(), name="reconcile partitions")
        settling = self._settling
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(settling)
        except TimeoutError:
            if settling.done() and settling.exception() is not None:
                raise
        finally:
            if settling.done():
                self._settling = None

    async def _reconcile(self) -> None:
        member = self.membership
        member.news = False
        if member.failure is not None:
            member.news = True
            raise member.failure
        if member.lost is not None:
            lost = list(self._owned.values())
            self._release(list(self._owned))
            self._prepared.clear()
            member.rejoin()
            if self._on_lost is not None and lost:
                await self._on_lost(lost)
        revoked = [place for place in self._owned if place not in member.target]
        if revoked:
            await self._revoke(revoked)
        await self._take_up()
        if member.trouble is not None:
            trouble, member.trouble = member.trouble, None
            raise trouble

    async def _revoke(self, places: Sequence[Place]) -> None:
        partitions = [self._owned[place] for place in places]
        try:
            if self._on_revoke is not None:
                await self._on_revoke(partitions)
            if self._delivery == "at_least_once":
                with suppress(MemberFenced):
                    await self.commit()
        finally:
            self._release(places)
            self.membership.acknowledge(self._owned)

    async def _take_up(self) -> None:
        ready, self._prepared = self._prepared, {}
        added = []
        for place, (partition, offset, saved) in ready.items():
            if place in self.membership.target and place not in self._owned:
                self._owned[place] = partition
                self._cursors[partition] = Cursor(partition, offset)
                if saved is not None:
                    self._saved[partition] = saved
                added.append(partition)
        if not added:
            return
        try:
            if self._on_assign is not None:
                await self._on_assign(added)
        finally:
            self._fetcher.assign(self._cursors.values())
            self.membership.acknowledge(self._owned)

    def _release(self, places: Sequence[Place]) -> None:
        for place in places:
            partition = self._owned.pop(place)
            cursor = self._cursors.pop(partition)
            cursor.move(cursor.position)  # what was fetched is dropped
            self._saved.pop(partition, None)
        self._fetcher.assign(self._cursors.values())

    # The end

    async def _close(self, *, clean: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._settling is not None:
                await asyncio.gather(self._settling, return_exceptions=True)
            if self.membership.lost is None and self.membership.failure is None:
                await self._finish(clean=clean)
        finally:
            if self._preparing is not None:
                self._preparing.cancel()
            await self._fetcher.stop()
            await self.membership.leave()

    async def _finish(self, *, clean: bool) -> None:
        """Save what was dealt with: after an error in the caller's work, not what it had in hand."""
        if clean and self._owned and self._on_revoke is not None:
            await self._on_revoke(list(self._owned.values()))
        if self._delivery != "at_least_once":
            return
        if clean:
            with suppress(MemberFenced):
                await self.commit()
            return
        offsets = self.positions()
        if self._in_hand is not None and self._in_hand[0] in offsets:
            offsets[self._in_hand[0]] = self._in_hand[1]
        with suppress(*FAILURES):
            await self._commit(offsets)


def _check(topics: Sequence[str], pattern: str | None, delivery: Delivery) -> None:
    if not topics and not pattern:
        raise ValueError("a group shares topics: name at least one, or a pattern")
    if delivery not in ("manual", "at_most_once", "at_least_once"):
        raise ValueError(f"delivery is manual, at_most_once or at_least_once, not {delivery!r}")

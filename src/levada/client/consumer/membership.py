"""A member of a consumer group (KIP-848): heartbeats in the background, and what the coordinator answers to them.

One request does everything: it joins, stays, says what the member reads, and leaves. It is always sent in full, so
that an answer which was lost needs no case of its own. The member reads what it is told to once it has stopped reading
what it is no longer told to: `target` is the one, `owned` the other, and the consumer takes it from here to there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from levada.client.consumer.offsets import Committer
from levada.client.coordinator import Coordinator, KeyType
from levada.client.errors import ConnectionFailed, MemberFenced, RequestTimedOut, raise_for_code
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.consumer_group_heartbeat.v1 as consumer_group_heartbeat

if TYPE_CHECKING:
    from levada.client.client import Client

T = TypeVar("T")
Place = tuple[UUID, int]  # a partition of a topic that, made again, would be another one

JOINING, LEAVING, AWAY = 0, -1, -2  # epochs that mean something
LEAVE_TIMEOUT_MS = 3_000
EPOCH_TRIES = 5
PATTERN_FROM = 1  # of ConsumerGroupHeartbeat

# The coordinator does not know the member, or not in this epoch: it must start over.
LOST = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
# Somebody else goes by the member's instance id.
REPLACED = frozenset({ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID})
# The epoch that a request was sent in is over; a heartbeat tells which one it is now.
STALE = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})


class Membership:
    """One member, from `join` to `leave`; `changed` is called whenever the consumer has something to look at."""

    def __init__(
        self,
        client: "Client",
        group: str,
        topics: Iterable[str],
        *,
        pattern: str | None,
        instance_id: str | None,
        max_poll_interval_ms: int,
        changed: Callable[[], None],
    ) -> None:
        self.group = group
        self.member_id = str(uuid4())
        self.epoch = JOINING
        self.instance_id = instance_id
        self.owned: frozenset[Place] = frozenset()  # what is read, as the coordinator is told
        self.target: frozenset[Place] = (
            frozenset()
        )  # what shall be read; another object when it is another set
        self.lost: MemberFenced | None = None  # set until the consumer has let go of everything
        self.failure: Exception | None = None  # what ended the membership
        self.trouble: Exception | None = None  # what may pass, for the consumer to tell once
        self.news = False  # the consumer has something to look at; it takes this back
        self.away_since: float | None = None  # when the caller last went off to work with records
        self._client = client
        self._topics = tuple(dict.fromkeys(topics))
        self._pattern = pattern
        self._max_poll_interval_ms = max_poll_interval_ms
        self._changed = changed
        self._pool = client.pool()  # a Produce that waits for replicas shall not hold up heartbeats
        self.coordinator = Coordinator(client, KeyType.GROUP, group, pool=self._pool)
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._beats = 0  # answered or failed
        self._beating = False
        self._beaten = asyncio.Condition()
        self._runner: asyncio.Task[None] | None = None

    @property
    def committer(self) -> Committer:
        """Who commits, as of now."""
        return Committer(self.group, self.member_id, self.epoch, self.instance_id)

    async def join(self) -> None:
        """Become a member, and stay one in the background."""
        pause_s = await self._beat()
        self.away_since = self._loop.time()
        self._runner = self._loop.create_task(self._run(pause_s), name=f"member of group {self.group}")

    async def leave(self) -> None:
        """Stop, and tell the group; a member with an instance id only says that it will be back."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        with suppress(KafkaError, ConnectionFailed, RequestTimedOut, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                await self._send(LEAVING if self.instance_id is None else AWAY)
        await self._pool.close()

    def acknowledge(self, owned: Iterable[Place]) -> None:
        """The consumer reads these now, and nothing else."""
        self.owned = frozenset(owned)
        self._due.set()

    def rejoin(self) -> None:
        """The consumer has let go of everything after it was fenced."""
        self.lost = None
        self.epoch = JOINING
        self.target = self.owned = frozenset()
        self._due.set()

    async def run(self, ask: Callable[[Committer], Awaitable[T]]) -> T:
        """Ask something as a member, again if the epoch changed meanwhile; MemberFenced if it is none any more."""
        for _ in range(EPOCH_TRIES):
            if self.lost is not None:
                raise MemberFenced(*self.lost.args)
            try:
                return await ask(self.committer)
            except KafkaError as error:
                if error.code in LOST | REPLACED:
                    self._due.set()  # the answer to a heartbeat decides
                    raise MemberFenced(error.code, error.detail) from None
                if error.code not in STALE:
                    raise
                stale = error
            await self._beat_now()
        raise MemberFenced(stale.code, stale.detail)

    async def _beat_now(self) -> None:
        """Wait for the answer to a heartbeat that is sent after this call."""
        wanted = self._beats + (2 if self._beating else 1)
        self._due.set()
        async with self._beaten:
            await self._beaten.wait_for(lambda: self._beats >= wanted or self.lost or self.failure)

    async def _run(self, pause_s: float) -> None:
        while self.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.lost else pause_s):
                    await self._due.wait()
            self._due.clear()
            self._beating = True
            if self.lost is None:
                pause_s = await self._beat_or_tell()
            self._beating = False
            async with self._beaten:
                self._beats += 1
                self._beaten.notify_all()

    async def _beat_or_tell(self) -> float:
        """One heartbeat; what goes wrong with it is for the consumer to see. Seconds until the next one."""
        try:
            if self._caller_is_gone():
                await self._send(LEAVING)
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"no record was asked for within {self._max_poll_interval_ms} ms, so it left",
                )
            return await self._beat()
        except KafkaError as error:
            detail = f"group {self.group}: {error.detail}"
            if error.code in LOST:
                self.lost = MemberFenced(error.code, detail)
            else:
                kind = MemberFenced if error.code in REPLACED else KafkaError
                self.failure = kind(error.code, detail)
        except (ConnectionFailed, RequestTimedOut) as failure:
            self.trouble = failure
        except Exception as bug:  # noqa: BLE001 (raised again by the consumer)
            self.failure = bug
        self._tell()
        return self._client.retry_backoff_s

    def _tell(self) -> None:
        self.news = True
        self._changed()

    def _caller_is_gone(self) -> bool:
        away_since = self.away_since
        return (
            away_since is not None
            and bool(self.owned or self.target)
            and self._loop.time() - away_since > self._max_poll_interval_ms / 1000
        )

    async def _beat(self) -> float:
        response = await self._send(self.epoch)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            target = frozenset(
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
            if target != self.target:
                self.target = target
                self._tell()
        if self.target != self.owned and not self.news:
            self._tell()
        return float(response.heartbeat_interval.total_seconds())

    async def _send(self, epoch: int) -> Any:
        shape = consumer_group_heartbeat.request
        owned: dict[UUID, list[int]] = {}
        for topic_id, index in sorted(self.owned):
            owned.setdefault(topic_id, []).append(index)
        request = shape.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rebalance_timeout=timedelta(milliseconds=self._max_poll_interval_ms),
            subscribed_topic_names=self._topics,
            subscribed_topic_regex=self._pattern,
            topic_partitions=tuple(
                shape.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
                for topic_id, indexes in owned.items()
            ),
        )

        def check_answer(response: Any) -> None:
            raise_for_code(response.error_code, response.error_message or f"group {self.group}")

        send = self.coordinator.request if epoch >= JOINING else self.coordinator.request_once
        version_min = 0 if self._pattern is None else PATTERN_FROM
        return await send("consumer_group_heartbeat", request, check_answer, version_min=version_min)

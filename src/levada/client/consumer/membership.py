"""Membership in a consumer group by the consumer protocol (KIP-848): heartbeats in the background.

ConsumerGroupHeartbeat joins, renews the session, acknowledges assigned partitions and leaves. It is always sent in
full, so a lost response needs no special case. `assigned` is the coordinator's assignment, `owned` what the consumer
has acknowledged; the consumer reconciles the one to the other.
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
TopicIdPartition = tuple[UUID, int]

JOINING, LEAVING, LEAVING_STATIC = 0, -1, -2  # member epochs with a meaning of their own
LEAVE_TIMEOUT_MS = 3_000
EPOCH_ATTEMPTS = 5
PATTERN_VERSION = 1  # of ConsumerGroupHeartbeat

# The coordinator does not know the member, or fences its epoch: it must join again.
FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
# Another member has the instance id.
INSTANCE_FENCED = frozenset({ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID})
# The request was sent in an older member epoch; the next heartbeat response has the current one.
STALE_EPOCH = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})


class Membership:
    """One member, from `join` to `leave`; `changed` is called when the consumer has to reconcile."""

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
        self.owned: frozenset[TopicIdPartition] = frozenset()  # acknowledged to the coordinator
        self.assigned: frozenset[TopicIdPartition] = frozenset()  # another object with each new assignment
        self.fenced: MemberFenced | None = None  # set until the consumer has released all partitions
        self.failure: Exception | None = None  # what ended the membership
        self.retriable_failure: Exception | None = None  # for the consumer to raise once
        self.needs_reconciliation = False  # the consumer resets it
        self.polled_at: float | None = None  # when the caller last got records; None while it polls
        self._client = client
        self._topics = tuple(dict.fromkeys(topics))
        self._pattern = pattern
        self._max_poll_interval_ms = max_poll_interval_ms
        self._changed = changed
        self._pool = client.pool()  # a Produce that waits for replicas must not delay heartbeats
        self.coordinator = Coordinator(client, KeyType.GROUP, group, pool=self._pool)
        self._loop = asyncio.get_running_loop()
        self._heartbeat_due = asyncio.Event()
        self._heartbeats = 0  # completed or failed
        self._in_flight = False
        self._heartbeat_done = asyncio.Condition()
        self._runner: asyncio.Task[None] | None = None

    @property
    def committer(self) -> Committer:
        """The member id and epoch for commits."""
        return Committer(self.group, self.member_id, self.epoch, self.instance_id)

    async def join(self) -> None:
        """Join the group, and send heartbeats in the background."""
        pause_s = await self._heartbeat()
        self.polled_at = self._loop.time()
        self._runner = self._loop.create_task(self._run(pause_s), name=f"member of group {self.group}")

    async def leave(self) -> None:
        """Leave the group; a static member keeps its assignment until the session timeout."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        with suppress(KafkaError, ConnectionFailed, RequestTimedOut, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                await self._send(LEAVING if self.instance_id is None else LEAVING_STATIC)
        await self._pool.close()

    def acknowledge(self, owned: Iterable[TopicIdPartition]) -> None:
        """The consumer owns exactly these partitions now."""
        self.owned = frozenset(owned)
        self._heartbeat_due.set()

    def rejoin(self) -> None:
        """Join again; the consumer has released all partitions after it was fenced."""
        self.fenced = None
        self.epoch = JOINING
        self.assigned = self.owned = frozenset()
        self._heartbeat_due.set()

    async def run(self, request: Callable[[Committer], Awaitable[T]]) -> T:
        """Send a request as a member, again if the member epoch has changed; MemberFenced if it is fenced."""
        for _ in range(EPOCH_ATTEMPTS):
            if self.fenced is not None:
                raise MemberFenced(*self.fenced.args)
            try:
                return await request(self.committer)
            except KafkaError as error:
                if error.code in FENCED | INSTANCE_FENCED:
                    self._heartbeat_due.set()  # its response decides
                    raise MemberFenced(error.code, error.detail) from None
                if error.code not in STALE_EPOCH:
                    raise
                stale = error
            await self._heartbeat_now()
        raise MemberFenced(stale.code, stale.detail)

    async def _heartbeat_now(self) -> None:
        """Wait for the response to a heartbeat that is sent after this call."""
        wanted = self._heartbeats + (2 if self._in_flight else 1)
        self._heartbeat_due.set()
        async with self._heartbeat_done:
            await self._heartbeat_done.wait_for(lambda: self._heartbeats >= wanted or self.fenced or self.failure)

    async def _run(self, pause_s: float) -> None:
        while self.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.fenced else pause_s):
                    await self._heartbeat_due.wait()
            self._heartbeat_due.clear()
            self._in_flight = True
            if self.fenced is None:
                pause_s = await self._heartbeat_or_report()
            self._in_flight = False
            async with self._heartbeat_done:
                self._heartbeats += 1
                self._heartbeat_done.notify_all()

    async def _heartbeat_or_report(self) -> float:
        """One heartbeat; its failure is left to the consumer to raise. Returns the seconds until the next one."""
        try:
            if self._poll_interval_exceeded():
                await self._send(LEAVING)
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"no poll within max_poll_interval_ms={self._max_poll_interval_ms}, so the member has left",
                )
            return await self._heartbeat()
        except KafkaError as error:
            detail = f"group {self.group}: {error.detail}"
            if error.code in FENCED:
                self.fenced = MemberFenced(error.code, detail)
            else:
                kind = MemberFenced if error.code in INSTANCE_FENCED else KafkaError
                self.failure = kind(error.code, detail)
        except (ConnectionFailed, RequestTimedOut) as failure:
            self.retriable_failure = failure
        except Exception as bug:  # noqa: BLE001 (raised by the consumer)
            self.failure = bug
        self._request_reconciliation()
        return self._client.retry_backoff_s

    def _request_reconciliation(self) -> None:
        self.needs_reconciliation = True
        self._changed()

    def _poll_interval_exceeded(self) -> bool:
        polled_at = self.polled_at
        return (
            polled_at is not None
            and bool(self.owned or self.assigned)
            and self._loop.time() - polled_at > self._max_poll_interval_ms / 1000
        )

    async def _heartbeat(self) -> float:
        response = await self._send(self.epoch)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            assigned = frozenset(
                (topic.topic_id, index) for topic in response.assignment.topic_partitions for index in topic.partitions
            )
            if assigned != self.assigned:
                self.assigned = assigned
                self._request_reconciliation()
        if self.assigned != self.owned and not self.needs_reconciliation:
            self._request_reconciliation()
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

        def check_response(response: Any) -> None:
            raise_for_code(response.error_code, response.error_message or f"group {self.group}")

        # A leaving member does not wait for its coordinator.
        send = self.coordinator.request if epoch >= JOINING else self.coordinator.request_once
        version_min = 0 if self._pattern is None else PATTERN_VERSION
        return await send("consumer_group_heartbeat", request, check_response, version_min=version_min)

"""The state machine of a partition of `__consumer_offsets`: its groups, their committed offsets, their timers.

Deciding methods take the request, the time and a response handle, change nothing, and return an outcome or raise the
error of the response. `KINDS` lists the kinds of groups and their decisions. A request of one protocol may meet a group
of another: classic members can be in a consumer group (`levada.core.groups.migration`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, Final, NamedTuple

from levada.core.cluster.image import ClusterImage
from levada.core.groups.classic import join as classic_join
from levada.core.groups.classic import requests as classic_requests
from levada.core.groups.classic.group import ClassicGroup, restored
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import LeavingMember, SyncRequest
from levada.core.groups.consumer import requests as consumer_requests
from levada.core.groups.consumer.draft import ConsumerDraft, ConsumerLimits, ConsumerRecord
from levada.core.groups.consumer.group import ConsumerGroup
from levada.core.groups.events import (
    FORMAT,
    GroupEvent,
    OffsetPut,
    TimersChanged,
    TimerScheduled,
    TransactionEnded,
)
from levada.core.groups.group import Group, GroupLimits, Timer, TimerKind, session_timer
from levada.core.groups.memory_limit import put_group, remove_group, validate_group_id_size
from levada.core.groups.migration import classic_members
from levada.core.groups.offsets import CommitRequest, FetchedOffset, Offsets
from levada.core.machine import (
    AnyOutcome,
    Deadlines,
    Outcome,
    ProducerFields,
    ResponseHandle,
)
from levada.core.patterns import CpuTime
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import TopicPartitionKey
from levada.wire.batches import TRANSACTIONAL_BIT, BatchHeader
from levada.wire.control_records import MARKER_ATTRIBUTES, read_marker
from levada.wire.internal.group_records import GroupMetadataKey, OffsetCommitKey

log = EventLog(__name__)

REMOVALS_PER_CHECK_MAX: Final = 5_000  # offsets removed by one check; the next one follows soon
NEXT_CHECK_MS: Final = 1_000
EXPIRIES_MAX: Final = 100  # timers handled by one `expire`, so that the event loop is not blocked
RETENTION: Final = Timer("", TimerKind.RETENTION)
NONE: Final = ErrorCode.NONE  # faster than an attribute of the enum


class GroupKind(NamedTuple):
    """The decisions of one kind of group. All functions take the machine and the group first, except tombstones."""

    join: Callable[..., AnyOutcome]  # requests of the classic protocol
    sync: Callable[..., AnyOutcome]
    heartbeat: Callable[..., AnyOutcome]
    leave: Callable[..., Outcome]
    on_loaded: Callable[..., Sequence[GroupEvent]]  # start timers after the journal was replayed
    expire: Callable[..., Outcome]  # expired timers of the group
    tombstones: Callable[[Any], list[GroupEvent]]  # the events that remove the group


KINDS: Final[Mapping[str, GroupKind]] = {
    ClassicGroup.kind: GroupKind(
        classic_join.join,
        classic_requests.sync,
        classic_requests.heartbeat,
        classic_requests.leave,
        classic_requests.on_loaded,
        classic_requests.expire,
        classic_requests.tombstones,
    ),
    ConsumerGroup.kind: GroupKind(
        classic_members.join,
        classic_members.sync,
        classic_members.heartbeat,
        classic_members.leave,
        consumer_requests.on_loaded,
        consumer_requests.expire,
        consumer_requests.tombstones,
    ),
}


@dataclass(slots=True)
class GroupsMachine:
    """The state of one shard."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=Offsets)
    deadlines: Deadlines[Timer] = field(default_factory=Deadlines)
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    image: Callable[[], ClusterImage] = ClusterImage  # the topics that consumer groups assign
    cpu_time: CpuTime = float  # limits the matching of regular expressions
    total_memory_bytes: Callable[[], int] = int  # of the groups of all shards of the broker
    memory_bytes: int = field(default=0, compare=False)  # of the groups of this shard

    # Groups.

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        """The classic group of that id, if there is one."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group of that id, if there is one."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def consumer_draft(self, group: ConsumerGroup, now_ms: int) -> ConsumerDraft:
        """A draft of a consumer group."""
        return ConsumerDraft(group, self.limits_of(group.id), self.image(), now_ms, self.cpu_time)

    def limits_of(self, group_id: str) -> ConsumerLimits:
        """The limits of a consumer group: its group configs override the broker's settings."""
        own = self.image().group_configs.get(group_id)
        return self.consumer_limits if own is None else self.consumer_limits.with_own(own)

    def _existing(self, group_id: str, error: ErrorCode) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(error, f"group {group_id!r} does not exist")
        return group

    def renew_session(self, group_id: str, member_id: str, session_timeout_ms: int, now_ms: int) -> list[GroupEvent]:
        """Restart the session timer of a classic member, unless it was restarted in this millisecond."""
        timer, until_ms = session_timer(group_id, member_id), now_ms + session_timeout_ms
        return [] if self.deadlines.get(timer) == until_ms else [TimerScheduled(timer, until_ms)]

    # Requests of the classic protocol. Those of the consumer protocol: `levada.core.groups.consumer.requests`.

    def join(self, request: JoinRequest, now_ms: int, handle: ResponseHandle) -> AnyOutcome:
        """JoinGroup. The first member creates the group."""
        classic_join.validate_join(request, self.limits)
        group = self.groups.get(request.group_id) or classic_join.new_group(request)
        return KINDS[group.kind].join(self, group, request, now_ms, handle)

    def sync(self, request: SyncRequest, now_ms: int, handle: ResponseHandle) -> AnyOutcome:
        """SyncGroup."""
        group = self._existing(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return KINDS[group.kind].sync(self, group, request, now_ms, handle)

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        handle: ResponseHandle,
    ) -> AnyOutcome:
        """Heartbeat."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id!r} does not exist")
        return KINDS[group.kind].heartbeat(self, group, member_id, instance_id, generation, now_ms, handle)

    def leave(self, group_id: str, leaving: Sequence[LeavingMember], now_ms: int, handle: ResponseHandle) -> Outcome:
        """LeaveGroup; the response has an error code for each member."""
        group = self.groups.get(group_id)
        if group is None:
            return Outcome(responses=[(handle, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving))])
        return KINDS[group.kind].leave(self, group, leaving, now_ms, handle)

    # Offsets.

    def commit(self, request: CommitRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
        """OffsetCommit and TxnOffsetCommit; the response has an error code for each offset."""
        events: list[GroupEvent] = self._validate_commit(request, now_ms)
        errors = []
        group_id, producer_id = request.group_id, request.producer_id
        for topic_partition, value in request.offsets:
            if value.metadata and len(value.metadata) > self.limits.offset_metadata_max_bytes:
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(NONE)
            events.append(OffsetPut(group_id, topic_partition, value, producer_id))
        if producer_id < 0:
            return Outcome(events, [(handle, errors)])
        producer = ProducerFields(producer_id, request.producer_epoch, TRANSACTIONAL_BIT)
        return Outcome(events, [(handle, errors)], producer)

    def _validate_commit(self, request: CommitRequest, now_ms: int) -> list[GroupEvent]:
        """Raise KafkaError if the commit is not allowed; the events that renew the member's session."""
        group_id = request.group_id
        group = self.groups.get(group_id)
        if group is not None:
            session_timeout_ms = group.validate_offset_commit(request, self.image)
            if session_timeout_ms is None:
                return []
            return self.renew_session(group_id, request.member_id, session_timeout_ms, now_ms)
        if request.generation >= 0:
            error = ErrorCode.ILLEGAL_GENERATION if request.is_transactional else ErrorCode.GROUP_ID_NOT_FOUND
            raise KafkaError(error, f"group {group_id!r} does not exist")
        validate_group_id_size(group_id)
        return []

    def fetch(
        self,
        group_id: str,
        topic_partitions: Iterable[TopicPartitionKey] | None,
        *,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[FetchedOffset]:
        """OffsetFetch: the committed offsets of these partitions, or of all (None)."""
        group = self.groups.get(group_id)
        if group is not None:
            group.validate_offset_fetch(member_id, member_epoch)
        if topic_partitions is None:
            topic_partitions = [topic_partition for topic_partition, _ in self.offsets.of(group_id)]
        found = []
        for topic_partition in topic_partitions:
            if require_stable and self.offsets.is_pending(group_id, topic_partition):
                found.append(FetchedOffset(topic_partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                found.append(FetchedOffset(topic_partition, self.offsets.get(group_id, topic_partition)))
        return found

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int,
        handle: ResponseHandle,
    ) -> Outcome:
        """A transaction marker for this shard: the producer's pending offsets are committed, or dropped."""
        event = TransactionEnded(producer_id, committed, coordinator_epoch)
        producer = ProducerFields(producer_id, producer_epoch, MARKER_ATTRIBUTES)
        return Outcome([event], [(handle, None)], producer)

    def delete_offsets(
        self, group_id: str, topic_partitions: Sequence[TopicPartitionKey], handle: ResponseHandle
    ) -> Outcome:
        """OffsetDelete; the response has an error code for each partition."""
        group = self._existing(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        group.validate_offset_delete()
        errors, events = [], []
        for topic_partition in topic_partitions:
            subscribed = group.subscribes_to(topic_partition[0])
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE)
            if not subscribed and self.offsets.get(group_id, topic_partition) is not None:
                events.append(OffsetPut(group_id, topic_partition, None))
        return Outcome(events, [(handle, errors)], atomic=False)

    def delete_group(self, group_id: str) -> list[GroupEvent]:
        """DeleteGroups for one group: remove an empty group and its offsets."""
        group = self._existing(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        removed = [OffsetPut(group_id, found, None) for found in self.offsets.topic_partitions(group_id)]
        return [*removed, *KINDS[group.kind].tombstones(group)]

    def on_topics_deleted(self, is_deleted: Callable[[str], bool], handle: ResponseHandle) -> Outcome:
        """Remove the offsets of deleted topics: a new topic of the same name starts without offsets."""
        events = [
            OffsetPut(group_id, topic_partition, None)
            for group_id in list(self.offsets.groups())
            for topic_partition in self.offsets.topic_partitions(group_id)
            if is_deleted(topic_partition[0])
        ]
        return Outcome(events, [(handle, None)], atomic=False)

    # Timers.

    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_ms()

    def on_loaded(self, now_ms: int) -> Outcome:
        """Start the retention check and the timers of all groups."""
        events: list[GroupEvent] = [self._next_check(now_ms)]
        for group in self.groups.values():
            events += KINDS[group.kind].on_loaded(self, group, now_ms)
        return Outcome(events, atomic=False)

    def expire(self, now_ms: int) -> Outcome:
        """Handle expired timers; beyond `EXPIRIES_MAX` they stay due for the next call."""
        events: list[GroupEvent] = []
        responses: list[tuple[ResponseHandle, Any]] = []
        expired: dict[str, list[Timer]] = {}
        for timer in self.deadlines.due(now_ms)[:EXPIRIES_MAX]:
            if timer == RETENTION:
                events += self._remove_expired(now_ms)
            elif timer.group in self.groups:
                expired.setdefault(timer.group, []).append(timer)
            else:
                events.append(TimersChanged({timer: None}))
        for group_id, timers in expired.items():
            group = self.groups[group_id]
            outcome = KINDS[group.kind].expire(self, group, timers, now_ms)
            events += outcome.events
            responses += outcome.responses
        return Outcome(events, responses, atomic=False)

    def _next_check(self, now_ms: int) -> TimerScheduled:
        return TimerScheduled(RETENTION, now_ms + self.limits.offsets_retention_check_interval_ms)

    def _remove_expired(self, now_ms: int) -> list[GroupEvent]:
        """Remove expired offsets, and empty groups without offsets."""
        events: list[GroupEvent] = []
        retention_ms = self.limits.offsets_retention_ms
        for group in self.groups.values():
            if len(events) >= REMOVALS_PER_CHECK_MAX:
                return [*events, TimerScheduled(RETENTION, now_ms + NEXT_CHECK_MS)]
            expired = self.offsets.expired(group.id, now_ms, retention_ms, group.retained_since_ms)
            events += [OffsetPut(group.id, topic_partition, None) for topic_partition in expired]
            if (
                group.is_empty
                and not group.has_pending_members
                and len(expired) == self.offsets.count(group.id)
                and not self.offsets.has_pending(group.id)
            ):
                events += KINDS[group.kind].tombstones(group)
        return [*events, self._next_check(now_ms)]

    # Applying and replaying events.

    encode = staticmethod(methodcaller("record"))  # cheaper than a function of Python's

    def apply(self, event: GroupEvent) -> None:
        event.apply(self)

    def remove_if_unused(self, group_id: str) -> None:
        """Remove a simple group without offsets; other groups stay until their tombstones."""
        group = self.groups.get(group_id)
        if group is not None and group.is_simple and not self.offsets.has(group_id):
            del self.groups[group_id]

    def replay(self, key: bytes | None, value: bytes | None, batch: BatchHeader) -> None:
        if batch.is_control:
            marker = read_marker(key, value)
            if marker is not None:
                TransactionEnded(batch.producer_id, *marker).apply(self)
            return
        found = FORMAT.decode(key or b"", value)
        if found is None:
            log.warning("a record of an unknown type is skipped", key=(key or b"")[:16].hex())
            return
        name, content = found
        if isinstance(name, OffsetCommitKey):
            producer_id = batch.producer_id if batch.is_transactional else -1
            OffsetPut(name.group, (name.topic, name.partition), content, producer_id).apply(self)
        elif isinstance(name, GroupMetadataKey):
            self._replay_classic(name.group, restored(name.group, content) if content is not None else None)
        else:
            ConsumerRecord(name, content).apply(self)

    def _replay_classic(self, group_id: str, group: ClassicGroup | None) -> None:
        """A classic group, or its tombstone, which does not concern a group of another kind."""
        former = self.groups.get(group_id)
        if group is not None:
            put_group(self, group)
        elif former is not None and former.kind != ClassicGroup.kind:
            return
        elif self.offsets.has(group_id):
            put_group(self, ClassicGroup(group_id))
        else:
            remove_group(self, group_id)

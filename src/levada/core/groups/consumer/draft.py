"""How a consumer group changes, worked out on a copy.

A `ConsumerDraft` holds the copy and collects records, timers and responses. Each record changes the copy as it will
change the group, so later steps of a decision see the earlier ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from levada.config.groups import GROUP_SETTINGS
from levada.core.cluster.image import ClusterImage
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.consumer.assignors import ASSIGNORS, Partitions, Subscriber
from levada.core.groups.consumer.group import (
    ConsumerGroup,
    ConsumerKey,
    ConsumerValue,
    Topics,
    metadata_hash_of,
    target_value,
)
from levada.core.groups.consumer.member import ConsumerMember, MemberState, Target, reconcile
from levada.core.groups.events import FORMAT, GroupEvent, TimersChanged, VolatileEvent
from levada.core.groups.group import Timer, TimerKind
from levada.core.groups.memory_limit import put_group, remove_group
from levada.core.machine import JournalRecord, Outcome, ResponseHandle
from levada.core.patterns import CpuTime, Pattern
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.wire.internal.consumer_group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    CurrentMemberAssignmentKey,
    MemberMetadataKey,
    MemberMetadataValue,
    PartitionMetadataKey,
    RegularExpressionKey,
    RegularExpressionValue,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadataKey,
    TargetAssignmentMetadataValue,
)

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine

log = EventLog(__name__)

# Of all regular expressions of a group together: each member may have one, and matching blocks the event loop.
REFRESH_S_MAX: Final = 0.1
MEMBER_TIMERS: Final = (
    TimerKind.SESSION,
    TimerKind.REVOKE,
    TimerKind.MEMBER_JOIN,
    TimerKind.MEMBER_SYNC,
)


class ConsumerLimits(NamedTuple):
    """The broker's settings of consumer groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = (1 << 31) - 1
    classic_max_size: int = (1 << 31) - 1  # of a group that is downgraded to a classic one
    assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    upgrade: bool = True  # whether a classic group is upgraded when a consumer group member joins
    downgrade: bool = True  # and downgraded when the last of these leaves

    def with_own(self, configs: Mapping[str, str]) -> "ConsumerLimits":
        """These limits with the group configs of a group."""
        values: dict[str, Any] = {}
        for name, text in configs.items():
            setting = GROUP_SETTINGS[name]
            values[setting.attribute.removeprefix("consumer_")] = setting.parse(text)
        return self._replace(**values)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record of a consumer group is written, or its tombstone (None)."""

    key: ConsumerKey
    value: ConsumerValue | None

    def record(self) -> JournalRecord | None:
        return FORMAT.encode(self.key, self.value)

    def apply(self, machine: "GroupsMachine") -> None:
        """A record replaces a group of another kind: the journal defines the kind of a group."""
        group_id = self.key.group_id
        group = machine.consumer_group(group_id)
        if group is None:
            if self.value is None:
                return
            group = ConsumerGroup(group_id)
            put_group(machine, group)
        if isinstance(self.key, ConsumerGroupMetadataKey) and self.value is None:
            remove_group(machine, group_id)
            if machine.offsets.has(group_id):
                put_group(machine, ClassicGroup(group_id))
        else:
            machine.memory_bytes -= group.memory_bytes
            group.put(self.key, self.value)
            machine.memory_bytes += group.memory_bytes


class TopicsEvaluated(VolatileEvent, frozen=True):
    """A group has evaluated its subscriptions with these topics."""

    group_id: str
    topics: Topics

    def apply(self, machine: "GroupsMachine") -> None:
        group = machine.consumer_group(self.group_id)
        if group is not None:
            group.evaluated_topics = self.topics


class ConsumerDraft:
    """A copy of a consumer group with the changes of a decision."""

    __slots__ = ("_cpu_time", "events", "group", "image", "limits", "now_ms", "responses", "timers", "topics")

    def __init__(
        self, group: ConsumerGroup, limits: ConsumerLimits, image: ClusterImage, now_ms: int, cpu_time: CpuTime
    ) -> None:
        self._cpu_time = cpu_time
        self.group = group.copy()
        self.limits = limits
        self.image = image
        self.topics = image.topics
        self.now_ms = now_ms
        self.events: list[GroupEvent] = []
        self.timers: dict[Timer, int | None] = {}  # time, or None to cancel
        self.responses: list[tuple[ResponseHandle, Any]] = []

    def put(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Write a record, or a tombstone (None)."""
        self.group.put(key, value)
        self.events.append(ConsumerRecord(key, value))

    # Members.

    def put_metadata(self, member_id: str, metadata: MemberMetadataValue) -> None:
        """Write the metadata of a member."""
        self.put(MemberMetadataKey(self.group.id, member_id), metadata)

    def put_current(self, member: ConsumerMember) -> None:
        """Write the current assignment of a member."""
        self.put(CurrentMemberAssignmentKey(self.group.id, member.id), member.current())

    def remove(self, member_id: str) -> None:
        """Remove a member and its timers."""
        self.put(CurrentMemberAssignmentKey(self.group.id, member_id), None)
        self.put(TargetAssignmentMemberKey(self.group.id, member_id), None)
        self.put(MemberMetadataKey(self.group.id, member_id), None)
        self.cancel_timers(member_id)

    def schedule(self, kind: TimerKind, member_id: str, timeout_ms: int | None) -> None:
        """Start a timer of a member, or cancel it (None)."""
        self.timers[self.timer(kind, member_id)] = None if timeout_ms is None else self.now_ms + timeout_ms

    def timer(self, kind: TimerKind, member_id: str) -> Timer:
        return Timer(self.group.id, kind, member_id)

    def cancel_timers(self, member_id: str) -> None:
        """Cancel all timers of a member."""
        for kind in MEMBER_TIMERS:
            self.schedule(kind, member_id, None)

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Move the assignment of a restarted static member to its new member id."""
        target = self.group.target(old.id)
        self.remove(old.id)
        self.put_metadata(member_id, old.metadata)
        self.put(TargetAssignmentMemberKey(self.group.id, member_id), target_value(target))
        self.put_current(replace(old, id=member_id, epoch=0, previous_epoch=0))
        return self.group.members[member_id]

    # Epochs.

    def refresh_topics(self) -> bool:
        """Evaluate subscriptions with the current topics; True if the group needs a new epoch."""
        group = self.group
        if group.evaluated_topics is self.topics:
            return False
        changed = self._refresh_regexes()
        self._set_evaluated_topics()
        return changed or metadata_hash_of(group.subscribed_topics(), self.topics) != group.metadata_hash

    def _set_evaluated_topics(self) -> None:
        self.group.evaluated_topics = self.topics
        self.events.append(TopicsEvaluated(self.group.id, self.topics))

    def _refresh_regexes(self) -> bool:
        """Match new topics and drop deleted ones; True if the topics of a regular expression changed."""
        group, changed = self.group, False
        evaluated_topics: Iterable[str] = () if group.evaluated_topics is None else group.evaluated_topics
        fresh = self.topics.keys() - evaluated_topics
        until, skipped = self._cpu_time() + REFRESH_S_MAX, 0
        for regex in sorted(group.used_regexes() & group.regexes.keys()):
            former = frozenset(group.regexes[regex].topics)
            matched = frozenset[str]()
            if self._cpu_time() > until:
                skipped += 1
            elif fresh:
                try:
                    matched = Pattern(regex).matching(fresh - former, self._cpu_time)
                except KafkaError:
                    skipped += 1
            found = (former & self.topics.keys()) | matched
            if found != former:
                changed = True
                self._put_regex(regex, found)
        if skipped:
            log.warning("regular expressions exceed the matching limit", group=group.id, count=skipped)
        return changed

    def resolve(self, regex: str) -> None:
        """Resolve a new regular expression. INVALID_REGULAR_EXPRESSION."""
        if regex not in self.group.regexes:
            self._put_regex(regex, Pattern(regex).matching(self.topics, self._cpu_time))

    def _put_regex(self, regex: str, found: Iterable[str]) -> None:
        value = RegularExpressionValue(tuple(sorted(found)), self.image.revision, self.now_ms)
        self.put(RegularExpressionKey(self.group.id, regex), value)

    def drop_unused_regexes(self) -> None:
        """Remove regular expressions without subscribers."""
        for regex in sorted(self.group.regexes.keys() - self.group.used_regexes()):
            self.put(RegularExpressionKey(self.group.id, regex), None)

    def bump_epoch(self) -> None:
        """Begin a new epoch with the current topics."""
        group = self.group
        if group.has_old_metadata:
            self.put(PartitionMetadataKey(group.id), None)
        metadata_hash = metadata_hash_of(group.subscribed_topics(), self.topics)
        self.put(ConsumerGroupMetadataKey(group.id), ConsumerGroupMetadataValue(group.epoch + 1, metadata_hash))

    def update_target_assignment(self) -> None:
        """Compute the target assignment of the group's epoch, unless it is up to date."""
        group = self.group
        if group.target_epoch == group.epoch:
            return
        assignor = ASSIGNORS[group.assignor(self.limits.assignors[0])]
        ids = self._ids_by_subscription()
        assigned = assignor(
            {
                member.id: Subscriber(ids(member), group.target(member.id), member.instance_id)
                for member in group.members.values()
            },
            {topic.id: len(topic.partitions) for topic in self.topics.values()},
        )
        for member_id, partitions in assigned.items():
            if member_id not in group.targets or group.targets[member_id] != partitions:
                self.put(TargetAssignmentMemberKey(group.id, member_id), target_value(partitions))
        self.put(
            TargetAssignmentMetadataKey(group.id),
            TargetAssignmentMetadataValue(group.epoch, self.now_ms),
        )

    def _ids_by_subscription(self) -> Callable[[ConsumerMember], frozenset[Any]]:
        """The ids of a member's topics; equal subscriptions are resolved once."""
        known: dict[tuple[tuple[str, ...], str], frozenset[Any]] = {}

        def ids(member: ConsumerMember) -> frozenset[Any]:
            subscription = member.metadata.subscribed_topic_names, member.regex
            if subscription not in known:
                names = self.group.topics_of(member)
                known[subscription] = frozenset(self.topics[name].id for name in names if name in self.topics)
            return known[subscription]

        return ids

    def reconcile(self, member_id: str, owned: Partitions | None) -> ConsumerMember:
        """Reconcile a member with its target; it has its rebalance timeout to revoke partitions."""
        group = self.group
        member = group.members[member_id]
        target = Target(group.target_epoch, group.target(member_id))
        subscribed = self._ids_by_subscription()(member)
        following = reconcile(member, target, subscribed, group.owner, owned)
        if following == member:
            return member
        self.put_current(following)
        if not following.is_classic:
            revoking = following.state is MemberState.UNREVOKED_PARTITIONS
            self.schedule(TimerKind.REVOKE, member_id, following.metadata.rebalance_timeout_ms if revoking else None)
        return following

    def outcome(self) -> Outcome:
        return Outcome([*self.events, TimersChanged(self.timers)], self.responses)

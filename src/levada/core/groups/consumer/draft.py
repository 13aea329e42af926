"""How a consumer group moves on, worked out on a copy.

A `ConsumerDraft` holds the copy and gathers what becomes of it: records, timers, responses. Each record changes the
copy as it will change the group, so what is decided later in a request sees what was decided before.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from levada.config.groups import GROUP_SETTINGS
from levada.core.cluster.image import ClusterImage
from levada.core.groups.classic.draft import Timer, TimerKind
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.consumer.assignors import ASSIGNORS, Partitions, Subscriber
from levada.core.groups.consumer.group import (
    ConsumerGroup,
    ConsumerKey,
    ConsumerValue,
    Topics,
    hash_topics,
    target_value,
)
from levada.core.groups.consumer.member import ConsumerMember, MemberState, Target, reconcile
from levada.core.groups.events import FORMAT, GroupEvent, TimersChanged
from levada.core.groups.memory_limit import forget, keep
from levada.core.machine import JournalRecord, Outcome, ResponseHandle
from levada.core.regex.matcher import WORK_MAX, Pattern
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

# For all patterns of a group together: members may have one each, and other clients wait for as long.
REFRESH_WORK_MAX: Final = 10 * WORK_MAX
MEMBER_TIMERS: Final = (
    TimerKind.MEMBER,
    TimerKind.REVOKE,
    TimerKind.MEMBER_JOIN,
    TimerKind.MEMBER_SYNC,
)


class ConsumerLimits(NamedTuple):
    """What groups of this protocol are told and may ask for, by Kafka's settings."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = (1 << 31) - 1
    classic_max_size: int = (1 << 31) - 1  # of a group that goes back to the classic protocol
    assignors: tuple[str, ...] = ("uniform", "range")  # the first where members ask for none
    upgrade: bool = True  # whether a classic group becomes this one when a member of this protocol joins
    downgrade: bool = True  # and back when the last of these leaves

    def with_own(self, configs: Mapping[str, str]) -> "ConsumerLimits":
        """These limits for a group with settings of its own."""
        values: dict[str, Any] = {}
        for name, text in configs.items():
            setting = GROUP_SETTINGS[name]
            values[setting.attribute.removeprefix("consumer_")] = setting.parse(text)
        return self._replace(**values)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record of a consumer group is there; without a value what its key had is gone."""

    key: ConsumerKey
    value: ConsumerValue | None

    def record(self) -> JournalRecord | None:
        return FORMAT.encode(self.key, self.value)

    def apply(self, machine: "GroupsMachine") -> None:
        """Simple and classic groups give way: only what a group has journaled says what it is."""
        group_id = self.key.group_id
        group = machine.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if self.value is None:
                return
            group = ConsumerGroup(group_id)
            keep(machine, group)
        if isinstance(self.key, ConsumerGroupMetadataKey) and self.value is None:
            forget(machine, group_id)
            if machine.offsets.has(group_id):
                keep(machine, ClassicGroup(group_id))
        else:
            machine.memory_bytes -= group.memory_bytes
            group.put(self.key, self.value)
            machine.memory_bytes += group.memory_bytes


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """A group has looked at the topics as they are now."""

    group_id: str
    topics: Topics

    def record(self) -> JournalRecord | None:
        return None

    def apply(self, machine: "GroupsMachine") -> None:
        group = machine.groups.get(self.group_id)
        if isinstance(group, ConsumerGroup):
            group.seen = self.topics


class ConsumerDraft:
    """A group as it would be after a decision."""

    __slots__ = ("events", "group", "image", "limits", "now_ms", "responses", "timers", "topics")

    def __init__(
        self, group: ConsumerGroup, limits: ConsumerLimits, image: ClusterImage, now_ms: int
    ) -> None:
        self.group = group.copy()
        self.limits = limits
        self.image = image
        self.topics = image.topics
        self.now_ms = now_ms
        self.events: list[GroupEvent] = []
        self.timers: dict[Timer, int | None] = {}  # when, or None to end it
        self.responses: list[tuple[ResponseHandle, Any]] = []

    def put(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Write a record."""
        self.group.put(key, value)
        self.events.append(ConsumerRecord(key, value))

    # Members.

    def put_metadata(self, member_id: str, metadata: MemberMetadataValue) -> None:
        """What a member says of itself."""
        self.put(MemberMetadataKey(self.group.id, member_id), metadata)

    def put_current(self, member: ConsumerMember) -> None:
        """What a member has."""
        self.put(CurrentMemberAssignmentKey(self.group.id, member.id), member.current())

    def remove(self, member_id: str) -> None:
        """A member is gone, and so is whatever was waited for."""
        self.put(CurrentMemberAssignmentKey(self.group.id, member_id), None)
        self.put(TargetAssignmentMemberKey(self.group.id, member_id), None)
        self.put(MemberMetadataKey(self.group.id, member_id), None)
        self.forget(member_id)

    def wait(self, kind: TimerKind, member_id: str, timeout_ms: int | None) -> None:
        """Wait for a member from now on; None not to wait any more."""
        self.timers[self.timer(kind, member_id)] = None if timeout_ms is None else self.now_ms + timeout_ms

    def timer(self, kind: TimerKind, member_id: str) -> Timer:
        """What a member is waited for with."""
        return Timer(self.group.id, kind, member_id)

    def forget(self, member_id: str) -> None:
        """Wait for a member no more."""
        for kind in MEMBER_TIMERS:
            self.wait(kind, member_id, None)

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under a new id, with what its former self had."""
        target = self.group.target(old.id)
        self.remove(old.id)
        self.put_metadata(member_id, old.metadata)
        self.put(TargetAssignmentMemberKey(self.group.id, member_id), target_value(target))
        self.put_current(replace(old, id=member_id, epoch=0, previous_epoch=0))
        return self.group.members[member_id]

    # Epochs.

    def look_at_topics(self) -> bool:
        """See what has become of the topics that members subscribe to; True if the group needs a new epoch."""
        group = self.group
        if group.seen is self.topics:
            return False
        changed = self._refresh_regexes()
        self._see_topics()
        return changed or hash_topics(group.subscribed_topics(), self.topics) != group.metadata_hash

    def _see_topics(self) -> None:
        self.group.seen = self.topics
        self.events.append(TopicsSeen(self.group.id, self.topics))

    def _refresh_regexes(self) -> bool:
        """Match new topics, and leave out those that are gone; True if a pattern has other topics than before."""
        group, changed = self.group, False
        seen: Iterable[str] = () if group.seen is None else group.seen
        fresh = self.topics.keys() - seen
        work_left, refused = REFRESH_WORK_MAX, 0
        for regex in sorted(group.used_regexes() & group.regexes.keys()):
            former = frozenset(group.regexes[regex].topics)
            work_max = max(0, min(work_left, WORK_MAX))
            try:
                matched, spent = Pattern(regex, work_max).matching(fresh - former)
            except KafkaError:
                matched, spent = frozenset[str](), work_max
                refused += 1
            work_left -= spent
            found = (former & self.topics.keys()).union(matched)
            if found != former:
                changed = True
                self._put_regex(regex, found)
        if refused:
            log.warning("patterns cost too much to match with new topics", group=group.id, patterns=refused)
        return changed

    def resolve(self, regex: str) -> None:
        """Find the topics of a pattern that the group does not know. INVALID_REGULAR_EXPRESSION if it is none."""
        if regex not in self.group.regexes:
            found, _ = Pattern(regex).matching(self.topics)
            self._put_regex(regex, found)

    def _put_regex(self, regex: str, found: Iterable[str]) -> None:
        value = RegularExpressionValue(tuple(sorted(found)), self.image.revision, self.now_ms)
        self.put(RegularExpressionKey(self.group.id, regex), value)

    def drop_unused_regexes(self) -> None:
        """Forget the patterns that nobody subscribes to any more."""
        for regex in sorted(self.group.regexes.keys() - self.group.used_regexes()):
            self.put(RegularExpressionKey(self.group.id, regex), None)

    def bump(self) -> None:
        """Begin a new epoch, for the topics as they are now."""
        group = self.group
        if group.has_old_metadata:
            self.put(PartitionMetadataKey(group.id), None)
        metadata_hash = hash_topics(group.subscribed_topics(), self.topics)
        self.put(
            ConsumerGroupMetadataKey(group.id), ConsumerGroupMetadataValue(group.epoch + 1, metadata_hash)
        )

    def assign(self) -> None:
        """Compute the targets for the group's epoch, if they are not."""
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
        """The ids of a member's topics; members that subscribe alike are looked up once."""
        known: dict[tuple[tuple[str, ...], str], frozenset[Any]] = {}

        def ids(member: ConsumerMember) -> frozenset[Any]:
            subscription = member.metadata.subscribed_topic_names, member.regex
            if subscription not in known:
                names = self.group.topics_of(member)
                known[subscription] = frozenset(self.topics[name].id for name in names if name in self.topics)
            return known[subscription]

        return ids

    def reconcile(self, member_id: str, owned: Partitions | None) -> ConsumerMember:
        """Let a member take the next step to its target; it has its rebalance timeout to give partitions back."""
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
            self.wait(
                TimerKind.REVOKE, member_id, following.metadata.rebalance_timeout_ms if revoking else None
            )
        return following

    def outcome(self) -> Outcome:
        """What was gathered."""
        return Outcome([*self.events, TimersChanged(self.timers)], self.responses)

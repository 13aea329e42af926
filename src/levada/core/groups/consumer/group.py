"""A group of the consumer protocol (KIP-848): the coordinator assigns partitions, members reconcile one by one.

A change of members, subscriptions or topics bumps the group epoch. For each epoch the coordinator computes a target
assignment, and each member reconciles towards it with its heartbeats (`levada.core.groups.consumer.member`).

The state is the fold of the group's records: `put` is the only way to change it, live and in replay. Kept in memory
only: the topics that the last epoch was computed from, and the timers, which the state machine holds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import ClassVar, Final
from uuid import UUID

from levada.core.cluster.image import ClusterImage, TopicImage
from levada.core.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from levada.core.groups.consumer.assignors import NO_PARTITIONS, Partitions
from levada.core.groups.consumer.member import LEAVE_EPOCH, ConsumerMember, PartitionEpochs
from levada.core.groups.memory_limit import regex_bytes
from levada.core.groups.offsets import CommitRequest
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.consumer_group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    CurrentMemberAssignmentKey,
    CurrentMemberAssignmentValue,
    MemberMetadataKey,
    MemberMetadataValue,
    PartitionMetadataKey,
    PartitionMetadataValue,
    RegularExpressionKey,
    RegularExpressionValue,
    TargetAssignmentMemberKey,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataKey,
    TargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from levada.wire.internal.group_records import OffsetCommitValue

ConsumerKey = (
    ConsumerGroupMetadataKey
    | PartitionMetadataKey
    | MemberMetadataKey
    | TargetAssignmentMetadataKey
    | TargetAssignmentMemberKey
    | CurrentMemberAssignmentKey
    | RegularExpressionKey
)
ConsumerValue = (
    ConsumerGroupMetadataValue
    | PartitionMetadataValue
    | MemberMetadataValue
    | TargetAssignmentMetadataValue
    | TargetAssignmentMemberValue
    | CurrentMemberAssignmentValue
    | RegularExpressionValue
)
Topics = Mapping[str, TopicImage]

MEMBER_EPOCHS_FROM: Final = 9  # the version of OffsetCommit that supports member epochs


class GroupState(StrEnum):
    """The states of Kafka's ConsumerGroupState."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group, see `Group`."""

    kind: ClassVar[str] = "consumer"

    id: str
    epoch: int = 0
    metadata_hash: int = 0  # of the subscribed topics in this epoch
    target_epoch: int = 0  # the epoch of `targets`: never above `epoch`
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    regexes: dict[str, RegularExpressionValue] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id to member id
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)  # member id, also while it revokes
    has_old_metadata: bool = False  # a partition metadata record of an old broker, to be removed
    evaluated_topics: Topics | None = field(default=None, compare=False)  # at the last `refresh_topics`
    memory_bytes: int = field(default=0, compare=False)  # of all members and regular expressions

    def copy(self) -> "ConsumerGroup":
        return ConsumerGroup(
            self.id,
            self.epoch,
            self.metadata_hash,
            self.target_epoch,
            dict(self.members),
            dict(self.targets),
            dict(self.regexes),
            dict(self.static_members),
            {topic: dict(partitions) for topic, partitions in self.owners.items()},
            self.has_old_metadata,
            self.evaluated_topics,
            self.memory_bytes,
        )

    # Changes.

    def put(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Apply a record, or a tombstone (None). Cannot fail, in whatever order the records come."""
        match key, value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue(epoch, metadata_hash):
                self.epoch, self.metadata_hash = epoch, metadata_hash
            case PartitionMetadataKey(), _:
                self.has_old_metadata = value is not None
            case MemberMetadataKey(_, member_id), MemberMetadataValue():
                self._put_metadata(member_id, value)
            case MemberMetadataKey(_, member_id), None:
                self._remove_member(member_id)
            case TargetAssignmentMetadataKey(), TargetAssignmentMetadataValue(epoch, _):
                self.target_epoch = epoch
            case TargetAssignmentMetadataKey(), None:
                self.target_epoch = 0
            case TargetAssignmentMemberKey(_, member_id), TargetAssignmentMemberValue(topic_partitions):
                self.targets[member_id] = {
                    topic: frozenset(partitions) for topic, partitions in topic_partitions if partitions
                }
            case TargetAssignmentMemberKey(_, member_id), None:
                self.targets.pop(member_id, None)
            case CurrentMemberAssignmentKey(_, member_id), CurrentMemberAssignmentValue():
                member = self.members.get(member_id) or ConsumerMember(member_id)
                self._replace(member, member.with_current(value))
            case CurrentMemberAssignmentKey(_, member_id), None:
                if (former := self.members.get(member_id)) is not None:
                    self._replace(former, ConsumerMember(member_id, former.metadata, epoch=LEAVE_EPOCH))
            case RegularExpressionKey(_, regex), RegularExpressionValue():
                self.memory_bytes += regex_bytes(value) - regex_bytes(self.regexes.get(regex))
                self.regexes[regex] = value
            case RegularExpressionKey(_, regex), None:
                self.memory_bytes -= regex_bytes(self.regexes.pop(regex, None))

    def _put_metadata(self, member_id: str, metadata: MemberMetadataValue) -> None:
        former = self.members.get(member_id)
        if former is None:
            self._put_member(ConsumerMember(member_id, metadata))
        else:
            self._put_member(replace(former, metadata=metadata))
            self._forget_instance(former)
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id

    def _remove_member(self, member_id: str) -> None:
        former = self.members.pop(member_id, None)
        if former is not None:
            self.memory_bytes -= former.memory_bytes
            self._forget_instance(former)
            self._release(former)
        if not self.members:
            self.evaluated_topics = None  # an empty group does not keep old topics in memory

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.id:
            del self.static_members[member.instance_id]

    def _put_member(self, member: ConsumerMember) -> None:
        former = self.members.get(member.id)
        if former is None:
            self.memory_bytes += member.memory_bytes
        elif former.metadata is not member.metadata:
            self.memory_bytes += member.memory_bytes - former.memory_bytes
        self.members[member.id] = member

    def _replace(self, former: ConsumerMember, member: ConsumerMember) -> None:
        self._release(former)
        self._put_member(member)
        for owned in (member.assigned, member.pending_revocation):
            for topic, partitions in owned.items():
                self.owners.setdefault(topic, {}).update(dict.fromkeys(partitions, member.id))

    def _release(self, member: ConsumerMember) -> None:
        for owned in (member.assigned, member.pending_revocation):
            for topic, partitions in owned.items():
                owners = self.owners.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == member.id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic, None)

    # State.

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(member.is_at(self.target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_simple(self) -> bool:
        return False

    @property
    def has_pending_members(self) -> bool:
        return False

    def owner(self, topic: UUID, partition: int) -> str | None:
        """The member that owns a partition, also while it revokes it."""
        return self.owners.get(topic, {}).get(partition)

    def target(self, member_id: str) -> Partitions:
        """The target assignment of a member."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def member(self, member_id: str) -> ConsumerMember:
        """The member of that id; UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of {self.id!r}")
        return member

    def static_member(self, instance_id: str, member_id: str | None = None) -> ConsumerMember:
        """The static member of that instance id. UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if its member id differs."""
        current = self.static_members.get(instance_id)
        if current is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id!r}")
        if member_id is not None and member_id != current:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"instance id {instance_id!r} belongs to member {current!r}")
        return self.members[current]

    def find(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member of that id, and of that instance id if there is one."""
        return self.member(member_id) if instance_id is None else self.static_member(instance_id, member_id)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member subscribes to, by name and by regular expression."""
        names = frozenset(member.metadata.subscribed_topic_names)
        resolved = self.regexes.get(member.regex)
        return names if resolved is None else names.union(resolved.topics)

    def subscribed_topics(self) -> set[str]:
        """The topics that any member subscribes to."""
        names: set[str] = set()
        for member in self.members.values():
            names.update(member.metadata.subscribed_topic_names)
        for regex in self.used_regexes():
            if regex in self.regexes:
                names.update(self.regexes[regex].topics)
        return names

    def used_regexes(self) -> set[str]:
        """The regular expressions that members subscribe to."""
        return {member.regex for member in self.members.values() if member.regex}

    def subscribes_to(self, topic: str) -> bool:
        return any(topic in member.metadata.subscribed_topic_names for member in self.members.values()) or any(
            topic in self.regexes[regex].topics for regex in self.used_regexes() & self.regexes.keys()
        )

    def retained_since_ms(self, topic: str, value: OffsetCommitValue) -> int | None:
        return None if self.subscribes_to(topic) else value.commit_timestamp

    def assignor(self, default: str) -> str:
        """The assignor that most members request."""
        votes = Counter(
            member.metadata.server_assignor
            for member in self.members.values()
            if member.metadata.server_assignor is not None
        )
        return max(sorted(votes), key=votes.__getitem__) if votes else default

    # Offsets.

    def validate_offset_commit(self, request: CommitRequest, image: Callable[[], ClusterImage]) -> int | None:
        """A commit is allowed for members in their epoch, and for other clients while the group is empty.

        A member may commit with an older epoch the partitions that it has owned since then (KIP-1251).
        """
        epoch, transactional = request.generation, request.is_transactional
        if epoch < 0 and self.is_empty:
            return None
        if transactional and epoch == -1 and not request.member_id and request.instance_id is None:
            return None
        member = self.member(request.member_id)
        if not transactional and not member.is_classic and request.api_version < MEMBER_EPOCHS_FROM:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members of the consumer protocol commit in version 9 or later"
            )
        if member.is_classic or not 0 <= epoch < member.epoch:
            self._validate_epoch(member, epoch)
            return None
        topics = image().topics
        for (name, partition), _ in request.offsets:
            if name in topics:
                assigned = member.assignment_epoch(topics[name].id, partition)
                if assigned is None or assigned > epoch:
                    raise _stale_epoch(epoch, member)
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is not None or member_epoch >= 0:
            self._validate_epoch(self.member(member_id or ""), member_epoch)

    def validate_offset_delete(self) -> None:
        """Offsets of topics without a subscription may be deleted at any time."""

    def _validate_epoch(self, member: ConsumerMember, epoch: int) -> None:
        if epoch == member.epoch:
            return
        if member.is_classic:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"generation {epoch}, but the member is in {member.epoch}")
        raise _stale_epoch(epoch, member)

    # Removal.

    def tombstones(self) -> Iterator[tuple[ConsumerKey, None]]:
        """The tombstones of all records of the group, in Kafka's order."""
        for regex in self.regexes:
            yield RegularExpressionKey(self.id, regex), None
        for member_id in self.members:
            yield CurrentMemberAssignmentKey(self.id, member_id), None
        for member_id in self.targets:
            yield TargetAssignmentMemberKey(self.id, member_id), None
        yield TargetAssignmentMetadataKey(self.id), None
        for member_id in self.members:
            yield MemberMetadataKey(self.id, member_id), None
        if self.has_old_metadata:
            yield PartitionMetadataKey(self.id), None
        yield ConsumerGroupMetadataKey(self.id), None


def _stale_epoch(epoch: int, member: ConsumerMember) -> KafkaError:
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, f"member epoch {epoch}, but the member is in {member.epoch}")


def target_value(partitions: Partitions) -> TargetAssignmentMemberValue:
    """A target assignment as a record."""
    return TargetAssignmentMemberValue(
        tuple(TargetTopicPartitions(topic, tuple(sorted(found))) for topic, found in partitions.items())
    )


def without_epochs(owned: PartitionEpochs) -> dict[UUID, frozenset[int]]:
    """Partitions without their assignment epochs."""
    return {topic: frozenset(partitions) for topic, partitions in owned.items()}


def metadata_hash_of(names: Iterable[str], topics: Topics) -> int:
    """A hash that changes when a topic is created, deleted, recreated or extended; 0 without topics."""
    digest, found = blake2b(digest_size=8), False
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            found = True
            digest.update(f"{name}\0{topic.id.hex}{len(topic.partitions)}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0

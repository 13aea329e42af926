"""A group of the consumer protocol (KIP-848): the coordinator divides the partitions, members follow one by one.

Whatever changes who should have what raises the group's epoch. For that epoch a target is computed, and each member
walks from what it has to its target at its own pace (`levada.core.groups.consumer.member`), told with every heartbeat.

The state is the fold of the group's records: `put` is the only way to change it, live and in replay. Two things are
kept in memory only: at which topics the group has looked, and the deadlines, which the machine keeps.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import ClassVar, Final, NamedTuple
from uuid import UUID

from levada.core.cluster.image import TopicImage
from levada.core.groups.classic.group import CONSUMER_PROTOCOL
from levada.core.groups.consumer.assignors import NOTHING, Partitions
from levada.core.groups.consumer.member import LEFT_EPOCH, ConsumerMember, Owned
from levada.core.groups.memory_limit import regex_bytes
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

COMMIT_WITH_EPOCHS: Final = 9  # the version of OffsetCommit from which on members of this protocol may commit


class GroupState(StrEnum):
    """Where a group is, in Kafka's words."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Committer(NamedTuple):
    """Who commits offsets, and in which epoch it believes to be."""

    member_id: str
    instance_id: str | None
    epoch: int


class Reader(NamedTuple):
    """Who reads offsets; a client that is no member says neither."""

    member_id: str | None = None
    epoch: int = -1


ANYBODY: Final = Reader()


@dataclass(slots=True)
class ConsumerGroup:
    """One group."""

    kind: ClassVar[str] = "consumer"

    id: str
    epoch: int = 0
    metadata_hash: int = 0  # of the topics as they were in this epoch
    target_epoch: int = 0  # the epoch that the targets are for: never above `epoch`
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    regexes: dict[str, RegularExpressionValue] = field(default_factory=dict)
    instances: dict[str, str] = field(
        default_factory=dict
    )  # exactly the static members: instance id to member id
    owners: dict[UUID, dict[int, str]] = field(
        default_factory=dict
    )  # who has a partition or is giving it back
    has_old_metadata: bool = False  # a record of an old broker that is to be taken back
    seen: Topics | None = field(default=None, compare=False)  # the topics when they were last looked at
    memory_bytes: int = field(default=0, compare=False)  # of all members and patterns

    def copy(self) -> "ConsumerGroup":
        """The same, to be changed."""
        return ConsumerGroup(
            self.id,
            self.epoch,
            self.metadata_hash,
            self.target_epoch,
            dict(self.members),
            dict(self.targets),
            dict(self.regexes),
            dict(self.instances),
            {topic: dict(partitions) for topic, partitions in self.owners.items()},
            self.has_old_metadata,
            self.seen,
            self.memory_bytes,
        )

    # Changing.

    def put(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """Take a record in; without a value what the key had is gone. Cannot fail, in whatever order they come."""
        match key, value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue(epoch, metadata_hash):
                self.epoch, self.metadata_hash = epoch, metadata_hash
            case PartitionMetadataKey(), _:
                self.has_old_metadata = value is not None
            case MemberMetadataKey(_, member_id), MemberMetadataValue():
                self._put_member(member_id, value)
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
                    self._replace(former, ConsumerMember(member_id, former.metadata, epoch=LEFT_EPOCH))
            case RegularExpressionKey(_, regex), RegularExpressionValue():
                self.memory_bytes += regex_bytes(value) - regex_bytes(self.regexes.get(regex))
                self.regexes[regex] = value
            case RegularExpressionKey(_, regex), None:
                self.memory_bytes -= regex_bytes(self.regexes.pop(regex, None))

    def _put_member(self, member_id: str, metadata: MemberMetadataValue) -> None:
        former = self.members.get(member_id)
        if former is None:
            self._keep(ConsumerMember(member_id, metadata))
        else:
            changed = ConsumerMember(
                member_id,
                metadata,
                former.epoch,
                former.previous_epoch,
                former.state,
                former.assigned,
                former.revoking,
            )
            self._keep(changed)
            self._forget_instance(former)
        if metadata.instance_id is not None:
            self.instances[metadata.instance_id] = member_id

    def _remove_member(self, member_id: str) -> None:
        former = self.members.pop(member_id, None)
        if former is not None:
            self.memory_bytes -= former.memory_bytes
            self._forget_instance(former)
            self._release(former)
        if not self.members:
            self.seen = None  # nobody looks any more, and topics of long ago must not be kept

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.id:
            del self.instances[member.instance_id]

    def _keep(self, member: ConsumerMember) -> None:
        former = self.members.get(member.id)
        if former is None:
            self.memory_bytes += member.memory_bytes
        elif former.metadata is not member.metadata:
            self.memory_bytes += member.memory_bytes - former.memory_bytes
        self.members[member.id] = member

    def _replace(self, former: ConsumerMember, member: ConsumerMember) -> None:
        self._release(former)
        self._keep(member)
        for owned in (member.assigned, member.revoking):
            for topic, partitions in owned.items():
                self.owners.setdefault(topic, {}).update(dict.fromkeys(partitions, member.id))

    def _release(self, member: ConsumerMember) -> None:
        for owned in (member.assigned, member.revoking):
            for topic, partitions in owned.items():
                owners = self.owners.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == member.id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic, None)

    # What others may ask.

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL

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

    def owner(self, topic: UUID, partition: int) -> str | None:
        """Who has a partition, or is giving it back."""
        return self.owners.get(topic, {}).get(partition)

    def target(self, member_id: str) -> Partitions:
        """What a member shall have."""
        return self.targets.get(member_id, NOTHING)

    def member(self, member_id: str) -> ConsumerMember:
        """The member of that id; UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member of {self.id!r}")
        return member

    def static_member(self, instance_id: str, member_id: str | None = None) -> ConsumerMember:
        """The static member of that instance id; UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if its id is another."""
        current = self.instances.get(instance_id)
        if current is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id!r}")
        if member_id is not None and member_id != current:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID, f"instance id {instance_id!r} belongs to member {current!r}"
            )
        return self.members[current]

    def find(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member of that id, and of that instance id if one is given."""
        return self.member(member_id) if instance_id is None else self.static_member(instance_id, member_id)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names that a member subscribes to, by name and by pattern."""
        names = frozenset(member.metadata.subscribed_topic_names)
        resolved = self.regexes.get(member.regex)
        return names if resolved is None else names.union(resolved.topics)

    def subscribed_topics(self) -> set[str]:
        """All names that members subscribe to."""
        names: set[str] = set()
        for member in self.members.values():
            names.update(member.metadata.subscribed_topic_names)
        for regex in self.used_regexes():
            if regex in self.regexes:
                names.update(self.regexes[regex].topics)
        return names

    def used_regexes(self) -> set[str]:
        """The patterns that members subscribe to."""
        return {member.regex for member in self.members.values() if member.regex}

    def subscribes_to(self, topic: str) -> bool:
        """Whether members read a topic, so that its offsets may not be deleted."""
        return any(
            topic in member.metadata.subscribed_topic_names for member in self.members.values()
        ) or any(topic in self.regexes[regex].topics for regex in self.used_regexes() & self.regexes.keys())

    def kept_since(self, topic: str, value: OffsetCommitValue) -> int | None:
        """From when on the retention of an offset counts; None while it is in use."""
        return None if self.subscribes_to(topic) else value.commit_timestamp

    def assignor(self, default: str) -> str:
        """The assignor that most members ask for."""
        votes = Counter(
            member.metadata.server_assignor
            for member in self.members.values()
            if member.metadata.server_assignor is not None
        )
        return max(sorted(votes), key=votes.__getitem__) if votes else default

    # Offsets.

    def check_commit(
        self,
        committer: Committer,
        places: Iterable[tuple[UUID, int]],
        *,
        version: int,
        transactional: bool = False,
    ) -> None:
        """Whether offsets of these partitions may be committed: by a member in its epoch, or if there is none.

        A member that has moved on may still commit, by its former epoch, what it has had since then (KIP-1251).
        """
        if committer.epoch < 0 and self.is_empty:
            return
        if transactional and committer == Committer("", None, -1):
            return
        member = self.member(committer.member_id)
        if not transactional and not member.is_classic and version < COMMIT_WITH_EPOCHS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members of the consumer protocol commit in version 9 or later"
            )
        if member.is_classic or not 0 <= committer.epoch < member.epoch:
            self._check_epoch(member, committer.epoch)
            return
        for topic, partition in places:
            epoch = member.assignment_epoch(topic, partition)
            if epoch is None or epoch > committer.epoch:
                raise _stale(committer.epoch, member)

    def check_fetch(self, reader: Reader) -> None:
        """Whether a member may read offsets by its epoch."""
        if reader.member_id is not None or reader.epoch >= 0:
            self._check_epoch(self.member(reader.member_id or ""), reader.epoch)

    def _check_epoch(self, member: ConsumerMember, epoch: int) -> None:
        if epoch == member.epoch:
            return
        if member.is_classic:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION, f"generation {epoch}, but the member is in {member.epoch}"
            )
        raise _stale(epoch, member)

    # The end.

    def tombstones(self) -> Iterator[tuple[ConsumerKey, None]]:
        """What takes the whole group back, in the order in which Kafka does."""
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


def _stale(epoch: int, member: ConsumerMember) -> KafkaError:
    return KafkaError(
        ErrorCode.STALE_MEMBER_EPOCH, f"member epoch {epoch}, but the member is in {member.epoch}"
    )


def target_value(partitions: Partitions) -> TargetAssignmentMemberValue:
    """A target as a record."""
    return TargetAssignmentMemberValue(
        tuple(TargetTopicPartitions(topic, tuple(sorted(found))) for topic, found in partitions.items())
    )


def plain(owned: Owned) -> dict[UUID, frozenset[int]]:
    """Partitions without the epochs in which they were given."""
    return {topic: frozenset(partitions) for topic, partitions in owned.items()}


def hash_topics(names: Iterable[str], topics: Topics) -> int:
    """A number that changes when one of these topics appears, goes, is made anew or grows; 0 if there is none."""
    digest, found = blake2b(digest_size=8), False
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            found = True
            digest.update(f"{name}\0{topic.id.hex}{len(topic.partitions)}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0

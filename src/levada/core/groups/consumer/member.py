"""A member of a consumer group, and the reconciliation of its assignment with its target assignment.

A partition is assigned to a member only after its former owner has revoked it: that member keeps its epoch until it
confirms the revocation. So a partition has at most one owner at any time. The states are Kafka's:

    STABLE                 the member has its target assignment
    UNREVOKED_PARTITIONS   the member has to revoke partitions and has not confirmed it
    UNRELEASED_PARTITIONS  the member waits for partitions that other members have not revoked
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.memory_limit import consumer_member_bytes
from levada.wire.internal.consumer_group_records import (
    CurrentMemberAssignmentValue,
    CurrentTopicPartitions,
    MemberMetadataValue,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2  # a static member that leaves temporarily

# By topic and partition: the member epoch in which it was assigned; no empty topics.
PartitionEpochs = Mapping[UUID, Mapping[int, int]]

NO_METADATA: Final = MemberMetadataValue(None, None, "", "", (), "", -1, None)


class MemberState(IntEnum):
    """The reconciliation state of a member."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127  # written by a newer coordinator


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group."""

    id: str
    metadata: MemberMetadataValue = NO_METADATA
    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    pending_revocation: PartitionEpochs = field(default_factory=dict)  # revocation not confirmed yet

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.metadata.classic_member_metadata is not None

    @property
    def memory_bytes(self) -> int:
        return consumer_member_bytes(self.id, self.metadata)

    @property
    def regex(self) -> str:
        """The regular expression that the member subscribes to, or "" for none."""
        return self.metadata.subscribed_topic_regex or ""

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    def is_at(self, target_epoch: int) -> bool:
        """Whether the member has its target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic: UUID, partition: int) -> int | None:
        """The member epoch in which a partition was assigned that the member still has."""
        for owned in (self.assigned, self.pending_revocation):
            if (epoch := owned.get(topic, {}).get(partition)) is not None:
                return epoch
        return None

    def current(self) -> CurrentMemberAssignmentValue:
        """The current assignment as a record."""
        return CurrentMemberAssignmentValue(
            self.epoch,
            self.previous_epoch,
            self.state,
            _to_record(self.assigned),
            _to_record(self.pending_revocation),
        )

    def with_current(self, value: CurrentMemberAssignmentValue) -> "ConsumerMember":
        """This member with the current assignment of a record."""
        known = value.state in MemberState.__members__.values()
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_from_record(value.assigned_partitions, value.member_epoch),
            pending_revocation=_from_record(value.partitions_pending_revocation, value.member_epoch),
        )


def _to_record(owned: PartitionEpochs) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(topic, tuple(partitions), tuple(partitions.values()))
        for topic, partitions in owned.items()
    )


def _from_record(written: tuple[CurrentTopicPartitions, ...], epoch: int) -> PartitionEpochs:
    """Old brokers did not write assignment epochs; the member epoch is used instead."""
    return {
        topic: dict(zip(partitions, epochs or (epoch,) * len(partitions), strict=False))
        for topic, partitions, epochs in written
        if partitions
    }


class Target(NamedTuple):
    """The target assignment of a member in an epoch of the group."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: ConsumerMember,
    target: Target,
    subscribed: Collection[UUID],
    owner: Callable[[UUID, int], str | None],
    owned: Partitions | None,
) -> ConsumerMember:
    """The next step of a member towards its target assignment; the same member if there is none.

    `owned` are the partitions that the member reports, None if it reports none; `owner` is the current owner of a
    partition, also while it revokes the partition.
    """
    if member.is_at(target.epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _may_own(member.pending_revocation, owned):
        return member
    kept, revoked, added, waits = _difference(member, target, subscribed, owner)
    if revoked and _may_own(revoked, owned):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,  # reports of an earlier epoch do not cover these partitions
            assigned=kept,
            pending_revocation=revoked,
        )
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=target.epoch,
        previous_epoch=member.epoch if member.epoch != target.epoch else member.previous_epoch,
        assigned=kept | {topic: {**kept.get(topic, {}), **partitions} for topic, partitions in added.items()},
        pending_revocation={},
    )


class _Difference(NamedTuple):
    """The difference to a target: partitions to keep, to revoke, to add now; `waits` if some are not released."""

    kept: dict[UUID, dict[int, int]]
    revoked: dict[UUID, dict[int, int]]
    added: dict[UUID, dict[int, int]]
    waits: bool


def _difference(
    member: ConsumerMember,
    target: Target,
    subscribed: Collection[UUID],
    owner: Callable[[UUID, int], str | None],
) -> _Difference:
    kept: dict[UUID, dict[int, int]] = {}
    revoked: dict[UUID, dict[int, int]] = {}
    added: dict[UUID, dict[int, int]] = {}
    waits = False
    for topic in target.partitions.keys() | member.assigned.keys():
        wanted = target.partitions.get(topic, frozenset()) if topic in subscribed else frozenset()
        has = member.assigned.get(topic, {})
        _put(kept, topic, {one: epoch for one, epoch in has.items() if one in wanted})
        _put(revoked, topic, {one: epoch for one, epoch in has.items() if one not in wanted})
        missing = [one for one in sorted(wanted) if one not in has]
        free = [one for one in missing if owner(topic, one) in (None, member.id)]
        waits |= len(free) < len(missing)
        _put(added, topic, dict.fromkeys(free, target.epoch))
    return _Difference(kept, revoked, added, waits)


def _put(owned: dict[UUID, dict[int, int]], topic: UUID, partitions: dict[int, int]) -> None:
    if partitions:
        owned[topic] = partitions


def _may_own(revoked: PartitionEpochs, owned: Partitions | None) -> bool:
    """Whether a member may still consume these partitions: until it reports owned partitions without them."""
    return owned is None or any(
        not owned[topic].isdisjoint(partitions) for topic, partitions in revoked.items() if topic in owned
    )

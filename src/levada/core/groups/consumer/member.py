"""A member of a consumer group, and how it moves from what it has to what it shall have.

A partition changes hands only when it is free: who shall lose it is told so first, and keeps its epoch until it says
that it has stopped reading. So at any time a partition belongs to one member at most. The states are Kafka's:

    STABLE                 it has what it shall have
    UNREVOKED_PARTITIONS   it was asked to give partitions back and has not said that it did
    UNRELEASED_PARTITIONS  it shall get partitions that others have not given back
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.memory_limit import member_memory_bytes
from levada.wire.internal.consumer_group_records import (
    CurrentMemberAssignmentValue,
    CurrentTopicPartitions,
    MemberMetadataValue,
)

JOINING_EPOCH: Final = 0
LEFT_EPOCH: Final = -1
AWAY_EPOCH: Final = -2  # of a static member that has left and may come back

Owned = Mapping[
    UUID, Mapping[int, int]
]  # by topic and partition: the epoch in which it was given; no empty topics

NO_METADATA: Final = MemberMetadataValue(None, None, "", "", (), "", -1, None)


class MemberState(IntEnum):
    """Where a member is on its way to its target."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127  # of a newer coordinator


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member as the group knows it."""

    id: str
    metadata: MemberMetadataValue = NO_METADATA
    epoch: int = JOINING_EPOCH
    previous_epoch: int = LEFT_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)  # to be given back, and not yet

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol to this group."""
        return self.metadata.classic_member_metadata is not None

    @property
    def memory_bytes(self) -> int:
        """What is held of what it says."""
        return member_memory_bytes(self.id, self.metadata)

    @property
    def regex(self) -> str:
        """The pattern it subscribes to, or "" for none."""
        return self.metadata.subscribed_topic_regex or ""

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    def is_at(self, target_epoch: int) -> bool:
        """Whether it has what that target gave it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic: UUID, partition: int) -> int | None:
        """In which epoch it was given a partition that it still has."""
        for owned in (self.assigned, self.revoking):
            if (epoch := owned.get(topic, {}).get(partition)) is not None:
                return epoch
        return None

    def current(self) -> CurrentMemberAssignmentValue:
        """What it has, as a record."""
        return CurrentMemberAssignmentValue(
            self.epoch,
            self.previous_epoch,
            self.state,
            _written(self.assigned),
            _written(self.revoking),
        )

    def with_current(self, value: CurrentMemberAssignmentValue) -> "ConsumerMember":
        """This member with what a record says that it has."""
        known = value.state in MemberState.__members__.values()
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_read(value.assigned_partitions, value.member_epoch),
            revoking=_read(value.partitions_pending_revocation, value.member_epoch),
        )


def _written(owned: Owned) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(topic, tuple(partitions), tuple(partitions.values()))
        for topic, partitions in owned.items()
    )


def _read(written: tuple[CurrentTopicPartitions, ...], epoch: int) -> Owned:
    """Old brokers did not write the epochs: the member's own stands for them."""
    return {
        topic: dict(zip(partitions, epochs or (epoch,) * len(partitions), strict=False))
        for topic, partitions, epochs in written
        if partitions
    }


class Target(NamedTuple):
    """What a member shall have by an epoch of the group."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: ConsumerMember,
    target: Target,
    subscribed: Collection[UUID],
    owner: Callable[[UUID, int], str | None],
    owned: Partitions | None,
) -> ConsumerMember:
    """The next step of a member towards its target; the same member if it can take none.

    `owned` is what it says it reads, None if it does not say; `owner` tells who has a partition or is giving it back.
    """
    if member.is_at(target.epoch):
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _still_reads(member.revoking, owned):
        return member
    kept, lost, gained, waits = _moves(member, target, subscribed, owner)
    if lost and _still_reads(lost, owned):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,  # what was said in an earlier epoch tells nothing of these partitions
            assigned=kept,
            revoking=lost,
        )
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=target.epoch,
        previous_epoch=member.epoch if member.epoch != target.epoch else member.previous_epoch,
        assigned=kept
        | {topic: {**kept.get(topic, {}), **partitions} for topic, partitions in gained.items()},
        revoking={},
    )


class _Moves(NamedTuple):
    """What a target changes: what a member keeps, loses, may have now; and whether others have more of it."""

    kept: dict[UUID, dict[int, int]]
    lost: dict[UUID, dict[int, int]]
    gained: dict[UUID, dict[int, int]]
    waits: bool


def _moves(
    member: ConsumerMember,
    target: Target,
    subscribed: Collection[UUID],
    owner: Callable[[UUID, int], str | None],
) -> _Moves:
    kept: dict[UUID, dict[int, int]] = {}
    lost: dict[UUID, dict[int, int]] = {}
    gained: dict[UUID, dict[int, int]] = {}
    waits = False
    for topic in target.partitions.keys() | member.assigned.keys():
        wanted = target.partitions.get(topic, frozenset()) if topic in subscribed else frozenset()
        has = member.assigned.get(topic, {})
        _put(kept, topic, {one: epoch for one, epoch in has.items() if one in wanted})
        _put(lost, topic, {one: epoch for one, epoch in has.items() if one not in wanted})
        missing = [one for one in sorted(wanted) if one not in has]
        free = [one for one in missing if owner(topic, one) in (None, member.id)]
        waits |= len(free) < len(missing)
        _put(gained, topic, dict.fromkeys(free, target.epoch))
    return _Moves(kept, lost, gained, waits)


def _put(owned: dict[UUID, dict[int, int]], topic: UUID, partitions: dict[int, int]) -> None:
    if partitions:
        owned[topic] = partitions


def _still_reads(lost: Owned, owned: Partitions | None) -> bool:
    """Whether a member may still read what it shall give back: it does unless it says what it reads, without these."""
    return owned is None or any(
        not owned[topic].isdisjoint(partitions) for topic, partitions in lost.items() if topic in owned
    )

"""A group changes its protocol while its members live on: from classic to consumer, and back.

The first member of the consumer protocol that joins a classic group turns it into a consumer group; those that speak
the classic protocol stay as they are and are told to join again, one after the other. When the last member of the
consumer protocol is gone, the group goes back. So an application is upgraded, or taken back, one process at a time.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from levada.core.groups.classic.draft import Draft, GroupLimits, Timer, TimerKind
from levada.core.groups.classic.group import CONSUMER_PROTOCOL, ClassicGroup, Member, State
from levada.core.groups.classic.requests import JoinRequest
from levada.core.groups.classic.subscription import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.consumer.draft import ConsumerDraft
from levada.core.groups.consumer.group import target_value
from levada.core.groups.consumer.member import ConsumerMember
from levada.core.groups.events import GroupChanged, GroupRemoved
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    MemberMetadataValue,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadataKey,
    TargetAssignmentMetadataValue,
)

# What these keep in assignments is what the members say themselves when they join.
KNOWN_ASSIGNORS: Final = frozenset(("range", "roundrobin", "sticky", "cooperative-sticky"))


def upgrade(draft: ConsumerDraft, classic: ClassicGroup) -> None:
    """Make a classic group with members a consumer group, in the draft of an empty one. GROUP_ID_NOT_FOUND.

    Each member has what it may be reading. Whoever waits for a generation is told to join again.
    """
    if not draft.limits.upgrade:
        raise _cannot(classic, "group.consumer.migration.policy does not allow it")
    if classic.protocol_type != CONSUMER_PROTOCOL:
        raise _cannot(classic, "its members are no consumers")
    if len(classic.members) > draft.limits.max_size:
        raise _cannot(classic, f"it has more than {draft.limits.max_size} members")
    _end_classic(draft, classic)
    members = {member.id: _upgraded(draft, classic, member) for member in classic.members.values()}
    held = _held(members)
    group_id, epoch = classic.id, classic.generation
    for member_id, member in members.items():
        draft.put_metadata(member_id, member.metadata)
    draft.put(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch))
    for member_id, partitions in held.items():
        draft.put(TargetAssignmentMemberKey(group_id, member_id), target_value(partitions))
    draft.put(
        TargetAssignmentMetadataKey(group_id),
        TargetAssignmentMetadataValue(epoch, draft.now_ms),
    )
    for member_id, partitions in held.items():
        assigned = {topic: dict.fromkeys(sorted(found), epoch) for topic, found in partitions.items()}
        metadata = members[member_id].metadata
        draft.put_current(ConsumerMember(member_id, metadata, epoch, epoch, assigned=assigned))
        draft.wait(TimerKind.MEMBER, member_id, classic.members[member_id].session_timeout_ms)


class _Upgraded(NamedTuple):
    """A member of the classic protocol: what it says of itself, was last assigned, and said it had when it joined."""

    metadata: MemberMetadataValue
    assigned: Partitions
    said: Partitions


def _held(members: Mapping[str, _Upgraded]) -> dict[str, dict[UUID, frozenset[int]]]:
    """What each may be reading: what it was assigned, and what it said it had where nobody else was assigned that.

    A cooperative member reads on while the group rebalances and no assignment is known. A partition has one owner.
    """
    owners: dict[tuple[UUID, int], str] = {}
    claims = [(member_id, member.assigned) for member_id, member in members.items()]
    claims += [(member_id, member.said) for member_id, member in members.items()]
    for member_id, claimed in claims:
        for topic, partitions in claimed.items():
            for partition in partitions:
                owners.setdefault((topic, partition), member_id)
    held: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for (topic, partition), member_id in owners.items():
        held[member_id][topic] = held[member_id].get(topic, frozenset()) | {partition}
    return held


def _cannot(classic: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"the classic group {classic.id!r} cannot become a consumer group: {why}",
    )


def _end_classic(draft: ConsumerDraft, classic: ClassicGroup) -> None:
    error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group changes to the consumer protocol")
    draft.responses += [(handle, error) for handle in (*classic.joins.values(), *classic.syncs.values())]
    for kind in (TimerKind.JOIN, TimerKind.SYNC):
        draft.timers[Timer(classic.id, kind)] = None
    for member_id in classic.pending:
        draft.wait(TimerKind.MEMBER, member_id, None)
    draft.events.append(GroupRemoved(classic.id))


def _upgraded(draft: ConsumerDraft, classic: ClassicGroup, member: Member) -> _Upgraded:
    subscription = read_subscription(member.metadata(classic.protocol or member.protocols[0][0]))
    assignment = read_assignment(member.assignment)
    if subscription is None or assignment is None:
        raise _cannot(classic, "what its members say cannot be read")
    if assignment.user_data and classic.protocol not in KNOWN_ASSIGNORS:
        raise _cannot(classic, "its assignor keeps data of its own, which would be lost")
    metadata = classic_metadata(member, subscription)
    return _Upgraded(metadata, by_id(draft, assignment.partitions), by_id(draft, subscription.owned))


def classic_metadata(member: Member | JoinRequest, subscription: Subscription) -> MemberMetadataValue:
    """What is kept of a member of the classic protocol, one that is there or joins."""
    protocols = tuple(ClassicProtocol(*one) for one in member.protocols)
    return MemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex="",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic_member_metadata=ClassicMemberMetadata(member.session_timeout_ms, protocols),
    )


def by_id(draft: ConsumerDraft, partitions: dict[str, frozenset[int]]) -> dict[UUID, frozenset[int]]:
    """Partitions by the ids of their topics; topics that are gone are left out."""
    return {draft.topics[name].id: found for name, found in partitions.items() if name in draft.topics}


def assignment_bytes(draft: ConsumerDraft, member: ConsumerMember, partitions: Partitions) -> bytes:
    """Partitions as a member of the classic protocol is told of them, in the version that it speaks."""
    classic = member.metadata.classic_member_metadata
    subscription = read_subscription(classic.supported_protocols[0].metadata) if classic is not None else None
    names = draft.image.topic_names
    return write_assignment(
        0 if subscription is None else subscription.version,
        {names[topic]: found for topic, found in partitions.items() if topic in names},
    )


# Back.


def may_downgrade(draft: ConsumerDraft, leaving: Collection[str] = ()) -> bool:
    """Whether only members of the classic protocol are left when these are gone, and the group may go back."""
    left = [member for member in draft.group.members.values() if member.id not in leaving]
    return (
        draft.limits.downgrade
        and 0 < len(left) <= draft.limits.classic_max_size
        and all(member.is_classic for member in left)
    )


def downgrade(
    limits: GroupLimits, draft: ConsumerDraft, leaving: Collection[str] = (), *, rebalance: bool = True
) -> None:
    """Make a consumer group whose members speak the classic protocol a classic group.

    Its members have what they were to have; unless all of them were told so they must join again.
    """
    group = draft.group
    members = {
        member.id: _downgraded(draft, member) for member in group.members.values() if member.id not in leaving
    }
    classic = ClassicGroup(
        group.id,
        State.STABLE,
        draft.now_ms,
        group.epoch,
        CONSUMER_PROTOCOL,
        leader=None
        if rebalance
        else next(iter(members)),  # a group without a leader rebalances when it is loaded
        members=members,
        instances={
            member.instance_id: member.id for member in members.values() if member.instance_id is not None
        },
    )
    classic.protocol = classic.select_protocol()
    classic.topics = classic.subscribed(classic.protocol)
    classic.memory_bytes = sum(member.memory_bytes for member in members.values())
    for member_id in list(group.members):
        draft.forget(member_id)
    for key, value in list(group.tombstones()):
        draft.put(key, value)
    turned = Draft(classic, limits, draft.now_ms)
    for member in members.values():
        turned.stay(member)
    if rebalance:
        turned.prepare()
    draft.events.append(GroupChanged(turned.group, saved=True))
    draft.timers |= turned.timers
    draft.responses += turned.responses


def _downgraded(draft: ConsumerDraft, member: ConsumerMember) -> Member:
    metadata, classic = member.metadata, member.metadata.classic_member_metadata
    assert classic is not None
    return Member(
        member.id,
        metadata.instance_id,
        metadata.client_id,
        metadata.client_host,
        classic.session_timeout_ms,
        metadata.rebalance_timeout_ms,
        tuple((name, blob) for name, blob in classic.supported_protocols),
        assignment_bytes(draft, member, draft.group.target(member.id)),
    )

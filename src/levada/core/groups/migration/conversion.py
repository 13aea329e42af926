"""Online migration of a group between the classic and the consumer protocol (KIP-848).

The first consumer protocol member that joins a classic group upgrades it to a consumer group; its classic members stay
and have to rejoin. When the last consumer protocol member leaves, the group is downgraded. So an application is
upgraded, or rolled back, one process at a time.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from levada.core.groups.classic.draft import Draft
from levada.core.groups.classic.group import ClassicGroup, Member, State
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.subscription import (
    CONSUMER_PROTOCOL_TYPE,
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
from levada.core.groups.group import GroupLimits, Timer, TimerKind
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

# Assignors whose user data in assignments can be dropped: members send the same in their subscriptions.
KNOWN_ASSIGNORS: Final = frozenset(("range", "roundrobin", "sticky", "cooperative-sticky"))


def upgrade(draft: ConsumerDraft, classic: ClassicGroup) -> None:
    """Convert a classic group with members, into the draft of an empty consumer group. GROUP_ID_NOT_FOUND.

    Each member keeps the partitions that it may be consuming. Pending JoinGroups and SyncGroups fail.
    """
    if not draft.limits.upgrade:
        raise _cannot(classic, "group.consumer.migration.policy does not allow it")
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _cannot(classic, "its members are not consumers")
    if len(classic.members) > draft.limits.max_size:
        raise _cannot(classic, f"it has more than {draft.limits.max_size} members")
    _end_classic(draft, classic)
    members = {member.id: _upgraded(draft, classic, member) for member in classic.members.values()}
    owned = _owned(members)
    group_id, epoch = classic.id, classic.generation
    for member_id, member in members.items():
        draft.put_metadata(member_id, member.metadata)
    draft.put(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch))
    for member_id, partitions in owned.items():
        draft.put(TargetAssignmentMemberKey(group_id, member_id), target_value(partitions))
    draft.put(
        TargetAssignmentMetadataKey(group_id),
        TargetAssignmentMetadataValue(epoch, draft.now_ms),
    )
    for member_id, partitions in owned.items():
        assigned = {topic: dict.fromkeys(sorted(found), epoch) for topic, found in partitions.items()}
        metadata = members[member_id].metadata
        draft.put_current(ConsumerMember(member_id, metadata, epoch, epoch, assigned=assigned))
        draft.schedule(TimerKind.SESSION, member_id, classic.members[member_id].session_timeout_ms)


class _Upgraded(NamedTuple):
    """A classic member: its metadata, its last assignment, and the owned partitions of its subscription."""

    metadata: MemberMetadataValue
    assigned: Partitions
    owned: Partitions


def _owned(members: Mapping[str, _Upgraded]) -> dict[str, dict[UUID, frozenset[int]]]:
    """The partitions that each member may be consuming; a partition has one owner.

    These are its assigned partitions, and the owned ones of its subscription that no other member was assigned:
    a cooperative member keeps consuming while the group rebalances and has no assignment.
    """
    owners: dict[tuple[UUID, int], str] = {}
    claims = [(member_id, member.assigned) for member_id, member in members.items()]
    claims += [(member_id, member.owned) for member_id, member in members.items()]
    for member_id, claimed in claims:
        for topic, partitions in claimed.items():
            for partition in partitions:
                owners.setdefault((topic, partition), member_id)
    owned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for (topic, partition), member_id in owners.items():
        owned[member_id][topic] = owned[member_id].get(topic, frozenset()) | {partition}
    return owned


def _cannot(classic: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"the classic group {classic.id!r} cannot become a consumer group: {why}",
    )


def _end_classic(draft: ConsumerDraft, classic: ClassicGroup) -> None:
    error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group was upgraded to the consumer protocol")
    draft.responses += [
        (handle, error) for handle in (*classic.pending_joins.values(), *classic.pending_syncs.values())
    ]
    for kind in (TimerKind.JOIN, TimerKind.SYNC):
        draft.timers[Timer(classic.id, kind)] = None
    for member_id in classic.pending_members:
        draft.schedule(TimerKind.SESSION, member_id, None)
    draft.events.append(GroupRemoved(classic.id))


def _upgraded(draft: ConsumerDraft, classic: ClassicGroup, member: Member) -> _Upgraded:
    subscription = read_subscription(member.metadata(classic.protocol or member.protocols[0][0]))
    assignment = read_assignment(member.assignment)
    if subscription is None or assignment is None:
        raise _cannot(classic, "the metadata of its members cannot be decoded")
    if assignment.user_data and classic.protocol not in KNOWN_ASSIGNORS:
        raise _cannot(classic, "its assignor has user data in assignments, which would be lost")
    metadata = classic_metadata(member, subscription)
    return _Upgraded(metadata, by_id(draft, assignment.partitions), by_id(draft, subscription.owned))


def classic_metadata(member: Member | JoinRequest, subscription: Subscription) -> MemberMetadataValue:
    """The consumer group metadata of a classic member, or of its JoinGroup."""
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
    """Partitions by topic id, without deleted topics."""
    return {draft.topics[name].id: found for name, found in partitions.items() if name in draft.topics}


def assignment_bytes(draft: ConsumerDraft, member: ConsumerMember, partitions: Partitions) -> bytes:
    """Encode the assignment of a classic member, in the version of its subscription."""
    classic = member.metadata.classic_member_metadata
    subscription = read_subscription(classic.supported_protocols[0].metadata) if classic is not None else None
    names = draft.image.topic_names
    return write_assignment(
        0 if subscription is None else subscription.version,
        {names[topic]: found for topic, found in partitions.items() if topic in names},
    )


# Downgrade.


def may_downgrade(draft: ConsumerDraft, leaving: Collection[str] = ()) -> bool:
    """Whether the group may be downgraded: without the leaving members only classic ones are left."""
    left = [member for member in draft.group.members.values() if member.id not in leaving]
    return (
        draft.limits.downgrade
        and 0 < len(left) <= draft.limits.classic_max_size
        and all(member.is_classic for member in left)
    )


def downgrade(
    limits: GroupLimits, draft: ConsumerDraft, leaving: Collection[str] = (), *, rebalance: bool = True
) -> None:
    """Convert a consumer group of classic members into a classic group.

    Members keep their target assignments; with `rebalance` they must rejoin, since they may not know them yet.
    """
    group = draft.group
    members = {member.id: _downgraded(draft, member) for member in group.members.values() if member.id not in leaving}
    classic = ClassicGroup(
        group.id,
        State.STABLE,
        draft.now_ms,
        group.epoch,
        CONSUMER_PROTOCOL_TYPE,
        leader=None if rebalance else next(iter(members)),  # without a leader, a loaded group rebalances
        members=members,
        static_members={member.instance_id: member.id for member in members.values() if member.instance_id is not None},
    )
    classic.protocol = classic.select_protocol()
    classic.topics = classic.compute_topics(classic.protocol)
    classic.memory_bytes = sum(member.memory_bytes for member in members.values())
    for member_id in list(group.members):
        draft.cancel_timers(member_id)
    for key, value in list(group.tombstones()):
        draft.put(key, value)
    classic_draft = Draft(classic, limits, draft.now_ms)
    for member in members.values():
        classic_draft.renew_session(member)
    if rebalance:
        classic_draft.prepare_rebalance()
    draft.events.append(GroupChanged(classic_draft.group, journaled=True))
    draft.timers |= classic_draft.timers
    draft.responses += classic_draft.responses


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

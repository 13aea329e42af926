"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup (KIP-848).

These members have no leader and no common generation: a member's generation is its member epoch, and SyncGroup returns
the assignment that the coordinator computed. A heartbeat tells a member to rejoin when the group has a new epoch, when
it has to revoke partitions, or when partitions that it waits for were released.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levada.core.groups.classic import join as classic_join
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import UNKNOWN_MEMBER
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import LeavingMember, SyncRequest
from levada.core.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, Subscription, read_subscription
from levada.core.groups.consumer.draft import ConsumerDraft
from levada.core.groups.consumer.group import ConsumerGroup, GroupState, without_epochs
from levada.core.groups.consumer.member import ConsumerMember, MemberState
from levada.core.groups.consumer.requests import remove_members, subscribe, tombstones
from levada.core.groups.group import TimerKind
from levada.core.groups.memory_limit import check_memory
from levada.core.groups.migration.conversion import (
    assignment_bytes,
    by_id,
    classic_metadata,
    downgrade,
    may_downgrade,
)
from levada.core.machine import Outcome, ResponseHandle
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.consumer_group_records import ClassicMemberMetadata

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine


def join(
    machine: "GroupsMachine", group: ConsumerGroup, request: JoinRequest, now_ms: int, handle: ResponseHandle
) -> Outcome:
    """JoinGroup: the response has the member epoch and is sent at once. An empty group becomes a classic one."""
    if not group.members:
        outcome = classic_join.join(machine, classic_join.new_group(request), request, now_ms, handle)
        return Outcome([*tombstones(group), *outcome.events], outcome.responses)
    subscription = _validate_join(machine, group, request)
    is_new = request.member_id == UNKNOWN_MEMBER
    if is_new and request.require_member_id and request.instance_id is None:
        return Outcome(responses=[(handle, JoinResult.member_id_required(request.new_member_id))])
    draft = machine.consumer_draft(group, now_ms)
    member_id = request.new_member_id if is_new else request.member_id
    replaced = None
    former = draft.group.members.get(member_id) or ConsumerMember(member_id)
    if request.instance_id is not None:
        if is_new and request.instance_id in group.static_members:
            replaced = group.static_member(request.instance_id)
            former = draft.replace_static(replaced, member_id)
        elif not is_new:
            former = group.static_member(request.instance_id, member_id)
    topics_changed = draft.refresh_topics()
    if subscribe(draft, member_id, former, classic_metadata(request, subscription)) or topics_changed:
        draft.bump_epoch()
    draft.update_target_assignment()
    check_memory(machine, draft.group, member_id, request.instance_id)
    member = draft.reconcile(member_id, by_id(draft, subscription.owned))
    draft.responses.append((handle, _joined(member)))
    if replaced is not None and not replaced.is_classic and may_downgrade(draft):
        downgrade(machine.limits, draft, rebalance=draft.group.state is not GroupState.STABLE)
    else:
        draft.schedule(TimerKind.MEMBER_JOIN, member_id, None)
        draft.schedule(TimerKind.SESSION, member_id, request.session_timeout_ms)
        draft.schedule(TimerKind.MEMBER_SYNC, member_id, request.rebalance_timeout_ms)
    return draft.outcome()


def _validate_join(machine: "GroupsMachine", group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """The subscription of a JoinGroup. GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID."""
    limit = machine.consumer_limits.max_size
    if len(group.members) >= limit and request.member_id not in group.members:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.id!r} has {limit} members")
    names = {name for name, _ in request.protocols}
    others = [
        {name for name, _ in member.metadata.classic_member_metadata.supported_protocols}
        for member in group.members.values()
        if member.id != request.member_id and member.metadata.classic_member_metadata is not None
    ]
    common = names.intersection(*others)
    subscription = read_subscription(request.protocols[0][1]) if request.protocols else None
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common or subscription is None:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member has no protocol in common with the group")
    is_known = request.member_id in (UNKNOWN_MEMBER, *group.members)
    if subscription.owned and request.instance_id is None and not is_known:
        # The member was removed without noticing; its partitions may have another owner by now.
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member any more")
    return subscription


def _joined(member: ConsumerMember) -> JoinResult:
    return JoinResult(member.epoch, CONSUMER_PROTOCOL_TYPE, _protocol(member), "", member.id)


def _classic(member: ConsumerMember) -> ClassicMemberMetadata:
    classic = member.metadata.classic_member_metadata
    if classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member.id!r} does not use the classic protocol")
    return classic


def _protocol(member: ConsumerMember) -> str:
    return _classic(member).supported_protocols[0].name


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """A classic member in its epoch. ILLEGAL_GENERATION."""
    member = group.find(member_id, instance_id)
    _classic(member)
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"generation {generation}, but the member is in {member.epoch}")
    return member


def sync(
    machine: "GroupsMachine", group: ConsumerGroup, request: SyncRequest, now_ms: int, handle: ResponseHandle
) -> Outcome:
    """SyncGroup: the response has the current assignment."""
    member = _member(group, request.member_id, request.instance_id, request.generation)
    if (request.protocol_type or CONSUMER_PROTOCOL_TYPE) != CONSUMER_PROTOCOL_TYPE or (
        request.protocol or _protocol(member)
    ) != _protocol(member):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the member's protocol is {CONSUMER_PROTOCOL_TYPE}/{_protocol(member)}",
        )
    draft = machine.consumer_draft(group, now_ms)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _request_rejoin(draft, machine, member, handle)
        return draft.outcome()
    draft.schedule(TimerKind.MEMBER_SYNC, member.id, None)
    draft.schedule(TimerKind.SESSION, member.id, _classic(member).session_timeout_ms)
    assigned = assignment_bytes(draft, member, without_epochs(member.assigned))
    draft.responses.append((handle, SyncResult(CONSUMER_PROTOCOL_TYPE, _protocol(member), assigned)))
    return draft.outcome()


def heartbeat(
    machine: "GroupsMachine",
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    now_ms: int,
    handle: ResponseHandle,
) -> Outcome:
    """Heartbeat: renew the session; REBALANCE_IN_PROGRESS tells the member to rejoin."""
    member = _member(group, member_id, instance_id, generation)
    draft = machine.consumer_draft(group, now_ms)
    draft.schedule(TimerKind.SESSION, member.id, _classic(member).session_timeout_ms)
    if _should_rejoin(group, member):
        _request_rejoin(draft, machine, member, handle)
    else:
        draft.responses.append((handle, None))
    return draft.outcome()


def _should_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_release(group, member)


def _waits_for_release(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether other members own partitions of this member's target."""
    return any(
        group.owner(topic, partition) not in (None, member.id)
        for topic, partitions in group.target(member.id).items()
        for partition in partitions
    )


def _request_rejoin(
    draft: ConsumerDraft, machine: "GroupsMachine", member: ConsumerMember, handle: ResponseHandle
) -> None:
    """Request a member to rejoin, within its rebalance timeout from the first time on."""
    timer = draft.timer(TimerKind.MEMBER_JOIN, member.id)
    if machine.deadlines.get(timer) is None:
        draft.schedule(TimerKind.MEMBER_JOIN, member.id, member.metadata.rebalance_timeout_ms)
    error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must rejoin")
    draft.responses.append((handle, error))


def leave(
    machine: "GroupsMachine",
    group: ConsumerGroup,
    leaving: Sequence[LeavingMember],
    now_ms: int,
    handle: ResponseHandle,
) -> Outcome:
    """LeaveGroup; the response has an error code for each member."""
    draft = machine.consumer_draft(group, now_ms)
    removed: dict[str, None] = {}
    errors = []
    for member_id, instance_id in leaving:
        try:
            if instance_id is None:
                member = group.member(member_id)
            else:
                member = group.static_member(instance_id, member_id or None)
        except KafkaError as error:
            errors.append(error.code)
            continue
        removed[member.id] = None
        errors.append(ErrorCode.NONE)
    remove_members(machine, draft, removed)
    draft.responses.append((handle, errors))
    return draft.outcome()

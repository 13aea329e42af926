"""Members of the classic protocol in a group of the consumer protocol.

They join, sync and heartbeat as ever, but nobody waits for anybody and none of them is the leader: a generation is
the member's own epoch, and SyncGroup tells what the coordinator has given it. A heartbeat says when to join again:
because the group has a new epoch, or partitions are to be given back, or those that others had are free now.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levada.core.groups.classic.draft import JoinResult, SyncResult, TimerKind
from levada.core.groups.classic.group import CONSUMER_PROTOCOL, UNKNOWN_MEMBER
from levada.core.groups.classic.requests import JoinRequest, LeavingMember, SyncRequest
from levada.core.groups.classic.subscription import Subscription, read_subscription
from levada.core.groups.consumer.draft import ConsumerDraft
from levada.core.groups.consumer.group import ConsumerGroup, GroupState, plain
from levada.core.groups.consumer.member import ConsumerMember, MemberState
from levada.core.groups.consumer.requests import fence, subscribe
from levada.core.groups.memory_limit import check_room
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
    """JoinGroup: answered at once with the epoch that the member is in."""
    subscription = _check_join(machine, group, request)
    is_new = request.member_id == UNKNOWN_MEMBER
    if is_new and request.must_know_id and request.instance_id is None:
        return Outcome(responses=[(handle, JoinResult.id_required(request.new_member_id))])
    draft = machine.consumer_draft(group, now_ms)
    member_id = request.new_member_id if is_new else request.member_id
    replaced = None
    former = draft.group.members.get(member_id) or ConsumerMember(member_id)
    if request.instance_id is not None:
        if is_new and request.instance_id in group.instances:
            replaced = group.static_member(request.instance_id)
            former = draft.replace_static(replaced, member_id)
        elif not is_new:
            former = group.static_member(request.instance_id, member_id)
    stale = draft.look_at_topics()
    if subscribe(draft, member_id, former, classic_metadata(request, subscription)) or stale:
        draft.bump()
    draft.assign()
    check_room(machine, draft.group, member_id, request.instance_id)
    member = draft.reconcile(member_id, by_id(draft, subscription.owned))
    draft.responses.append((handle, _joined(member)))
    if replaced is not None and not replaced.is_classic and may_downgrade(draft):
        downgrade(machine.limits, draft, rebalance=draft.group.state is not GroupState.STABLE)
    else:
        draft.wait(TimerKind.MEMBER_JOIN, member_id, None)
        draft.wait(TimerKind.MEMBER, member_id, request.session_timeout_ms)
        draft.wait(TimerKind.MEMBER_SYNC, member_id, request.rebalance_timeout_ms)
    return draft.outcome()


def _check_join(machine: "GroupsMachine", group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """What is wrong with a JoinGroup; what the member subscribes to otherwise."""
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
    if request.protocol_type != CONSUMER_PROTOCOL or not common or subscription is None:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the members of the group have no such protocol"
        )
    is_known = request.member_id in (UNKNOWN_MEMBER, *group.members)
    if subscription.owned and request.instance_id is None and not is_known:
        # It was removed and does not know: what it reads may be another's by now.
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is no member any more")
    return subscription


def _joined(member: ConsumerMember) -> JoinResult:
    return JoinResult(member.epoch, CONSUMER_PROTOCOL, _protocol(member), "", member.id)


def _classic(member: ConsumerMember) -> ClassicMemberMetadata:
    classic = member.metadata.classic_member_metadata
    if classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member.id!r} does not use the classic protocol")
    return classic


def _protocol(member: ConsumerMember) -> str:
    return _classic(member).supported_protocols[0].name


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """A member of the classic protocol in its epoch."""
    member = group.find(member_id, instance_id)
    _classic(member)
    if generation != member.epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation}, but the member is in {member.epoch}"
        )
    return member


def sync(
    machine: "GroupsMachine", group: ConsumerGroup, request: SyncRequest, now_ms: int, handle: ResponseHandle
) -> Outcome:
    """SyncGroup: what the member has been given."""
    member = _member(group, request.member_id, request.instance_id, request.generation)
    if (request.protocol_type or CONSUMER_PROTOCOL) != CONSUMER_PROTOCOL or (
        request.protocol or _protocol(member)
    ) != _protocol(member):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the member's protocol is {CONSUMER_PROTOCOL}/{_protocol(member)}",
        )
    draft = machine.consumer_draft(group, now_ms)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _ask_to_join(draft, machine, member, handle)
        return draft.outcome()
    draft.wait(TimerKind.MEMBER_SYNC, member.id, None)
    draft.wait(TimerKind.MEMBER, member.id, _classic(member).session_timeout_ms)
    assigned = assignment_bytes(draft, member, plain(member.assigned))
    draft.responses.append((handle, SyncResult(CONSUMER_PROTOCOL, _protocol(member), assigned)))
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
    """Heartbeat: the session begins anew, and the member is told when it must join again."""
    member = _member(group, member_id, instance_id, generation)
    draft = machine.consumer_draft(group, now_ms)
    draft.wait(TimerKind.MEMBER, member.id, _classic(member).session_timeout_ms)
    if _should_join(group, member):
        _ask_to_join(draft, machine, member, handle)
    else:
        draft.responses.append((handle, None))
    return draft.outcome()


def _should_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether somebody still has what this member shall have."""
    return any(
        group.owner(topic, partition) not in (None, member.id)
        for topic, partitions in group.target(member.id).items()
        for partition in partitions
    )


def _ask_to_join(
    draft: ConsumerDraft, machine: "GroupsMachine", member: ConsumerMember, handle: ResponseHandle
) -> None:
    """A member has its rebalance timeout to join again, from the first time that it is told to."""
    timer = draft.timer(TimerKind.MEMBER_JOIN, member.id)
    if machine.deadlines.get(timer) is None:
        draft.wait(TimerKind.MEMBER_JOIN, member.id, member.metadata.rebalance_timeout_ms)
    error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must join again")
    draft.responses.append((handle, error))


def leave(
    machine: "GroupsMachine",
    group: ConsumerGroup,
    leaving: Sequence[LeavingMember],
    now_ms: int,
    handle: ResponseHandle,
) -> Outcome:
    """LeaveGroup; the reply is an error code for each who leaves."""
    draft = machine.consumer_draft(group, now_ms)
    gone: dict[str, None] = {}
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
        gone[member.id] = None
        errors.append(ErrorCode.NONE)
    fence(machine, draft, gone)
    draft.responses.append((handle, errors))
    return draft.outcome()

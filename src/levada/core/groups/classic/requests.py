"""SyncGroup, Heartbeat, LeaveGroup and timers of a classic group; JoinGroup is in `levada.core.groups.classic.join`.

Most SyncGroups of a rebalance come from followers and only start to wait. `sync_follower` decides those with single
events and without a copy of the group; `sync` decides all requests, on a draft.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from levada.core.groups.classic.draft import Draft, SyncResult
from levada.core.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    UNKNOWN_MEMBER,
    ClassicGroup,
)
from levada.core.groups.events import GroupEvent, GroupRemoved, SyncReceived, TimersChanged
from levada.core.groups.group import Timer, TimerKind, session_timer
from levada.core.groups.memory_limit import check_memory
from levada.core.machine import AnyOutcome, Outcome, ResponseHandle, VolatileOutcome
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine

REBALANCING: Final = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing")  # never raised


class SyncRequest(NamedTuple):
    """A SyncGroup request; the leader's has the assignments of all members."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


class LeavingMember(NamedTuple):
    """A member of a LeaveGroup request: by member id, or by instance id alone if an operator removes it."""

    member_id: str
    instance_id: str | None = None


def sync_follower(
    machine: "GroupsMachine",
    group: ClassicGroup,
    request: SyncRequest,
    generation: int,
    now_ms: int,
    handle: ResponseHandle,
) -> VolatileOutcome | None:
    """Decide on a follower, or on a member of a stable generation; None for any other request."""
    member = group.members.get(request.member_id)
    if (
        member is None
        or generation != group.generation
        or request.instance_id != member.instance_id
        or (request.protocol_type or group.protocol_type) != group.protocol_type
        or (request.protocol or group.protocol) != group.protocol
    ):
        return None
    state, waiting = group.state, group.pending_sync_members
    if state is COMPLETING_REBALANCE and member.id != group.leader and member.id not in group.pending_syncs:
        return VolatileOutcome([SyncReceived(group.id, member.id, handle)])
    if state is STABLE:
        renewed = machine.renew_session(group.id, member.id, member.session_timeout_ms, now_ms)
        events: list[GroupEvent] = [SyncReceived(group.id, member.id), *renewed]
        if len(waiting) < 2 and waiting <= {member.id}:
            events.append(TimersChanged({Timer(group.id, TimerKind.SYNC): None}))
        result = SyncResult(group.protocol_type, group.protocol, member.assignment)
        return VolatileOutcome(events, [(handle, result)])
    return None


def sync(
    machine: "GroupsMachine", group: ClassicGroup, request: SyncRequest, now_ms: int, handle: ResponseHandle
) -> AnyOutcome:
    """Decide on a SyncGroup; its response is sent when the leader's assignment has arrived."""
    if waits := sync_follower(machine, group, request, request.generation, now_ms, handle):
        return waits
    draft = Draft(group, machine.limits, now_ms)
    _sync(draft, request, handle)
    check_memory(machine, draft.group)
    return draft.outcome()


def _sync(draft: Draft, request: SyncRequest, handle: ResponseHandle) -> None:
    group = draft.group
    member = group.validate_member(request.member_id, request.instance_id)
    if request.generation != group.generation:
        raise group.illegal_generation(request.generation)
    if (request.protocol_type or group.protocol_type) != group.protocol_type or (
        request.protocol or group.protocol
    ) != group.protocol:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the group's protocol is {group.protocol_type}/{group.protocol}",
        )
    if group.state is PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing")
    if group.state is EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    draft.sync_received(member.id)
    if group.state is STABLE:  # as in `sync_follower`, for a static member that sends no instance id
        draft.renew_session(member)
        draft.responses.append((handle, draft.sync_result(member)))
        return
    older = group.pending_syncs.get(member.id)
    if older is not None:
        error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "a newer SyncGroup of this member is pending")
        draft.responses.append((older, error))
    group.pending_syncs[member.id] = handle
    if member.id == group.leader:
        draft.set_assignments(request.assignments)


def heartbeat(
    machine: "GroupsMachine",
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    now_ms: int,
    handle: ResponseHandle,
) -> VolatileOutcome:
    """Renew the session; REBALANCE_IN_PROGRESS tells the member to rejoin."""
    member = group.validate_member(member_id, instance_id)
    if generation != group.generation:
        raise group.illegal_generation(generation)
    events = machine.renew_session(group.id, member_id, member.session_timeout_ms, now_ms)
    return VolatileOutcome(events, [(handle, REBALANCING if group.state is PREPARING_REBALANCE else None)])


def leave(
    machine: "GroupsMachine",
    group: ClassicGroup,
    leaving: Sequence[LeavingMember],
    now_ms: int,
    handle: ResponseHandle,
) -> Outcome:
    """Remove members; the response has an error code for each."""
    draft = Draft(group, machine.limits, now_ms)
    errors = [_leave(draft, one) for one in leaving]
    draft.responses.append((handle, errors))
    return draft.outcome()


def _leave(draft: Draft, leaving: LeavingMember) -> ErrorCode:
    group, member_id = draft.group, leaving.member_id
    if member_id in group.pending_members and leaving.instance_id is None:
        _expire_pending_member(draft, member_id)
        return ErrorCode.NONE
    if member_id == UNKNOWN_MEMBER and leaving.instance_id is not None:
        member_id = group.static_members.get(leaving.instance_id, UNKNOWN_MEMBER)
    try:
        member = group.validate_member(member_id, leaving.instance_id)
    except KafkaError as error:
        return error.code
    draft.remove_and_rebalance(member.id)
    return ErrorCode.NONE


def tombstones(group: ClassicGroup) -> list[GroupEvent]:
    """The events that remove a group."""
    return [GroupRemoved(group.id)]


def on_loaded(machine: "GroupsMachine", group: ClassicGroup, now_ms: int) -> Sequence[GroupEvent]:
    """Start the sessions of the members; rebalance a group over group.max.size, or one without a leader."""
    if not group.members:
        return ()
    draft = Draft(group, machine.limits, now_ms)
    for member in group.members.values():
        draft.renew_session(member)
    if len(group.members) > machine.limits.max_size or group.leader is None:
        draft.prepare_rebalance()
    return draft.outcome().events


def expire(machine: "GroupsMachine", group: ClassicGroup, timers: Sequence[Timer], now_ms: int) -> Outcome:
    """Handle expired timers."""
    draft = Draft(group, machine.limits, now_ms)
    for timer in timers:
        _expire(draft, timer)
    return draft.outcome()


def _expire(draft: Draft, timer: Timer) -> None:
    group = draft.group
    draft.timers[timer] = None
    if timer.kind is TimerKind.JOIN:
        if group.state is PREPARING_REBALANCE:
            draft.on_join_timeout()
    elif timer.kind is TimerKind.SYNC:
        _expire_pending_syncs(draft)
    elif timer.member in group.pending_members:
        _expire_pending_member(draft, timer.member)
    else:
        member = group.members.get(timer.member)
        # A member with a pending request cannot heartbeat; its session is renewed with the response.
        is_waiting = timer.member in group.pending_joins or timer.member in group.pending_syncs
        if member is not None and (member.is_new or not is_waiting):
            draft.remove_and_rebalance(member.id)


def _expire_pending_member(draft: Draft, member_id: str) -> None:
    """Withdraw the id of a client that will not join."""
    draft.remove_pending_member(member_id)
    draft.timers[session_timer(draft.group.id, member_id)] = None
    if draft.group.state is PREPARING_REBALANCE:
        draft.maybe_complete_join()


def _expire_pending_syncs(draft: Draft) -> None:
    """Remove members that sent no SyncGroup, and rebalance."""
    group = draft.group
    if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_sync_members:
        return
    for member_id in [member_id for member_id in group.members if member_id in group.pending_sync_members]:
        draft.remove_member(member_id)
    draft.prepare_rebalance()

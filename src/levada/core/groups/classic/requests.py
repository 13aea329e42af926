"""What a classic group answers its members: the rules of JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Each function works on a draft and either leaves it changed or raises what Kafka would answer.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from levada.core.groups.classic.draft import Draft, GroupLimits, JoinResult, Timer, TimerKind
from levada.core.groups.classic.group import (
    COMPLETING,
    CONSUMER_PROTOCOL,
    EMPTY,
    PREPARING,
    STABLE,
    UNKNOWN_MEMBER,
    ClassicGroup,
    Member,
    Protocols,
)
from levada.core.groups.classic.subscription import read_assignment, read_subscription
from levada.core.machine import ResponseHandle
from levada.errors import ErrorCode, KafkaError

PENDING_MEMBERS_MAX: Final = 5_000


class JoinRequest(NamedTuple):
    """A client wants to be a member."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str  # for a client that has none
    must_know_id: bool = True  # a new member is told its id first and joins again with it (KIP-394)
    may_skip_assignment: bool = True  # a returning static leader can be told not to assign (KIP-814)


class SyncRequest(NamedTuple):
    """A member asks for its assignment; the leader brings all of them."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


class LeavingMember(NamedTuple):
    """Who leaves: by member id, or by instance id alone when an operator removes a static member."""

    member_id: str
    instance_id: str | None = None


def check_join(request: JoinRequest, limits: GroupLimits) -> None:
    """What is wrong with a JoinGroup whatever the group."""
    if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session.timeout.ms of {request.session_timeout_ms} is not within "
            f"[{limits.min_session_timeout_ms}, {limits.max_session_timeout_ms}]",
        )


def comes_back(group: ClassicGroup, request: JoinRequest) -> bool:
    """Whether a member that was in before a restart says no more of what is known: the rest was let in then."""
    instance_id = request.instance_id
    place = request.member_id if instance_id is None else group.instances.get(instance_id)
    member = group.members.get(place or UNKNOWN_MEMBER)
    if member is None or not member.is_restored:
        return False
    said = [len(metadata) for name, metadata in request.protocols if name == group.protocol]
    return bool(said) and max(said) <= len(member.metadata(group.protocol))


def join(draft: Draft, request: JoinRequest, handle: ResponseHandle, limits: GroupLimits) -> None:
    """A client joins, for the first time or again; it is answered when the generation begins."""
    group = draft.group
    if not _has_room(draft, request.member_id, limits.max_size):
        _turn_away(draft, request.member_id, handle)
        return
    if not _fits(group, request):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the members of the group have no such protocol"
        )
    if request.member_id == UNKNOWN_MEMBER:
        _join_unknown(draft, request, handle)
    else:
        _join_known(draft, request, handle)
    if group.state is PREPARING:
        draft.complete_if_all_joined()


def _fits(group: ClassicGroup, request: JoinRequest) -> bool:
    """Whether a member knows a protocol that all know; of one that says what it said before, that is known."""
    member = group.members.get(request.member_id)
    if member is not None and member.protocols == request.protocols:
        return request.protocol_type == group.protocol_type
    return group.supports(request.protocol_type, [name for name, _ in request.protocols])


def _has_room(draft: Draft, member_id: str, max_size: int) -> bool:
    """Whether one more may be in: whoever is in already may; while members join, only those that have joined count."""
    group = draft.group
    if group.state is EMPTY or len(group.members) < max_size:
        return True
    if group.state is PREPARING:
        return member_id in group.joins or len(group.joins) < max_size
    return member_id in group.members


def _turn_away(draft: Draft, member_id: str, handle: ResponseHandle) -> None:
    """There is no room: whoever was in and comes too late is out, so that nobody waits for it."""
    error = KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{draft.group.id!r} has as many members as it may")
    draft.responses.append((handle, error))
    if member_id in draft.group.members:
        draft.remove(member_id)
        draft.complete_if_all_joined()


def _join_unknown(draft: Draft, request: JoinRequest, handle: ResponseHandle) -> None:
    group, new_id = draft.group, request.new_member_id
    if request.instance_id is not None and request.instance_id in group.instances:
        _replace_static(draft, request, handle)
    elif request.must_know_id and request.instance_id is None:
        if len(group.pending) >= PENDING_MEMBERS_MAX:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, "too many clients were given ids and have not joined"
            )
        draft.await_pending(new_id, request.session_timeout_ms)
        draft.responses.append((handle, JoinResult.id_required(new_id)))
    else:
        draft.add(_new_member(request, new_id), request.protocol_type, handle)


def _join_known(draft: Draft, request: JoinRequest, handle: ResponseHandle) -> None:
    group, member_id = draft.group, request.member_id
    if member_id in group.pending and request.instance_id is None:
        draft.add(_new_member(request, member_id), request.protocol_type, handle)
        return
    member = group.check_member(member_id, request.instance_id)
    same = member.protocols == request.protocols
    if group.state is EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    if group.state is COMPLETING and same:
        draft.responses.append((handle, draft.joined(member_id)))  # its first answer was lost
    elif group.state is STABLE and same and member_id != group.leader:
        draft.responses.append((handle, draft.joined(member_id)))
    else:
        # Something changed, or the leader saw a reason to assign anew.
        _join_again(draft, member, request, handle)
        draft.prepare()


def _new_member(request: JoinRequest, member_id: str) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        is_new=True,
    )


def _join_again(draft: Draft, member: Member, request: JoinRequest, handle: ResponseHandle) -> None:
    """A member, with what it says now. Of two JoinGroups that wait, the client hears only the newer."""
    older = draft.group.joins.get(member.id)
    if older is not None:
        error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "a newer JoinGroup of this member waits")
        draft.responses.append((older, error))
    draft.group.joins[member.id] = handle
    says = (request.session_timeout_ms, request.rebalance_timeout_ms, request.protocols)
    if member.is_restored or says != (
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.protocols,
    ):
        session_ms, rebalance_ms, protocols = says
        draft.update(
            replace(
                member,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocols=protocols,
                is_restored=False,
            )
        )


def _replace_static(draft: Draft, request: JoinRequest, handle: ResponseHandle) -> None:
    """A static member is back under a new id: it takes the old one's place and assignment."""
    group = draft.group
    assert request.instance_id is not None
    old = group.members[group.instances[request.instance_id]]
    fenced = KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"a new member has taken {request.instance_id}")
    for waiting in (group.joins, group.syncs):
        older = waiting.pop(old.id, None)
        if older is not None:
            draft.responses.append((older, fenced))
    was_leader, old_leader = group.leader == old.id, group.leader
    _rename(draft, old, request, handle)
    if group.state is COMPLETING or (
        group.state is STABLE and (group.protocol != group.select_protocol() or _was_to_give_up(group, old))
    ):
        draft.prepare()
    elif group.state is STABLE:
        draft.saved = True
        group.topics = group.subscribed(group.protocol)
        reply = draft.joined(request.new_member_id)
        if request.may_skip_assignment:
            reply = replace(reply, skip_assignment=was_leader)
        else:
            # An old client that finds itself leader would assign, and nobody would hear of it.
            reply = replace(reply, leader=old_leader or "", members=())
        del group.joins[request.new_member_id]
        draft.responses.append((handle, reply))


def _was_to_give_up(group: ClassicGroup, member: Member) -> bool:
    """Whether a member was assigned less than it had, so that it joins again for others to get the rest (KIP-429).

    One that restarts instead has nothing to give up, and would not: the rest would stay unread.
    """
    if group.protocol_type != CONSUMER_PROTOCOL:
        return False
    said = read_subscription(member.metadata(group.protocol))
    given = read_assignment(member.assignment)
    return (
        said is not None
        and given is not None
        and any(not had <= given.partitions.get(topic, frozenset()) for topic, had in said.owned.items())
    )


def _rename(draft: Draft, old: Member, request: JoinRequest, handle: ResponseHandle) -> None:
    """The same member under its new id, in the same place among the others."""
    group, new_id = draft.group, request.new_member_id
    assert old.instance_id is not None
    member = replace(
        old,
        id=new_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_restored=False,
    )
    group.joins[new_id] = handle
    group.members = {
        new_id if one.id == old.id else one.id: member if one.id == old.id else one
        for one in group.members.values()
    }
    group.memory_bytes += member.memory_bytes - old.memory_bytes
    group.instances[old.instance_id] = new_id
    if group.leader == old.id:
        group.leader = new_id
    if old.id in group.unsynced:
        group.unsynced ^= {old.id, new_id}
    draft.timers[Timer(group.id, TimerKind.MEMBER, old.id)] = None
    draft.stay(member)


def sync(draft: Draft, request: SyncRequest, handle: ResponseHandle) -> None:
    """A member asks for its assignment; it is answered when the leader has brought them."""
    group = draft.group
    member = group.check_member(request.member_id, request.instance_id)
    if request.generation != group.generation:
        raise group.illegal(request.generation)
    if (request.protocol_type or group.protocol_type) != group.protocol_type or (
        request.protocol or group.protocol
    ) != group.protocol:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the group's protocol is {group.protocol_type}/{group.protocol}",
        )
    if group.state is PREPARING:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")
    if group.state is EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    draft.synced(member.id)
    if group.state is STABLE:  # as `group_waits.sync`, for a static member that does not say which it is
        draft.stay(member)
        draft.responses.append((handle, draft.assigned(member)))
        return
    older = group.syncs.get(member.id)
    if older is not None:
        error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "a newer SyncGroup of this member waits")
        draft.responses.append((older, error))
    group.syncs[member.id] = handle
    if member.id == group.leader:
        draft.assign(request.assignments)


def leave(draft: Draft, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
    """Members leave, each with an answer of its own."""
    return [_leave_one(draft, one) for one in leaving]


def _leave_one(draft: Draft, leaving: LeavingMember) -> ErrorCode:
    group, member_id = draft.group, leaving.member_id
    if member_id in group.pending and leaving.instance_id is None:
        expire_pending(draft, member_id)
        return ErrorCode.NONE
    if member_id == UNKNOWN_MEMBER and leaving.instance_id is not None:
        member_id = group.instances.get(leaving.instance_id, UNKNOWN_MEMBER)
    try:
        member = group.check_member(member_id, leaving.instance_id)
    except KafkaError as error:
        return error.code
    draft.remove_and_go_on(member.id)
    return ErrorCode.NONE


def expire_pending(draft: Draft, member_id: str) -> None:
    """A client that was given an id will not join with it."""
    group = draft.group
    draft.forget_pending(member_id)
    draft.timers[Timer(group.id, TimerKind.MEMBER, member_id)] = None
    if group.state is PREPARING:
        draft.complete_if_all_joined()


def expire(draft: Draft, timer: Timer) -> None:
    """A deadline has come."""
    group = draft.group
    draft.timers[timer] = None
    if timer.kind is TimerKind.JOIN:
        if group.state is PREPARING:
            draft.join_deadline()
    elif timer.kind is TimerKind.SYNC:
        _expire_syncs(draft)
    elif timer.member in group.pending:
        expire_pending(draft, timer.member)
    else:
        member = group.members.get(timer.member)
        # Who waits for an answer cannot heartbeat; its session begins anew with the answer.
        waits = timer.member in group.joins or timer.member in group.syncs
        if member is not None and (member.is_new or not waits):
            draft.remove_and_go_on(member.id)


def _expire_syncs(draft: Draft) -> None:
    """Members that never asked for their assignment do not live."""
    group = draft.group
    if group.state not in (COMPLETING, STABLE) or not group.unsynced:
        return
    for member_id in [member_id for member_id in group.members if member_id in group.unsynced]:
        draft.remove(member_id)
    draft.prepare()

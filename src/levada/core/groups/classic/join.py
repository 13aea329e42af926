"""JoinGroup in a classic group: new members, rejoining members, and static members that restart (KIP-345).

In a rebalance most members rejoin with unchanged metadata and only start to wait. `rejoin` decides those with a single
event and without a copy of the group; `join` decides all requests, on a draft.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from levada.core.groups.classic.draft import Draft, JoinResult
from levada.core.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    UNKNOWN_MEMBER,
    ClassicGroup,
    Member,
    Protocols,
)
from levada.core.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, read_assignment, read_subscription
from levada.core.groups.events import JoinReceived
from levada.core.groups.group import GroupLimits, session_timer
from levada.core.groups.memory_limit import check_memory, validate_group_id_size
from levada.core.machine import AnyOutcome, ResponseHandle, VolatileOutcome
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine

PENDING_MEMBERS_MAX: Final = 5_000


class JoinRequest(NamedTuple):
    """A JoinGroup request."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str  # for a client without a member id
    require_member_id: bool = True  # a new member receives its id first and joins again with it (KIP-394)
    may_skip_assignment: bool = True  # a restarted static leader may skip the assignment (KIP-814)


def validate_join(request: JoinRequest, limits: GroupLimits) -> None:
    """Validate what does not depend on the group."""
    if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session.timeout.ms of {request.session_timeout_ms} is not within "
            f"[{limits.min_session_timeout_ms}, {limits.max_session_timeout_ms}]",
        )


def new_group(request: JoinRequest) -> ClassicGroup:
    """The group of a first member. UNKNOWN_MEMBER_ID if the client believes that it is a member."""
    if request.member_id != UNKNOWN_MEMBER:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id!r} does not exist")
    validate_group_id_size(request.group_id)
    return ClassicGroup(request.group_id)


def rejoin(
    machine: "GroupsMachine", group: ClassicGroup, request: JoinRequest, handle: ResponseHandle
) -> VolatileOutcome | None:
    """Decide on a member that rejoins unchanged while others are missing; None for any other request."""
    member, joined, limits = group.members.get(request.member_id), group.pending_joins, machine.limits
    if (
        member is None
        or group.state is not PREPARING_REBALANCE
        or not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms
        or member.is_restored
        or member.id in joined
        or request.protocols != member.protocols
        or request.session_timeout_ms != member.session_timeout_ms
        or request.rebalance_timeout_ms != member.rebalance_timeout_ms
        or request.instance_id != member.instance_id
        or request.protocol_type != group.protocol_type
        or len(joined) >= limits.max_size
        or (len(joined) + 1 == len(group.members) and not group.pending_members)
    ):
        return None
    return VolatileOutcome([JoinReceived(group.id, member.id, handle)])


def join(
    machine: "GroupsMachine", group: ClassicGroup, request: JoinRequest, now_ms: int, handle: ResponseHandle
) -> AnyOutcome:
    """Decide on a JoinGroup; its response is sent when the next generation begins."""
    if waits := rejoin(machine, group, request, handle):
        return waits
    draft = Draft(group, machine.limits, now_ms)
    _join(draft, request, handle, machine.limits.max_size)
    if not _is_restored_unchanged(group, request):
        check_memory(machine, draft.group, request.member_id, request.instance_id)
    return draft.outcome()


def _is_restored_unchanged(group: ClassicGroup, request: JoinRequest) -> bool:
    """Whether a restored member rejoins without more metadata for the known protocol.

    The journal holds one of its protocols; the memory of the others was checked before the restart.
    """
    instance_id = request.instance_id
    member_id = request.member_id if instance_id is None else group.static_members.get(instance_id)
    member = group.members.get(member_id or UNKNOWN_MEMBER)
    if member is None or not member.is_restored:
        return False
    sizes = [len(metadata) for name, metadata in request.protocols if name == group.protocol]
    return bool(sizes) and max(sizes) <= len(member.metadata(group.protocol))


def _join(draft: Draft, request: JoinRequest, handle: ResponseHandle, max_size: int) -> None:
    group = draft.group
    if not _has_capacity(group, request.member_id, max_size):
        _reject(draft, request.member_id, handle)
        return
    if not _supports_protocols(group, request):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member has no protocol in common with the group")
    if request.member_id == UNKNOWN_MEMBER:
        _join_new(draft, request, handle)
    else:
        _join_existing(draft, request, handle)
    if group.state is PREPARING_REBALANCE:
        draft.maybe_complete_join()


def _supports_protocols(group: ClassicGroup, request: JoinRequest) -> bool:
    """Whether the member has a protocol in common with all members; known if its protocols are unchanged."""
    member = group.members.get(request.member_id)
    if member is not None and member.protocols == request.protocols:
        return request.protocol_type == group.protocol_type
    return group.supports_protocols(request.protocol_type, [name for name, _ in request.protocols])


def _has_capacity(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    """Whether the member fits into group.max.size; during a rebalance only members that have joined count."""
    if group.state is EMPTY or len(group.members) < max_size:
        return True
    if group.state is PREPARING_REBALANCE:
        return member_id in group.pending_joins or len(group.pending_joins) < max_size
    return member_id in group.members


def _reject(draft: Draft, member_id: str, handle: ResponseHandle) -> None:
    """Fail with GROUP_MAX_SIZE_REACHED; an existing member is removed, so that the group does not wait for it."""
    error = KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {draft.group.id!r} has group.max.size members")
    draft.responses.append((handle, error))
    if member_id in draft.group.members:
        draft.remove_member(member_id)
        draft.maybe_complete_join()


def _join_new(draft: Draft, request: JoinRequest, handle: ResponseHandle) -> None:
    group, new_id = draft.group, request.new_member_id
    if request.instance_id is not None and request.instance_id in group.static_members:
        _replace_static_member(draft, request, handle)
    elif request.require_member_id and request.instance_id is None:
        if len(group.pending_members) >= PENDING_MEMBERS_MAX:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the group has too many pending members")
        draft.add_pending_member(new_id, request.session_timeout_ms)
        draft.responses.append((handle, JoinResult.member_id_required(new_id)))
    else:
        draft.add_member(_new_member(request, new_id), request.protocol_type, handle)


def _join_existing(draft: Draft, request: JoinRequest, handle: ResponseHandle) -> None:
    group, member_id = draft.group, request.member_id
    if member_id in group.pending_members and request.instance_id is None:
        draft.add_member(_new_member(request, member_id), request.protocol_type, handle)
        return
    member = group.validate_member(member_id, request.instance_id)
    unchanged = member.protocols == request.protocols
    if group.state is EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    if group.state is COMPLETING_REBALANCE and unchanged:
        draft.responses.append((handle, draft.join_result(member_id)))  # the first response was lost
    elif group.state is STABLE and unchanged and member_id != group.leader:
        draft.responses.append((handle, draft.join_result(member_id)))
    else:
        # The metadata changed, or the leader requests a rebalance.
        _update_member(draft, member, request, handle)
        draft.prepare_rebalance()


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


def _update_member(draft: Draft, member: Member, request: JoinRequest, handle: ResponseHandle) -> None:
    """Update a member's metadata; its JoinGroup is pending, and an older pending one fails."""
    older = draft.group.pending_joins.get(member.id)
    if older is not None:
        error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "a newer JoinGroup of this member is pending")
        draft.responses.append((older, error))
    draft.group.pending_joins[member.id] = handle
    if (
        member.is_restored
        or request.session_timeout_ms != member.session_timeout_ms
        or request.rebalance_timeout_ms != member.rebalance_timeout_ms
        or request.protocols != member.protocols
    ):
        draft.put_member(
            replace(
                member,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=request.protocols,
                is_restored=False,
            )
        )


# Static members.


def _replace_static_member(draft: Draft, request: JoinRequest, handle: ResponseHandle) -> None:
    """A restarted static member, with a new member id, takes over the assignment of its former one."""
    group = draft.group
    assert request.instance_id is not None
    old = group.members[group.static_members[request.instance_id]]
    draft.fail_pending(
        old.id,
        KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"a new member has instance id {request.instance_id}"),
    )
    was_leader, old_leader = group.leader == old.id, group.leader
    _change_member_id(draft, old, request, handle)
    if group.state is COMPLETING_REBALANCE or (
        group.state is STABLE and (group.protocol != group.select_protocol() or _was_revoking(group, old))
    ):
        draft.prepare_rebalance()
    elif group.state is STABLE:
        draft.journaled = True
        group.topics = group.compute_topics(group.protocol)
        result = draft.join_result(request.new_member_id)
        if request.may_skip_assignment:
            result = replace(result, skip_assignment=was_leader)
        else:
            # A client before KIP-814 that learns it is the leader would assign, and nothing would change.
            result = replace(result, leader=old_leader or "", members=())
        del group.pending_joins[request.new_member_id]
        draft.responses.append((handle, result))


def _was_revoking(group: ClassicGroup, member: Member) -> bool:
    """Whether a cooperative member was assigned less than it owned, so that it would have rejoined (KIP-429).

    A restarted member owns nothing and does not rejoin: without a rebalance no member would own them.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    subscription = read_subscription(member.metadata(group.protocol))
    assigned = read_assignment(member.assignment)
    return (
        subscription is not None
        and assigned is not None
        and any(not owned <= assigned.partitions.get(topic, frozenset()) for topic, owned in subscription.owned.items())
    )


def _change_member_id(draft: Draft, old: Member, request: JoinRequest, handle: ResponseHandle) -> None:
    """Replace a static member by itself under a new id, at the same position among the members."""
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
    group.pending_joins[new_id] = handle
    group.members = {
        new_id if one.id == old.id else one.id: member if one.id == old.id else one for one in group.members.values()
    }
    group.memory_bytes += member.memory_bytes - old.memory_bytes
    group.static_members[old.instance_id] = new_id
    if group.leader == old.id:
        group.leader = new_id
    if old.id in group.pending_sync_members:
        group.pending_sync_members ^= {old.id, new_id}
    draft.timers[session_timer(group.id, old.id)] = None
    draft.renew_session(member)

"""Groups of consumers: joining, staying and leaving in the classic protocol, and what operators ask about groups.

The rules are those of `levada.core.groups.machine`; here requests and replies change their shape. Every answer leaves
when the coordinator's journal is committed.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.response_fields import AUTHORIZED_OPERATIONS_OMITTED, UNTHROTTLED
from levada.broker.purgatory import DelayedResult, gather
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import UNKNOWN_MEMBER, ClassicGroup, State
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import LeavingMember, SyncRequest
from levada.core.groups.events import GroupEvent
from levada.core.groups.group import Group
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.memory_limit import NAME_BYTES_MAX
from levada.core.machine import Outcome, ResponseHandle, VolatileOutcome
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.delete_groups.v2 as delete_groups_v2
    import kio.schema.describe_groups.v6 as describe_groups_v6
    import kio.schema.heartbeat.v4 as heartbeat_v4
    import kio.schema.join_group.v9 as join_group_v9
    import kio.schema.leave_group.v5 as leave_group_v5
    import kio.schema.list_groups.v5 as list_groups_v5
    import kio.schema.sync_group.v5 as sync_group_v5

MILLISECOND = timedelta(milliseconds=1)
MEMBER_ID_REQUIRED_FROM = 4  # versions of JoinGroup
SKIP_ASSIGNMENT_FROM = 9
PROTOCOL_NAMED_FROM = 5  # versions of SyncGroup
# Versions of DescribeGroups that say of a group that it is not there; older ones call it dead.
NOT_FOUND_FROM = 6
NAME_CHARACTERS_MAX = (
    240  # of a client's name, which is part of its member's id: that has NAME_BYTES_MAX bytes
)
# Bits by the numbers of Kafka's operations: read 3, delete 6, describe 8, describe configs 10, alter configs 11.
ALL_GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8, 10, 11))


def check_group_id(group_id: str) -> str:
    """A group with members needs a name; INVALID_GROUP_ID otherwise."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group with members needs an id")
    return group_id


@handles("join_group", versions=range(10))
def join_group(context: RequestContext, request: "join_group_v9.JoinGroupRequest") -> DelayedResult:
    """A client becomes a member, or joins the next generation; the answer waits for the others.

    v4 gives new members an id first (KIP-394), v5 adds static members (KIP-345), v8 a reason (KIP-800), v9 tells a
    static leader that it need not assign (KIP-814).
    """
    name = (request.group_instance_id or context.client_id or "")[:NAME_CHARACTERS_MAX]
    new_member_id = f"{name}-{uuid4()}" if request.member_id == UNKNOWN_MEMBER else ""
    said = joining(
        request, context.api_version, context.client_id or "", f"/{context.connection.host}", new_member_id
    )
    return _ask(
        context, said.group_id, lambda machine, now_ms, handle: machine.join(said, now_ms, handle), joined
    )


def joining(
    request: "join_group_v9.JoinGroupRequest",
    version: int,
    client_id: str = "",
    client_host: str = "",
    new_member_id: str = "",
) -> JoinRequest:
    """What a coordinator is asked. Who the client is matters only when it is new or comes back under a new id."""
    if len(request.member_id.encode()) > NAME_BYTES_MAX:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member's id has more than {NAME_BYTES_MAX} bytes")
    if len(request.protocol_type.encode()) > NAME_BYTES_MAX:
        what = f"a protocol type of more than {NAME_BYTES_MAX} bytes"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
    return JoinRequest(
        check_group_id(request.group_id),
        request.member_id,
        request.group_instance_id,
        client_id,
        client_host,
        request.session_timeout // MILLISECOND,
        request.rebalance_timeout // MILLISECOND,
        request.protocol_type,
        tuple([(protocol.name, protocol.metadata) for protocol in request.protocols]),
        new_member_id,
        require_member_id=version >= MEMBER_ID_REQUIRED_FROM,
        may_skip_assignment=version >= SKIP_ASSIGNMENT_FROM,
    )


def _ask(
    context: RequestContext,
    group_id: str,
    decide: Callable[[GroupsMachine, int, ResponseHandle], Outcome | VolatileOutcome],
    answer: Callable[[Any], Any],
) -> DelayedResult:
    """Let a member's coordinator decide. That a group is too large for its journal has no code of its own."""
    try:
        return context.broker.groups.shard(group_id).submit(decide, answer)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.detail) from None
        raise


def joined(reply: JoinResult) -> Any:
    """The response that tells a member of its generation."""
    answer = join_group_v9.response
    return answer.JoinGroupResponse(
        throttle_time=UNTHROTTLED,
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=tuple(
            [
                answer.JoinGroupResponseMember(
                    member_id=member.id, group_instance_id=member.instance_id, metadata=member.metadata
                )
                for member in reply.members
            ]
        ),
    )


@handles("sync_group", versions=range(6))
def sync_group(context: RequestContext, request: "sync_group_v5.SyncGroupRequest") -> DelayedResult:
    """A member asks for its assignment, the leader brings all. v3 adds static members, v5 checks the protocol."""
    said = syncing(request, context.api_version)
    try:
        return _ask(
            context, said.group_id, lambda machine, now_ms, handle: machine.sync(said, now_ms, handle), synced
        )
    except KafkaError as error:
        # Clients do not expect that a coordinator loads here. What was being agreed is lost: they join again.
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, error.detail) from None
        raise


def syncing(request: "sync_group_v5.SyncGroupRequest", version: int) -> SyncRequest:
    """What a coordinator is asked."""
    unnamed = request.protocol_type is None or request.protocol_name is None
    if unnamed and version >= PROTOCOL_NAMED_FROM:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol must be named")
    return SyncRequest(
        check_group_id(request.group_id),
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        {assigned.member_id: assigned.assignment for assigned in request.assignments},
    )


def synced(reply: SyncResult) -> Any:
    """The response that tells a member its part."""
    return sync_group_v5.response.SyncGroupResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


@handles("heartbeat", versions=range(5))
def heartbeat(
    context: RequestContext, request: "heartbeat_v4.HeartbeatRequest"
) -> "DelayedResult | heartbeat_v4.HeartbeatResponse":
    """A member says it is alive. v3 adds static members (KIP-345)."""
    group_id, member_id = check_group_id(request.group_id), request.member_id
    instance_id, generation = request.group_instance_id, request.generation_id
    try:
        return context.broker.groups.shard(group_id).submit(
            lambda machine, now_ms, handle: machine.heartbeat(
                group_id, member_id, instance_id, generation, now_ms, handle
            ),
            _alive,
        )
    except KafkaError as error:
        # While the journal is read nobody's session ends, and older clients do not expect the error.
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _alive(None)
        raise


@cache
def _alive(_: None) -> "heartbeat_v4.HeartbeatResponse":
    return heartbeat_v4.response.HeartbeatResponse(throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE)


@handles("leave_group", versions=range(6))
def leave_group(context: RequestContext, request: "leave_group_v5.LeaveGroupRequest") -> DelayedResult:
    """Members leave. v3 takes many at once, also static ones by their instance id (KIP-345)."""
    answer = leave_group_v5.response
    group_id = check_group_id(request.group_id)
    leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]

    def left(errors: list[ErrorCode]) -> Any:
        members = [
            answer.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
            for (member_id, instance_id), error in zip(leaving, errors, strict=True)
        ]
        return answer.LeaveGroupResponse(
            throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, members=tuple(members)
        )

    return _ask(
        context,
        group_id,
        lambda machine, now_ms, handle: machine.leave(group_id, leaving, now_ms, handle),
        left,
    )


# What operators ask.


def each_group(
    context: RequestContext,
    group_ids: Iterable[str],
    decide: Callable[[GroupsMachine, str], tuple[Sequence[GroupEvent], Any]],
    answer: Callable[[dict[str, Any]], Any],
) -> DelayedResult:
    """Ask every coordinator once for all of its groups; `answer` gets what each group said, or its error."""
    results: dict[str, Any] = {}
    shards: dict[int, list[str]] = {}
    groups = context.broker.groups
    for group_id in dict.fromkeys(group_ids):
        shards.setdefault(groups.partition_for(group_id), []).append(group_id)

    def ask(some: list[str]) -> DelayedResult:
        def decide_all(machine: GroupsMachine, _: int, handle: ResponseHandle) -> Outcome:
            events: list[GroupEvent] = []
            for group_id in some:
                try:
                    happens, results[group_id] = decide(machine, group_id)
                    events += happens
                except KafkaError as error:
                    results[group_id] = error.without_traceback()
            return Outcome(events, [(handle, None)], atomic=False)

        try:
            return groups.shard(some[0]).submit(decide_all)
        except KafkaError as error:
            failed = DelayedResult()
            failed.complete(error)
            return failed

    def heard(failures: list[Any]) -> Any:
        for some, failure in zip(shards.values(), failures, strict=True):
            if failure is not None:
                results.update(dict.fromkeys(some, failure))
        return answer(results)

    return gather([ask(some) for some in shards.values()], heard)


def error_of(result: Any) -> ErrorCode:
    """The code of a result; anything but a KafkaError is a bug and goes on to where bugs are told."""
    if isinstance(result, KafkaError):
        return result.code
    if isinstance(result, Exception):
        raise result
    return ErrorCode.NONE


@handles("list_groups", versions=range(6))
def list_groups(
    context: RequestContext, request: "list_groups_v5.ListGroupsRequest"
) -> "list_groups_v5.ListGroupsResponse":
    """The groups that this broker coordinates. v4 filters by state (KIP-518), v5 by type (KIP-848)."""
    answer = list_groups_v5.response
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    found = []
    error = ErrorCode.NONE
    for shard in context.broker.groups:
        try:
            groups = shard.ready.groups
        except KafkaError as refusal:
            if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                error = refusal.code  # the others are not coordinated here, and asking again is of no use
            continue
        for group in groups.values():
            state = group.state.value
            if (not states or state.lower() in states) and (not types or group.kind in types):
                found.append(
                    answer.ListedGroup(
                        group_id=group.id,
                        protocol_type=group.protocol_type or "",
                        group_state=state,
                        group_type=group.kind,
                    )
                )
    return answer.ListGroupsResponse(throttle_time=UNTHROTTLED, error_code=error, groups=tuple(found))


@handles("describe_groups", versions=range(7))
def describe_groups(
    context: RequestContext, request: "describe_groups_v6.DescribeGroupsRequest"
) -> DelayedResult:
    """Classic groups and their members. v4 adds static members, v6 tells of a group that is not there (KIP-1043)."""

    def described(found: dict[str, Any]) -> Any:
        return describe_groups_v6.response.DescribeGroupsResponse(
            throttle_time=UNTHROTTLED,
            groups=tuple(
                [_described(context, request, group_id, found[group_id]) for group_id in request.groups]
            ),
        )

    return each_group(
        context, request.groups, lambda machine, group_id: ((), machine.groups.get(group_id)), described
    )


def _described(
    context: RequestContext,
    request: "describe_groups_v6.DescribeGroupsRequest",
    group_id: str,
    found: Group | Exception | None,
) -> Any:
    error, message = error_of(found), None
    group = found if isinstance(found, ClassicGroup) else None
    if group is None and error is ErrorCode.NONE and context.api_version >= NOT_FOUND_FROM:
        error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
    state = State.DEAD if group is None else group.state
    return describe_groups_v6.response.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="" if isinstance(found, Exception) else state.value,
        protocol_type=(group.protocol_type if group is not None else None) or "",
        protocol_data=(group.protocol if group is not None and state is State.STABLE else None) or "",
        members=() if group is None else _described_members(group),
        authorized_operations=(
            ALL_GROUP_OPERATIONS if request.include_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        ),
    )


def _described_members(group: ClassicGroup) -> tuple[Any, ...]:
    """Only a stable generation has an assignment to tell."""
    stable = group.state is State.STABLE
    return tuple(
        describe_groups_v6.response.DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member in group.members.values()
    )


@handles("delete_groups", versions=range(3))
def delete_groups(context: RequestContext, request: "delete_groups_v2.DeleteGroupsRequest") -> DelayedResult:
    """Remove groups without members, with their offsets (KIP-229)."""
    answer = delete_groups_v2.response

    def deleted(results: dict[str, Any]) -> Any:
        return answer.DeleteGroupsResponse(
            throttle_time=UNTHROTTLED,
            results=tuple(
                [
                    answer.DeletableGroupResult(group_id=group_id, error_code=error_of(results[group_id]))
                    for group_id in dict.fromkeys(request.groups_names)
                ]
            ),
        )

    return each_group(
        context,
        request.groups_names,
        lambda machine, group_id: (machine.delete_group(group_id), None),
        deleted,
    )

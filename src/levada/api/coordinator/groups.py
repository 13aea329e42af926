"""The group APIs of the classic protocol, and those of operators: list, describe and delete groups.

The rules are in `levada.core.groups.machine`; the handlers convert requests and responses. A response is sent when the
coordinator's record is committed.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

from levada.api.registry import handles
from levada.api.request import AUTHORIZED_OPERATIONS_OMITTED, UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.coordinator.gather import gather
from levada.broker.purgatory import DelayedResult
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import UNKNOWN_MEMBER, ClassicGroup, State
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import LeavingMember, SyncRequest
from levada.core.groups.events import GroupEvent
from levada.core.groups.group import Group
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.memory_limit import NAME_BYTES_MAX
from levada.core.machine import AnyOutcome, Outcome, ResponseHandle
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.delete_groups.v2 as delete_groups_v2
    import kio.schema.describe_groups.v6 as describe_groups_v6
    import kio.schema.heartbeat.v4 as heartbeat_v4
    import kio.schema.join_group.v9 as join_group_v9
    import kio.schema.leave_group.v5 as leave_group_v5
    import kio.schema.list_groups.v5 as list_groups_v5
    import kio.schema.sync_group.v5 as sync_group_v5

log = EventLog(__name__)

MILLISECOND = timedelta(milliseconds=1)
GROUPS_PER_ITERATION = 200  # deleted
MEMBER_ID_REQUIRED_FROM = 4  # versions of JoinGroup
SKIP_ASSIGNMENT_FROM = 9
PROTOCOL_NAMED_FROM = 5  # versions of SyncGroup
NOT_FOUND_FROM = 6  # versions of DescribeGroups with GROUP_ID_NOT_FOUND; older ones have the state Dead
NAME_CHARACTERS_MAX = 240  # of the client id in a member id, which has at most NAME_BYTES_MAX bytes
# Bits of Kafka's AclOperation codes: read 3, delete 6, describe 8, describe configs 10, alter configs 11.
ALL_GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8, 10, 11))


def validate_group_id(group_id: str) -> str:
    """INVALID_GROUP_ID if the group id is empty."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    return group_id


@handles("join_group", versions=range(10))
def join_group(context: RequestContext, request: "join_group_v9.JoinGroupRequest") -> DelayedResult:
    """Join a group, or rejoin it for the next generation; the response waits for the other members.

    v4 requires a member id (KIP-394), v5 adds static members (KIP-345), v8 a reason (KIP-800), v9 lets a static leader
    skip the assignment (KIP-814).
    """
    name = (request.group_instance_id or context.client_id or "")[:NAME_CHARACTERS_MAX]
    new_member_id = f"{name}-{uuid4()}" if request.member_id == UNKNOWN_MEMBER else ""
    join = to_join_request(
        request, context.api_version, context.client_id or "", f"/{context.connection.host}", new_member_id
    )
    return _submit(
        context,
        join.group_id,
        lambda machine, now_ms, handle: machine.join(join, now_ms, handle),
        join_response,
    )


def to_join_request(
    request: "join_group_v9.JoinGroupRequest",
    version: int,
    client_id: str = "",
    client_host: str = "",
    new_member_id: str = "",
) -> JoinRequest:
    """Convert a JoinGroup request. Client id and host matter only for new members and restarted static ones."""
    if len(request.member_id.encode()) > NAME_BYTES_MAX:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"the member id has more than {NAME_BYTES_MAX} bytes")
    if len(request.protocol_type.encode()) > NAME_BYTES_MAX:
        detail = f"the protocol type has more than {NAME_BYTES_MAX} bytes"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail)
    return JoinRequest(
        validate_group_id(request.group_id),
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


def _submit(
    context: RequestContext,
    group_id: str,
    decide: Callable[[GroupsMachine, int, ResponseHandle], AnyOutcome],
    convert: Callable[[Any], Any],
) -> DelayedResult:
    """Submit a decision to the coordinator. MESSAGE_TOO_LARGE of its journal is no error of these APIs."""
    try:
        return context.broker.groups.shard(group_id).submit(decide, convert)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.detail) from None
        raise


def join_response(result: JoinResult) -> Any:
    """The JoinGroup response."""
    response = join_group_v9.response
    return response.JoinGroupResponse(
        throttle_time=UNTHROTTLED,
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=tuple(
            [
                response.JoinGroupResponseMember(
                    member_id=member.id, group_instance_id=member.instance_id, metadata=member.metadata
                )
                for member in result.members
            ]
        ),
    )


@handles("sync_group", versions=range(6))
def sync_group(context: RequestContext, request: "sync_group_v5.SyncGroupRequest") -> DelayedResult:
    """Get a member's assignment; the leader sends all. v3 adds static members, v5 checks the protocol."""
    sync = to_sync_request(request, context.api_version)
    try:
        return _submit(
            context,
            sync.group_id,
            lambda machine, now_ms, handle: machine.sync(sync, now_ms, handle),
            sync_response,
        )
    except KafkaError as error:
        # Clients do not expect COORDINATOR_LOAD_IN_PROGRESS here. The rebalance is lost, so they rejoin.
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, error.detail) from None
        raise


def to_sync_request(request: "sync_group_v5.SyncGroupRequest", version: int) -> SyncRequest:
    """Convert a SyncGroup request."""
    unnamed = request.protocol_type is None or request.protocol_name is None
    if unnamed and version >= PROTOCOL_NAMED_FROM:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol type and name are required")
    return SyncRequest(
        validate_group_id(request.group_id),
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        request.protocol_type,
        request.protocol_name,
        {assigned.member_id: assigned.assignment for assigned in request.assignments},
    )


def sync_response(result: SyncResult) -> Any:
    """The SyncGroup response."""
    return sync_group_v5.response.SyncGroupResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


@handles("heartbeat", versions=range(5))
def heartbeat(
    context: RequestContext, request: "heartbeat_v4.HeartbeatRequest"
) -> "DelayedResult | heartbeat_v4.HeartbeatResponse":
    """Renew a member's session. v3 adds static members (KIP-345)."""
    group_id, member_id = validate_group_id(request.group_id), request.member_id
    instance_id, generation = request.group_instance_id, request.generation_id
    try:
        return context.broker.groups.shard(group_id).submit(
            lambda machine, now_ms, handle: machine.heartbeat(
                group_id, member_id, instance_id, generation, now_ms, handle
            ),
            _heartbeat_response,
        )
    except KafkaError as error:
        # No session expires while the coordinator loads, and older clients do not expect the error.
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _heartbeat_response(None)
        raise


@cache
def _heartbeat_response(_: None) -> "heartbeat_v4.HeartbeatResponse":
    return heartbeat_v4.response.HeartbeatResponse(throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE)


@handles("leave_group", versions=range(6))
def leave_group(context: RequestContext, request: "leave_group_v5.LeaveGroupRequest") -> DelayedResult:
    """Remove members. v3 adds several members, also static ones by instance id (KIP-345)."""
    response = leave_group_v5.response
    group_id = validate_group_id(request.group_id)
    leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]

    def response_of(errors: list[ErrorCode]) -> Any:
        members = [
            response.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
            for (member_id, instance_id), error in zip(leaving, errors, strict=True)
        ]
        return response.LeaveGroupResponse(throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, members=tuple(members))

    def decide(machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> AnyOutcome:
        return machine.leave(group_id, leaving, now_ms, handle)

    return _submit(context, group_id, decide, response_of)


# Administration.


def for_each_group(
    context: RequestContext,
    group_ids: Iterable[str],
    decide: Callable[[GroupsMachine, str], tuple[Sequence[GroupEvent], Any]],
    convert: Callable[[dict[str, Any]], Any],
) -> DelayedResult:
    """Submit one decision to each coordinator for all of its groups; `convert` gets the result or error of each."""
    results: dict[str, Any] = {}
    shards: dict[int, list[str]] = {}
    groups = context.broker.groups
    for group_id in dict.fromkeys(group_ids):
        shards.setdefault(groups.partition_for(group_id), []).append(group_id)

    def submit(some: list[str]) -> DelayedResult:
        def decide_all(machine: GroupsMachine, _: int, handle: ResponseHandle) -> Outcome:
            events: list[GroupEvent] = []
            for group_id in some:
                try:
                    decided, results[group_id] = decide(machine, group_id)
                    events += decided
                except KafkaError as error:
                    results[group_id] = error.without_traceback()
            return Outcome(events, [(handle, None)], atomic=False)

        try:
            return groups.shard(some[0]).submit(decide_all)
        except KafkaError as error:
            failed = DelayedResult()
            failed.complete(error)
            return failed

    def combine(failures: list[Any]) -> Any:
        for some, failure in zip(shards.values(), failures, strict=True):
            if failure is not None:
                results.update(dict.fromkeys(some, failure))
        return convert(results)

    return gather([submit(some) for some in shards.values()], combine)


def error_of(result: Any) -> ErrorCode:
    """The error code of a result; any other exception is a bug and is raised."""
    if isinstance(result, KafkaError):
        return result.code
    if isinstance(result, Exception):
        raise result
    return ErrorCode.NONE


@handles("list_groups", versions=range(6))
def list_groups(
    context: RequestContext, request: "list_groups_v5.ListGroupsRequest"
) -> "list_groups_v5.ListGroupsResponse":
    """List the groups of this coordinator. v4 filters by state (KIP-518), v5 by type (KIP-848)."""
    response = list_groups_v5.response
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    found = []
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if context.broker.groups.is_opening else ErrorCode.NONE
    for shard in context.broker.groups:
        try:
            groups = shard.ready.groups
        except KafkaError as failure:
            if failure.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                error = failure.code  # other shards failed to load, and a retry would not help
            continue
        for group in groups.values():
            state = group.state.value
            if (not states or state.lower() in states) and (not types or group.kind in types):
                found.append(
                    response.ListedGroup(
                        group_id=group.id,
                        protocol_type=group.protocol_type or "",
                        group_state=state,
                        group_type=group.kind,
                    )
                )
    return response.ListGroupsResponse(throttle_time=UNTHROTTLED, error_code=error, groups=tuple(found))


@handles("describe_groups", versions=range(7))
def describe_groups(context: RequestContext, request: "describe_groups_v6.DescribeGroupsRequest") -> DelayedResult:
    """Describe classic groups. v4 adds static members, v6 GROUP_ID_NOT_FOUND (KIP-1043)."""

    def described(found: dict[str, Any]) -> Any:
        return describe_groups_v6.response.DescribeGroupsResponse(
            throttle_time=UNTHROTTLED,
            groups=tuple([_described(context, request, group_id, found[group_id]) for group_id in request.groups]),
        )

    return for_each_group(
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
    """Metadata and assignments are those of a stable generation."""
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
async def delete_groups(context: RequestContext, request: "delete_groups_v2.DeleteGroupsRequest") -> Any:
    """Delete groups without members, and their offsets (KIP-229)."""
    response = delete_groups_v2.response
    names = list(dict.fromkeys(request.groups_names))
    parts = [names[first : first + GROUPS_PER_ITERATION] for first in range(0, len(names), GROUPS_PER_ITERATION)]
    found: dict[str, Any] = {}
    for deleted in await map_in_slices(context.broker, lambda some: _delete(context, some), parts, 1):
        some: dict[str, Any] = await deleted
        await asyncio.sleep(0)  # between the log lines of two slices
        for group_id, outcome in some.items():
            if error_of(outcome) is ErrorCode.NONE:
                log.info("group deleted", group=group_id, **context.requester.log_fields())
        found |= some
    return response.DeleteGroupsResponse(
        throttle_time=UNTHROTTLED,
        results=tuple(
            [
                response.DeletableGroupResult(group_id=group_id, error_code=error_of(found[group_id]))
                for group_id in names
            ]
        ),
    )


def _delete(context: RequestContext, group_ids: Sequence[str]) -> DelayedResult:
    return for_each_group(
        context, group_ids, lambda machine, group_id: (machine.delete_group(group_id), None), lambda found: found
    )

"""The APIs of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

The rules are in `levada.core.groups.consumer.requests`; the handlers convert requests and responses.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from levada.api.coordinator.groups import (
    ALL_GROUP_OPERATIONS,
    MILLISECOND,
    error_of,
    for_each_group,
)
from levada.api.registry import handles
from levada.api.request import AUTHORIZED_OPERATIONS_OMITTED, UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.purgatory import DelayedResult
from levada.core.groups.consumer import requests as consumer_requests
from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.consumer.group import ConsumerGroup, without_epochs
from levada.core.groups.consumer.member import ConsumerMember
from levada.core.groups.consumer.requests import HeartbeatRequest, HeartbeatResult
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.memory_limit import NAME_BYTES_MAX
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.consumer_group_describe.v1 as consumer_group_describe_v1
    import kio.schema.consumer_group_heartbeat.v1 as consumer_group_heartbeat_v1

CLIENT_MEMBER_ID_FROM = 1  # versions of ConsumerGroupHeartbeat with member ids that clients generate
TOPIC_NAMES_MAX = 500  # a heartbeat with more, or with a regular expression, gets a loop iteration of its own
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@handles("consumer_group_heartbeat", versions=range(2))
def consumer_group_heartbeat(
    context: RequestContext, request: "consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest"
) -> DelayedResult | Awaitable[Any]:
    """Join a group, renew the session, change the subscription, revoke partitions, or leave.

    v1 adds member ids that clients generate, and regular expressions of topics (KIP-1082).
    """
    heartbeat = _to_heartbeat(context, request)

    def submit() -> DelayedResult:
        return context.broker.groups.shard(heartbeat.group_id).submit(
            lambda machine, now_ms, handle: consumer_requests.heartbeat(machine, heartbeat, now_ms, handle),
            _heartbeat_response,
        )

    if heartbeat.topic_regex or len(heartbeat.topic_names or ()) > TOPIC_NAMES_MAX:
        context.connection.muted = True
        return _submit_alone(context, submit)
    return submit()


async def _submit_alone(context: RequestContext, submit: Callable[[], DelayedResult]) -> Any:
    """Submit an expensive heartbeat in a later loop iteration; the next requests of its connection wait for that."""
    try:
        (result,) = await map_in_slices(context.broker, lambda _: submit(), [None], 1)
    finally:
        context.connection.muted = False
        context.connection.wake()
    return await result


def _to_heartbeat(
    context: RequestContext, request: "consumer_group_heartbeat_v1.ConsumerGroupHeartbeatRequest"
) -> HeartbeatRequest:
    member_id = request.member_id
    if not member_id:
        if context.api_version >= CLIENT_MEMBER_ID_FROM:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        if request.member_epoch == 0:
            member_id = str(uuid4())
    heartbeat = HeartbeatRequest(
        request.group_id,
        member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout // MILLISECOND,
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        request.server_assignor,
        None if request.topic_partitions is None else _owned(request.topic_partitions),
        context.client_id or "",
        f"/{context.connection.host}",
    )
    for name in (heartbeat.group_id, heartbeat.member_id, heartbeat.instance_id):
        if name is not None and len(name.encode()) > NAME_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"an id has more than {NAME_BYTES_MAX} bytes")
    return heartbeat


def _owned(topics: Iterable[Any]) -> Partitions:
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.topic_id is not None and topic.partitions:
            owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned


def _heartbeat_response(result: HeartbeatResult) -> Any:
    response = consumer_group_heartbeat_v1.response
    assignment = None
    if result.assignment is not None:
        assignment = response.Assignment(
            topic_partitions=tuple(
                response.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
                for topic_id, partitions in result.assignment.items()
            )
        )
    return response.ConsumerGroupHeartbeatResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval=timedelta(milliseconds=result.heartbeat_interval_ms),
        assignment=assignment,
    )


@handles("consumer_group_describe", versions=range(2))
def consumer_group_describe(
    context: RequestContext, request: "consumer_group_describe_v1.ConsumerGroupDescribeRequest"
) -> DelayedResult:
    """Describe consumer groups, with current and target assignments. v1 adds the protocol of members."""

    def describe(machine: GroupsMachine, group_id: str) -> tuple[tuple[()], Any]:
        group = machine.consumer_group(group_id)
        if group is None:
            why = "is not a consumer group" if group_id in machine.groups else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
        # Converted now: the group may change before the response is sent.
        return (), _described(context, request, group, machine.consumer_limits.assignors[0])

    def convert(found: dict[str, Any]) -> Any:
        groups = [(group_id, found[group_id]) for group_id in request.group_ids]
        return consumer_group_describe_v1.response.ConsumerGroupDescribeResponse(
            throttle_time=UNTHROTTLED,
            groups=tuple(
                [_failed(group_id, group) if isinstance(group, Exception) else group for group_id, group in groups]
            ),
        )

    return for_each_group(context, request.group_ids, describe, convert)


def _described(
    context: RequestContext,
    request: "consumer_group_describe_v1.ConsumerGroupDescribeRequest",
    group: ConsumerGroup,
    default_assignor: str,
) -> Any:
    return consumer_group_describe_v1.response.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(default_assignor),
        members=tuple(_described_member(context, group, member) for member in group.members.values()),
        authorized_operations=(
            ALL_GROUP_OPERATIONS if request.include_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        ),
    )


def _described_member(context: RequestContext, group: ConsumerGroup, member: ConsumerMember) -> Any:
    metadata = member.metadata
    return consumer_group_describe_v1.response.Member(
        member_id=member.id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        subscribed_topic_regex=member.regex,
        assignment=_assignment(context, without_epochs(member.assigned)),
        target_assignment=_assignment(context, group.target(member.id)),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(context: RequestContext, partitions: Partitions) -> Any:
    response = consumer_group_describe_v1.response
    names = context.broker.image.topic_names
    return response.Assignment(
        topic_partitions=tuple(
            response.TopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=tuple(sorted(found)))
            for topic_id, found in partitions.items()
            if topic_id in names
        )
    )


def _failed(group_id: str, error: Exception) -> Any:
    return consumer_group_describe_v1.response.DescribedGroup(
        error_code=error_of(error),
        error_message=error.detail if isinstance(error, KafkaError) else None,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )

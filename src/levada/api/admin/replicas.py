"""Handlers of ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

Any broker executes them. Each partition of a request succeeds or fails alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.core.cluster.controller import Command
from levada.core.cluster.election import ElectLeader
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.core.cluster.reassignment import ReassignPartition
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.alter_partition_reassignments.v1 as alter_partition_reassignments_v1
    import kio.schema.elect_leaders.v2 as elect_leaders_v2
    import kio.schema.list_partition_reassignments.v0 as list_partition_reassignments_v0

PREFERRED, UNCLEAN = 0, 1  # election types


@handles("elect_leaders", versions=range(3))
async def elect_leaders(
    context: RequestContext, request: "elect_leaders_v2.ElectLeadersRequest"
) -> "elect_leaders_v2.ElectLeadersResponse":
    """Elect preferred leaders; v1 adds unclean elections, in which messages may be lost (KIP-460).

    Without partitions in the request it concerns all that need an election.
    """
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    unclean = request.election_type == UNCLEAN
    if request.topic_partitions is None:
        names = _in_need_of_leaders(context.broker.image, unclean=unclean)
    else:
        names = [TopicPartition(one.topic, index) for one in request.topic_partitions for index in one.partitions]
    errors = await _submit(context, {name: ElectLeader(name, unclean) for name in names})
    if request.topic_partitions is None:
        errors = {name: error for name, error in errors.items() if not _is_not_needed(error)}
    response = elect_leaders_v2.response
    return response.ElectLeadersResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        replica_election_results=tuple(
            response.ReplicaElectionResult(
                topic=topic,
                partition_result=tuple(
                    response.PartitionResult(partition_id=index, **_fields(error)) for index, error in results.items()
                ),
            )
            for topic, results in _by_topic(errors).items()
        ),
    )


def _in_need_of_leaders(image: ClusterImage, *, unclean: bool) -> list[TopicPartition]:
    def is_led(state: PartitionImage) -> bool:
        return state.leader in image.brokers if unclean else state.leader == state.replicas[0]

    return [
        TopicPartition(topic.name, index)
        for topic in image.topics.values()
        for index, state in enumerate(topic.partitions)
        if not is_led(state)
    ]


def _is_not_needed(error: KafkaError | None) -> bool:
    return error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED


async def _submit(
    context: RequestContext, commands: Mapping[TopicPartition, Command]
) -> dict[TopicPartition, KafkaError | None]:
    decision = await context.broker.controller.submit_all(list(commands.values()), requester=context.requester)
    return dict(zip(commands, decision.errors, strict=True))


def _by_topic(errors: Mapping[TopicPartition, KafkaError | None]) -> dict[str, dict[int, KafkaError | None]]:
    topics: dict[str, dict[int, KafkaError | None]] = {}
    for (topic, index), error in errors.items():
        topics.setdefault(topic, {})[index] = error
    return topics


def _fields(error: KafkaError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": error.code, "error_message": error.detail or None}


@handles("alter_partition_reassignments", versions=range(2))
async def alter_partition_reassignments(
    context: RequestContext, request: "alter_partition_reassignments_v1.AlterPartitionReassignmentsRequest"
) -> "alter_partition_reassignments_v1.AlterPartitionReassignmentsResponse":
    """Begin to move partitions to other replicas, or cancel that (KIP-455). v1 can keep replication factors (KIP-860).

    The response does not wait for the moves: ListPartitionReassignments returns those in progress.
    """
    may_change_factor = request.allow_replication_factor_change
    commands: dict[TopicPartition, Command] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            commands[name] = ReassignPartition(name, partition.replicas, may_change_factor)
    errors = await _submit(context, commands)
    response = alter_partition_reassignments_v1.response
    return response.AlterPartitionReassignmentsResponse(
        throttle_time=UNTHROTTLED,
        allow_replication_factor_change=may_change_factor,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=tuple(
            response.ReassignableTopicResponse(
                name=name,
                partitions=tuple(
                    response.ReassignablePartitionResponse(partition_index=index, **_fields(error))
                    for index, error in results.items()
                ),
            )
            for name, results in _by_topic(errors).items()
        ),
    )


@handles("list_partition_reassignments", versions=range(1))
def list_partition_reassignments(
    context: RequestContext, request: "list_partition_reassignments_v0.ListPartitionReassignmentsRequest"
) -> "list_partition_reassignments_v0.ListPartitionReassignmentsResponse":
    """Return the partitions whose replicas are being moved (KIP-455)."""
    topics = context.broker.image.topics
    wanted: Mapping[str, Iterable[int]]
    if request.topics is None:
        wanted = {name: range(len(topic.partitions)) for name, topic in topics.items()}
    else:
        wanted = {topic.name: topic.partition_indexes for topic in request.topics if topic.name in topics}
    response = list_partition_reassignments_v0.response
    found = {}
    for name, indexes in wanted.items():
        partitions = topics[name].partitions
        moving = [index for index in indexes if 0 <= index < len(partitions) and partitions[index].is_reassigning]
        if moving:
            found[name] = tuple(
                response.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=partitions[index].replicas,
                    adding_replicas=partitions[index].adding_replicas,
                    removing_replicas=partitions[index].removing_replicas,
                )
                for index in moving
            )
    return response.ListPartitionReassignmentsResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=tuple(response.OngoingTopicReassignment(name=name, partitions=moving) for name, moving in found.items()),
    )

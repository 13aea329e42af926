"""The cluster as clients see it: who the brokers are, who leads what, whom to ask for a group.

Any broker answers from its image (R47). Without access control a client that asks what it may do is told: everything.
"""

from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.throttling import UNTHROTTLED
from levada.broker.broker import Broker
from levada.broker.controller import new_topic_id
from levada.broker.coordinator.runtime import Coordinators
from levada.core.cluster import topic_names
from levada.core.cluster.controller import Command, CreateTopic, find_topic
from levada.core.cluster.image import TopicImage
from levada.errors import ErrorCode, KafkaError
from levada.model import NO_LEADER
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_cluster.v2 as describe_cluster_v2
    import kio.schema.describe_topic_partitions.v0 as describe_topic_partitions_v0
    import kio.schema.find_coordinator.v6 as find_coordinator_v6

    import levada.wire.schema.shapes.metadata as metadata_v13

NOT_ASKED_FOR = -(2**31)
# Bits by the numbers of Kafka's operations: read 3, write 4, create 5, delete 6, alter 7, describe 8,
# cluster action 9, describe configs 10, alter configs 11, idempotent write 12.
ALL_TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
ALL_CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
AUTO_CREATED_MAX = 100  # topics made for one request; a client that asks for more asks again

TOLD_SPARE = 1_000
PARTITIONS_PER_PAGE_MAX = 2_000

BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2
COORDINATOR_TYPES = frozenset((0, 1, 2))  # groups, transactions, share partitions
SHARE = 2

# By broker and topic: the image of a topic, what could serve it, and how it was told.
_told: WeakKeyDictionary[Broker, dict[str, tuple[TopicImage, Any, Any]]] = WeakKeyDictionary()


@handles("metadata", versions=range(14))
def metadata(
    context: RequestContext, request: "metadata_v13.MetadataRequest"
) -> "metadata_v13.MetadataResponse | Awaitable[metadata_v13.MetadataResponse]":
    """Topics, their leaders, and the brokers. v4 asks whether to create topics, v10 adds topic ids (KIP-516)."""
    wanted = _to_create(context, request)
    return _after_creation(context, request, wanted) if wanted else _metadata(context, request)


async def _after_creation(
    context: RequestContext, request: "metadata_v13.MetadataRequest", wanted: list[str]
) -> "metadata_v13.MetadataResponse":
    config = context.broker.current_config()
    commands: list[Command] = [
        CreateTopic(name, new_topic_id(), config.num_partitions, config.default_replication_factor)
        for name in wanted
    ]
    # A topic that could not be made is answered as unknown.
    await context.broker.controller.submit_all(commands)
    return _metadata(context, request)


def _to_create(context: RequestContext, request: "metadata_v13.MetadataRequest") -> list[str]:
    """The names asked for that no topic has and that this broker would give to new ones."""
    if not request.topics or not request.allow_auto_topic_creation:
        return []
    if not context.broker.config.auto_create_topics_enable:
        return []
    known = context.broker.image.topics
    names = dict.fromkeys(
        topic.name for topic in request.topics if topic.topic_id is None and topic.name not in known
    )
    return [name for name in names if name and not topic_names.is_internal(name)][:AUTO_CREATED_MAX]


def _metadata(
    context: RequestContext, request: "metadata_v13.MetadataRequest"
) -> "metadata_v13.MetadataResponse":
    answer = metadata_v13.response
    image = context.broker.image
    if request.topics is None:
        topics = _topics(context, image.topics.values())
    else:
        asked = dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics)
        topics = [_asked_topic(context, name, topic_id) for name, topic_id in asked]
    if request.include_topic_authorized_operations:
        topics = [_with_operations(topic) for topic in topics]
    return metadata_v13.MetadataResponse(
        throttle_time=UNTHROTTLED,
        brokers=tuple(
            answer.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in _brokers(context)
        ),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=tuple(topics),
        error_code=ErrorCode.NONE,
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


def _brokers(context: RequestContext) -> list[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of the brokers that have the listener on which was asked."""
    return [
        (broker.id, endpoint.host, endpoint.port, broker.rack)
        for broker in context.broker.image.brokers.values()
        for endpoint in broker.endpoints
        if endpoint.listener == context.listener
    ]


def _topics(context: RequestContext, topics: Iterable[TopicImage]) -> list[Any]:
    """Topics as told before, as long as they and what can serve them are the same: clients ask far more often."""
    broker = context.broker
    told = _told.setdefault(broker, {})
    if len(told) > 2 * len(broker.image.topics) + TOLD_SPARE:
        told.clear()  # mostly topics that are gone
    serving = tuple(broker.image.brokers), tuple(broker.log_dirs.offline)
    answers = []
    for topic in topics:
        entry = told.get(topic.name)
        if entry is None or entry[0] is not topic or entry[1] != serving:
            entry = told[topic.name] = topic, serving, _topic(context, topic)
        answers.append(entry[2])
    return answers


def _asked_topic(context: RequestContext, name: str | None, topic_id: UUID | None) -> Any:
    try:
        if topic_id is None:
            topic_names.check(name or "")
        return _topics(context, [find_topic(context.broker.image, topic_id or name or "")])[0]
    except KafkaError as error:
        return metadata_v13.response.MetadataResponseTopic(
            error_code=error.code, name=name, topic_id=topic_id, partitions=()
        )


def _with_operations(topic: Any) -> Any:
    """What the client may do, if there is such a topic."""
    if topic.error_code != ErrorCode.NONE:
        return topic
    return replace(topic, topic_authorized_operations=ALL_TOPIC_OPERATIONS)


def _topic(context: RequestContext, topic: TopicImage) -> Any:
    answer = metadata_v13.response
    partition = answer.MetadataResponsePartition
    return answer.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic_names.is_internal(topic.name),
        partitions=tuple(
            [partition(**_state(context, topic, index)) for index in range(len(topic.partitions))]
        ),
    )


def _state(context: RequestContext, topic: TopicImage, index: int) -> dict[str, Any]:
    """A partition in the words that Metadata and DescribeTopicPartitions share."""
    state = topic.partitions[index]
    offline = _offline_replicas(context, topic, index)
    led = state.leader != NO_LEADER and state.leader not in offline
    return {
        "error_code": ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": state.leader if led else NO_LEADER,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": offline,
    }


def _offline_replicas(context: RequestContext, topic: TopicImage, index: int) -> tuple[int, ...]:
    """Brokers that have the partition and cannot serve it: gone, or here with a log dir that failed."""
    broker = context.broker
    return tuple(
        [
            node_id
            for node_id in topic.partitions[index].replicas
            if (node_id not in broker.image.brokers)
            or (node_id == broker.node_id and not _served_here(context, topic.name, index))
        ]
    )


def _served_here(context: RequestContext, topic: str, index: int) -> bool:
    partition = context.broker.partitions.get((topic, index))
    return partition is not None and not partition.offline


@handles("describe_topic_partitions", versions=range(1))
def describe_topic_partitions(
    context: RequestContext, request: "describe_topic_partitions_v0.DescribeTopicPartitionsRequest"
) -> "describe_topic_partitions_v0.DescribeTopicPartitionsResponse":
    """Partitions of topics in the order of their names, page by page (KIP-966)."""
    answer = describe_topic_partitions_v0.response
    room = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    names = sorted({topic.name for topic in request.topics} or context.broker.image.topics)
    cursor = request.cursor
    first = 0
    if cursor is not None:
        if cursor.topic_name not in names or cursor.partition_index < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor is not at a partition of these topics")
        names = names[names.index(cursor.topic_name) :]
        first = cursor.partition_index
    topics, next_cursor = [], None
    for name in names:
        if room == 0:
            next_cursor = answer.Cursor(topic_name=name, partition_index=first)
            break
        found = _page(context, name, first, room)
        topics.append(found)
        end = first + len(found.partitions)
        room -= len(found.partitions)
        if found.error_code == ErrorCode.NONE and end < len(context.broker.image.topics[name].partitions):
            next_cursor = answer.Cursor(topic_name=name, partition_index=end)
            break
        first = 0
    return answer.DescribeTopicPartitionsResponse(
        throttle_time=UNTHROTTLED, topics=tuple(topics), next_cursor=next_cursor
    )


def _page(context: RequestContext, name: str, first: int, room: int) -> Any:
    """The partitions of a topic from `first` on, as many as there is room for."""
    answer = describe_topic_partitions_v0.response
    try:
        topic_names.check(name)
        topic = find_topic(context.broker.image, name)
    except KafkaError as error:
        return answer.DescribeTopicPartitionsResponseTopic(
            error_code=error.code,
            name=name,
            topic_id=None,
            partitions=(),
            topic_authorized_operations=ALL_TOPIC_OPERATIONS,
        )
    return answer.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.id,
        is_internal=topic_names.is_internal(name),
        partitions=tuple(
            answer.DescribeTopicPartitionsResponsePartition(
                **_state(context, topic, index), eligible_leader_replicas=(), last_known_elr=()
            )
            for index in range(first, len(topic.partitions))[:room]
        ),
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


@handles("describe_cluster", versions=range(3))
def describe_cluster(
    context: RequestContext, request: "describe_cluster_v2.DescribeClusterRequest"
) -> "describe_cluster_v2.DescribeClusterResponse":
    """The brokers. v1 tells brokers from controllers (KIP-919), v2 asks for fenced ones (KIP-1073)."""
    if request.endpoint_type == CONTROLLER_ENDPOINTS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKER_ENDPOINTS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}"
        )
    answer = describe_cluster_v2.response
    image = context.broker.image
    return answer.DescribeClusterResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        endpoint_type=BROKER_ENDPOINTS,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=tuple(
            answer.DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack, is_fenced=False)
            for node_id, host, port, rack in _brokers(context)
        ),
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


@handles("find_coordinator", versions=range(7))
def find_coordinator(
    context: RequestContext, request: "find_coordinator_v6.FindCoordinatorRequest"
) -> "find_coordinator_v6.FindCoordinatorResponse | Awaitable[find_coordinator_v6.FindCoordinatorResponse]":
    """Whom to ask for a group or transaction: this node. v4 asks for many at once (KIP-699), v6 for share groups.

    The first question makes the internal topic; whoever asks meanwhile waits with it instead of asking again.
    """
    coordinators = context.broker.coordinators.get(request.key_type)
    if coordinators is None or coordinators.exists or not request.coordinator_keys:
        return _coordinators(context, request)
    return _coordinators_once_made(context, request, coordinators)


async def _coordinators_once_made(
    context: RequestContext,
    request: "find_coordinator_v6.FindCoordinatorRequest",
    coordinators: Coordinators[Any],
) -> "find_coordinator_v6.FindCoordinatorResponse":
    await coordinators.create_topic()
    return _coordinators(context, request)


def _coordinators(
    context: RequestContext, request: "find_coordinator_v6.FindCoordinatorRequest"
) -> "find_coordinator_v6.FindCoordinatorResponse":
    answer = find_coordinator_v6.response
    here = next((broker for broker in _brokers(context) if broker[0] == context.broker.node_id), None)
    coordinators = []
    for key in request.coordinator_keys:
        node_id, host, port, error = int(NO_LEADER), "", -1, ErrorCode.NONE
        if request.key_type not in COORDINATOR_TYPES or (
            request.key_type == SHARE and not _is_share_key(key)
        ):
            error = ErrorCode.INVALID_REQUEST
        elif here is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            node_id, host, port, _ = here
        coordinators.append(
            answer.Coordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=""
            )
        )
    return answer.FindCoordinatorResponse(throttle_time=UNTHROTTLED, coordinators=tuple(coordinators))


def _is_share_key(key: str) -> bool:
    """A share partition is `group:topic id:partition`."""
    group, _, rest = key.partition(":")
    topic_id, _, partition = rest.partition(":")
    return bool(group) and len(topic_id) == 22 and partition.isdecimal()

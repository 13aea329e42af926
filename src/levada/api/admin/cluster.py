"""Handlers of Metadata, DescribeCluster, DescribeTopicPartitions and FindCoordinator.

Any broker responds from its metadata image. Without access control every operation is authorized.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from levada.api.registry import handles
from levada.api.request import AUTHORIZED_OPERATIONS_OMITTED, UNTHROTTLED, RequestContext
from levada.broker.broker import Broker
from levada.broker.controller import new_topic_id
from levada.broker.coordinator.runtime import CoordinatorRuntime
from levada.core.cluster import topic_names
from levada.core.cluster.controller import Command, CreateTopic, find_topic
from levada.core.cluster.image import BrokerImage, TopicImage
from levada.errors import ErrorCode, KafkaError
from levada.model import NO_LEADER
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_cluster.v2 as describe_cluster_v2
    import kio.schema.describe_topic_partitions.v0 as describe_topic_partitions_v0
    import kio.schema.find_coordinator.v6 as find_coordinator_v6

    import levada.wire.schema.shapes.metadata as metadata_v13

# Bits by Kafka's AclOperation codes: read 3, write 4, create 5, delete 6, alter 7, describe 8,
# cluster action 9, describe configs 10, alter configs 11, idempotent write 12.
ALL_TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
ALL_CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
AUTO_CREATED_MAX = 100  # topics created by one request; clients request the others again

CACHED_TOPICS_SPARE = 1_000
PARTITIONS_PER_ITERATION = 500  # of which the response is built, before the handler yields to the event loop
PARTITIONS_PER_PAGE_MAX = 2_000

BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2
COORDINATOR_TYPES = frozenset((0, 1, 2))  # groups, transactions, share partitions
SHARE = 2
MANY_KEYS_FROM = 4

# By broker and topic: the topic's image, what its leaders depend on, and the topic's response.
_topic_responses: WeakKeyDictionary[Broker, dict[str, tuple[TopicImage, Any, Any]]] = WeakKeyDictionary()


@handles("metadata", versions=range(14))
def metadata(
    context: RequestContext, request: "metadata_v13.MetadataRequest"
) -> "metadata_v13.MetadataResponse | Awaitable[metadata_v13.MetadataResponse]":
    """Return the brokers, and topics with their partitions and leaders; create missing topics if the client allows it.

    v1 controller and racks; v4 allow_auto_topic_creation; v5 offline replicas; v7 leader epochs; v8 authorized
    operations (KIP-430); v10 topic ids (KIP-516); v12 topics by id; v13 a top-level error code.
    """
    missing = _missing_topics(context, request)
    if missing:
        return _create_then_respond(context, request, missing)
    large = _large_topics(context, request)
    return _build_then_respond(context, request, large) if large else _metadata(context, request)


def _large_topics(context: RequestContext, request: "metadata_v13.MetadataRequest") -> list[TopicImage]:
    """The requested topics with too many partitions to build their responses in one loop iteration."""
    image = context.broker.image
    if request.topics is None:
        topics = list(image.topics.values())
    else:
        names = [image.topic_names.get(topic.topic_id) if topic.topic_id else topic.name for topic in request.topics]
        topics = [image.topics[name] for name in names if name is not None and name in image.topics]
    offline = _offline(context.broker)
    missing = [topic for topic in topics if _cached(context.broker, topic, offline) is None]
    return missing if sum(len(topic.partitions) for topic in missing) > PARTITIONS_PER_ITERATION else []


async def _build_then_respond(
    context: RequestContext, request: "metadata_v13.MetadataRequest", topics: Iterable[TopicImage]
) -> "metadata_v13.MetadataResponse":
    """Build the responses of topics in several loop iterations."""
    built = 0
    async with context.broker.large_requests:
        for topic in topics:
            availability, partitions = (_offline(context.broker), context.broker.opened_partitions[topic.name]), []
            for index in range(len(topic.partitions)):
                if built % PARTITIONS_PER_ITERATION == 0:
                    await asyncio.sleep(0)
                partitions.append(_partition(context, topic, index))
                built += 1
            if context.broker.image.topics.get(topic.name) is topic:
                _cache(context.broker)[topic.name] = topic, availability, _topic(topic, partitions)
    return _metadata(context, request)


async def _create_then_respond(
    context: RequestContext, request: "metadata_v13.MetadataRequest", missing: list[str]
) -> "metadata_v13.MetadataResponse":
    config = context.broker.current_config()
    commands: list[Command] = [
        CreateTopic(name, new_topic_id(), config.num_partitions, config.default_replication_factor) for name in missing
    ]
    # A topic that could not be created is returned as unknown.
    if context.broker.log_dirs.is_usable:
        await context.broker.controller.submit_all(commands, requester=context.requester)
    return _metadata(context, request)


def _missing_topics(context: RequestContext, request: "metadata_v13.MetadataRequest") -> list[str]:
    """The requested topics that do not exist and that this broker may create."""
    if not request.topics or not request.allow_auto_topic_creation:
        return []
    if not context.broker.config.auto_create_topics_enable:
        return []
    known = context.broker.image.topics
    names = dict.fromkeys(topic.name for topic in request.topics if topic.topic_id is None and topic.name not in known)
    return [name for name in names if name and not topic_names.is_internal(name)][:AUTO_CREATED_MAX]


def _metadata(context: RequestContext, request: "metadata_v13.MetadataRequest") -> "metadata_v13.MetadataResponse":
    response = metadata_v13.response
    image = context.broker.image
    if request.topics is None:
        topics = _topics(context, image.topics.values())
    else:
        requested = dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics)
        topics = [_requested_topic(context, name, topic_id) for name, topic_id in requested]
    if request.include_topic_authorized_operations:
        topics = [_with_operations(topic) for topic in topics]
    return metadata_v13.MetadataResponse(
        throttle_time=UNTHROTTLED,
        brokers=tuple(
            response.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in _brokers(context, image.brokers)
        ),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=tuple(topics),
        error_code=ErrorCode.NONE,
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        ),
    )


def _brokers(context: RequestContext, brokers: Mapping[int, BrokerImage]) -> list[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of those brokers that have the listener of this connection."""
    return [
        (broker.id, endpoint.host, endpoint.port, broker.rack)
        for broker in brokers.values()
        for endpoint in broker.endpoints
        if endpoint.listener == context.listener
    ]


def _topics(context: RequestContext, topics: Iterable[TopicImage]) -> list[Any]:
    """Responses of topics, cached as long as the topic, the live brokers and the partitions served are the same."""
    broker = context.broker
    cache, offline = _cache(broker), _offline(broker)
    responses = []
    for topic in topics:
        found = _cached(broker, topic, offline)
        if found is None:
            partitions = [_partition(context, topic, index) for index in range(len(topic.partitions))]
            found = _topic(topic, partitions)
            cache[topic.name] = topic, (offline, broker.opened_partitions[topic.name]), found
        responses.append(found)
    return responses


def _cache(broker: Broker) -> dict[str, tuple[TopicImage, Any, Any]]:
    cache = _topic_responses.setdefault(broker, {})
    if len(cache) > 2 * len(broker.image.topics) + CACHED_TOPICS_SPARE:
        cache.clear()  # most entries are of deleted topics
    return cache


def _cached(broker: Broker, topic: TopicImage, offline: tuple[Any, ...]) -> Any | None:
    entry = _topic_responses.setdefault(broker, {}).get(topic.name)
    if entry is None or entry[0] is not topic or entry[1] != (offline, broker.opened_partitions[topic.name]):
        return None
    return entry[2]


def _offline(broker: Broker) -> tuple[Any, ...]:
    """What all leaders depend on: the live brokers, and what is offline here."""
    log_dirs = broker.log_dirs
    epochs = tuple((node_id, alive.epoch) for node_id, alive in broker.image.brokers.items())
    return epochs, tuple(log_dirs.offline), len(log_dirs.offline_logs)


def _requested_topic(context: RequestContext, name: str | None, topic_id: UUID | None) -> Any:
    try:
        if topic_id is None:
            topic_names.check(name or "")
        return _topics(context, [find_topic(context.broker.image, topic_id or name or "")])[0]
    except KafkaError as error:
        return metadata_v13.response.MetadataResponseTopic(
            error_code=error.code, name=name, topic_id=topic_id, partitions=()
        )


def _with_operations(topic: Any) -> Any:
    """Add the authorized operations, if the topic exists."""
    if topic.error_code != ErrorCode.NONE:
        return topic
    return replace(topic, topic_authorized_operations=ALL_TOPIC_OPERATIONS)


def _partition(context: RequestContext, topic: TopicImage, index: int) -> Any:
    return metadata_v13.response.MetadataResponsePartition(**_state(context, topic, index))


def _topic(topic: TopicImage, partitions: Iterable[Any]) -> Any:
    return metadata_v13.response.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic_names.is_hidden(topic.name),
        partitions=tuple(partitions),
    )


def _state(context: RequestContext, topic: TopicImage, index: int) -> dict[str, Any]:
    """The fields of a partition that Metadata and DescribeTopicPartitions share."""
    broker, state = context.broker, topic.partitions[index]
    offline = _offline_replicas(context, topic, index)
    alive = broker.image.brokers.get(state.leader)
    # A leader that has restarted waits for its election.
    available = alive is not None and alive.epoch == state.leader_broker_epoch and state.leader not in offline
    if state.leader == broker.node_id:
        available = available and (topic.name, index) in broker.partitions  # otherwise its log is being opened
    return {
        "error_code": ErrorCode.NONE if available else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": state.leader if available else NO_LEADER,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": offline,
    }


def _offline_replicas(context: RequestContext, topic: TopicImage, index: int) -> tuple[int, ...]:
    """Replicas that cannot serve the partition: their broker is not alive, or its log dir here is offline."""
    broker = context.broker
    return tuple(
        [
            node_id
            for node_id in topic.partitions[index].replicas
            if (node_id not in broker.image.brokers)
            or (node_id == broker.node_id and _is_offline(broker, topic.name, index))
        ]
    )


def _is_offline(broker: Broker, topic: str, index: int) -> bool:
    partition = broker.partitions.get((topic, index))
    return (topic, index) in broker.log_dirs.offline_logs if partition is None else partition.offline


@handles("describe_topic_partitions", versions=range(1))
def describe_topic_partitions(
    context: RequestContext, request: "describe_topic_partitions_v0.DescribeTopicPartitionsRequest"
) -> "describe_topic_partitions_v0.DescribeTopicPartitionsResponse":
    """Return partitions of topics in the order of topic names, page by page (KIP-966)."""
    response = describe_topic_partitions_v0.response
    room = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    names = sorted({topic.name for topic in request.topics} or context.broker.image.topics)
    cursor = request.cursor
    first = 0
    if cursor is not None:
        if cursor.topic_name not in names or cursor.partition_index < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor is not a partition of the requested topics")
        names = names[names.index(cursor.topic_name) :]
        first = cursor.partition_index
    topics, next_cursor = [], None
    for name in names:
        if room == 0:
            next_cursor = response.Cursor(topic_name=name, partition_index=first)
            break
        found = _page(context, name, first, room)
        topics.append(found)
        end = first + len(found.partitions)
        room -= len(found.partitions)
        if found.error_code == ErrorCode.NONE and end < len(context.broker.image.topics[name].partitions):
            next_cursor = response.Cursor(topic_name=name, partition_index=end)
            break
        first = 0
    return response.DescribeTopicPartitionsResponse(
        throttle_time=UNTHROTTLED, topics=tuple(topics), next_cursor=next_cursor
    )


def _page(context: RequestContext, name: str, first: int, room: int) -> Any:
    """The partitions of a topic from `first` on, at most `room`."""
    response = describe_topic_partitions_v0.response
    try:
        topic_names.check(name)
        topic = find_topic(context.broker.image, name)
    except KafkaError as error:
        return response.DescribeTopicPartitionsResponseTopic(
            error_code=error.code,
            name=name,
            topic_id=None,
            partitions=(),
            topic_authorized_operations=ALL_TOPIC_OPERATIONS,
        )
    return response.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.id,
        is_internal=topic_names.is_hidden(name),
        partitions=tuple(
            response.DescribeTopicPartitionsResponsePartition(
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
    """Return the brokers. v1 adds endpoint types (KIP-919), v2 fenced brokers, which are not alive (KIP-1073)."""
    if request.endpoint_type == CONTROLLER_ENDPOINTS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKER_ENDPOINTS:
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
    response = describe_cluster_v2.response
    image = context.broker.image
    return response.DescribeClusterResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        endpoint_type=BROKER_ENDPOINTS,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=tuple(
            response.DescribeClusterBroker(
                broker_id=node_id, host=host, port=port, rack=rack, is_fenced=node_id not in image.brokers
            )
            for node_id, host, port, rack in _brokers(
                context, image.registered if request.include_fenced_brokers else image.brokers
            )
        ),
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        ),
    )


@handles("find_coordinator", versions=range(7))
def find_coordinator(
    context: RequestContext, request: "find_coordinator_v6.FindCoordinatorRequest"
) -> "find_coordinator_v6.FindCoordinatorResponse | Awaitable[find_coordinator_v6.FindCoordinatorResponse]":
    """Return the coordinator of a group or transactional id: this broker.

    v1 adds transactional ids and a message, which is NONE without an error, as in Kafka; v4 many keys in one request
    (KIP-699), v6 share groups (KIP-932). The first request creates the internal topic; requests in the meantime wait.
    """
    coordinators = context.broker.coordinators.get(request.key_type)
    if coordinators is None or coordinators.is_created or not request.coordinator_keys:
        return _coordinators(context, request)
    return _create_then_find(context, request, coordinators)


async def _create_then_find(
    context: RequestContext,
    request: "find_coordinator_v6.FindCoordinatorRequest",
    coordinators: CoordinatorRuntime[Any],
) -> "find_coordinator_v6.FindCoordinatorResponse":
    await coordinators.create_topic()
    return _coordinators(context, request)


def _coordinators(
    context: RequestContext, request: "find_coordinator_v6.FindCoordinatorRequest"
) -> "find_coordinator_v6.FindCoordinatorResponse":
    response = find_coordinator_v6.response
    brokers = _brokers(context, context.broker.image.brokers)
    here = next((broker for broker in brokers if broker[0] == context.broker.node_id), None)
    coordinators = []
    for key in request.coordinator_keys:
        node_id, host, port, error = int(NO_LEADER), "", -1, ErrorCode.NONE
        if request.key_type not in COORDINATOR_TYPES or (request.key_type == SHARE and not _is_share_key(key)):
            error = ErrorCode.INVALID_REQUEST
        elif here is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            node_id, host, port, _ = here
        message = "NONE" if error is ErrorCode.NONE and context.api_version < MANY_KEYS_FROM else ""
        coordinators.append(
            response.Coordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=message
            )
        )
    return response.FindCoordinatorResponse(throttle_time=UNTHROTTLED, coordinators=tuple(coordinators))


def _is_share_key(key: str) -> bool:
    """A share partition is `group:topic id:partition`."""
    group, _, rest = key.partition(":")
    topic_id, _, partition = rest.partition(":")
    return bool(group) and len(topic_id) == 22 and partition.isdecimal()

"""Handlers of CreateTopics, DeleteTopics and CreatePartitions.

Each topic of a request succeeds or fails alone; all that succeed are committed at once.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from levada.api.admin.configs import Entry, inherited_entries, topic_entries
from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.broker.broker import Broker
from levada.broker.controller import Decision, new_topic_id
from levada.config.broker import BrokerConfig
from levada.core.cluster.controller import (
    PARTITIONS_PER_REQUEST_MAX,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    find_topic,
)
from levada.core.cluster.image import ClusterImage, TopicImage
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.create_partitions.v3 as create_partitions_v3
    import kio.schema.create_topics.v7 as create_topics_v7
    import kio.schema.delete_topics.v6 as delete_topics_v6

BROKER_DEFAULT = -1
TOPICS_PER_ITERATION = 25  # results with all their configs, before the handler yields to the event loop


@handles("create_topics", versions=range(2, 8))
async def create_topics(
    context: RequestContext, request: "create_topics_v7.CreateTopicsRequest"
) -> "create_topics_v7.CreateTopicsResponse":
    """Create topics. v4 adds broker defaults (KIP-464), v5 configs in the response (KIP-525), v7 ids (KIP-516)."""
    times = Counter(topic.name for topic in request.topics)
    config = context.broker.current_config()
    errors: dict[str, KafkaError | None] = {}
    commands: dict[str, CreateTopic] = {}
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise _duplicate_name()
            context.broker.log_dirs.check_usable()
            commands[topic.name] = _create_command(config, topic, context.broker.internal_configs(topic.name))
        except KafkaError as error:
            errors[topic.name] = error.without_traceback()
    _check_count(sum(len(command.assignments) or command.partitions for command in commands.values()))
    decision = await _submit(context, commands, errors, validate_only=request.validate_only)
    inherited = inherited_entries(context.broker)
    results = []
    for name in times:
        if errors[name] is None and not request.validate_only:
            errors[name] = _storage_error(context.broker, decision.image.topics[name])
        results.append(_created(decision.image, inherited, name, errors[name]))
        if len(results) % TOPICS_PER_ITERATION == 0:
            await asyncio.sleep(0)
    return create_topics_v7.CreateTopicsResponse(throttle_time=UNTHROTTLED, topics=tuple(results))


def _check_count(partitions: int) -> None:
    """Reject a request that creates more partitions than a broker can create without blocking its other clients."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _storage_error(broker: Broker, topic: TopicImage, first: int = 0) -> KafkaError | None:
    """The error of new partitions, from `first` on, whose logs could not be created here."""
    if broker.image.topics.get(topic.name) is None:
        return None  # deleted meanwhile
    for index in range(first, len(topic.partitions)):
        partition = broker.partitions.get((topic.name, index))
        if (partition is None or partition.offline) and topic.partitions[index].leader == broker.node_id:
            detail = f"Topic '{topic.name}' exists, but the log of partition {index} could not be created."
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail)
    return None


def _duplicate_name() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def _submit(
    context: RequestContext,
    commands: Mapping[Any, Command],
    errors: dict[Any, KafkaError | None],
    *,
    validate_only: bool,
) -> Decision:
    """Submit the commands to the controller and add the error of each to `errors`."""
    decision = await context.broker.controller.submit_all(
        list(commands.values()), validate_only=validate_only, requester=context.requester
    )
    errors.update(zip(commands, decision.errors, strict=True))
    return decision


def _create_command(config: BrokerConfig, topic: Any, internal: Mapping[str, str]) -> CreateTopic:
    configs = dict(internal)
    for item in topic.configs:
        if item.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {item.name}")
        configs[item.name] = item.value
    count, factor = topic.num_partitions, topic.replication_factor
    return CreateTopic(
        name=topic.name,
        id=new_topic_id(),
        partitions=config.num_partitions if count == BROKER_DEFAULT else count,
        replication_factor=config.default_replication_factor if factor == BROKER_DEFAULT else factor,
        assignments=_manual_assignments(topic),
        configs=configs,
    )


def _manual_assignments(topic: Any) -> list[tuple[int, ...]]:
    """The replicas of each partition, in the order of the partitions."""
    if not topic.assignments:
        return []
    for value, what in (
        (topic.replication_factor, "replication factor"),
        (topic.num_partitions, "numPartitions"),
    ):
        if value != BROKER_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    replicas: dict[int, tuple[int, ...]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in replicas:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        replicas[assignment.partition_index] = assignment.broker_ids
    if sorted(replicas) != list(range(len(replicas))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [replicas[index] for index in range(len(replicas))]


def _created(image: ClusterImage, inherited: list[Entry], name: str, error: KafkaError | None) -> Any:
    response = create_topics_v7.response
    if error is not None:
        return response.CreatableTopicResult(
            name=name, topic_id=None, error_code=error.code, error_message=error.detail or None, configs=None
        )
    topic = image.topics[name]
    configs = tuple(
        response.CreatableTopicConfigs(
            name=entry.setting.name,
            value=entry.text,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.setting.sensitive,
        )
        for entry in topic_entries(topic, inherited)
    )
    return response.CreatableTopicResult(
        name=name,
        topic_id=topic.id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=configs,
    )


@handles("delete_topics", versions=range(1, 7))
async def delete_topics(
    context: RequestContext, request: "delete_topics_v6.DeleteTopicsRequest"
) -> "delete_topics_v6.DeleteTopicsResponse":
    """Delete topics and their data. v5 adds error messages (KIP-599), v6 topic ids (KIP-516)."""
    if not context.broker.config.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    requested = Counter((state.name, state.topic_id) for state in request.topics)
    image = context.broker.image
    errors: dict[Any, KafkaError | None] = {}
    commands: dict[Any, Command] = {}
    found: dict[Any, tuple[str, Any]] = {}
    names: set[str] = set()
    for key, times in requested.items():
        try:
            topic = find_topic(image, _name_or_id(*key))
            if times > 1 or topic.name in names:
                raise _duplicate_name()
            names.add(topic.name)
            found[key] = topic.name, topic.id
            commands[key] = DeleteTopic(topic.id)
        except KafkaError as raised:
            errors[key] = raised.without_traceback()
    await _submit(context, commands, errors, validate_only=False)
    response = delete_topics_v6.response
    responses = []
    for key in requested:
        name, topic_id = found.get(key, key)
        error = errors[key]
        responses.append(
            response.DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.detail or None if error else None,
            )
        )
    return response.DeleteTopicsResponse(throttle_time=UNTHROTTLED, responses=tuple(responses))


def _name_or_id(name: str | None, topic_id: Any) -> Any:
    if name is not None and topic_id is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    return topic_id if name is None else name


@handles("create_partitions", versions=range(4))
async def create_partitions(
    context: RequestContext, request: "create_partitions_v3.CreatePartitionsRequest"
) -> "create_partitions_v3.CreatePartitionsResponse":
    """Add partitions to topics, up to the given total count."""
    times = Counter(topic.name for topic in request.topics)
    errors: dict[str, KafkaError | None] = {
        name: _duplicate_name() for name, occurrences in times.items() if occurrences > 1
    }
    commands: dict[str, Command] = {
        topic.name: CreatePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [item.broker_ids for item in topic.assignments],
        )
        for topic in request.topics
        if topic.name not in errors
    }
    topics = context.broker.image.topics
    present = {topic.name: len(topics[topic.name].partitions) for topic in request.topics if topic.name in topics}
    _check_count(sum(topic.count - present[topic.name] for topic in request.topics if topic.name in present))
    context.broker.log_dirs.check_usable()
    decision = await _submit(context, commands, errors, validate_only=request.validate_only)
    response = create_partitions_v3.response
    results = []
    for name in times:
        error = errors[name]
        if error is None and not request.validate_only:
            error = _storage_error(context.broker, decision.image.topics[name], present[name])
        results.append(
            response.CreatePartitionsTopicResult(
                name=name,
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.detail or None if error else None,
            )
        )
    return response.CreatePartitionsResponse(throttle_time=UNTHROTTLED, results=tuple(results))

"""Topics made, grown and removed. Each topic of a request succeeds or fails alone, in one commit with the others."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from levada.api.configs import Entry, inherited_entries, topic_entries
from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.throttling import UNTHROTTLED
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
from levada.core.cluster.image import ClusterImage
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.create_partitions.v3 as create_partitions_v3
    import kio.schema.create_topics.v7 as create_topics_v7
    import kio.schema.delete_topics.v6 as delete_topics_v6

BROKERS_DEFAULT = -1
TOLD_AT_ONCE = 100  # topics with all their settings, before others have their turn


@handles("create_topics", versions=range(2, 8))
async def create_topics(
    context: RequestContext, request: "create_topics_v7.CreateTopicsRequest"
) -> "create_topics_v7.CreateTopicsResponse":
    """Make topics. v5 answers with their settings (KIP-525), v7 with their ids (KIP-516)."""
    times = Counter(topic.name for topic in request.topics)
    config = context.broker.current_config()
    errors: dict[str, KafkaError | None] = {}
    commands: dict[str, CreateTopic] = {}
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise _duplicate_name()
            commands[topic.name] = _creation(config, topic)
        except KafkaError as error:
            errors[topic.name] = error.kept()
    _check_count(sum(len(command.assignments) or command.partitions for command in commands.values()))
    decision = await _submit(context, commands, errors, validate_only=request.validate_only)
    inherited = inherited_entries(context.broker)
    told = []
    for name in times:
        told.append(_created(decision.image, inherited, name, errors[name]))
        if len(told) % TOLD_AT_ONCE == 0:
            await asyncio.sleep(0)
    return create_topics_v7.CreateTopicsResponse(throttle_time=UNTHROTTLED, topics=tuple(told))


def _check_count(partitions: int) -> None:
    """Refuse a request that asks for more at once than a broker could make without making everybody wait."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _duplicate_name() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def _submit(
    context: RequestContext,
    commands: Mapping[Any, Command],
    errors: dict[Any, KafkaError | None],
    *,
    validate_only: bool,
) -> Decision:
    """Carry out the commands and note what became of each."""
    decision = await context.broker.controller.submit_all(
        list(commands.values()), validate_only=validate_only
    )
    errors.update(zip(commands, decision.errors, strict=True))
    return decision


def _creation(config: BrokerConfig, topic: Any) -> CreateTopic:
    configs = {}
    for item in topic.configs:
        if item.value is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {item.name}"
            )
        configs[item.name] = item.value
    count, factor = topic.num_partitions, topic.replication_factor
    return CreateTopic(
        name=topic.name,
        id=new_topic_id(),
        partitions=config.num_partitions if count == BROKERS_DEFAULT else count,
        replication_factor=config.default_replication_factor if factor == BROKERS_DEFAULT else factor,
        assignments=_manual_assignments(topic),
        configs=configs,
    )


def _manual_assignments(topic: Any) -> list[tuple[int, ...]]:
    """The brokers of each partition, in the order of the partitions."""
    if not topic.assignments:
        return []
    for value, what in (
        (topic.replication_factor, "replication factor"),
        (topic.num_partitions, "numPartitions"),
    ):
        if value != BROKERS_DEFAULT:
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
    answer = create_topics_v7.response
    if error is not None:
        return answer.CreatableTopicResult(
            name=name, topic_id=None, error_code=error.code, error_message=error.detail or None, configs=None
        )
    topic = image.topics[name]
    configs = tuple(
        answer.CreatableTopicConfigs(
            name=entry.setting.name,
            value=entry.text,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.setting.sensitive,
        )
        for entry in topic_entries(topic, inherited)
    )
    return answer.CreatableTopicResult(
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
    """Remove topics and their data. v6 names them by name or by id (KIP-516)."""
    if not context.broker.config.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    asked = Counter((state.name, state.topic_id) for state in request.topics)
    image = context.broker.image
    errors: dict[Any, KafkaError | None] = {}
    commands: dict[Any, Command] = {}
    found: dict[Any, tuple[str, Any]] = {}
    names: set[str] = set()
    for key, times in asked.items():
        try:
            topic = find_topic(image, _only_one(*key))
            if times > 1 or topic.name in names:
                raise _duplicate_name()
            names.add(topic.name)
            found[key] = topic.name, topic.id
            commands[key] = DeleteTopic(topic.id)
        except KafkaError as error:
            errors[key] = error.kept()
    await _submit(context, commands, errors, validate_only=False)
    answer = delete_topics_v6.response
    responses = []
    for key in asked:
        name, topic_id = found.get(key, key)
        refused = errors[key]
        responses.append(
            answer.DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=refused.code if refused else ErrorCode.NONE,
                error_message=refused.detail or None if refused else None,
            )
        )
    return answer.DeleteTopicsResponse(throttle_time=UNTHROTTLED, responses=tuple(responses))


def _only_one(name: str | None, topic_id: Any) -> Any:
    if name is not None and topic_id is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    return topic_id if name is None else name


@handles("create_partitions", versions=range(4))
async def create_partitions(
    context: RequestContext, request: "create_partitions_v3.CreatePartitionsRequest"
) -> "create_partitions_v3.CreatePartitionsResponse":
    """Give topics more partitions, up to a count in all (R15)."""
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
    _check_count(
        sum(
            topic.count - len(topics[topic.name].partitions)
            for topic in request.topics
            if topic.name in topics
        )
    )
    await _submit(context, commands, errors, validate_only=request.validate_only)
    answer = create_partitions_v3.response
    results = []
    for name in times:
        refused = errors[name]
        results.append(
            answer.CreatePartitionsTopicResult(
                name=name,
                error_code=refused.code if refused else ErrorCode.NONE,
                error_message=refused.detail or None if refused else None,
            )
        )
    return answer.CreatePartitionsResponse(throttle_time=UNTHROTTLED, results=tuple(results))

"""The decisions of the controller: a pure function from image and command to the changes to store.

A command returns all its changes or raises KafkaError with Kafka's code and message. Ids and defaults are part of the
command, because they depend on randomness and settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias
from uuid import UUID

from levada.config.topic import TopicConfig
from levada.core.cluster import topic_names
from levada.core.cluster.config_changes import (
    AlterConfigs,
    IncrementalAlterConfigs,
    alter_configs,
    internal_topic_configs,
)
from levada.core.cluster.image import (
    UNASSIGNED,
    Change,
    ClusterImage,
    PartitionImage,
    ProducerIdsAllocated,
    TopicChanged,
    TopicImage,
    TopicRemoved,
    metric_name,
)
from levada.core.cluster.isr import AlterPartition, ReplicasOffline, alter_partition, replicas_offline
from levada.errors import ErrorCode, KafkaError

PRODUCER_ID_BLOCK: Final = 1_000
PRODUCER_ID_MAX: Final = (1 << 63) - 1
# Kafka's limit of partitions that one request creates.
PARTITIONS_PER_REQUEST_MAX: Final = 10_000

# The replicas of each new partition, the preferred leader first.
Assignments: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic. Without assignments the controller assigns replicas to brokers."""

    name: str
    id: UUID
    partitions: int = 1
    replication_factor: int = 1
    assignments: Assignments = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic, by name or id."""

    topic: str | UUID


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Increase the partitions of a topic to `count`."""

    topic: str
    count: int
    assignments: Assignments | None = None


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Allocate a block of unique producer ids."""


@dataclass(frozen=True, slots=True)
class AssignDirectories:
    """Record which log dirs of a broker hold its replicas (KIP-858), by topic id and partition."""

    broker: int
    directories: Mapping[UUID, Mapping[int, UUID]]


Command: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfigs
    | IncrementalAlterConfigs
    | AllocateProducerIds
    | AssignDirectories
    | AlterPartition
    | ReplicasOffline
)


def decide(image: ClusterImage, command: Command) -> list[Change]:
    """Return the changes of a command."""
    match command:
        case CreateTopic():
            return _create_topic(image, command)
        case DeleteTopic():
            return [TopicRemoved(find_topic(image, command.topic).name)]
        case CreatePartitions():
            return _create_partitions(image, command)
        case AllocateProducerIds():
            first = image.next_producer_id
            if first > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are exhausted")
            return [ProducerIdsAllocated(first + PRODUCER_ID_BLOCK)]
        case AlterConfigs() | IncrementalAlterConfigs():
            return alter_configs(image, command)
        case AlterPartition():
            return alter_partition(image, command)
        case ReplicasOffline():
            return replicas_offline(image, command)
        case AssignDirectories():
            return _assign_directories(image, command)


def find_topic(image: ClusterImage, topic: str | UUID) -> TopicImage:
    """Return the topic of a name or an id."""
    if isinstance(topic, UUID):
        name = image.topic_names.get(topic)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return image.topics[name]
    found = image.topics.get(topic)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return found


def _create_topic(image: ClusterImage, command: CreateTopic) -> list[Change]:
    topic_names.check(command.name)
    if command.name == topic_names.KAFKA_METADATA:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {command.name} is prohibited.")
    if command.name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists.")
    collision = image.metric_names.get(metric_name(command.name))
    if collision is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{command.name}' collides with existing topic: {collision}",
        )
    TopicConfig.check(command.configs)
    configs = internal_topic_configs(command.name, command.configs)
    if command.assignments:
        _check_assignments(image, command.assignments, replication_factor=len(command.assignments[0]))
        assignments = command.assignments
    else:
        assignments = _assigned(image, command.id, 0, command.partitions, command.replication_factor)
    partitions = _partitions(assignments)
    return [TopicChanged(TopicImage(command.name, command.id, partitions, dict(configs)))]


def _create_partitions(image: ClusterImage, command: CreatePartitions) -> list[Change]:
    topic = find_topic(image, command.topic)
    present = len(topic.partitions)
    if topic_names.is_internal(topic.name):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The internal topic {topic.name} must keep its {present} partition(s): its keys are hashed to partitions.",
        )
    if command.count == present:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if command.count < present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {command.count} would not be an increase.",
        )
    added = command.count - present
    replication_factor = len(topic.partitions[0].replicas)
    if command.assignments is None:
        assignments = _assigned(image, topic.id, present, added, replication_factor)
    else:
        assignments = command.assignments
        if len(assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), "
                f"but {len(assignments)} assignment(s) were specified.",
            )
        _check_assignments(image, assignments, replication_factor)
    return [TopicChanged(replace(topic, partitions=topic.partitions + _partitions(assignments)))]


def _check_assignments(image: ClusterImage, assignments: Assignments, replication_factor: int) -> None:
    """Check that all partitions of a manual assignment have as many replicas, each once and on a known broker."""
    for replicas in assignments:
        if not replicas:
            why = "includes an empty replica list"
        elif len(set(replicas)) < len(replicas):
            why = f"includes the broker {max(replicas, key=list(replicas).count)} more than once"
        elif len(replicas) != replication_factor:
            why = f"includes a partition with {len(replicas)} replica(s), others have {replication_factor}"
        else:
            unknown = [broker for broker in replicas if broker not in image.brokers]
            if not unknown:
                continue
            why = f"includes broker {unknown[0]}, but no such broker is registered"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {why}.")


def _assigned(image: ClusterImage, topic_id: UUID, first: int, count: int, factor: int) -> Assignments:
    """Assign new partitions: leaders round robin from a broker derived from the topic id, replicas on the next ones."""
    if factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    brokers = sorted(image.brokers)
    if factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered.",
        )
    start = topic_id.int % len(brokers)
    return [
        [brokers[(start + index + step) % len(brokers)] for step in range(factor)]
        for index in range(first, first + count)
    ]


def _partitions(assignments: Assignments) -> tuple[PartitionImage, ...]:
    return tuple(
        PartitionImage(
            replicas=tuple(replicas),
            isr=tuple(replicas),
            leader=replicas[0],
            directories=(UNASSIGNED,) * len(replicas),
        )
        for replicas in assignments
    )


def _assign_directories(image: ClusterImage, command: AssignDirectories) -> list[Change]:
    """A topic that was deleted meanwhile has no change."""
    changes: list[Change] = []
    for topic_id, directories in command.directories.items():
        name = image.topic_names.get(topic_id)
        if name is not None:
            partitions = list(image.topics[name].partitions)
            for index, directory in directories.items():
                partitions[index] = _assigned_to(partitions[index], command.broker, directory)
            changes.append(TopicChanged(replace(image.topics[name], partitions=tuple(partitions))))
    return changes


def _assigned_to(partition: PartitionImage, broker: int, directory: UUID) -> PartitionImage:
    former = partition.directories or (UNASSIGNED,) * len(partition.replicas)
    directories = tuple(
        [directory if replica == broker else other for replica, other in zip(partition.replicas, former, strict=True)]
    )
    return replace(partition, partition_epoch=partition.partition_epoch + 1, directories=directories)

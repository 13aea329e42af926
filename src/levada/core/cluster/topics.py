"""Creates and deletes topics, adds partitions, and records the log dirs of replicas.

The changes of a new topic may need several commits. The first one names the broker that creates it, the last one
makes the topic exist. A creation whose broker has stopped meanwhile is abandoned and removed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from levada.config.topic import TopicConfig
from levada.core.cluster import topic_names
from levada.core.cluster.changes import (
    BrokerUnchanged,
    Change,
    PartitionChanged,
    TopicChanged,
    TopicConfigsChanged,
    TopicRemoved,
)
from levada.core.cluster.config_changes import internal_topic_configs
from levada.core.cluster.image import ClusterImage, metric_name
from levada.core.cluster.placement import Assignments, check_assignments, in_sync_when_created, place
from levada.core.cluster.topic_image import NO_RECORDS, UNASSIGNED, Creation, PartitionImage, TopicImage
from levada.errors import ErrorCode, KafkaError


class Creator(NamedTuple):
    """The broker that executes a command."""

    broker: int
    broker_epoch: int


NO_CREATOR: Final = Creator(-1, -1)


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
class AbandonCreations:
    """Remove what the executing broker has begun to create and cannot complete."""


@dataclass(frozen=True, slots=True)
class AssignDirectories:
    """Record which log dirs of a broker hold its replicas (KIP-858), by topic id and partition."""

    broker: int
    directories: Mapping[UUID, Mapping[int, UUID]]


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


def create_topic(image: ClusterImage, command: CreateTopic, creator: Creator) -> list[Change]:
    """Return the records of a new topic; after a conflict only those that are not there yet."""
    name, topic_id = command.name, command.id
    _check_name(image, name, topic_id)
    TopicConfig.check(command.configs)
    configs = internal_topic_configs(name, command.configs)
    if command.assignments:
        check_assignments(image, command.assignments, replication_factor=len(command.assignments[0]))
        assignments = command.assignments
    else:
        assignments = place(image, topic_id, 0, command.partitions, command.replication_factor)
    count = len(assignments)
    return [
        TopicChanged(name, topic_id, 0, Creation(count, *creator)),
        *([TopicConfigsChanged(name, configs)] if configs or name in image.topic_configs else []),
        *_new_partitions(image, name, topic_id, 0, assignments),
        TopicChanged(name, topic_id, count),
    ]


def _check_name(image: ClusterImage, name: str, topic_id: UUID) -> None:
    topic_names.check(name)
    if name == topic_names.KAFKA_METADATA:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    record = image.detached.get(name, NO_RECORDS).record
    if record is not None and record.id != topic_id:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is being created.")
    collision = image.metric_names.get(metric_name(name))
    if collision is not None:
        detail = f"Topic '{name}' collides with existing topic: {collision}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)


def delete_topic(image: ClusterImage, command: DeleteTopic) -> list[Change]:
    """Return the change that ends a topic; the controller removes its partition records later."""
    name = find_topic(image, command.topic).name
    configs: list[Change] = [TopicConfigsChanged(name, {})] if name in image.topic_configs else []
    return [TopicRemoved(name), *configs]


def create_partitions(image: ClusterImage, command: CreatePartitions, creator: Creator) -> list[Change]:
    """Return the records of more partitions; after a conflict only those that are not there yet."""
    topic = find_topic(image, command.topic)
    present = len(topic.partitions)
    _check_count(topic, command.count, creator)
    replication_factor = len(topic.partitions[0].replicas)
    added = command.count - present
    if command.assignments is None:
        assignments = place(image, topic.id, present, added, replication_factor)
    else:
        assignments = command.assignments
        if len(assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), "
                f"but {len(assignments)} assignment(s) were specified.",
            )
        check_assignments(image, assignments, replication_factor)
    return [
        TopicChanged(topic.name, topic.id, present, Creation(command.count, *creator)),
        *_new_partitions(image, topic.name, topic.id, present, assignments),
        TopicChanged(topic.name, topic.id, command.count),
    ]


def _check_count(topic: TopicImage, count: int, creator: Creator) -> None:
    present = len(topic.partitions)
    if topic_names.is_internal(topic.name):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The internal topic {topic.name} must keep its {present} partition(s): its keys are hashed to partitions.",
        )
    if count == present:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase.",
        )
    if topic.creation is not None and topic.creation != Creation(count, *creator):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Broker {topic.creation.broker} is adding partitions to the topic {topic.name}.",
        )


def _new_partitions(
    image: ClusterImage, name: str, topic_id: UUID, first: int, assignments: Assignments
) -> Iterable[Change]:
    """The records of partitions, and checks of the brokers that are in sync."""
    written = image.detached.get(name, NO_RECORDS).partitions
    changes: list[Change] = []
    brokers: set[int] = set()
    for index, replicas in enumerate(assignments, start=first):
        if index not in written or written[index][0] != topic_id:
            partition = new_partition(image, replicas)
            brokers.update(partition.isr)
            changes.append(PartitionChanged(name, topic_id, index, partition))
    return [*map(BrokerUnchanged, sorted(brokers)), *changes]


def new_partition(image: ClusterImage, replicas: Sequence[int]) -> PartitionImage:
    """Return a partition with an empty log on each replica: all that are alive are in sync, the first one leads."""
    isr = in_sync_when_created(image, replicas)
    return PartitionImage(
        replicas=tuple(replicas),
        isr=tuple(isr),
        leader=isr[0],
        directories=(UNASSIGNED,) * len(replicas),
        isr_epochs=tuple([image.brokers[broker].epoch for broker in isr]),
    )


def abandon_creations(image: ClusterImage, creator: Creator) -> list[Change]:
    """Return the changes that end the creations of a broker; it executes no other command meanwhile."""
    changes: list[Change] = []
    for name, records in image.detached.items():
        if records.record is not None and _is_created_by(records.record.creation, creator):
            changes += abandoned(image, name)
    for name, topic in image.topics.items():
        if _is_created_by(topic.creation, creator):
            changes += abandoned(image, name)
    return changes


def _is_created_by(creation: Creation | None, creator: Creator) -> bool:
    return creation is not None and (creation.broker, creation.broker_epoch) == creator


def abandoned(image: ClusterImage, name: str) -> list[Change]:
    """Return the changes that end a creation; the controller removes the partition records later."""
    topic = image.topics.get(name)
    if topic is not None:
        return [TopicChanged(name, topic.id, len(topic.partitions))]
    configs: list[Change] = [TopicConfigsChanged(name, {})] if name in image.topic_configs else []
    return [TopicRemoved(name), *configs]


def assign_directories(image: ClusterImage, command: AssignDirectories) -> list[Change]:
    """Return the partitions with their directories; those that were removed meanwhile have no change."""
    changes: list[Change] = []
    for topic_id, directories in command.directories.items():
        name = image.topic_names.get(topic_id)
        partitions = () if name is None else image.topics[name].partitions
        for index, directory in directories.items():
            if name is not None and index < len(partitions) and command.broker in partitions[index].replicas:
                partition = _assigned_to(partitions[index], command.broker, directory)
                changes.append(PartitionChanged(name, topic_id, index, partition))
    return changes


def _assigned_to(partition: PartitionImage, broker: int, directory: UUID) -> PartitionImage:
    former = partition.directories or (UNASSIGNED,) * len(partition.replicas)
    directories = tuple(
        [directory if replica == broker else other for replica, other in zip(partition.replicas, former, strict=True)]
    )
    return replace(partition, partition_epoch=partition.partition_epoch + 1, directories=directories)

"""placeholder until the controller's arrives"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from levada.core.cluster.image import Change, ClusterImage, TopicChanged
from levada.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """Change the ISR of a partition, as its leader in these epochs."""

    broker: int
    broker_epoch: int
    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]  # the broker epoch of each member


def alter_partition(image: ClusterImage, command: AlterPartition) -> list[Change]:
    """Return the partition with the new ISR."""
    topic = image.topics[image.topic_names[command.topic_id]]
    state = topic.partitions[command.partition]
    if command.leader_epoch != state.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if command.partition_epoch != state.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)
    for member, epoch in command.isr.items():
        if member not in state.isr and (member not in image.brokers or image.brokers[member].epoch != epoch):
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)
    isr = tuple(replica for replica in state.replicas if replica in command.isr)
    epochs = tuple(command.isr[member] for member in isr)
    altered = replace(state, isr=isr, isr_epochs=epochs, partition_epoch=state.partition_epoch + 1)
    partitions = (*topic.partitions[: command.partition], altered, *topic.partitions[command.partition + 1 :])
    return [TopicChanged(replace(topic, partitions=partitions))]


@dataclass(frozen=True, slots=True)
class ReplicasOffline:
    """The logs of these replicas of a broker have failed: it leaves the ISR, and leads no longer."""

    broker: int
    broker_epoch: int
    partitions: Mapping[UUID, Sequence[int]]


def replicas_offline(image: ClusterImage, command: ReplicasOffline) -> list[Change]:
    """Return the partitions without the failed replicas in their ISR, led by other members."""
    changes: list[Change] = []
    for topic_id, indexes in command.partitions.items():
        topic = image.topics[image.topic_names[topic_id]]
        partitions = list(topic.partitions)
        for index in indexes:
            state = partitions[index]
            isr = tuple(member for member in state.isr if member != command.broker)
            if isr and isr != state.isr:
                moves = state.leader == command.broker
                epochs = tuple(state.isr_epoch(member) for member in isr)
                partitions[index] = replace(
                    state,
                    isr=isr,
                    isr_epochs=epochs if state.isr_epochs else (),
                    leader=isr[0] if moves else state.leader,
                    leader_epoch=state.leader_epoch + moves,
                    partition_epoch=state.partition_epoch + 1,
                )
        if tuple(partitions) != topic.partitions:
            changes.append(TopicChanged(replace(topic, partitions=tuple(partitions))))
    return changes

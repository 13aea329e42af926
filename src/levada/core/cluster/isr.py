"""Changes of the ISR that its leader asks for, and replicas that fail.

A leader commits the ISR of its partition itself. Every member is named with its broker epoch (KIP-903), so that a
replica that restarted meanwhile, and may have lost the end of its log, is not put back by a stale request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from levada.core.cluster.changes import BrokerUnchanged, Change, PartitionChanged
from levada.core.cluster.election import BrokerStates, certain_members, elect
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.topic_image import PartitionImage, TopicImage
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


@dataclass(frozen=True, slots=True)
class ReplicasOffline:
    """The logs of these replicas of a broker have failed: it leaves the ISR, and leads no longer.

    It stays where no other member certainly has all committed messages: its log may be repaired.
    """

    broker: int
    broker_epoch: int
    partitions: Mapping[UUID, Sequence[int]]


def alter_partition(image: ClusterImage, command: AlterPartition) -> list[Change]:
    """Return the partition with the new ISR, or raise Kafka's errors; no change if it has that ISR."""
    check_broker_epoch(image, command.broker, command.broker_epoch)
    topic, partition = _find(image, command.topic_id, command.partition)
    _check_leader(partition, command)
    present = dict(zip(partition.isr, partition.isr_epochs, strict=False))
    if command.isr == present:
        return []
    added = [member for member, epoch in command.isr.items() if present.get(member) != epoch]
    for member in added:
        _check_eligible(image, member, command.isr[member])
    isr = tuple([replica for replica in partition.replicas if replica in command.isr])
    altered = replace(
        partition,
        isr=isr,
        isr_epochs=tuple([command.isr[member] for member in isr]),
        partition_epoch=partition.partition_epoch + 1,
    )
    return [*map(BrokerUnchanged, added), PartitionChanged(topic.name, topic.id, command.partition, altered)]


def check_broker_epoch(image: ClusterImage, broker: int, epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless the broker is alive in this epoch."""
    found = image.brokers.get(broker)
    if found is None or found.epoch != epoch:
        now = "is fenced" if found is None else f"has broker epoch {found.epoch}"
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} {now}, but the request {epoch}")


def _find(image: ClusterImage, topic_id: UUID, index: int) -> tuple[TopicImage, PartitionImage]:
    name = image.topic_names.get(topic_id)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    topic = image.topics[name]
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return topic, topic.partitions[index]


def _check_leader(partition: PartitionImage, command: AlterPartition) -> None:
    if command.leader_epoch < partition.leader_epoch:
        detail = f"leader epoch {command.leader_epoch} is older than {partition.leader_epoch}"
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, detail)
    if command.leader_epoch > partition.leader_epoch or command.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata here is older than that of the leader")
    if partition.leader != command.broker or partition.leader_broker_epoch != command.broker_epoch:
        detail = f"broker {command.broker} does not lead the partition in broker epoch {command.broker_epoch}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    if command.partition_epoch < partition.partition_epoch:
        detail = f"partition epoch {command.partition_epoch} is older than {partition.partition_epoch}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, detail)
    if not partition.replicas or not set(command.isr) <= set(partition.replicas):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the ISR {[*command.isr]} has brokers that are not replicas")
    if command.isr.get(command.broker) != command.broker_epoch:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the ISR {[*command.isr]} does not include the leader")


def _check_eligible(image: ClusterImage, member: int, epoch: int) -> None:
    broker = image.brokers.get(member)
    if broker is None:
        why = "is fenced"
    elif broker.shutting_down:
        why = "is in controlled shutdown"
    elif broker.epoch != epoch:
        why = f"has broker epoch {broker.epoch} and not {epoch}"
    else:
        return
    raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {member} cannot join the ISR: it {why}")


def replicas_offline(image: ClusterImage, command: ReplicasOffline) -> list[Change]:
    """Return the partitions without the failed replicas in their ISR, led by other members."""
    check_broker_epoch(image, command.broker, command.broker_epoch)
    states = BrokerStates.of(image)
    changes: list[Change] = []
    for topic_id, indexes in command.partitions.items():
        name = image.topic_names.get(topic_id)
        partitions = () if name is None else image.topics[name].partitions
        for index in indexes:
            if name is not None and index < len(partitions):
                changed = _without(partitions[index], command.broker, states)
                if changed is not partitions[index]:
                    changes.append(PartitionChanged(name, topic_id, index, changed))
    return [*map(BrokerUnchanged, sorted(states.epochs)), *changes] if changes else []


def _without(partition: PartitionImage, broker: int, states: BrokerStates) -> PartitionImage:
    remaining = [
        (member, epoch) for member, epoch in zip(partition.isr, partition.isr_epochs, strict=False) if member != broker
    ]
    if broker not in partition.isr or not remaining:
        return partition
    isr, isr_epochs = zip(*remaining, strict=True)
    left = replace(partition, isr=isr, isr_epochs=isr_epochs, partition_epoch=partition.partition_epoch + 1)
    return elect(left, states) if certain_members(left, states) else partition

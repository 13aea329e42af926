"""Moves partitions to other replicas: begins, cancels and completes reassignments.

During a reassignment the replicas are the target followed by those to be removed. It completes when all added replicas
have joined the ISR. Another reassignment of the partition replaces it; a replica that only the former one has added is
dropped at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from levada.core.cluster.changes import BrokerUnchanged, Change, PartitionChanged
from levada.core.cluster.election import BrokerStates, elect, with_leader
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.placement import check_replicas
from levada.core.cluster.topic_image import UNASSIGNED, PartitionImage
from levada.errors import ErrorCode, KafkaError
from levada.model import NO_LEADER, TopicPartition


@dataclass(frozen=True, slots=True)
class ReassignPartition:
    """Begin the reassignment of a partition to these replicas; None cancels the one in progress."""

    partition: TopicPartition
    replicas: Sequence[int] | None
    may_change_factor: bool = True


def reassign_partition(image: ClusterImage, command: ReassignPartition) -> list[Change]:
    """Return the partition with its reassignment begun or cancelled, or raise Kafka's errors."""
    name, index = command.partition
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    partition, states = topic.partitions[index], BrokerStates.of(image)
    if command.replicas is None:
        changed = cancelled(partition, states)
    else:
        check_replicas(image, command.replicas)
        if not command.may_change_factor and len(command.replicas) != len(target_of(partition)):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(target_of(partition))} to {len(command.replicas)}",
            )
        changed = begun(partition, tuple(command.replicas), states)
    if changed is partition:
        return []
    checks = map(BrokerUnchanged, sorted({*changed.adding_replicas, *changed.isr}))
    return [*checks, PartitionChanged(name, topic.id, index, changed)]


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """Return the replicas of a partition once its reassignment is complete."""
    return tuple([replica for replica in partition.replicas if replica not in partition.removing_replicas])


def original_of(partition: PartitionImage) -> tuple[int, ...]:
    """Return the replicas of a partition if its reassignment is cancelled."""
    return tuple([replica for replica in partition.replicas if replica not in partition.adding_replicas])


def begun(partition: PartitionImage, target: tuple[int, ...], states: BrokerStates) -> PartitionImage:
    """Return the partition with a reassignment to `target`; the same object if it is already there."""
    original = original_of(partition)
    removing = tuple([replica for replica in original if replica not in target])
    adding = tuple([replica for replica in target if replica not in original])
    replicas = target + removing
    if (replicas, adding, removing) == (partition.replicas, partition.adding_replicas, partition.removing_replicas):
        return partition
    return _with_replicas(partition, replicas, adding, removing, states)


def cancelled(partition: PartitionImage, states: BrokerStates) -> PartitionImage:
    """Return the partition with the replicas that it had before the reassignment."""
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    return _with_replicas(partition, original_of(partition), (), (), states)


def completed(partition: PartitionImage, states: BrokerStates) -> PartitionImage:
    """Return the partition with its reassignment complete; the same object if it is not, or none is in progress.

    The leader epoch is incremented when replicas are removed, which fences what they still send.
    """
    if not partition.is_reassigning or partition.leader == NO_LEADER:
        return partition
    target = target_of(partition)
    isr = [replica for replica in partition.isr if replica in target]
    if not isr or any(replica not in isr for replica in partition.adding_replicas):
        return partition
    done = _with_replicas(partition, target, (), (), states)
    return done if done.leader != NO_LEADER else partition


def _with_replicas(
    partition: PartitionImage,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    states: BrokerStates,
) -> PartitionImage:
    """Change the replicas; those that are dropped leave the ISR, and another member leads instead of them."""
    directories = dict(zip(partition.replicas, partition.directories, strict=False))
    members = [member for member in partition.isr if member in replicas]
    if not members:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"None of the replicas {list(replicas)} would be in sync."
        )
    moved = replace(
        partition,
        replicas=replicas,
        adding_replicas=adding,
        removing_replicas=removing,
        directories=tuple([directories.get(replica, UNASSIGNED) for replica in replicas]) if directories else (),
        partition_epoch=partition.partition_epoch + 1,
    )
    if set(replicas) >= set(partition.replicas):
        return moved
    epochs = dict(zip(partition.isr, partition.isr_epochs, strict=False))
    isr_epochs = tuple([epochs[member] for member in members if member in epochs])
    elected = elect(replace(moved, isr=tuple(members), isr_epochs=isr_epochs), states)
    if elected.leader_epoch > partition.leader_epoch:
        return elected
    return with_leader(elected, elected.leader, elected.isr, states, new_epoch=True)

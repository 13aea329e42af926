"""Elects leaders, and keeps the ISR to replicas that have all committed messages.

A member of the ISR is in one of these states:

- in sync: its broker is alive in the broker epoch in which the replica joined the ISR;
- stopping: the same, but its broker is in controlled shutdown;
- restarted: its broker is alive in a newer epoch. What was committed is in its log, unless the restart was unclean:
  the machine has lost what it had not written to disk;
- absent: its broker is not alive.

Members in sync remove all others from the ISR. Without any, stopping members lead on. Without those, a member that
restarted is elected once its logs are recovered, and is the only one in sync. A member whose restart was unclean
leaves the ISR while there is any other, also an absent one, which is waited for: it has all committed messages for
sure. The last member never leaves: nothing better is left. An unclean election is the only way past these rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from levada.core.cluster.changes import BrokerUnchanged, Change, PartitionChanged
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.topic_image import NO_BROKER_EPOCH, PartitionImage
from levada.errors import ErrorCode, KafkaError
from levada.model import NO_LEADER, TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerStates:
    """What elections depend on."""

    epochs: Mapping[int, int]  # of the brokers that are alive
    steady: Mapping[int, int]  # the epochs of those that are not in controlled shutdown
    recovering: frozenset[int]
    unclean_epochs: Mapping[int, int]  # of all that are registered
    draining: frozenset[int]

    @staticmethod
    def of(image: ClusterImage) -> "BrokerStates":
        """Return the states of an image."""
        alive = image.brokers.values()
        return BrokerStates(
            {broker.id: broker.epoch for broker in alive},
            {broker.id: broker.epoch for broker in alive if not broker.shutting_down},
            frozenset(broker.id for broker in alive if broker.recovering),
            {broker.id: broker.unclean_epoch for broker in image.registered.values()},
            frozenset(broker.id for broker in alive if image.is_draining(broker.id)),
        )

    def is_settled(self, partition: PartitionImage) -> bool:
        """Whether `elect` would change nothing. A quick check: False if it may change something."""
        steady = self.steady
        for member, epoch in zip(partition.isr, partition.isr_epochs, strict=False):
            if steady.get(member) != epoch:
                return False
        leader = partition.leader
        return leader != NO_LEADER and leader not in self.draining and bool(partition.isr_epochs)


class _InSync(NamedTuple):
    """The members that an ISR should have, and those of them that can lead now."""

    members: Sequence[int]
    candidates: Sequence[int]


def elect(partition: PartitionImage, states: BrokerStates, *, unclean: bool = False) -> PartitionImage:
    """Return the partition with the ISR and the leader that it should have; the same object if it has them."""
    members, candidates = _in_sync(partition, states)
    leader = _leader(partition, candidates, states)
    if leader == NO_LEADER and unclean and not _is_awaited(members, states):
        forced = elect_unclean(partition, states)
        if forced is not None:
            return forced
    return with_leader(partition, leader, members, states)


def _in_sync(partition: PartitionImage, states: BrokerStates) -> _InSync:
    isr, epochs = partition.isr, partition.isr_epochs or (NO_BROKER_EPOCH,) * len(partition.isr)
    joined = dict(zip(isr, epochs, strict=True))
    in_sync = [member for member in isr if states.steady.get(member) == joined[member]]
    in_sync = in_sync or [member for member in isr if states.epochs.get(member) == joined[member]]
    if in_sync:
        return _InSync(in_sync, in_sync)
    remaining = certain_members(partition, states) or list(isr)
    restarted = [member for member in remaining if member in states.epochs]
    ready = [member for member in restarted if member not in states.recovering]
    if not ready and len(remaining) == 1:
        ready = restarted  # nobody else could lead until it is recovered
    if not ready:
        return _InSync(remaining, ())
    best = partition.leader if partition.leader in ready else _by_preference(partition, ready, states)[0]
    return _InSync((best,), (best,))


def certain_members(partition: PartitionImage, states: BrokerStates) -> list[int]:
    """Return the members that certainly have all committed messages: no unclean restart has followed their joining.

    An unregistered broker has stopped for good, and counts as one that has lost them.
    """
    return [
        member
        for member, epoch in zip(partition.isr, partition.isr_epochs, strict=False)
        if member in states.unclean_epochs and epoch >= states.unclean_epochs[member]
    ]


def _is_awaited(members: Sequence[int], states: BrokerStates) -> bool:
    """Whether a member will lead once its logs are recovered."""
    return any(member in states.recovering for member in members)


def _by_preference(partition: PartitionImage, candidates: Iterable[int], states: BrokerStates) -> list[int]:
    order = partition.replicas
    return sorted(candidates, key=lambda broker: (broker in states.draining, order.index(broker)))


def _leader(partition: PartitionImage, candidates: Sequence[int], states: BrokerStates) -> int:
    if not candidates:
        return NO_LEADER
    best = _by_preference(partition, candidates, states)[0]
    leader = partition.leader
    keeps = leader in candidates and (leader not in states.draining or best in states.draining)
    return leader if keeps else best


def with_leader(
    partition: PartitionImage, leader: int, isr: Sequence[int], states: BrokerStates, *, new_epoch: bool = False
) -> PartitionImage:
    """Return the partition with this leader and ISR; a new leader, or a new broker epoch of it, has a new epoch."""
    epochs = dict(zip(partition.isr, partition.isr_epochs, strict=False))
    if leader != NO_LEADER:
        epochs[leader] = states.epochs[leader]
    isr_epochs = tuple([epochs.get(member, NO_BROKER_EPOCH) for member in isr])
    is_new = leader != partition.leader or new_epoch
    is_new = is_new or (leader != NO_LEADER and epochs[leader] != partition.leader_broker_epoch)
    if not is_new and tuple(isr) == partition.isr and (isr_epochs == partition.isr_epochs or leader == NO_LEADER):
        return partition
    return replace(
        partition,
        leader=leader,
        isr=tuple(isr),
        isr_epochs=isr_epochs,
        leader_epoch=partition.leader_epoch + is_new,
        partition_epoch=partition.partition_epoch + 1,
    )


def elect_preferred(partition: PartitionImage, states: BrokerStates) -> PartitionImage | None:
    """Return the partition led by its preferred replica; None if that is not in sync."""
    preferred = partition.replicas[0]
    if preferred in states.draining or preferred not in partition.isr:
        return None
    if states.steady.get(preferred) != partition.isr_epoch(preferred):
        return None
    return with_leader(partition, preferred, partition.isr, states)


def elect_unclean(partition: PartitionImage, states: BrokerStates) -> PartitionImage | None:
    """Return the partition led by any replica that is alive, which is then the only one in sync; None if none is.

    Messages that this replica does not have are lost. Former members of the ISR lack the fewest.
    """
    alive = [replica for replica in _by_preference(partition, partition.replicas, states) if replica in states.epochs]
    if not alive:
        return None
    best = min(alive, key=lambda broker: (broker not in partition.isr, broker in states.recovering))
    return with_leader(partition, best, (best,), states, new_epoch=True)


# Commands.


@dataclass(frozen=True, slots=True)
class ElectLeader:
    """Elect the preferred replica of a partition, or any replica if it has no leader (unclean)."""

    partition: TopicPartition
    unclean: bool = False


def elect_leader(image: ClusterImage, command: ElectLeader) -> list[Change]:
    """Return the partition with its new leader, or raise why there is none."""
    name, index = command.partition
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {command.partition}")
    partition, states = topic.partitions[index], BrokerStates.of(image)
    wanted = {partition.replicas[0]} if not command.unclean else states.epochs.keys()
    if partition.leader in wanted:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    elected = _elected(partition, states, unclean=command.unclean)
    if elected.leader == NO_LEADER:
        detail = "Eligible topic partition leaders are not available: no replica is alive."
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
    return [*map(BrokerUnchanged, elected.isr), PartitionChanged(name, topic.id, index, elected)]


def _elected(partition: PartitionImage, states: BrokerStates, *, unclean: bool) -> PartitionImage:
    if unclean:
        elected = elect(partition, states)
        return elected if elected.leader != NO_LEADER else elect_unclean(partition, states) or elected
    preferred = elect_preferred(partition, states)
    if preferred is None:
        detail = "The preferred leader was not available: it is not in sync, or its broker is stopping."
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, detail)
    return preferred

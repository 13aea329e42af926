"""Registers brokers, each time with a greater broker epoch, and ends registrations.

A broker first acquires its lease in the new epoch, then registers in it: it is alive once both agree. Whoever names
its epoch proves to be that broker (KIP-903), so an epoch ends with bits that cannot be guessed.
"""

from dataclasses import dataclass, replace
from typing import Final

from levada.core.cluster.changes import BrokerChanged, BrokerImage, BrokerRemoved, Change, ClusterFormed
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.isr import check_broker_epoch
from levada.errors import ErrorCode, KafkaError

RANDOM_BITS: Final = 24  # of an epoch; the others count registrations


@dataclass(frozen=True, slots=True)
class FormCluster:
    """Give the cluster an id, unless it has one."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """Register a broker that holds its lease in the broker's epoch."""

    broker: BrokerImage
    unclean: bool = False


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """End the registration of a broker that has stopped for good."""

    id: int


@dataclass(frozen=True, slots=True)
class BrokerRecovered:
    """The logs of a broker are recovered."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ShutDownBroker:
    """Begin the controlled shutdown of a broker."""

    id: int
    epoch: int


def next_epoch(image: ClusterImage, broker: int, random_bits: int) -> int:
    """Return the epoch of a broker's next registration."""
    count = (image.last_epoch(broker) >> RANDOM_BITS) + 1
    return count << RANDOM_BITS | random_bits & (1 << RANDOM_BITS) - 1


def form_cluster(image: ClusterImage, command: FormCluster) -> list[Change]:
    """Return the change that gives a new cluster its id."""
    return [] if image.cluster_id else [ClusterFormed(command.cluster_id)]


def register_broker(image: ClusterImage, command: RegisterBroker) -> list[Change]:
    """Return the registration, unless a newer one exists."""
    broker = command.broker
    if broker.epoch <= image.last_epoch(broker.id):
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker.id} has registered again meanwhile")
    former = image.registered.get(broker.id)
    unclean_epoch = broker.epoch if command.unclean or former is None else former.unclean_epoch
    return [BrokerChanged(replace(broker, unclean_epoch=unclean_epoch))]


def unregister_broker(image: ClusterImage, command: UnregisterBroker) -> list[Change]:
    """Return the end of a registration; a broker that is alive would go on with its replicas."""
    found = image.registered.get(command.id)
    if found is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {command.id} is not currently registered")
    if command.id in image.leases:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {command.id} is running; stop it first")
    return [BrokerRemoved(found.id, found.epoch)]


def broker_recovered(image: ClusterImage, command: BrokerRecovered) -> list[Change]:
    """Return the broker as one that may be elected."""
    check_broker_epoch(image, command.id, command.epoch)
    broker = image.brokers[command.id]
    return [BrokerChanged(replace(broker, recovering=False))] if broker.recovering else []


def shut_down_broker(image: ClusterImage, command: ShutDownBroker) -> list[Change]:
    """Return the broker in controlled shutdown: the controller moves its leaders."""
    check_broker_epoch(image, command.id, command.epoch)
    broker = image.brokers[command.id]
    return [] if broker.shutting_down else [BrokerChanged(replace(broker, shutting_down=True))]


def may_stop(image: ClusterImage, broker: int) -> bool:
    """Whether a broker in controlled shutdown has left the ISR wherever another member is in sync."""
    others = image.brokers.keys() - {broker}
    return not any(
        broker in partition.isr and not others.isdisjoint(partition.isr)
        for topic in image.topics.values()
        for partition in topic.partitions
    )

"""Cluster images for tests."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from levada.core.cluster.changes import (
    BrokerChanged,
    BrokerImage,
    BrokerLeaseChanged,
    Change,
    PartitionChanged,
    TopicChanged,
    TopicConfigsChanged,
)
from levada.core.cluster.image import ClusterImage, PartitionImage


def alive(broker: BrokerImage) -> list[Change]:
    """The records of a broker that is registered and holds its lease."""
    return [BrokerLeaseChanged(broker.id, broker.epoch), BrokerChanged(broker)]


def cluster_of(racks: Mapping[int, str | None]) -> ClusterImage:
    """A cluster of these brokers, all of them alive in epoch 1."""
    return ClusterImage().apply(
        [change for id_, rack in racks.items() for change in alive(BrokerImage(id_, (), rack, epoch=1))]
    )


def topic_records(
    name: str, topic_id: UUID, partitions: Iterable[PartitionImage], configs: Mapping[str, str] | None = None
) -> list[Change]:
    """The records of a topic."""
    states = list(partitions)
    return [
        *(PartitionChanged(name, topic_id, index, state) for index, state in enumerate(states)),
        *([TopicConfigsChanged(name, configs)] if configs else []),
        TopicChanged(name, topic_id, len(states)),
    ]

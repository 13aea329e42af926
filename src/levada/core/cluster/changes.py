"""Changes of the cluster image, each of which sets or deletes one record of the metadata store.

A decision is a list of changes and checks. They are committed in this order, in one commit if they fit in one: after
each change of the list the metadata must be valid. A check names a record that the decision has relied on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from levada.core.cluster.topic_image import Creation, PartitionImage
from levada.model import NO_LEADER, Endpoint


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. Each registration has a greater `epoch`.

    It is alive while it holds its lease in this epoch; otherwise it is fenced.
    """

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = 0
    # The last epoch that began with an unclean restart: the machine had lost what it had not written to disk, so logs
    # from before it may lack messages that were committed.
    unclean_epoch: int = 0
    recovering: bool = False  # its logs are being recovered
    shutting_down: bool = False  # in controlled shutdown: leaders are moved to other brokers


@dataclass(frozen=True, slots=True)
class ClusterFormed:
    """The cluster has an id: the first change."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """A broker holds the lease of the controller, or none."""

    controller_id: int = NO_LEADER


@dataclass(frozen=True, slots=True)
class ControllerEpochChanged:
    """A broker has become the controller and may perform its duties."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic was created, or has more partitions, once all its partition records are there."""

    name: str
    id: UUID
    partitions: int
    creation: Creation | None = None


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """A topic was deleted. Its partition records are removed later."""

    name: str


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition was created or changed."""

    topic: str
    topic_id: UUID
    index: int
    partition: PartitionImage


@dataclass(frozen=True, slots=True)
class PartitionRemoved:
    """The record of a partition was deleted, which belongs to no topic."""

    topic: str
    index: int


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker was registered, or its state has changed."""

    broker: BrokerImage


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    """A broker was unregistered. The record stays, so that its next registration has a greater epoch."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerLeaseChanged:
    """A broker has acquired its lease in this epoch, or lost it (None)."""

    id: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class TopicConfigsChanged:
    """The configs of a topic changed."""

    topic: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerConfigsChanged:
    """The dynamic configs of a broker, or of all brokers (`CLUSTER_DEFAULT`), changed."""

    broker: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupConfigsChanged:
    """The configs of a group changed; the group need not exist."""

    group: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """Producer ids below this one are allocated."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class TopicUnchanged:
    """A check: the record of this topic, or its absence, is the same."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerUnchanged:
    """A check: the registration of this broker is the same."""

    id: int


@dataclass(frozen=True, slots=True)
class ControllerUnchanged:
    """A check: no other broker has become the controller."""


Check: TypeAlias = TopicUnchanged | BrokerUnchanged | ControllerUnchanged
Change: TypeAlias = (
    ClusterFormed
    | ControllerChanged
    | ControllerEpochChanged
    | TopicChanged
    | TopicRemoved
    | PartitionChanged
    | PartitionRemoved
    | BrokerChanged
    | BrokerRemoved
    | BrokerLeaseChanged
    | TopicConfigsChanged
    | BrokerConfigsChanged
    | GroupConfigsChanged
    | ProducerIdsAllocated
    | Check
)

"""The cluster image: all metadata of the cluster as one immutable value.

A broker reconciles its state with the image and never modifies it: `apply` returns the next image. Each change is a
record of the metadata store, so that replaying the records rebuilds the image, whatever the store is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias
from uuid import UUID

from levada.model import NO_LEADER, Endpoint

CLUSTER_DEFAULT: Final = ""  # the resource name of the dynamic default configs of all brokers
FIRST_PRODUCER_ID: Final = 0
NO_BROKER_EPOCH: Final = -1
UNASSIGNED: Final = UUID(int=0)  # Kafka's directory id of a replica whose log has not been created


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """The replicas of a partition. Each new leader increments `leader_epoch`, each change `partition_epoch`."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    # The id of the log dir of each replica (KIP-858); empty in records of versions that did not assign any.
    directories: tuple[UUID, ...] = ()
    isr_epochs: tuple[int, ...] = ()  # the broker epoch in which each member of the ISR joined it (KIP-903)

    def isr_epoch(self, broker: int) -> int:
        """Return the broker epoch in which a broker joined the ISR; NO_BROKER_EPOCH if it is not a member."""
        if broker not in self.isr or not self.isr_epochs:
            return NO_BROKER_EPOCH
        return self.isr_epochs[self.isr.index(broker)]

    @property
    def leader_broker_epoch(self) -> int:
        """The broker epoch in which the leader was elected; NO_BROKER_EPOCH without a leader."""
        return self.isr_epoch(self.leader)

    def directory_of(self, broker: int) -> UUID | None:
        """Return the log dir that holds the replica of a broker; None if an older version did not record it."""
        return self.directories[self.replicas.index(broker)] if self.directories else None


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic. Its id is never reused, its name can be."""

    name: str
    id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=dict)  # only its overrides


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. Each registration has a new `epoch`."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = 0
    shutting_down: bool = False  # in controlled shutdown: leaders are moved to other brokers


@dataclass(frozen=True, slots=True)
class ClusterFormed:
    """The cluster has an id: the first change."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """A broker has become the controller."""

    controller_id: int


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic was created or changed."""

    topic: TopicImage


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """A topic was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker was registered."""

    broker: BrokerImage


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    """A broker was unregistered."""

    id: int


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


Change: TypeAlias = (
    ClusterFormed
    | ControllerChanged
    | TopicChanged
    | TopicRemoved
    | BrokerChanged
    | BrokerRemoved
    | BrokerConfigsChanged
    | GroupConfigsChanged
    | ProducerIdsAllocated
)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All metadata at one revision of the store."""

    cluster_id: str = ""
    controller_id: int = NO_LEADER
    revision: int = 0
    next_producer_id: int = FIRST_PRODUCER_ID
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[UUID, str] = field(default_factory=dict)  # of all `topics`
    metric_names: Mapping[str, str] = field(default_factory=dict)  # metric name -> name of all `topics`
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change], revision: int | None = None) -> "ClusterImage":
        """Return the image after the changes. Cannot fail. The revision increases by one unless given."""
        builder = ImageBuilder(self)
        builder.apply(changes)
        return replace(builder.image, revision=self.revision + 1 if revision is None else revision)


class ImageBuilder:
    """Applies many changes to one mutable copy of an image."""

    __slots__ = (
        "_broker_configs",
        "_brokers",
        "_group_configs",
        "_metric_names",
        "_topic_names",
        "_topics",
        "image",
    )

    def __init__(self, image: ClusterImage) -> None:
        self._brokers = dict(image.brokers)
        self._topics = dict(image.topics)
        self._topic_names = dict(image.topic_names)
        self._metric_names = dict(image.metric_names)
        self._broker_configs = dict(image.broker_configs)
        self._group_configs = dict(image.group_configs)
        self.image = replace(
            image,
            brokers=self._brokers,
            topics=self._topics,
            topic_names=self._topic_names,
            metric_names=self._metric_names,
            broker_configs=self._broker_configs,
            group_configs=self._group_configs,
        )

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes in place."""
        for change in changes:
            match change:
                case TopicChanged(topic):
                    self._remove_names(topic.name)
                    self._topics[topic.name] = topic
                    self._topic_names[topic.id] = topic.name
                    self._metric_names[metric_name(topic.name)] = topic.name
                case TopicRemoved(name):
                    self._remove_names(name)
                    self._topics.pop(name, None)
                case BrokerChanged(broker):
                    self._brokers[broker.id] = broker
                case BrokerRemoved(broker_id):
                    self._brokers.pop(broker_id, None)
                case BrokerConfigsChanged(name, configs):
                    self._broker_configs.pop(name, None)
                    if configs:
                        self._broker_configs[name] = configs
                case GroupConfigsChanged(name, configs):
                    self._group_configs.pop(name, None)
                    if configs:
                        self._group_configs[name] = configs
                case ProducerIdsAllocated(next_producer_id):
                    self.image = replace(self.image, next_producer_id=next_producer_id)
                case ClusterFormed(cluster_id):
                    self.image = replace(self.image, cluster_id=cluster_id)
                case ControllerChanged(controller_id):
                    self.image = replace(self.image, controller_id=controller_id)

    def _remove_names(self, name: str) -> None:
        former = self._topics.get(name)
        if former is not None:
            del self._topic_names[former.id]
            self._metric_names.pop(metric_name(name), None)


def metric_name(topic: str) -> str:
    """Return the name of a topic in metrics, which must be unique."""
    return topic.replace(".", "_")

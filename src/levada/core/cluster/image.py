"""What a broker knows of its cluster, as one immutable value.

A broker reconciles itself to the image it holds and never edits it: `apply` makes the next one. Each change
is a row of the metadata store, so the same changes come from a file, from ZooKeeper or from a log, and replaying
them rebuilds the image.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias
from uuid import UUID

from levada.model import NO_LEADER, Endpoint

CLUSTER_DEFAULT: Final = ""  # the name under which settings of all brokers are kept
FIRST_PRODUCER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """Who holds a partition. `leader_epoch` grows with each leader, `partition_epoch` with each change."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; its id is never used again, its name may be."""

    name: str
    id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=dict)  # only what was set for this topic


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker; `epoch` tells a restarted one from its former self."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ClusterFormed:
    """The cluster has its id: the first change of all."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """A broker has become the one that decides."""

    controller_id: int


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic is new or has a new shape."""

    topic: TopicImage


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """A topic is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker has registered."""

    broker: BrokerImage


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    """A broker is gone."""

    id: int


@dataclass(frozen=True, slots=True)
class BrokerConfigsChanged:
    """Settings of a broker, or of all (`CLUSTER_DEFAULT`), altered while they run."""

    broker: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupConfigsChanged:
    """Settings of a group; a group need not be there to have some."""

    group: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """Producer ids below this one are given away."""

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
    topic_names: Mapping[UUID, str] = field(default_factory=dict)  # exactly the ids of `topics`
    flat_names: Mapping[str, str] = field(
        default_factory=dict
    )  # exactly the names of `topics` by their flat form
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change], revision: int | None = None) -> "ClusterImage":
        """The image after the changes. Cannot fail; the revision grows by one unless told."""
        draft = Draft(self)
        draft.absorb(changes)
        return replace(draft.image, revision=self.revision + 1 if revision is None else revision)


class Draft:
    """An image in the making: its maps are its own and take changes in place, however many come one by one."""

    __slots__ = (
        "_broker_configs",
        "_brokers",
        "_flat_names",
        "_group_configs",
        "_topic_names",
        "_topics",
        "image",
    )

    def __init__(self, image: ClusterImage) -> None:
        self._brokers = dict(image.brokers)
        self._topics = dict(image.topics)
        self._topic_names = dict(image.topic_names)
        self._flat_names = dict(image.flat_names)
        self._broker_configs = dict(image.broker_configs)
        self._group_configs = dict(image.group_configs)
        self.image = replace(
            image,
            brokers=self._brokers,
            topics=self._topics,
            topic_names=self._topic_names,
            flat_names=self._flat_names,
            broker_configs=self._broker_configs,
            group_configs=self._group_configs,
        )

    def absorb(self, changes: Iterable[Change]) -> None:
        """Take changes in."""
        for change in changes:
            match change:
                case TopicChanged(topic):
                    self._forget_names(topic.name)
                    self._topics[topic.name] = topic
                    self._topic_names[topic.id] = topic.name
                    self._flat_names[flat_name(topic.name)] = topic.name
                case TopicRemoved(name):
                    self._forget_names(name)
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

    def _forget_names(self, name: str) -> None:
        former = self._topics.get(name)
        if former is not None:
            del self._topic_names[former.id]
            self._flat_names.pop(flat_name(name), None)


def flat_name(topic: str) -> str:
    """A topic's name as metrics write it, in which two topics must differ."""
    return topic.replace(".", "_")

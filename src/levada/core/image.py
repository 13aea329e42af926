"""What a broker knows of its cluster, as one immutable value.

A broker reconciles itself to the image it holds and never edits it: `apply` makes the next one. Each change
is a row of the metadata store, so the same changes come from a file, from ZooKeeper or from a log, and replaying
them rebuilds the image.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
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
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change], revision: int | None = None) -> "ClusterImage":
        """The image after the changes. Cannot fail; the revision grows by one unless told."""
        fields: dict[str, Any] = {
            "brokers": dict(self.brokers),
            "topics": dict(self.topics),
            "topic_names": dict(self.topic_names),
            "broker_configs": dict(self.broker_configs),
            "revision": self.revision + 1 if revision is None else revision,
        }
        for change in changes:
            match change:
                case TopicChanged() | TopicRemoved():
                    _apply_topic(fields["topics"], fields["topic_names"], change)
                case BrokerChanged(broker):
                    fields["brokers"][broker.id] = broker
                case BrokerRemoved(broker_id):
                    fields["brokers"].pop(broker_id, None)
                case BrokerConfigsChanged(name, configs):
                    fields["broker_configs"].pop(name, None)
                    if configs:
                        fields["broker_configs"][name] = configs
                case ProducerIdsAllocated(next_producer_id):
                    fields["next_producer_id"] = next_producer_id
                case ClusterFormed(cluster_id):
                    fields["cluster_id"] = cluster_id
                case ControllerChanged(controller_id):
                    fields["controller_id"] = controller_id
        return replace(self, **fields)


def _apply_topic(
    topics: dict[str, TopicImage], topic_names: dict[UUID, str], change: TopicChanged | TopicRemoved
) -> None:
    name = change.topic.name if isinstance(change, TopicChanged) else change.name
    former = topics.get(name)
    if former is not None:
        del topic_names[former.id]
    if isinstance(change, TopicChanged):
        topics[name] = change.topic
        topic_names[change.topic.id] = name
    else:
        topics.pop(name, None)

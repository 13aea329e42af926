"""The cluster image: all metadata of the cluster as one immutable value.

A broker reconciles its state with the image and never modifies it: `apply` returns the next image. Each change is a
record of the metadata store, so that replaying the records rebuilds the image, whatever the store is.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from uuid import UUID

from levada.core.cluster.changes import (
    BrokerChanged,
    BrokerConfigsChanged,
    BrokerImage,
    BrokerLeaseChanged,
    BrokerRemoved,
    Change,
    ClusterFormed,
    ControllerChanged,
    ControllerEpochChanged,
    GroupConfigsChanged,
    PartitionChanged,
    PartitionRemoved,
    ProducerIdsAllocated,
    TopicChanged,
    TopicConfigsChanged,
    TopicRemoved,
)
from levada.core.cluster.topic_image import (
    NO_RECORDS,
    UNASSIGNED,
    DetachedRecords,
    PartitionImage,
    TopicAssembly,
    TopicImage,
    TopicRecord,
)
from levada.model import NO_LEADER

__all__ = ["UNASSIGNED", "BrokerImage", "Change", "ClusterImage", "PartitionImage", "TopicImage"]

CLUSTER_DEFAULT: Final = ""  # the resource name of the dynamic default configs of all brokers
FIRST_PRODUCER_ID: Final = 0
DRAIN: Final = "levada.broker.drain"  # the dynamic broker config

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All metadata at one revision of the store."""

    cluster_id: str = ""
    controller_id: int = NO_LEADER
    controller_epoch: int = 0
    revision: int = 0
    next_producer_id: int = FIRST_PRODUCER_ID
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)  # those that are alive
    registered: Mapping[int, BrokerImage] = field(default_factory=dict)  # all, also those that are fenced
    unregistered: Mapping[int, int] = field(default_factory=dict)  # id -> its last epoch
    leases: Mapping[int, int] = field(default_factory=dict)  # broker id -> the epoch in which it holds its lease
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    detached: Mapping[str, DetachedRecords] = field(default_factory=dict)  # by topic name
    topic_names: Mapping[UUID, str] = field(default_factory=dict)  # of all `topics`
    metric_names: Mapping[str, str] = field(default_factory=dict)  # metric name -> name of all `topics`
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change], revision: int | None = None) -> "ClusterImage":
        """Return the image after the changes. Cannot fail. The revision increases by one unless given."""
        builder = ImageBuilder(self)
        builder.apply(changes)
        return replace(builder.image, revision=self.revision + 1 if revision is None else revision)

    def last_epoch(self, broker: int) -> int:
        """Return the epoch of a broker's last registration; 0 if it was never registered."""
        found = self.registered.get(broker)
        return self.unregistered.get(broker, 0) if found is None else found.epoch

    def is_draining(self, broker: int) -> bool:
        """Whether replicas and leaders are to leave this broker."""
        return self.broker_configs.get(str(broker), {}).get(DRAIN) == "true"


class ImageBuilder:
    """Applies many changes to one copy of an image. Mappings that do not change are shared with the former image."""

    __slots__ = ("_copied", "_topics_changed", "image")

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._copied: dict[str, Any] = {}  # fields that this builder may modify
        self._topics_changed: dict[str, TopicAssembly] = {}

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes; afterwards `image` has them."""
        for change in changes:
            self._apply(change)
        for name, assembly in self._topics_changed.items():
            self._set_topic(name, *assembly.assembled(self.image.topic_configs.get(name, {})))
        self._topics_changed.clear()

    def _apply(self, change: Change) -> None:
        match change:
            case PartitionChanged(topic, topic_id, index, partition):
                self._assembly(topic).set_partition(index, topic_id, partition)
            case PartitionRemoved(topic, index):
                self._assembly(topic).remove_partition(index)
            case TopicChanged(name, topic_id, partitions, creation):
                self._assembly(name).set_record(TopicRecord(topic_id, partitions, creation))
            case TopicRemoved(name):
                self._assembly(name).set_record(None)
            case TopicConfigsChanged(name, configs):
                self._assembly(name)
                self._set_configs("topic_configs", name, configs)
            case BrokerConfigsChanged(name, configs):
                self._set_configs("broker_configs", name, configs)
            case GroupConfigsChanged(name, configs):
                self._set_configs("group_configs", name, configs)
            case BrokerChanged() | BrokerRemoved() | BrokerLeaseChanged():
                self._set_broker(change)
            case ProducerIdsAllocated(next_producer_id):
                self.image = replace(self.image, next_producer_id=next_producer_id)
            case ClusterFormed(cluster_id):
                self.image = replace(self.image, cluster_id=cluster_id)
            case ControllerChanged(controller_id):
                self.image = replace(self.image, controller_id=controller_id)
            case ControllerEpochChanged(epoch):
                self.image = replace(self.image, controller_epoch=epoch)

    def _own(self, name: str, former: Mapping[Key, Value]) -> MutableMapping[Key, Value]:
        """A field of the image, copied when this builder modifies it first."""
        own: MutableMapping[Key, Value] | None = self._copied.get(name)
        if own is None:
            own = self._copied[name] = dict(former)
            fields: Any = {name: own}
            self.image = replace(self.image, **fields)
        return own

    def _set_configs(self, name: str, resource: str, configs: Mapping[str, str]) -> None:
        """Configs that are empty have no record, and come last in the order of resources when they are set again."""
        own = self._own(name, getattr(self.image, name))
        own.pop(resource, None)
        if configs:
            own[resource] = configs

    def _set_broker(self, change: BrokerChanged | BrokerRemoved | BrokerLeaseChanged) -> None:
        image = self.image
        registered, leases = self._own("registered", image.registered), self._own("leases", image.leases)
        unregistered, alive = self._own("unregistered", image.unregistered), self._own("brokers", image.brokers)
        match change:
            case BrokerChanged(broker):
                broker_id = broker.id
                registered[broker_id] = broker
                unregistered.pop(broker_id, None)
            case BrokerRemoved(broker_id, epoch):
                registered.pop(broker_id, None)
                unregistered[broker_id] = epoch
            case BrokerLeaseChanged(broker_id, None):
                leases.pop(broker_id, None)
            case BrokerLeaseChanged(broker_id, int(epoch)):
                leases[broker_id] = epoch
        found = registered.get(broker_id)
        if found is not None and leases.get(broker_id) == found.epoch:
            alive[broker_id] = found
        else:
            alive.pop(broker_id, None)

    def _assembly(self, name: str) -> TopicAssembly:
        if name not in self._topics_changed:
            topic, detached = self.image.topics.get(name), self.image.detached.get(name, NO_RECORDS)
            self._topics_changed[name] = TopicAssembly(name, topic, detached)
        return self._topics_changed[name]

    def _set_topic(self, name: str, topic: TopicImage | None, detached: DetachedRecords) -> None:
        if detached != NO_RECORDS:
            self._own("detached", self.image.detached)[name] = detached
        elif name in self.image.detached:
            del self._own("detached", self.image.detached)[name]
        former = self.image.topics.get(name)
        if topic is not None:
            self._own("topics", self.image.topics)[name] = topic
        elif former is not None:
            del self._own("topics", self.image.topics)[name]
        former_id = None if former is None else former.id
        topic_id = None if topic is None else topic.id
        if former_id == topic_id:
            return
        names = self._own("topic_names", self.image.topic_names)
        metric_names = self._own("metric_names", self.image.metric_names)
        if former_id is not None and names.get(former_id) == name:
            del names[former_id]
        if former_id is not None and metric_names.get(metric_name(name)) == name:
            del metric_names[metric_name(name)]
        if topic_id is not None:
            names[topic_id] = name
            metric_names[metric_name(name)] = name


def metric_name(topic: str) -> str:
    """Return the name of a topic in metrics, which must be unique."""
    return topic.replace(".", "_")

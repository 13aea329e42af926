"""The records of the metadata store: changes of the image with a path as the key and JSON as the value.

The keys are Kafka's znodes where the meaning is the same, so that a store is easy to inspect.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from levada.core.cluster.changes import (
    BrokerChanged,
    BrokerConfigsChanged,
    BrokerImage,
    BrokerLeaseChanged,
    BrokerRemoved,
    BrokerUnchanged,
    Change,
    Check,
    ClusterFormed,
    ControllerChanged,
    ControllerEpochChanged,
    ControllerUnchanged,
    GroupConfigsChanged,
    PartitionChanged,
    PartitionRemoved,
    ProducerIdsAllocated,
    TopicChanged,
    TopicConfigsChanged,
    TopicRemoved,
    TopicUnchanged,
)
from levada.core.cluster.image import CLUSTER_DEFAULT
from levada.core.cluster.topic_image import Creation, PartitionImage
from levada.model import NO_LEADER, Endpoint

CLUSTER: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
PRODUCER_IDS: Final = "/latest_producer_id_block"
BROKER_LEASES: Final = "/brokers/ids/"
BROKER_EPOCHS: Final = "/levada/broker_epochs/"
TOPICS: Final = "/brokers/topics/"
PARTITIONS: Final = "/partitions/"
STATE: Final = "/state"
TOPIC_CONFIGS: Final = "/config/topics/"
BROKER_CONFIGS: Final = "/config/brokers/"
GROUP_CONFIGS: Final = "/config/groups/"  # followed by the URL-encoded group id, which may contain slashes
DEFAULT_NAME: Final = "<default>"  # an empty name would not be a valid ZooKeeper path


class _Topic(msgspec.Struct, omit_defaults=True):
    topic_id: UUID
    partitions: int
    creation: Creation | None = None


class _Partition(msgspec.Struct, omit_defaults=True):
    """A partition and the id of its topic."""

    topic_id: UUID
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    isr_epochs: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    directories: tuple[UUID, ...] = ()


class _Registration(msgspec.Struct, omit_defaults=True):
    """A broker's registration; without endpoints it has ended, and the epoch remains."""

    epoch: int
    endpoints: tuple[Endpoint, ...] | None = None
    rack: str | None = None
    unclean_epoch: int = 0
    recovering: bool = False
    shutting_down: bool = False


class _BrokerLease(msgspec.Struct, omit_defaults=True):
    epoch: int
    endpoints: tuple[str, ...] = ()
    rack: str | None = None


class _ControllerLease(msgspec.Struct):
    brokerid: int


class _ControllerEpoch(msgspec.Struct):
    epoch: int


class _Cluster(msgspec.Struct):
    id: str


_json: Final = msgspec.json.Encoder().encode
_decoders: Final[Mapping[Any, msgspec.json.Decoder[Any]]] = {
    type_: msgspec.json.Decoder(type_)
    for type_ in (
        *(_Topic, _Partition, _Registration, _BrokerLease, _ControllerLease, _ControllerEpoch, _Cluster),
        *(ProducerIdsAllocated, dict[str, str]),
    )
}


# Encoding.


def encode(change: Change) -> tuple[str, bytes | None]:
    """Encode a change as key and value; None as the value deletes the record. Leases are encoded by their own."""
    match change:
        case PartitionChanged(topic, topic_id, index, partition):
            return partition_key(topic, index), _partition_value(topic_id, partition)
        case PartitionRemoved(topic, index):
            return partition_key(topic, index), None
        case TopicChanged(name, topic_id, partitions, creation):
            return TOPICS + name, _json(_Topic(topic_id, partitions, creation))
        case TopicRemoved(name):
            return TOPICS + name, None
        case BrokerChanged(broker):
            return f"{BROKER_EPOCHS}{broker.id}", _registration_value(broker)
        case BrokerRemoved(broker_id, epoch):
            return f"{BROKER_EPOCHS}{broker_id}", _json(_Registration(epoch))
        case TopicConfigsChanged(name, configs):
            return TOPIC_CONFIGS + name, _json(configs) if configs else None
        case BrokerConfigsChanged(name, configs):
            return BROKER_CONFIGS + (name or DEFAULT_NAME), _json(configs) if configs else None
        case GroupConfigsChanged(name, configs):
            return GROUP_CONFIGS + quote(name, safe=""), _json(configs) if configs else None
        case ProducerIdsAllocated():
            return PRODUCER_IDS, _json(change)
        case ClusterFormed(cluster_id):
            return CLUSTER, _json(_Cluster(cluster_id))
        case ControllerEpochChanged(epoch):
            return CONTROLLER_EPOCH, _json(_ControllerEpoch(epoch))
    raise TypeError(f"{change} is not written by a commit")


def check_key(check: Check) -> str:
    """Return the key of the record that must not change."""
    match check:
        case TopicUnchanged(name):
            return TOPICS + name
        case BrokerUnchanged(broker_id):
            return f"{BROKER_EPOCHS}{broker_id}"
        case ControllerUnchanged():
            return CONTROLLER_EPOCH


def broker_lease(broker: BrokerImage) -> tuple[str, bytes]:
    """Return the name and the value of a broker's lease, which readers of Kafka's znode understand."""
    endpoints = tuple(str(endpoint) for endpoint in broker.endpoints)
    return f"{BROKER_LEASES}{broker.id}", _json(_BrokerLease(broker.epoch, endpoints, broker.rack))


def controller_lease(broker_id: int) -> tuple[str, bytes]:
    """Return the name and the value of the controller's lease."""
    return CONTROLLER, _json(_ControllerLease(broker_id))


def partition_key(topic: str, index: int) -> str:
    """Return the key of a partition's record."""
    return f"{TOPICS}{topic}{PARTITIONS}{index}{STATE}"


def _partition_value(topic_id: UUID, partition: PartitionImage) -> bytes:
    return _json(
        _Partition(
            topic_id,
            partition.replicas,
            partition.isr,
            partition.isr_epochs,
            partition.leader,
            partition.leader_epoch,
            partition.partition_epoch,
            partition.adding_replicas,
            partition.removing_replicas,
            partition.directories,
        )
    )


def _registration_value(broker: BrokerImage) -> bytes:
    return _json(
        _Registration(
            broker.epoch,
            broker.endpoints,
            broker.rack,
            broker.unclean_epoch,
            broker.recovering,
            broker.shutting_down,
        )
    )


# Decoding.


def decode(key: str, value: bytes | None) -> Change | None:
    """Decode a record; None for a key that is not part of the image. Raises ValueError for an invalid one."""
    for prefix, decoder in _DECODERS:
        if key.startswith(prefix):
            return decoder(key, key[len(prefix) :], value)
    return None


def _topic(key: str, name: str, value: bytes | None) -> Change | None:
    if "/" in name:
        return _partition(key, name, value)
    if value is None:
        return TopicRemoved(name)
    topic = _read(key, value, _Topic)
    return TopicChanged(name, topic.topic_id, topic.partitions, topic.creation)


def _partition(key: str, path: str, value: bytes | None) -> Change | None:
    topic, _, rest = path.partition(PARTITIONS)
    number = rest.removesuffix(STATE)
    if number == rest or not number.isdecimal():
        return None
    index = int(number)
    if value is None:
        return PartitionRemoved(topic, index)
    found: _Partition = _read(key, value, _Partition)
    problem = _inconsistency(found)
    if problem is not None:
        raise ValueError(f"{key}: {problem} in {value[:200]!r}")
    partition = PartitionImage(
        found.replicas,
        found.isr,
        found.leader,
        found.leader_epoch,
        found.partition_epoch,
        found.directories,
        found.isr_epochs,
        found.adding_replicas,
        found.removing_replicas,
    )
    return PartitionChanged(topic, found.topic_id, index, partition)


def _inconsistency(partition: _Partition) -> str | None:
    """What no partition may have: other code relies on it."""
    isr, leader = partition.isr, partition.leader
    if leader != NO_LEADER and leader not in isr:
        return f"the leader {leader} is not in the ISR"
    if partition.isr_epochs and len(partition.isr_epochs) != len(isr):
        return "there are not as many epochs as members of the ISR"
    if partition.directories and len(partition.directories) != len(partition.replicas):
        return "there are not as many directories as replicas"
    return None


def _broker(key: str, name: str, value: bytes | None) -> Change | None:
    if not name.isdecimal():
        return None
    broker_id = int(name)
    if value is None:
        return BrokerRemoved(broker_id, 0)
    found: _Registration = _read(key, value, _Registration)
    if found.endpoints is None:
        return BrokerRemoved(broker_id, found.epoch)
    return BrokerChanged(
        BrokerImage(
            broker_id,
            found.endpoints,
            found.rack,
            found.epoch,
            found.unclean_epoch,
            found.recovering,
            found.shutting_down,
        )
    )


def _broker_lease(key: str, name: str, value: bytes | None) -> Change | None:
    if not name.isdecimal():
        return None
    return BrokerLeaseChanged(int(name), None if value is None else _read(key, value, _BrokerLease).epoch)


def _configs(key: str, value: bytes | None) -> dict[str, str]:
    return {} if value is None else _read(key, value, dict[str, str])


def _controller_epoch(key: str, name: str, value: bytes | None) -> Change | None:
    return None if name or value is None else ControllerEpochChanged(_read(key, value, _ControllerEpoch).epoch)


def _controller(key: str, name: str, value: bytes | None) -> Change | None:
    if name:
        return None
    return ControllerChanged(NO_LEADER if value is None else _read(key, value, _ControllerLease).brokerid)


def _cluster(key: str, name: str, value: bytes | None) -> Change | None:
    return None if name or value is None else ClusterFormed(_read(key, value, _Cluster).id)


def _producer_ids(key: str, name: str, value: bytes | None) -> Change | None:
    return None if name or value is None else _read(key, value, ProducerIdsAllocated)


def _broker_configs(key: str, name: str, value: bytes | None) -> Change | None:
    return BrokerConfigsChanged(CLUSTER_DEFAULT if name == DEFAULT_NAME else name, _configs(key, value))


_DECODERS: Final[tuple[tuple[str, Callable[[str, str, bytes | None], Change | None]], ...]] = (
    (TOPICS, _topic),
    (BROKER_LEASES, _broker_lease),
    (BROKER_EPOCHS, _broker),
    (TOPIC_CONFIGS, lambda key, name, value: TopicConfigsChanged(name, _configs(key, value))),
    (BROKER_CONFIGS, _broker_configs),
    (GROUP_CONFIGS, lambda key, name, value: GroupConfigsChanged(unquote(name), _configs(key, value))),
    (CONTROLLER_EPOCH, _controller_epoch),
    (CONTROLLER, _controller),
    (CLUSTER, _cluster),
    (PRODUCER_IDS, _producer_ids),
)


def _read(key: str, value: bytes, type_: Any) -> Any:
    try:
        return _decoders[type_].decode(value)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{key}: {error} in {value[:200]!r}") from error

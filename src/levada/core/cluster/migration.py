"""Converts the records of format 1, which one-node clusters of earlier versions wrote, to those of format 2.

Format 1 had a record for each topic with all its partitions and configs, and keys of its own. The node keeps its id: a
data directory of one node becomes a broker of a cluster. Its next registration has a greater epoch than any before.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

import msgspec

from levada.core.cluster import metadata_records
from levada.core.cluster.changes import (
    BrokerChanged,
    BrokerConfigsChanged,
    BrokerImage,
    Change,
    ClusterFormed,
    GroupConfigsChanged,
    PartitionChanged,
    ProducerIdsAllocated,
    TopicChanged,
    TopicConfigsChanged,
)
from levada.core.cluster.image import CLUSTER_DEFAULT
from levada.core.cluster.topic_image import NO_BROKER_EPOCH, PartitionImage
from levada.model import NO_LEADER, Endpoint

CLUSTER: Final = "/cluster"
PRODUCER_IDS: Final = "/producer-ids"
TOPICS: Final = "/topics/"
BROKERS: Final = "/brokers/"
BROKER_CONFIGS: Final = "/configs/brokers/"
GROUP_CONFIGS: Final = "/configs/groups/"


class _Partition(msgspec.Struct):
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[UUID, ...] = ()


class _Topic(msgspec.Struct):
    name: str
    id: UUID
    partitions: tuple[_Partition, ...]
    configs: dict[str, str] = {}


class _Broker(msgspec.Struct):
    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = 0


def migrated(records: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the records of format 2 for those of format 1; raise ValueError for an invalid one.

    Whoever stores them deletes all former records in the same transaction.
    """
    brokers = {key: _read(key, value, _Broker) for key, value in records.items() if key.startswith(BROKERS)}
    epochs = {broker.id: broker.epoch for broker in brokers.values()}
    converted: dict[str, bytes] = {}
    for key, value in records.items():
        for change in _changes(key, value, epochs):
            new_key, new_value = metadata_records.encode(change)
            if new_value is not None:
                converted[new_key] = new_value
    return converted


def _changes(key: str, value: bytes, epochs: Mapping[int, int]) -> list[Change]:
    if key.startswith(TOPICS):
        return _topic(_read(key, value, _Topic), epochs)
    if key.startswith(BROKERS):
        broker = _read(key, value, _Broker)
        return [BrokerChanged(BrokerImage(broker.id, broker.endpoints, broker.rack, broker.epoch))]
    if key.startswith(BROKER_CONFIGS):
        name = key.removeprefix(BROKER_CONFIGS)
        name = CLUSTER_DEFAULT if name == metadata_records.DEFAULT_NAME else name
        return [BrokerConfigsChanged(name, _read(key, value, dict[str, str]))]
    if key.startswith(GROUP_CONFIGS):
        return [GroupConfigsChanged(unquote(key.removeprefix(GROUP_CONFIGS)), _read(key, value, dict[str, str]))]
    if key == PRODUCER_IDS:
        return [_read(key, value, ProducerIdsAllocated)]
    if key == CLUSTER:
        return [_read(key, value, ClusterFormed)]
    return []  # the controller is now the broker that holds a lease


def _topic(topic: _Topic, epochs: Mapping[int, int]) -> list[Change]:
    partitions = [
        PartitionImage(
            state.replicas,
            state.isr,
            state.leader,
            state.leader_epoch,
            state.partition_epoch,
            state.directories,
            tuple([epochs.get(broker, NO_BROKER_EPOCH) for broker in state.isr]),
        )
        for state in topic.partitions
    ]
    return [
        *[PartitionChanged(topic.name, topic.id, index, state) for index, state in enumerate(partitions)],
        TopicConfigsChanged(topic.name, topic.configs),
        TopicChanged(topic.name, topic.id, len(partitions)),
    ]


def _read(key: str, value: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(value, type=type_)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{key}: {error} in {value[:200]!r}") from error

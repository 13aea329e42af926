"""The decisions of the controller: a pure function from image and command to the changes to store.

A command returns all its changes or raises KafkaError with Kafka's code and message. Ids and defaults are part of the
command, because they depend on randomness and settings.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from levada.core.cluster.changes import Change, ProducerIdsAllocated
from levada.core.cluster.config_changes import AlterConfigs, IncrementalAlterConfigs, alter_configs
from levada.core.cluster.election import ElectLeader, elect_leader
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.isr import AlterPartition, ReplicasOffline, alter_partition, replicas_offline
from levada.core.cluster.placement import PARTITIONS_PER_REQUEST_MAX
from levada.core.cluster.reassignment import ReassignPartition, reassign_partition
from levada.core.cluster.registration import (
    BrokerRecovered,
    FormCluster,
    RegisterBroker,
    ShutDownBroker,
    UnregisterBroker,
    broker_recovered,
    form_cluster,
    register_broker,
    shut_down_broker,
    unregister_broker,
)
from levada.core.cluster.topics import (
    NO_CREATOR,
    AbandonCreations,
    AssignDirectories,
    CreatePartitions,
    CreateTopic,
    Creator,
    DeleteTopic,
    abandon_creations,
    assign_directories,
    create_partitions,
    create_topic,
    delete_topic,
    find_topic,
)
from levada.errors import ErrorCode, KafkaError

__all__ = [
    "PARTITIONS_PER_REQUEST_MAX",
    "PRODUCER_ID_BLOCK",
    "AllocateProducerIds",
    "AssignDirectories",
    "Command",
    "CreatePartitions",
    "CreateTopic",
    "DeleteTopic",
    "decide",
    "find_topic",
]

PRODUCER_ID_BLOCK: Final = 1_000
PRODUCER_ID_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Allocate a block of unique producer ids."""


Command: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfigs
    | IncrementalAlterConfigs
    | AllocateProducerIds
    | AbandonCreations
    | AssignDirectories
    | AlterPartition
    | ReplicasOffline
    | ElectLeader
    | ReassignPartition
    | FormCluster
    | RegisterBroker
    | UnregisterBroker
    | BrokerRecovered
    | ShutDownBroker
)


def decide(image: ClusterImage, command: Command, creator: Creator = NO_CREATOR) -> list[Change]:
    """Return the changes of a command, which `creator` executes."""
    match command:
        case CreateTopic():
            return create_topic(image, command, creator)
        case DeleteTopic():
            return delete_topic(image, command)
        case CreatePartitions():
            return create_partitions(image, command, creator)
        case AlterConfigs() | IncrementalAlterConfigs():
            return alter_configs(image, command)
        case AllocateProducerIds():
            return _allocate_producer_ids(image)
        case AbandonCreations():
            return abandon_creations(image, creator)
        case AssignDirectories():
            return assign_directories(image, command)
        case AlterPartition():
            return alter_partition(image, command)
        case ReplicasOffline():
            return replicas_offline(image, command)
        case ElectLeader():
            return elect_leader(image, command)
        case ReassignPartition():
            return reassign_partition(image, command)
        case FormCluster():
            return form_cluster(image, command)
        case RegisterBroker():
            return register_broker(image, command)
        case UnregisterBroker():
            return unregister_broker(image, command)
        case BrokerRecovered():
            return broker_recovered(image, command)
        case ShutDownBroker():
            return shut_down_broker(image, command)


def _allocate_producer_ids(image: ClusterImage) -> list[Change]:
    first = image.next_producer_id
    if first > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are exhausted")
    return [ProducerIdsAllocated(first + PRODUCER_ID_BLOCK)]

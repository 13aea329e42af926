"""The records of the metadata store: changes of the image with a path as the key and JSON as the value.

The keys resemble ZooKeeper's paths, so that a store is easy to inspect.
"""

from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from levada.core.cluster.image import (
    CLUSTER_DEFAULT,
    BrokerChanged,
    BrokerConfigsChanged,
    BrokerImage,
    BrokerRemoved,
    Change,
    ClusterFormed,
    ControllerChanged,
    GroupConfigsChanged,
    ProducerIdsAllocated,
    TopicChanged,
    TopicImage,
    TopicRemoved,
)

CLUSTER: Final = "/cluster"
CONTROLLER: Final = "/controller"
PRODUCER_IDS: Final = "/producer-ids"
TOPICS: Final = "/topics/"
BROKERS: Final = "/brokers/"
BROKER_CONFIGS: Final = "/configs/brokers/"
GROUP_CONFIGS: Final = "/configs/groups/"  # followed by the URL-encoded group id, which may contain slashes
DEFAULT_NAME: Final = "<default>"  # an empty name would not be a valid ZooKeeper path


def encode(change: Change) -> tuple[str, bytes | None]:
    """Encode a change as key and value; None as the value deletes the record."""
    match change:
        case TopicChanged(topic):
            return TOPICS + topic.name, msgspec.json.encode(topic)
        case TopicRemoved(name):
            return TOPICS + name, None
        case BrokerChanged(broker):
            return f"{BROKERS}{broker.id}", msgspec.json.encode(broker)
        case BrokerRemoved(broker_id):
            return f"{BROKERS}{broker_id}", None
        case BrokerConfigsChanged(name, configs):
            value = msgspec.json.encode(configs) if configs else None
            return BROKER_CONFIGS + (name or DEFAULT_NAME), value
        case GroupConfigsChanged(name, configs):
            return GROUP_CONFIGS + quote(name, safe=""), msgspec.json.encode(configs) if configs else None
        case ProducerIdsAllocated():
            return PRODUCER_IDS, msgspec.json.encode(change)
        case ClusterFormed():
            return CLUSTER, msgspec.json.encode(change)
        case ControllerChanged():
            return CONTROLLER, msgspec.json.encode(change)


def decode(key: str, value: bytes | None) -> Change | None:
    """Decode a record; None for a key that is not part of the image. Raises ValueError for an invalid value."""
    if key.startswith(TOPICS):
        name = key.removeprefix(TOPICS)
        return TopicRemoved(name) if value is None else TopicChanged(_read(value, TopicImage))
    if key.startswith(BROKER_CONFIGS):
        name = key.removeprefix(BROKER_CONFIGS)
        configs = {} if value is None else _read(value, dict[str, str])
        return BrokerConfigsChanged(CLUSTER_DEFAULT if name == DEFAULT_NAME else name, configs)
    if key.startswith(GROUP_CONFIGS):
        configs = {} if value is None else _read(value, dict[str, str])
        return GroupConfigsChanged(unquote(key.removeprefix(GROUP_CONFIGS)), configs)
    if key.startswith(BROKERS) and (name := key.removeprefix(BROKERS)).isdecimal():
        return BrokerRemoved(int(name)) if value is None else BrokerChanged(_read(value, BrokerImage))
    kinds = {PRODUCER_IDS: ProducerIdsAllocated, CLUSTER: ClusterFormed, CONTROLLER: ControllerChanged}
    kind = kinds.get(key)
    return None if kind is None or value is None else _read(value, kind)


def _read(value: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(value, type=type_)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{error} in {value[:200]!r}") from error

"""Logs the changes of topics and configs that the controller has committed, with the client that requested them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from levada.config.properties import ignored_because
from levada.config.unused import UNUSED_SETTINGS
from levada.core.cluster.image import (
    BrokerConfigsChanged,
    Change,
    ClusterImage,
    GroupConfigsChanged,
    TopicChanged,
    TopicImage,
    TopicRemoved,
)
from levada.logs import EventLog
from levada.model import Requester

log = EventLog(__name__)

LINES_PER_ITERATION: Final = 100  # before the event loop serves others: a request may create thousands of topics
VALUE_CHARACTERS_MAX: Final = 200  # of a config value, which a client has sent
BROKER: Final = {"requested_by": "broker"}  # a change that no client requested, such as an internal topic


async def log_changes(former: ClusterImage, changes: Sequence[Change], requester: Requester | None) -> None:
    """Log each change of `former` that an operator may look for; requests for producer ids are left out."""
    fields = BROKER if requester is None else requester.log_fields()
    for number, change in enumerate(changes, 1):
        _log_change(former, change, fields)
        if number % LINES_PER_ITERATION == 0:
            await asyncio.sleep(0)


def _log_change(former: ClusterImage, change: Change, requester: Mapping[str, object]) -> None:
    match change:
        case TopicChanged(topic) if topic.name not in former.topics:
            created = _differences({}, topic.configs)
            factor = len(topic.partitions[0].replicas)
            size = {"partitions": len(topic.partitions), "replication_factor": factor}
            log.info("topic created", topic=topic.name, **size, **created, **requester)
        case TopicChanged(topic):
            log.info("topic altered", topic=topic.name, **_altered(former.topics[topic.name], topic), **requester)
        case TopicRemoved(name):
            log.info("topic deleted", topic=name, partitions=len(former.topics[name].partitions), **requester)
        case BrokerConfigsChanged(broker, configs):
            before = former.broker_configs.get(broker, {})
            log.info("broker configs altered", broker=broker or "all", **_differences(before, configs), **requester)
            for name in configs.keys() & UNUSED_SETTINGS.keys():
                if before.get(name) != configs[name]:
                    log.warning("broker setting is stored without effect", setting=name, why=ignored_because(name))
        case GroupConfigsChanged(group, configs):
            before = former.group_configs.get(group, {})
            log.info("group configs altered", group=group, **_differences(before, configs), **requester)


def _altered(former: TopicImage, topic: TopicImage) -> dict[str, object]:
    fields: dict[str, object] = {}
    if len(former.partitions) != len(topic.partitions):
        fields = {"partitions": len(topic.partitions), "former_partitions": len(former.partitions)}
    return fields | _differences(former.configs, topic.configs)


def _differences(former: Mapping[str, str], configs: Mapping[str, str]) -> dict[str, object]:
    """The configs that were set, and the names of those that are back at their defaults."""
    fields: dict[str, object] = {}
    changed = [f"{name}={_clipped(value)}" for name, value in configs.items() if former.get(name) != value]
    if changed:
        fields["set"] = ",".join(changed)
    if reset := [name for name in former if name not in configs]:
        fields["reset"] = ",".join(reset)
    return fields


def _clipped(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[:VALUE_CHARACTERS_MAX]}..."

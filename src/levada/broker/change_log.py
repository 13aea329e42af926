"""Logs the changes of topics and configs that the controller has committed, with the client that requested them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from levada.config.properties import ignored_because
from levada.config.unused import UNUSED_SETTINGS
from levada.core.cluster.changes import (
    BrokerConfigsChanged,
    BrokerRemoved,
    Change,
    GroupConfigsChanged,
    TopicChanged,
    TopicConfigsChanged,
    TopicRemoved,
)
from levada.core.cluster.image import ClusterImage, TopicImage
from levada.logs import EventLog
from levada.model import Requester

log = EventLog(__name__)

LINES_PER_ITERATION: Final = 100  # before the event loop serves others: a request may create thousands of topics
VALUE_CHARACTERS_MAX: Final = 200  # of a config value, which a client has sent
BROKER: Final = {"requested_by": "broker"}  # a change that no client requested, such as an internal topic


async def log_changes(
    former: ClusterImage, image: ClusterImage, changes: Sequence[Change], requester: Requester | None
) -> None:
    """Log each change between two images that an operator may look for; requests for producer ids are left out."""
    fields = BROKER if requester is None else requester.log_fields()
    logged: set[str] = set()  # topics, each of which has many changes
    for number, change in enumerate(changes, 1):
        if isinstance(change, TopicChanged | TopicRemoved | TopicConfigsChanged):
            name = change.topic if isinstance(change, TopicConfigsChanged) else change.name
            if name not in logged:
                logged.add(name)
                _log_topic(name, former.topics.get(name), image.topics.get(name), fields)
        else:
            _log_change(former, change, fields)
        if number % LINES_PER_ITERATION == 0:
            await asyncio.sleep(0)


def _log_topic(name: str, former: TopicImage | None, topic: TopicImage | None, requester: Mapping[str, object]) -> None:
    if former is not None and (topic is None or topic.id != former.id):
        log.info("topic deleted", topic=name, partitions=len(former.partitions), **requester)
        former = None
    if topic is None:
        return
    if former is not None:
        log.info("topic altered", topic=name, **_altered(former, topic), **requester)
        return
    size = {"partitions": len(topic.partitions), "replication_factor": len(topic.partitions[0].replicas)}
    log.info("topic created", topic=name, **size, **_differences({}, topic.configs), **requester)


def _log_change(former: ClusterImage, change: Change, requester: Mapping[str, object]) -> None:
    match change:
        case BrokerConfigsChanged(broker, configs):
            before = former.broker_configs.get(broker, {})
            log.info("broker configs altered", broker=broker or "all", **_differences(before, configs), **requester)
            for name in configs.keys() & UNUSED_SETTINGS.keys():
                if before.get(name) != configs[name]:
                    log.warning("broker setting is stored without effect", setting=name, why=ignored_because(name))
        case GroupConfigsChanged(group, configs):
            before = former.group_configs.get(group, {})
            log.info("group configs altered", group=group, **_differences(before, configs), **requester)
        case BrokerRemoved(broker_id):
            log.info("broker unregistered", broker=broker_id, **requester)


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

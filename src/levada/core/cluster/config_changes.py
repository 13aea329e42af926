"""Config changes of topics, brokers and groups: AlterConfigs and IncrementalAlterConfigs.

Only overrides are stored. A value is checked before it is stored, not when it is read back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from levada.config.broker import BROKER_SETTINGS
from levada.config.groups import GROUP_DEFAULTS, GROUP_SETTINGS, GroupConfig, GroupSettings
from levada.config.properties import unknown_setting
from levada.config.settings import ConfigType, Setting
from levada.config.topic import TOPIC_SETTINGS, TopicConfig
from levada.config.unused import UNUSED_SETTINGS
from levada.core.cluster import topic_names
from levada.core.cluster.changes import (
    BrokerConfigsChanged,
    Change,
    GroupConfigsChanged,
    TopicConfigsChanged,
    TopicUnchanged,
)
from levada.core.cluster.image import CLUSTER_DEFAULT, ClusterImage
from levada.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Types of config resources, numbered as in the protocol."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


SETTINGS: Final[Mapping[ResourceType, Mapping[str, Setting]]] = {
    ResourceType.TOPIC: TOPIC_SETTINGS,
    ResourceType.BROKER: {**BROKER_SETTINGS, **UNUSED_SETTINGS},
    ResourceType.GROUP: GROUP_SETTINGS,
}


CLEANUP_POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """The change of one key by IncrementalAlterConfigs."""

    name: str
    operation: Operation
    value: str | None


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Replace all configs of a topic, broker or group."""

    type: ResourceType
    resource: str
    configs: Mapping[str, str]
    group_defaults: GroupSettings = GROUP_DEFAULTS  # its bounds apply to groups


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigs:
    """Change some configs of a topic, broker or group."""

    type: ResourceType
    resource: str
    changes: tuple[ConfigChange, ...]
    group_defaults: GroupSettings = GROUP_DEFAULTS


def alter_configs(image: ClusterImage, command: AlterConfigs | IncrementalAlterConfigs) -> list[Change]:
    """Return the changes that store the new configs; none if they are the same."""
    former = _current(image, command.type, command.resource)
    if isinstance(command, AlterConfigs):
        configs = dict(command.configs)
    else:
        configs = _apply_changes(former, command.changes, SETTINGS[command.type])
    if command.type is ResourceType.TOPIC:
        configs = dict(internal_topic_configs(command.resource, configs))
    changes = _checked(command, configs)
    return [] if configs == former else changes


def internal_topic_configs(name: str, configs: Mapping[str, str]) -> Mapping[str, str]:
    """Return the configs of a topic; an internal one is compacted, since retention would delete the broker's state."""
    if not topic_names.is_internal(name):
        return configs
    if configs.get(CLEANUP_POLICY, COMPACT) != COMPACT:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"The internal topic {name} must have {CLEANUP_POLICY}={COMPACT}.")
    return {**configs, CLEANUP_POLICY: COMPACT}


def _checked(command: AlterConfigs | IncrementalAlterConfigs, configs: Mapping[str, str]) -> list[Change]:
    resource = command.resource
    match command.type:
        case ResourceType.TOPIC:
            TopicConfig.check(configs)
            return [TopicUnchanged(resource), TopicConfigsChanged(resource, configs)]
        case ResourceType.BROKER:
            _check_broker(configs)
            return [BrokerConfigsChanged(resource, configs)]
        case ResourceType.GROUP:
            GroupConfig.build(command.group_defaults, configs)
            return [GroupConfigsChanged(resource, configs)]


def _current(image: ClusterImage, type_: ResourceType, resource: str) -> Mapping[str, str]:
    if type_ is ResourceType.TOPIC:
        topic_names.check(resource)
        topic = image.topics.get(resource)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource}' does not exist.")
        return topic.configs
    if type_ is ResourceType.GROUP:
        return image.group_configs.get(resource, {})
    if resource != CLUSTER_DEFAULT and resource not in map(str, image.registered):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"No broker has the id {resource}.")
    return image.broker_configs.get(resource, {})


def _apply_changes(
    former: Mapping[str, str], changes: tuple[ConfigChange, ...], settings: Mapping[str, Setting]
) -> dict[str, str]:
    if len({item.name for item in changes}) < len(changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    configs = dict(former)
    for name, operation, value in changes:
        if operation is Operation.DELETE:
            configs.pop(name, None)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
        if operation is Operation.SET:
            configs[name] = value
            continue
        known = settings.get(name)
        if known is None or known.type is not ConfigType.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Can't {operation.name} to key {name} because its type is not LIST.",
            )
        configs[name] = _edited_list(configs.get(name, known.render(known.default) or ""), operation, value)
    return configs


def _edited_list(present: str, operation: Operation, value: str) -> str:
    parts = [part.strip() for part in present.split(",") if part.strip()]
    given = [part.strip() for part in value.split(",") if part.strip()]
    if operation is Operation.APPEND:
        return ",".join(parts + [part for part in dict.fromkeys(given) if part not in parts])
    return ",".join(part for part in parts if part not in given)


def _check_broker(configs: Mapping[str, str]) -> None:
    for name, text in configs.items():
        known = SETTINGS[ResourceType.BROKER].get(name)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, unknown_setting(name, text, BROKER_SETTINGS))
        if not known.dynamic:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{name}]")
        try:
            known.parse(text)
        except KafkaError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error.detail) from error  # Kafka's code for brokers

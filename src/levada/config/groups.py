"""Settings of groups, under Kafka's names; what a group does not set comes from the broker's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from levada.config.broker import BrokerConfig, inherited, parsed
from levada.config.settings import Setting, declared, nearest, setting
from levada.errors import ErrorCode, KafkaError

# Names that Kafka knows and Levada has no use for, by how they begin, and why.
WITHOUT_EFFECT: Final = {
    "consumer.assignment.": "partitions are divided at once",
    "share.": "share groups are not available yet",
    "streams.": "streams groups are not available",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """How members of a group in the consumer protocol (KIP-848) are watched."""

    consumer_session_timeout_ms: int = setting(
        45_000,
        "A member that is not heard of for so long is removed.",
        minimum=1,
        synonyms="group.consumer.session.timeout.ms",
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000,
        "How often members are told to send heartbeats.",
        minimum=1,
        synonyms="group.consumer.heartbeat.interval.ms",
    )

    @staticmethod
    def build(broker: BrokerConfig, overrides: Mapping[str, str]) -> "GroupConfig":
        """A group's config over the broker's; INVALID_CONFIG if a name or value is refused."""
        for name in overrides:
            if name not in GROUP_SETTINGS:
                raise KafkaError(ErrorCode.INVALID_CONFIG, _unknown(name))
        defaults = {item.attribute: inherited(item, broker) for item in GROUP_SETTINGS.values()}
        config = replace(GroupConfig(**defaults), **parsed(GROUP_SETTINGS, overrides))
        for name in overrides:
            _check_bounds(GROUP_SETTINGS[name], config, broker)
        if config.consumer_heartbeat_interval_ms >= config.consumer_session_timeout_ms:
            raise GROUP_SETTINGS["consumer.heartbeat.interval.ms"].rejected(
                "must be less than consumer.session.timeout.ms"
            )
        return config


GROUP_SETTINGS: Final[Mapping[str, Setting]] = declared(GroupConfig)


def _unknown(name: str) -> str:
    for beginning, why in WITHOUT_EFFECT.items():
        if name.startswith(beginning):
            return f"{name} has no effect: {why}"
    return f"Unknown group config name: {name}{nearest(name, GROUP_SETTINGS)}"


def _check_bounds(item: Setting, config: GroupConfig, broker: BrokerConfig) -> None:
    """A value is within the broker's bounds for groups, unless it is nearer to them than the broker's own."""
    value, own = getattr(config, item.attribute), inherited(item, broker)
    kind = item.name.removeprefix("consumer.")
    lowest = getattr(broker, f"group.consumer.min.{kind}".replace(".", "_"))
    highest = getattr(broker, f"group.consumer.max.{kind}".replace(".", "_"))
    if value < min(lowest, own):
        raise item.rejected(f"must be at least group.consumer.min.{kind}, which is {lowest}")
    if value > max(highest, own):
        raise item.rejected(f"must be at most group.consumer.max.{kind}, which is {highest}")

"""Declares the settings of the group coordinator and of single groups, under Kafka's names.

Defaults are Kafka's, except that replication factors are 1: a single broker must be able to create its internal
topics. A group setting without an override takes its value from the coordinator's settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from levada.config.settings import (
    INT_MAX,
    Long,
    Setting,
    Short,
    Strings,
    declared,
    did_you_mean,
    inherited,
    override,
    setting,
    updated,
)
from levada.errors import ErrorCode, KafkaError

MINUTE_MS: Final = 60_000
ASSIGNORS: Final = ("uniform", "range")
# Kafka also accepts the class names of its assignors.
ASSIGNOR_CLASSES: Final = {
    f"org.apache.kafka.coordinator.group.assignor.{name.capitalize()}Assignor": name for name in ASSIGNORS
}
# Group settings of Kafka without effect in Levada, by prefix, and the reason.
IGNORED: Final = {
    "consumer.assignment.": "assignments are computed at once",
    "share.": "share groups are not available yet",
    "streams.": "streams groups are not available",
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupSettings:
    """The group coordinator: the section `groups` of `BrokerConfig`."""

    offsets_topic_num_partitions: int = setting(50, "Partitions of __consumer_offsets.", minimum=1)
    offsets_topic_replication_factor: Short = setting(1, "Replicas of __consumer_offsets.", minimum=1)
    offsets_topic_segment_bytes: int = setting(100 << 20, "Segment size of __consumer_offsets.", minimum=1)
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        "Retention of committed offsets after their group is empty or has unsubscribed.",
        minimum=1,
    )
    offsets_retention_check_interval_ms: Long = setting(
        10 * MINUTE_MS, "The interval of checks for expired offsets.", minimum=1
    )
    offset_metadata_max_bytes: int = setting(4096, "The largest metadata of a committed offset.")
    offsets_commit_timeout_ms: int = setting(
        5_000, "The timeout of the coordinator's writes to its internal topic.", minimum=1
    )
    group_min_session_timeout_ms: int = setting(6_000, "The least session timeout in a classic group.")
    group_max_session_timeout_ms: int = setting(30 * MINUTE_MS, "The greatest session timeout in a classic group.")
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "How long a new group waits for more members before its first rebalance. `levada start` without a properties "
        "file sets 0, so that the first consumer starts at once.",
        minimum=0,
    )
    group_max_size: int = setting(INT_MAX, "The largest number of members of a classic group.", minimum=1)
    levada_group_members_bytes_max: Long = setting(
        128 << 20,
        "The memory limit of the members of all groups: subscriptions, assignments by classic leaders and 1 KiB per "
        "member. One group may use an eighth of it. Joins beyond fail with GROUP_MAX_SIZE_REACHED.",
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000, "The session timeout of members of consumer groups.", minimum=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "The heartbeat interval of members of consumer groups.", minimum=1
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "The least consumer.session.timeout.ms of a group.", minimum=1
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "The greatest consumer.session.timeout.ms of a group.", minimum=1
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "The least consumer.heartbeat.interval.ms of a group.", minimum=1
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "The greatest consumer.heartbeat.interval.ms of a group.", minimum=1
    )
    group_consumer_max_size: int = setting(INT_MAX, "The largest number of members of a consumer group.", minimum=1)
    group_consumer_assignors: Strings = setting(
        ASSIGNORS,
        "The server-side assignors of consumer groups; the first is the default.",
        choices=(*ASSIGNORS, *ASSIGNOR_CLASSES),
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "The online migrations allowed between the classic and the consumer protocol.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )


GROUP_DEFAULTS: Final = GroupSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The settings of one consumer group (KIP-848)."""

    consumer_session_timeout_ms: int = override(
        GROUP_DEFAULTS, "group.consumer.session.timeout.ms", "The session timeout of the group's members."
    )
    consumer_heartbeat_interval_ms: int = override(
        GROUP_DEFAULTS,
        "group.consumer.heartbeat.interval.ms",
        "The heartbeat interval of the group's members.",
    )

    @staticmethod
    def build(broker: GroupSettings, overrides: Mapping[str, str]) -> "GroupConfig":
        """Return the config of a group: its overrides over the broker's defaults; raise INVALID_CONFIG."""
        for name in overrides:
            if name not in GROUP_SETTINGS:
                raise KafkaError(ErrorCode.INVALID_CONFIG, _unknown(name))
        defaults = {item.attribute: inherited(item, broker) for item in GROUP_SETTINGS.values()}
        config = updated(GroupConfig(**defaults), GROUP_SETTINGS, overrides)
        for name in overrides:
            _check_bounds(GROUP_SETTINGS[name], config, broker)
        if config.consumer_heartbeat_interval_ms >= config.consumer_session_timeout_ms:
            raise GROUP_SETTINGS["consumer.heartbeat.interval.ms"].invalid(
                "must be less than consumer.session.timeout.ms"
            )
        return config


GROUP_SETTINGS: Final[Mapping[str, Setting]] = declared(GroupConfig)


def _unknown(name: str) -> str:
    for prefix, why in IGNORED.items():
        if name.startswith(prefix):
            return f"{name} has no effect: {why}"
    return f"Unknown group config name: {name}{did_you_mean(name, GROUP_SETTINGS)}"


def _check_bounds(item: Setting, config: GroupConfig, broker: GroupSettings) -> None:
    """Check the broker's bounds for groups. The broker's own default is always valid, even outside of them."""
    value, own = getattr(config, item.attribute), inherited(item, broker)
    kind = item.name.removeprefix("consumer.")
    lowest = getattr(broker, f"group.consumer.min.{kind}".replace(".", "_"))
    highest = getattr(broker, f"group.consumer.max.{kind}".replace(".", "_"))
    if value < min(lowest, own):
        raise item.invalid(f"must be at least group.consumer.min.{kind}, which is {lowest}")
    if value > max(highest, own):
        raise item.invalid(f"must be at most group.consumer.max.{kind}, which is {highest}")

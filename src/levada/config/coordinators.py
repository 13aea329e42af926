"""Settings of the coordinators (groups and transactions), under Kafka's names with Kafka's defaults.

They are part of `BrokerConfig`, which inherits them; here they have room. Replication factors are 1 where Kafka has
3, since a broker on its own must be able to make its internal topics.
"""

from dataclasses import dataclass
from typing import Final

from levada.config.settings import INT_MAX, Long, Short, Strings, setting
from levada.config.transactions import TransactionSettings

MINUTE_MS: Final = 60_000
ASSIGNORS: Final = ("uniform", "range")
# Kafka also takes the names of its own classes.
ASSIGNOR_CLASSES: Final = {
    f"org.apache.kafka.coordinator.group.assignor.{name.capitalize()}Assignor": name for name in ASSIGNORS
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CoordinatorSettings(TransactionSettings):
    """How groups are coordinated."""

    offsets_topic_num_partitions: int = setting(50, "Partitions of __consumer_offsets.", minimum=1)
    offsets_topic_replication_factor: Short = setting(1, "Replicas of __consumer_offsets.", minimum=1)
    offsets_topic_segment_bytes: int = setting(100 << 20, "Segments of __consumer_offsets.", minimum=1)
    offsets_retention_minutes: int = setting(
        7 * 24 * 60, "How long offsets are kept after a group is empty or its topic unsubscribed.", minimum=1
    )
    offsets_retention_check_interval_ms: Long = setting(
        10 * MINUTE_MS, "How often offsets that are kept no longer are looked for.", minimum=1
    )
    offset_metadata_max_bytes: int = setting(4096, "The largest text committed with an offset.")
    offsets_commit_timeout_ms: int = setting(
        5_000, "How long a coordinator waits for its own writes to be committed.", minimum=1
    )
    group_min_session_timeout_ms: int = setting(6_000, "The shortest session timeout a member may ask for.")
    group_max_session_timeout_ms: int = setting(30 * MINUTE_MS, "The longest one.")
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "How long a new group waits for more members before its first assignment.", minimum=0
    )
    group_max_size: int = setting(INT_MAX, "Members that a group may have.", minimum=1)
    levada_group_members_bytes_max: Long = setting(
        128 << 20,
        "What members of all groups may make the broker hold: what they say, what leaders of classic groups assign "
        "them, and a KiB for each. "
        "One group may take an eighth of it. Who would be too much is told GROUP_MAX_SIZE_REACHED.",
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000, "A member of the consumer protocol that is not heard of for so long is removed.", minimum=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "How often members of the consumer protocol are told to send heartbeats.", minimum=1
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
    group_consumer_max_size: int = setting(INT_MAX, "Members that a consumer group may have.", minimum=1)
    group_consumer_assignors: Strings = setting(
        ASSIGNORS,
        "How partitions of consumer groups may be divided; the first where members ask for none.",
        choices=(*ASSIGNORS, *ASSIGNOR_CLASSES),
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Which way groups with members may change between the classic and the consumer protocol.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )

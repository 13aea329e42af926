"""Declares the settings of topics and the broker settings that provide their defaults, under Kafka's names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from levada.config.settings import (
    LONG_MAX,
    Long,
    Setting,
    Strings,
    declared,
    did_you_mean,
    inherited,
    override,
    setting,
    updated,
)
from levada.errors import ErrorCode, KafkaError

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
REPLICA: Final = r"\*|[0-9]+:[0-9]+"  # partition:broker
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


def topic_default(topic_setting: str, default: Any, **constraints: Any) -> Any:
    """Declare the broker's dynamic default of a topic setting."""
    return setting(default, f"Default of {topic_setting}.", dynamic=True, **constraints)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TopicDefaults:
    """Defaults of topic settings: the section `topic_defaults` of `BrokerConfig`."""

    log_segment_bytes: int = topic_default("segment.bytes", 1 << 30, minimum=14)
    log_roll_ms: Long | None = topic_default("segment.ms", None, minimum=1)
    log_roll_hours: int = setting(168, "Default of segment.ms, in hours.", minimum=1)
    log_roll_jitter_ms: Long | None = topic_default("segment.jitter.ms", None, minimum=0)
    log_roll_jitter_hours: int = setting(0, "Default of segment.jitter.ms, in hours.", minimum=0)
    log_index_size_max_bytes: int = topic_default("segment.index.bytes", 10 << 20, minimum=4)
    log_index_interval_bytes: int = topic_default("index.interval.bytes", 4096, minimum=0)
    log_flush_interval_messages: Long = topic_default("flush.messages", LONG_MAX, minimum=1)
    log_flush_interval_ms: Long | None = topic_default("flush.ms", None, minimum=0)
    log_flush_scheduler_interval_ms: Long = setting(LONG_MAX, "Default of log.flush.interval.ms.")
    log_retention_bytes: Long = topic_default("retention.bytes", -1)
    log_retention_ms: Long | None = topic_default("retention.ms", None, minimum=-1)
    log_retention_minutes: int | None = setting(None, "Default of retention.ms, in minutes.", minimum=-1)
    log_retention_hours: int = setting(168, "Default of retention.ms, in hours.", minimum=-1)
    message_max_bytes: int = topic_default("max.message.bytes", 1_048_588, minimum=0)
    log_segment_delete_delay_ms: Long = topic_default("file.delete.delay.ms", 60_000, minimum=0)
    log_cleanup_policy: Strings = topic_default("cleanup.policy", ("delete",), choices=("compact", "delete"))
    log_cleaner_delete_retention_ms: Long = topic_default("delete.retention.ms", DAY_MS, minimum=0)
    log_cleaner_min_compaction_lag_ms: Long = topic_default("min.compaction.lag.ms", 0, minimum=0)
    log_cleaner_max_compaction_lag_ms: Long = topic_default("max.compaction.lag.ms", LONG_MAX, minimum=1)
    log_cleaner_min_cleanable_ratio: float = topic_default("min.cleanable.dirty.ratio", 0.5, minimum=0, maximum=1)
    log_message_timestamp_type: str = topic_default("message.timestamp.type", "CreateTime", choices=TIMESTAMP_TYPES)
    log_message_timestamp_before_max_ms: Long = topic_default("message.timestamp.before.max.ms", LONG_MAX, minimum=0)
    log_message_timestamp_after_max_ms: Long = topic_default("message.timestamp.after.max.ms", HOUR_MS, minimum=0)
    log_preallocate: bool = setting(False, "Default of preallocate.", supported=("false",))
    compression_type: str = topic_default("compression.type", "producer", choices=COMPRESSION_TYPES)
    compression_gzip_level: int = topic_default("compression.gzip.level", -1, minimum=1, maximum=9, special=-1)
    compression_lz4_level: int = topic_default("compression.lz4.level", 9, minimum=1, maximum=17)
    compression_zstd_level: int = topic_default("compression.zstd.level", 3, minimum=-131_072, maximum=22)
    min_insync_replicas: int = topic_default("min.insync.replicas", 1, minimum=1)
    unclean_leader_election_enable: bool = topic_default("unclean.leader.election.enable", False)
    levada_acks_wait_for_fsync: bool = topic_default("levada.acks.wait.for.fsync", False)


TOPIC_DEFAULTS: Final = TopicDefaults()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic; defaults and bounds are those of the broker settings named with them."""

    cleanup_policy: Strings = override(
        TOPIC_DEFAULTS,
        "log.cleanup.policy",
        "What happens to old segments: deleted by retention, compacted to the latest value of each key, or both.",
    )
    compression_gzip_level: int = override(
        TOPIC_DEFAULTS,
        "compression.gzip.level",
        "Compression level of gzip where the broker recompresses; -1 for the codec's default.",
    )
    compression_lz4_level: int = override(
        TOPIC_DEFAULTS, "compression.lz4.level", "Compression level of lz4 where the broker recompresses."
    )
    compression_type: str = override(
        TOPIC_DEFAULTS,
        "compression.type",
        "The codec of the topic's batches: the broker recompresses those that have another one. `producer` keeps the "
        "codec of the producer, which costs the broker nothing.",
    )
    compression_zstd_level: int = override(
        TOPIC_DEFAULTS, "compression.zstd.level", "Compression level of zstd where the broker recompresses."
    )
    delete_retention_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps the tombstones of deleted keys.",
    )
    file_delete_delay_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.segment.delete.delay.ms",
        "No effect: fetches in progress still read a deleted segment to its end.",
    )
    flush_messages: Long = override(
        TOPIC_DEFAULTS,
        "log.flush.interval.messages",
        "Number of messages after which the log is flushed to disk with fsync.",
    )
    flush_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.flush.interval.ms log.flush.scheduler.interval.ms",
        "Time after which a written message is flushed to disk with fsync.",
    )
    follower_replication_throttled_replicas: Strings = setting((), "Throttled follower replicas.", pattern=REPLICA)
    index_interval_bytes: int = override(
        TOPIC_DEFAULTS, "log.index.interval.bytes", "Bytes between two entries of the offset index."
    )
    leader_replication_throttled_replicas: Strings = setting((), "Throttled leader replicas.", pattern=REPLICA)
    local_retention_bytes: Long = setting(-2, "Part of tiered storage; -2 for retention.bytes.", minimum=-2)
    local_retention_ms: Long = setting(-2, "Part of tiered storage; -2 for retention.ms.", minimum=-2)
    max_compaction_lag_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.cleaner.max.compaction.lag.ms",
        "The longest time a message remains ineligible for compaction.",
    )
    max_message_bytes: int = override(TOPIC_DEFAULTS, "message.max.bytes", "The largest record batch.")
    message_timestamp_after_max_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.message.timestamp.after.max.ms",
        "The largest allowed distance of a message's timestamp after the broker's time.",
    )
    message_timestamp_before_max_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.message.timestamp.before.max.ms",
        "The largest allowed distance of a message's timestamp before the broker's time.",
    )
    message_timestamp_type: str = override(
        TOPIC_DEFAULTS,
        "log.message.timestamp.type",
        "Whether timestamps are the time of creation or of the append.",
    )
    min_cleanable_dirty_ratio: float = override(
        TOPIC_DEFAULTS, "log.cleaner.min.cleanable.ratio", "The dirty ratio from which a log is compacted."
    )
    min_compaction_lag_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.cleaner.min.compaction.lag.ms",
        "The shortest time a message remains uncompacted.",
    )
    min_insync_replicas: int = override(
        TOPIC_DEFAULTS, "min.insync.replicas", "In-sync replicas that a Produce with acks=all requires."
    )
    preallocate: bool = override(TOPIC_DEFAULTS, "log.preallocate", "Segments are never preallocated.")
    remote_log_copy_disable: bool = setting(False, "Part of tiered storage.", supported=("false",))
    remote_log_delete_on_disable: bool = setting(False, "Part of tiered storage.", supported=("false",))
    remote_storage_enable: bool = setting(False, "Tiered storage is not available.", supported=("false",))
    retention_bytes: Long = override(
        TOPIC_DEFAULTS,
        "log.retention.bytes",
        "The size of a partition from which old segments are deleted; -1 for no limit.",
    )
    retention_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.retention.ms log.retention.minutes log.retention.hours",
        "The age from which segments are deleted; -1 for never.",
    )
    segment_bytes: int = override(TOPIC_DEFAULTS, "log.segment.bytes", "The size at which a segment is rolled.")
    segment_index_bytes: int = override(
        TOPIC_DEFAULTS,
        "log.index.size.max.bytes",
        "The largest offset index; a full index rolls its segment.",
    )
    segment_jitter_ms: Long = override(
        TOPIC_DEFAULTS,
        "log.roll.jitter.ms log.roll.jitter.hours",
        "No effect yet: segments roll at segment.ms exactly.",
    )
    segment_ms: Long = override(TOPIC_DEFAULTS, "log.roll.ms log.roll.hours", "The age at which a segment is rolled.")
    unclean_leader_election_enable: bool = override(
        TOPIC_DEFAULTS,
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync can become leader as a last resort, which loses messages.",
    )
    levada_acks_wait_for_fsync: bool = override(
        TOPIC_DEFAULTS,
        "levada.acks.wait.for.fsync",
        "Whether responses to acks=1 and acks=all wait until an fsync (group commit) has made the batch durable.",
    )

    @staticmethod
    def build(defaults: TopicDefaults, overrides: Mapping[str, str]) -> "TopicConfig":
        """Return the config of a topic: its overrides over the broker's defaults; raise INVALID_CONFIG."""
        config = _without_overrides(defaults)
        if not overrides:
            return config
        for name in overrides:
            if name not in TOPIC_SETTINGS:
                hint = did_you_mean(name, TOPIC_SETTINGS)
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}{hint}")
        return updated(config, TOPIC_SETTINGS, overrides)

    @staticmethod
    def check(overrides: Mapping[str, str]) -> None:
        """Raise INVALID_CONFIG unless these overrides are valid, on every broker and whatever its defaults.

        Compaction lags are compared here and not in `build`, as in Kafka: defaults that change later may contradict a
        topic, which must not stop its broker.
        """
        config = TopicConfig.build(TOPIC_DEFAULTS, overrides)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise TOPIC_SETTINGS["min.compaction.lag.ms"].invalid("is more than max.compaction.lag.ms")


TOPIC_SETTINGS: Final[Mapping[str, Setting]] = declared(TopicConfig)


@lru_cache(maxsize=8)
def _without_overrides(defaults: TopicDefaults) -> TopicConfig:
    return TopicConfig(**{item.attribute: inherited(item, defaults) for item in TOPIC_SETTINGS.values()})

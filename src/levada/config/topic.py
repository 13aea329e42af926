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
    setting,
    updated,
)
from levada.errors import ErrorCode, KafkaError

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
REPLICA: Final = r"\*|[0-9]+:[0-9]+"  # partition:broker
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS


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
    log_cleaner_min_cleanable_ratio: float = topic_default(
        "min.cleanable.dirty.ratio", 0.5, minimum=0, maximum=1
    )
    log_message_timestamp_type: str = topic_default(
        "message.timestamp.type", "CreateTime", choices=TIMESTAMP_TYPES
    )
    log_message_timestamp_before_max_ms: Long = topic_default(
        "message.timestamp.before.max.ms", LONG_MAX, minimum=0
    )
    log_message_timestamp_after_max_ms: Long = topic_default(
        "message.timestamp.after.max.ms", HOUR_MS, minimum=0
    )
    log_preallocate: bool = setting(False, "Default of preallocate.", supported=("false",))
    compression_type: str = topic_default(
        "compression.type", "producer", choices=COMPRESSION_TYPES, supported=("producer",)
    )
    compression_gzip_level: int = topic_default(
        "compression.gzip.level", -1, minimum=1, maximum=9, special=-1
    )
    compression_lz4_level: int = topic_default("compression.lz4.level", 9, minimum=1, maximum=17)
    compression_zstd_level: int = topic_default("compression.zstd.level", 3, minimum=-131_072, maximum=22)
    min_insync_replicas: int = topic_default("min.insync.replicas", 1, minimum=1)
    unclean_leader_election_enable: bool = topic_default("unclean.leader.election.enable", False)
    levada_acks_wait_for_fsync: bool = topic_default("levada.acks.wait.for.fsync", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic."""

    cleanup_policy: Strings = setting(
        ("delete",),
        "What happens to old segments: deleted by retention, compacted to the latest value of each key, or both.",
        choices=("compact", "delete"),
        synonyms="log.cleanup.policy",
    )
    compression_gzip_level: int = setting(
        -1,
        "Compression level of gzip where the broker compresses; -1 for the codec's default.",
        minimum=1,
        maximum=9,
        special=-1,
        synonyms="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        9,
        "Compression level of lz4 where the broker compresses.",
        minimum=1,
        maximum=17,
        synonyms="compression.lz4.level",
    )
    compression_type: str = setting(
        "producer",
        "Batches keep the codec of the producer.",
        choices=COMPRESSION_TYPES,
        supported=("producer",),
        synonyms="compression.type",
    )
    compression_zstd_level: int = setting(
        3,
        "Compression level of zstd where the broker compresses.",
        minimum=-131_072,
        maximum=22,
        synonyms="compression.zstd.level",
    )
    delete_retention_ms: Long = setting(
        DAY_MS,
        "How long a compacted topic keeps the tombstones of deleted keys.",
        minimum=0,
        synonyms="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: Long = setting(
        60_000,
        "No effect: fetches in progress still read a deleted segment to its end.",
        minimum=0,
        synonyms="log.segment.delete.delay.ms",
    )
    flush_messages: Long = setting(
        LONG_MAX,
        "Number of messages after which the log is flushed to disk with fsync.",
        minimum=1,
        synonyms="log.flush.interval.messages",
    )
    flush_ms: Long = setting(
        LONG_MAX,
        "Time after which a written message is flushed to disk with fsync.",
        minimum=0,
        synonyms="log.flush.interval.ms log.flush.scheduler.interval.ms",
    )
    follower_replication_throttled_replicas: Strings = setting(
        (), "Throttled follower replicas.", pattern=REPLICA
    )
    index_interval_bytes: int = setting(
        4096, "Bytes between two entries of the offset index.", minimum=0, synonyms="log.index.interval.bytes"
    )
    leader_replication_throttled_replicas: Strings = setting(
        (), "Throttled leader replicas.", pattern=REPLICA
    )
    local_retention_bytes: Long = setting(-2, "Part of tiered storage; -2 for retention.bytes.", minimum=-2)
    local_retention_ms: Long = setting(-2, "Part of tiered storage; -2 for retention.ms.", minimum=-2)
    max_compaction_lag_ms: Long = setting(
        LONG_MAX,
        "The longest time a message remains ineligible for compaction.",
        minimum=1,
        synonyms="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = setting(
        1_048_588, "The largest record batch.", minimum=0, synonyms="message.max.bytes"
    )
    message_timestamp_after_max_ms: Long = setting(
        HOUR_MS,
        "The largest allowed distance of a message's timestamp after the broker's time.",
        minimum=0,
        synonyms="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: Long = setting(
        LONG_MAX,
        "The largest allowed distance of a message's timestamp before the broker's time.",
        minimum=0,
        synonyms="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether timestamps are the time of creation or of the append.",
        choices=TIMESTAMP_TYPES,
        synonyms="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "The dirty ratio from which a log is compacted.",
        minimum=0,
        maximum=1,
        synonyms="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: Long = setting(
        0,
        "The shortest time a message remains uncompacted.",
        minimum=0,
        synonyms="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = setting(
        1,
        "In-sync replicas that a Produce with acks=all requires.",
        minimum=1,
        synonyms="min.insync.replicas",
    )
    preallocate: bool = setting(
        False, "Segments are never preallocated.", supported=("false",), synonyms="log.preallocate"
    )
    remote_log_copy_disable: bool = setting(False, "Part of tiered storage.", supported=("false",))
    remote_log_delete_on_disable: bool = setting(False, "Part of tiered storage.", supported=("false",))
    remote_storage_enable: bool = setting(False, "Tiered storage is not available.", supported=("false",))
    retention_bytes: Long = setting(
        -1,
        "The size of a partition from which old segments are deleted; -1 for no limit.",
        synonyms="log.retention.bytes",
    )
    retention_ms: Long = setting(
        WEEK_MS,
        "The age from which segments are deleted; -1 for never.",
        minimum=-1,
        synonyms="log.retention.ms log.retention.minutes log.retention.hours",
    )
    segment_bytes: int = setting(
        1 << 30, "The size at which a segment is rolled.", minimum=14, synonyms="log.segment.bytes"
    )
    segment_index_bytes: int = setting(
        10 << 20,
        "The largest offset index; a full index rolls its segment.",
        minimum=4,
        synonyms="log.index.size.max.bytes",
    )
    segment_jitter_ms: Long = setting(
        0,
        "No effect yet: segments roll at segment.ms exactly.",
        minimum=0,
        synonyms="log.roll.jitter.ms log.roll.jitter.hours",
    )
    segment_ms: Long = setting(
        WEEK_MS, "The age at which a segment is rolled.", minimum=1, synonyms="log.roll.ms log.roll.hours"
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether a replica that is not in sync can become leader as a last resort, which loses messages.",
        synonyms="unclean.leader.election.enable",
    )
    levada_acks_wait_for_fsync: bool = setting(
        False,
        "Whether responses to acks=1 and acks=all wait until an fsync (group commit) has made the batch durable.",
        synonyms="levada.acks.wait.for.fsync",
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
        config = updated(config, TOPIC_SETTINGS, overrides)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise TOPIC_SETTINGS["min.compaction.lag.ms"].invalid("is more than max.compaction.lag.ms")
        return config


TOPIC_SETTINGS: Final[Mapping[str, Setting]] = declared(TopicConfig)


@lru_cache(maxsize=8)
def _without_overrides(defaults: TopicDefaults) -> TopicConfig:
    return TopicConfig(**{item.attribute: inherited(item, defaults) for item in TOPIC_SETTINGS.values()})

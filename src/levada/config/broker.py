"""Every setting of a broker and of a topic, under Kafka's names, with Kafka's defaults where it has them.

An attribute is the setting's name with `_` for `.`. A topic's defaults come from settings of the broker. An
alteration while the broker runs makes a new object: nobody sees half of a change.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from levada.config import listeners
from levada.config.cleaner import CleanerSettings
from levada.config.settings import (
    INT_MAX,
    LONG_MAX,
    Long,
    Setting,
    Strings,
    declared,
    nearest,
    setting,
    topic_default,
)
from levada.errors import ErrorCode, KafkaError
from levada.model import Endpoint

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
REPLICA: Final = r"\*|[0-9]+:[0-9]+"  # partition:broker
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BrokerConfig(CleanerSettings):
    """How this broker runs."""

    given: Mapping[str, str] = field(default_factory=dict)  # what was set at the start; all else is a default

    # Identity and listeners
    node_id: int = setting(1, "The id of this broker.", minimum=0, aliases=("broker.id",))
    broker_rack: str | None = setting(None, "The rack of this broker, told to clients.")
    listeners: Strings = setting(
        ("PLAINTEXT://127.0.0.1:9092",), "Where to listen: NAME://host:port, separated by commas."
    )
    advertised_listeners: Strings | None = setting(
        None, "Where clients shall connect, if that differs from the listeners."
    )
    listener_security_protocol_map: Strings = setting(
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "NAME:PROTOCOL of each listener, separated by commas.",
    )
    controller_listener_names: Strings = setting((), "Listeners of Kafka's controller: not opened.")
    levada_allow_plaintext_beyond_loopback: bool = setting(
        False, "Open plaintext listeners to the network, where anyone who can connect can read and write."
    )
    levada_metrics_listener: str = setting(
        "127.0.0.1:9404",
        "host:port of /metrics and /healthz; empty for none, port 0 for a free one (also if unset and 9404 is in use).",
    )
    levada_log_format: str = setting("text", "How log lines are written.", choices=("text", "json"))
    levada_log_level: str = setting("info", "Lines below are left out.", choices=("debug", "info", "warning"))

    # Limits
    max_connections: int = setting(INT_MAX, "Connections at once.", minimum=0)
    max_connections_per_ip: int = setting(INT_MAX, "Connections at once from one address.", minimum=0)
    connections_max_idle_ms: Long = setting(600_000, "A connection idle for so long is closed; -1 for never.")
    socket_request_max_bytes: int = setting(100 << 20, "The largest request.", minimum=1)
    socket_listen_backlog_size: int = setting(1024, "Connections that wait to be accepted.", minimum=1)
    queued_max_request_bytes: Long = setting(
        -1, "Bytes of requests in flight before reading pauses; -1 for no limit."
    )
    levada_receive_buffers_bytes_max: Long = setting(
        64 << 20, "Bytes of buffers for requests that have not come whole; more wait.", minimum=1 << 20
    )
    fetch_max_bytes: int = setting(55 << 20, "The largest Fetch response.", minimum=1024)
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "Incremental fetch sessions kept.", minimum=0
    )
    levada_connection_queued_bytes_max: Long = setting(
        64 << 20, "Bytes queued for a connection that reads slowly before its requests wait.", minimum=1
    )
    levada_connection_requests_in_flight_max: int = setting(
        1_000, "Requests of one connection answered later; more wait unread.", minimum=1
    )
    levada_open_files_max: int = setting(4_096, "Segment files open at once over all logs.", minimum=16)

    # Topics
    num_partitions: int = setting(1, "Partitions of a topic created without a number.", minimum=1)
    default_replication_factor: int = setting(1, "Replicas of a topic created without a number.", minimum=1)
    auto_create_topics_enable: bool = setting(True, "Create a topic when a client first asks for it.")
    delete_topic_enable: bool = setting(True, "Allow topics to be deleted.")
    producer_id_expiration_ms: int = setting(
        DAY_MS, "Sequence numbers of a producer idle for so long are forgotten.", minimum=1, dynamic=True
    )

    # Storage
    log_dirs: Strings = setting(
        ("levada-data",), "Where logs are kept, separated by commas.", aliases=("log.dir",)
    )
    log_retention_check_interval_ms: Long = setting(300_000, "How often retention is applied.", minimum=1)
    log_flush_scheduler_interval_ms: Long = setting(LONG_MAX, "Default of log.flush.interval.ms.")
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often recovery points are written; recovery after a crash starts from them.", minimum=0
    )

    # Defaults of topics
    log_segment_bytes: int = topic_default("segment.bytes", 1 << 30, minimum=14)
    log_roll_ms: Long | None = topic_default("segment.ms", None, minimum=1)
    log_roll_hours: int = setting(168, "Default of segment.ms, in hours.", minimum=1)
    log_roll_jitter_ms: Long | None = topic_default("segment.jitter.ms", None, minimum=0)
    log_roll_jitter_hours: int = setting(0, "Default of segment.jitter.ms, in hours.", minimum=0)
    log_index_size_max_bytes: int = topic_default("segment.index.bytes", 10 << 20, minimum=4)
    log_index_interval_bytes: int = topic_default("index.interval.bytes", 4096, minimum=0)
    log_flush_interval_messages: Long = topic_default("flush.messages", LONG_MAX, minimum=1)
    log_flush_interval_ms: Long | None = topic_default("flush.ms", None, minimum=0)
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
    log_preallocate: bool = setting(False, "Default of preallocate.", honoured=("false",))
    compression_type: str = topic_default(
        "compression.type", "producer", choices=COMPRESSION_TYPES, honoured=("producer",)
    )
    compression_gzip_level: int = topic_default(
        "compression.gzip.level", -1, minimum=1, maximum=9, special=-1
    )
    compression_lz4_level: int = topic_default("compression.lz4.level", 9, minimum=1, maximum=17)
    compression_zstd_level: int = topic_default("compression.zstd.level", 3, minimum=-131_072, maximum=22)
    min_insync_replicas: int = topic_default("min.insync.replicas", 1, minimum=1)
    unclean_leader_election_enable: bool = topic_default("unclean.leader.election.enable", False)
    levada_acks_wait_for_fsync: bool = topic_default("levada.acks.wait.for.fsync", False)

    @staticmethod
    def load(properties: Mapping[str, str]) -> "tuple[BrokerConfig, list[str]]":
        """A config from names and texts, and warnings; INVALID_CONFIG on bad values."""
        from levada.config.properties import without_effect  # only a start reads it

        given, warnings = {}, []
        for name, text in properties.items():
            known = BROKER_NAMES.get(name)
            if known is not None:
                if name == known or known not in properties:
                    given[known] = text
            else:
                warnings.append(without_effect(name, text, BROKER_NAMES))
        config = BrokerConfig(given=given, **parsed(BROKER_SETTINGS, given))
        beyond_loopback = config.levada_allow_plaintext_beyond_loopback
        listeners.check(config.endpoints, config.advertised_endpoints, beyond_loopback=beyond_loopback)
        if config.levada_metrics_listener:
            listeners.address(config.levada_metrics_listener, "levada.metrics.listener")
        dirs = config.log_dirs
        if not dirs or "" in dirs or len(set(dirs)) < len(dirs):
            raise BROKER_SETTINGS["log.dirs"].rejected("one or more directories, each named once")
        TopicConfig.build(config, {})
        return config, warnings

    def with_overrides(self, dynamic: Mapping[str, str]) -> "BrokerConfig":
        """This config with settings altered while the broker runs; `given` stays what the start was given."""
        return replace(self, **parsed(BROKER_SETTINGS, dynamic)) if dynamic else self

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where to listen. An empty host is every interface."""
        return self._endpoints(self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """Where clients shall connect, by listener; a host that was left out is this machine's name."""
        told = self._endpoints(self.advertised_listeners or self.listeners)
        return tuple(item if item.host else item._replace(host=socket.gethostname()) for item in told)

    def _endpoints(self, texts: Strings) -> tuple[Endpoint, ...]:
        return listeners.parse(texts, self.listener_security_protocol_map, self.controller_listener_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """How the partitions of a topic are kept."""

    cleanup_policy: Strings = setting(
        ("delete",),
        "Old segments: delete by retention, compact to the latest value of each key, or both.",
        choices=("compact", "delete"),
        synonyms="log.cleanup.policy",
    )
    compression_gzip_level: int = setting(
        -1,
        "Level of gzip where the broker compresses; -1 for the codec's own.",
        minimum=1,
        maximum=9,
        special=-1,
        synonyms="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        9,
        "Level of lz4 where the broker compresses.",
        minimum=1,
        maximum=17,
        synonyms="compression.lz4.level",
    )
    compression_type: str = setting(
        "producer",
        "Batches keep the codec that the producer chose.",
        choices=COMPRESSION_TYPES,
        honoured=("producer",),
        synonyms="compression.type",
    )
    compression_zstd_level: int = setting(
        3,
        "Level of zstd where the broker compresses.",
        minimum=-131_072,
        maximum=22,
        synonyms="compression.zstd.level",
    )
    delete_retention_ms: Long = setting(
        DAY_MS,
        "How long a compacted topic keeps the marker of a deleted key.",
        minimum=0,
        synonyms="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: Long = setting(
        60_000,
        "Not needed: a removed file is readable to the end by those who read it.",
        minimum=0,
        synonyms="log.segment.delete.delay.ms",
    )
    flush_messages: Long = setting(
        LONG_MAX,
        "After so many messages the log is fsynced.",
        minimum=1,
        synonyms="log.flush.interval.messages",
    )
    flush_ms: Long = setting(
        LONG_MAX,
        "After so long a written message is fsynced.",
        minimum=0,
        synonyms="log.flush.interval.ms log.flush.scheduler.interval.ms",
    )
    follower_replication_throttled_replicas: Strings = setting((), "Throttled followers.", pattern=REPLICA)
    index_interval_bytes: int = setting(
        4096, "The index gets an entry after so many bytes.", minimum=0, synonyms="log.index.interval.bytes"
    )
    leader_replication_throttled_replicas: Strings = setting((), "Throttled leaders.", pattern=REPLICA)
    local_retention_bytes: Long = setting(-2, "Part of tiered storage; -2 for retention.bytes.", minimum=-2)
    local_retention_ms: Long = setting(-2, "Part of tiered storage; -2 for retention.ms.", minimum=-2)
    max_compaction_lag_ms: Long = setting(
        LONG_MAX,
        "The longest time a message stays uncompacted.",
        minimum=1,
        synonyms="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = setting(
        1_048_588, "The largest record batch.", minimum=0, synonyms="message.max.bytes"
    )
    message_timestamp_after_max_ms: Long = setting(
        HOUR_MS,
        "How far a message's timestamp may be ahead of the broker's clock.",
        minimum=0,
        synonyms="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: Long = setting(
        LONG_MAX,
        "How far a message's timestamp may be behind the broker's clock.",
        minimum=0,
        synonyms="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a message has the time of its creation or of its append.",
        choices=TIMESTAMP_TYPES,
        synonyms="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "The part of a log that must be dirty before it is compacted.",
        minimum=0,
        maximum=1,
        synonyms="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: Long = setting(
        0,
        "The shortest time a message stays uncompacted.",
        minimum=0,
        synonyms="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = setting(
        1,
        "Replicas that must be in sync for acks=all to be accepted.",
        minimum=1,
        synonyms="min.insync.replicas",
    )
    preallocate: bool = setting(
        False, "Segments grow as they are written.", honoured=("false",), synonyms="log.preallocate"
    )
    remote_log_copy_disable: bool = setting(False, "Part of tiered storage.", honoured=("false",))
    remote_log_delete_on_disable: bool = setting(False, "Part of tiered storage.", honoured=("false",))
    remote_storage_enable: bool = setting(False, "Tiered storage is not available.", honoured=("false",))
    retention_bytes: Long = setting(
        -1,
        "Old segments are removed while a partition is larger than this; -1 for no limit.",
        synonyms="log.retention.bytes",
    )
    retention_ms: Long = setting(
        WEEK_MS,
        "Segments older than this are removed; -1 for never.",
        minimum=-1,
        synonyms="log.retention.ms log.retention.minutes log.retention.hours",
    )
    segment_bytes: int = setting(
        1 << 30, "A segment is closed at this size.", minimum=14, synonyms="log.segment.bytes"
    )
    segment_index_bytes: int = setting(
        10 << 20,
        "The largest index; a full one closes its segment.",
        minimum=4,
        synonyms="log.index.size.max.bytes",
    )
    segment_jitter_ms: Long = setting(
        0,
        "Not applied yet: segments close at segment.ms exactly.",
        minimum=0,
        synonyms="log.roll.jitter.ms log.roll.jitter.hours",
    )
    segment_ms: Long = setting(
        WEEK_MS, "A segment is closed at this age.", minimum=1, synonyms="log.roll.ms log.roll.hours"
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Let a replica that is not in sync become leader when no other is left, and lose messages.",
        synonyms="unclean.leader.election.enable",
    )
    levada_acks_wait_for_fsync: bool = setting(
        False,
        "Answer acks=1 and acks=all only after the batch is on disk (group commit).",
        synonyms="levada.acks.wait.for.fsync",
    )

    @staticmethod
    def build(broker: BrokerConfig, overrides: Mapping[str, str]) -> "TopicConfig":
        """A topic's config over the broker's defaults; INVALID_CONFIG if a name or value is refused."""
        if not overrides:
            return _topic_defaults(broker)
        for name in overrides:
            if name not in TOPIC_SETTINGS:
                hint = nearest(name, TOPIC_SETTINGS)
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}{hint}")
        config = replace(_topic_defaults(broker), **parsed(TOPIC_SETTINGS, overrides))
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise TOPIC_SETTINGS["min.compaction.lag.ms"].rejected("is more than max.compaction.lag.ms")
        return config


BROKER_SETTINGS: Final[Mapping[str, Setting]] = declared(BrokerConfig)
TOPIC_SETTINGS: Final[Mapping[str, Setting]] = declared(TopicConfig)
# Every name a broker setting answers to, and the name it is declared by.
BROKER_NAMES: Final[Mapping[str, str]] = {
    name: found.name for found in BROKER_SETTINGS.values() for name in (found.name, *found.aliases)
}


def parsed(settings: Mapping[str, Setting], texts: Mapping[str, str]) -> dict[str, Any]:
    """The values of texts, by attribute."""
    return {settings[name].attribute: settings[name].parse(text) for name, text in texts.items()}


@lru_cache(maxsize=8)
def _topic_defaults(broker: BrokerConfig) -> TopicConfig:
    return TopicConfig(**{found.attribute: inherited(found, broker) for found in TOPIC_SETTINGS.values()})


def inherited(topic_setting: Setting, broker: BrokerConfig) -> Any:
    """The default of a topic's or group's setting on this broker: its first synonym that is set, in its unit."""
    for synonym in topic_setting.synonyms:
        value = getattr(broker, BROKER_SETTINGS[synonym.name].attribute)
        if value is not None:
            # -1 hours is no limit, not minus an hour.
            return value if synonym.factor == 1 else max(value * synonym.factor, -1)
    return topic_setting.default

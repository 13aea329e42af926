"""Composes the settings of a broker from sections, under Kafka's names and with Kafka's defaults.

A setting's attribute is its name with `_` for `.`, in the section that declares it. A dynamic change makes a new
config: no reader sees half of a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from levada.config.cleaner import CleanerSettings
from levada.config.cluster import ClusterSettings
from levada.config.groups import GroupSettings
from levada.config.listeners import ListenerSettings
from levada.config.metadata import MetadataSettings
from levada.config.settings import INT_MAX, Long, Setting, Strings, declared, section, setting, updated
from levada.config.topic import DAY_MS, TopicConfig, TopicDefaults
from levada.config.transactions import TransactionSettings


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BrokerConfig:
    """The settings of one broker."""

    static: Mapping[str, str] = field(default_factory=dict)  # set at the start (STATIC_BROKER_CONFIG)

    transactions: TransactionSettings = section(TransactionSettings)
    groups: GroupSettings = section(GroupSettings)
    cleaner: CleanerSettings = section(CleanerSettings)

    node_id: int = setting(1, "The id of this broker.", minimum=0, aliases=("broker.id",))
    metadata: MetadataSettings = section(MetadataSettings)
    cluster: ClusterSettings = section(ClusterSettings)
    broker_rack: str | None = setting(None, "The rack of this broker.")
    listeners: ListenerSettings = section(ListenerSettings)
    levada_log_format: str = setting("text", "The format of log lines.", choices=("text", "json"))
    levada_log_level: str = setting("info", "The lowest level of log lines.", choices=("debug", "info", "warning"))

    levada_metrics_internal_topics: bool = setting(
        True, "Whether metrics by topic and partition include internal topics; totals always do."
    )
    levada_metrics_consumer_lag_series_max: int = setting(
        0, "How many series kafka_consumergroup_lag may have, one for each committed offset; 0 for none.", minimum=0
    )

    # Limits
    max_connections: int = setting(INT_MAX, "The largest number of connections.", minimum=0)
    max_connections_per_ip: int = setting(INT_MAX, "The largest number of connections from one IP address.", minimum=0)
    connections_max_idle_ms: Long = setting(600_000, "The idle time after which a connection is closed; -1 for never.")
    socket_request_max_bytes: int = setting(100 << 20, "The largest request, in bytes.", minimum=1)
    socket_listen_backlog_size: int = setting(1024, "The backlog of a listening socket.", minimum=1)
    queued_max_request_bytes: Long = setting(
        -1, "Bytes of queued requests from which no more are read; -1 for no limit."
    )
    levada_receive_buffers_bytes_max: Long = setting(
        64 << 20,
        "The memory limit of buffers for partially received requests; more requests wait.",
        minimum=1 << 20,
    )
    fetch_max_bytes: int = setting(55 << 20, "The largest Fetch response, in bytes.", minimum=1024)
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "The largest number of incremental fetch sessions.", minimum=0
    )
    levada_connection_queued_bytes_max: Long = setting(
        64 << 20,
        "Bytes of queued responses from which the requests of a slow connection are not read.",
        minimum=1,
    )
    levada_connection_requests_in_flight_max: int = setting(
        1_000, "Delayed responses of one connection from which its requests are not read.", minimum=1
    )
    levada_fast_paths: bool = setting(
        True,
        "Whether frequent requests are decoded in place, with caches; false is slower, otherwise the same.",
    )
    levada_open_files_max: int = setting(4_096, "The largest number of open segment files over all logs.", minimum=16)

    # Topics
    num_partitions: int = setting(1, "Partitions of a topic created without a partition count.", minimum=1)
    default_replication_factor: int = setting(1, "Replicas of a topic created without a replication factor.", minimum=1)
    auto_create_topics_enable: bool = setting(True, "Whether a Metadata request creates missing topics.")
    delete_topic_enable: bool = setting(True, "Whether topics can be deleted.")
    producer_id_expiration_ms: int = setting(
        DAY_MS, "The idle time after which the state of a producer id expires.", minimum=1, dynamic=True
    )

    # Storage
    log_dirs: Strings = setting(("levada-data",), "The log directories, separated by commas.", aliases=("log.dir",))
    num_recovery_threads_per_data_dir: int = setting(
        2, "Threads for each log directory that create, open and recover logs.", minimum=1
    )
    log_retention_check_interval_ms: Long = setting(300_000, "The interval of retention checks.", minimum=1)
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000,
        "The interval of recovery point checkpoints; recovery after a crash starts from them.",
        minimum=0,
    )

    levada_scrub_bytes_per_second: Long = setting(
        4 << 20,
        "The rate at which segments are read in the background to find corrupt batches; 0 for never. The default"
        " reads 1 TB in three days.",
        minimum=0,
    )

    topic_defaults: TopicDefaults = section(TopicDefaults)

    @staticmethod
    def load(properties: Mapping[str, str]) -> "tuple[BrokerConfig, list[str]]":
        """Return the config of these texts by name, and warnings; raise INVALID_CONFIG on invalid values."""
        from levada.config.properties import unknown_setting  # read at the start only

        static, warnings = {}, []
        for name, text in properties.items():
            known = BROKER_NAMES.get(name)
            if known is None:
                warnings.append(unknown_setting(name, text, BROKER_NAMES))
            elif name == known or known not in properties:
                static[known] = text
        config = updated(BrokerConfig(static=static), BROKER_SETTINGS, static)
        config.listeners.check()
        config.metadata.check()
        dirs = config.log_dirs
        if not dirs or "" in dirs or len(set(dirs)) < len(dirs):
            raise BROKER_SETTINGS["log.dirs"].invalid("one or more directories, each named once")
        TopicConfig.build(config.topic_defaults, {})
        return config, warnings + _replication_warnings(config)

    def with_overrides(self, dynamic: Mapping[str, str]) -> "BrokerConfig":
        """Return this config with dynamic settings, the unused ones left out; `static` is what the start was given."""
        used = {name: text for name, text in dynamic.items() if name in BROKER_SETTINGS}
        return updated(self, BROKER_SETTINGS, used) if used else self


# Settings for several brokers, and what fails with a value above 1 while there is one.
FAILS_WITHOUT_REPLICAS: Final = {
    "default.replication.factor": "topics without a replication factor of their own cannot be created "
    "(INVALID_REPLICATION_FACTOR)",
    "min.insync.replicas": "every Produce with acks=all fails (NOT_ENOUGH_REPLICAS)",
    "offsets.topic.replication.factor": "__consumer_offsets cannot be created, so no consumer group works "
    "(COORDINATOR_NOT_AVAILABLE)",
    "transaction.state.log.replication.factor": "__transaction_state cannot be created, so no transaction works "
    "(COORDINATOR_NOT_AVAILABLE)",
}
# Settings whose value above 1 has no effect while there is one broker, and why.
WITHOUT_EFFECT: Final = {
    "transaction.state.log.min.isr": "there is one broker, and transactions work with its replica alone",
}


def _replication_warnings(config: BrokerConfig) -> list[str]:
    """Return a warning for each setting that one broker cannot satisfy."""
    values = {name: int(BROKER_SETTINGS[name].value_of(config)) for name in (*FAILS_WITHOUT_REPLICAS, *WITHOUT_EFFECT)}
    given = {name: f"{name}={value}" for name, value in values.items() if value > 1}
    return [
        f"{text} has no effect: {WITHOUT_EFFECT[name]}"
        if name in WITHOUT_EFFECT
        else f"{text} needs more brokers than one: {FAILS_WITHOUT_REPLICAS[name]}; set {name}=1"
        for name, text in given.items()
    ]


BROKER_SETTINGS: Final[Mapping[str, Setting]] = declared(BrokerConfig)
# Every name of a broker setting, aliases included, and the name of its declaration.
BROKER_NAMES: Final[Mapping[str, str]] = {
    name: item.name for item in BROKER_SETTINGS.values() for name in (item.name, *item.aliases)
}

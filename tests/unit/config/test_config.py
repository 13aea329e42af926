"""Settings: Kafka's names, types, defaults and bounds; their sources; warnings about unknown names."""

from socket import gethostname

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.config import listeners, properties
from levada.config.broker import BROKER_SETTINGS, BrokerConfig
from levada.config.settings import LONG_MAX, Setting
from levada.config.topic import TOPIC_SETTINGS, TopicConfig, TopicDefaults
from levada.errors import ErrorCode, KafkaError

# The topic settings of Apache Kafka 4.3, with its types and defaults.
KAFKA_TOPIC_SETTINGS = {
    "cleanup.policy": ("LIST", "delete"),
    "compression.gzip.level": ("INT", "-1"),
    "compression.lz4.level": ("INT", "9"),
    "compression.type": ("STRING", "producer"),
    "compression.zstd.level": ("INT", "3"),
    "delete.retention.ms": ("LONG", "86400000"),
    "file.delete.delay.ms": ("LONG", "60000"),
    "flush.messages": ("LONG", "9223372036854775807"),
    "flush.ms": ("LONG", "9223372036854775807"),
    "follower.replication.throttled.replicas": ("LIST", ""),
    "index.interval.bytes": ("INT", "4096"),
    "leader.replication.throttled.replicas": ("LIST", ""),
    "local.retention.bytes": ("LONG", "-2"),
    "local.retention.ms": ("LONG", "-2"),
    "max.compaction.lag.ms": ("LONG", "9223372036854775807"),
    "max.message.bytes": ("INT", "1048588"),
    "message.timestamp.after.max.ms": ("LONG", "3600000"),
    "message.timestamp.before.max.ms": ("LONG", "9223372036854775807"),
    "message.timestamp.type": ("STRING", "CreateTime"),
    "min.cleanable.dirty.ratio": ("DOUBLE", "0.5"),
    "min.compaction.lag.ms": ("LONG", "0"),
    "min.insync.replicas": ("INT", "1"),
    "preallocate": ("BOOLEAN", "false"),
    "remote.log.copy.disable": ("BOOLEAN", "false"),
    "remote.log.delete.on.disable": ("BOOLEAN", "false"),
    "remote.storage.enable": ("BOOLEAN", "false"),
    "retention.bytes": ("LONG", "-1"),
    "retention.ms": ("LONG", "604800000"),
    "segment.bytes": ("INT", "1073741824"),
    "segment.index.bytes": ("INT", "10485760"),
    "segment.jitter.ms": ("LONG", "0"),
    "segment.ms": ("LONG", "604800000"),
    "unclean.leader.election.enable": ("BOOLEAN", "false"),
}


def load(**given: str) -> BrokerConfig:
    """A config from settings written with `_` for `.`."""
    return BrokerConfig.load({name.replace("_", "."): value for name, value in given.items()})[0]


def refused(overrides: dict[str, str]) -> str:
    with pytest.raises(KafkaError) as caught:
        TopicConfig.check(overrides)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    return caught.value.detail


def test_topic_settings_are_kafkas() -> None:
    """Every name, type and default is Kafka's; retention is seven days by default."""
    ours = {
        name: (setting.type.name, setting.render(setting.default))
        for name, setting in TOPIC_SETTINGS.items()
        if not name.startswith("levada.")
    }
    assert ours == KAFKA_TOPIC_SETTINGS


def test_a_topic_on_a_fresh_broker_has_the_declared_defaults() -> None:
    assert TopicConfig.build(TopicDefaults(), {}) == TopicConfig()


@pytest.mark.parametrize("setting", [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()], ids=lambda item: item.name)
def test_every_default_is_a_value_that_would_be_accepted(setting: Setting) -> None:
    text = setting.render(setting.default)
    assert setting.doc
    assert setting.nullable if text is None else setting.parse(text) == setting.default


def test_every_synonym_is_a_setting_of_the_broker() -> None:
    names = {synonym.name for setting in TOPIC_SETTINGS.values() for synonym in setting.synonyms}
    assert names <= set(BROKER_SETTINGS)


@pytest.mark.parametrize(
    ("given_", "attribute", "value"),
    [
        ({"log_segment_bytes": "5000"}, "segment_bytes", 5000),
        ({"message_max_bytes": "77"}, "max_message_bytes", 77),
        ({"log_retention_hours": "2"}, "retention_ms", 7_200_000),
        ({"log_retention_hours": "2", "log_retention_minutes": "3"}, "retention_ms", 180_000),
        ({"log_retention_minutes": "3", "log_retention_ms": "4"}, "retention_ms", 4),
        ({"log_retention_hours": "-1"}, "retention_ms", -1),
        ({"log_retention_ms": "-1"}, "retention_ms", -1),
        ({"log_roll_hours": "1"}, "segment_ms", 3_600_000),
        ({"log_roll_hours": "1", "log_roll_ms": "9"}, "segment_ms", 9),
        ({"log_flush_scheduler_interval_ms": "8"}, "flush_ms", 8),
        ({"log_flush_scheduler_interval_ms": "8", "log_flush_interval_ms": "7"}, "flush_ms", 7),
        ({"log_flush_interval_messages": "6"}, "flush_messages", 6),
        ({"log_message_timestamp_type": "LogAppendTime"}, "message_timestamp_type", "LogAppendTime"),
        ({"log_cleanup_policy": "compact,delete"}, "cleanup_policy", ("compact", "delete")),
        ({"levada_acks_wait_for_fsync": "true"}, "levada_acks_wait_for_fsync", True),
    ],
)
def test_a_topic_inherits_from_its_broker(given_: dict[str, str], attribute: str, value: object) -> None:
    broker = load(**given_)
    assert getattr(TopicConfig.build(broker.topic_defaults, {}), attribute) == value
    other = "4096" if attribute != "index_interval_bytes" else "1"
    assert getattr(TopicConfig.build(broker.topic_defaults, {"index.interval.bytes": other}), attribute) == value


def test_what_a_topic_sets_itself_wins() -> None:
    broker = load(log_retention_ms="5")
    assert TopicConfig.build(broker.topic_defaults, {"retention.ms": " 6 "}).retention_ms == 6


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment.bytes", "x"),
        ("segment.bytes", ""),
        ("segment.bytes", "13"),
        ("segment.bytes", "1_000"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1.5"),
        ("segment.bytes", "٣"),
        ("segment.bytes", "9" * 5000),
        ("retention.ms", "-2"),
        ("retention.ms", "9223372036854775808"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("preallocate", "yes"),
        ("preallocate", "true"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("message.timestamp.type", "createtime"),
        ("remote.storage.enable", "true"),
        ("leader.replication.throttled.replicas", "a:b"),
        ("follower.replication.throttled.replicas", "0:1,1"),
        ("min.insync.replicas", "0"),
    ],
)
def test_a_bad_value_is_refused_and_named(name: str, text: str) -> None:
    assert refused({name: text}).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact, delete"),
        ("compression.gzip.level", "-1"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("preallocate", "FALSE"),
        ("retention.ms", "+5"),
        ("flush.messages", str(LONG_MAX)),
    ],
)
def test_what_kafka_accepts_is_accepted(name: str, text: str) -> None:
    TopicConfig.build(TopicDefaults(), {name: text})


def test_a_misspelt_topic_setting_is_refused_with_the_nearest() -> None:
    assert refused({"segment.byte": "1"}) == "Unknown topic config name: segment.byte; did you mean segment.bytes?"
    assert "did you mean" not in refused({"entirely.else": "1"})
    assert "levada.acks.wait.for.fsync" in refused({"levada.acks.wait.fsync": "1"})


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert "max.compaction.lag.ms" in refused({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


@given(st.text())
def test_any_text_is_a_value_or_a_clear_error(text: str) -> None:
    for setting in TOPIC_SETTINGS.values():
        try:
            value = setting.parse(text)
        except KafkaError:
            continue
        rendered = setting.render(value)
        assert rendered is not None and setting.parse(rendered) == value


def test_a_broker_without_settings_is_one_node_on_loopback() -> None:
    config, warnings = BrokerConfig.load({})
    assert warnings == []
    assert [str(endpoint) for endpoint in config.listeners.endpoints] == ["PLAINTEXT://127.0.0.1:9092"]
    assert (config.default_replication_factor, config.groups.offsets_topic_replication_factor) == (1, 1)


def test_old_names_are_read_and_give_way_to_new_ones() -> None:
    assert load(broker_id="7").node_id == 7
    assert load(broker_id="7", node_id="8").node_id == 8
    assert load(log_dir="/a").log_dirs == ("/a",)
    assert load(log_dirs="/b,/c", log_dir="/a").log_dirs == ("/b", "/c")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num.io.threads", "has no effect: one thread serves requests"),
        ("ssl.keystore.location", "TLS is not available yet"),
        ("zookeeper.ssl.truststore.location", "has no effect"),
        ("log.segmnt.bytes", "did you mean log.segment.bytes?"),
        ("my.plugin.setting", "is not a setting and has no effect"),
    ],
)
def test_an_unknown_setting_is_a_warning_with_the_reason(name: str, words: str) -> None:
    (warning,) = BrokerConfig.load({name: "8"})[1]
    assert warning.startswith(name) and words in warning


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("levada.open.file.max", "8", "did you mean levada.open.files.max?"),
        (
            "authorizer.class.name",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "access control",
        ),
        ("listeners", "SSL://localhost:9093", "only PLAINTEXT"),
        ("listeners", "PLAINTEXT://:9092", "beyond loopback"),
        ("listeners", "PLAINTEXT://0.0.0.0:9092", "levada.allow.plaintext.beyond.loopback=true"),
        ("listeners", "PLAINTEXT://127.example.org:9092", "beyond loopback"),
        ("listeners", "PLAINTEXT://[::]:9092", "beyond loopback"),
        ("listeners", "PLAINTEXT://127.0.0.1", "NAME://host:port"),
        ("levada.metrics.listener", "9404", "host:port"),
        ("levada.metrics.listener", ":9404", "host:port"),
        ("levada.metrics.listener", "127.0.0.1:99999", "host:port"),
        ("log.dirs", "", "one or more"),
        ("log.dirs", "a,,b", "one or more"),
        ("log.dirs", "a,b,a", "each named once"),
        ("listeners", "PLAINTEXT://127.0.0.1:99999", "NAME://host:port"),
        ("listeners", "", "there is none"),
        ("listeners", "PLAINTEXT://localhost:1,PLAINTEXT://localhost:2", "different name"),
        ("advertised.listeners", "OTHER://localhost:1", "not among the listeners"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:1", "no address that clients can connect to"),
        ("log.segment.bytes", "large", "not a whole number"),
        ("node.id", "-5", "less than the minimum"),
        ("zookeeper.connect", "localhost:2181,", "host:port,host:port/path"),
        ("zookeeper.connect", "http://localhost:2181", "host:port,host:port/path"),
        ("zookeeper.connect", "localhost:2181/a/../b", "host:port,host:port/path"),
        ("zookeeper.connect", "localhost:2181/a//b", "host:port,host:port/path"),
        ("zookeeper.set.acl", "true", "needs levada.zookeeper.credentials"),
        ("zookeeper.ssl.client.enable", "true", "TLS to ZooKeeper is not available"),
        ("levada.zookeeper.credentials", "secret", "user:password"),
    ],
)
def test_settings_that_weaken_security_or_break_a_broker_prevent_its_start(name: str, text: str, words: str) -> None:
    with pytest.raises(KafkaError) as caught:
        BrokerConfig.load({name: text})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("connect", "hosts", "root"),
    [
        ("", "", ""),
        ("zk1", "zk1:2181", ""),
        ("zk1:2182,zk2/", "zk1:2182,zk2:2181", ""),
        ("[::1],[::1]:2182/a/b-c", "[::1]:2181,[::1]:2182", "/a/b-c"),
    ],
)
def test_zookeeper_connect_has_servers_and_a_path(connect: str, hosts: str, root: str) -> None:
    metadata = load(zookeeper_connect=connect).metadata
    assert (metadata.zookeeper_hosts if connect else "", metadata.zookeeper_root) == (hosts, root)


def test_metadata_is_in_zookeeper_or_in_a_file() -> None:
    with pytest.raises(KafkaError, match="kept in ZooKeeper"):
        load(zookeeper_connect="localhost", levada_metadata_file="a.db")


def test_credentials_are_not_shown() -> None:
    with pytest.raises(KafkaError) as caught:
        load(levada_zookeeper_credentials="secret")
    assert "secret" not in caught.value.detail
    assert BROKER_SETTINGS["levada.zookeeper.credentials"].sensitive


def test_listeners_have_names_protocols_and_advertised_addresses() -> None:
    config = load(
        listeners="INSIDE://127.0.0.1:9092,outside://[::1]:9094,CONTROLLER://:9093",
        advertised_listeners="INSIDE://a.example:1,OUTSIDE://b.example:2",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        controller_listener_names="CONTROLLER",
    )
    assert [(item.listener, item.host, item.port) for item in config.listeners.endpoints] == [
        ("INSIDE", "127.0.0.1", 9092),
        ("OUTSIDE", "::1", 9094),
    ]
    assert [item.host for item in config.listeners.advertised_endpoints] == ["a.example", "b.example"]
    assert {item.security_protocol for item in config.listeners.endpoints} == {"PLAINTEXT"}


def test_a_listener_may_be_opened_to_the_network_on_purpose() -> None:
    assert all(map(listeners.is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    config = load(listeners="PLAINTEXT://:9092", levada_allow_plaintext_beyond_loopback="true")
    assert not listeners.is_loopback(config.listeners.endpoints[0].host)
    assert config.listeners.advertised_endpoints[0].host == gethostname()


def test_dynamic_changes_make_a_new_config_and_keep_the_static_settings() -> None:
    config = load(log_retention_hours="1")
    altered = config.with_overrides({"log.retention.ms": "5"})
    assert TopicConfig.build(altered.topic_defaults, {}).retention_ms == 5
    assert TopicConfig.build(config.topic_defaults, {}).retention_ms == 3_600_000
    assert altered.static == config.static == {"log.retention.hours": "1"}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1\nb : 2\nc 3\nd", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("# comment\n! comment\n\n   a = 1 ", {"a": "1 "}),
        ("a=1,\\\n   2,\\\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\=c=x\\ty", {"a b=c": "x\ty"}),
        ("k=\\u00e9\\n\\q", {"k": "é\nq"}),
        ("a=#not a comment", {"a": "#not a comment"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a==1", {"a": "=1"}),
        ("a = = 1", {"a": "= 1"}),
        ("a=1\\", {"a": "1"}),
        ("=5", {}),
    ],
)
def test_properties_files_are_read_as_java_reads_them(text: str, settings: dict[str, str]) -> None:
    assert properties.parse(text) == settings


@given(st.text())
def test_any_text_is_a_properties_file(text: str) -> None:
    properties.parse(text)


def test_environment_variables_stand_for_settings() -> None:
    environment = {
        "KAFKA_LOG_RETENTION_HOURS": "5",
        "KAFKA_A__B": "underscore",
        "KAFKA_A___B": "dash",
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "HOME": "/root",
    }
    assert properties.from_environment(environment) == {
        "log.retention.hours": "5",
        "a_b": "underscore",
        "a-b": "dash",
    }


def test_flags_win_over_environment_over_file() -> None:
    text = "num.partitions=1\nlog.dirs=/file\nnode.id=1"
    merged = properties.merged(
        text=text,
        environment={"KAFKA_NUM_PARTITIONS": "2", "KAFKA_LOG_DIRS": "/env"},
        flags={"num.partitions": "3"},
    )
    assert merged == {"num.partitions": "3", "log.dirs": "/env", "node.id": "1"}

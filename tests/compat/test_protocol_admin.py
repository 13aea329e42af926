"""Topics, configs and cluster on the wire, where implementations differ from Kafka.

Every code and every field here is what Apache Kafka 4.3.1 answered to the same request.
"""

import struct
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from tests.compat.drivers.base import Create, Driver, Record, eventually
from tests.support import raw
from tests.support.raw import Connection

from levada.errors import ErrorCode

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC_SETTINGS_IN_ORDER = """
compression.type remote.log.delete.on.disable leader.replication.throttled.replicas remote.storage.enable
min.insync.replicas segment.jitter.ms remote.log.copy.disable local.retention.ms cleanup.policy flush.ms
follower.replication.throttled.replicas compression.lz4.level segment.bytes retention.ms compression.gzip.level
flush.messages compression.zstd.level max.compaction.lag.ms file.delete.delay.ms max.message.bytes
min.compaction.lag.ms message.timestamp.type local.retention.bytes preallocate index.interval.bytes
min.cleanable.dirty.ratio unclean.leader.election.enable retention.bytes delete.retention.ms
message.timestamp.after.max.ms message.timestamp.before.max.ms segment.ms segment.index.bytes
"""


class TestApiVersions:
    def test_unknown_version_is_answered_in_version_0(self, wire: Connection) -> None:
        """franz-go and the Java client start with their newest version and learn the range from this reply."""
        wire.send_frame(struct.pack(">hhih", 18, 99, 7, 4) + b"test" + b"\0")
        correlation_id, code, count = struct.unpack_from(">ihi", reply := wire.receive_frame())
        assert (correlation_id, code) == (7, ErrorCode.UNSUPPORTED_VERSION)
        ranges = {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", reply[10 : 10 + 6 * count])}
        assert ranges[18][0] == 0
        assert ranges[18][1] >= 4

    @pytest.mark.parametrize("version", range(5))
    def test_versions(self, wire: Connection, version: int) -> None:
        about = {"client_software_name": "compat", "client_software_version": "1.0"}
        reply = wire.call("api_versions", version, raw.fitting("api_versions", version, about))
        ranges = {int(key.api_key): (key.min_version, key.max_version) for key in reply.api_keys}
        assert reply.error_code == 0
        assert ranges[0] == (0, 13), "with a minimum of 3 older librdkafka sends gzip, snappy and lz4 uncompressed"

    @pytest.mark.parametrize(
        "api",
        [
            "alter_configs",
            "create_partitions",
            "create_topics",
            "delete_records",
            "delete_topics",
            "describe_cluster",
            "describe_configs",
            "describe_log_dirs",
            "describe_topic_partitions",
            "fetch",
            "find_coordinator",
            "incremental_alter_configs",
            "list_offsets",
            "metadata",
            "offset_for_leader_epoch",
        ],
    )
    def test_all_known_versions_are_served(self, wire: Connection, api: str) -> None:
        known = raw.versions_known(api)
        (served,) = (key for key in wire.call("api_versions", 2).api_keys if key.api_key == raw.api_key(api))
        assert served.min_version <= known[0]
        assert served.max_version >= known[-1]

    @pytest.mark.parametrize(
        "frame",
        [
            pytest.param(struct.pack(">hhih", 3, 99, 7, 4) + b"test\0", id="unknown version"),
            pytest.param(struct.pack(">hhih", 999, 0, 7, 4) + b"test", id="unknown api"),
            pytest.param(struct.pack(">hhih", 3, 1, 7, 4) + b"test", id="cut off"),
        ],
    )
    def test_what_cannot_be_read_closes_the_connection(self, broker: str, frame: bytes) -> None:
        with Connection(broker) as doomed, Connection(broker) as healthy:
            doomed.send_frame(frame)
            with pytest.raises(ConnectionError):
                doomed.receive_frame()
            assert healthy.call("metadata", 12, {"topics": []}).brokers


class TestMetadata:
    @staticmethod
    def ask(wire: Connection, **topic: Any) -> Any:
        fields = {"topics": [{"name": None, "topic_id": None, **topic}], "allow_auto_topic_creation": False}
        (found,) = wire.call("metadata", 13, fields).topics
        return found

    def test_by_id(self, wire: Connection, topic: str) -> None:
        by_name = self.ask(wire, name=topic)
        assert by_name.error_code == 0
        assert self.ask(wire, topic_id=by_name.topic_id) == by_name
        unknown = self.ask(wire, topic_id=uuid.uuid4())
        assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)

    def test_no_creation_when_not_allowed(self, wire: Connection, name: str) -> None:
        for _ in range(2):
            assert self.ask(wire, name=name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.ask(wire, name="no good").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_none_and_all(self, wire: Connection, topic: str) -> None:
        assert wire.call("metadata", 13, {"topics": []}).topics == ()
        assert topic in {found.name for found in wire.call("metadata", 13, {"topics": None}).topics}

    def test_partition(self, wire: Connection, topic: str) -> None:
        (partition,) = self.ask(wire, name=topic).partitions
        (node,) = (broker.node_id for broker in wire.call("metadata", 13, {"topics": []}).brokers)
        assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, 0, node)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == (
            (node,),
            (node,),
            (),
        )
        assert partition.leader_epoch == 0


class TestTopics:
    @staticmethod
    def create(wire: Connection, *topics: Mapping[str, Any], **more: Any) -> Any:
        asked = [{"num_partitions": -1, "replication_factor": -1, **topic} for topic in topics]
        return wire.call("create_topics", 7, {"timeout": 10_000, "topics": asked, **more}).topics

    def test_reply_describes_the_topic(self, wire: Connection, name: str) -> None:
        configs = [{"name": "retention.ms", "value": "1000"}]
        (made,) = self.create(wire, {"name": name, "configs": configs})
        assert (made.error_code, made.error_message) == (0, None)
        assert (made.num_partitions, made.replication_factor) == (1, 1)
        eventually(lambda: TestMetadata.ask(wire, name=name).topic_id, made.topic_id)
        settings = {config.name: (config.value, config.config_source) for config in made.configs}
        assert settings["retention.ms"] == ("1000", 1)
        assert settings["cleanup.policy"] == ("delete", 5)
        assert len(settings) >= 25

    def test_only_validated(self, wire: Connection, name: str) -> None:
        (checked,) = self.create(wire, {"name": name}, validate_only=True)
        assert (checked.error_code, checked.num_partitions) == (0, 1)
        assert TestMetadata.ask(wire, name=name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_assignments(self, wire: Connection, name: str) -> None:
        (node,) = (broker.node_id for broker in wire.call("metadata", 12, {"topics": []}).brokers)
        good = [{"partition_index": index, "broker_ids": [node]} for index in range(2)]
        (made,) = self.create(wire, {"name": name, "assignments": good})
        assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 2, 1)
        for bad in (
            [{"partition_index": 0, "broker_ids": [node + 70]}],
            [{"partition_index": 1, "broker_ids": [node]}],
            [{"partition_index": 0, "broker_ids": [node, node]}],
        ):
            (refused,) = self.create(wire, {"name": f"{name}-bad", "assignments": bad})
            assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, bad
        (refused,) = self.create(wire, {"name": f"{name}-bad", "assignments": good, "num_partitions": 2})
        assert refused.error_code == ErrorCode.INVALID_REQUEST

    def test_one_bad_topic_does_not_harm_the_others(self, wire: Connection, name: str) -> None:
        replies = self.create(wire, {"name": name}, {"name": "not good"}, {"name": f"{name}-2"})
        codes = {reply.name: reply.error_code for reply in replies}
        assert codes == {name: 0, "not good": ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}-2": 0}

    def test_named_twice(self, wire: Connection, name: str) -> None:
        (refused,) = self.create(wire, {"name": name}, {"name": name})
        assert (refused.name, refused.error_code) == (name, ErrorCode.INVALID_REQUEST)
        assert TestMetadata.ask(wire, name=name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_null_config(self, wire: Connection, name: str) -> None:
        (refused,) = self.create(wire, {"name": name, "configs": [{"name": "retention.ms", "value": None}]})
        assert refused.error_code == ErrorCode.INVALID_CONFIG

    def test_create_partitions(self, wire: Connection, topic: str) -> None:
        def grow(*topics: Mapping[str, Any], **more: Any) -> Any:
            (result,) = wire.call("create_partitions", 3, {"timeout": 10_000, "topics": topics, **more}).results
            assert result.name == topic
            return result.error_code

        assert grow({"name": topic, "count": 3}, validate_only=True) == 0
        assert len(TestMetadata.ask(wire, name=topic).partitions) == 1
        assert grow({"name": topic, "count": 3}, {"name": topic, "count": 3}) == ErrorCode.INVALID_REQUEST
        stranger = {"name": topic, "count": 2, "assignments": [{"broker_ids": [99]}]}
        assert grow(stranger) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert grow({"name": topic, "count": 3}) == 0
        eventually(lambda: len(TestMetadata.ask(wire, name=topic).partitions), 3)

    def test_delete_by_id(self, wire: Connection, topic: str) -> None:
        def delete(asked: uuid.UUID) -> Any:
            fields = {"timeout": 10_000, "topics": [{"name": None, "topic_id": asked}]}
            return wire.call("delete_topics", 6, fields).responses[0]

        topic_id = TestMetadata.ask(wire, name=topic).topic_id
        gone = delete(topic_id)
        assert (gone.error_code, gone.name) == (0, topic)
        assert delete(topic_id).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_delete_records(self, wire: Connection, topic: str, reference: Driver) -> None:
        reference.produce(topic, [Record(b"x")] * 5)

        def delete(partition: int, offset: int) -> tuple[int, int]:
            place = {"partition_index": partition, "offset": offset}
            fields = {"timeout": 10_000, "topics": [{"name": topic, "partitions": [place]}]}
            (done,) = wire.call("delete_records", 2, fields).topics[0].partitions
            return done.error_code, done.low_watermark

        assert delete(0, 3) == (0, 3)
        assert delete(0, 1) == (0, 3), "what is gone already is no error"
        assert delete(0, -5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert delete(0, 6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert delete(7, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert delete(0, -1) == (0, 5), "-1 is the high watermark"

    def test_describe_topic_partitions(self, wire: Connection, topic: str) -> None:
        names = [{"name": name} for name in (topic, f"{topic}-none")]
        fields = {"topics": names, "response_partition_limit": 10}
        known, unknown = wire.call("describe_topic_partitions", 0, fields).topics
        assert (known.name, known.error_code, len(known.partitions)) == (topic, 0, 1)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_describe_topic_partitions_page_by_page(self, wire: Connection, name: str, create: Create) -> None:
        create(name, partitions=3)
        fields: dict[str, Any] = {"topics": [{"name": name}], "response_partition_limit": 2}
        first = wire.call("describe_topic_partitions", 0, fields)
        assert [part.partition_index for part in first.topics[0].partitions] == [0, 1]
        assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == (name, 2)
        rest = wire.call(
            "describe_topic_partitions", 0, fields | {"cursor": {"topic_name": name, "partition_index": 2}}
        )
        assert [part.partition_index for part in rest.topics[0].partitions] == [2]
        assert rest.next_cursor is None


class TestConfigs:
    @staticmethod
    def describe(wire: Connection, kind: int, name: str, keys: list[str] | None = None) -> Any:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        (result,) = wire.call("describe_configs", 4, {"resources": [resource], "include_synonyms": True}).results
        return result

    @staticmethod
    def alter(wire: Connection, topic: str, *changes: tuple[str, int, str | None], **more: Any) -> int:
        configs = [{"name": name, "config_operation": how, "value": value} for name, how, value in changes]
        resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        (done,) = wire.call("incremental_alter_configs", 1, {"resources": [resource], **more}).responses
        return int(done.error_code)

    def becomes(self, wire: Connection, topic: str, name: str, expected: tuple[str, int]) -> None:
        def read() -> tuple[str, int]:
            (config,) = self.describe(wire, TOPIC, topic, [name]).configs
            return config.value, config.config_source

        eventually(read, expected)

    def test_synonyms(self, wire: Connection, name: str, create: Create) -> None:
        create(name, configs={"cleanup.policy": "compact"})
        result = self.describe(wire, TOPIC, name, ["cleanup.policy", "no.such.setting"])
        (config,) = result.configs
        assert (config.name, config.value, config.config_source) == ("cleanup.policy", "compact", 1)
        assert (config.read_only, config.is_sensitive, config.config_type) == (False, False, 7)
        synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]
        assert synonyms == [("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)]

    def test_settings_of_a_topic_come_in_the_order_of_a_java_hash_map(self, wire: Connection, topic: str) -> None:
        names = [config.name for config in self.describe(wire, TOPIC, topic).configs]
        assert [name for name in names if not name.startswith("levada.")] == TOPIC_SETTINGS_IN_ORDER.split()
        chosen = ["segment.ms", "compression.type", "retention.ms", "segment.bytes"]
        names = [config.name for config in self.describe(wire, TOPIC, topic, chosen).configs]
        assert names == ["compression.type", "segment.bytes", "retention.ms", "segment.ms"]

    def test_types(self, wire: Connection, topic: str) -> None:
        kinds = {config.name: config.config_type for config in self.describe(wire, TOPIC, topic).configs}
        expected = {
            "retention.ms": 5,
            "segment.bytes": 3,
            "preallocate": 1,
            "compression.type": 2,
            "cleanup.policy": 7,
        }
        assert kinds.items() >= expected.items()
        assert kinds["min.cleanable.dirty.ratio"] == 6

    def test_every_topic_setting_of_kafka_is_there(self, wire: Connection, topic: str) -> None:
        names = {config.name for config in self.describe(wire, TOPIC, topic).configs}
        assert names >= {
            "cleanup.policy", "compression.type", "delete.retention.ms", "file.delete.delay.ms", "flush.messages",
            "flush.ms", "index.interval.bytes", "max.compaction.lag.ms", "max.message.bytes",
            "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
            "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate",
            "retention.bytes", "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms",
            "segment.ms", "unclean.leader.election.enable",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (TOPIC, "no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "no good", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "99", ErrorCode.INVALID_REQUEST),
            (77, "what", ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_describe_refused(self, wire: Connection, kind: int, name: str, code: ErrorCode) -> None:
        result = self.describe(wire, kind, name)
        assert (result.error_code, result.configs) == (code, ())

    def test_lists_grow_and_shrink(self, wire: Connection, topic: str) -> None:
        assert self.alter(wire, topic, ("cleanup.policy", APPEND, "compact")) == 0
        self.becomes(wire, topic, "cleanup.policy", ("delete,compact", 1))
        assert self.alter(wire, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
        self.becomes(wire, topic, "cleanup.policy", ("compact", 1))
        assert self.alter(wire, topic, ("cleanup.policy", DELETE, None)) == 0
        self.becomes(wire, topic, "cleanup.policy", ("delete", 5))

    def test_alter_refused(self, wire: Connection, topic: str) -> None:
        assert self.alter(wire, topic, ("retention.ms", APPEND, "5")) == ErrorCode.INVALID_CONFIG
        twice = (("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
        assert self.alter(wire, topic, *twice) == ErrorCode.INVALID_REQUEST
        assert self.alter(wire, topic, ("retention.ms", SET, None)) == ErrorCode.INVALID_REQUEST
        mixed = (("retention.ms", SET, "5"), ("cleanup.policy", SET, "never"))
        assert self.alter(wire, topic, *mixed) == ErrorCode.INVALID_CONFIG
        self.becomes(wire, topic, "retention.ms", ("604800000", 5))
        unknown = self.alter(wire, f"{topic}-none", ("retention.ms", SET, "5"))
        assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_alter_only_validated(self, wire: Connection, topic: str) -> None:
        assert self.alter(wire, topic, ("retention.ms", SET, "999"), validate_only=True) == 0
        self.becomes(wire, topic, "retention.ms", ("604800000", 5))

    def test_old_alter_replaces_everything(self, wire: Connection, name: str, create: Create) -> None:
        """AlterConfigs, which aiokafka and kafkajs use: what it does not name falls back to the default."""
        create(name, configs={"retention.ms": "1000", "segment.ms": "2000"})
        configs = [{"name": "retention.ms", "value": "3000"}]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        (done,) = wire.call("alter_configs", 2, {"resources": [resource]}).responses
        assert done.error_code == 0
        self.becomes(wire, name, "retention.ms", ("3000", 1))
        self.becomes(wire, name, "segment.ms", ("604800000", 5))


class TestCluster:
    def test_describe(self, wire: Connection, broker: str) -> None:
        cluster = wire.call("describe_cluster", 2, {"endpoint_type": 1})
        (node,) = cluster.brokers
        assert (f"{node.host}:{node.port}", node.broker_id) == (broker, cluster.controller_id)
        assert cluster.cluster_id == wire.call("metadata", 10, {"topics": []}).cluster_id

    def test_log_dirs(self, wire: Connection, topic: str, reference: Driver) -> None:
        reference.produce(topic, [Record(b"x" * 100)])
        fields = {"topics": [{"topic": topic, "partitions": [0]}]}
        (log_dir,) = wire.call("describe_log_dirs", 4, fields).results
        (partition,) = log_dir.topics[0].partitions
        assert (partition.partition_index, partition.offset_lag, partition.is_future_key) == (0, 0, False)
        assert 100 < partition.partition_size < 400
        assert 0 < log_dir.usable_bytes <= log_dir.total_bytes

    def test_telemetry_keeps_clients_quiet(self, wire: Connection) -> None:
        """Where the API is served at all, no metric is asked for."""
        served = {int(key.api_key) for key in wire.call("api_versions", 2).api_keys}
        if raw.api_key("get_telemetry_subscriptions") in served:
            reply = wire.call("get_telemetry_subscriptions", 0, {"client_instance_id": uuid.uuid4()})
            assert (reply.error_code, reply.requested_metrics) == (0, ())
            assert reply.push_interval.total_seconds() >= 60

    def test_find_coordinator(self, wire: Connection, broker: str) -> None:
        (found,) = wire.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["a-group"]}).coordinators
        assert (found.key, found.error_code, f"{found.host}:{found.port}") == ("a-group", 0, broker)
        assert found.error_message == ""

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_find_coordinator_of_one_key_has_a_message_without_an_error(self, wire: Connection, version: int) -> None:
        def find() -> tuple[int, str]:
            reply = wire.call("find_coordinator", version, {"key_type": 0, "key": "a-group"})
            return reply.error_code, reply.error_message

        eventually(find, (ErrorCode.NONE, "NONE"))

"""Topics, configs and cluster over a socket, in every version, with the responses of Apache Kafka 4.3."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.raw import Connection, fitting, versions_known

from levada.errors import ErrorCode
from levada.testing.embedded import EmbeddedBroker

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
NOT_ASKED_FOR = -(2**31)
ALL_TOPIC_OPERATIONS, ALL_CLUSTER_OPERATIONS = 3576, 8096  # what Kafka says without an authorizer

SAMPLES: dict[str, dict[str, Any]] = {
    "alter_configs": {"resources": [{"resource_type": TOPIC, "resource_name": "nope", "configs": []}]},
    "create_partitions": {"topics": [{"name": "nope", "count": 3, "assignments": None}]},
    "create_topics": {
        "topics": [{"name": "versions", "num_partitions": 2, "replication_factor": 1}],
        "validate_only": True,
    },
    "describe_cluster": {"endpoint_type": 1},
    "describe_configs": {"resources": [{"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}]},
    "describe_log_dirs": {"topics": None},
    "describe_topic_partitions": {"topics": [{"name": "nope"}]},
    "get_telemetry_subscriptions": {},
    "incremental_alter_configs": {"resources": [{"resource_type": TOPIC, "resource_name": "nope", "configs": []}]},
    "list_config_resources": {"resource_types": [BROKER]},
    "metadata": {"topics": []},
    "push_telemetry": {"metrics": b""},
}


EXPECTED = {
    "alter_configs": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    "create_partitions": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    "describe_topic_partitions": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    "incremental_alter_configs": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
}

pytestmark = pytest.mark.broker(log_retention_hours=100, num_partitions=2)


def newest(wire: Connection, api: str, **fields: Any) -> Any:
    return wire.call(api, versions_known(api)[-1], fields)


def create(wire: Connection, name: str, partitions: int = 1, **more: Any) -> Any:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, **more}
    return newest(wire, "create_topics", topics=[topic]).topics[0]


def metadata(wire: Connection, *topics: dict[str, Any], auto: bool = False, operations: bool = False) -> Any:
    return newest(
        wire,
        "metadata",
        topics=[{"topic_id": None, "name": None, **topic} for topic in topics],
        allow_auto_topic_creation=auto,
        include_topic_authorized_operations=operations,
    )


def describe(wire: Connection, type_: int, name: str, *keys: str) -> dict[str, Any]:
    resource = {"resource_type": type_, "resource_name": name, "configuration_keys": list(keys) or None}
    (result,) = newest(
        wire, "describe_configs", resources=[resource], include_synonyms=True, include_documentation=True
    ).results
    assert result.error_code == ErrorCode.NONE, result
    return {item.name: item for item in result.configs}


def alter(wire: Connection, type_: int, name: str, *items: tuple[str, int, str | None], **more: Any) -> ErrorCode:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in items]
    resource = {"resource_type": type_, "resource_name": name, "configs": configs}
    (answer,) = newest(wire, "incremental_alter_configs", resources=[resource], **more).responses
    return ErrorCode(answer.error_code)


def origins(item: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in item.synonyms]


@pytest.mark.parametrize(("api", "version"), [(api, version) for api in SAMPLES for version in versions_known(api)])
def test_every_version_is_answered(wire: Connection, api: str, version: int) -> None:
    """With the errors of the sample: a handler that crashes answers UNKNOWN_SERVER_ERROR."""
    response = wire.call(api, version, fitting(api, version, SAMPLES[api]))
    assert error_codes(response) <= EXPECTED.get(api, {ErrorCode.NONE})


def error_codes(entity: Any) -> set[int]:
    """All error codes in a response."""
    if isinstance(entity, tuple):
        return {code for item in entity for code in error_codes(item)}
    if not is_dataclass(entity):
        return set()
    found = {code for field in fields(entity) for code in error_codes(getattr(entity, field.name))}
    return found | ({int(entity.error_code)} if hasattr(entity, "error_code") else set())


class TestTopics:
    def test_defaults_come_from_the_broker(self, wire: Connection) -> None:
        made = create(wire, "defaults", -1, replication_factor=-1, configs=[{"name": "segment.ms", "value": "777"}])
        assert (made.error_code, made.num_partitions, made.replication_factor) == (ErrorCode.NONE, 2, 1)
        configs = {item.name: (item.value, item.config_source) for item in made.configs}
        assert configs["segment.ms"] == ("777", 1)
        assert configs["retention.ms"] == ("360000000", 5)
        (seen,) = metadata(wire, {"name": "defaults"}).topics
        assert (seen.topic_id, len(seen.partitions)) == (made.topic_id, 2)

    def test_each_topic_of_a_request_fails_alone(self, wire: Connection) -> None:
        asked: list[tuple[str, dict[str, Any]]] = [
            ("alone", {}),
            ("twice", {}),
            ("twice", {}),
            ("a/b", {}),
            ("config", {"configs": [{"name": "segment.bytes", "value": "x"}]}),
            ("null", {"configs": [{"name": "segment.bytes", "value": None}]}),
            ("manual", {"assignments": [{"partition_index": 0, "broker_ids": [1]}]}),
            ("gap", _manual(0, 2)),
            ("double", _manual(0, 0)),
            ("good", _manual(1, 0)),
        ]
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1, **more} for name, more in asked]
        codes = {item.name: item.error_code for item in newest(wire, "create_topics", topics=topics).topics}
        assert codes == {
            "alone": ErrorCode.NONE,
            "twice": ErrorCode.INVALID_REQUEST,
            "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "config": ErrorCode.INVALID_CONFIG,
            "null": ErrorCode.INVALID_CONFIG,
            "manual": ErrorCode.INVALID_REQUEST,
            "gap": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "double": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "good": ErrorCode.NONE,
        }

    def test_a_request_for_too_many_partitions_makes_none(self, wire: Connection) -> None:
        topics = [{"name": f"many-{number}", "num_partitions": 6_000, "replication_factor": 1} for number in range(2)]
        answers = newest(wire, "create_topics", topics=topics).topics
        assert {answer.error_code for answer in answers} == {ErrorCode.POLICY_VIOLATION}
        (seen,) = metadata(wire, {"name": "many-0"}).topics
        assert seen.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_validation_alone_makes_nothing(self, wire: Connection) -> None:
        topic = {"name": "only-validated", "num_partitions": 3, "replication_factor": 1}
        (answer,) = newest(wire, "create_topics", topics=[topic], validate_only=True).topics
        assert (answer.error_code, answer.num_partitions) == (ErrorCode.NONE, 3)
        (seen,) = metadata(wire, {"name": "only-validated"}).topics
        assert seen.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_deleted_by_name_and_by_id_and_made_again(self, wire: Connection) -> None:
        first = create(wire, "again").topic_id
        by_id, unknown, both, neither = newest(
            wire,
            "delete_topics",
            topics=[
                {"name": None, "topic_id": first},
                {"name": None, "topic_id": UUID(int=12345)},
                {"name": "again", "topic_id": first},
                {"name": None, "topic_id": None},
            ],
        ).responses
        assert (by_id.error_code, by_id.name, by_id.topic_id) == (ErrorCode.NONE, "again", first)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert both.error_code == neither.error_code == ErrorCode.INVALID_REQUEST
        second = create(wire, "again").topic_id
        assert second != first
        old, new = metadata(wire, {"topic_id": first}, {"topic_id": second}).topics
        assert (old.error_code, new.error_code, new.name) == (
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.NONE,
            "again",
        )
        for expected in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            (answer,) = wire.call("delete_topics", 1, {"topic_names": ["again"]}).responses
            assert answer.error_code == expected

    def test_partitions_are_added(self, wire: Connection) -> None:
        create(wire, "growing", 2)

        def grow(count: int, **more: Any) -> ErrorCode:
            topic = {"name": "growing", "count": count, "assignments": None}
            (answer,) = newest(wire, "create_partitions", topics=[topic], **more).results
            return ErrorCode(answer.error_code)

        assert grow(2) == grow(1) == ErrorCode.INVALID_PARTITIONS
        assert grow(20_000) == ErrorCode.POLICY_VIOLATION
        assert grow(5, validate_only=True) == grow(4) == ErrorCode.NONE
        (seen,) = metadata(wire, {"name": "growing"}).topics
        assert [partition.partition_index for partition in seen.partitions] == [0, 1, 2, 3]


def _manual(*indices: int) -> dict[str, Any]:
    assignments = [{"partition_index": index, "broker_ids": [1]} for index in indices]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": assignments}


class TestMetadata:
    def test_a_topic_and_what_may_be_done_with_it(self, wire: Connection) -> None:
        create(wire, "seen", 2)
        answer = metadata(wire, {"name": "seen"}, operations=True)
        (topic,) = answer.topics
        assert topic.topic_authorized_operations == ALL_TOPIC_OPERATIONS
        assert [(item.leader_id, item.leader_epoch, item.isr_nodes) for item in topic.partitions] == [(1, 0, (1,))] * 2
        assert metadata(wire, {"name": "seen"}).topics[0].topic_authorized_operations == NOT_ASKED_FOR
        assert (answer.controller_id, len(answer.brokers)) == (1, 1)

    def test_a_broker_advertises_the_listener_of_the_request(self, wire: Connection, broker: EmbeddedBroker) -> None:
        (node,) = metadata(wire).brokers
        assert f"{node.host}:{node.port}" == broker.bootstrap

    def test_null_is_all_topics_and_empty_is_none(self, wire: Connection) -> None:
        create(wire, "counted")
        everything = newest(wire, "metadata", topics=None).topics
        assert "counted" in {topic.name for topic in everything}
        assert metadata(wire).topics == ()
        assert len(wire.call("metadata", 0, {"topics": []}).topics) == len(everything)

    def test_names_that_no_topic_has(self, wire: Connection) -> None:
        answers = metadata(wire, {"name": "nope"}, {"name": "a/b"}, {"name": ""}, {"topic_id": uuid4()}).topics
        assert [answer.error_code for answer in answers] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]

    def test_a_topic_is_made_when_it_is_first_asked_for(self, wire: Connection) -> None:
        made, bad, internal = metadata(
            wire, {"name": "made-for-you"}, {"name": "a/b"}, {"name": "__consumer_offsets"}, auto=True
        ).topics
        assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 2)
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert internal.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_partitions_page_by_page(self, wire: Connection) -> None:
        create(wire, "page-a", 2)
        create(wire, "page-b", 3)
        names = [{"name": "page-b"}, {"name": "page-a"}]
        seen, cursor = [], None
        while True:
            answer = newest(wire, "describe_topic_partitions", topics=names, response_partition_limit=2, cursor=cursor)
            seen += [(topic.name, item.partition_index) for topic in answer.topics for item in topic.partitions]
            if answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        assert seen == [("page-a", 0), ("page-a", 1), ("page-b", 0), ("page-b", 1), ("page-b", 2)]
        lost = {"topic_name": "elsewhere", "partition_index": 0}
        refused = newest(wire, "describe_topic_partitions", topics=names, response_partition_limit=2, cursor=lost)
        assert {topic.error_code for topic in refused.topics} == {ErrorCode.INVALID_REQUEST}


class TestCluster:
    def test_described(self, wire: Connection) -> None:
        answer = newest(wire, "describe_cluster", endpoint_type=1, include_cluster_authorized_operations=True)
        assert (answer.error_code, answer.controller_id) == (ErrorCode.NONE, 1)
        assert answer.cluster_authorized_operations == ALL_CLUSTER_OPERATIONS
        assert answer.cluster_id == metadata(wire).cluster_id

    @pytest.mark.parametrize(
        ("endpoint_type", "code"),
        [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
    )
    def test_only_of_brokers(self, wire: Connection, endpoint_type: int, code: ErrorCode) -> None:
        assert newest(wire, "describe_cluster", endpoint_type=endpoint_type).error_code == code

    def test_coordinators(self, wire: Connection) -> None:
        for key_type, key, code in [
            (0, "group", ErrorCode.NONE),
            (1, "transaction", ErrorCode.NONE),
            (2, "group:AAAAAAAAQAGAAAAAAAAAAA:0", ErrorCode.NONE),
            (2, "group", ErrorCode.INVALID_REQUEST),
            (9, "group", ErrorCode.INVALID_REQUEST),
        ]:
            (answer,) = newest(wire, "find_coordinator", key_type=key_type, coordinator_keys=[key]).coordinators
            assert (answer.key, answer.error_code) == (key, code)
            assert answer.node_id == (1 if code == ErrorCode.NONE else -1)
        many = newest(wire, "find_coordinator", key_type=0, coordinator_keys=["a", "b"]).coordinators
        assert [answer.key for answer in many] == ["a", "b"]
        assert wire.call("find_coordinator", 0, {"key": "group"}).node_id == 1

    def test_clients_are_asked_for_no_metrics(self, wire: Connection) -> None:
        answer = newest(wire, "get_telemetry_subscriptions")
        assert (answer.error_code, answer.requested_metrics) == (ErrorCode.NONE, ())
        assert answer.client_instance_id and answer.push_interval.total_seconds() == 1200
        again = newest(wire, "get_telemetry_subscriptions", client_instance_id=answer.client_instance_id)
        assert again.client_instance_id == answer.client_instance_id

    def test_log_dirs_and_sizes(self, wire: Connection, broker: EmbeddedBroker) -> None:
        name = broker.topic(partitions=2)
        (log_dir,) = newest(wire, "describe_log_dirs", topics=[{"topic": name, "partitions": [1, 9]}]).results
        assert log_dir.total_bytes >= log_dir.usable_bytes > 0
        assert [(topic.name, len(topic.partitions)) for topic in log_dir.topics] == [(name, 1)]
        (everything,) = newest(wire, "describe_log_dirs", topics=None).results
        assert name in {topic.name for topic in everything.topics}

    def test_a_log_dir_named_from_the_working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "levada.metrics.listener": "", "log.dirs": "data"}
        with EmbeddedBroker(settings) as broker, Connection(broker.bootstrap) as wire:
            name = broker.topic(partitions=2)
            (log_dir,) = newest(wire, "describe_log_dirs", topics=None).results
        assert log_dir.log_dir == str(tmp_path / "data")
        assert [(topic.name, len(topic.partitions)) for topic in log_dir.topics] == [(name, 2)]


class TestConfigs:
    def test_sources_and_synonyms_from_the_topic_down_to_the_default(self, wire: Connection) -> None:
        create(wire, "described", configs=[{"name": "segment.bytes", "value": "2000000"}])
        found = describe(wire, TOPIC, "described", "segment.bytes", "max.message.bytes", "segment.ms", "nope")
        assert set(found) == {"segment.bytes", "max.message.bytes", "segment.ms"}
        own = found["segment.bytes"]
        assert (own.value, own.config_source, own.read_only, own.is_sensitive, own.config_type) == (
            "2000000",
            1,
            False,
            False,
            3,
        )
        assert own.documentation
        assert origins(own) == [("segment.bytes", "2000000", 1), ("log.segment.bytes", "1073741824", 5)]
        assert origins(found["max.message.bytes"]) == [("message.max.bytes", "1048588", 5)]
        assert (found["segment.ms"].value, found["segment.ms"].config_source) == ("604800000", 5)

    def test_a_topic_has_all_of_kafkas_settings_and_ours(self, wire: Connection) -> None:
        create(wire, "all-settings")
        names = describe(wire, TOPIC, "all-settings")
        assert len(names) == 34 and "levada.acks.wait.for.fsync" in names

    def test_of_the_broker(self, wire: Connection) -> None:
        found = describe(wire, BROKER, "1", "num.partitions", "log.segment.bytes", "log.retention.ms")
        given, dynamic, unset = found["num.partitions"], found["log.segment.bytes"], found["log.retention.ms"]
        assert (given.value, given.config_source, given.read_only) == ("2", 4, True)
        assert origins(given) == [("num.partitions", "2", 4), ("num.partitions", "1", 5)]
        assert (dynamic.config_source, dynamic.read_only) == (5, False)
        assert (unset.value, unset.config_source, origins(unset)) == (None, 5, [])

    def test_altered_for_one_broker_and_for_all(self, wire: Connection) -> None:
        create(wire, "inherits")
        assert alter(wire, BROKER, "", ("log.retention.ms", SET, "470000")) == ErrorCode.NONE
        assert alter(wire, BROKER, "1", ("log.retention.ms", SET, "360000")) == ErrorCode.NONE
        retention = describe(wire, TOPIC, "inherits", "retention.ms")["retention.ms"]
        assert (retention.value, retention.config_source) == ("360000", 2)
        assert origins(retention) == [
            ("log.retention.ms", "360000", 2),
            ("log.retention.ms", "470000", 3),
            ("log.retention.hours", "100", 4),
            ("log.retention.hours", "168", 5),
        ]
        assert set(describe(wire, BROKER, "")) == {"log.retention.ms"}
        for name in ("", "1"):
            assert alter(wire, BROKER, name, ("log.retention.ms", DELETE, None)) == ErrorCode.NONE
        assert describe(wire, TOPIC, "inherits", "retention.ms")["retention.ms"].value == "360000000"

    def test_a_default_that_contradicts_a_topic(self) -> None:
        """As in Kafka a topic's lags are compared with each other, not with the defaults of a broker."""
        settings = {"log.cleaner.max.compaction.lag.ms": "1000"}
        with EmbeddedBroker(settings) as broker, Connection(broker.bootstrap) as wire:
            create(wire, "contradicted", configs=[{"name": "min.compaction.lag.ms", "value": "60000"}])
            (log_dir,) = newest(wire, "describe_log_dirs", topics=None).results
        assert [topic.name for topic in log_dir.topics] == ["contradicted"]

    def test_whole_and_by_key(self, wire: Connection) -> None:
        create(wire, "altered")
        assert alter(wire, TOPIC, "altered", ("segment.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")) == 0
        assert alter(wire, TOPIC, "altered", ("segment.ms", SET, "6"), validate_only=True) == ErrorCode.NONE
        found = describe(wire, TOPIC, "altered", "segment.ms", "cleanup.policy")
        assert [found[name].value for name in ("segment.ms", "cleanup.policy")] == ["5", "delete,compact"]
        configs = [{"name": "flush.ms", "value": "9"}]
        resource = {"resource_type": TOPIC, "resource_name": "altered", "configs": configs}
        (answer,) = newest(wire, "alter_configs", resources=[resource]).responses
        assert answer.error_code == ErrorCode.NONE
        own = {name: item.value for name, item in describe(wire, TOPIC, "altered").items() if item.config_source == 1}
        assert own == {"flush.ms": "9"}

    @pytest.mark.parametrize(
        ("type_", "name", "item", "code"),
        [
            (TOPIC, "refusing", ("segment.bytes", SET, "x"), ErrorCode.INVALID_CONFIG),
            (TOPIC, "refusing", ("nope", SET, "1"), ErrorCode.INVALID_CONFIG),
            (TOPIC, "refusing", ("segment.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
            (TOPIC, "refusing", ("segment.ms", SET, None), ErrorCode.INVALID_REQUEST),
            (TOPIC, "refusing", ("segment.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
            (TOPIC, "nope", ("segment.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "a/b", ("segment.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "1", ("num.partitions", SET, "1"), ErrorCode.INVALID_REQUEST),
            (BROKER, "1", ("log.retention.ms", SET, "x"), ErrorCode.INVALID_REQUEST),
            (BROKER, "9", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
            (BROKER, "x", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
            (99, "x", ("a", SET, "1"), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_refused(
        self, wire: Connection, type_: int, name: str, item: tuple[str, int, str | None], code: ErrorCode
    ) -> None:
        create(wire, "refusing")
        assert alter(wire, type_, name, item) == code

    def test_resources_named_twice_or_unknown(self, wire: Connection) -> None:
        create(wire, "named-twice")
        resource = {"resource_type": TOPIC, "resource_name": "named-twice", "configs": []}
        for api in ("alter_configs", "incremental_alter_configs"):
            answers = newest(wire, api, resources=[resource, resource]).responses
            assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2
        for type_, name, code in [
            (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "7", ErrorCode.INVALID_REQUEST),
            (BROKER, "x", ErrorCode.INVALID_REQUEST),
            (99, "x", ErrorCode.INVALID_REQUEST),
        ]:
            asked = {"resource_type": type_, "resource_name": name, "configuration_keys": None}
            (answer,) = newest(wire, "describe_configs", resources=[asked]).results
            assert answer.error_code == code

    def test_settings_of_brokers_without_effect_are_stored_and_described(self, wire: Connection) -> None:
        """As Kafka's own tools expect of a broker: num.io.threads can be changed while it runs."""
        for name, text in (("num.io.threads", "16"), ("replica.alter.log.dirs.io.max.bytes.per.second", "1000")):
            for broker in ("1", ""):
                assert name not in describe(wire, BROKER, broker)
                assert alter(wire, BROKER, broker, (name, 0, text)) is ErrorCode.NONE
                assert describe(wire, BROKER, broker)[name].value == text
            assert alter(wire, BROKER, "1", (name, 0, "many")) is ErrorCode.INVALID_REQUEST
            assert alter(wire, BROKER, "1", (name, 1, None)) is ErrorCode.NONE
            assert describe(wire, BROKER, "1")[name].config_source == 3  # for all brokers
            assert alter(wire, BROKER, "", (name, 1, None)) is ErrorCode.NONE
            assert name not in describe(wire, BROKER, "1")
        assert alter(wire, BROKER, "1", ("num.io.threds", 0, "1")) is ErrorCode.INVALID_CONFIG
        assert alter(wire, BROKER, "1", ("ssl.keystore.password", 0, "x")) is ErrorCode.INVALID_CONFIG

    def test_what_has_settings(self, wire: Connection) -> None:
        create(wire, "listed")
        found = newest(wire, "list_config_resources", resource_types=[]).config_resources
        assert {(TOPIC, "listed"), (BROKER, "1")} <= {(item.resource_type, item.resource_name) for item in found}
        assert wire.call("list_config_resources", 0).config_resources == ()
        assert newest(wire, "list_config_resources", resource_types=[99]).error_code == ErrorCode.UNSUPPORTED_VERSION

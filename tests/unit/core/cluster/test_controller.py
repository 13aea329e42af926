"""The controller's decisions: names, counts, placement, assignments, config changes, producer ids."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.clusters import cluster_of

from levada.core.cluster.changes import Change
from levada.core.cluster.config_changes import (
    AlterConfigs,
    ConfigChange,
    IncrementalAlterConfigs,
    Operation,
    ResourceType,
)
from levada.core.cluster.controller import (
    PRODUCER_ID_BLOCK,
    AllocateProducerIds,
    AssignDirectories,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    decide,
)
from levada.core.cluster.image import UNASSIGNED, ClusterImage
from levada.errors import ErrorCode, KafkaError

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET, DELETE, APPEND, SUBTRACT = Operation


def cluster(brokers: int = 1) -> ClusterImage:
    return cluster_of(dict.fromkeys(range(1, brokers + 1)))


def after(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image = image.apply(decide(image, command))
    return image


def topic(name: str, number: int = 1, **more: Any) -> CreateTopic:
    return CreateTopic(name, UUID(int=number), **more)


def error_of(image: ClusterImage, command: Command) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decide(image, command)
    assert caught.value.detail
    return caught.value.code


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "a\n", "x" * 250, "a:b", "a\0"])
def test_names_that_no_topic_may_have(name: str) -> None:
    assert error_of(cluster(), topic(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "...", "a.b-c_d", "x" * 249, "__consumer_offsets", "1"])
def test_names_that_a_topic_may_have(name: str) -> None:
    assert name in after(cluster(), topic(name)).topics


@pytest.mark.parametrize(("old", "new"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_names_that_metrics_could_not_tell_apart(old: str, new: str) -> None:
    assert error_of(after(cluster(), topic(old)), topic(new, 2)) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_kafkas_own_metadata_topic_cannot_be_made() -> None:
    assert error_of(cluster(), topic("__cluster_metadata")) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
        ({"partitions": 2**31 - 1}, ErrorCode.POLICY_VIOLATION),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": [[1], []]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": [[1, 1]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": [[9]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": [[1], [1, 2]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"configs": {"segment.bytes": "x"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"no.such.setting": "1"}}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_shapes_that_no_topic_may_have(more: dict[str, Any], code: ErrorCode) -> None:
    assert error_of(cluster(3), topic("a", **more)) == code


def test_a_topic_exists_once() -> None:
    assert error_of(after(cluster(), topic("a")), topic("a", 2)) == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_manual_assignment_is_kept_and_its_first_broker_leads() -> None:
    made = after(cluster(3), topic("a", assignments=[[3, 1], [2, 3]])).topics["a"]
    assert [(state.replicas, state.isr, state.leader) for state in made.partitions] == [
        ((3, 1), (3, 1), 3),
        ((2, 3), (2, 3), 2),
    ]


def test_an_internal_topic_keeps_its_partitions() -> None:
    """A group is found by the number of partitions: one more, and all committed offsets are out of sight."""
    before = after(cluster(1), topic("__consumer_offsets", partitions=2))
    with pytest.raises(KafkaError) as caught:
        after(before, CreatePartitions("__consumer_offsets", 3))
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS


def test_partitions_are_added_and_the_old_ones_stay() -> None:
    before = after(cluster(3), topic("a", partitions=2, replication_factor=2))
    grown = after(before, CreatePartitions("a", 5)).topics["a"]
    assert grown.partitions[:2] == before.topics["a"].partitions
    assert [len(state.replicas) for state in grown.partitions] == [2] * 5
    assert grown.id == before.topics["a"].id
    placed = after(before, CreatePartitions("a", 4, [[2, 3], [3, 1]])).topics["a"]
    assert [state.leader for state in placed.partitions[2:]] == [2, 3]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CreatePartitions("nope", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (CreatePartitions("a", 2), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions("a", 1), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions("a", -1), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitions("a", 20_000), ErrorCode.POLICY_VIOLATION),
        (CreatePartitions("a", 4, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("a", 3, [[1], [1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("a", 3, [[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("a", 3, [[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitions("a", 3, [[7]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (DeleteTopic("nope"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (DeleteTopic(UUID(int=77)), ErrorCode.UNKNOWN_TOPIC_ID),
        (AlterConfigs(TOPIC, "nope", {}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (AlterConfigs(TOPIC, "a/b", {}), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (AlterConfigs(TOPIC, "a", {"segment.bytes": "x"}), ErrorCode.INVALID_CONFIG),
        (AlterConfigs(BROKER, "9", {}), ErrorCode.INVALID_REQUEST),
        (AlterConfigs(BROKER, "1", {"num.partitions": "3"}), ErrorCode.INVALID_REQUEST),
        (AlterConfigs(BROKER, "", {"log.retention.ms": "x"}), ErrorCode.INVALID_REQUEST),
        (AlterConfigs(BROKER, "1", {"levada.nothing": "3"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_commands_that_are_refused(command: Command, code: ErrorCode) -> None:
    assert error_of(after(cluster(3), topic("a", partitions=2)), command) == code


def test_a_topic_is_deleted_by_name_or_by_id_and_made_again_with_a_new_id() -> None:
    image = after(cluster(), topic("a", 1, partitions=3))
    for by in ("a", UUID(int=1)):
        again = after(image, DeleteTopic(by), topic("a", 2))
        assert dict(again.topic_names) == {UUID(int=2): "a"}
        assert [state.leader_epoch for state in again.topics["a"].partitions] == [0]


def incremental(*alterations: tuple[str, Operation, str | None]) -> IncrementalAlterConfigs:
    return IncrementalAlterConfigs(TOPIC, "a", tuple(ConfigChange(*item) for item in alterations))


@pytest.mark.parametrize(
    ("alterations", "configs"),
    [
        ([("segment.ms", SET, "5")], {"segment.ms": "5", "retention.ms": "9"}),
        ([("retention.ms", DELETE, None)], {}),
        ([("segment.ms", DELETE, None)], {"retention.ms": "9"}),
        ([("no.such.setting", DELETE, None)], {"retention.ms": "9"}),
        ([("cleanup.policy", APPEND, "compact")], {"retention.ms": "9", "cleanup.policy": "delete,compact"}),
        ([("cleanup.policy", APPEND, "delete")], {"retention.ms": "9", "cleanup.policy": "delete"}),
        ([("cleanup.policy", SUBTRACT, "delete")], {"retention.ms": "9", "cleanup.policy": ""}),
        ([("cleanup.policy", SUBTRACT, "compact")], {"retention.ms": "9", "cleanup.policy": "delete"}),
    ],
)
def test_settings_are_altered_one_by_one(
    alterations: list[tuple[str, Operation, str | None]], configs: dict[str, str]
) -> None:
    image = after(cluster(), topic("a", configs={"retention.ms": "9"}), incremental(*alterations))
    assert image.topics["a"].configs == configs


@pytest.mark.parametrize(
    ("alterations", "code"),
    [
        ([("segment.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG),
        ([("no.such.setting", SUBTRACT, "5")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "shred")], ErrorCode.INVALID_CONFIG),
        ([("segment.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", SET, "5"), ("segment.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_alterations_that_are_refused(alterations: list[tuple[str, Operation, str | None]], code: ErrorCode) -> None:
    assert error_of(after(cluster(), topic("a")), incremental(*alterations)) == code


def test_settings_are_replaced_as_a_whole() -> None:
    image = after(cluster(), topic("a", configs={"retention.ms": "9"}), AlterConfigs(TOPIC, "a", {"segment.ms": "5"}))
    assert image.topics["a"].configs == {"segment.ms": "5"}
    assert decide(image, AlterConfigs(TOPIC, "a", {"segment.ms": "5"})) == []


def test_settings_of_one_broker_and_of_all() -> None:
    image = after(
        cluster(),
        AlterConfigs(BROKER, "", {"log.retention.ms": "5"}),
        AlterConfigs(BROKER, "1", {"message.max.bytes": "6"}),
    )
    assert image.broker_configs == {"": {"log.retention.ms": "5"}, "1": {"message.max.bytes": "6"}}
    assert after(image, AlterConfigs(BROKER, "", {})).broker_configs == {"1": {"message.max.bytes": "6"}}


def test_producer_ids_are_given_in_blocks_and_end_some_day() -> None:
    image = after(cluster(), AllocateProducerIds(), AllocateProducerIds())
    assert image.next_producer_id == 2 * PRODUCER_ID_BLOCK
    exhausted = ClusterImage(next_producer_id=2**63 - PRODUCER_ID_BLOCK)
    assert error_of(exhausted, AllocateProducerIds()) == ErrorCode.UNKNOWN_SERVER_ERROR


@dataclass
class Model:
    """What a tester remembers: partitions by topic, and everything that was ever given out."""

    partitions: dict[str, int] = field(default_factory=dict)
    ids: set[UUID] = field(default_factory=set)


class AnyCommands(RuleBasedStateMachine):
    """Any run of commands: the journal of changes rebuilds the image, and ids are never used twice."""

    names = st.sampled_from(["a", "b", "a.b", "a_b", "bad/name"])

    def __init__(self) -> None:
        super().__init__()
        self.image = cluster(3)
        self.first = self.image
        self.journal: list[Change] = []
        self.model = Model()
        self.last_id = 0

    def submit(self, command: Command) -> bool:
        try:
            changes = decide(self.image, command)
        except KafkaError:
            return False
        self.journal += changes
        self.image = self.image.apply(changes)
        return True

    @rule(name=names, count=st.integers(-1, 4), factor=st.integers(0, 4))
    def create(self, name: str, count: int, factor: int) -> None:
        self.last_id += 1
        made = self.submit(topic(name, self.last_id, partitions=count, replication_factor=factor))
        collides = {"a.b": "a_b", "a_b": "a.b"}.get(name) in self.model.partitions
        legal = name != "bad/name" and name not in self.model.partitions and not collides
        assert made == (legal and count >= 1 and 1 <= factor <= 3)
        if made:
            self.model.partitions[name] = count
            assert self.image.topics[name].id not in self.model.ids
            self.model.ids.add(self.image.topics[name].id)
            assert {state.leader_epoch for state in self.image.topics[name].partitions} == {0}

    @rule(name=names)
    def delete(self, name: str) -> None:
        assert self.submit(DeleteTopic(name)) == (self.model.partitions.pop(name, None) is not None)

    @rule(name=names, count=st.integers(0, 6))
    def grow(self, name: str, count: int) -> None:
        if self.submit(CreatePartitions(name, count)):
            assert count > self.model.partitions[name]
            self.model.partitions[name] = count

    @rule(name=names, value=st.sampled_from(["5", "x"]))
    def alter(self, name: str, value: str) -> None:
        command = IncrementalAlterConfigs(TOPIC, name, (ConfigChange("segment.ms", SET, value),))
        assert self.submit(command) == (name in self.model.partitions and value == "5")

    @rule()
    def allocate(self) -> None:
        before = self.image.next_producer_id
        assert self.submit(AllocateProducerIds())
        assert self.image.next_producer_id == before + PRODUCER_ID_BLOCK

    @invariant()
    def replay_rebuilds_the_image(self) -> None:
        assert self.first.apply(self.journal, self.image.revision) == self.image

    @invariant()
    def image_is_what_was_asked_for(self) -> None:
        assert {name: len(found.partitions) for name, found in self.image.topics.items()} == self.model.partitions


TestAnyCommands = AnyCommands.TestCase


def test_a_new_partition_is_in_no_log_dir_until_its_broker_assigns_one() -> None:
    directory = UUID(int=9)
    created = after(cluster(2), topic("a", partitions=2, replication_factor=2))
    assert [part.directories for part in created.topics["a"].partitions] == [(UNASSIGNED,) * 2] * 2
    assigned = after(created, AssignDirectories(1, {UUID(int=1): {1: directory}})).topics["a"].partitions
    assert assigned[0] == created.topics["a"].partitions[0]
    assert assigned[1].directory_of(1) == directory and assigned[1].directory_of(2) == UNASSIGNED
    assert assigned[1].partition_epoch == 1


def test_log_dirs_of_a_deleted_topic_are_not_recorded() -> None:
    assert decide(cluster(), AssignDirectories(1, {UUID(int=1): {0: UUID(int=9)}})) == []


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_compacted(name: str) -> None:
    assert error_of(cluster(), topic(name, configs={"cleanup.policy": "compact,delete"})) == ErrorCode.INVALID_CONFIG
    created = after(cluster(), topic(name))
    assert created.topics[name].configs == {"cleanup.policy": "compact"}
    altered = after(created, AlterConfigs(TOPIC, name, {"segment.bytes": "1000000"}))
    assert altered.topics[name].configs == {"cleanup.policy": "compact", "segment.bytes": "1000000"}
    assert error_of(created, AlterConfigs(TOPIC, name, {"cleanup.policy": "delete"})) == ErrorCode.INVALID_CONFIG

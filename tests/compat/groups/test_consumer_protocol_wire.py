"""Responses to ConsumerGroupHeartbeat and related requests, as Apache Kafka sends them."""

import time
import uuid
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.support import raw

from levada.errors import ErrorCode

PARTITIONS = 4
WAIT_S = 20.0


class Group:
    """A group and the one connection over which all its members speak."""

    def __init__(self, wire: raw.Connection, topic: str, topic_id: UUID) -> None:
        self.wire = wire
        self.id = f"group-{uuid.uuid4().hex[:8]}"
        self.topic = topic
        self.topic_id = topic_id

    def beat(self, member: str = "a", epoch: int = 0, version: int = 1, **fields: Any) -> Any:
        request = {"group_id": self.id, "member_id": member, "member_epoch": epoch, **fields}
        return self.wire.call("consumer_group_heartbeat", version, request)

    def join(self, member: str = "a", **fields: Any) -> Any:
        full = {"rebalance_timeout": 60_000, "subscribed_topic_names": [self.topic], "topic_partitions": []}
        return self.beat(member, **{**full, **fields})

    def owned(self, *partitions: int) -> list[dict[str, Any]]:
        return [{"topic_id": self.topic_id, "partitions": partitions}]

    def described(self) -> Any:
        fields = {"group_ids": [self.id], "include_authorized_operations": True}
        return self.wire.call("consumer_group_describe", 1, fields).groups[0]


def assigned(reply: Any) -> list[int] | None:
    """The partitions that are assigned to a member."""
    assert reply.error_code == 0, reply
    if reply.assignment is None:
        return None
    return sorted(one for part in reply.assignment.topic_partitions for one in part.partitions)


def code(reply: Any) -> ErrorCode:
    return ErrorCode(reply.error_code)


def eventually(look: Callable[[], Any]) -> Any:
    """What is not None in the end; Kafka resolves patterns in the background."""
    deadline = time.monotonic() + WAIT_S
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.fixture
def group(wire: raw.Connection, name: str) -> Group:
    new = {"name": name, "num_partitions": PARTITIONS, "replication_factor": 1}
    created = wire.call("create_topics", 7, {"topics": [new], "timeout": 10_000}).topics[0]
    for partition in range(PARTITIONS):
        raw.wait_until_served(wire, name, partition)
    group = Group(wire, name, created.topic_id)

    def ready() -> bool | None:
        wire.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [group.id]})
        return code(group.beat("nobody", -1)) is ErrorCode.GROUP_ID_NOT_FOUND or None

    eventually(ready)
    return group


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
def test_requests_that_are_wrong(group: Group, fields: dict[str, Any], message: str) -> None:
    reply = group.join(**fields)
    assert (code(reply), reply.error_message) == (ErrorCode.INVALID_REQUEST, message)


def test_the_first_version_gives_members_their_ids(group: Group) -> None:
    reply = group.join("", version=0)
    assert assigned(reply) == [0, 1, 2, 3] and reply.member_id
    assert code(group.beat(reply.member_id, reply.member_epoch, version=0)) is ErrorCode.NONE


def test_a_partition_is_given_back_before_another_gets_it(group: Group) -> None:
    first = group.join("a")
    epoch = first.member_epoch
    assert assigned(first) == [0, 1, 2, 3] and first.heartbeat_interval.total_seconds() > 0
    assert assigned(group.beat("a", epoch)) is None
    assert assigned(group.join("b")) == []
    asked = group.beat("a", epoch)
    assert assigned(asked) == [0, 1] and asked.member_epoch == epoch
    assert assigned(group.beat("b", epoch + 1)) is None
    given_back = group.beat("a", epoch, topic_partitions=group.owned(0, 1))
    assert given_back.member_epoch == epoch + 1
    assert assigned(group.beat("b", epoch + 1)) == [2, 3]
    described = group.described()
    assert (described.group_state, described.group_epoch) == ("Stable", described.assignment_epoch)
    assert {member.member_id: member.member_type for member in described.members} == {"a": 1, "b": 1}
    assert assigned(group.beat("b", -1)) is None
    assert assigned(group.beat("a", epoch + 1)) == [0, 1, 2, 3]


def test_members_of_other_epochs_are_fenced(group: Group) -> None:
    epoch = group.join("a").member_epoch
    assert code(group.beat("a", epoch + 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code(group.beat("z", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(group.beat("z", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    group.join("b")
    group.beat("a", epoch)
    group.beat("a", epoch, topic_partitions=group.owned(0, 1))
    assert code(group.beat("a", epoch)) is ErrorCode.FENCED_MEMBER_EPOCH
    missed = group.beat("a", epoch, topic_partitions=group.owned(0))
    assert missed.member_epoch == epoch + 1
    assert assigned(group.join("a")) == [0, 1], "a member that starts over gets its whole assignment"


def test_groups_and_assignors_that_are_not_there(group: Group) -> None:
    assert code(group.beat("a", 1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert code(group.beat("a", -1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert code(group.join(server_assignor="nope")) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert code(group.described()) is ErrorCode.GROUP_ID_NOT_FOUND


def test_static_members(group: Group) -> None:
    epoch = group.join("a", instance_id="one").member_epoch
    assert code(group.join("b", instance_id="one")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert code(group.beat("b", epoch, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert code(group.beat("a", epoch, instance_id="two")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.beat("a", -2, instance_id="one").member_epoch == -2
    back = group.join("b", instance_id="one")
    assert assigned(back) == [0, 1, 2, 3] and back.member_epoch == epoch
    assert code(group.beat("a", -1, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert group.beat("b", -1, instance_id="one").member_epoch == -1
    assert group.described().group_state == "Empty"


@pytest.mark.parametrize("regex", ["(", "a**", r"(a)\1", "(?=a)"])
def test_patterns_that_are_none(group: Group, regex: str) -> None:
    reply = group.join(subscribed_topic_names=None, subscribed_topic_regex=regex)
    assert code(reply) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_gets_its_topics(group: Group) -> None:
    reply = group.join(subscribed_topic_names=None, subscribed_topic_regex=f"{group.topic}|nothing-.*")
    current = [reply]

    def look() -> list[int] | None:
        found = assigned(current[0])
        if not found:
            current[0] = group.beat("a", current[0].member_epoch)
        return found or None

    assert eventually(look) == [0, 1, 2, 3]
    (member,) = group.described().members
    assert member.subscribed_topic_regex == f"{group.topic}|nothing-.*"


def test_offsets_and_epochs(group: Group) -> None:
    epoch = group.join("a").member_epoch

    def commit(member: str, epoch: int, partition: int = 0, version: int = 9) -> ErrorCode:
        part = {"partition_index": partition, "committed_offset": 1, "committed_metadata": ""}
        fields = {
            "group_id": group.id,
            "member_id": member,
            "generation_id_or_member_epoch": epoch,
            "topics": [{"name": group.topic, "partitions": [part]}],
        }
        return code(group.wire.call("offset_commit", version, fields).topics[0].partitions[0])

    def fetch(member: str | None, epoch: int) -> ErrorCode:
        topics = [{"name": group.topic, "partition_indexes": [0]}]
        asked = {"group_id": group.id, "member_id": member, "member_epoch": epoch, "topics": topics}
        return code(group.wire.call("offset_fetch", 9, {"groups": [asked]}).groups[0])

    assert commit("a", epoch) is ErrorCode.NONE
    assert commit("a", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit("z", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("a", epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert fetch("a", epoch) is ErrorCode.NONE
    assert fetch(None, -1) is ErrorCode.NONE
    assert fetch("a", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("z", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    group.join("b")
    group.beat("a", epoch)
    group.beat("a", epoch, topic_partitions=group.owned(0, 1))
    assert commit("a", epoch, 0) is ErrorCode.NONE, "it has had this one since that epoch"
    assert commit("a", epoch, 3) is ErrorCode.STALE_MEMBER_EPOCH


def test_other_requests_about_the_group(group: Group) -> None:
    group.join("a")
    wire = group.wire
    listed = wire.call("list_groups", 5, {"types_filter": ["consumer"]}).groups
    assert [(one.group_type, one.group_state) for one in listed if one.group_id == group.id] == [("consumer", "Stable")]
    assert code(wire.call("describe_groups", 6, {"groups": [group.id]}).groups[0]) is (ErrorCode.GROUP_ID_NOT_FOUND)
    (deleted,) = wire.call("delete_groups", 2, {"groups_names": [group.id]}).results
    assert code(deleted) is ErrorCode.NON_EMPTY_GROUP
    features = wire.call("api_versions", 4, {"client_software_name": "x", "client_software_version": "1"})
    assert ("group.version", 1) in {
        (one.name, one.max_version_level) for one in features.finalized_features
    } and features.finalized_features_epoch >= 0

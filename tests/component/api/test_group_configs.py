"""Group configs: described, altered, stored, and used by the coordinator."""

from typing import Any

import pytest
from tests.support.raw import Connection
from tests.support.waiting import until

from levada.config.groups import GroupConfig, GroupSettings
from levada.errors import ErrorCode, KafkaError
from levada.testing import EmbeddedBroker

GROUP = 32
GROUP_CONFIG, STATIC, DEFAULT = 8, 4, 5
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SET, DELETE = 0, 1
NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


pytestmark = pytest.mark.broker(group_consumer_heartbeat_interval_ms=4000)


def describe(wire: Connection, group: str) -> Any:
    asked = {"resource_type": GROUP, "resource_name": group, "configuration_keys": None}
    (answer,) = wire.call("describe_configs", 4, {"resources": [asked], "include_synonyms": True}).results
    return answer


def described(wire: Connection, group: str) -> dict[str, tuple[str, int, list[tuple[str, str, int]]]]:
    answer = describe(wire, group)
    assert answer.error_code == ErrorCode.NONE
    return {
        entry.name: (
            entry.value,
            entry.config_source,
            [(other.name, other.value, other.source) for other in entry.synonyms],
        )
        for entry in answer.configs
    }


def alter(wire: Connection, group: str, changes: dict[str, str | None]) -> tuple[int, str | None]:
    configs = [
        {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
        for name, value in changes.items()
    ]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    (answer,) = wire.call("incremental_alter_configs", 1, {"resources": [resource]}).responses
    return answer.error_code, answer.error_message


def listed(wire: Connection) -> set[str]:
    found = wire.call("list_config_resources", 1, {"resource_types": [GROUP]})
    return {resource.resource_name for resource in found.config_resources}


def beat(wire: Connection, group: str, member_id: str, epoch: int = 0) -> Any:
    fields = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["nothing"],
        "topic_partitions": [],
    }
    asked = {"key_type": 0, "coordinator_keys": [group]}
    until(lambda: wire.call("find_coordinator", 4, asked).coordinators[0].error_code == ErrorCode.NONE)
    replies: list[Any] = []

    def served() -> bool:
        replies.append(wire.call("consumer_group_heartbeat", 1, fields))
        return replies[-1].error_code not in NOT_YET

    until(served)
    return replies[-1]


def interval_ms(reply: Any) -> int:
    assert reply.error_code == ErrorCode.NONE
    return int(reply.heartbeat_interval.total_seconds() * 1000)


def test_what_a_group_without_settings_has(wire: Connection) -> None:
    """It need not even be there."""
    assert described(wire, "nobody") == {
        SESSION: ("45000", DEFAULT, [("group.consumer.session.timeout.ms", "45000", DEFAULT)]),
        HEARTBEAT: (
            "4000",
            STATIC,
            [
                ("group.consumer.heartbeat.interval.ms", "4000", STATIC),
                ("group.consumer.heartbeat.interval.ms", "5000", DEFAULT),
            ],
        ),
    }
    assert describe(wire, "").error_code == ErrorCode.INVALID_REQUEST


def test_settings_are_set_and_taken_back(wire: Connection) -> None:
    assert alter(wire, "a/b", {SESSION: "50000", HEARTBEAT: "15000"}) == (ErrorCode.NONE, None)
    found = described(wire, "a/b")
    assert found[SESSION][:2] == ("50000", GROUP_CONFIG)
    assert found[HEARTBEAT][2][0] == (HEARTBEAT, "15000", GROUP_CONFIG)
    assert "a/b" in listed(wire)
    assert alter(wire, "a/b", {SESSION: None, HEARTBEAT: None}) == (ErrorCode.NONE, None)
    assert "a/b" not in listed(wire)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (SESSION, "44999", "at least group.consumer.min.session.timeout.ms, which is 45000"),
        (SESSION, "60001", "at most group.consumer.max.session.timeout.ms, which is 60000"),
        (HEARTBEAT, "3999", "at least group.consumer.min.heartbeat.interval.ms"),
        (HEARTBEAT, "15001", "at most group.consumer.max.heartbeat.interval.ms"),
        (SESSION, "soon", "not a whole number"),
        ("consumer.session.timeout", "1", f"did you mean {SESSION}"),
        ("streams.num.standby.replicas", "1", "has no effect: streams groups are not available"),
    ],
)
def test_what_is_refused(wire: Connection, name: str, value: str, why: str) -> None:
    """As Kafka 4.3 does, but for the words."""
    code, message = alter(wire, "refused", {name: value})
    assert code == ErrorCode.INVALID_CONFIG
    assert why in (message or "")
    assert "refused" not in listed(wire)


def test_a_group_needs_a_name(wire: Connection) -> None:
    assert alter(wire, "", {SESSION: "50000"})[0] == ErrorCode.INVALID_REQUEST


def test_a_broker_with_a_short_timeout_of_its_own_allows_it_to_groups() -> None:
    broker = GroupSettings(group_consumer_session_timeout_ms=3_000, group_consumer_heartbeat_interval_ms=50)
    assert GroupConfig.build(broker, {SESSION: "4000"}).consumer_session_timeout_ms == 4_000
    with pytest.raises(KafkaError, match=r"must be less than consumer\.session\.timeout\.ms"):
        GroupConfig.build(broker, {SESSION: "3500", HEARTBEAT: "4000"})


def test_members_get_the_settings_of_their_group(wire: Connection) -> None:
    """Members that joined before receive the new interval with their next heartbeat."""
    reply = beat(wire, "slow", "member")
    assert interval_ms(reply) == 4_000
    assert alter(wire, "slow", {HEARTBEAT: "15000"}) == (ErrorCode.NONE, None)
    assert interval_ms(beat(wire, "slow", "member", reply.member_epoch)) == 15_000
    assert interval_ms(beat(wire, "slow", "other")) == 15_000
    assert interval_ms(beat(wire, "usual", "member")) == 4_000


def test_a_members_session_is_as_long_as_its_group_says() -> None:
    """Of two members without heartbeats only the one with the shorter session timeout is removed."""
    settings = {"group.consumer.session.timeout.ms": "60000", "group.consumer.min.session.timeout.ms": "100"}
    with (
        EmbeddedBroker({**settings, "group.consumer.min.heartbeat.interval.ms": "10"}) as broker,
        Connection(broker.bootstrap) as wire,
    ):
        assert alter(wire, "hasty", {SESSION: "150", HEARTBEAT: "50"}) == (ErrorCode.NONE, None)
        beat(wire, "hasty", "member")
        beat(wire, "patient", "member")

        def members(group: str) -> int:
            (answer,) = wire.call("consumer_group_describe", 1, {"group_ids": [group]}).groups
            return len(answer.members)

        until(lambda: not members("hasty"))
        assert members("patient") == 1

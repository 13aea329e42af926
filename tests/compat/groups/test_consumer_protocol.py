"""Groups of the consumer protocol (KIP-848) as real clients form them, alone and beside the classic protocol.

What single requests are answered is in `test_consumer_protocol_wire`.
"""

import re
import signal
import subprocess
from typing import Any

import pytest
from tests.compat.features import Feature, shows
from tests.compat.groups.members import (
    GROUP_SETTINGS,
    PARTITIONS,
    Start,
    make_topic,
    produce,
    wait_for_records,
    wait_for_shares,
)
from tests.compat.members.base import MEMBERS, ConfluentMembers, Members
from tests.compat.own_broker import own_broker
from tests.support import raw
from tests.support.broker import BrokerProcess
from tests.support.downloads import Unavailable, must_be_had
from tests.support.kafka_jars import java
from tests.support.waiting import until

pytestmark = pytest.mark.broker(
    **GROUP_SETTINGS, group_consumer_session_timeout_ms=6_000, group_consumer_heartbeat_interval_ms=100
)
SPEAKERS = tuple(kind for kind in MEMBERS if "consumer" not in kind.lacks)


def clients(*needed: str) -> pytest.MarkDecorator:
    """Run with each client that has the protocol, and these abilities."""
    kinds = [kind for kind in SPEAKERS if not kind.lacks.intersection(needed)]
    return pytest.mark.parametrize("kind", kinds, ids=[kind.name for kind in kinds])


def join(program: Members, member: str, group: str, topic: str, **more: Any) -> tuple[Members, str]:
    program.join(member, group, topic, protocol="consumer", **more)
    return program, member


def described(wire: raw.Connection, group: str) -> Any:
    return wire.call("consumer_group_describe", 1, {"group_ids": [group]}).groups[0]


def assignments(wire: raw.Connection, group: str) -> list[dict[str, list[int]]]:
    """What the members have, by topic."""
    return [
        {part.topic_name: sorted(part.partitions) for part in member.assignment.topic_partitions}
        for member in described(wire, group).members
    ]


@shows(Feature.CONSUMER)
@clients()
def test_members_share_partitions_and_those_who_are_gone_are_replaced(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, topic: str
) -> None:
    one, other = start(kind), start(kind)
    written = produce(wire, topic, 5)
    a = join(one, "a", group, topic)
    wait_for_shares(a)
    b = join(other, "b", group, topic)
    wait_for_shares(a, b)
    c = join(one, "c", group, topic)
    wait_for_shares(a, b, c)
    until(lambda: described(wire, group).group_state == "Stable", lambda: described(wire, group))
    assert {member.member_type for member in described(wire, group).members} == {1}
    one.leave("a")
    wait_for_shares(b, c)
    wait_for_records(written, a, b, c)
    other.kill()
    wait_for_shares(c)
    assert wait_for_records(produce(wire, topic, 5), c)


@shows(Feature.CONSUMER)
@clients()
def test_a_rebalance_takes_only_what_moves(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, topic: str
) -> None:
    program = start(kind)
    a = join(program, "a", group, topic)
    wait_for_shares(a)
    b = join(program, "b", group, topic)
    wait_for_shares(a, b)
    assert sum(map(len, program.look("a").revoked)) == PARTITIONS // 2
    assert not program.look("b").revoked


@shows(Feature.CONSUMER_COMMITS)
@clients()
def test_a_group_goes_on_where_it_committed(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, topic: str
) -> None:
    program = start(kind)
    written = produce(wire, topic, 3)
    a = join(program, "a", group, topic)
    wait_for_shares(a)
    assert sorted(wait_for_records(written, a)) == sorted(written)
    program.commit("a", "all of the first three")
    assert program.committed(group, topic) == dict.fromkeys(range(PARTITIONS), (3, "all of the first three"))
    program.leave("a")
    fresh = produce(wire, topic, 2)
    b = join(program, "b", group, topic)
    assert sorted(wait_for_records(fresh, b)) == sorted(fresh)


@shows(Feature.CONSUMER_STATIC)
@clients("consumer-static")
def test_a_static_member_comes_back_to_what_it_had(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, topic: str
) -> None:
    """It says that it will be back, so no other member is disturbed. (franz-go says it without its instance id.)"""
    program = start(kind)
    a = join(program, "a", group, topic, instance_id="first")
    wait_for_shares(a)
    b = join(program, "b", group, topic, instance_id="second")
    before = wait_for_shares(a, b)
    epoch = described(wire, group).group_epoch
    program.leave("b")
    again = join(program, "b2", group, topic, instance_id="second")
    after = wait_for_shares(a, again)
    assert [seen.partitions for seen in after] == [seen.partitions for seen in before]
    assert after[0].revoked == before[0].revoked
    assert described(wire, group).group_epoch == epoch


@shows(Feature.CONSUMER_ASSIGNORS)
@clients()
@pytest.mark.parametrize(("assignor", "first"), [("range", {0, 1}), ("uniform", None)])
def test_members_choose_the_assignor(
    start: Start,
    kind: type[Members],
    wire: raw.Connection,
    group: str,
    topic: str,
    assignor: str,
    first: set[int] | None,
) -> None:
    program = start(kind)
    a = join(program, "a", group, topic, remote_assignor=assignor)
    wait_for_shares(a)
    b = join(program, "b", group, topic, remote_assignor=assignor)
    shares = {seen.partitions for seen in wait_for_shares(a, b)}
    assert described(wire, group).assignor_name == assignor
    assert first is None or first in shares


@shows(Feature.CONSUMER_PATTERNS)
@clients()
def test_a_pattern_is_followed_by_the_broker(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, name: str
) -> None:
    make_topic(wire, f"{name}-one", 2)
    make_topic(wire, f"other-{name}", 2)
    program = start(kind)
    join(program, "a", group, f"{name}-one", pattern=f"^{name}-.*")
    until(lambda: assignments(wire, group) == [{f"{name}-one": [0, 1]}], lambda: assignments(wire, group))
    (member,) = described(wire, group).members
    assert f"^{name}-.*" in member.subscribed_topic_regex and not member.subscribed_topic_names
    make_topic(wire, f"{name}-two", 1)
    until(
        lambda: assignments(wire, group) == [{f"{name}-one": [0, 1], f"{name}-two": [0]}],
        lambda: assignments(wire, group),
    )
    until(lambda: described(wire, group).group_state == "Stable", lambda: described(wire, group))


@shows(Feature.CONSUMER_ADMIN)
@clients()
def test_operators_see_and_change_groups(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, topic: str
) -> None:
    program = start(kind)
    written = produce(wire, topic, 3)
    a = join(program, "a", group, topic)
    wait_for_shares(a)
    b = join(program, "b", group, topic)
    wait_for_shares(a, b)
    wait_for_records(written, a, b)
    until(lambda: program.describe_group(group)[0] == "Stable", lambda: program.describe_group(group))
    assert program.list_groups()[group] == "Stable"
    assert sorted(one for part in program.describe_group(group)[1] for one in part) == list(range(PARTITIONS))
    for member in ("a", "b"):
        program.leave(member)
    until(lambda: program.describe_group(group) == ("Empty", []), lambda: program.describe_group(group))
    program.set_offsets(group, topic, {0: 1})
    assert program.committed(group, topic) == {0: (1, "")}
    program.delete_group(group)
    assert group not in program.list_groups()


def test_members_of_different_clients_form_one_group(
    start: Start, wire: raw.Connection, group: str, topic: str
) -> None:
    living = [join(start(kind), "m", group, topic) for kind in SPEAKERS]
    written = produce(wire, topic, 5)
    wait_for_shares(*living)
    wait_for_records(written, *living)
    for program, member in living[:-1]:
        program.leave(member)
    wait_for_shares(living[-1])


@shows(Feature.MIGRATION)
@clients()
def test_an_application_changes_its_protocol_one_process_at_a_time(
    start: Start, kind: type[Members], wire: raw.Connection, group: str, topic: str
) -> None:
    """From classic to consumer and back, with the group at work all the time."""
    program = start(kind)
    classic = {"assignor": "cooperative-sticky", "session_timeout_ms": 6_000}
    program.join("a", group, topic, **classic)
    wait_for_shares((program, "a"))
    program.join("b", group, topic, **classic)
    a, b = (program, "a"), (program, "b")
    wait_for_shares(a, b)
    c = join(program, "c", group, topic)
    wait_for_shares(a, b, c)
    assert sorted(member.member_type for member in described(wire, group).members) == [0, 0, 1]
    wait_for_records(produce(wire, topic, 2), a, b, c)
    program.leave("a")
    program.leave("b")
    d = join(program, "d", group, topic)
    wait_for_shares(c, d)
    assert {member.member_type for member in described(wire, group).members} == {1}
    program.join("e", group, topic, **classic)
    wait_for_shares(c, d, (program, "e"))
    program.leave("c")
    program.leave("d")
    wait_for_shares((program, "e"))
    assert described(wire, group).error_code != 0, "it is a classic group again"
    state = wire.call("describe_groups", 5, {"groups": [group]}).groups[0].group_state
    assert state == "Stable"
    wait_for_records(produce(wire, topic, 2), (program, "e"))


@own_broker
@shows(Feature.CONSUMER_KILL)
@clients()
def test_members_stay_when_the_broker_is_killed(
    start: Start, kind: type[Members], server: BrokerProcess, wire: raw.Connection, group: str, topic: str
) -> None:
    """The group comes back from its journal: same members, same partitions, none starts over."""
    program = start(kind)
    a = join(program, "a", group, topic)
    wait_for_shares(a)
    b = join(program, "b", group, topic)
    before = wait_for_shares(a, b)
    until(lambda: described(wire, group).group_state == "Stable", lambda: described(wire, group))
    epoch = described(wire, group).group_epoch
    server.stop(signal.SIGKILL)
    server.start()
    with raw.Connection(server.bootstrap) as again:
        wait_for_records(produce(again, topic, 5), a, b)
        after = wait_for_shares(a, b)
        assert described(again, group).group_epoch == epoch
    assert [seen.partitions for seen in after] == [seen.partitions for seen in before]


def test_kafkas_own_tool_describes_the_group(
    start: Start, broker: str, wire: raw.Connection, group: str, topic: str
) -> None:
    program = start(ConfluentMembers)
    written = produce(wire, topic, 3)
    a = join(program, "a", group, topic)
    wait_for_shares(a)
    wait_for_records(written, a)
    program.commit("a")

    def tool(*arguments: str) -> str:
        try:
            command = java("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *arguments)
        except Unavailable as error:
            must_be_had("Kafka's tools", error)
        command += ["--bootstrap-server", broker]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    lag = tool("--describe", "--group", group)
    assert [line.split()[:6] for line in lag.splitlines() if topic in line] == [
        [group, topic, str(partition), "3", "3", "0"] for partition in range(PARTITIONS)
    ]
    assert "Stable" in tool("--describe", "--group", group, "--state", "--verbose")
    members = tool("--describe", "--group", group, "--members", "--verbose")
    assert f"{topic}:0,1,2,3" in members
    assert "Consumer" in tool("--list", "--type")


def test_kafkas_own_tool_reads_the_journal(
    start: Start, server: BrokerProcess, wire: raw.Connection, group: str, topic: str
) -> None:
    """Every kind of record that a group writes, among them those of a group that changed its protocol."""
    program = start(ConfluentMembers)
    program.join("old", group, topic, assignor="cooperative-sticky")
    wait_for_shares((program, "old"))
    a = join(program, "a", group, topic, pattern=f"^{topic}.*")
    wait_for_shares((program, "old"), a)
    program.leave("old")
    program.leave("a")
    logs = sorted((server.log.parent / "data").glob("__consumer_offsets-*/*.log"))
    try:
        command = java("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files")
    except Unavailable as error:
        must_be_had("Kafka's tools", error)
    command.append(",".join(str(log) for log in logs if log.stat().st_size))
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    written = set(re.findall(rf'"type":"(\d+)","data":{{"group(?:Id)?":"{group}"', printed))
    assert written == {"2", "3", "5", "6", "7", "8", "16"}
    assert "Failed" not in printed and "rror" not in printed

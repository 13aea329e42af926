"""Classic groups of real clients: members join, leave and die; every record is read."""

import pytest
from tests.compat.drivers.base import ClientError
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
from tests.compat.members.base import MEMBERS, KafkajsMembers, Members
from tests.support import raw
from tests.support.waiting import until

pytestmark = pytest.mark.broker(**GROUP_SETTINGS)


def clients(*needed: str) -> pytest.MarkDecorator:
    """Run with each client that has these abilities."""
    chosen = [kind for kind in MEMBERS if not kind.lacks.intersection(needed)]
    return pytest.mark.parametrize("kind", chosen, ids=[kind.name for kind in chosen])


@shows(Feature.GROUPS)
@clients()
def test_members_share_partitions_and_those_who_are_gone_are_replaced(
    start: Start, wire: raw.Connection, group: str, topic: str
) -> None:
    one, other = start(), start()
    written = produce(wire, topic, 5)
    one.join("a", group, topic)
    wait_for_shares((one, "a"))
    other.join("b", group, topic, session_timeout_ms=1_500)  # it will be killed
    wait_for_shares((one, "a"), (other, "b"))
    one.join("c", group, topic)
    wait_for_shares((one, "a"), (other, "b"), (one, "c"))
    one.leave("a")
    wait_for_shares((other, "b"), (one, "c"))
    wait_for_records(written, (one, "a"), (other, "b"), (one, "c"))
    other.kill()
    wait_for_shares((one, "c"))
    assert wait_for_records(produce(wire, topic, 5), (one, "c"))


@shows(Feature.COMMITS)
@clients()
def test_a_group_goes_on_where_it_committed(start: Start, wire: raw.Connection, group: str, topic: str) -> None:
    program = start()
    written = produce(wire, topic, 3)
    program.join("a", group, topic)
    wait_for_shares((program, "a"))
    assert sorted(wait_for_records(written, (program, "a"))) == sorted(written)
    program.commit("a", "all of the first three")
    assert program.committed(group, topic) == dict.fromkeys(range(PARTITIONS), (3, "all of the first three"))
    program.leave("a")
    fresh = produce(wire, topic, 2)
    program.join("b", group, topic)
    assert sorted(wait_for_records(fresh, (program, "b"))) == sorted(fresh)


@shows(Feature.STATIC)
@clients("static")
def test_a_static_member_restarts_without_a_rebalance(
    start: Start, wire: raw.Connection, group: str, topic: str
) -> None:
    """KIP-345."""
    one, other, again = start(), start(), start()
    session = {"session_timeout_ms": 20_000}
    one.join("a", group, topic, instance_id="first", **session)
    wait_for_shares((one, "a"))
    other.join("b", group, topic, instance_id="second", **session)
    before = wait_for_shares((one, "a"), (other, "b"))
    other.kill()
    again.join("b", group, topic, instance_id="second", **session)
    after = wait_for_shares((one, "a"), (again, "b"))
    assert [seen.partitions for seen in after] == [seen.partitions for seen in before]
    assert (after[0].assignments, after[0].revoked) == (before[0].assignments, before[0].revoked)


@shows(Feature.COOPERATIVE)
@clients("cooperative")
def test_a_cooperative_rebalance_takes_only_what_moves(
    start: Start, wire: raw.Connection, group: str, topic: str
) -> None:
    """KIP-429."""
    program = start()
    for count, member in enumerate(("a", "b"), start=1):
        program.join(member, group, topic, assignor="cooperative-sticky")
        wait_for_shares(*((program, name) for name in ("a", "b")[:count]))
    revoked = [partition for once in program.look("a").revoked for partition in once]
    assert len(revoked) == PARTITIONS // 2
    assert not program.look("b").revoked
    program.leave("b")
    wait_for_shares((program, "a"))
    assert len([partition for once in program.look("a").revoked for partition in once]) == PARTITIONS // 2


def join_two(program: Members, wire: raw.Connection, group: str, topic: str) -> None:
    """Members a and b share the topic and have read three records of each partition."""
    for count, member in enumerate(("a", "b"), start=1):
        program.join(member, group, topic)
        wait_for_shares(*((program, name) for name in ("a", "b")[:count]))
    wait_for_records(produce(wire, topic, 3), (program, "a"), (program, "b"))


@shows(Feature.DESCRIBE_GROUPS)
@clients()
def test_operators_see_groups(start: Start, wire: raw.Connection, group: str, topic: str) -> None:
    program = start()
    join_two(program, wire, group, topic)
    assert program.list_groups()[group] in ("Stable", "")
    until(lambda: program.describe_group(group)[0] == "Stable", lambda: program.describe_group(group))
    owned = program.describe_group(group)[1]
    assert [len(part) for part in owned] == [2, 2]
    assert sorted(partition for part in owned for partition in part) == list(range(PARTITIONS))
    for member in ("a", "b"):
        program.commit(member, f"seen by {member}")
    found = program.committed(group, topic)
    assert {offset for offset, _ in found.values()} == {3}
    assert sorted(metadata for _, metadata in found.values()) == ["seen by a"] * 2 + ["seen by b"] * 2
    for member in ("a", "b"):
        program.leave(member)
    until(lambda: program.describe_group(group) == ("Empty", []), lambda: program.describe_group(group))


@shows(Feature.CHANGE_GROUPS)
@clients("change")
def test_operators_change_groups(start: Start, wire: raw.Connection, group: str, topic: str) -> None:
    program = start()
    join_two(program, wire, group, topic)
    for member in ("a", "b"):
        program.commit(member)
    with pytest.raises(ClientError, match="NON_EMPTY_GROUP"):
        program.delete_group(group)
    for member in ("a", "b"):
        program.leave(member)
    until(lambda: program.describe_group(group) == ("Empty", []), lambda: program.describe_group(group))
    program.set_offsets(group, topic, {0: 1, 1: 0})
    found = program.committed(group, topic)
    assert {partition: offset for partition, (offset, _) in found.items()} == {0: 1, 1: 0, 2: 3, 3: 3}
    program.join("c", group, topic)
    expected = {(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)}
    assert sorted(wait_for_records(expected, (program, "c"))) == sorted(expected)
    program.leave("c")
    program.delete_group(group)
    assert group not in program.list_groups()
    with pytest.raises(ClientError, match="GROUP_ID_NOT_FOUND"):
        program.delete_group(group)


@shows(Feature.TRIM_GROUPS)
@clients("trim")
def test_operators_trim_groups(start: Start, wire: raw.Connection, group: str, topic: str) -> None:
    """Offsets are forgotten one by one, and a static member that will not come back is removed (KIP-496, KIP-345)."""
    program = start()
    written = produce(wire, topic, 3)
    program.join("a", group, topic, instance_id="gone-for-good", session_timeout_ms=20_000)
    wait_for_shares((program, "a"))
    wait_for_records(written, (program, "a"))
    program.commit("a")
    with pytest.raises(ClientError, match="GROUP_SUBSCRIBED_TO_TOPIC"):
        program.delete_offsets(group, topic, 1)
    program.kill()
    other = start()
    assert other.describe_group(group)[1] == [list(range(PARTITIONS))]
    other.remove_member(group, "gone-for-good")
    assert other.describe_group(group) == ("Empty", [])
    with pytest.raises(ClientError, match="UNKNOWN_MEMBER_ID"):
        other.remove_member(group, "never here")
    other.delete_offsets(group, topic, 1)
    assert sorted(other.committed(group, topic)) == [0, 2, 3]


def test_members_of_different_clients_form_one_group(start: Start, wire: raw.Connection, group: str, name: str) -> None:
    """All of them know the range assignor, except kafkajs. None of them may be missing."""
    kinds = [kind for kind in MEMBERS if kind is not KafkajsMembers]
    topic = make_topic(wire, name, partitions=len(kinds))
    members = [(start(kind), "m") for kind in kinds]
    written = produce(wire, topic, 5)
    for number, (program, _) in enumerate(members, start=1):
        program.join("m", group, topic, session_timeout_ms=6_000)
        wait_for_shares(*members[:number], partitions=len(kinds))
    wait_for_records(written, *members)
    for program, _ in members[:-1]:
        program.leave("m")
    wait_for_shares(members[-1], partitions=len(kinds))

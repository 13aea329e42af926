"""Groups of the classic protocol, rule by rule, as Kafka's coordinator has them."""

from random import Random
from typing import Any

import pytest
from tests.support.classic_groups import RANGE, World
from tests.support.consumer_groups import subscription

from levada.core.groups.classic.draft import NEW_MEMBER_JOIN_TIMEOUT_MS
from levada.core.groups.classic.group import State
from levada.core.groups.classic.subscription import write_assignment
from levada.errors import ErrorCode

STICKY = (("sticky", b"s"), ("range", b"r"))


def cooperative(owned: frozenset[int]) -> Any:
    return (("cooperative-sticky", subscription("t", owned={"t": owned})),)


def test_a_member_alone_is_leader_and_gets_its_assignment() -> None:
    world = World()
    reply = world.joined(world.join())
    assert (reply.generation, reply.protocol, reply.leader) == (1, "range", reply.member_id)
    assert [member.id for member in reply.members] == [reply.member_id]
    synced = world.sync(reply.member_id, 1, {reply.member_id: b"mine"})
    assert world.responses[synced].assignment == b"mine"
    assert world.is_in(State.STABLE)
    assert world.heartbeat(reply.member_id, 1) is ErrorCode.NONE


def test_a_second_member_makes_the_first_join_again() -> None:
    world = World()
    (first,) = world.stable()
    second = world.join()
    assert second not in world.responses
    assert world.is_in(State.PREPARING_REBALANCE)
    assert world.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(first)
    assert world.joined(again).generation == world.joined(second).generation == 2
    leader = world.joined(again)
    assert len(leader.members) == 2
    assert world.joined(second).members == ()
    waiting = world.sync(world.joined(second).member_id, 2)
    assert waiting not in world.responses
    world.sync(first, 2, {first: b"1", world.joined(second).member_id: b"2"})
    assert world.responses[waiting].assignment == b"2"


def test_for_members_who_only_wait_the_group_is_not_copied() -> None:
    """Of the requests of a rebalance nearly all are theirs."""
    world = World()
    leader, second, third = world.stable(3)
    world.join(leader)
    group = world.group
    world.join(second)
    assert world.group is group
    assert list(group.pending_joins) == [leader, second]
    world.join(third)
    group, generation = world.group, world.group.generation
    waiting = world.sync(second, generation)
    assert world.group is group
    assert list(group.pending_syncs) == [second]
    world.sync(leader, generation, {second: b"2", third: b"3"})
    assert world.responses[waiting].assignment == b"2"
    group = world.group
    late = world.sync(third, generation)
    assert world.group is group
    assert world.responses[late].assignment == b"3"
    assert not group.pending_sync_members


def test_a_new_member_is_given_its_id_first() -> None:
    """KIP-394: clients that never come back leave no member behind."""
    world = World()
    asked = world.join(require_member_id=True)
    assert world.error(asked) is ErrorCode.MEMBER_ID_REQUIRED
    member_id = world.joined(asked).member_id
    assert world.group.pending_members == {member_id}
    joined = world.join(member_id, require_member_id=True)
    assert world.joined(joined).generation == 1
    assert world.group.pending_members == frozenset()


def test_a_client_that_never_joins_with_its_id_is_forgotten() -> None:
    world = World()
    (first,) = world.stable()
    world.join(require_member_id=True)
    world.heartbeat(first, 1)
    world.wait(9_999)
    world.heartbeat(first, 1)
    assert world.group.pending_members
    world.wait(1)
    assert not world.group.pending_members
    assert world.is_in(State.STABLE)


def test_a_generation_waits_for_a_client_that_was_given_an_id() -> None:
    world = World()
    (first,) = world.stable()
    pending = world.joined(world.join(require_member_id=True)).member_id
    again = world.join(first)
    assert again not in world.responses
    second = world.join(pending, require_member_id=True)
    assert world.joined(again).generation == world.joined(second).generation == 2


def test_the_first_generation_waits_while_members_come() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    first = world.join()
    world.wait(2_900)
    second = world.join()
    world.wait(200)
    assert first not in world.responses, "a member came: the group waits another delay"
    world.wait(2_900)
    assert world.joined(first).generation == world.joined(second).generation == 1


def test_the_first_generation_waits_no_longer_than_the_rebalance_timeout() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    first = world.join(rebalance_timeout_ms=7_000)
    for _ in range(3):
        world.wait(2_000)
        assert first not in world.responses
        world.join(rebalance_timeout_ms=7_000)
    world.wait(1_000)
    assert world.joined(first).generation == 1


def test_a_group_that_was_empty_waits_one_delay_whoever_comes() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    world.join()
    world.wait(70_000)
    assert world.is_in(State.EMPTY)
    first = world.join()
    world.wait(2_900)
    world.join()
    world.wait(100)
    assert world.joined(first).generation == 3


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    world = World()
    assert world.error(world.join(session_timeout_ms=timeout_ms)) is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("other", [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}, {"protocols": ()}])
def test_a_member_that_shares_no_protocol_is_refused(other: dict[str, Any]) -> None:
    world = World()
    world.stable()
    assert world.error(world.join(**other)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.is_in(State.STABLE)


@pytest.mark.parametrize("nothing", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_first_member_must_have_a_protocol(nothing: dict[str, Any]) -> None:
    world = World()
    assert world.error(world.join(**nothing)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.machine.classic_group("g") is None


def test_the_protocol_is_what_all_know_and_most_prefer() -> None:
    world = World()
    (first,) = world.stable(protocols=STICKY)
    assert world.group.protocol == "sticky"
    second = world.join(protocols=RANGE)
    again = world.join(first, protocols=STICKY)
    assert world.joined(again).protocol == world.joined(second).protocol == "range"
    assert [member.metadata for member in world.joined(again).members] == [b"r", b"topics"]


def test_strangers_are_unknown() -> None:
    world = World()
    assert world.error(world.join("nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.error(world.sync("nobody", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave(("nobody", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    world.stable()
    assert world.error(world.join("nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.error(world.sync("nobody", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave(("nobody", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.commit(1, "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_generation_is_illegal() -> None:
    world = World()
    (member,) = world.stable()
    for generation in (0, 2):
        assert world.heartbeat(member, generation) is ErrorCode.ILLEGAL_GENERATION
        assert world.error(world.sync(member, generation)) is ErrorCode.ILLEGAL_GENERATION
        assert world.commit(1, member, generation) is ErrorCode.ILLEGAL_GENERATION


def test_a_sync_with_another_protocol_is_refused() -> None:
    world = World()
    (member,) = world.stable()
    assert world.error(world.sync(member, 1, protocol="sticky")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.error(world.sync(member, 1, protocol_type="x")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.error(world.sync(member, 1, protocol="range", protocol_type="consumer")) is ErrorCode.NONE


def test_a_member_that_repeats_its_join_gets_the_same_generation() -> None:
    world = World()
    leader, follower = world.stable(2)
    generation = world.group.generation
    assert world.joined(world.join(follower)).generation == generation
    assert world.is_in(State.STABLE)
    assert world.join(leader) not in world.responses, "a leader joins to have partitions assigned anew"
    assert world.is_in(State.PREPARING_REBALANCE)


def test_a_member_that_subscribes_to_something_else_starts_a_rebalance() -> None:
    world = World()
    _, follower = world.stable(2)
    world.join(follower, protocols=(("range", b"other topics"),))
    assert world.is_in(State.PREPARING_REBALANCE)


def test_who_asks_for_an_assignment_is_sent_back_when_the_group_rebalances() -> None:
    world = World()
    leader = world.join()
    second = world.join()
    again = world.join(world.joined(leader).member_id)
    waiting = world.sync(world.joined(second).member_id, 2)
    world.join()
    assert world.error(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    late = world.sync(world.joined(again).member_id, 2, {})
    assert world.error(late) is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_expired_member_is_removed() -> None:
    world = World()
    first, second = world.stable(2)
    world.wait(9_000)
    generation = world.group.generation
    assert world.heartbeat(first, generation) is ErrorCode.NONE
    world.wait(1_000)
    assert world.is_in(State.PREPARING_REBALANCE)
    assert set(world.group.members) == {first}
    assert world.heartbeat(second, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.joined(world.join(first)).generation == generation + 1


def test_the_last_member_that_expires_leaves_an_empty_group() -> None:
    world = World()
    world.stable()
    world.wait(10_000)
    assert world.is_in(State.EMPTY)
    assert (world.group.generation, world.group.leader, world.group.protocol) == (2, None, None)


def test_who_waits_for_an_answer_needs_no_heartbeat() -> None:
    world = World()
    first, second = world.stable(2)
    waiting = world.join(first, protocols=(("range", b"changed"),))
    for _ in range(5):
        world.wait(9_000)
        world.heartbeat(second, world.group.generation)
    assert waiting not in world.responses
    assert set(world.group.members) == {first, second}


def test_who_does_not_join_in_time_is_left_behind() -> None:
    world = World()
    first, second = world.stable(2)
    waiting = world.join(first, protocols=(("range", b"changed"),))
    generation = world.group.generation
    for _ in range(12):
        world.wait(5_000)
        world.heartbeat(second, generation)
    assert world.joined(waiting).generation == generation + 1
    assert set(world.group.members) == {first}


def test_a_new_member_that_waits_for_ever_is_removed() -> None:
    world = World()
    (first,) = world.stable(rebalance_timeout_ms=3_600_000)
    waiting = world.join()
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        world.heartbeat(first, 1)
        world.wait(5_000)
    assert world.error(waiting) is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(world.group.members) == {first}


def test_who_never_asks_for_its_assignment_is_removed() -> None:
    world = World()
    first = world.joined(world.join(session_timeout_ms=600_000)).member_id
    for _ in range(61):
        world.heartbeat(first, 1)
        world.wait(1_000)
    assert world.is_in(State.EMPTY)


def test_a_leader_that_fails_is_followed_by_another() -> None:
    world = World()
    leader, follower = world.stable(2)
    assert world.group.leader == leader
    world.leave((leader, None))
    reply = world.joined(world.join(follower))
    assert reply.leader == follower
    assert len(reply.members) == 1


def test_members_leave_one_by_one_or_together() -> None:
    world = World()
    ids = world.stable(3)
    assert world.leave((ids[0], None), ("nobody", None), (ids[1], None)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert set(world.group.members) == {ids[2]}
    assert world.leave((ids[2], None)) == [ErrorCode.NONE]
    assert world.is_in(State.EMPTY)


def test_a_group_takes_no_more_members_than_it_may() -> None:
    world = World(max_size=2)
    ids = world.stable(2)
    assert world.error(world.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joined(world.join(ids[1])).member_id == ids[1]
    world.leave((ids[0], None))
    assert world.joined(world.join(ids[1])).leader == ids[1]
    assert world.join() not in world.responses


def test_a_group_read_back_over_its_size_rebalances_and_goes_on_without_the_last() -> None:
    world = World()
    ids = world.stable(3)
    world.limits = world.limits._replace(max_size=2)
    world.restart()
    assert world.is_in(State.PREPARING_REBALANCE)
    handles = [world.join(member) for member in ids]
    assert world.error(handles[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joined(handles[0]).generation == world.joined(handles[1]).generation
    assert set(world.group.members) == set(ids[:2])


# Static members (KIP-345)


def test_a_static_member_that_restarts_keeps_its_place() -> None:
    world = World()
    (old,) = world.stable(instance_id="one")
    back = world.joined(world.join(instance_id="one"))
    assert back.member_id != old
    assert (back.generation, back.leader, back.skip_assignment) == (1, back.member_id, True)
    assert world.is_in(State.STABLE)
    assert world.responses[world.sync(back.member_id, 1, instance_id="one")].assignment == old.encode()
    assert world.replayed().classic_group("g").members.keys() == {back.member_id}  # type: ignore[union-attr]


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_static_member_that_restarts_before_it_gives_up_partitions_makes_the_group_rebalance(
    gives_up: bool,
) -> None:
    """It was to join again so that others get them (KIP-429); the new process knows nothing of that."""
    world = World()
    had = frozenset({0, 1})
    old = world.joined(world.join(instance_id="one", protocols=cooperative(had))).member_id
    kept = frozenset({0}) if gives_up else had
    world.sync(old, 1, {old: write_assignment(3, {"t": kept})}, instance_id="one")
    back = world.joined(world.join(instance_id="one", protocols=cooperative(frozenset())))
    assert (back.generation, back.skip_assignment) == ((2, False) if gives_up else (1, True))


def test_an_old_client_does_not_learn_that_it_leads() -> None:
    """Before KIP-814 a returning leader would assign again, and nobody would hear of it."""
    world = World()
    (old,) = world.stable(instance_id="one")
    back = world.joined(world.join(instance_id="one", may_skip_assignment=False))
    assert (back.leader, back.members, back.skip_assignment) == (old, (), False)


def test_two_clients_of_one_instance_id_do_not_both_live() -> None:
    world = World()
    (old,) = world.stable(instance_id="one")
    world.join(instance_id="one")
    assert world.heartbeat(old, 1, "one") is ErrorCode.FENCED_INSTANCE_ID
    assert world.error(world.sync(old, 1, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert world.error(world.join(old, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert world.commit(1, old, 1, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID
    assert world.leave((old, "one")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.heartbeat("x", 1, "two") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_whose_join_waits_is_fenced_by_its_successor() -> None:
    world = World()
    world.stable(1)
    waiting = world.join(instance_id="one")
    successor = world.join(instance_id="one")
    assert world.error(waiting) is ErrorCode.FENCED_INSTANCE_ID
    assert successor not in world.responses


def test_a_static_member_that_returns_while_the_leader_assigns_starts_over() -> None:
    world = World()
    first = world.join(instance_id="one")
    second = world.join(instance_id="two")
    world.join(world.joined(first).member_id, instance_id="one")
    assert world.is_in(State.COMPLETING_REBALANCE)
    back = world.join(instance_id="two")
    assert world.is_in(State.PREPARING_REBALANCE)
    again = world.join(world.joined(first).member_id, instance_id="one")
    assert world.joined(again).generation == world.joined(back).generation == 3
    assert world.joined(second).member_id not in world.group.members


@pytest.mark.parametrize("seed", range(50))
def test_a_session_ends_a_moment_after_its_time_and_never_before(seed: int) -> None:
    """However often the member is heard of, by heartbeats or commits."""
    random, world = Random(seed), World()
    (member_id,) = world.stable(session_timeout_ms=10_000)
    renewed_ms = world.now_ms
    for _ in range(random.randrange(1, 200)):
        world.wait(random.choice((0, 1, 7, 49, 50, 51, 400, 9_999)))
        error = random.choice((world.heartbeat, lambda *member: world.commit(5, *member)))(member_id, 1)
        assert error is ErrorCode.NONE
        renewed_ms = world.now_ms
    world.wait(10_000 - 1)
    assert member_id in world.group.members
    world.wait(1)
    assert not world.group.members, f"{world.now_ms - renewed_ms} ms later"


def test_a_static_member_is_not_left_behind_but_its_session_ends() -> None:
    world = World()
    handles = [world.join(instance_id=name, session_timeout_ms=120_000) for name in ("one", "two")]
    first = world.joined(handles[0]).member_id
    leader = world.joined(world.join(first, instance_id="one", session_timeout_ms=120_000))
    second = world.joined(handles[1]).member_id
    world.sync(second, leader.generation, instance_id="two")
    world.sync(first, leader.generation, {first: b"1", second: b"2"}, instance_id="one")
    again = world.join(first, instance_id="one", session_timeout_ms=120_000)
    world.wait(60_000)
    assert world.joined(again).generation == leader.generation + 1
    assert {member.id for member in world.joined(again).members} == {first, second}


def test_a_static_member_does_not_leave_by_closing_but_an_operator_can_remove_it() -> None:
    world = World()
    (member,) = world.stable(instance_id="one")
    assert world.leave(("", "nobody")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.leave(("", "one")) == [ErrorCode.NONE]
    assert world.is_in(State.EMPTY)
    assert world.heartbeat(member, 1, "one") is ErrorCode.UNKNOWN_MEMBER_ID


# What survives


def test_a_stable_generation_survives_a_restart() -> None:
    world = World()
    ids = world.stable(3)
    generation = world.group.generation
    world.restart()
    assert world.is_in(State.STABLE)
    assert world.group.generation == generation
    assert {member.id: member.assignment for member in world.group.members.values()} == {
        one: one.encode() for one in ids
    }
    for one in ids:
        assert world.heartbeat(one, generation) is ErrorCode.NONE
    world.wait(10_000)
    assert world.is_in(State.EMPTY)


def test_a_generation_that_was_only_begun_does_not_survive() -> None:
    world = World()
    (first,) = world.stable()
    second = world.join()
    world.joined(world.join(first))
    assert world.group.generation == 2
    world.restart()
    assert (world.group.generation, set(world.group.members)) == (1, {first})
    assert world.error(world.sync(world.joined(second).member_id, 2)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_a_group_read_back_have_a_session_to_come_back() -> None:
    world = World()
    (member,) = world.stable()
    world.wait(9_000)
    world.restart()
    world.wait(9_999)
    assert world.heartbeat(member, 1) is ErrorCode.NONE

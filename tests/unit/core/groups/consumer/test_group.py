"""Groups of the consumer protocol (KIP-848), rule by rule; invariants are in test_random."""

import itertools
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.support.consumer_groups import ConsumerWorld, subscription

from levada.core.groups.classic.draft import SyncResult
from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.classic.subscription import read_assignment, write_assignment
from levada.core.groups.consumer.draft import REFRESH_S_MAX, ConsumerLimits, ConsumerRecord
from levada.core.groups.consumer.group import GroupState
from levada.core.groups.consumer.member import MemberState
from levada.core.groups.consumer.requests import HeartbeatResult
from levada.core.groups.machine import EXPIRIES_MAX, GroupsMachine
from levada.core.machine import Outcome
from levada.core.patterns import MATCHING_S_MAX
from levada.errors import ErrorCode, KafkaError


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


def assigned(reply: HeartbeatResult) -> dict[UUID, set[int]] | None:
    """What a member was told to read."""
    if reply.assignment is None:
        return None
    return {topic: set(partitions) for topic, partitions in reply.assignment.items()}


def topic_of(world: ConsumerWorld, name: str) -> UUID:
    return world.image.topics[name].id


def cooperative(world: ConsumerWorld, *topics: str, owned: dict[str, frozenset[int]] | None = None) -> Any:
    return (("cooperative-sticky", subscription(*topics, owned=owned)),)


# Joining and reading.


def test_a_member_alone_gets_everything_at_once(world: ConsumerWorld) -> None:
    world.topic("t", 3)
    reply = world.enter("a", "t")
    assert reply.member_epoch == 1 and reply.heartbeat_interval_ms == 5_000
    assert assigned(reply) == {topic_of(world, "t"): {0, 1, 2}}
    assert world.consumers.state is GroupState.STABLE
    assert world.stay("a", 1).assignment is None, "nothing new"


def test_a_partition_changes_hands_only_when_it_is_given_back(world: ConsumerWorld) -> None:
    topic = world.topic("t", 4)
    world.enter("a", "t")
    joined = world.enter("b", "t")
    assert assigned(joined) == {} and joined.member_epoch == 2
    asked = world.stay("a", 1)
    assert asked.member_epoch == 1 and assigned(asked) == {topic: {0, 1}}
    assert world.stay("b", 2).assignment is None, "a has not given them back"
    assert world.stay("a", 1, owned={topic: frozenset({0, 1, 2})}).member_epoch == 1
    assert world.stay("a", 1, owned={topic: frozenset({0, 1})}).member_epoch == 2
    assert assigned(world.stay("b", 2)) == {topic: {2, 3}}
    assert world.consumers.state is GroupState.STABLE


def test_a_member_that_does_not_give_back_in_time_is_removed(world: ConsumerWorld) -> None:
    world.topic("t", 4)
    world.enter("a", "t", rebalance_timeout_ms=10_000)
    world.enter("b", "t")
    world.stay("a", 1)
    assert world.consumers.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    for _ in range(3):
        world.wait(3_000)
        world.stay("a", 1)
        world.stay("b", 2)
    world.wait(2_000)
    assert world.refused("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    world.settle("b")
    assert world.reads("b") == {"t": [0, 1, 2, 3]}


def test_a_silent_member_is_removed_after_the_session_timeout(world: ConsumerWorld) -> None:
    world.topic("t", 2)
    world.enter("a", "t")
    world.enter("b", "t")
    world.settle("a", "b")
    for _ in range(9):
        world.wait(5_000)
        world.stay("b", world.consumers.members["b"].epoch)
    assert "a" not in world.consumers.members
    world.settle("b")
    assert world.reads("b") == {"t": [0, 1]}


def test_many_members_that_fall_silent_are_removed_in_pieces_that_fit_a_batch(world: ConsumerWorld) -> None:
    world.topic("t", 10)
    for number in range(250):
        world.enter(f"m{number}", "t")
    world.now_ms += 45_000
    outcome = world.machine.expire(world.now_ms)
    assert sum(isinstance(event, ConsumerRecord) for event in outcome.events) == 3 * EXPIRIES_MAX + 1
    assert world.machine.next_deadline_ms() == world.now_ms + 1, "the rest comes a moment later"
    world.wait(1_000)
    assert world.consumers.is_empty and same(world.replayed(), world.machine)


def test_leaving_frees_partitions_at_once(world: ConsumerWorld) -> None:
    topic = world.topic("t", 2)
    world.enter("a", "t")
    world.enter("b", "t")
    world.settle("a", "b")
    left = world.received(world.beat("a", -1))
    assert left.member_epoch == -1 and left.assignment is None
    assert assigned(world.stay("b", 2)) == {topic: {0, 1}}
    world.beat("b", -1)
    assert world.consumers.state is GroupState.EMPTY
    assert world.consumers.evaluated_topics is None, "a group without members keeps no topics"
    assert world.refused("b", 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_assignor_that_most_members_ask_for_divides(world: ConsumerWorld) -> None:
    world.topic("t", 4)
    world.topic("u", 4)
    for member in ("a", "b"):
        world.enter(member, "t", "u", server_assignor="range")
    world.enter("c", "t", "u", server_assignor="uniform")
    world.beat("c", -1)
    world.settle("a", "b")
    assert world.reads("a") == {"t": [0, 1], "u": [0, 1]}
    assert world.consumers.assignor("uniform") == "range"


def test_the_first_assignor_is_the_default() -> None:
    world = ConsumerWorld(ConsumerLimits(assignors=("range",)))
    world.topic("t", 4)
    assert world.refused("a", topic_names=("t",), rebalance_timeout_ms=1, owned={}, server_assignor="uniform") is (
        ErrorCode.UNSUPPORTED_ASSIGNOR
    )
    world.enter("b", "t")
    world.enter("a", "t")
    world.settle("a", "b")
    assert world.reads("a") == {"t": [0, 1]}


# Topics.


def test_topics_that_appear_grow_and_go_are_followed_with_heartbeats(world: ConsumerWorld) -> None:
    assert assigned(world.enter("a", "t")) == {}
    world.topic("t", 1)
    first = world.stay("a", 1)
    assert assigned(first) == {topic_of(world, "t"): {0}} and first.member_epoch == 2
    world.topic("t", 3)
    assert assigned(world.stay("a", 2)) == {topic_of(world, "t"): {0, 1, 2}}
    world.topic("other", 3)
    assert world.stay("a", 3).assignment is None
    gone = topic_of(world, "t")
    world.drop_topic("t")
    assert assigned(world.stay("a", 3)) == {}
    world.topic("t", 1)
    assert world.stay("a", 3, owned={gone: frozenset({0})}).member_epoch == 3
    world.settle("a")
    assert world.reads("a") == {"t": [0]}
    assert topic_of(world, "t") != gone


def test_a_member_that_changes_its_subscription_gives_the_rest_back(world: ConsumerWorld) -> None:
    topic, other = world.topic("t", 1), world.topic("u", 1)
    world.enter("a", "t", "u")
    changed = world.stay("a", 1, topic_names=("u",))
    assert assigned(changed) == {other: {0}} and changed.member_epoch == 1
    assert world.stay("a", 1, owned={other: frozenset({0}), topic: frozenset({0})}).member_epoch == 1
    assert world.stay("a", 1, owned={other: frozenset({0})}).member_epoch == 2


# Patterns.


def test_a_pattern_is_matched_with_topics_as_they_come_and_go(world: ConsumerWorld) -> None:
    eu = world.topic("orders-eu", 1)
    world.topic("x", 1)
    reply = world.enter("a", topic_regex="orders-.*", topic_names=None)
    assert assigned(reply) == {eu: {0}}
    us = world.topic("orders-us", 1)
    assert assigned(world.stay("a", 1)) == {eu: {0}, us: {0}}
    world.drop_topic("orders-eu")
    assert assigned(world.stay("a", 2)) == {us: {0}}
    assert world.consumers.regexes["orders-.*"].topics == ("orders-us",)
    world.enter("b", "x")
    world.beat("a", -1)
    assert world.consumers.regexes == {}, "nobody subscribes to it"


def test_names_and_a_pattern_together(world: ConsumerWorld) -> None:
    world.topic("a-1", 1)
    world.topic("x", 1)
    world.enter("a", "x", topic_regex="a-.*")
    assert world.reads("a") == {"a-1": [0], "x": [0]}
    world.stay("a", 1, topic_regex="")
    world.settle("a")
    assert world.reads("a") == {"x": [0]} and world.consumers.regexes == {}


@pytest.mark.parametrize("regex", ["(", "a**", "(?=a)", r"(a)\1", "((a{1000}){1000}){1000}"])
def test_a_bad_pattern_is_refused_and_leaves_no_trace(world: ConsumerWorld, regex: str) -> None:
    full: dict[str, Any] = {"rebalance_timeout_ms": 1, "owned": {}, "topic_regex": regex}
    assert world.refused("a", **full) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "g" not in world.machine.groups
    world.enter("a", "t")
    assert world.refused("a", 1, topic_regex=regex) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.stay("a", 1).assignment is None


def test_a_pattern_that_takes_too_long_with_new_topics_does_not_fail_the_heartbeat(world: ConsumerWorld) -> None:
    world.enter("a", topic_names=None, topic_regex="slow.*")
    world.machine.cpu_time = float_clock(MATCHING_S_MAX)
    for number in range(10):
        world.topic(f"slow-{number}", 1)
    assert world.stay("a", 1).member_epoch == 1
    assert world.consumers.subscribed_topics() == set()


def test_the_patterns_of_a_group_have_one_limit_of_cpu_time(world: ConsumerWorld) -> None:
    """Every member has its own, and a new topic is matched with all of them in one request."""
    for number in range(20):
        world.enter(f"m-{number}", topic_names=None, topic_regex=f"t|x{number}")
    world.machine.cpu_time = float_clock(MATCHING_S_MAX / 2)
    world.topic("t", 1)
    world.stay("m-0", 1)
    found = [len(resolved.topics) for resolved in world.consumers.regexes.values()]
    assert len(found) == 20
    assert 1 <= sum(found) <= 2 * REFRESH_S_MAX / MATCHING_S_MAX


def test_deleted_topics_are_removed_from_patterns_that_take_too_long(world: ConsumerWorld) -> None:
    world.topic("old", 1)
    world.enter("a", topic_names=None, topic_regex="new|old")
    assert world.consumers.subscribed_topics() == {"old"}
    world.machine.cpu_time = float_clock(2 * MATCHING_S_MAX)
    world.drop_topic("old")
    world.topic("new", 1)
    world.stay("a", 1)
    assert world.consumers.subscribed_topics() == set(), "the new topic is not matched, and the old one is gone"


def float_clock(step: float) -> Callable[[], float]:
    """CPU time that advances by a step at each call."""
    spent = itertools.count(0, step)
    return lambda: float(next(spent))


# Who may speak.


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": {UUID(int=9): frozenset({0})}},
        {"topic_names": None},
        {"epoch": -2},
        {"epoch": -3},
    ],
)
def test_requests_that_are_wrong_whatever_the_group(world: ConsumerWorld, wrong: dict[str, Any]) -> None:
    full: dict[str, Any] = {"rebalance_timeout_ms": 1, "owned": {}, "topic_names": ("t",), **wrong}
    assert world.refused("a", **full) is ErrorCode.INVALID_REQUEST


def test_a_group_that_is_not_there(world: ConsumerWorld) -> None:
    assert world.refused("a", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.refused("a", -1) is ErrorCode.GROUP_ID_NOT_FOUND


def test_members_of_other_epochs_are_fenced(world: ConsumerWorld) -> None:
    topic = world.topic("t", 2)
    world.enter("a", "t")
    assert world.refused("a", 2) is ErrorCode.FENCED_MEMBER_EPOCH
    world.enter("b", "t")
    world.settle("a", "b")
    epoch = world.consumers.members["a"].epoch
    assert world.refused("a", epoch - 1) is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it reads"
    missed = world.stay("a", epoch - 1, owned={topic: frozenset({0})})
    assert missed.member_epoch == epoch, "it only missed the answer"
    more = {topic: frozenset({0, 1})}
    assert world.refused("a", epoch - 1, owned=more) is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.refused("z", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_starts_over_gets_everything(world: ConsumerWorld) -> None:
    topic = world.topic("t", 2)
    world.enter("a", "t")
    world.enter("b", "t")
    world.stay("a", 1)  # it shall give one back
    again = world.enter("a", "t")
    assert again.member_epoch == 2 and assigned(again) == {topic: {0}}
    assert assigned(world.stay("b", 2)) == {topic: {1}}


def test_a_full_group_takes_nobody() -> None:
    world = ConsumerWorld(ConsumerLimits(max_size=1))
    world.enter("a", "t")
    full: dict[str, Any] = {"rebalance_timeout_ms": 1, "owned": {}, "topic_names": ("t",)}
    assert world.refused("b", **full) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.stay("a", 1).member_epoch == 1


# Static members.


def test_a_static_member_comes_back_to_what_it_had(world: ConsumerWorld) -> None:
    topic = world.topic("t", 2)
    world.enter("a", "t", instance_id="one")
    world.enter("b", "t")
    world.settle("a", "b")
    had = world.reads("a")
    assert world.received(world.beat("a", -2, instance_id="one")).member_epoch == -2
    assert world.stay("b", 2).assignment is None, "its place is kept"
    back = world.enter("c", "t", instance_id="one")
    assert assigned(back) == {topic: set(had["t"])} and back.member_epoch == 2
    assert "a" not in world.consumers.members and world.consumers.epoch == 2
    assert world.refused("a", 2, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_does_not_come_back_is_removed(world: ConsumerWorld) -> None:
    world.topic("t", 2)
    world.enter("a", "t", instance_id="one")
    world.beat("a", -2, instance_id="one")
    world.wait(45_000)
    assert world.consumers.is_empty


def test_an_instance_id_in_use_is_not_given_away(world: ConsumerWorld) -> None:
    world.enter("a", "t", instance_id="one")
    full: dict[str, Any] = {
        "rebalance_timeout_ms": 1,
        "owned": {},
        "topic_names": ("t",),
        "instance_id": "one",
    }
    assert world.refused("b", **full) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.refused("b", 1, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID
    assert world.refused("a", 1, instance_id="two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.refused("b", -1, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID
    assert world.received(world.beat("a", -1, instance_id="one")).member_epoch == -1


# Offsets.


def test_offsets_are_committed_by_members_in_their_epoch(world: ConsumerWorld) -> None:
    world.topic("t", 2)
    world.enter("a", "t")
    assert world.commit(1, "a", 1, api_version=9) is ErrorCode.NONE
    assert world.commit(2, "a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit(2, "z", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(2, "a", 1, api_version=8) is ErrorCode.UNSUPPORTED_VERSION
    world.enter("b", "t")
    world.settle("a", "b")
    assert world.commit(3, "a", 1, ("t", 0)) is ErrorCode.NONE, "it has had this one since epoch 1"
    assert world.commit(3, "a", 1, ("t", 1)) is ErrorCode.STALE_MEMBER_EPOCH, "this one is another's"
    assert world.commit(3, "b", 1, ("t", 1)) is ErrorCode.STALE_MEMBER_EPOCH, "this one it got in epoch 2"
    assert world.committed() == 3
    world.beat("a", -1)
    world.beat("b", -1)
    assert world.commit(5) is ErrorCode.NONE, "nobody is in the group"


def test_offsets_are_read_by_members_in_their_epoch_and_by_anybody_else(world: ConsumerWorld) -> None:
    world.enter("a", "t")
    world.machine.fetch("g", [("t", 0)], require_stable=False)
    world.machine.fetch("g", [("t", 0)], require_stable=False, member_id="a", member_epoch=1)
    for member_id, epoch, code in (
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("z", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as caught:
            world.machine.fetch("g", [("t", 0)], require_stable=False, member_id=member_id, member_epoch=epoch)
        assert caught.value.code is code


def test_offsets_of_topics_in_use_stay() -> None:
    world = ConsumerWorld(ConsumerLimits(session_timeout_ms=1_000_000_000))
    world.topic("t", 1)
    world.enter("a", "t")
    world.commit(1, "a", 1)
    handle = world.submit(lambda machine, _, mine: machine.delete_offsets("g", [("t", 0), ("u", 0)], mine))
    assert world.responses[handle] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    world.wait(900_000_000)
    assert world.committed() == 1
    world.beat("a", -1)
    world.wait(700_000_000)
    assert world.committed() is None and "g" not in world.machine.groups
    assert world.replayed().groups == {}


def test_a_group_with_members_is_not_deleted(world: ConsumerWorld) -> None:
    world.enter("a", "t")
    handle = world.submit(lambda machine, _, mine: Outcome(machine.delete_group("g"), [(mine, None)]))
    assert world.error(handle) is ErrorCode.NON_EMPTY_GROUP
    world.beat("a", -1)
    world.commit(1)
    world.submit(lambda machine, _, mine: Outcome(machine.delete_group("g"), [(mine, None)]))
    assert world.machine.groups == {} and world.replayed().groups == {}


# The journal.


def same(machine: GroupsMachine, other: GroupsMachine) -> bool:
    return machine.groups == other.groups


def test_the_journal_gives_the_group_back(world: ConsumerWorld) -> None:
    world.topic("t", 5)
    world.topic("x-1", 2)
    world.enter("a", "t", instance_id="one", rack_id="r1")
    world.enter("b", "t", topic_regex="x.*")
    world.stay("a", 1)
    assert same(world.replayed(), world.machine)
    world.restart()
    assert world.consumers.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    world.settle("a", "b")
    assert same(world.replayed(), world.machine)


def test_after_a_restart_members_have_their_time(world: ConsumerWorld) -> None:
    world.topic("t", 2)
    world.enter("a", "t", rebalance_timeout_ms=20_000)
    world.enter("b", "t", rebalance_timeout_ms=20_000)
    world.stay("a", 1)
    world.wait(15_000)
    world.restart()
    world.wait(15_000)
    world.stay("b", 2)
    world.stay("a", 1)
    world.wait(10_000)
    assert world.consumers.members.keys() == {"b"}, "it had its rebalance timeout, and not more"
    world.wait(45_000)
    assert world.consumers.is_empty


def test_a_journal_that_was_compacted_gives_the_same_back(world: ConsumerWorld) -> None:
    """Of each key the newest record stays, at its place; the rest may be gone up to any point."""
    world.topic("t", 6)
    world.enter("a", "t")
    world.enter("b", "t", instance_id="one")
    world.settle("a", "b")
    world.beat("b", -2, instance_id="one")
    world.enter("c", "t", instance_id="one")
    world.settle("a", "c")
    world.beat("a", -1)
    world.settle("c")
    compact_at_every_point(world)


def compact_at_every_point(world: ConsumerWorld) -> None:
    whole = list(world.journal)
    for point in range(len(whole) + 1):
        newest = {key: place for place, ((key, _), _) in enumerate(whole[:point])}
        for keep_tombstones in (True, False):
            world.journal = [
                entry
                for place, entry in enumerate(whole)
                if place >= point or (newest[entry[0][0]] == place and (keep_tombstones or entry[0][1] is not None))
            ]
            assert same(world.replayed(), world.machine), point
    world.journal = whole


# Between the protocols.


def classic_group(world: ConsumerWorld, count: int) -> list[str]:
    """A stable classic group whose members share topic t, two partitions each."""
    world.topic("t", 2 * count)
    protocols = (("range", subscription("t")),)
    for _ in range(count):
        world.join(protocols=protocols)
    for member_id in list(world.group.members):
        world.join(member_id, protocols=protocols)
    ids = list(world.group.members)
    assert world.is_in(State.COMPLETING_REBALANCE)
    assignments = {
        member_id: write_assignment(3, {"t": frozenset({2 * position, 2 * position + 1})})
        for position, member_id in enumerate(ids)
    }
    for member_id in ids:
        world.sync(member_id, world.group.generation, assignments if member_id == world.group.leader else {})
    assert world.is_in(State.STABLE)
    return ids


def test_a_classic_group_is_upgraded_by_its_first_member_of_the_new_protocol(world: ConsumerWorld) -> None:
    ids = classic_group(world, 2)
    topic, generation = topic_of(world, "t"), world.group.generation
    joined = world.enter("new", "t")
    group = world.consumers
    assert assigned(joined) == {} and joined.member_epoch == group.epoch == generation + 1
    assert set(group.members) == {*ids, "new"} and group.members[ids[0]].is_classic
    assert [sorted(group.members[one].assigned[topic]) for one in ids] == [[0, 1], [2, 3]]
    assert same(world.replayed(), world.machine)
    for member_id in ids:
        assert world.heartbeat(member_id, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        go_on(world, member_id, frozenset(group.members[member_id].assigned[topic]), generation + 1)
    world.settle("new")
    read = [one for member in world.consumers.members.values() for one in member.assigned.get(topic, ())]
    assert sorted(read) == [0, 1, 2, 3] and world.consumers.state is GroupState.STABLE


def go_on(world: ConsumerWorld, member_id: str, reads: frozenset[int], epoch: int) -> None:
    """A cooperative member joins until it is where the group is: it reads only what it is told."""
    for _ in range(3):
        protocols = (("range", subscription("t", owned={"t": reads})),)
        generation = world.joined(world.join(member_id, protocols=protocols)).generation
        reads &= assigned_partitions(world, world.sync(member_id, generation))
        if generation == epoch:
            return
    raise AssertionError("it does not arrive")


def assigned_partitions(world: ConsumerWorld, handle: int) -> frozenset[int]:
    reply = world.responses[handle]
    assert isinstance(reply, SyncResult), reply
    assignment = read_assignment(reply.assignment)
    assert assignment is not None
    return assignment.partitions.get("t", frozenset())


def test_a_group_goes_back_when_the_last_member_of_the_new_protocol_leaves(world: ConsumerWorld) -> None:
    world.topic("t", 4)
    world.enter("new", "t")
    old = world.joined(world.join(protocols=cooperative(world, "t")))
    assert world.consumers.members[old.member_id].is_classic and old.leader == ""
    world.settle("new")
    world.beat("new", -1)
    assert world.is_classic
    group = world.group
    assert group.state is State.PREPARING_REBALANCE and list(group.members) == [old.member_id]
    assert group.protocol_type == "consumer" and group.generation == 2
    again = world.joined(world.join(old.member_id, protocols=cooperative(world, "t")))
    assert again.leader == old.member_id and again.generation == 3
    restored = world.replayed().groups["g"]
    assert isinstance(restored, ClassicGroup) and restored.state is State.STABLE
    assert read_assignment(restored.members[old.member_id].assignment) is not None


def test_a_group_also_goes_back_when_its_last_new_member_falls_silent(world: ConsumerWorld) -> None:
    world.topic("t", 4)
    world.enter("new", "t")
    old = world.joined(world.join(protocols=cooperative(world, "t"), session_timeout_ms=60_000))
    world.sync(old.member_id, old.generation)
    world.wait(45_000)
    assert world.is_classic and list(world.group.members) == [old.member_id]


def test_a_static_member_comes_back_with_the_old_protocol(world: ConsumerWorld) -> None:
    world.topic("t", 4)
    world.enter("new", "t", instance_id="one")
    reply = world.joined(world.join(instance_id="one", protocols=cooperative(world, "t")))
    assert world.is_classic
    assert world.group.state is State.STABLE and world.group.static_members == {"one": reply.member_id}
    assert reply.generation == world.group.generation
    assert world.heartbeat(reply.member_id, reply.generation, "one") is ErrorCode.NONE


def test_a_classic_member_follows_the_group_step_by_step(world: ConsumerWorld) -> None:
    world.topic("t", 4)
    world.enter("new", "t")
    old = world.joined(world.join(protocols=cooperative(world, "t")))
    assert assigned_partitions(world, world.sync(old.member_id, old.generation)) == frozenset()
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.NONE, "it waits for the other"
    world.settle("new")
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.joined(world.join(old.member_id, protocols=cooperative(world, "t")))
    assert again.generation == old.generation
    assert assigned_partitions(world, world.sync(old.member_id, old.generation)) == frozenset({2, 3})
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.NONE
    assert world.commit(1, old.member_id, old.generation, api_version=8) is ErrorCode.NONE
    assert world.commit(1, old.member_id, 7, api_version=8) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(old.member_id, 7) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("new", 2) is ErrorCode.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
    assert world.leave((old.member_id, None), ("z", None)) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    world.settle("new")
    assert world.reads("new") == {"t": [0, 1, 2, 3]}


@pytest.mark.parametrize("silent_after", ["join", "heartbeat"])
def test_a_classic_member_that_does_not_go_on_is_removed(world: ConsumerWorld, silent_after: str) -> None:
    world.topic("t", 4)
    world.enter("new", "t")
    old = world.joined(world.join(protocols=cooperative(world, "t"), rebalance_timeout_ms=8_000))
    if silent_after == "heartbeat":
        world.sync(old.member_id, old.generation)
        world.settle("new")
    for _ in range(3):
        world.heartbeat(old.member_id, old.generation)
        world.stay("new", world.consumers.members["new"].epoch)
        world.wait(3_000)
    assert list(world.consumers.members) == ["new"]


def test_a_first_join_is_given_an_id(world: ConsumerWorld) -> None:
    world.enter("new", "t")
    handle = world.join(protocols=cooperative(world, "t"), require_member_id=True)
    assert world.error(handle) is ErrorCode.MEMBER_ID_REQUIRED
    given = world.joined(handle).member_id
    assert world.joined(world.join(given, protocols=cooperative(world, "t"))).member_id == given


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocols": ()}, {"protocols": (("range", b"\0"),)}])
def test_classic_members_that_do_not_fit_are_refused(world: ConsumerWorld, wrong: dict[str, Any]) -> None:
    world.enter("new", "t")
    assert world.error(world.join(**wrong)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_must_have_a_protocol_in_common(world: ConsumerWorld) -> None:
    world.enter("new", "t")
    world.join(protocols=(("range", subscription("t")),))
    other = world.join(protocols=(("sticky", subscription("t")),))
    assert world.error(other) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(("upgrade", "downgrade"), [(False, True), (True, False)])
def test_the_migration_policy_is_kept(upgrade: bool, downgrade: bool) -> None:
    world = ConsumerWorld(ConsumerLimits(upgrade=upgrade, downgrade=downgrade))
    world.topic("t", 2)
    if not upgrade:
        world.stable(1, protocols=cooperative(world, "t"))
        full: dict[str, Any] = {"rebalance_timeout_ms": 1, "owned": {}, "topic_names": ("t",)}
        assert world.refused("new", **full) is ErrorCode.GROUP_ID_NOT_FOUND
        assert world.is_classic and world.is_in(State.STABLE)
    else:
        world.enter("new", "t")
        world.join(protocols=cooperative(world, "t"))
        world.beat("new", -1)
        assert not world.is_classic


def test_groups_that_are_no_consumers_are_not_upgraded(world: ConsumerWorld) -> None:
    world.stable(1, protocol_type="connect", protocols=(("v1", b"x"),))
    full: dict[str, Any] = {"rebalance_timeout_ms": 1, "owned": {}, "topic_names": ("t",)}
    assert world.refused("new", **full) is ErrorCode.GROUP_ID_NOT_FOUND


def test_empty_groups_change_their_protocol_freely() -> None:
    world = ConsumerWorld(ConsumerLimits(upgrade=False, downgrade=False))
    world.commit(7)
    world.enter("new", "t")
    assert world.committed() == 7
    world.beat("new", -1)
    ids = world.stable(1, protocols=(("range", subscription("t")),))
    assert world.is_classic and world.committed() == 7
    assert isinstance(world.replayed().groups["g"], ClassicGroup)
    world.leave((ids[0], None))
    world.enter("new", "t")
    assert same(world.replayed(), world.machine) and world.committed() == 7


def test_a_group_that_changed_its_protocol_twice_leaves_nothing_behind(world: ConsumerWorld) -> None:
    ids = classic_group(world, 2)
    world.enter("new", "t", topic_regex="t.*")
    world.beat("new", -1)
    assert world.is_classic
    for member_id in ids:
        world.leave((member_id, None))
    compact_at_every_point(world)
    world.enter("newer", "t")
    compact_at_every_point(world)


def test_an_upgrade_tells_those_who_wait(world: ConsumerWorld) -> None:
    ids = classic_group(world, 2)
    waiting = world.join(ids[0], protocols=(("range", subscription("t", "u")),))
    assert waiting not in world.responses
    world.enter("new", "t")
    assert world.error(waiting) is ErrorCode.REBALANCE_IN_PROGRESS


def test_what_a_cooperative_member_reads_through_a_rebalance_is_its_own_after_an_upgrade(
    world: ConsumerWorld,
) -> None:
    """While a generation begins the group knows no assignment, but the member reads on what it said it has."""
    world.topic("t", 2)
    reads = cooperative(world, "t", owned={"t": frozenset({0, 1})})
    leaver = world.joined(world.join(protocols=cooperative(world, "t"))).member_id
    joining = world.join(protocols=reads)
    world.join(leaver, protocols=cooperative(world, "t"))
    reader = world.joined(joining)
    assert world.is_in(State.COMPLETING_REBALANCE)
    world.leave((leaver, None))
    assert assigned(world.enter("new", "t")) == {}, "it waits until the other has given something up"
    assert world.reads(reader.member_id) == {"t": [0, 1]}
    world.stay("new", world.consumers.epoch)
    assert world.reads("new") == {}


def test_what_a_cooperative_member_is_to_give_up_is_its_own_until_it_joins_again(
    world: ConsumerWorld,
) -> None:
    world.topic("t", 2)
    member = world.joined(world.join(protocols=cooperative(world, "t", owned={"t": frozenset({0, 1})})))
    world.sync(member.member_id, 1, {member.member_id: write_assignment(3, {"t": frozenset({0})})})
    world.enter("new", "t")
    assert world.reads(member.member_id) == {"t": [0, 1]} and world.reads("new") == {}
    rejoined = world.joined(
        world.join(member.member_id, protocols=cooperative(world, "t", owned={"t": frozenset({0})}))
    )
    assert rejoined.generation == world.consumers.epoch
    world.stay("new", world.consumers.epoch)
    assert world.reads(member.member_id) == {"t": [0]} and world.reads("new") == {"t": [1]}


def test_a_group_that_goes_back_halfway_to_its_target_rebalances(world: ConsumerWorld) -> None:
    """A member that waited for partitions is told of them only if it joins again."""
    world.topic("t", 4)
    world.enter("new", "t", instance_id="one")
    waits = world.joined(world.join(protocols=cooperative(world, "t")))
    assert assigned_partitions(world, world.sync(waits.member_id, waits.generation)) == frozenset()
    world.beat("new", -2, instance_id="one")
    world.join(instance_id="one", protocols=cooperative(world, "t"))
    assert world.is_classic and world.is_in(State.PREPARING_REBALANCE)
    assert world.heartbeat(waits.member_id, waits.generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_that_went_back_rebalances_also_after_a_restart(world: ConsumerWorld) -> None:
    """What the last member of the new protocol read is nobody's until the others have joined again."""
    world.topic("t", 4)
    world.enter("new", "t")
    old = world.joined(world.join(protocols=cooperative(world, "t")))
    world.settle("new")
    world.beat("new", -1)
    world.restart()
    assert world.is_classic and world.is_in(State.PREPARING_REBALANCE)
    assert world.heartbeat(old.member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.joined(world.join(old.member_id, protocols=cooperative(world, "t")))
    assert (again.leader, again.generation) == (old.member_id, 3)

"""Assignors: every partition once, only subscribed topics, balanced, few moves."""

from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.core.groups.consumer.assignors import (
    ASSIGNORS,
    NO_PARTITIONS,
    Assignment,
    Partitions,
    Subscriber,
    assign_range,
    assign_uniform,
)

A, B, C, D = (UUID(int=number) for number in range(1, 5))
TOPICS = [A, B, C, D]


def subscriber(*topics: UUID, assigned: Partitions = NO_PARTITIONS, instance_id: str | None = None) -> Subscriber:
    return Subscriber(frozenset(topics), assigned, instance_id)


def parts(assigned: Mapping[UUID, frozenset[int]]) -> set[tuple[UUID, int]]:
    return {(topic, partition) for topic, partitions in assigned.items() for partition in partitions}


def loads(assignment: Assignment) -> dict[str, int]:
    return {member: len(parts(assigned)) for member, assigned in assignment.items()}


def check(members: Mapping[str, Subscriber], sizes: Mapping[UUID, int], assignment: Assignment) -> None:
    assert assignment.keys() == members.keys()
    given_out = [part for assigned in assignment.values() for part in parts(assigned)]
    assert len(given_out) == len(set(given_out)), "a partition has two members"
    subscribed = {topic for member in members.values() for topic in member.topics}
    assert set(given_out) == {(topic, index) for topic in subscribed for index in range(sizes.get(topic, 0))}, (
        "a partition has no member"
    )
    for member, assigned in assignment.items():
        assert assigned.keys() <= members[member].topics
        assert all(assigned.values()), "topics without partitions are left out"


def moves(before: Assignment, after: Assignment) -> int:
    """Partitions that somebody has lost who is still there."""
    return sum(len(parts(before[member]) - parts(after[member])) for member in before.keys() & after.keys())


members_of = st.dictionaries(
    st.integers(0, 11).map("m{:02}".format),
    st.tuples(st.sets(st.sampled_from(TOPICS)).map(frozenset), st.sampled_from([None, "i1", "i2"])),
    max_size=12,
)
sizes_of = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 20))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members_of, sizes_of)
def test_each_partition_has_one_member_that_subscribes(
    name: str, members: dict[str, tuple[frozenset[UUID], str | None]], sizes: dict[UUID, int]
) -> None:
    group = {
        member: Subscriber(topics, NO_PARTITIONS, instance and instance + member)
        for member, (topics, instance) in members.items()
    }
    check(group, sizes, ASSIGNORS[name](group, sizes))


def test_range_gives_neighbours_and_the_same_numbers_in_every_topic() -> None:
    group = {"b": subscriber(A, B), "a": subscriber(A, B), "c": subscriber(A, B)}
    assignment = assign_range(group, {A: 7, B: 7})
    assert {member: sorted(assigned[A]) for member, assigned in assignment.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4],
        "c": [5, 6],
    }
    assert all(assigned[A] == assigned[B] for assigned in assignment.values())


def test_range_keeps_static_members_in_place_when_they_come_back_under_another_id() -> None:
    before = assign_range({"x": subscriber(A, instance_id="1"), "a": subscriber(A)}, {A: 5})
    after = assign_range({"b": subscriber(A, instance_id="1"), "a": subscriber(A)}, {A: 5})
    assert before["x"] == after["b"] and before["a"] == after["a"]


def test_more_members_than_partitions_leaves_some_without() -> None:
    for assignor in ASSIGNORS.values():
        assignment = assignor({f"m{number}": subscriber(A) for number in range(5)}, {A: 3})
        assert sorted(loads(assignment).values()) == [0, 0, 1, 1, 1]


@given(st.integers(1, 12), st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_uniform_is_equal_within_one_when_all_subscribe_to_the_same(count: int, sizes: list[int]) -> None:
    topics = TOPICS[: len(sizes)]
    assignment = assign_uniform(
        {f"m{number:02}": subscriber(*topics) for number in range(count)},
        dict(zip(topics, sizes, strict=True)),
    )
    assert max(loads(assignment).values()) - min(loads(assignment).values()) <= 1


@given(st.integers(1, 10), st.integers(1, 10), st.integers(1, 40))
def test_uniform_moves_no_more_than_it_must(before_count: int, after_count: int, partitions: int) -> None:
    """Members joined or left: those who stay lose only what newcomers need."""
    names = [f"m{number:02}" for number in range(max(before_count, after_count))]
    before = assign_uniform({name: subscriber(A) for name in names[:before_count]}, {A: partitions})
    group = {name: subscriber(A, assigned=before.get(name, NO_PARTITIONS)) for name in names[:after_count]}
    after = assign_uniform(group, {A: partitions})
    check(group, {A: partitions}, after)
    share, rest = divmod(partitions, after_count)
    quotas = [share + (position < rest) for position in range(after_count)]
    held = sorted((len(parts(before.get(name, NO_PARTITIONS))) for name in names[:after_count]), reverse=True)
    must = sum(max(0, have - quota) for have, quota in zip(held, quotas, strict=True))
    assert moves(before, after) == must


@pytest.mark.slow
@given(members_of, sizes_of, st.randoms(use_true_random=True))
@settings(max_examples=300)
def test_uniform_is_as_equal_as_subscriptions_allow(
    members: dict[str, tuple[frozenset[UUID], str | None]], sizes: dict[UUID, int], random: Random
) -> None:
    """No chain of moves leads from a member to one with two less, also when it began with an odd division."""
    former: dict[str, dict[UUID, frozenset[int]]] = {member: {} for member in members}
    for topic in TOPICS if members else ():
        for partition in range(25):
            owner = random.choice([None, *members])
            if owner is not None:
                former[owner][topic] = former[owner].get(topic, frozenset()) | {partition}
    group = {member: Subscriber(topics, former[member]) for member, (topics, _) in members.items()}
    assignment = assign_uniform(group, sizes)
    check(group, sizes, assignment)
    total = loads(assignment)
    for member in group:
        reached, queue = {member}, [member]
        while queue:
            taker = queue.pop()
            for holder, assigned in assignment.items():
                if holder not in reached and not assigned.keys().isdisjoint(group[taker].topics):
                    reached.add(holder)
                    queue.append(holder)
        assert all(total[other] <= total[member] + 1 for other in reached)


@given(members_of, sizes_of)
def test_uniform_changes_nothing_when_nothing_changed(
    members: dict[str, tuple[frozenset[UUID], str | None]], sizes: dict[UUID, int]
) -> None:
    first = assign_uniform({name: Subscriber(topics, NO_PARTITIONS) for name, (topics, _) in members.items()}, sizes)
    again = assign_uniform({name: Subscriber(topics, first[name]) for name, (topics, _) in members.items()}, sizes)
    assert first == again


def test_uniform_spreads_what_a_member_gives_away_over_topics() -> None:
    alone = assign_uniform({"a": subscriber(A, B)}, {A: 4, B: 4})
    pair = assign_uniform({"a": subscriber(A, B, assigned=alone["a"]), "b": subscriber(A, B)}, {A: 4, B: 4})
    assert all(len(assigned[topic]) == 2 for assigned in pair.values() for topic in (A, B))


def test_a_partition_that_two_members_had_is_given_to_one() -> None:
    twice = {A: frozenset({0, 1})}
    group = {"a": subscriber(A, assigned=twice), "b": subscriber(A, assigned=twice)}
    check(group, {A: 2}, assign_uniform(group, {A: 2}))


def test_large_groups_are_divided_in_a_moment() -> None:
    """200 members of 5,000 partitions with different subscriptions: linear enough for the loop."""
    sizes = {UUID(int=number): 50 for number in range(1, 101)}
    everything = list(sizes)
    group = {f"m{number:03}": subscriber(*everything[number % 7 :: 1 + number % 5]) for number in range(200)}
    assignment = assign_uniform(group, sizes)
    check(group, sizes, assignment)
    group |= {"new": subscriber(*everything)}
    group = {name: member._replace(assigned=assignment.get(name, NO_PARTITIONS)) for name, member in group.items()}
    check(group, sizes, assign_uniform(group, sizes))

"""Plans of moves: brokers end with equal shares, few replicas move, racks stay apart."""

from collections import Counter
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from levada.core.cluster.rebalance import rebalance

MANY = 1_000_000


@st.composite
def clusters(draw: Any) -> tuple[dict[int, tuple[int, ...]], dict[int, str | None]]:
    racks = draw(st.dictionaries(st.integers(1, 7), st.sampled_from([None, "a", "b"]), min_size=1, max_size=6))
    factor = draw(st.integers(1, len(racks)))
    replicas = st.permutations(sorted(racks)).map(lambda order: tuple(order[:factor]))
    partitions = draw(st.lists(replicas, max_size=20))
    return dict(enumerate(partitions)), racks


def held(assignments: dict[int, tuple[int, ...]], brokers: Any) -> dict[int, int]:
    counts = Counter(broker for replicas in assignments.values() for broker in replicas)
    return {broker: counts[broker] for broker in brokers}


def led(assignments: dict[int, tuple[int, ...]], brokers: Any) -> dict[int, int]:
    counts = Counter(replicas[0] for replicas in assignments.values())
    return {broker: counts[broker] for broker in brokers}


def spread(counts: dict[int, int]) -> int:
    return max(counts.values()) - min(counts.values())


@given(clusters())
def test_replicas_are_kept_apart_and_balanced(cluster: tuple[Any, Any]) -> None:
    assignments, racks = cluster
    after = assignments | rebalance(assignments, racks, moves_max=MANY)
    for partition, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(assignments[partition])
        assert len({racks[broker] for broker in replicas}) >= len({racks[broker] for broker in assignments[partition]})
    assert spread(held(after, racks)) <= spread(held(assignments, racks))
    if len(set(racks.values())) == 1:
        assert spread(held(after, racks)) <= 1
    assert rebalance(after, racks, moves_max=MANY) == {}


@given(clusters())
def test_no_more_moves_than_replicas_in_excess(cluster: tuple[Any, Any]) -> None:
    assignments, racks = cluster
    counts = held(assignments, racks)
    share = -(-sum(counts.values()) // len(racks))
    lower = sum(counts.values()) // len(racks)
    excess = sum(max(0, count - lower) for count in counts.values())
    after = assignments | rebalance(assignments, racks, moves_max=MANY)
    moved = sum(len(set(after[partition]) - set(assignments[partition])) for partition in assignments)
    assert moved <= excess
    assert share >= lower


@given(clusters(), st.integers(0, 3))
def test_a_plan_is_bounded_and_can_be_continued(cluster: tuple[Any, Any], moves: int) -> None:
    assignments, racks = cluster
    plan = rebalance(assignments, racks, moves_max=moves)
    assert len(plan) <= moves
    assert all(replicas != assignments[partition] for partition, replicas in plan.items())
    assume(moves > 0)
    for _ in range(200):
        if not plan:
            break
        assignments |= plan
        plan = rebalance(assignments, racks, moves_max=moves)
    assert plan == {}


@given(clusters(), st.data())
def test_brokers_that_are_leaving_are_empty_afterwards(cluster: tuple[Any, Any], data: Any) -> None:
    assignments, racks = cluster
    leaving = data.draw(st.sets(st.sampled_from(sorted(racks))))
    takers = {broker: rack for broker, rack in racks.items() if broker not in leaving}
    after = assignments | rebalance(assignments, takers, leaving, moves_max=MANY, evacuate_only=True)
    for partition, replicas in after.items():
        assert len(set(replicas)) == len(replicas)
        if len(replicas) <= len(takers):
            assert leaving.isdisjoint(replicas)
        if leaving.isdisjoint(assignments[partition]):
            assert replicas == assignments[partition]


def test_a_new_broker_gets_its_share_and_brokers_that_stopped_keep_theirs() -> None:
    assignments = dict.fromkeys(range(30), (1, 2, 9))  # 9 is not alive
    plan = rebalance(assignments, {1: None, 2: None, 3: None}, moves_max=MANY)
    after = assignments | plan
    assert held(after, (1, 2, 3, 9)) == {1: 20, 2: 20, 3: 20, 9: 30}
    assert spread(led(after, (1, 2, 3))) <= 1
    assert len(plan) <= 30

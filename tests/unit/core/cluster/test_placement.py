"""Placement of replicas: leaders and replicas are spread evenly, and over racks."""

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clusters import cluster_of

from levada.core.cluster.changes import BrokerChanged, BrokerConfigsChanged, BrokerLeaseChanged
from levada.core.cluster.controller import CreateTopic, decide
from levada.core.cluster.image import DRAIN, ClusterImage
from levada.core.cluster.placement import place
from levada.errors import ErrorCode, KafkaError

racks = st.dictionaries(st.integers(0, 20), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9)
topic_ids = st.uuids()


def spread(counts: Counter[int], brokers: dict[int, str | None]) -> int:
    numbers = [counts[broker] for broker in brokers]
    return max(numbers) - min(numbers)


@given(racks, topic_ids, st.integers(0, 50), st.integers(1, 60), st.integers(1, 9))
def test_no_broker_leads_two_partitions_more_than_another(
    brokers: dict[int, str | None], topic_id: UUID, first: int, count: int, factor: int
) -> None:
    assignments = place(cluster_of(brokers), topic_id, first, count, min(factor, len(brokers)))
    assert len(assignments) == count
    assert all(len(set(replicas)) == len(replicas) == min(factor, len(brokers)) for replicas in assignments)
    assert spread(Counter(replicas[0] for replicas in assignments), brokers) <= 1


@given(racks, topic_ids, st.integers(1, 30), st.integers(1, 9))
def test_a_rack_has_a_second_replica_when_all_have_one(
    brokers: dict[int, str | None], topic_id: UUID, count: int, factor: int
) -> None:
    sizes = Counter(brokers.values())
    for replicas in place(cluster_of(brokers), topic_id, 0, count, min(factor, len(brokers))):
        used = Counter(brokers[broker] for broker in replicas)
        for rack, number in used.items():
            assert all(number <= used[other] + 1 for other in sizes if used[other] < sizes[other]), rack


@given(st.integers(1, 4), st.integers(1, 4), topic_ids, st.integers(1, 90), st.integers(1, 9))
def test_replicas_are_spread_where_racks_are_equal(
    racks: int, size: int, topic_id: UUID, count: int, factor: int
) -> None:
    brokers: dict[int, str | None] = {number: f"rack-{number % racks}" for number in range(racks * size)}
    factor = min(factor, len(brokers))
    assignments = place(cluster_of(brokers), topic_id, 0, count, factor)
    assert spread(Counter(broker for replicas in assignments for broker in replicas), brokers) <= factor


def test_the_leaders_of_a_lost_broker_go_to_many_others() -> None:
    brokers: dict[int, str | None] = dict.fromkeys(range(6))
    assignments = place(cluster_of(brokers), UUID(int=3), 0, 60, 2)
    assert {second for first, second in assignments if first == 0} == {1, 2, 3, 4, 5}


def test_partitions_that_are_added_continue_the_distribution() -> None:
    image = cluster_of(dict.fromkeys(range(3)))
    assert [*place(image, UUID(int=1), 0, 4, 2), *place(image, UUID(int=1), 4, 3, 2)] == place(
        image, UUID(int=1), 0, 7, 2
    )


def with_states(*, fenced: tuple[int, ...] = (), draining: tuple[int, ...] = (), stopping: tuple[int, ...] = ()):  # type: ignore[no-untyped-def]
    image = cluster_of(dict.fromkeys((1, 2, 3)))
    return image.apply(
        [
            *(BrokerLeaseChanged(broker, None) for broker in fenced),
            *(BrokerConfigsChanged(str(broker), {DRAIN: "true"}) for broker in draining),
            *(BrokerChanged(replace(image.brokers[broker], shutting_down=True)) for broker in stopping),
        ]
    )


@pytest.mark.parametrize("image", [with_states(fenced=(2,)), with_states(draining=(2,)), with_states(stopping=(2,))])
def test_a_broker_that_is_leaving_takes_replicas_only_where_others_are_missing(image: ClusterImage) -> None:
    assert {broker for replicas in place(image, UUID(int=1), 0, 9, 2) for broker in replicas} == {1, 3}
    needed = place(image, UUID(int=1), 0, 9, 3)
    assert all(replicas[2] == 2 for replicas in needed)


def test_replicas_on_fenced_brokers_are_not_in_sync() -> None:
    image = with_states(fenced=(2,))
    created = image.apply(decide(image, CreateTopic("a", UUID(int=1), 2, 3))).topics["a"]
    assert [sorted(state.isr) for state in created.partitions] == [[1, 3], [1, 3]]
    manual = image.apply(decide(image, CreateTopic("a", UUID(int=1), assignments=[[2, 3], [3, 2]]))).topics["a"]
    assert [(state.replicas, state.isr, state.leader) for state in manual.partitions] == [
        ((2, 3), (3,), 3),
        ((3, 2), (3,), 3),
    ]


@pytest.mark.parametrize(
    ("image", "command", "code", "words"),
    [
        (
            cluster_of({1: None}),
            CreateTopic("a", UUID(int=1), 1, 3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
            "only 1 broker(s) are registered.",
        ),
        (
            cluster_of({1: None}),
            CreateTopic("a", UUID(int=1), 1, 0),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            with_states(fenced=(1, 2, 3)),
            CreateTopic("a", UUID(int=1), 1, 3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 3 time(s): All brokers are currently fenced, draining or in controlled "
            "shutdown.",
        ),
        (
            with_states(fenced=(2, 3)),
            CreateTopic("a", UUID(int=1), assignments=[[1], [2]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled "
            "shutdown.",
        ),
        (
            cluster_of({1: None}),
            CreateTopic("a", UUID(int=1), assignments=[[1, 7]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
    ],
)
def test_kafkas_words(image: ClusterImage, command: CreateTopic, code: ErrorCode, words: str) -> None:
    with pytest.raises(KafkaError) as caught:
        decide(image, command)
    assert (caught.value.code, caught.value.detail) == (code, words)

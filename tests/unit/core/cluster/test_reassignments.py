"""Reassignments: begun, replaced, cancelled, completed; drains and moves that the controller begins itself."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from tests.support.clusters import cluster_of, topic_records

from levada.core.cluster.changes import BrokerConfigsChanged, BrokerLeaseChanged, PartitionChanged
from levada.core.cluster.controller import decide
from levada.core.cluster.duties import DutySettings, duties
from levada.core.cluster.image import DRAIN, ClusterImage, PartitionImage
from levada.core.cluster.reassignment import ReassignPartition
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

TOPIC = UUID(int=1)
NAME = TopicPartition("a", 0)
DIRECTORIES = (UUID(int=11), UUID(int=12), UUID(int=13))
NONE = UUID(int=0)
STATE = PartitionImage((1, 2, 3), (1, 2, 3), 1, 5, 7, DIRECTORIES, (1, 1, 1))


def cluster(*states: PartitionImage, brokers: int = 5) -> ClusterImage:
    image = cluster_of(dict.fromkeys(range(1, brokers + 1)))
    return image.apply(topic_records("a", TOPIC, states or (STATE,)))


def state(image: ClusterImage) -> PartitionImage:
    return image.topics["a"].partitions[0]


def reassign(image: ClusterImage, replicas: Sequence[int] | None) -> ClusterImage:
    return image.apply(decide(image, ReassignPartition(NAME, replicas)))


def with_isr(image: ClusterImage, *isr: int) -> ClusterImage:
    found = state(image)
    changed = replace(found, isr=isr, isr_epochs=(1,) * len(isr), partition_epoch=found.partition_epoch + 1)
    return image.apply([PartitionChanged("a", TOPIC, 0, changed)])


def after_duties(image: ClusterImage, settings: DutySettings | None = None) -> ClusterImage:
    return image.apply(duties(image, settings or DutySettings()))


def sets(found: PartitionImage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return found.replicas, found.adding_replicas, found.removing_replicas


def test_a_reassignment_adds_first_and_removes_when_the_added_are_in_sync() -> None:
    begun = reassign(cluster(), [4, 5, 3])
    assert sets(state(begun)) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert state(begun).directories == (NONE, NONE, DIRECTORIES[2], DIRECTORIES[0], DIRECTORIES[1])
    assert (state(begun).leader_epoch, state(begun).partition_epoch) == (5, 8)
    assert duties(begun, DutySettings()) == []
    partly = with_isr(begun, 1, 2, 3, 4)
    assert duties(partly, DutySettings()) == []
    done = state(after_duties(with_isr(partly, 1, 2, 3, 4, 5)))
    assert sets(done) == ((4, 5, 3), (), ())
    assert (done.isr, done.leader, done.leader_epoch) == ((3, 4, 5), 4, 6)
    assert done.directories == (NONE, NONE, DIRECTORIES[2])


def test_a_leader_that_stays_leads_on_in_a_new_epoch() -> None:
    """The epoch fences what removed replicas still send."""
    done = state(after_duties(with_isr(reassign(cluster(), [4, 1]), 1, 2, 3, 4)))
    assert (done.replicas, done.leader, done.leader_epoch) == ((4, 1), 1, 6)


def test_fewer_replicas_and_another_order() -> None:
    assert sets(state(after_duties(reassign(cluster(), [2])))) == ((2,), (), ())
    ordered = state(reassign(cluster(), [3, 2, 1]))
    assert sets(ordered) == ((3, 2, 1), (), ())
    assert (ordered.leader, ordered.leader_epoch, ordered.directories) == (1, 5, DIRECTORIES[::-1])
    assert decide(cluster(), ReassignPartition(NAME, [1, 2, 3])) == []


def test_a_reassignment_is_replaced_by_another() -> None:
    first = with_isr(reassign(cluster(), [4, 2, 3]), 1, 2, 3, 4)
    second = reassign(first, [5, 2, 3])
    assert sets(state(second)) == ((5, 2, 3, 1), (5,), (1,))
    assert state(second).isr == (1, 2, 3)


def test_a_cancelled_reassignment_leaves_the_former_replicas() -> None:
    begun = with_isr(reassign(cluster(), [4, 5, 3]), 1, 3, 4)
    moved = begun.apply([PartitionChanged("a", TOPIC, 0, replace(state(begun), leader=4))])
    cancelled = state(reassign(moved, None))
    assert sets(cancelled) == ((3, 1, 2), (), ())
    assert (cancelled.isr, cancelled.leader, cancelled.leader_epoch) == ((1, 3), 3, 6)


def test_a_reassignment_waits_for_a_replica_of_the_target_in_sync() -> None:
    only_former = with_isr(reassign(cluster(), [2]), 1)
    assert duties(only_former, DutySettings()) == []
    assert sets(state(after_duties(with_isr(only_former, 1, 2)))) == ((2,), (), ())


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (ReassignPartition(NAME, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "in progress"),
        (ReassignPartition(NAME, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        (ReassignPartition(NAME, [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 1 more than once"),
        (ReassignPartition(NAME, [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9, but no such broker"),
        (ReassignPartition(NAME, [4], False), ErrorCode.INVALID_REPLICATION_FACTOR, "changed from 3 to 1"),
        (
            ReassignPartition(TopicPartition("b", 0), [1]),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "Unable to find a topic named b.",
        ),
        (
            ReassignPartition(TopicPartition("a", 1), [1]),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "Unable to find partition a:1.",
        ),
    ],
)
def test_requests_that_are_refused(command: ReassignPartition, code: ErrorCode, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        decide(cluster(), command)
    assert caught.value.code is code


def test_a_cancellation_without_a_replica_in_sync_is_refused() -> None:
    moved = with_isr(reassign(cluster(replace(STATE, isr=(1,), isr_epochs=(1,))), [4]), 4)
    with pytest.raises(KafkaError, match="would be in sync") as caught:
        decide(moved, ReassignPartition(NAME, None))
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


# Moves that nobody requests.


def draining(image: ClusterImage, broker: int) -> ClusterImage:
    return image.apply([BrokerConfigsChanged(str(broker), {DRAIN: "true"})])


def test_a_broker_is_drained_a_few_partitions_at_a_time() -> None:
    image = draining(cluster(*[STATE] * 10), 3)
    settings = DutySettings(reassignments_max=4)
    image = after_duties(image, settings)
    moving = [found for found in image.topics["a"].partitions if found.is_reassigning]
    assert len(moving) == 4
    assert all(found.removing_replicas == (3,) and found.adding_replicas[0] in (4, 5) for found in moving)
    assert duties(image, settings) == []
    caught_up = [
        PartitionChanged("a", TOPIC, index, replace(found, isr=found.replicas, isr_epochs=(1,) * 4))
        for index, found in enumerate(image.topics["a"].partitions)
        if found.is_reassigning
    ]
    image = after_duties(image.apply(caught_up), settings)
    assert sum(3 in found.replicas for found in image.topics["a"].partitions) == 6
    assert len([one for one in duties(image, settings) if isinstance(one, PartitionChanged)]) == 4


def test_a_broker_is_not_drained_where_no_other_can_take_its_replicas() -> None:
    image = draining(cluster(brokers=3), 3)
    assert duties(image, DutySettings()) == []


def test_a_stopped_broker_can_be_drained() -> None:
    image = after_duties(draining(cluster(brokers=4), 3).apply([BrokerLeaseChanged(3, None)]))
    image = after_duties(image)
    assert state(image).adding_replicas == (4,) and state(image).isr == (1, 2)


def test_new_brokers_get_replicas_if_that_is_enabled() -> None:
    image = cluster(*[STATE] * 10)
    assert duties(image, DutySettings()) == []
    moved = after_duties(image, DutySettings(auto_rebalance=True, reassignments_max=100))
    added = [broker for found in moved.topics["a"].partitions for broker in found.adding_replicas]
    assert sorted(added) == [4] * 6 + [5] * 6


def test_preferred_leaders_are_balanced_above_the_percentage() -> None:
    elsewhere = replace(STATE, leader=2)
    one_of_ten = cluster(*[STATE] * 9, elsewhere)
    assert duties(one_of_ten, DutySettings(), balance_leaders=True) == []
    two_of_ten = cluster(*[STATE] * 8, elsewhere, elsewhere)
    assert duties(two_of_ten, DutySettings()) == []
    balanced = two_of_ten.apply(duties(two_of_ten, DutySettings(), balance_leaders=True))
    assert {found.leader for found in balanced.topics["a"].partitions} == {1}
    behind = cluster(replace(elsewhere, isr=(2, 3), isr_epochs=(1, 1)))
    assert duties(behind, DutySettings(), balance_leaders=True) == []

"""AlterPartition: what a leader may do to its ISR, and Kafka's errors for everything else."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tests.support.clusters import cluster_of, topic_records

from levada.core.cluster.changes import BrokerChanged, BrokerLeaseChanged, BrokerUnchanged, PartitionChanged
from levada.core.cluster.controller import decide
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.core.cluster.isr import AlterPartition
from levada.errors import ErrorCode, KafkaError

TOPIC = UUID(int=1)
STATE = PartitionImage((1, 2, 3), (1, 2), 1, 5, 7, isr_epochs=(1, 1))


def cluster() -> ClusterImage:
    return cluster_of(dict.fromkeys((1, 2, 3, 4))).apply(topic_records("a", TOPIC, [STATE]))


def request(**fields: Any) -> AlterPartition:
    values: dict[str, Any] = {"broker": 1, "broker_epoch": 1, "topic_id": TOPIC, "partition": 0, "leader_epoch": 5}
    return AlterPartition(**(values | {"partition_epoch": 7, "isr": {1: 1, 2: 1, 3: 1}} | fields))


def test_a_replica_joins() -> None:
    check, change = decide(cluster(), request())
    assert check == BrokerUnchanged(3), "it must not restart before the commit"
    assert isinstance(change, PartitionChanged)
    assert change.partition == replace(STATE, isr=(1, 2, 3), isr_epochs=(1, 1, 1), partition_epoch=8)


def test_a_replica_leaves_without_any_other_condition() -> None:
    image = cluster().apply([BrokerLeaseChanged(2, None)])
    (change,) = decide(image, request(isr={1: 1}))
    assert isinstance(change, PartitionChanged)
    assert (change.partition.isr, change.partition.leader_epoch) == ((1,), 5)


def test_the_same_isr_is_no_change() -> None:
    assert decide(cluster(), request(isr={2: 1, 1: 1})) == []


def test_a_member_that_stays_need_not_be_alive() -> None:
    image = cluster().apply([BrokerLeaseChanged(2, None)])
    assert decide(image, request())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"broker_epoch": 2}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker": 9}, ErrorCode.STALE_BROKER_EPOCH),
        ({"topic_id": UUID(int=9)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 6}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 8}, ErrorCode.NOT_CONTROLLER),
        ({"broker": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": {2: 1}}, ErrorCode.INVALID_REQUEST),
        ({"isr": {}}, ErrorCode.INVALID_REQUEST),
        ({"isr": {1: 1, 4: 1}}, ErrorCode.INVALID_REQUEST),
        ({"isr": {1: 1, 3: 2}}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr": {1: 1, 3: 0}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_requests_that_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        decide(cluster(), request(**fields))
    assert caught.value.code is code and caught.value.detail


@pytest.mark.parametrize("reason", ["fenced", "shutting down", "restarted"])
def test_replicas_that_may_not_join(reason: str) -> None:
    image = cluster()
    broker = image.brokers[3]
    if reason == "fenced":
        image = image.apply([BrokerLeaseChanged(3, None)])
    elif reason == "shutting down":
        image = image.apply([BrokerChanged(replace(broker, shutting_down=True))])
    else:
        image = image.apply([BrokerLeaseChanged(3, 2), BrokerChanged(replace(broker, epoch=2))])
    with pytest.raises(KafkaError) as caught:
        decide(image, request())
    assert caught.value.code is ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_that_has_restarted_is_not_the_leader_of_its_former_epoch() -> None:
    image = cluster()
    restarted = replace(image.brokers[1], epoch=2)
    image = image.apply([BrokerLeaseChanged(1, 2), BrokerChanged(restarted)])
    with pytest.raises(KafkaError) as caught:
        decide(image, request(broker_epoch=2, isr={1: 2, 2: 1}))
    assert caught.value.code is ErrorCode.INVALID_REQUEST

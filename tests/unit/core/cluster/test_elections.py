"""Elections: who leads and who is in sync, when brokers stop, restart, drain and shut down."""

from dataclasses import replace
from uuid import UUID

import pytest
from tests.support.clusters import cluster_of, topic_records

from levada.core.cluster.changes import BrokerChanged, BrokerConfigsChanged, BrokerLeaseChanged, BrokerRemoved
from levada.core.cluster.controller import decide
from levada.core.cluster.duties import DutySettings, duties
from levada.core.cluster.election import ElectLeader
from levada.core.cluster.image import DRAIN, ClusterImage, PartitionImage
from levada.core.cluster.isr import ReplicasOffline
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

TOPIC = UUID(int=1)
NAME = TopicPartition("a", 0)
THREE = PartitionImage((1, 2, 3), (1, 2, 3), 1, 5, 7, isr_epochs=(1, 1, 1))


def cluster(state: PartitionImage = THREE, **configs: str) -> ClusterImage:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return cluster_of(dict.fromkeys((1, 2, 3))).apply(topic_records("a", TOPIC, [state], named))


def stopped(image: ClusterImage, *brokers: int) -> ClusterImage:
    return image.apply([BrokerLeaseChanged(broker, None) for broker in brokers])


def restarted(image: ClusterImage, broker: int, *, unclean: bool = False, recovering: bool = False) -> ClusterImage:
    former = image.registered[broker]
    epoch = former.epoch + 1
    unclean_epoch = epoch if unclean else former.unclean_epoch
    again = replace(former, epoch=epoch, unclean_epoch=unclean_epoch, recovering=recovering)
    return image.apply([BrokerLeaseChanged(broker, epoch), BrokerChanged(again)])


def changed(image: ClusterImage, broker: int, **fields: object) -> ClusterImage:
    return image.apply([BrokerChanged(replace(image.registered[broker], **fields))])  # type: ignore[arg-type]


def draining(image: ClusterImage, broker: int) -> ClusterImage:
    return image.apply([BrokerConfigsChanged(str(broker), {DRAIN: "true"})])


def settled(image: ClusterImage) -> PartitionImage:
    for _ in range(5):
        changes = duties(image, DutySettings())
        if not changes:
            return image.topics["a"].partitions[0]
        image = image.apply(changes)
    raise AssertionError("no fixed point")


def summary(state: PartitionImage) -> tuple[int, tuple[int, ...], int]:
    return state.leader, state.isr, state.leader_epoch


def test_the_next_replica_in_sync_leads_when_a_leader_stops() -> None:
    assert summary(settled(stopped(cluster(), 1))) == (2, (2, 3), 6)


def test_a_follower_that_stops_leaves_the_isr_and_the_leader_stays() -> None:
    state = settled(stopped(cluster(), 3))
    assert summary(state) == (1, (1, 2), 5)
    assert state.partition_epoch == 8


def test_a_partition_whose_isr_has_stopped_keeps_it() -> None:
    assert summary(settled(stopped(cluster(), 1, 2, 3))) == (-1, (1, 2, 3), 6)


def test_a_replica_that_restarted_leaves_the_isr_of_the_others() -> None:
    assert summary(settled(restarted(cluster(), 3))) == (1, (1, 2), 5)


def test_a_leader_that_restarted_at_once_leads_no_longer() -> None:
    state = settled(restarted(cluster(), 1))
    assert summary(state) == (2, (2, 3), 6)


def test_the_last_member_leads_again_in_a_new_epoch_when_it_returns() -> None:
    state = settled(restarted(cluster(replace(THREE, isr=(1,), isr_epochs=(1,))), 1, recovering=True))
    assert summary(state) == (1, (1,), 6)
    assert state.leader_broker_epoch == 2


def test_after_all_have_stopped_the_first_whose_logs_are_recovered_leads() -> None:
    image = restarted(stopped(cluster(), 1, 2, 3), 3, recovering=True)
    assert summary(settled(image)) == (-1, (1, 2, 3), 6)
    state = settled(changed(image, 3, recovering=False))
    assert summary(state) == (3, (3,), 6)


def test_the_former_leader_is_preferred_among_those_that_returned() -> None:
    image = cluster(replace(THREE, leader=2))
    for broker in (1, 2, 3):
        image = restarted(image, broker)
    assert summary(settled(image)) == (2, (2,), 6)


def test_a_replica_that_lost_its_cache_waits_for_one_that_did_not() -> None:
    image = restarted(stopped(cluster(), 1, 2, 3), 3, unclean=True)
    assert summary(settled(image)) == (-1, (1, 2), 6)
    assert summary(settled(restarted(image, 1))) == (1, (1,), 6)


def test_replicas_that_all_lost_their_caches_lead_when_all_are_back() -> None:
    image = stopped(cluster(), 1, 2, 3)
    for broker in (3, 2):
        image = restarted(image, broker, unclean=True)
        assert settled(image).leader == -1
    assert summary(settled(restarted(image, 1, unclean=True)))[0] in (1, 2, 3)


def test_an_unclean_restart_is_remembered_over_a_clean_one() -> None:
    image = restarted(restarted(stopped(cluster(), 1, 2, 3), 3, unclean=True), 3)
    assert settled(image).isr == (1, 2)


def test_an_unregistered_broker_is_not_waited_for() -> None:
    image = restarted(stopped(cluster(), 1, 2, 3), 3, unclean=True)
    image = image.apply([BrokerRemoved(1, 1), BrokerRemoved(2, 1)])
    assert settled(image).leader == 3


@pytest.mark.parametrize("own", ["true", "false", None])
@pytest.mark.parametrize("default", [False, True])
def test_unclean_elections_are_a_setting(own: str | None, default: bool) -> None:
    configs = {} if own is None else {"unclean_leader_election_enable": own}
    image = stopped(cluster(replace(THREE, isr=(1,), isr_epochs=(1,)), **configs), 1)
    changes = duties(image, DutySettings(unclean_leader_election=default))
    state = image.apply(changes).topics["a"].partitions[0]
    if own == "true" or (own is None and default):
        assert summary(state) == (2, (2,), 6)
    else:
        assert summary(state) == (-1, (1,), 6)


def test_an_unclean_election_does_not_precede_a_recovery() -> None:
    image = cluster(replace(THREE, isr=(1, 3), isr_epochs=(1, 1)), unclean_leader_election_enable="true")
    image = restarted(stopped(image, 3), 1, recovering=True)
    assert settled(image).leader == -1
    assert summary(settled(changed(image, 1, recovering=False)))[:2] == (1, (1,))


def test_a_broker_in_controlled_shutdown_hands_over_and_leaves_the_isr() -> None:
    assert summary(settled(changed(cluster(), 1, shutting_down=True))) == (2, (2, 3), 6)
    last = cluster(replace(THREE, isr=(1,), isr_epochs=(1,)))
    assert summary(settled(changed(last, 1, shutting_down=True))) == (1, (1,), 5)


def test_a_draining_broker_hands_over_its_leaders_if_it_can() -> None:
    state = settled(draining(cluster(), 1))
    assert (state.leader, state.isr) == (2, (1, 2, 3))
    last = cluster(replace(THREE, isr=(1,), isr_epochs=(1,)))
    assert summary(settled(draining(last, 1))) == (1, (1,), 5)


def test_a_leader_in_sync_stays_when_others_change() -> None:
    image = cluster(replace(THREE, leader=3))
    assert summary(settled(stopped(image, 2))) == (3, (1, 3), 5)
    assert settled(restarted(image, 1)).leader == 3


# ElectLeaders.


def elect(image: ClusterImage, *, unclean: bool = False) -> PartitionImage:
    return image.apply(decide(image, ElectLeader(NAME, unclean))).topics["a"].partitions[0]


def elect_error(image: ClusterImage, name: TopicPartition = NAME, *, unclean: bool = False) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        decide(image, ElectLeader(name, unclean))
    return caught.value.code, caught.value.detail


def test_the_preferred_leader_is_elected() -> None:
    assert summary(elect(cluster(replace(THREE, leader=2)))) == (1, (1, 2, 3), 6)


def test_an_unclean_election_takes_a_replica_that_is_alive() -> None:
    image = stopped(cluster(replace(THREE, isr=(1,), isr_epochs=(1,))), 1)
    assert summary(elect(image, unclean=True)) == (2, (2,), 6)


def test_an_unclean_election_prefers_a_member_that_is_in_sync() -> None:
    assert summary(elect(stopped(cluster(), 1), unclean=True)) == (2, (2, 3), 6)


def test_elections_that_are_refused() -> None:
    behind = replace(THREE, leader=2, isr=(2, 3), isr_epochs=(1, 1))
    assert elect_error(cluster()) == (
        ErrorCode.ELECTION_NOT_NEEDED,
        "Leader election not needed for topic partition.",
    )
    assert elect_error(cluster(), unclean=True)[0] is ErrorCode.ELECTION_NOT_NEEDED
    assert elect_error(cluster(behind))[0] is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert elect_error(stopped(cluster(replace(THREE, leader=2)), 1))[0] is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    away = draining(cluster(replace(THREE, leader=2)), 1)
    assert elect_error(away)[0] is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    nobody = stopped(cluster(), 1, 2, 3)
    assert elect_error(nobody, unclean=True)[0] is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert elect_error(cluster(), TopicPartition("b", 0)) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "No such topic as b",
    )
    assert elect_error(cluster(), TopicPartition("a", 1)) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "No such partition as a-1",
    )


# Replicas that fail.


def failed(image: ClusterImage, broker: int) -> PartitionImage:
    command = ReplicasOffline(broker, image.brokers[broker].epoch, {TOPIC: [0, 9], UUID(int=9): [0]})
    return image.apply(decide(image, command)).topics["a"].partitions[0]


def test_a_failed_replica_leaves_the_isr() -> None:
    assert summary(failed(cluster(), 1)) == (2, (2, 3), 6)
    assert summary(failed(cluster(), 3)) == (1, (1, 2), 5)


def test_a_failed_replica_stays_if_no_other_has_all_messages() -> None:
    last = cluster(replace(THREE, isr=(1,), isr_epochs=(1,)))
    assert failed(last, 1) is last.topics["a"].partitions[0]
    image = stopped(cluster(), 1, 2, 3)
    for broker in (1, 2):
        image = restarted(image, broker, unclean=True)
    image = restarted(image, 3)
    assert failed(image, 3) is image.topics["a"].partitions[0]


def test_a_former_broker_epoch_reports_nothing() -> None:
    with pytest.raises(KafkaError, match="broker epoch 1, but the request 9") as caught:
        decide(cluster(), ReplicasOffline(1, 9, {TOPIC: [0]}))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH

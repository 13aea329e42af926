"""Two or three brokers: what one leads, the others have."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, cluster
from tests.support.raw import batch, fetch, produce
from tests.support.waiting import until

from levada.core.cluster.image import PartitionImage
from levada.errors import ErrorCode


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as brokers:
        yield brokers


def send(brokers: Cluster, node_id: int, topic: str, *values: bytes, acks: int = -1) -> ErrorCode:
    with brokers.brokers[node_id].connect() as wire:
        return ErrorCode(produce(wire, topic, batch(*values), acks=acks).error_code)


def ends(brokers: Cluster, topic: str) -> list[int]:
    return [brokers.partition(topic, node_id).log.log_end_offset for node_id in brokers.brokers]


def watermarks(brokers: Cluster, topic: str) -> list[int]:
    return [brokers.partition(topic, node_id).high_watermark for node_id in brokers.brokers]


def test_acks_all_is_answered_when_every_replica_has_the_records(three: Cluster) -> None:
    three.create("orders", 1, 2, 3)
    for number in range(10):
        assert send(three, 1, "orders", b"%d" % number) is ErrorCode.NONE
        assert ends(three, "orders") == [number + 1] * 3
    until(lambda: watermarks(three, "orders") == [10] * 3, "followers do not learn the high watermark")


def test_another_leader_has_all_that_was_acknowledged(three: Cluster) -> None:
    three.create("orders", 1, 2, 3)
    assert send(three, 1, "orders", b"a", b"b") is ErrorCode.NONE
    three.elect("orders", 2, (1, 2, 3))
    assert send(three, 1, "orders", b"c") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(three, 2, "orders", b"c") is ErrorCode.NONE
    assert ends(three, "orders") == [3, 3, 3]
    with three.brokers[2].connect() as wire:
        assert fetch(wire, "orders", 0).high_watermark == 3


def test_a_follower_that_stops_leaves_the_isr_and_comes_back(three: Cluster) -> None:
    three.create("orders", 1, 2, 3)
    assert send(three, 1, "orders", b"a") is ErrorCode.NONE
    three.stop(3)
    assert send(three, 1, "orders", b"b") is ErrorCode.NONE  # once the ISR has shrunk
    assert three.state("orders").isr == (1, 2)
    three.start(3)
    until(lambda: set(three.state("orders").isr) == {1, 2, 3}, lambda: three.state("orders"))
    assert ends(three, "orders") == [2, 2, 2]


def test_the_tail_of_a_former_leader_is_truncated(three: Cluster) -> None:
    three.create("orders", 1, 2, 3)
    assert send(three, 1, "orders", b"a") is ErrorCode.NONE
    for node_id in (2, 3):
        three.stop(node_id)
    assert send(three, 1, "orders", b"lost", b"too", acks=1) is ErrorCode.NONE
    three.stop(1)
    for node_id in (2, 3):
        three.start(node_id)
    three.elect("orders", 2, (2, 3))
    assert send(three, 2, "orders", b"b") is ErrorCode.NONE
    three.start(1)
    until(lambda: ends(three, "orders") == [2, 2, 2], lambda: ends(three, "orders"))
    until(lambda: set(three.state("orders").isr) == {1, 2, 3}, lambda: three.state("orders"))
    logs = [three.partition("orders", node_id).log for node_id in (1, 2, 3)]
    assert [log.leader_epochs.entries for log in logs] == [logs[1].leader_epochs.entries] * 3


def test_acks_differ_when_followers_are_gone(three: Cluster) -> None:
    three.create("orders", 1, 2, 3, min_insync_replicas=2)
    assert send(three, 1, "orders", b"a") is ErrorCode.NONE
    three.stop(2)
    three.stop(3)
    assert send(three, 1, "orders", b"b", acks=1) is ErrorCode.NONE
    assert send(three, 1, "orders", b"c") is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND  # the ISR shrinks meanwhile
    assert three.state("orders").isr == (1,)
    assert send(three, 1, "orders", b"d") is ErrorCode.NOT_ENOUGH_REPLICAS
    assert three.partition("orders", 1).high_watermark == 3


def test_a_pending_produce_fails_when_leadership_is_lost(three: Cluster) -> None:
    three.create("orders", 1, 2, 3)
    three.stop(2)
    three.stop(3)
    with three.brokers[1].connect() as wire:
        topics = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(b"a")}]}]
        wire.send("produce", 12, {"acks": -1, "timeout": 60_000, "topic_data": topics})
        until(lambda: three.partition("orders", 1).log.log_end_offset == 1, "nothing is appended")
        three.alter("orders", lambda state: replace(state, leader=2, leader_epoch=9, partition_epoch=9))
        _, response = wire.receive()
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert three.partition("orders", 1).high_watermark == 0


def test_a_follower_below_the_leaders_log_start_begins_there(three: Cluster) -> None:
    three.create("orders", 1, 2, segment_bytes=200)
    for number in range(5):
        assert send(three, 1, "orders", b"%0100d" % number) is ErrorCode.NONE
    three.stop(2)
    assert send(three, 1, "orders", b"late", acks=1) is ErrorCode.NONE
    until(lambda: three.state("orders").isr == (1,), "the ISR does not shrink")
    for number in range(5):
        assert send(three, 1, "orders", b"%0100d" % number, acks=1) is ErrorCode.NONE
    leader = three.brokers[1]
    leader.call(lambda: leader.partition("orders").delete_records(9))
    leader.call(lambda: leader.partition("orders").log.apply_retention(0))
    three.start(2)
    until(lambda: set(three.state("orders").isr) == {1, 2}, lambda: three.state("orders"))
    follower = three.partition("orders", 2)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (9, 11)
    assert follower.log.segments[0].base_offset == 9
    three.stop(2)
    again = three.start(2)  # recovery accepts what is left of the log
    until(lambda: ("orders", 0) in again.broker.partitions, "the log is not open")
    assert not again.broker.log_dirs.offline_logs
    assert three.partition("orders", 2).log.log_start_offset == 9


def test_deleted_records_are_deleted_on_followers(three: Cluster) -> None:
    three.create("orders", 1, 2)
    assert send(three, 1, "orders", b"a", b"b") is ErrorCode.NONE
    leader = three.brokers[1]
    until(lambda: three.partition("orders", 2).high_watermark == 2, "the follower lags")
    leader.call(lambda: leader.partition("orders").delete_records(1))
    until(lambda: three.partition("orders", 2).log.log_start_offset == 1, "the follower keeps the records")


def test_producer_states_follow(three: Cluster) -> None:
    three.create("orders", 1, 2)
    with three.brokers[1].connect() as wire:
        for sequence in range(3):
            sent = batch(b"a", producer=(1000, 0, sequence))
            assert produce(wire, "orders", sent).error_code == ErrorCode.NONE
    three.elect("orders", 2, (1, 2))
    with three.brokers[2].connect() as wire:
        retried = produce(wire, "orders", batch(b"a", producer=(1000, 0, 2)))
        assert (retried.error_code, retried.base_offset) == (ErrorCode.NONE, 2)
        assert produce(wire, "orders", batch(b"a", producer=(1000, 0, 4))).error_code == (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )


def test_acks_wait_for_the_fsync_of_every_replica(three: Cluster) -> None:
    three.create("orders", 1, 2, 3, levada_acks_wait_for_fsync="true")
    for number in range(5):
        assert send(three, 1, "orders", b"%d" % number) is ErrorCode.NONE
        points = [three.partition("orders", node_id).log.recovery_point for node_id in (1, 2, 3)]
        assert points == [number + 1] * 3


def test_a_removed_replica_is_deleted(three: Cluster) -> None:
    three.create("orders", 1, 2, 3)
    assert send(three, 1, "orders", b"a") is ErrorCode.NONE
    directory = three.partition("orders", 3).log.directory

    def without(state: PartitionImage) -> PartitionImage:
        return replace(
            state,
            replicas=(1, 2),
            isr=(1, 2),
            directories=state.directories[:2],
            partition_epoch=state.partition_epoch + 1,
        )

    three.alter("orders", without)
    until(lambda: ("orders", 0) not in three.brokers[3].broker.partitions, "the replica is still there")
    until(lambda: not Path(directory).exists(), "its directory is still there")
    assert send(three, 1, "orders", b"b") is ErrorCode.NONE


def test_a_throttled_follower_catches_up_slowly(three: Cluster) -> None:
    three.create("orders", 1, 2, follower_replication_throttled_replicas="*")
    follower = three.brokers[2].broker.replication
    follower.follower_throttle.rate = 20_000
    for _ in range(4):
        assert send(three, 1, "orders", bytes(15_000), acks=1) is ErrorCode.NONE
    until(lambda: three.partition("orders", 2).log.log_end_offset == 4, "the follower does not catch up")
    assert follower.follower_throttle.throttled_bytes > 60_000
    assert follower.follower_throttle._balance < 20_000


def test_a_partition_that_is_created_does_not_wait_for_the_long_poll_of_another(tmp_path: Path) -> None:
    """The connection that waits for records of one partition fetches the other at once."""
    with cluster(tmp_path, 2, replica_fetch_wait_max_ms=1_000_000, replica_lag_time_max_ms=600_000) as two:
        two.create("first", 1, 2)
        assert send(two, 1, "first", b"a") is ErrorCode.NONE
        for number in range(5):
            two.create(f"next-{number}", 1, 2)
            assert send(two, 1, f"next-{number}", b"a") is ErrorCode.NONE
            assert send(two, 1, "first", b"b") is ErrorCode.NONE


@pytest.mark.parametrize("failed", [1, 3])
def test_a_damaged_replica_leaves_the_isr_and_is_fetched_anew(three: Cluster, failed: int) -> None:
    three.create("orders", 1, 2, 3)
    assert send(three, 1, "orders", b"a", b"b") is ErrorCode.NONE
    broker, partition = three.brokers[failed], three.partition("orders", failed)
    directory = Path(partition.log.directory)
    segment = directory / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    broker.call(lambda: broker.broker.log_dirs.fail_partition(partition, "a corrupt batch"))
    until(lambda: three.state("orders").leader != failed or failed != 1, "it leads on")
    leader = three.state("orders").leader if failed == 1 else 1
    until(lambda: three.partition("orders", leader).is_leader, "nobody leads")
    assert send(three, leader, "orders", b"c") is ErrorCode.NONE
    until(lambda: set(three.state("orders").isr) == {1, 2, 3}, lambda: three.state("orders"))
    assert ends(three, "orders") == [3, 3, 3]
    copies = [(Path(three.partition("orders", one).log.directory) / segment.name).read_bytes() for one in (1, 2, 3)]
    assert copies[0] == copies[1] == copies[2]

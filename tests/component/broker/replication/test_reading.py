"""What clients read from leaders and followers, and who may call itself a replica."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.cluster import Cluster, cluster
from tests.support.raw import Connection, batch, fetch, headers, produce
from tests.support.waiting import until

from levada.client.client import Client
from levada.config.replication import RACK_AWARE_SELECTOR
from levada.errors import ErrorCode


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        cluster(tmp_path_factory.mktemp("cluster"), 2, replica_selector_class=RACK_AWARE_SELECTOR) as one,
    ):
        yield one


def topic_with(two: Cluster, name: str, *values: bytes) -> str:
    two.create(name, 1, 2)
    with two.brokers[1].connect() as wire:
        assert produce(wire, name, batch(*values)).error_code == ErrorCode.NONE
    until(lambda: two.partition(name, 2).high_watermark == len(values), "the follower lags")
    return name


def newest_fetch(wire: Connection, two: Cluster, topic: str, version: int = 17, **more: Any) -> tuple[Any, Any]:
    """The response and its one partition."""
    topic_id = two.brokers[1].broker.image.topics[topic].id
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "last_fetched_epoch": -1}
    place |= {
        name: more.pop(name) for name in ("fetch_offset", "last_fetched_epoch", "current_leader_epoch") if name in more
    }
    place.setdefault("current_leader_epoch", -1)
    fields = {"max_bytes": 1 << 20, "session_epoch": -1, "topics": [{"topic_id": topic_id, "partitions": [place]}]}
    response = wire.call("fetch", version, fields | more)
    assert response.error_code == 0
    return response, response.responses[0].partitions[0]


def test_consumers_read_from_followers_what_is_committed(two: Cluster) -> None:
    topic = topic_with(two, "followed", b"a", b"b")
    with two.brokers[2].connect() as wire:
        found = fetch(wire, topic, 0)
        assert (found.error_code, found.high_watermark) == (0, 2)
        assert [header.record_count for header in headers(bytes(found.records))] == [2]


def test_a_leader_names_the_replica_in_the_rack_of_the_consumer(two: Cluster) -> None:
    topic = topic_with(two, "near", b"a")
    with two.brokers[1].connect() as wire:
        for rack, preferred, size in (("rack-2", 2, 0), ("rack-1", -1, 1), ("elsewhere", -1, 1), ("", -1, 1)):
            _, part = newest_fetch(wire, two, topic, rack_id=rack)
            assert part.preferred_read_replica == preferred
            assert len(list(headers(bytes(part.records or b"")))) == size


def test_clients_of_a_follower_learn_the_leader(two: Cluster) -> None:
    topic = topic_with(two, "hinted", b"a")
    epoch = two.state(topic).leader_epoch
    topic_id = two.brokers[1].broker.image.topics[topic].id
    with two.brokers[2].connect() as wire:
        place = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch(b"b")}]}
        response = wire.call("produce", 13, {"acks": -1, "timeout": 1_000, "topic_data": [place]})
        part = response.responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, epoch)
        (endpoint,) = response.node_endpoints
        assert f"{endpoint.host}:{endpoint.port}" == two.brokers[1].bootstrap and endpoint.rack == "rack-1"
        response, part = newest_fetch(wire, two, topic, current_leader_epoch=epoch + 1)
        assert part.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH and not response.node_endpoints


def test_only_the_leader_tells_offsets(two: Cluster) -> None:
    topic = topic_with(two, "told", b"a")
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]}
    found = []
    for broker in two.brokers.values():
        with broker.connect() as wire:
            response = wire.call("list_offsets", 7, {"replica_id": -1, "topics": [wanted]})
            found.append((response.topics[0].partitions[0].error_code, response.topics[0].partitions[0].offset))
    assert found == [(ErrorCode.NONE, 1), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


@pytest.mark.parametrize("epoch_difference", [None, 1, -1])
def test_a_client_that_claims_to_be_a_replica_moves_nothing(two: Cluster, epoch_difference: int | None) -> None:
    topic = topic_with(two, f"claimed-{epoch_difference}", b"a")
    replica = two.partition(topic, 1).replicas
    assert replica is not None
    known = replica.followers[2].log_end_offset
    with two.brokers[1].connect() as wire:
        if epoch_difference is None:
            _, part = newest_fetch(wire, two, topic, version=14, replica_id=2, fetch_offset=1)
        else:
            epoch = two.brokers[1].broker.image.brokers[2].epoch + epoch_difference
            state = {"replica_id": 2, "replica_epoch": epoch}
            _, part = newest_fetch(wire, two, topic, replica_state=state, fetch_offset=1)
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replica.followers[2].log_end_offset == known


def test_a_reader_whose_last_epoch_ended_earlier_learns_where(two: Cluster) -> None:
    topic = topic_with(two, "diverging", b"a", b"b")
    former = two.state(topic).leader_epoch
    two.elect(topic, 1, (1, 2))
    with two.brokers[1].connect() as wire:
        _, part = newest_fetch(wire, two, topic, fetch_offset=7, last_fetched_epoch=former)
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (former, 2)
        assert not part.records


def test_the_client_reads_from_the_replica_in_its_rack(two: Cluster) -> None:
    topic = topic_with(two, "racked", b"a", b"b")

    async def read() -> list[bytes | None]:
        async with (
            Client(two.bootstrap, rack="rack-2") as client,
            client.consumer(topic, start="earliest") as consumer,
        ):
            return [(await anext(consumer)).value for _ in range(2)]

    assert asyncio.run(read()) == [b"a", b"b"]
    assert [two.partition(topic, node_id).bytes_out > 0 for node_id in (1, 2)] == [False, True]


def test_delete_records_waits_for_followers(two: Cluster) -> None:
    topic = topic_with(two, "trimmed", b"a", b"b", b"c")
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}
    with two.brokers[1].connect() as wire:
        response = wire.call("delete_records", 2, {"topics": [wanted], "timeout": 30_000})
    assert response.topics[0].partitions[0].low_watermark == 2
    assert two.partition(topic, 2).log.log_start_offset == 2

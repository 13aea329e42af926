"""Requests about thousands of topics or partitions: handled in slices, one slice per loop iteration."""

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from tests.support.broker import BrokerThread
from tests.support.logs import read_all
from tests.support.raw import Connection, batch
from tests.support.waiting import until

from levada.api.admin import cluster, configs, log_dirs
from levada.api.coordinator import consumer_groups
from levada.api.coordinator import groups as groups_api
from levada.api.coordinator import producers as producers_api
from levada.api.coordinator import transactions as coordinator_api
from levada.api.data import large_fetch, offsets, parked_produce
from levada.api.data.fetch import FetchRead
from levada.broker.coordinator import transactions
from levada.broker.partition.partition import Partition
from levada.core.groups.consumer import requests as consumer_requests
from levada.core.groups.machine import GroupsMachine
from levada.errors import ErrorCode
from levada.model import Codec
from levada.wire.batches import Record, encode

PARTITIONS, TOPICS = 1_200, 60
LATEST = [
    {"partition_index": index, "current_leader_epoch": -1, "timestamp": offsets.LATEST} for index in range(PARTITIONS)
]
RESOURCES = [{"resource_type": 2, "resource_name": f"t-{index}", "configuration_keys": None} for index in range(TOPICS)]


def calls_per_iteration(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Counter[int]:
    """How often a function of a module is called in each loop iteration from now on."""
    calls, iteration, function = Counter[int](), 0, getattr(module, name)

    def count() -> None:
        nonlocal iteration
        iteration += 1
        asyncio.get_running_loop().call_soon(count)

    def counted(*arguments: Any) -> Any:
        calls[iteration] += 1
        return function(*arguments)

    monkeypatch.setattr(module, name, counted)
    broker.call(count)
    return calls


@pytest.mark.parametrize(
    ("api", "version", "fields", "module", "described", "limit", "total"),
    [
        ("metadata", 12, {"topics": None}, cluster, "_partition", cluster.PARTITIONS_PER_ITERATION, PARTITIONS),
        (
            "describe_log_dirs",
            4,
            {"topics": None},
            log_dirs,
            "_describe",
            log_dirs.PARTITIONS_PER_ITERATION,
            PARTITIONS,
        ),
        (
            "list_offsets",
            6,
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "large", "partitions": LATEST}]},
            offsets,
            "_find",
            offsets.PARTITIONS_PER_ITERATION,
            PARTITIONS,
        ),
        (
            "describe_configs",
            4,
            {"resources": RESOURCES},
            configs,
            "_describe",
            configs.RESOURCES_PER_ITERATION,
            TOPICS,
        ),
    ],
    ids=["metadata", "describe_log_dirs", "list_offsets", "describe_configs"],
)
def test_concurrent_large_requests_take_one_slice_per_iteration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: str,
    version: int,
    fields: dict[str, Any],
    module: Any,
    described: str,  # the function that describes a part of a slice, or a slice
    limit: int,  # of its calls per iteration
    total: int,  # of its calls per request, at least
) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one, broker.connect() as two:
        topics = {"large": PARTITIONS} | {f"t-{index}": 1 for index in range(TOPICS)}
        new = [{"name": name, "num_partitions": number, "replication_factor": 1} for name, number in topics.items()]
        created = one.call("create_topics", 7, {"topics": new, "timeout": 30_000})
        assert {topic.error_code for topic in created.topics} == {0}
        per_iteration = calls_per_iteration(broker, monkeypatch, module, described)
        for connection in (one, two):
            connection.send(api, version, fields)
        sizes = [len(str(connection.receive()[1])) for connection in (one, two)]
    assert min(sizes) > 10 * TOPICS
    assert sum(per_iteration.values()) >= total
    assert max(per_iteration.values()) <= limit


def test_the_markers_of_a_large_transaction_are_written_over_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 2 * transactions.MARKERS_PER_ITERATION + 1
    with BrokerThread(tmp_path) as broker:
        topic = broker.topic(partitions=partitions)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "large"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for index in range(partitions):
            producer.produce(topic, b"x", partition=index)
        producer.flush(30)
        calls = calls_per_iteration(broker, monkeypatch, transactions, "write_marker")
        producer.commit_transaction(30)
        until(lambda: sum(calls.values()) == partitions)
        ends = broker.call(lambda: {broker.partition(topic, index).last_stable_offset for index in range(partitions)})
    assert ends == {2}
    assert max(calls.values()) <= transactions.MARKERS_PER_ITERATION


def test_many_transaction_markers_are_written_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("large", PARTITIONS)
        calls = calls_per_iteration(broker, monkeypatch, coordinator_api, "_write")
        topics = [{"name": "large", "partition_indexes": range(PARTITIONS)}]
        marker = {"producer_id": 7, "producer_epoch": 0, "transaction_result": True, "topics": topics}
        answer = one.call("write_txn_markers", 1, {"markers": [marker]})
    (results,) = [topic.partitions for topic in answer.markers[0].topics]
    assert [(one.partition_index, one.error_code) for one in results] == [(n, 0) for n in range(PARTITIONS)]
    assert max(calls.values()) <= coordinator_api.MARKERS_PER_ITERATION and calls.total() == PARTITIONS


def produce_of(topic: str, batches: Mapping[int, bytes]) -> dict[str, Any]:
    parts = [{"index": index, "records": records} for index, records in batches.items()]
    return {"acks": -1, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": parts}]}


def test_a_produce_to_many_partitions_is_appended_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one, broker.connect() as two:
        broker.create("large", PARTITIONS)
        calls = calls_per_iteration(broker, monkeypatch, Partition, "append")
        for connection in (one, two):
            connection.send("produce", 9, produce_of("large", dict.fromkeys(range(PARTITIONS), batch(b"first"))))
        one.send("produce", 9, produce_of("large", {PARTITIONS - 1: batch(b"last")}))  # waits for the first
        results = [connection.receive()[1].responses[0].partition_responses for connection in (one, two, one)]
        last = [bytes(each) for each in broker.call(lambda: read_all(broker.partition("large", PARTITIONS - 1).log))]
    assert [[part.error_code for part in each] for each in results] == [[0] * PARTITIONS, [0] * PARTITIONS, [0]]
    assert max(calls.values()) <= parked_produce.PARTITIONS_PER_ITERATION + 1
    assert calls.total() == 2 * PARTITIONS + 1
    assert results[2][0].base_offset > results[0][-1].base_offset and len(last) == 3


def test_large_batches_in_a_produce_to_many_partitions(tmp_path: Path) -> None:
    """A thread prepares those from the first large batch on; they are appended in slices again."""
    large = bytes(encode([Record(0, 0, b"key", b"x" * 100)] * 1_000, codec=Codec.ZSTD))
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        topic = broker.topic(partitions=PARTITIONS, compression_type="gzip")
        some = {index: large if index % 400 == 50 else batch(b"small") for index in range(PARTITIONS)}
        for base_offset in (0, 1_000):
            (found,) = one.call("produce", 9, produce_of(topic, some)).responses
            assert {part.index: part.error_code for part in found.partition_responses} == dict.fromkeys(some, 0)
            assert [part.base_offset for part in found.partition_responses if part.index == 50] == [base_offset]


def fetch_of(topic: str, offset: int, min_bytes: int) -> dict[str, Any]:
    parts = [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1_000} for index in range(PARTITIONS)]
    topics = [{"topic": topic, "partitions": parts}]
    return {"max_bytes": 50 << 20, "max_wait": 60_000, "min_bytes": min_bytes, "session_epoch": -1, "topics": topics}


def test_a_fetch_of_many_partitions_is_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one, broker.connect() as two:
        broker.create("large", PARTITIONS)
        one.call("produce", 9, produce_of("large", dict.fromkeys(range(PARTITIONS), batch(b"first"))))
        calls = calls_per_iteration(broker, monkeypatch, FetchRead, "_read_partition")
        for connection in (one, two):
            connection.send("fetch", 12, fetch_of("large", 0, 1))
        found = [connection.receive()[1].responses[0].partitions for connection in (one, two)]
    assert [[bool(part.records) for part in each] for each in found] == [[True] * PARTITIONS] * 2
    assert max(calls.values()) <= large_fetch.PARTITIONS_PER_ITERATION and calls.total() == 2 * PARTITIONS


def test_a_fetch_of_many_partitions_waits_for_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one, broker.connect() as two:
        broker.create("large", PARTITIONS)
        calls = calls_per_iteration(broker, monkeypatch, FetchRead, "_read_partition")
        one.send("fetch", 12, fetch_of("large", 0, 1))
        until(lambda: bool(broker.call(lambda: broker.partition("large", PARTITIONS - 1).watchers)))
        two.call("produce", 9, produce_of("large", {PARTITIONS - 1: batch(b"x")}))
        (found,) = one.receive()[1].responses
        watchers = broker.call(lambda: broker.partition("large", PARTITIONS - 1).watchers)
    assert [part.partition_index for part in found.partitions if part.records] == [PARTITIONS - 1]
    assert not watchers
    assert max(calls.values()) <= large_fetch.PARTITIONS_PER_ITERATION and calls.total() == 2 * PARTITIONS


def test_a_large_fetch_whose_client_is_gone_watches_nothing(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("large", PARTITIONS)
        one.send("fetch", 12, fetch_of("large", 0, 1))
        until(lambda: bool(broker.call(lambda: broker.partition("large", PARTITIONS - 1).watchers)))
        one.socket.close()
        until(lambda: not broker.call(lambda: broker.partition("large", PARTITIONS - 1).watchers))


def succeeds(connection: Connection, api: str, version: int, fields: dict[str, Any]) -> None:
    """Send a request until it does not fail: the coordinator may be loading."""
    until(lambda: connection.call(api, version, fields).error_code == 0)


def find_coordinators(connection: Connection) -> None:
    for key_type in (0, 1):
        succeeds(connection, "find_coordinator", 3, {"key": "k", "key_type": key_type})


@pytest.mark.parametrize(
    "subscription",
    [
        {"subscribed_topic_names": (), "subscribed_topic_regex": "t-.*"},
        {"subscribed_topic_names": [f"t-{index}" for index in range(consumer_groups.TOPIC_NAMES_MAX + 1)]},
    ],
    ids=["regex", "names"],
)
def test_an_expensive_heartbeat_has_a_loop_iteration_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subscription: dict[str, Any]
) -> None:
    joining = {"member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": (), **subscription}
    with BrokerThread(tmp_path) as broker, broker.connect() as one, broker.connect() as two:
        find_coordinators(one)
        calls = calls_per_iteration(broker, monkeypatch, consumer_requests, "heartbeat")
        for connection in (one, two):
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # they arrive at once
            for number in range(10):
                own = {"group_id": f"g-{number}", "member_id": str(uuid4()), **joining}
                connection.send("consumer_group_heartbeat", 1, own)
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        answers = [connection.receive()[1] for connection in (one, two) for _ in range(10)]
    assert {answer.error_code for answer in answers} == {0}
    assert (calls.total(), max(calls.values())) == (20, 1)


def test_many_transactions_are_listed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_api, "TRANSACTIONS_PER_ITERATION", 7)
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        find_coordinators(one)
        for number in range(30):
            new = {"transactional_id": f"t-{number}", "transaction_timeout": 60_000, "producer_id": -1}
            succeeds(one, "init_producer_id", 4, new | {"producer_epoch": -1})
        calls = calls_per_iteration(broker, monkeypatch, coordinator_api, "_listed")
        answers = [
            one.call("list_transactions", 2, {"duration_filter": -1, "transactional_id_pattern": pattern})
            for pattern in (None, "t-1.*")
        ]
    assert [len(answer.transaction_states) for answer in answers] == [30, 11]
    assert max(calls.values()) <= 7


def test_many_groups_are_deleted_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"g-{number}" for number in range(groups_api.GROUPS_PER_ITERATION + 50)]
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        find_coordinators(one)
        topic = broker.topic()
        part = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        for name in names:
            own = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": "", "topics": part}
            assert one.call("offset_commit", 8, own).topics[0].partitions[0].error_code == 0
        calls = calls_per_iteration(broker, monkeypatch, GroupsMachine, "delete_group")
        results = one.call("delete_groups", 2, {"groups_names": names}).results
        again = one.call("delete_groups", 2, {"groups_names": names[:1]}).results
    assert [(result.group_id, result.error_code) for result in results] == [(name, 0) for name in names]
    assert [result.error_code for result in again] == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert max(calls.values()) <= groups_api.GROUPS_PER_ITERATION


def test_the_producers_of_many_partitions_are_described_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("large", PARTITIONS)
        calls = calls_per_iteration(broker, monkeypatch, producers_api, "_producers")
        topics = [{"name": "large", "partition_indexes": range(PARTITIONS)}]
        (found,) = one.call("describe_producers", 0, {"topics": topics}).topics
    assert [(part.partition_index, part.error_code) for part in found.partitions] == [(n, 0) for n in range(PARTITIONS)]
    assert max(calls.values()) <= producers_api.PARTITIONS_PER_ITERATION

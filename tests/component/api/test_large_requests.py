"""Requests about thousands of topics or partitions: handled in slices, one slice per loop iteration."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.broker import BrokerThread
from tests.support.waiting import until

from levada.api.admin import cluster, configs, log_dirs
from levada.api.coordinator import transactions as coordinator_api
from levada.api.data import offsets
from levada.broker.coordinator import transactions

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

"""Errors and partitions leave no reference cycles: there may be 100,000 of them, and the collector runs rarely."""

import gc
from typing import Any
from weakref import ref

import pytest
from tests.support.broker import BrokerThread
from tests.support.raw import Connection, batch, fetch, produce
from tests.support.waiting import until

from levada.errors import KafkaError

COUNT = 50
REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "delete_groups": (1, {"groups_names": [f"never-{number}" for number in range(COUNT)]}),
    "describe_transactions": (0, {"transactional_ids": [f"never-{number}" for number in range(COUNT)]}),
    "create_topics": (
        5,
        {"topics": [{"name": f"a/{number}", "num_partitions": 1, "replication_factor": 1} for number in range(COUNT)]},
    ),
    "create_partitions": (
        1,
        {"topics": [{"name": f"never-{number}", "count": 3} for number in range(COUNT)]},
    ),
    "delete_topics": (5, {"topic_names": [f"never-{number}" for number in range(COUNT)]}),
    "incremental_alter_configs": (
        1,
        {"resources": [{"resource_type": 2, "resource_name": f"never-{number}"} for number in range(COUNT)]},
    ),
}


@pytest.mark.parametrize("api", REFUSED)
def test_errors_leave_no_cycles(api: str, wire: Connection) -> None:
    for kind in (0, 1):
        wire.call("find_coordinator", 4, {"key_type": kind, "coordinator_keys": ["never"]})
    version, fields = REFUSED[api]
    wire.call(api, version, fields)  # what is imported on first use may leave some
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        wire.call(api, version, fields)
        wire.call("api_versions", 0)  # the one before is done with by then
        gc.collect()
        left = sum(isinstance(one, KafkaError) for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == 0


def test_deleted_partitions_are_freed_without_the_collector(broker: BrokerThread, wire: Connection) -> None:
    """They may be frozen, so that it never visits them."""
    wire.call("create_topics", 7, {"topics": [{"name": "orders", "num_partitions": 3, "replication_factor": 1}]})
    produce(wire, "orders", batch(b"x"))
    fetch(wire, "orders", 0)
    gc.collect()
    gc.disable()
    try:
        partitions = [ref(one) for one in broker.broker.partitions.values() if one.topic == "orders"]
        assert len(partitions) == 3
        broker.delete("orders")
        wire.call("api_versions", 0)
        until(lambda: all(one() is None for one in partitions))
    finally:
        gc.enable()

"""Requests about thousands of topics or partitions: handled in slices, one slice per loop iteration."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import BrokerThread

from levada.api.admin import cluster, configs, log_dirs

PARTITIONS, TOPICS = 1_200, 60
RESOURCES = [{"resource_type": 2, "resource_name": f"t-{index}", "configuration_keys": None} for index in range(TOPICS)]


@pytest.mark.parametrize(
    ("api", "version", "fields", "module", "described", "limit", "total"),
    [
        ("metadata", 12, {"topics": None}, cluster, "_partition", cluster.PARTITIONS_PER_ITERATION, PARTITIONS),
        ("describe_log_dirs", 4, {"topics": None}, log_dirs, "_describe", 1, 3),
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
    ids=["metadata", "describe_log_dirs", "describe_configs"],
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
    per_iteration, iteration, describe = Counter[int](), 0, getattr(module, described)

    def count() -> None:
        nonlocal iteration
        iteration += 1
        asyncio.get_running_loop().call_soon(count)

    def counted(*arguments: Any) -> Any:
        per_iteration[iteration] += 1
        return describe(*arguments)

    with BrokerThread(tmp_path) as broker, broker.connect() as one, broker.connect() as two:
        topics = {"large": PARTITIONS} | {f"t-{index}": 1 for index in range(TOPICS)}
        new = [{"name": name, "num_partitions": number, "replication_factor": 1} for name, number in topics.items()]
        created = one.call("create_topics", 7, {"topics": new, "timeout": 30_000})
        assert {topic.error_code for topic in created.topics} == {0}
        monkeypatch.setattr(module, described, counted)
        broker.call(count)
        for connection in (one, two):
            connection.send(api, version, fields)
        sizes = [len(str(connection.receive()[1])) for connection in (one, two)]
    assert min(sizes) > 10 * TOPICS
    assert sum(per_iteration.values()) >= total
    assert max(per_iteration.values()) <= limit

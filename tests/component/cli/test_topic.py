"""`levada topic list PATTERN`, `describe` with sizes, and `trim`."""

import json

from tests.support.broker import BrokerThread
from tests.support.shell import Shell


def fill(shell: Shell, partitions: int = 2) -> None:
    """`orders` with five records in each partition, a minute apart."""
    shell("topic", "create", "orders", "-p", str(partitions))
    lines = [
        json.dumps({"value": f"{part}/{number}", "partition": part, "timestamp": 1_700_000_000_000 + number * 60_000})
        for part in range(partitions)
        for number in range(5)
    ]
    assert shell("produce", "orders", "-i", "jsonl", stdin="\n".join(lines).encode()).code == 0


def test_a_pattern_selects_topics(shell: Shell) -> None:
    shell("topic", "create", "shop-a", "shop-b", "other")
    assert shell("topic", "list", "shop-.*", "-q").lines() == ["shop-a", "shop-b"]
    assert [row["name"] for row in shell("topic", "list", "other|shop-a", "-o", "json").json()] == ["other", "shop-a"]
    nothing = shell("topic", "list", "shop")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no topic matches shop\n")
    assert "try: 'shop.*'" in shell("topic", "list", "shop*").err
    assert shell("topic", "list", "nothing", "-o", "json").json() == []
    assert shell("topic", "list", "(").code == 2


def test_describe_counts_records_and_bytes(shell: Shell, broker: BrokerThread) -> None:
    fill(shell)
    described = shell("topic", "describe", "orders", "-o", "json").json()
    sizes = [broker.partition("orders", index).log.size_bytes for index in range(2)]
    assert [(part["records"], part["bytes"]) for part in described["partitions"]] == [(5, size) for size in sizes]
    first, head, *_ = shell("topic", "describe", "orders").lines()
    assert first.endswith(f"   10 records, {sum(sizes)} B")
    assert head.split()[-3:] == ["LATEST", "RECORDS", "SIZE"]
    broker.fail_next("describe_log_dirs", "CLUSTER_AUTHORIZATION_FAILED")
    unknown = shell("topic", "describe", "orders", "-o", "json").json()
    assert [part["bytes"] for part in unknown["partitions"]] == [None, None]


def test_trim_to_an_offset_a_time_and_the_end(shell: Shell) -> None:
    fill(shell)
    refused = shell("topic", "trim", "orders", "--to-offset", "2", "-p", "1")
    assert refused.code == 1
    assert "delete 2 records of orders?" in refused.err and "try: --yes" in refused.err
    assert len(shell("consume", "orders", "-e").lines()) == 10

    done = shell("topic", "trim", "orders", "--to-offset", "2", "-p", "1", "--yes", "-o", "json")
    assert done.json() == [{"partition": 1, "earliest": 0, "new": 2, "latest": 5, "deleted": 2}]
    assert done.err == "deleted 2 records of orders\n"
    assert sorted(shell("consume", "orders", "-e", "-p", "1").lines()) == ["1/2", "1/3", "1/4"]

    assert shell("topic", "trim", "orders", "--to-datetime", "1700000180000", "--yes").code == 0
    assert sorted(shell("consume", "orders", "-e").lines()) == ["0/3", "0/4", "1/3", "1/4"]
    again = shell("topic", "trim", "orders", "--to-datetime", "1700000180000", "--yes")
    assert (again.code, again.err) == (0, "orders has no records to delete\n")

    assert shell("topic", "trim", "orders", "--all", "--yes").code == 0
    described = shell("topic", "describe", "orders", "-o", "json").json()
    assert [(part["earliest"], part["latest"]) for part in described["partitions"]] == [(5, 5), (5, 5)]
    assert shell("consume", "orders", "--from", "2").err.startswith(
        "error: offset 2 is deleted: orders-0 begins at 5, orders-1 begins at 5 "
    )


def test_what_trim_refuses(shell: Shell) -> None:
    fill(shell)
    beyond = shell("topic", "trim", "orders", "--to-offset", "6", "--yes")
    assert (beyond.code, beyond.out) == (1, "")
    assert beyond.err.startswith("error: offset 6 is beyond the end: orders-0 ends at 5\n")
    assert shell("topic", "trim", "orders", "--all", "-p", "7", "--yes").code == 4
    assert shell("topic", "trim", "ordrs", "--all", "--yes").code == 4
    assert shell("topic", "trim", "orders").code == 2
    assert shell("topic", "trim", "orders", "--all", "--to-offset", "1").code == 2
    assert len(shell("consume", "orders", "-e").lines()) == 10
    shell("topic", "create", "state", "-c", "cleanup.policy=compact")
    shell("produce", "state", "-K:", stdin=b"k:v\n")
    compacted = shell("topic", "trim", "state", "--all", "--yes")
    assert compacted.code == 5
    assert "POLICY_VIOLATION" in compacted.err

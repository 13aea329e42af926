"""Helpers of the tests of groups: topics, records, and waits for assignments and reads."""

import time
from collections.abc import Callable

from tests.compat.members.base import Members, Seen, shares
from tests.support import raw
from tests.support.waiting import until

GROUP_SETTINGS = {"group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 1_000}
PARTITIONS = 4

Start = Callable[..., Members]


def make_topic(wire: raw.Connection, name: str, partitions: int = PARTITIONS) -> str:
    new = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    wire.call("create_topics", 5, {"topics": [new], "timeout": 10_000})
    for partition in range(partitions):
        raw.wait_until_served(wire, name, partition)
    return name


def produce(wire: raw.Connection, topic: str, count: int) -> set[tuple[int, int]]:
    """So many records to each partition, one batch each; (partition, offset) of all."""
    written = set()
    for partition in range(PARTITIONS):
        records = raw.batch(*[b"value"] * count, timestamp=int(time.time() * 1000))  # retention takes old ones
        data = {"index": partition, "records": records}
        fields = {"acks": -1, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": [data]}]}
        (done,) = wire.call("produce", 12, fields).responses[0].partition_responses
        assert done.error_code == 0
        written |= {(partition, done.base_offset + number) for number in range(count)}
    return written


def wait_for_shares(*members: tuple[Members, str], partitions: int = PARTITIONS) -> list[Seen]:
    """Until every partition has exactly one owner among these members."""
    seen: list[Seen] = []

    def look() -> bool:
        seen[:] = [program.look(name) for program, name in members]
        return shares(seen, partitions)

    until(look, lambda: [sorted(one.partitions) for one in seen])
    return list(seen)


def wait_for_records(expected: set[tuple[int, int]], *members: tuple[Members, str]) -> list[tuple[int, int]]:
    """Until all of these were read; everything that was read, by anybody."""
    read: list[tuple[int, int]] = []

    def look() -> bool:
        read[:] = [record for program, name in members for record in program.look(name).records]
        return expected <= set(read)

    until(look, lambda: f"{len(expected - set(read))} of {len(expected)} records are missing")
    return list(read)

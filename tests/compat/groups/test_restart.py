"""A broker that is killed under its groups: members go on where they had committed, and nothing is lost (R32, R34)."""

import signal
import time
from pathlib import Path

import pytest
from tests.compat.features import Feature, shows
from tests.compat.members.base import MEMBERS, Members, until
from tests.support import raw
from tests.support.downloads import Unavailable, must_be_had
from tests.support.server import Server

SETTINGS = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1_000}
PARTITIONS = 4


def produce(address: str, count: int) -> None:
    """So many records to each partition."""
    with raw.Connection(address) as wire:
        for partition in range(PARTITIONS):
            records = raw.batch(*[b"value"] * count, timestamp=int(time.time() * 1000))
            data = {"index": partition, "records": records}
            fields = {"acks": -1, "timeout": 10_000, "topic_data": [{"name": "t", "partition_data": [data]}]}
            (done,) = wire.call("produce", 12, fields).responses[0].partition_responses
            assert done.error_code == 0


def read(program: Members) -> list[tuple[int, int]]:
    return [record for member in ("a", "b") for record in program.look(member).records]


@shows(Feature.GROUPS_KILL)
@pytest.mark.parametrize("kind", MEMBERS, ids=[kind.name for kind in MEMBERS])
def test_a_group_goes_on_after_its_broker_was_killed(tmp_path: Path, kind: type[Members]) -> None:
    with Server(tmp_path, SETTINGS) as server:
        with raw.Connection(server.address) as wire:
            new = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1}
            wire.call("create_topics", 5, {"topics": [new], "timeout": 10_000})
        try:
            program = kind(server.address)
        except Unavailable as missing:
            must_be_had(kind.name, missing)
        try:
            for member in ("a", "b"):
                program.join(member, "g", "t", session_timeout_ms=6_000)
            until(
                lambda: sorted(len(program.look(member).partitions) for member in ("a", "b")) == [2, 2],
                lambda: [program.look(member) for member in ("a", "b")],
            )
            produce(server.address, 5)
            until(lambda: len(set(read(program))) == 5 * PARTITIONS, lambda: len(set(read(program))))
            for member in ("a", "b"):
                program.commit(member, "before")
            server.stop(signal.SIGKILL)
            server.start()
            produce(server.address, 5)
            until(lambda: len(set(read(program))) == 10 * PARTITIONS, lambda: len(set(read(program))))
            again = [offset for _, offset in read(program) if offset < 5]
            assert len(again) == 5 * PARTITIONS, "what was committed is not read again"
            until(
                lambda: program.committed("g", "t") == dict.fromkeys(range(PARTITIONS), (5, "before")),
                lambda: program.committed("g", "t"),
            )
        finally:
            program.close()

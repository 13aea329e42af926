"""A broker killed under its groups: members resume from committed offsets and lose nothing."""

import signal
from pathlib import Path

import pytest
from tests.compat.features import Feature, shows
from tests.compat.groups.members import GROUP_SETTINGS, PARTITIONS, produce
from tests.compat.members.base import MEMBERS, Members
from tests.support import raw
from tests.support.broker import BrokerProcess
from tests.support.downloads import Unavailable, must_be_had
from tests.support.waiting import until

from levada.testing.embedded import settings_by_kafkas_names


def write(server: BrokerProcess) -> None:
    with server.connect() as wire:
        produce(wire, "t", 5)


def read(program: Members) -> list[tuple[int, int]]:
    return [record for member in ("a", "b") for record in program.look(member).records]


@shows(Feature.GROUPS_KILL)
@pytest.mark.parametrize("kind", MEMBERS, ids=[kind.name for kind in MEMBERS])
def test_a_group_goes_on_after_its_broker_was_killed(tmp_path: Path, kind: type[Members]) -> None:
    with BrokerProcess(tmp_path, settings_by_kafkas_names(GROUP_SETTINGS)) as server:
        with raw.Connection(server.bootstrap) as wire:
            new = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1}
            wire.call("create_topics", 5, {"topics": [new], "timeout": 10_000})
        try:
            program = kind(server.bootstrap)
        except Unavailable as missing:
            must_be_had(kind.name, missing)
        try:
            for member in ("a", "b"):
                program.join(member, "g", "t", session_timeout_ms=6_000)
            until(
                lambda: sorted(len(program.look(member).partitions) for member in ("a", "b")) == [2, 2],
                lambda: [program.look(member) for member in ("a", "b")],
            )
            write(server)
            until(lambda: len(set(read(program))) == 5 * PARTITIONS, lambda: len(set(read(program))))
            for member in ("a", "b"):
                program.commit(member, "before")
            server.stop(signal.SIGKILL)
            server.start()
            write(server)
            until(lambda: len(set(read(program))) == 10 * PARTITIONS, lambda: len(set(read(program))))
            again = [offset for _, offset in read(program) if offset < 5]
            assert len(again) == 5 * PARTITIONS, "what was committed is not read again"
            until(
                lambda: program.committed("g", "t") == dict.fromkeys(range(PARTITIONS), (5, "before")),
                lambda: program.committed("g", "t"),
            )
        finally:
            program.close()

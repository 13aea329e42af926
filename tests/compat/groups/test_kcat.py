"""kcat as a member of groups (`kcat -G`): many a shell script reads that way."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.compat.drivers.kcat import install
from tests.compat.features import Feature, shows
from tests.compat.groups.members import GROUP_SETTINGS, PARTITIONS, produce
from tests.support import raw
from tests.support.broker import BrokerProcess
from tests.support.downloads import Unavailable, must_be_had
from tests.support.waiting import until

pytestmark = pytest.mark.broker(**GROUP_SETTINGS)
Place = tuple[int, int]  # partition and offset


class Reader:
    """One `kcat -G`, by what it prints: records, and its assignments on stderr."""

    def __init__(self, folder: Path, number: int, address: str, topic: str) -> None:
        self._out, self._talk = folder / f"{number}.out", folder / f"{number}.err"
        command = [install(), "-b", address, "-G", "shell", topic, "-u", "-f", "%p %o\n"]
        for setting in ("auto.offset.reset=earliest", "session.timeout.ms=3000", "heartbeat.interval.ms=200"):
            command += ["-X", setting]
        with self._out.open("wb") as out, self._talk.open("wb") as talk:
            self.process = subprocess.Popen(command, stdout=out, stderr=talk)

    @property
    def partitions(self) -> set[int]:
        rebalances = re.findall(r"rebalanced.*: (assigned|revoked):(.*)\n", self._talk.read_text())
        if not rebalances or rebalances[-1][0] == "revoked":
            return set()
        return {int(number) for number in re.findall(r"\[(\d+)\]", rebalances[-1][1])}

    @property
    def records(self) -> list[Place]:
        lines = re.findall(r"(\d+) (\d+)\n", self._out.read_text())  # the last may not be whole yet
        return [(int(partition), int(offset)) for partition, offset in lines]

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(30)


@pytest.fixture
def join(server: BrokerProcess, tmp_path: Path) -> Iterator[Callable[[], Reader]]:
    readers: list[Reader] = []

    def begin() -> Reader:
        try:
            readers.append(Reader(tmp_path, len(readers), server.bootstrap, "t"))
        except Unavailable as missing:
            must_be_had("kcat", missing)
        return readers[-1]

    yield begin
    for reader in readers:
        reader.process.kill()
        reader.process.wait(30)


@shows(Feature.GROUPS, clients=["kcat"])
def test_readers_share_partitions_and_those_who_are_gone_are_replaced(
    server: BrokerProcess, join: Callable[[], Reader]
) -> None:
    with raw.Connection(server.bootstrap) as wire:
        new = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1}
        wire.call("create_topics", 5, {"topics": [new], "timeout": 10_000})
        written = produce(wire, "t", 3)
        one = join()
        until(lambda: written <= set(one.records), lambda: one.records)
        other = join()
        until(lambda: len(one.partitions) == len(other.partitions) == 2, lambda: one.partitions)
        assert not one.partitions & other.partitions
        fresh = produce(wire, "t", 3)
        until(lambda: fresh <= {*one.records, *other.records}, lambda: [one.records, other.records])
        other.end(signal.SIGKILL)
        until(lambda: len(one.partitions) == PARTITIONS, lambda: one.partitions)
        last = produce(wire, "t", 3)
        until(lambda: last <= set(one.records), lambda: one.records)
        one.end(signal.SIGTERM)
        after = produce(wire, "t", 1)
        next_one = join()
        until(lambda: after <= set(next_one.records), lambda: next_one.records)
        assert set(next_one.records) == after, "it goes on where the group has committed"

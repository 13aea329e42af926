"""Transactions with every client that has them (R31-R33): commits, aborts, fencing, offsets, and what readers see."""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.cache import Unavailable
from tests.compat import raw
from tests.compat.drivers.base import ClientError, Create, Driver, Record, eventually
from tests.compat.transactors.base import LAST, TRANSACTORS, ConfluentTransactors, Transactors

Connect = Callable[[type[Transactors]], Transactors]


@pytest.fixture(scope="module")
def connect_transactors(broker: str) -> Iterator[Connect]:
    """Gives the one living program of a client; installs and starts it the first time."""
    living: dict[type[Transactors], Transactors] = {}

    def get(wanted: type[Transactors]) -> Transactors:
        if wanted not in living:
            try:
                living[wanted] = wanted(broker)
            except Unavailable as error:
                if os.environ.get("COMPAT_REQUIRE_ALL"):
                    pytest.fail(f"{wanted.name} cannot be had here: {error}")
                pytest.skip(f"{wanted.name} cannot be had here: {error}")
        return living[wanted]

    yield get
    for program in living.values():
        program.close()


@pytest.fixture(params=TRANSACTORS, ids=lambda program: program.name)
def transactors(request: pytest.FixtureRequest, connect_transactors: Connect) -> Transactors:
    return connect_transactors(request.param)


@pytest.fixture
def transactional_id() -> str:
    return f"transactor-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def finish(reference: Driver) -> Callable[[str, int], None]:
    """Writes what readers read up to, outside of any transaction."""

    def write(topic: str, partitions: int = 1) -> None:
        for partition in range(partitions):
            reference.produce(topic, [Record(LAST.encode())], partition)

    return write


@pytest.fixture
def committed_offset(wire: raw.Connection) -> Callable[[str, str], int]:
    """The committed offset of partition 0 as any reader is told, without waiting for open transactions."""

    def look(group: str, topic: str) -> int:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = wire.call("offset_fetch", 5, asked)
        assert answer.error_code == 0
        return int(answer.topics[0].partitions[0].committed_offset)

    return look


def test_readers_of_committed_records_see_what_was_committed(
    transactors: Transactors, transactional_id: str, topic: str, finish: Callable[[str], None]
) -> None:
    transactors.init("a", transactional_id)
    for number in range(6):
        values = [f"{number}.{i}" for i in range(3)]
        transactors.transact("a", topic, values, commit=number % 3 != 1)
    finish(topic)
    everything = [f"{number}.{i}" for number in range(6) for i in range(3)]
    committed = [value for value in everything if value[0] not in "14"]
    assert transactors.read(topic, committed=True) == [committed]
    assert transactors.read(topic, committed=False) == [everything]


def test_a_transaction_spans_partitions(
    transactors: Transactors,
    transactional_id: str,
    name: str,
    create: Create,
    finish: Callable[[str, int], None],
) -> None:
    topic = create(name, partitions=3)
    transactors.init("b", transactional_id)
    for commit in (True, False, True):
        transactors.begin("b")
        for partition in range(3):
            transactors.send("b", topic, [f"{commit} {partition}"], partition)
        transactors.end("b", commit)
    finish(topic, 3)
    assert transactors.read(topic, 3) == [[f"True {partition}"] * 2 for partition in range(3)]


def test_a_new_producer_fences_the_one_before_and_its_open_transaction_is_aborted(
    transactors: Transactors, transactional_id: str, topic: str, finish: Callable[[str], None]
) -> None:
    transactors.init("old", transactional_id)
    transactors.begin("old")
    transactors.send("old", topic, ["left open"])
    transactors.init("new", transactional_id)
    with pytest.raises(ClientError) as caught:
        transactors.end("old", commit=True)
    assert "fenced" in f"{caught.value.name} {caught.value}".lower() or "epoch" in str(caught.value).lower()
    transactors.transact("new", topic, ["after"], commit=True)
    finish(topic)
    assert transactors.read(topic) == [["after"]]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_offsets_count_with_the_transaction_that_carries_them(
    transactors: Transactors,
    transactional_id: str,
    topic: str,
    commit: bool,
    committed_offset: Callable[[str, str], int],
) -> None:
    group = f"group-{transactional_id}"
    transactors.init("c", transactional_id)
    transactors.begin("c")
    transactors.send("c", topic, ["x"])
    transactors.send_offset("c", group, topic, 7)
    assert committed_offset(group, topic) == -1
    transactors.end("c", commit)
    assert committed_offset(group, topic) == (7 if commit else -1)


def test_clients_understand_each_others_transactions(
    connect_transactors: Connect, topic: str, finish: Callable[[str], None]
) -> None:
    """What one client writes in transactions every other reads rightly."""
    programs = []
    for kind in TRANSACTORS:
        try:
            programs.append(connect_transactors(kind))
        except pytest.skip.Exception:
            continue
    expected = []
    for number, program in enumerate(programs):
        program.init("d", f"everybody-{uuid.uuid4().hex}")
        for commit in (True, False):
            value = f"{program.name} {commit}"
            program.transact("d", topic, [value], commit)
            expected += [value] if commit else []
        assert number < len(TRANSACTORS)
    finish(topic)
    for program in programs:
        assert program.read(topic) == [expected], program.name


def test_an_open_transaction_hides_what_comes_after_it(
    connect_transactors: Connect, transactional_id: str, topic: str, reference: Driver, wire: raw.Connection
) -> None:
    """The last stable offset is what a reader of committed records is told as the end."""

    def end_offset(isolation_level: int) -> int:
        place = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [place]}]}
        answer = wire.call("list_offsets", 7, asked | {"isolation_level": isolation_level})
        return int(answer.topics[0].partitions[0].offset)

    program = connect_transactors(ConfluentTransactors)
    program.init("e", transactional_id)
    program.begin("e")
    program.send("e", topic, ["open"])
    reference.produce(topic, [Record(b"plain")])
    assert (end_offset(0), end_offset(1)) == (2, 0)
    program.end("e", commit=False)
    eventually(lambda: (end_offset(0), end_offset(1)), (3, 3))
    reference.produce(topic, [Record(LAST.encode())])
    assert program.read(topic) == [["plain"]]

"""Transactions with every client that has them: commits, aborts, fencing, offsets, and what readers see."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.compat.drivers.base import ClientError, Create, Driver, Record, eventually
from tests.compat.features import Feature, shows
from tests.compat.transactors.base import LAST, TRANSACTORS, ConfluentTransactors, Transactors
from tests.support import raw
from tests.support.downloads import Unavailable, must_be_had

Connect = Callable[[type[Transactors]], Transactors]
READ_COMMITTED = 1


def end_offset(wire: raw.Connection, topic: str, isolation_level: int = 0) -> int:
    """The end offset of partition 0 for a reader."""
    place = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [place]}]}
    answer = wire.call("list_offsets", 7, asked | {"isolation_level": isolation_level})
    return int(answer.topics[0].partitions[0].offset)


@pytest.fixture(scope="module")
def connect_transactors(broker: str) -> Iterator[Connect]:
    """Gives the one living program of a client; installs and starts it the first time."""
    living: dict[type[Transactors], Transactors] = {}

    def get(wanted: type[Transactors]) -> Transactors:
        if wanted not in living:
            try:
                living[wanted] = wanted(broker)
            except Unavailable as error:
                must_be_had(wanted.name, error)
        return living[wanted]

    yield get
    for program in living.values():
        program.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `transactors` runs once for each client that has what the test needs."""
    if "transactors" in metafunc.fixturenames:
        needed = {ability for mark in metafunc.definition.iter_markers("needs") for ability in mark.args}
        chosen = [kind for kind in TRANSACTORS if not kind.lacks & needed]
        names = [kind.name for kind in chosen]
        metafunc.parametrize("transactors", chosen, ids=names, indirect=True, scope="module")


@pytest.fixture(scope="module")
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
    """The committed offset of partition 0 for any reader, without waiting for open transactions."""

    def look(group: str, topic: str) -> int:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = wire.call("offset_fetch", 5, asked)
        assert answer.error_code == 0
        return int(answer.topics[0].partitions[0].committed_offset)

    return look


@shows(Feature.TRANSACTIONS, Feature.ABORTED)
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


@shows(Feature.TRANSACTIONS)
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


@shows(Feature.FENCING)
def test_a_new_producer_fences_the_one_before_and_its_open_transaction_is_aborted(
    transactors: Transactors, transactional_id: str, topic: str, finish: Callable[[str], None]
) -> None:
    transactors.init("old", transactional_id)
    transactors.begin("old")
    transactors.send("old", topic, ["left open"])
    transactors.init("new", transactional_id)
    with pytest.raises(ClientError) as caught:
        transactors.end("old", commit=True)
    assert is_fenced(caught.value)
    transactors.transact("new", topic, ["after"], commit=True)
    finish(topic)
    assert transactors.read(topic) == [["after"]]


def is_fenced(error: ClientError) -> bool:
    """Clients have different words for it."""
    text = f"{error.name} {error}".lower()
    return "fenced" in text or "epoch" in text


@shows(Feature.FENCING)
def test_the_next_producer_ends_what_a_killed_one_left_open(
    transactors: Transactors, broker: str, transactional_id: str, topic: str, finish: Callable[[str], None]
) -> None:
    """Long before the timeout: readers wait for the next of that id, no longer."""
    killed = type(transactors)(broker)
    killed.init("a", transactional_id)
    killed.transact("a", topic, ["whole"], commit=True)
    killed.begin("a")
    killed.send("a", topic, ["half"])
    killed.kill()
    killed.close()
    transactors.init("b", transactional_id)
    transactors.transact("b", topic, ["next"], commit=True)
    finish(topic)
    assert transactors.read(topic) == [["whole", "next"]]


@shows(Feature.TIMEOUT)
def test_a_transaction_that_takes_too_long_is_aborted(
    transactors: Transactors,
    transactional_id: str,
    topic: str,
    wire: raw.Connection,
    finish: Callable[[str], None],
) -> None:
    """The broker does so alone, and the producer gets an error."""
    transactors.init("slow", transactional_id, timeout_ms=1_000)
    transactors.begin("slow")
    transactors.send("slow", topic, ["too late"])
    asked = {"transactional_ids": [transactional_id]}
    eventually(
        lambda: wire.call("describe_transactions", 0, asked).transaction_states[0].transaction_state,
        "CompleteAbort",
    )
    finish(topic)
    with pytest.raises(ClientError):
        transactors.end("slow", commit=True)
    assert transactors.read(topic) == [[]]


@shows(Feature.TXN_OFFSETS)
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


@shows(Feature.TXN_MEMBERS)
@pytest.mark.needs("member")
def test_offsets_of_a_former_member_are_refused(
    transactors: Transactors,
    transactional_id: str,
    topic: str,
    wire: raw.Connection,
    committed_offset: Callable[[str, str], int],
) -> None:
    """A worker that was replaced cannot commit, however late it wakes up (KIP-447)."""
    group = f"group-{transactional_id}"
    transactors.init("f", transactional_id)
    transactors.join(group, topic)
    transactors.begin("f")
    transactors.send("f", topic, ["as a member"])
    transactors.send_offset("f", group, topic, 3)
    transactors.end("f", commit=True)
    assert committed_offset(group, topic) == 3
    (member,) = wire.call("describe_groups", 5, {"groups": [group]}).groups[0].members
    leaving = {"group_id": group, "members": [{"member_id": member.member_id}]}
    assert wire.call("leave_group", 4, leaving).error_code == 0
    transactors.begin("f")
    transactors.send("f", topic, ["as a stranger"])
    with pytest.raises(ClientError):
        transactors.send_offset("f", group, topic, 5)
    transactors.end("f", commit=False)
    assert committed_offset(group, topic) == 3


@shows(Feature.TXN_ADMIN)
@pytest.mark.needs("admin")
def test_operators_see_and_end_transactions(
    transactors: Transactors,
    transactional_id: str,
    topic: str,
    wire: raw.Connection,
    finish: Callable[[str], None],
) -> None:
    """KIP-664."""
    transactors.init("g", transactional_id)
    transactors.begin("g")
    transactors.send("g", topic, ["left open"])
    assert transactors.list_transactions()[transactional_id] == "Ongoing"
    assert transactors.describe_transaction(transactional_id) == ("Ongoing", [f"{topic}-0"])
    transactors.abort_in(topic)
    finish(topic)
    assert end_offset(wire, topic, READ_COMMITTED) == 3
    assert transactors.read(topic) == [[]]


def test_clients_understand_each_others_transactions(
    connect_transactors: Connect, topic: str, finish: Callable[[str], None]
) -> None:
    """What one client writes in transactions every other reads rightly."""
    programs = [connect_transactors(kind) for kind in TRANSACTORS]
    expected = []
    for program in programs:
        program.init("d", f"everybody-{uuid.uuid4().hex}")
        for commit in (True, False):
            value = f"{program.name} {commit}"
            program.transact("d", topic, [value], commit)
            expected += [value] if commit else []
    finish(topic)
    for program in programs:
        assert program.read(topic) == [expected], program.name


def test_an_open_transaction_hides_what_comes_after_it(
    connect_transactors: Connect, transactional_id: str, topic: str, reference: Driver, wire: raw.Connection
) -> None:
    """The last stable offset is the end for a reader of committed records."""

    def ends() -> tuple[int, int]:
        return end_offset(wire, topic), end_offset(wire, topic, READ_COMMITTED)

    program = connect_transactors(ConfluentTransactors)
    program.init("e", transactional_id)
    program.begin("e")
    program.send("e", topic, ["open"])
    reference.produce(topic, [Record(b"plain")])
    assert ends() == (2, 0)
    program.end("e", commit=False)
    eventually(ends, (3, 3))
    reference.produce(topic, [Record(LAST.encode())])
    assert program.read(topic) == [["plain"]]

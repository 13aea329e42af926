"""Stream writers without Spark: tasks, drivers and kills between them, against a broker.

`test_sink_model` tries every order of steps in a world of its own; this is about the steps as they are taken here.
"""

import json
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.spark.support.sink_tasks import Query, killed_at, rows, visible
from tests.support.broker import BrokerProcess
from tests.support.shell import Shell

from levada import Client
from levada.client.producer.transactions import PreparedTransaction
from levada.errors import KafkaError
from levada.spark import blocking, errors
from levada.spark.errors import CommitRefused
from levada.spark.write import driver, transactions
from levada.spark.write.commit_log import append_commit, read_last_commit
from levada.spark.write.commit_protocol import BatchContent, CommitRecord
from levada.spark.write.sink import TaskCommit
from levada.spark.write.transactions import driver_transactional_id, task_transactional_id
from levada.testing import EmbeddedBroker

NUMBERS = count(1)


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker.bootstrap, f"query-{next(NUMBERS)}", broker.topic(partitions=2))


@contextmanager
def coordinators_that_move() -> Iterator[None]:
    """Brokers list nothing, though nothing has ended."""

    async def silent(*_: object) -> list[str]:
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "open_transactions", silent)
        yield


def test_a_batch_is_seen_when_it_is_committed(query: Query) -> None:
    messages = [query.attempt(0, "ab"), query.attempt(0, "c", partition=1), query.attempt(0, [], partition=2)]
    assert query.visible() == []
    query.commit(0, *messages)
    assert query.visible() == ["a", "b", "c"]
    query.commit(1, query.attempt(1, "d"))
    assert query.visible() == ["a", "b", "c", "d"]


def test_what_a_task_leaves_for_the_driver_crosses_processes(query: Query) -> None:
    written = query.attempt(0, "a")
    assert pickle.loads(pickle.dumps(written)) == written


@pytest.mark.parametrize("step", ["read_last_commit", "_fence_all", "append_commit", "_commit"])
def test_a_driver_that_dies_at_a_step_is_followed_by_one_that_does_the_rest(query: Query, step: str) -> None:
    query.commit(0, query.attempt(0, "a"))
    messages = [query.attempt(1, "bc"), query.attempt(1, "d", partition=1)]
    if step == "read_last_commit":
        blocking.close()  # another process, which has to read it
    with killed_at(step):
        query.commit(1, *messages)
    assert query.visible() == ["a"]
    query.restarted()
    again = [query.attempt(1, "bc"), query.attempt(1, "d", partition=1)]
    assert [message.rows for message in again] == [2, 1]
    assert {message.prepared is None for message in again} == {step == "_commit"}
    query.commit(1, *again)
    assert query.visible() == ["a", "b", "c", "d"]
    query.commit(2, query.attempt(2, "e"))
    assert query.visible() == ["a", "b", "c", "d", "e"]


def test_a_batch_is_committed_though_no_broker_lists_its_transactions(query: Query) -> None:
    with coordinators_that_move():
        query.commit(0, query.attempt(0, "ab"), query.attempt(0, "c", partition=1))
    assert query.visible() == ["a", "b", "c"]


def test_a_committed_batch_is_finished_though_no_broker_lists_what_is_left(query: Query) -> None:
    with killed_at("_commit"):
        query.commit(0, query.attempt(0, "ab"), query.attempt(0, "c", partition=1))
    query.restarted()
    with coordinators_that_move():
        query.commit(0, query.attempt(0, "ab"), query.attempt(0, "c", partition=1))
    query.commit(1, query.attempt(1, "d"))
    assert query.visible() == ["a", "b", "c", "d"]


def test_a_batch_that_failed_is_aborted_though_no_broker_lists_it(query: Query) -> None:
    with coordinators_that_move():
        query.abort(0, query.attempt(0, "a"), None)
    assert task_transactional_id(query.name, 0, 0) not in Shell(query.bootstrap)("txn", "list", "--open").out


def test_a_commit_record_names_what_its_coordinator_has_forgotten(query: Query) -> None:
    """A transactional id that expired: its transaction has ended, and nobody knows how."""
    forgotten = task_transactional_id(query.name, 5, 0)

    async def append(client: Client) -> None:
        async with client.producer(transactional_id=driver_transactional_id(query.name)) as driver:
            _, partition = await read_last_commit(client, query.name)
            commit = CommitRecord(0, (PreparedTransaction(forgotten, 1 << 40, 3),))
            await append_commit(driver, query.name, commit, partition)

    blocking.run(append(blocking.client(query.bootstrap)))
    with pytest.raises(CommitRefused, match=f"{forgotten} has ended, and its coordinator does not know any more how"):
        query.commit(0, query.attempt(0, "a"))
    query.commit(1, query.attempt(1, "b"))
    assert query.visible() == ["b"]
    assert forgotten not in Shell(query.bootstrap)("txn", "list", "--open").out


def test_a_driver_that_goes_on_takes_nothing_over_and_reads_nothing_again(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.commit(0, query.attempt(0, "a"))
    monkeypatch.setattr(driver, "_take_over", None)
    query.commit(1, query.attempt(1, "b"), query.attempt(1, "c", partition=1))
    query.commit(2, query.attempt(2, "d"))
    assert query.visible() == ["a", "b", "c", "d"]


def test_a_driver_that_goes_on_finds_what_another_driver_has_committed(query: Query) -> None:
    """Its tasks have used the transactional ids again: nobody can tell how the committed transactions ended."""
    query.commit(0, query.attempt(0, "a"))

    async def other_driver(written: TaskCommit) -> None:
        async with Client(query.bootstrap) as client:
            assert written.prepared is not None
            await driver.end_batch(client, query.name, 1, [written.prepared], content=BatchContent(written.rows))

    blocking.run(other_driver(query.attempt(1, "b")))
    mine = query.attempt(1, "b")
    with pytest.raises(CommitRefused, match=r"batch 1 of query .* is in the commit log"):
        query.commit(1, mine)
    assert query.visible() == ["a", "b"]


def test_a_driver_that_starts_settles_what_an_earlier_one_left(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """When Spark plans its first batch, before any task runs."""
    name = f"query-{next(NUMBERS)}"
    (tmp_path / "metadata").write_text(json.dumps({"id": name}))
    query = Query(broker.bootstrap, name, broker.topic(partitions=2), checkpointLocation=str(tmp_path))
    with killed_at("_commit"):
        query.commit(0, query.attempt(0, "a"))
    query.attempt(1, "b")
    assert query.visible() == []
    pickle.dumps(query.restarted().writer())
    assert query.visible() == ["a"]
    assert name not in Shell(query.bootstrap)("txn", "list", "--open").out
    query.commit(1, query.attempt(1, "c"))
    assert query.visible() == ["a", "c"]


def test_a_batch_does_not_look_for_what_the_one_before_has_ended(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    fenced: list[str] = []

    async def recorded(client: Client, name: str, timeout_ms: int | None = None) -> transactions.Fenced:
        fenced.append(name)
        return await fence(client, name, timeout_ms)

    query.commit(0, *(query.attempt(0, "a", partition) for partition in range(5)))
    message, fence = query.attempt(1, "b", partition=1), transactions.fence
    monkeypatch.setattr(transactions, "fence", recorded)
    query.commit(1, message)
    assert fenced == [task_transactional_id(query.name, 1, 0)]
    fenced.clear()
    blocking.close()  # another process
    query.restarted()
    query.commit(1, query.attempt(1, "b", partition=1))
    assert fenced == []  # the process has read that it is committed


def test_a_driver_that_dies_after_all_is_done_writes_nothing_again(query: Query) -> None:
    query.commit(0, query.attempt(0, "ab"))
    query.restarted()
    message = query.attempt(0, "ab")
    assert message.prepared is None
    query.commit(0, message)
    assert query.visible() == ["a", "b"]


def test_a_repeated_batch_may_be_parted_into_other_tasks(query: Query) -> None:
    query.commit(0, query.attempt(0, "abc"), query.attempt(0, "d", partition=1))
    query.restarted()
    query.commit(0, *(query.attempt(0, row, partition) for partition, row in enumerate("dcba")))
    query.commit(1, query.attempt(1, "e"))
    assert query.visible() == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("step", ["_commit", None])
@pytest.mark.parametrize("other", ["", "ab", "abcd"])
def test_a_batch_that_is_committed_and_has_other_rows_now_is_refused(
    query: Query, other: str, step: str | None
) -> None:
    """A checkpoint restored to one batch before, which Spark plans again; the commit is finished all the same."""
    with killed_at(step) if step else nullcontext():
        query.commit(0, query.attempt(0, "abc"))
    for _ in range(2):
        query.restarted()
        message = query.attempt(0, other)
        with pytest.raises(CommitRefused, match=f"batch 0 .*has {len(other)} rows now and had 3"):
            query.commit(0, message)
        assert query.visible() == ["a", "b", "c"]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("repeated", ["refuse", "skip"])
def test_a_batch_that_is_committed_and_was_planned_anew_is_refused(
    broker: EmbeddedBroker, tmp_path: Path, scheme: str, repeated: str
) -> None:
    """As many rows up to other offsets; when a batch was planned is nothing that counts."""
    location = f"{scheme}{tmp_path}"
    options: dict[str, object] = {"checkpointLocation": location, "repeatedBatch": repeated}
    query = Query(broker.bootstrap, f"query-{next(NUMBERS)}", broker.topic(), **options)
    (tmp_path / "offsets").mkdir()

    def run(batch: int, row: str, planned_ms: int, ends: str) -> None:
        plan = f'v1\n{{"batchTimestampMs":{planned_ms}}}\n{ends}'
        (tmp_path / "offsets" / str(batch)).write_text(plan)
        query.restarted()
        query.commit(batch, query.attempt(batch, row))

    run(0, "a", 1, '{"t":{"0":1,"1":0}}')
    run(0, "a", 2, '{"t":{"0":1,"1":0}}')
    with pytest.raises(CommitRefused, match=r"batch 0 .* ends at other offsets now.*start with a new checkpoint"):
        run(0, "b", 3, '{"t":{"0":0,"1":1}}')
    run(1, "c", 4, '{"t":{"0":2,"1":1}}')
    assert query.visible() == ["a", "c"]


def test_a_query_that_gives_other_rows_each_time_goes_on_if_configured(broker: EmbeddedBroker) -> None:
    query = Query(broker.bootstrap, f"query-{next(NUMBERS)}", broker.topic(), repeatedBatch="skip")
    query.commit(0, query.attempt(0, "abc"))
    query.restarted()
    query.commit(0, query.attempt(0, "ab"))
    query.commit(1, query.attempt(1, "d"))
    assert query.visible() == ["a", "b", "c", "d"]
    with pytest.raises(CommitRefused, match="batch 1 of this query is committed already"):
        query.commit(0, query.attempt(0, "ab"))


def test_tasks_that_were_killed_are_aborted_with_the_batch(query: Query) -> None:
    query.attempt(0, "a")  # its process dies, and so it is tried again
    query.attempt(0, "a")
    query.commit(0, query.attempt(0, "a"))
    assert query.visible() == ["a"]


@pytest.mark.parametrize("winner", ["first", "second"])
def test_attempts_side_by_side_are_seen_once(query: Query, winner: str) -> None:
    """Speculative execution: whichever Spark takes for the one that counts."""
    numbers = [f"{number:0100}" for number in range(60_000)]
    seconds: list[TaskCommit] = []

    def first() -> Iterator[Any]:
        yield from rows(*numbers[:30_000])
        seconds.append(query.attempt(0, numbers))
        yield from rows(*numbers[30_000:])

    try:
        chosen = query.attempt_with(0, first())
    except KafkaError:
        chosen = seconds[0]
    query.commit(0, chosen if winner == "first" else seconds[0])
    assert query.visible() == numbers


def test_a_task_that_wakes_up_late_is_refused_or_aborted(query: Query) -> None:
    query.commit(0, query.attempt(0, "a"))
    query.attempt(0, "a")  # of a driver that believes itself alive
    query.commit(1, query.attempt(1, "b"))
    assert query.visible() == ["a", "b"]


def test_a_batch_that_failed_leaves_nothing(query: Query) -> None:
    query.abort(0, query.attempt(0, "a"), None)
    query.abort(0, None, None)
    query.commit(0, query.attempt(0, "b"))
    assert query.visible() == ["b"]


@pytest.mark.parametrize("readable", [True, False])
def test_a_batch_that_failed_leaves_nothing_though_no_task_returned(
    broker: EmbeddedBroker, tmp_path: Path, readable: bool
) -> None:
    """Its query is found in the checkpoint; in the commit log if that is on a file system of the JVM."""
    name, location = f"query-{next(NUMBERS)}", str(tmp_path) if readable else f"hdfs://nowhere{tmp_path}/"
    (tmp_path / "metadata").write_text(json.dumps({"id": name}))
    query = Query(broker.bootstrap, name, broker.topic(), checkpointLocation=location)
    query.commit(0, query.attempt(0, "a"))
    query.attempt(1, "b")
    same = Query(broker.bootstrap, name, query.topic, checkpointLocation=location.rstrip("/"))  # as Spark may name it
    same.abort(1, None)
    assert task_transactional_id(name, 0, 0) not in Shell(broker.bootstrap)("txn", "list", "--open").out
    query.commit(1, query.attempt(1, "b"))
    assert query.visible() == ["a", "b"]


@pytest.mark.parametrize("metadata", [b"", b'{"id": "qu', b"{}", b"[]", b"\xff"])
def test_a_damaged_checkpoint_does_not_fail_an_abort(broker: EmbeddedBroker, tmp_path: Path, metadata: bytes) -> None:
    (tmp_path / "metadata").write_bytes(metadata)
    Query(broker.bootstrap, "damaged", broker.topic(), checkpointLocation=str(tmp_path)).abort(0, None)


@pytest.mark.parametrize("location", ["checkpoints/loud", "/nowhere/loud", "hdfs:///loud"])
def test_a_failed_batch_leaves_a_query_alone_whose_checkpoint_may_be_another(
    broker: EmbeddedBroker, location: str
) -> None:
    """Drivers of two clusters have the same path; Python cannot read the checkpoint of the one that fails."""
    topic = broker.topic()
    living, failed = (
        Query(broker.bootstrap, f"query-{next(NUMBERS)}", topic, checkpointLocation=location) for _ in range(2)
    )
    living.commit(0, living.attempt(0, "a"))
    message = living.attempt(1, "b")
    failed.abort(0, None)
    living.commit(1, message)
    assert living.visible() == ["a", "b"]


def test_a_batch_without_tasks_needs_no_broker(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "empty"}))
    Query("127.0.0.1:1", "empty", "nowhere", checkpointLocation=str(tmp_path)).commit(0)


@pytest.mark.parametrize(
    ("size", "delivery", "warns"),
    [
        ("65536", "exactly_once", False),
        ("1048576", "exactly_once", True),
        ("1048576", "at_least_once", False),
        ("", "exactly_once", False),
    ],
)
def test_a_large_buffer_before_the_first_row_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, size: str, delivery: str, warns: bool
) -> None:
    """Spark's own setting, by the variable of its Python workers."""
    monkeypatch.setenv("SPARK_BUFFER_SIZE", size)
    monkeypatch.setattr(errors, "_warned", {})
    writer = Query("127.0.0.1:1", "buffered", "nowhere", delivery=delivery).writer()
    with pytest.warns(UserWarning, match="spark.buffer.size is 1048576") if warns else nullcontext():
        pickle.dumps(writer)


def test_a_driver_that_was_overtaken_is_reported_so(query: Query) -> None:
    message = query.attempt(0, "a")
    query.commit(0, query.attempt(0, "a"))
    query.commit(1, query.attempt(1, "b"))
    with pytest.raises(CommitRefused, match=r"batch 1 of this query is committed already.*checkpoint"):
        query.commit(0, message)
    assert query.visible() == ["a", "b"]


def test_two_queries_do_not_meet(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    one, two = (Query(broker.bootstrap, f"query-{next(NUMBERS)}{rest}", topic) for rest in ("", "-0"))
    of_one, of_two = one.attempt(0, "a"), two.attempt(0, "b")
    one.commit(0, of_one)
    one.abort(1, one.attempt(1, "c"))
    two.commit(0, of_two)
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_at_least_once_is_seen_as_it_is_written(broker: EmbeddedBroker) -> None:
    query = Query(broker.bootstrap, f"query-{next(NUMBERS)}", broker.topic(), delivery="at_least_once")
    message = query.attempt(0, "a")
    assert query.visible() == ["a"]
    query.commit(0, message)
    query.commit(0, query.attempt(0, "a"))
    assert query.visible() == ["a", "a"]


def test_a_transaction_left_behind_is_shown_and_ended_by_an_operator(query: Query) -> None:
    message = query.attempt(0, "a")
    shell, name = Shell(query.bootstrap), task_transactional_id(query.name, 0, 0)
    (row,) = [row for row in shell("txn", "list", "--open", "-o", "json").json() if row["transactional_id"] == name]
    assert (row["two_phase"], row["timeout_seconds"], len(row["partitions"])) == (False, 900, 1)
    assert shell("txn", "abort", name, "--yes").err == f"aborted {name}\n"
    with pytest.raises(CommitRefused, match=f"{name} of this batch was ended by another driver.*Nothing"):
        query.commit(0, message)
    query.restarted()
    query.commit(0, query.attempt(0, "a"))
    assert query.visible() == ["a"]


def test_attempts_without_end_are_reported(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "IDS_PER_PARTITION_MAX", 3)
    for _ in range(3):
        query.attempt(0, "a")
    with pytest.raises(KafkaError, match=f"levada txn abort {task_transactional_id(query.name, 0, 0)}"):
        query.attempt(0, "a")


def test_a_broker_that_forbids_two_phase_commit() -> None:
    with EmbeddedBroker({"transaction.two.phase.commit.enable": "false"}) as broker:
        with pytest.raises(KafkaError, match=r"needs two-phase commit.*delivery=at_least_once"):
            Query(broker.bootstrap, "q", broker.topic()).attempt(0, "a")
        plain = Query(broker.bootstrap, "q", broker.topic(), delivery="at_least_once")
        plain.commit(0, plain.attempt(0, "a"))
        assert plain.visible() == ["a"]
        blocking.close()


def restart(server: BrokerProcess) -> None:
    server.stop(signal.SIGKILL)
    server.start()


def test_a_broker_that_is_killed_between_task_and_driver(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as server:
        Shell(server.bootstrap)("topic", "create", "out", "--partitions", "2")
        query = Query(server.bootstrap, "q", "out")
        messages = [query.attempt(0, "ab"), query.attempt(0, "c", partition=1)]
        restart(server)
        query.commit(0, *messages)
        restart(server)
        query.restarted()
        query.commit(0, query.attempt(0, "ab"), query.attempt(0, "c", partition=1))
        assert query.visible() == ["a", "b", "c"]
        assert driver_transactional_id("q") not in Shell(server.bootstrap)("txn", "list", "--open").out
        blocking.close()


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_broker_that_is_killed_while_a_task_writes(tmp_path: Path, delivery: str) -> None:
    """Whatever the broker had not answered is sent again, and stored once."""
    with BrokerProcess(tmp_path) as server:
        Shell(server.bootstrap)("topic", "create", "out", "--partitions", "2")
        query = Query(server.bootstrap, "q", "out", delivery=delivery)

        def deadly() -> Iterator[Any]:
            for part in range(4):
                values = [f"{number:0100}" for number in range(30_000 * part, 30_000 * (part + 1))]
                yield from rows(*values)  # more than a task gathers: it is on its way when the next one is asked for
                if part == 1:
                    restart(server)

        message = query.attempt_with(0, deadly())
        query.commit(0, message)
        assert message.rows == 120_000
        assert [int(value) for value in query.visible()] == list(range(120_000))
        blocking.close()

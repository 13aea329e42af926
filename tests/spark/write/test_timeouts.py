"""How long the transactions of a sink stay open: until they time out, unless they are renewed or committed."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import pytest
from tests.spark.support.sink_tasks import Job, Query, killed_at, rows
from tests.support.reading import wait_until_ended
from tests.support.shell import Shell
from tests.support.waiting import until

from levada.client.admin.transactions import TransactionAdmin, TransactionState
from levada.client.client import Client
from levada.client.coordinator import Coordinator
from levada.client.producer.transactions import end_transaction
from levada.errors import KafkaError
from levada.spark import blocking
from levada.spark.errors import CommitRefused
from levada.spark.write import commit_log, driver, task, transactions
from levada.testing import EmbeddedBroker

NUMBERS = count(1)
OPTIONS: dict[str, object] = {"transactionTimeout": "10s"}  # for transactions that must not time out
INTERVAL_S = 0.3  # between two renewals
VALUES = "abcdefghijklmno"  # one for each short task
SHORT: dict[str, object] = {"transactionTimeout": "5s"}  # for those that must


def new_query(broker: EmbeddedBroker, **options: object) -> Query:
    return Query(broker.bootstrap, f"timeout-{next(NUMBERS)}", broker.topic(), **options)


@pytest.fixture(autouse=True)
def each_row_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task sends a row when the next one comes: its transaction is open after the second one."""
    monkeypatch.setattr(task, "PIECE_ROWS", 1)


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return new_query(broker, **OPTIONS)


class Renewals(Counter[str]):
    """The number of renewals of each transactional id."""

    def wait(self, *names: str) -> None:
        """Wait until these transactions have been renewed, once more from now on."""
        before = {name: self[name] for name in names}
        until(lambda: all(self[name] > before[name] for name in names), lambda: f"{names} are not renewed: {self}")


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    """Transactions are renewed every INTERVAL_S, and counted."""
    renewed, real = Renewals(), transactions._add_partitions

    async def counted(client: Client, state: TransactionState) -> None:
        await real(client, state)
        renewed[state.transactional_id] += 1

    monkeypatch.setattr(transactions, "RENEWALS_PER_TIMEOUT", round(10 / INTERVAL_S))
    monkeypatch.setattr(transactions, "_add_partitions", counted)
    return renewed


def name_of(query: Query, partition: int) -> str:
    return transactions.task_transactional_id(query.name, partition, 0)


def test_what_is_neither_renewed_nor_committed_times_out(broker: EmbeddedBroker) -> None:
    """And readers wait no longer: for a query that never comes back, and for drivers that die while they abort."""
    queries = [new_query(broker, **SHORT) for _ in range(3)]
    gone = queries[0]
    message = gone.attempt(0, "a")
    for query, step in zip(queries[1:], ("_fence_all", "append_commit"), strict=True):
        with killed_at(step):
            query.abort(0, query.attempt(0, "a"))
    for query in queries:
        wait_until_ended(query.bootstrap, query.topic)
    with pytest.raises(CommitRefused, match="was ended by another driver"):
        gone.commit(0, message)
    assert gone.visible() == []
    gone.restarted()
    gone.commit(0, gone.attempt(0, "a"))
    assert gone.visible() == ["a"]


def test_a_task_outlives_the_timeout_of_transactions(broker: EmbeddedBroker) -> None:
    """In real time: a transaction with the same timeout that is not renewed is aborted meanwhile."""
    query, other = new_query(broker, **SHORT), new_query(broker, **SHORT)

    def outlives() -> Iterator[Any]:
        yield from chain(rows("b"), rows("c"))
        other.attempt(0, "x")
        wait_until_ended(other.bootstrap, other.topic)
        yield from rows("d")

    query.commit(0, query.attempt(0, "a"), query.attempt_with(0, outlives(), partition=1))
    assert (query.visible(), other.visible()) == (["a", "b", "c", "d"], [])


def test_a_batch_in_the_commit_log_does_not_time_out(broker: EmbeddedBroker) -> None:
    query, other = new_query(broker, **SHORT), new_query(broker, **SHORT)
    with killed_at("_commit"):
        query.commit(0, query.attempt(0, "ab"))
    other.attempt(0, "x")
    wait_until_ended(other.bootstrap, other.topic)
    query.restarted()
    query.commit(0, query.attempt(0, "ab"))
    assert (query.visible(), other.visible()) == (["a", "b"], [])


@pytest.fixture(scope="module")
def hasty() -> Iterator[EmbeddedBroker]:
    """A broker on which two-phase transactions end soon, as after days."""
    with EmbeddedBroker({"levada.transaction.two.phase.commit.timeout.ms": "2000"}) as broker:
        yield broker
        blocking.close()


def test_what_a_driver_fenced_before_it_died_waits_for_the_next_start_or_the_bound(hasty: EmbeddedBroker) -> None:
    """It dies before it appends to the commit log: the transactions are not in it, and have lost their timeouts."""
    back, gone = new_query(hasty, **SHORT), new_query(hasty, **SHORT)
    for query in (back, gone):
        with killed_at("append_commit"):
            query.commit(0, query.attempt(0, "a"))
        state = blocking.run(TransactionAdmin(blocking.client(hasty.bootstrap)).describe(name_of(query, 0)))
        assert (state.state, state.is_two_phase) == ("Ongoing", True)
    back.restarted()
    back.commit(0, back.attempt(0, "b"))
    assert back.visible() == ["b"]
    wait_until_ended(gone.bootstrap, gone.topic)
    gone.restarted()
    gone.commit(0, gone.attempt(0, "c"))
    assert gone.visible() == ["c"]


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_driver_that_cannot_append_leaves_nothing_open(ends: str) -> None:
    """The commit log refuses its record, as also if it names very many transactions."""
    with EmbeddedBroker() as broker:
        query = new_query(broker)
        query.commit(0, query.attempt(0, "a"))
        shell = Shell(broker.bootstrap)
        assert shell("config", "set", "topic", commit_log.TOPIC, "max.message.bytes=100").code == 0
        message = query.attempt(1, "b")
        query.attempt(1, "x", partition=1)  # of a task that was killed
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            getattr(query, ends)(1, message)
        assert name_of(query, 0) not in shell("txn", "list", "--open").out
        wait_until_ended(query.bootstrap, query.topic)
        assert query.visible() == ["a"]
        blocking.close()


@pytest.mark.parametrize("fenced_again", [False, True])
def test_a_committed_batch_that_timed_out_is_refused_however_often_it_is_repeated(
    hasty: EmbeddedBroker, fenced_again: bool
) -> None:
    """Its driver died, and did not come back in time: the rows are lost, and the query must not go on in silence."""
    query = new_query(hasty, **SHORT)
    with killed_at("_commit"):
        query.commit(3, query.attempt(3, "ab"), query.attempt(3, "c", partition=1))
    if fenced_again:  # a second driver dies as well
        query.restarted()
        with killed_at("_commit"):
            query.commit(3, query.attempt(3, "ab"), query.attempt(3, "c", partition=1))
    wait_until_ended(query.bootstrap, query.topic)
    assert query.visible() == []
    lost = rf"batch 3 of query {query.name} is in the commit log, but .*-{query.name}-0-0 \(and 1 more\) was aborted"
    for _ in range(2):
        query.restarted()
        messages = [query.attempt(3, "ab"), query.attempt(3, "c", partition=1)]
        with pytest.raises(CommitRefused, match=lost + ".*repeatedBatch=skip"):
            query.commit(3, *messages)
        query.abort(3, *messages)  # as Spark does
    lenient = Query(query.bootstrap, query.name, query.topic, repeatedBatch="skip").restarted()
    with pytest.warns(UserWarning, match=lost):
        lenient.commit(3, lenient.attempt(3, "ab"), lenient.attempt(3, "c", partition=1))
    lenient.commit(4, lenient.attempt(4, "d"))
    assert query.visible() == ["d"]


def test_a_batch_that_is_aborted_while_its_driver_commits_it_is_refused(
    hasty: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = new_query(hasty, **SHORT)

    async def late(coordinator: Coordinator, *one: Any, committed: bool) -> None:
        await TransactionAdmin(coordinator._client).abort(one[0])
        await end_transaction(coordinator, *one, committed=committed)

    monkeypatch.setattr(driver, "end_transaction", late)
    with pytest.raises(CommitRefused, match=f"batch 3 .*-{query.name}-0-0 was aborted"):
        query.commit(3, query.attempt(3, "a"))


def test_a_job_that_timed_out_after_its_commit_is_refused(hasty: EmbeddedBroker) -> None:
    topic = hasty.topic()
    app: dict[str, object] = {"topic": topic, "txnVersion": 1, "txnAppId": topic} | SHORT
    with killed_at("_commit"):
        Job(hasty, **app).run(rows("a"))
    wait_until_ended(hasty.bootstrap, topic)
    with pytest.raises(CommitRefused, match=f"{topic} version 1: batch 1 of .* was aborted.*another txnAppId"):
        Job(hasty, **app).run(rows("a"))
    Job(hasty, **(app | {"txnAppId": f"{topic}-2"})).run(rows("a"))
    assert [record.value for record in hasty.records(topic)] == [b"a"]


def test_a_batch_whose_transactions_are_forgotten_is_refused(hasty: EmbeddedBroker) -> None:
    """Their ids have expired, or a task of a driver that was taken for dead has used them."""
    query = new_query(hasty, **SHORT)
    query.commit(3, query.attempt(3, "a"))
    blocking.run(transactions.fence(blocking.client(hasty.bootstrap), name_of(query, 0)))
    blocking.close()  # the process that committed it ends
    query.restarted()
    with pytest.raises(CommitRefused, match="its coordinator does not know any more how"):
        query.commit(3, query.attempt(3, "a"))


def test_a_batch_that_ended_is_complete_for_the_next_driver(hasty: EmbeddedBroker) -> None:
    """Its driver died before Spark wrote that down."""
    query = new_query(hasty, **SHORT)
    query.commit(3, query.attempt(3, "a"), query.attempt(3, "b", partition=1))
    for _ in range(2):
        blocking.close()
        query.restarted()
        message = query.attempt(3, "ab")
        query.abort(3, message)
        query.commit(3, message)
    query.commit(4, query.attempt(4, "c"))
    assert query.visible() == ["a", "b", "c"]


def test_a_running_task_renews_its_transaction_and_those_of_tasks_that_have_ended(
    query: Query, renewals: Renewals
) -> None:
    def slow_rows() -> Iterator[Any]:
        yield from chain(rows("b"), rows("c"))
        renewals.wait(name_of(query, 0), name_of(query, 1))
        yield from rows("d")

    query.commit(0, query.attempt(0, "a"), query.attempt_with(0, slow_rows(), partition=1))
    assert query.visible() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("values", ["b", ""], ids=["with a row", "without rows"])
def test_a_task_renews_the_transactions_of_others_before_its_first_row(
    query: Query, renewals: Renewals, values: str
) -> None:
    def late_rows() -> Iterator[Any]:
        renewals.wait(name_of(query, 0))
        yield from rows(*values)

    query.commit(0, query.attempt(0, "a"), query.attempt_with(0, late_rows(), partition=1))
    assert query.visible() == ["a", *values]


def short_rows(value: str) -> Iterator[Any]:
    """Rows that take less time than there is between two renewals."""
    time.sleep(INTERVAL_S / 6)
    yield from rows(value)


def test_short_tasks_renew_the_transactions_of_a_long_batch(query: Query, renewals: Renewals) -> None:
    messages = [query.attempt_with(0, short_rows(value), partition) for partition, value in enumerate(VALUES)]
    assert renewals[name_of(query, 0)]
    query.commit(0, *messages)
    assert query.visible() == list(VALUES)


def test_tasks_renew_though_each_is_shorter_than_a_renewal(
    query: Query, renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transactions.renew

    async def slow(client: Client, name: str, *, older_than_ms: int) -> None:
        await asyncio.sleep(2 * INTERVAL_S)  # as with very many transactions
        await real(client, name, older_than_ms=older_than_ms)

    monkeypatch.setattr(transactions, "renew", slow)
    messages = [query.attempt_with(0, short_rows(value), partition) for partition, value in enumerate(VALUES)]
    until(lambda: renewals[name_of(query, 0)] > 0, "the transaction of the first task is not renewed")
    query.commit(0, *messages)
    assert query.visible() == list(VALUES)


def test_short_tasks_renew_the_transactions_of_a_long_job(broker: EmbeddedBroker, renewals: Renewals) -> None:
    topic = broker.topic()
    job = Job(broker, topic=topic, **OPTIONS)
    messages = [job.attempt(short_rows(value), partition) for partition, value in enumerate(VALUES)]
    assert messages[0].prepared is not None and renewals[messages[0].prepared.transactional_id]
    job.writer.commit(messages)
    assert sorted(record.value or b"" for record in broker.records(topic)) == [value.encode() for value in VALUES]


def test_a_job_is_renewed_as_long_as_it_runs(broker: EmbeddedBroker, renewals: Renewals) -> None:
    topic = broker.topic()
    job = Job(broker, topic=topic, **OPTIONS)
    first = job.attempt(rows("a"))
    assert first.prepared is not None
    names = [transactions.task_transactional_id(first.query, partition, 0) for partition in range(2)]

    def slow_rows() -> Iterator[Any]:
        yield from chain(rows("b"), rows("c"))
        renewals.wait(*names)
        yield from rows("d")

    job.writer.commit([first, job.attempt(slow_rows(), partition=1)])
    assert [record.value for record in broker.records(topic)] == [b"a", b"b", b"c", b"d"]


def test_a_timeout_above_the_limit_of_the_broker_is_refused(broker: EmbeddedBroker) -> None:
    query = new_query(broker, transactionTimeout="16m")
    with pytest.raises(KafkaError, match=r"transactionTimeout is 960000 ms.*lower the option"):
        query.attempt(0, "a")

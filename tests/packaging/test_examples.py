"""The examples of delivery semantics keep their guarantees when they are killed.

Each is run as a user would run it, dies by SIGKILL in the middle, is run again to the end, and the results of both runs
are compared with the orders.
"""

import ast
import importlib
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import Message, TopicPartition
from tests.support.broker import BrokerThread
from tests.support.downloads import Unavailable, must_be_had
from tests.support.postgres import postgres
from tests.support.reading import read, read_committed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("examples")]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "delivery"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "stream.py")
COUNT, BATCH = 1000, 50


class Order(NamedTuple):
    """A record of the topic `shop-orders`."""

    partition: int
    offset: int
    customer: str
    amount: int


@pytest.fixture(scope="module")
def orders(module_broker: BrokerThread) -> list[Order]:
    """What is in the topic."""
    assert run(module_broker, "orders.py", "--count", str(COUNT)).stdout == f"{COUNT} orders are in shop-orders\n"
    found = read_committed(module_broker.bootstrap, "shop-orders")
    return [
        Order(index, record.offset, record.key, int(record.value))
        for (_, index), records in found.items()
        for record in records
    ]


def run(broker: BrokerThread, script: str, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(EXAMPLES / script), "-b", broker.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_with_a_crash(broker: BrokerThread, script: str, *arguments: str) -> list[str]:
    """The lines of a run that is killed between the steps of its third batch, and of the one after it."""
    arguments = ("--until-end", "--batch", str(BATCH), *arguments)
    crashed = run(broker, script, *arguments, "--crash-at", "3", code=-signal.SIGKILL)
    return (crashed.stdout + run(broker, script, *arguments).stdout).splitlines()


def lines(orders: list[Order]) -> Counter[str]:
    return Counter(f"{order.partition} {order.offset} {order.amount}" for order in orders)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_example_says_what_it_does(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), "--help"], capture_output=True, text=True, check=True
    )
    docstring = ast.get_docstring(ast.parse((EXAMPLES / script).read_text()))
    assert docstring and docstring.splitlines()[0] in done.stdout
    assert "127.0.0.1:9092" in done.stdout


def test_at_most_once_loses_a_batch_and_repeats_nothing(broker: BrokerThread, orders: list[Order]) -> None:
    processed = Counter(run_with_a_crash(broker, "at_most_once.py"))
    assert processed <= lines(orders)
    assert 0 < (lines(orders) - processed).total() <= BATCH


def test_at_least_once_repeats_a_batch_and_loses_nothing(broker: BrokerThread, orders: list[Order]) -> None:
    processed = Counter(run_with_a_crash(broker, "at_least_once.py"))
    assert processed >= lines(orders)
    assert 0 < (processed - lines(orders)).total() <= BATCH
    assert set(processed) == set(lines(orders))


def test_exactly_once_from_topic_to_topic(broker: BrokerThread, orders: list[Order]) -> None:
    assert run_with_a_crash(broker, "exactly_once.py") == []
    invoices = read_committed(broker.bootstrap, "invoices").values()
    found: dict[str, list[str]] = {order.customer: [] for order in orders}
    for record in chain.from_iterable(invoices):
        found[record.key].append(record.value)
    for customer, values in found.items():
        assert values == [f"{customer} owes {order.amount}" for order in orders if order.customer == customer]
    everything = read(broker.bootstrap, "invoices", "read_uncommitted").values()
    assert sum(map(len, everything)) == COUNT + BATCH  # the batch of the crash is in the log, and hidden


def totals(orders: list[Order]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for order in orders:
        sums[order.customer] += order.amount
    return dict(sums)


def test_exactly_once_into_sqlite(broker: BrokerThread, orders: list[Order], tmp_path: Path) -> None:
    file = tmp_path / "totals.sqlite"
    assert run_with_a_crash(broker, "exactly_once_database.py", "--database", str(file)) == []
    with closing(sqlite3.connect(file)) as database:
        assert dict(database.execute("SELECT customer, amount FROM totals").fetchall()) == totals(orders)


def test_exactly_once_into_postgresql(broker: BrokerThread, orders: list[Order]) -> None:
    try:
        with postgres() as address:
            assert run_with_a_crash(broker, "exactly_once_database.py", "--database", address) == []
            with psycopg.connect(address) as database:
                found = database.execute("SELECT customer, amount FROM totals").fetchall()
            assert dict(found) == totals(orders)
    except Unavailable as error:
        must_be_had("PostgreSQL", error)


@pytest.mark.parametrize(("key", "value"), [(b"order-2", b"coffee"), (None, b"7"), (b"alice", None)])
def test_records_of_something_else_are_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes | None, value: bytes | None
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    other = Message(topic="others", partition=0, offset=5, key=key, value=value)
    totals = importlib.import_module("exactly_once_database").Totals(str(tmp_path / "totals.sqlite"))
    for deal_with in (importlib.import_module("exactly_once").invoice, lambda order: totals.add([order])):
        with pytest.raises(SystemExit, match="others-0 at offset 5: not an order"):
            deal_with(other)


class Assigned:
    """In the place of a consumer: partitions are given to it."""

    def assign(self, parts: list[TopicPartition]) -> None:
        self.offsets = [part.offset for part in parts]


def test_a_worker_that_was_replaced_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late one finds that the position has moved: the sums stay as they are, and it says why it ends."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("exactly_once_database")
    file = str(tmp_path / "totals.sqlite")
    batch = [Message(topic="orders", partition=0, offset=5, key=b"alice", value=b"7")]
    workers = [example.Totals(file), example.Totals(file)]
    for worker in workers:
        worker.take_over(Assigned(), [TopicPartition("orders", 0)])
    workers[0].add(batch)
    workers[0].commit()
    with pytest.raises(SystemExit, match="orders-0 has been taken over"):
        workers[1].add(batch)
    third = Assigned()
    example.Totals(file).take_over(third, [TopicPartition("orders", 0)])
    assert third.offsets == [6]
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT customer, amount FROM totals").fetchall() == [("alice", 7)]

"""One loop and one client of each kind in a process, and none of a parent's in its child."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pytest

from levada.spark import blocking
from levada.testing import EmbeddedBroker

TIMEOUT_S = 30.0


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        await asyncio.sleep(0)
        yield number


def test_an_asynchronous_iterator_is_taken_one_by_one() -> None:
    assert list(blocking.iterate(numbers())) == [0, 1, 2]


def test_an_iterator_that_is_left_is_closed() -> None:
    closed = []

    async def watched() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    for _ in blocking.iterate(watched()):
        break
    assert closed == [True]


def test_the_collector_may_close_an_iterator_on_the_loops_thread() -> None:
    """An exception may keep a reader in a cycle that the loop's thread collects: the loop must not wait for itself."""
    closed = threading.Event()

    async def watched() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    abandoned = [blocking.iterate(watched())]
    assert next(abandoned[0]) == 1

    async def collect() -> None:
        abandoned.clear()

    asyncio.run_coroutine_threadsafe(collect(), blocking._current().loop).result(TIMEOUT_S)
    assert closed.wait(TIMEOUT_S)


def test_what_is_raised_on_the_loop_reaches_the_caller() -> None:
    async def fail() -> None:
        raise LookupError("there")

    with pytest.raises(LookupError, match="there"):
        blocking.run(fail())


def test_clients_are_kept_by_servers_and_options(broker: EmbeddedBroker) -> None:
    one = blocking.client(broker.bootstrap)
    assert blocking.client(broker.bootstrap) is one
    assert blocking.client(broker.bootstrap, request_timeout_ms=1000) is not one
    topic = broker.topic()
    assert topic in blocking.run(one.metadata()).topics


def test_a_client_that_was_closed_is_made_again(broker: EmbeddedBroker) -> None:
    one = blocking.client(broker.bootstrap)
    blocking.run(one.close())
    assert blocking.client(broker.bootstrap) is not one


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the broker's thread is not the child's affair
def test_a_forked_child_has_a_loop_of_its_own(broker: EmbeddedBroker) -> None:
    blocking.run(blocking.client(broker.bootstrap).metadata())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            brokers = blocking.run(blocking.client(broker.bootstrap).metadata()).brokers
            os.write(writing, b"ok" if brokers else b"no")
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"ok"
    os.close(reading)

"""Delayed responses: long polls end by bytes, by time, or with their connection."""

import asyncio
from collections.abc import Callable

import pytest

from levada.broker.purgatory import DelayedFetch, DelayedResponse, Watcher
from levada.wire.frames import Response


class Client:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class Place:
    """What a partition is to who waits at it."""

    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()

    def publish(self, size: int) -> None:
        for waiter in list(self.watchers):
            waiter.try_complete(size)


class Timer:
    """A loop's timers, which end when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cancelled = False
        self.end: Callable[[], None] = lambda: None

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.seconds, self.end = seconds, callback
        return self  # type: ignore[return-value]

    def cancel(self) -> None:
        self.cancelled = True


class Poll:
    def __init__(self, missing_bytes: int, places: int = 1) -> None:
        self.client, self.timer = Client(), Timer()
        self.places = [Place() for _ in range(places)]
        self.reads = 0
        self.poll = DelayedFetch(self.client, missing_bytes, self._read)
        self.poll.watch(self.places, 500, self.timer.call_later)

    def _read(self) -> Response:
        self.reads += 1
        return b"answer"

    @property
    def is_over(self) -> bool:
        return not any(place.watchers for place in self.places) and self.timer.cancelled


def test_an_answer_is_given_once_it_is_there() -> None:
    client = Client()
    answer = DelayedResponse(client)
    assert answer.collect() is None
    answer.complete(b"x")
    assert (client.woken, answer.collect()) == (1, b"x")
    answer.cancel()


def test_a_long_poll_waits_for_its_bytes() -> None:
    one = Poll(missing_bytes=100)
    assert one.timer.seconds == 0.5
    one.places[0].publish(60)
    assert (one.poll.collect(), one.client.woken, one.is_over) == (None, 0, False)
    one.places[0].publish(40)
    assert (one.client.woken, one.is_over) == (1, True)
    assert one.poll.collect() == b"answer"


def test_bytes_of_all_its_partitions_count() -> None:
    one = Poll(missing_bytes=100, places=3)
    for place in one.places:
        assert not one.is_over
        place.publish(34)
    assert one.is_over


def test_a_long_poll_reads_when_it_is_next_to_answer() -> None:
    """Not at the first news: the turn's other partitions are written after that."""
    one = Poll(missing_bytes=1, places=2)
    one.places[0].publish(10)
    one.places[1].publish(10)
    assert (one.reads, one.client.woken) == (0, 1)
    assert one.poll.collect() == b"answer" and one.reads == 1


def test_time_ends_a_long_poll() -> None:
    one = Poll(missing_bytes=100)
    one.timer.end()
    assert (one.client.woken, one.is_over, one.poll.collect()) == (1, True, b"answer")


def test_a_partition_that_is_gone_ends_a_long_poll() -> None:
    one = Poll(missing_bytes=100, places=2)
    one.places[1].publish(0)
    assert one.is_over and one.poll.collect() == b"answer"


def test_a_client_that_is_gone_is_not_waited_for() -> None:
    one = Poll(missing_bytes=100)
    one.poll.cancel()
    assert one.is_over
    one.places[0].publish(1000)
    assert (one.reads, one.client.woken) == (0, 0)


@pytest.mark.parametrize("missing_bytes", [1, 1 << 30])
def test_each_poll_is_read_once(missing_bytes: int) -> None:
    one = Poll(missing_bytes)
    one.places[0].publish(10)
    one.timer.end()
    one.poll.collect()
    assert one.reads == 1

"""The idle reaper closes idle connections, by a clock of the test."""

import asyncio
from typing import cast

import pytest

from levada.net.idle_reaper import IdleReaper

IDLE_MS = 1_000


class Clock:
    """A loop that only knows the time."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


class Talker:
    """A connection of which the test says how it is."""

    def __init__(self) -> None:
        self.active, self.is_waiting, self.is_read = True, False, True
        self.idle_since = 0.0
        self.transport = cast(asyncio.Transport, None)
        self.closed_at = 0.0

    def close(self, _: str) -> None:
        self.closed_at = clock.now


clock = Clock()


def look(talker: Talker, seconds: float) -> None:
    """Let time pass, with a look every tenth of the limit."""
    watch = IdleReaper([talker], IDLE_MS, cast(asyncio.AbstractEventLoop, clock))
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        if not talker.closed_at:
            watch._check()


@pytest.fixture
def talker() -> Talker:
    return Talker()


def test_a_silent_client_is_closed_not_early_and_at_most_two_looks_late(talker: Talker) -> None:
    began = clock.now
    look(talker, 2)
    assert IDLE_MS / 1000 <= talker.closed_at - began < IDLE_MS / 1000 + 0.25


def test_an_active_client_stays(talker: Talker) -> None:
    for _ in range(4):
        look(talker, 0.9)
        talker.active = True
    assert not talker.closed_at


def test_who_waited_long_for_its_answer_has_its_time_from_then(talker: Talker) -> None:
    talker.is_waiting = True
    look(talker, 5)
    talker.is_waiting = False  # it has its answer, and is about to ask again
    look(talker, 0.9)
    assert not talker.closed_at
    look(talker, 0.5)
    assert talker.closed_at

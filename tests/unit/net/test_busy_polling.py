"""Busy polling: the loop spins while requests follow at once, and sleeps otherwise."""

from collections import deque
from collections.abc import Callable

import pytest

from levada.net.busy_polling import FLUSHES_UNTIL_RETRY, ITERATION_S_MAX, SPIN_S, BusyPoller

ROUND_S = SPIN_S / 10  # of the loop, while it looks


class Loop:
    """A loop whose rounds take a fixed time, and who counts those that it did not sleep in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rounds = 0
        self._ready: deque[Callable[[], None]] = deque()
        self.poller = BusyPoller(self._ready.append, lambda: self.now)

    def wait(self, seconds: float) -> None:
        """Nothing comes for that long."""
        until = self.now + seconds
        while self._ready and self.now < until:
            self.rounds += 1
            self.now += ROUND_S
            self._ready.popleft()()
        self.now = max(self.now, until)

    def lose_the_core(self, seconds: float) -> None:
        """Another process runs in place of this one."""
        self.now += seconds

    def iterations(self, count: int, apart_s: float) -> int:
        """The rounds of so many turns, each followed by as long a wait."""
        before = self.rounds
        for _ in range(count):
            self.poller.flushed(self.now)
            self.wait(apart_s)
        return self.rounds - before

    def is_awake(self) -> bool:
        return bool(self._ready)


def test_it_stays_awake_from_one_request_to_the_next_and_sleeps_after_the_last() -> None:
    loop = Loop()
    assert loop.iterations(1_000, SPIN_S / 2) >= 1_000 * 4
    assert loop.is_awake()
    loop.wait(2 * SPIN_S)
    assert not loop.is_awake()


@pytest.mark.parametrize("apart_s", [2 * SPIN_S, 1.0])
def test_requests_that_never_come_in_time_are_looked_for_now_and_then(apart_s: float) -> None:
    loop = Loop()
    loop.iterations(10, apart_s)
    rounds_of_a_look = 12
    tries = 64
    assert 0 < loop.iterations(tries * FLUSHES_UNTIL_RETRY, apart_s) <= tries * rounds_of_a_look


def test_half_of_the_moments_in_vain_are_too_many() -> None:
    loop = Loop()
    looked = sum(loop.iterations(1, SPIN_S / 2) + loop.iterations(1, 3 * SPIN_S) for _ in range(1_000))
    assert looked < 2_000


def test_it_finds_out_when_requests_follow_one_another_again() -> None:
    loop = Loop()
    loop.iterations(100, 1.0)
    loop.iterations(FLUSHES_UNTIL_RETRY, SPIN_S / 2)
    assert loop.iterations(100, SPIN_S / 2) >= 100 * 4


def test_it_sleeps_when_others_want_the_core() -> None:
    loop = Loop()
    loop.iterations(100, SPIN_S / 2)
    loop.lose_the_core(2 * ITERATION_S_MAX)
    loop.wait(SPIN_S / 2)
    assert not loop.is_awake()
    assert loop.iterations(FLUSHES_UNTIL_RETRY - 1, SPIN_S / 2) == 0

"""Busy polling: after a flush the event loop spins for a short time before it sleeps in epoll.

A client that sends one request at a time (commits, fetches, messages one by one) sends the next some tens of
microseconds after it has the response. A core that sleeps meanwhile takes as long again to wake up, longer in a
virtual machine. The poller spins only where that pays: when requests arrive in fewer than two of three spins, or
other processes need the core, it spins rarely.
"""

from collections.abc import Callable
from typing import Final

SPIN_S: Final = 200e-6
ITERATION_S_MAX: Final = 500e-6  # of the loop while it spins: a longer one was taken by another process
MISS_PENALTY: Final = 2  # of a spin without a request; a spin with one takes 1 off
PENALTY_MAX: Final = 8  # from which on the poller does not spin
FLUSHES_UNTIL_RETRY: Final = 64


class BusyPoller:
    """Keeps the event loop of a broker awake after its flushes."""

    __slots__ = ("_call_soon", "_clock", "_flushes", "_iteration", "_penalty", "_spinning", "_until", "spun_s")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float]) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._spinning = False
        self._until = 0.0
        self._iteration = 0.0  # when the last iteration of this spin began
        self._penalty = 0
        self._flushes = 0  # since the last spin
        self.spun_s = 0.0  # in all spins, without the handling of requests

    def flushed(self, now: float) -> None:
        """Spin after this flush, if spins have paid; a flush during a spin is a hit."""
        if self._spinning:
            self._begin(now)
            self._penalty = max(self._penalty - 1, 0)
            return
        self._flushes += 1
        if self._penalty < PENALTY_MAX or self._flushes >= FLUSHES_UNTIL_RETRY:
            self._flushes = 0
            self._spinning = True
            self._begin(now)
            self._call_soon(self._spin)

    def _begin(self, now: float) -> None:
        self._iteration = now
        self._until = now + SPIN_S

    def _spin(self) -> None:
        """Schedule one more iteration: a loop with a callback ready polls its sockets without waiting."""
        now = self._clock()
        spent_s = now - self._iteration
        if spent_s > ITERATION_S_MAX:
            self._end(PENALTY_MAX)
            return
        self.spun_s += spent_s
        if now > self._until:
            self._end(MISS_PENALTY)
        else:
            self._iteration = now
            self._call_soon(self._spin)

    def _end(self, penalty: int) -> None:
        self._spinning = False
        self._penalty = min(self._penalty + penalty, PENALTY_MAX)

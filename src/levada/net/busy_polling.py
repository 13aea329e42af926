"""Looking for the next request for a moment before the loop sleeps.

A client that asks, waits and asks again (commits, fetches, messages one by one) sends its next request some tens of
microseconds after it has its answer. A core that has fallen asleep meanwhile takes as long again to wake up, longer in
a virtual machine. So after a turn the loop stays awake for a moment, where that proves worthwhile: when requests come
in fewer than two of three such moments, or others want the core, one is tried only now and then.
"""

from collections.abc import Callable
from typing import Final

MOMENT_S: Final = 200e-6
ROUND_S_MAX: Final = 500e-6  # of the loop while it looks: what takes longer was another process
VAIN: Final = 2  # what a moment in which nothing came counts, against one in which something did
DOUBTS_MAX: Final = 8  # so many, and moments are no longer worthwhile
TURNS_UNTIL_RETRY: Final = 64


class Lookout:
    """Keeps the loop of a broker awake after its turns."""

    __slots__ = ("_call_soon", "_clock", "_doubts", "_looked", "_looking", "_turns", "_until")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float]) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._looking = False
        self._until = 0.0
        self._looked = 0.0  # when the loop came round last
        self._doubts = 0
        self._turns = 0  # that ended without a look since the last

    def turned(self) -> None:
        """A turn has ended."""
        if self._looking:  # and found it
            self._begin()
            self._doubts = max(self._doubts - 1, 0)
            return
        self._turns += 1
        if self._doubts < DOUBTS_MAX or self._turns >= TURNS_UNTIL_RETRY:
            self._turns = 0
            self._looking = True
            self._begin()
            self._call_soon(self._look)

    def _begin(self) -> None:
        self._looked = now = self._clock()
        self._until = now + MOMENT_S

    def _look(self) -> None:
        """Have the loop come round once more: a loop with something to call asks its sockets and does not wait."""
        now = self._clock()
        if now - self._looked > ROUND_S_MAX:
            self._end(DOUBTS_MAX)
        elif now > self._until:
            self._end(VAIN)
        else:
            self._looked = now
            self._call_soon(self._look)

    def _end(self, doubts: int) -> None:
        self._looking = False
        self._doubts = min(self._doubts + doubts, DOUBTS_MAX)

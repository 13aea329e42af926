"""Requests off the hot path take a slice of each pass of the loop, and no more: whoever sends many waits for itself.

A client may send hundreds of requests at once, and one that names thousands of groups takes a tenth of a second. What
does not fit into a slice is parked, one request for each connection, of which no more than a receive is read meanwhile,
and is carried out in the order of its coming in the passes that follow. Between them everybody else is read, written
and answered.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SLICE_S: Final = 0.01
PARKED_BYTES_MAX: Final = 64 << 20  # of requests that wait; more are carried out at once, as the lesser evil


class Parkable(Protocol):
    """A request that can wait."""

    @property
    def size(self) -> int:
        """What it holds while it waits, in bytes."""
        ...

    def carry_out(self) -> None:
        """Its time has come. Fails for nobody but its client."""
        ...


class Pace:
    """The slice of this pass, and who waits for the next."""

    __slots__ = ("_call_later", "_clock", "_parked", "_parked_bytes", "_until")

    def __init__(
        self, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._until: float | None = (
            None  # the end of this pass's slice; None before the first request of a pass
        )
        self._parked: deque[Parkable] = deque()
        self._parked_bytes = 0  # exactly the sum of their sizes

    def admits(self) -> bool:
        """Whether a request may be carried out at once."""
        if self._until is None:
            self._begin()
            return True
        return not self._parked and self._clock() < self._until

    def park(self, request: Parkable) -> bool:
        """Let a request wait; False if too much waits already."""
        if self._parked_bytes + request.size > PARKED_BYTES_MAX:
            return False
        self._parked.append(request)
        self._parked_bytes += request.size
        return True

    def _begin(self) -> float:
        self._until = until = self._clock() + SLICE_S
        self._call_later(0.0, self._next_pass)
        return until

    def _next_pass(self) -> None:
        self._until = None
        if not self._parked:
            return
        until = self._begin()
        while self._parked and self._clock() < until:
            request = self._parked.popleft()
            self._parked_bytes -= request.size
            request.carry_out()

"""Limits requests on the general path to 10 ms per loop iteration; the rest is queued, first in, first out.

A client may send hundreds of requests at once, and one that names thousands of groups takes a tenth of a second. A
request that does not fit into the time slice is queued, one for each connection, which is muted until it is handled.
Between time slices all other connections are read, written and answered.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

TIME_SLICE_S: Final = 0.01
QUEUED_BYTES_MAX: Final = 64 << 20  # of queued requests; beyond it they are handled at once, as the lesser evil


class QueuedRequest(Protocol):
    """A request that can be queued."""

    @property
    def size(self) -> int:
        """The bytes that it holds while it is queued."""
        ...

    def run_queued(self) -> None:
        """Handle it. An error in it closes its own connection and no other."""
        ...


class RequestScheduler:
    """The time slice of this loop iteration, and the requests queued for the next."""

    __slots__ = ("_call_later", "_clock", "_queue", "_queued_bytes", "_slice_end")

    def __init__(self, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._slice_end: float | None = None  # None before the first request of a loop iteration
        self._queue: deque[QueuedRequest] = deque()
        self._queued_bytes = 0  # exactly the sum of their sizes

    def admits(self) -> bool:
        """Whether a request may be handled at once."""
        if self._slice_end is None:
            self._begin_slice()
            return True
        return not self._queue and self._clock() < self._slice_end

    def queue(self, request: QueuedRequest) -> bool:
        """Queue a request; False if too many bytes are queued already."""
        if self._queued_bytes + request.size > QUEUED_BYTES_MAX:
            return False
        self._queue.append(request)
        self._queued_bytes += request.size
        return True

    def _begin_slice(self) -> float:
        self._slice_end = slice_end = self._clock() + TIME_SLICE_S
        self._call_later(0.0, self._next_iteration)
        return slice_end

    def _next_iteration(self) -> None:
        self._slice_end = None
        if not self._queue:
            return
        slice_end = self._begin_slice()
        while self._queue and self._clock() < slice_end:
            request = self._queue.popleft()
            self._queued_bytes -= request.size
            request.run_queued()

"""Faults that a test orders and dispatch carries out: clients are tried against a broker that misbehaves.

Dispatch asks only while `faults` is true, that is while something is ordered: a broker without faults pays one
truth test. Orders are kept per API key and are used up in the order in which they were given.
"""

from collections import deque
from typing import NamedTuple

from levada.errors import ErrorCode


class Fault(NamedTuple):
    """What becomes of one request."""

    error: ErrorCode | None = None  # answered with this code in place of being handled
    delay_s: float = 0.0  # waits this long first
    drop: bool = False  # its connection is closed without an answer


class Faults:
    """The faults that are ordered and not yet delivered."""

    __slots__ = ("_ordered",)

    def __init__(self) -> None:
        self._ordered: dict[int, deque[Fault]] = {}  # no key has an empty queue

    def __bool__(self) -> bool:
        return bool(self._ordered)

    def order(self, api_key: int, fault: Fault, times: int = 1) -> None:
        """Let the next `times` requests of an API meet this fault."""
        if times < 1:
            raise ValueError(f"a fault happens at least once, not {times} times")
        self._ordered.setdefault(api_key, deque()).extend([fault] * times)

    def decide(self, api_key: int) -> Fault | None:
        """The fault of this request, which is then done with."""
        queue = self._ordered.get(api_key)
        if queue is None:
            return None
        fault = queue.popleft()
        if not queue:
            del self._ordered[api_key]
        return fault

    def clear(self) -> None:
        """Forget what was ordered: the broker is healthy again."""
        self._ordered.clear()

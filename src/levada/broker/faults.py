"""Fault injection: a test adds faults, and dispatch applies them to the next requests of an API.

Faults are kept per API key, first in, first out. Without faults they cost a request one truth test.
"""

from collections import deque
from typing import NamedTuple

from levada.errors import ErrorCode


class Fault(NamedTuple):
    """The fault of one request."""

    error: ErrorCode | None = None  # the response has this code, and the request is not handled
    delay_s: float = 0.0  # the request waits this long first
    drop: bool = False  # the connection is closed without a response


class Faults:
    """The faults that are not applied yet."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[int, deque[Fault]] = {}  # no key has an empty queue

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, api_key: int, fault: Fault, times: int = 1) -> None:
        """Apply this fault to the next `times` requests of an API."""
        if times < 1:
            raise ValueError(f"a fault happens at least once, not {times} times")
        self._queues.setdefault(api_key, deque()).extend([fault] * times)

    def decide(self, api_key: int) -> Fault | None:
        """The fault of this request, which is removed."""
        queue = self._queues.get(api_key)
        if queue is None:
            return None
        fault = queue.popleft()
        if not queue:
            del self._queues[api_key]
        return fault

    def clear(self) -> None:
        """Drop all faults."""
        self._queues.clear()

"""Counts requests, their times and their errors by API, with two clock readings per loop iteration.

A request on a fast path that is answered in the loop iteration that received it is only counted. The flush sends the
responses of an iteration together, so one time counts for all of them; as long as the iterations fall into the same
bucket, they are added to the histograms together as well. A request on the general path, or one whose response is
delayed, is timed alone. See docs/decisions/0024-request-times-by-loop-iteration.md.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

from levada.net.flush import FlushQueue
from levada.wire.schema.versions import APIS

BOUNDS_MS: Final = (0.2, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
# Iterations of less than the first bound are many: they are in one bucket, and are seldom added to the histograms.
BOUNDS_S: Final = tuple(bound / 1_000 for bound in BOUNDS_MS)
FAST_KEYS_MAX: Final = 14  # the greatest API key with a fast path: SyncGroup


class Histogram:
    """The times of one API's requests."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)  # the last is for longer times than all bounds
        self.total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add requests that took so long."""
        self.buckets[bisect_left(BOUNDS_S, seconds)] += count
        self.total_s += seconds * count


class RequestMetrics:
    """The requests of one broker. `dispatch` counts those on fast paths in `counts` itself, since they are many."""

    __slots__ = (
        "_clock",
        "_flushed",
        "_high_s",
        "_iterations",
        "_low_s",
        "_seconds",
        "counts",
        "errors",
        "flush_queue",
        "times",
    )

    def __init__(self, clock: Callable[[], float], flush_queue: FlushQueue) -> None:
        self._clock = clock
        self.flush_queue = flush_queue
        self.times = {api_key: Histogram() for api_key in APIS}
        self.errors: Counter[tuple[int, int]] = Counter()  # by API key and error code
        self.counts = [0] * (FAST_KEYS_MAX + 1)  # on fast paths and not in the histograms yet, by API key
        self._flushed = self.counts[:]  # of these, the ones answered up to the last flush
        self._low_s, self._high_s = -1.0, BOUNDS_S[0]  # the bucket of their iterations
        self._seconds, self._iterations = 0.0, 0  # of these iterations

    def flushed(self, now: float) -> None:
        """The responses of this loop iteration are sent."""
        seconds = now - self.flush_queue.began
        if not self._low_s < seconds <= self._high_s:
            self.fold()
            bucket = bisect_left(BOUNDS_S, seconds)
            self._low_s, self._high_s = (-1.0, *BOUNDS_S)[bucket], (*BOUNDS_S, inf)[bucket]
        self._seconds += seconds
        self._iterations += 1
        self._flushed = self.counts[:]

    def fold(self) -> None:
        """Add what was answered up to the last flush to the histograms."""
        if not self._iterations:
            return
        mean_s = self._seconds / self._iterations
        for api_key, count in enumerate(self._flushed):
            if count:
                self.times[api_key].add(mean_s, count)
                self.counts[api_key] -= count
        self._flushed = [0] * len(self.counts)
        self._seconds, self._iterations = 0.0, 0

    def begin(self) -> float:
        """Return the time of this loop iteration, for `complete`."""
        self.flush_queue.ensure_scheduled()
        return self.flush_queue.began

    def delay(self, api_key: int) -> float:
        """A request on a fast path is not answered in this loop iteration; return its time, for `complete`."""
        if self.counts[api_key] <= self._flushed[api_key]:
            return 0.0  # it waited behind an earlier response of its connection, and stays counted
        self.counts[api_key] -= 1
        return self.begin()

    def complete(self, api_key: int, began: float) -> None:
        """The response of a request that is timed alone is complete."""
        if began:
            self.times[api_key].add(self._clock() - began)

    def late(self, api_key: int, began: float) -> None:
        """A request that stayed counted is complete only now, in a later loop iteration."""
        if self.counts[api_key] > self._flushed[api_key]:
            self.counts[api_key] -= 1  # another one of its kind, so that each is counted once
            self.complete(api_key, began)

    def error(self, api_key: int, code: int) -> None:
        """A response has this error code, perhaps for one of its items."""
        self.errors[api_key, int(code)] += 1

    def requests(self, api_key: int) -> int:
        """How many requests of an API were answered."""
        counted = self.counts[api_key] if api_key <= FAST_KEYS_MAX else 0
        return sum(self.times[api_key].buckets) + counted

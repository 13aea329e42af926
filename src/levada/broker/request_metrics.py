"""Counts requests, their times and their errors by API, with one clock reading per loop iteration.

A request that is answered in the loop iteration that received it is only counted. The flush at the end of the iteration
reads the clock once and adds all of them to the histograms of their APIs: their responses leave together. A request
whose response is delayed is taken out of the count, and timed alone when it is complete. See
docs/decisions/0024-request-times-by-loop-iteration.md.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

from levada.wire.schema.versions import APIS

BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
BOUNDS_S: Final = tuple(bound / 1_000 for bound in BOUNDS_MS)


class Histogram:
    """The times of one API's requests."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)  # the last is for longer times than all bounds
        self.total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.buckets[bisect_left(BOUNDS_S, seconds)] += count
        self.total_s += seconds * count


class RequestMetrics:
    """The requests of one broker. `dispatch` counts in `counts` itself, since every request passes it."""

    __slots__ = ("_clock", "_ensure_flush", "began", "counts", "errors", "times")

    def __init__(self, clock: Callable[[], float], ensure_flush: Callable[[], None]) -> None:
        self._clock = clock
        self._ensure_flush = ensure_flush
        self.began = 0.0  # when the first request of this loop iteration was dispatched
        self.counts: defaultdict[int, int] = defaultdict(int)  # of this loop iteration, by API key
        self.times = {api_key: Histogram() for api_key in APIS}
        self.errors: Counter[tuple[int, int]] = Counter()  # by API key and error code

    def begin_iteration(self) -> None:
        """The first request of a loop iteration is dispatched."""
        self.began = self._clock()
        self._ensure_flush()  # also if the request gets no response

    def flushed(self) -> None:
        """The responses of this loop iteration are sent."""
        counts = self.counts
        if not counts:
            return
        seconds = self._clock() - self.began
        bucket = bisect_left(BOUNDS_S, seconds)
        for api_key, count in counts.items():
            times = self.times.get(api_key)
            if times is not None:  # an unknown API closes its connection
                times.buckets[bucket] += count
                times.total_s += seconds * count
        counts.clear()

    def delay(self, api_key: int) -> float:
        """A request of this loop iteration is not answered in it; return when it began, for `complete`."""
        if self.counts[api_key] > 0:
            self.counts[api_key] -= 1
            return self.began
        return 0.0  # it waited behind an earlier response of its connection, and is counted already

    def resume(self, api_key: int) -> None:
        """A delayed request is dispatched again."""
        if not self.counts:
            self.begin_iteration()
        self.counts[api_key] += 1

    def complete(self, api_key: int, began: float) -> None:
        """The response of a delayed request is complete."""
        if began is self.began and self.counts:
            self.counts[api_key] += 1
        elif began:
            self.times[api_key].add(self._clock() - began)

    def error(self, api_key: int, code: int) -> None:
        """A response has this error code, perhaps for one of its items."""
        self.errors[api_key, int(code)] += 1

    def requests(self, api_key: int) -> int:
        """How many requests of an API were answered."""
        return sum(self.times[api_key].buckets) + self.counts[api_key]

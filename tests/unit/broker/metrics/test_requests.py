"""Request times: one for all requests of a loop iteration, an own one for those that wait."""

import random
from itertools import pairwise

from levada.broker.metrics.requests import BOUNDS_MS, BOUNDS_S, RequestMetrics
from levada.net.flush import FlushQueue

PRODUCE, FETCH, OFFSET_COMMIT, CREATE_TOPICS = 0, 1, 8, 19


class Loop:
    """An event loop whose time the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[object] = []
        self.queue = FlushQueue(self.soon.append, lambda: self.now)
        self.metrics = RequestMetrics(lambda: self.now, self.queue)
        self.queue.after_flush(self.metrics.flushed)

    def dispatch(self, api_key: int) -> None:
        """A request on a fast path; its response schedules the flush."""
        self.metrics.counts[api_key] += 1
        self.queue.ensure_scheduled()

    def flush(self, seconds: float) -> None:
        self.now += seconds
        self.queue.flush()

    def buckets(self, api_key: int) -> dict[float, int]:
        """By their bounds in milliseconds, without the empty ones."""
        self.metrics.fold()
        bounds = (*BOUNDS_MS, float("inf"))
        return {bound: count for bound, count in zip(bounds, self.times(api_key), strict=True) if count}

    def times(self, api_key: int) -> list[int]:
        return self.metrics.times[api_key].buckets


def test_requests_of_an_iteration_have_its_time() -> None:
    loop = Loop()
    for seconds, produces, fetches in ((0.00005, 3, 0), (0.00009, 1, 1), (0.02, 2, 1), (0.00005, 1, 0), (60.0, 0, 1)):
        for _ in range(produces):
            loop.dispatch(PRODUCE)
        for _ in range(fetches):
            loop.dispatch(FETCH)
        loop.flush(seconds)
    assert loop.buckets(PRODUCE) == {0.2: 5, 25: 2}
    assert loop.buckets(FETCH) == {0.2: 1, 25: 1, float("inf"): 1}
    assert 0.04 < loop.metrics.times[PRODUCE].total_s < 0.0406


def test_a_delayed_request_has_its_own_time() -> None:
    loop = Loop()
    loop.dispatch(FETCH)
    loop.dispatch(FETCH)
    began = loop.metrics.delay(FETCH)
    loop.flush(0.00001)
    assert loop.buckets(FETCH) == {0.2: 1}
    loop.now += 0.3
    loop.metrics.complete(FETCH, began)
    assert loop.buckets(FETCH) == {0.2: 1, 500: 1}


def test_a_request_on_the_general_path_has_its_own_time() -> None:
    loop = Loop()
    began = loop.metrics.begin()
    loop.now += 0.004
    loop.metrics.complete(CREATE_TOPICS, began)
    assert loop.buckets(CREATE_TOPICS) == {5: 1}
    assert loop.metrics.requests(CREATE_TOPICS) == 1


def test_a_commit_that_its_flush_does_not_complete_is_counted_once() -> None:
    loop = Loop()
    loop.dispatch(OFFSET_COMMIT)
    began = loop.queue.began
    loop.flush(0.00001)
    loop.now += 0.3
    loop.dispatch(OFFSET_COMMIT)
    loop.metrics.late(OFFSET_COMMIT, began)
    loop.flush(0.00001)
    assert loop.buckets(OFFSET_COMMIT) == {0.2: 1, 500: 1}


def test_counts_never_decrease_and_miss_nothing() -> None:
    chance = random.Random(1)
    loop, waiting, answered = Loop(), list[float](), 0
    for _ in range(2_000):
        seen = loop.times(FETCH)[:]
        for _ in range(chance.randrange(4)):
            loop.dispatch(FETCH)
            answered += 1
            if chance.random() < 0.3:
                waiting.append(loop.metrics.delay(FETCH))
                answered -= 1
        if chance.random() < 0.1:  # a response behind another waits in the next iteration: it stays counted
            assert loop.metrics.delay(CREATE_TOPICS - 5) == 0.0
        loop.flush(chance.choice((0.00001, 0.0003, 0.1)))
        if waiting and chance.random() < 0.5:
            loop.metrics.complete(FETCH, waiting.pop(0))
            answered += 1
        if chance.random() < 0.2:
            loop.metrics.fold()
        assert all(now >= before for before, now in zip(seen, loop.times(FETCH), strict=True))
        assert loop.metrics.requests(FETCH) == answered


def test_bounds_ascend() -> None:
    assert all(low < high for low, high in pairwise(BOUNDS_S))

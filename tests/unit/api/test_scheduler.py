"""The request scheduler's time slice and bounds, with a loop and a clock of the test's."""

from collections.abc import Callable
from typing import NamedTuple

from levada.api.scheduler import QUEUED_BYTES_MAX, TIME_SLICE_S, RequestScheduler


class Loop:
    """Loop iterations, and a clock that moves only while requests run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.next: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.scheduler = RequestScheduler(lambda: self.now, lambda _, action: self.next.append(action))

    def iterate(self) -> None:
        actions, self.next = self.next, []
        for action in actions:
            action()

    def come(self, name: str, seconds: float, size: int = 1) -> None:
        request = Work(self, name, seconds, size)
        if self.scheduler.admits() or not self.scheduler.queue(request):
            request.run_queued()


class Work(NamedTuple):
    """A request that takes so long."""

    loop: Loop
    name: str
    seconds: float
    size: int

    def run_queued(self) -> None:
        self.loop.now += self.seconds
        self.loop.done.append(self.name)


def test_an_iteration_has_a_time_slice_and_the_rest_is_queued_in_order() -> None:
    loop = Loop()
    for number in range(10):
        loop.come(str(number), TIME_SLICE_S / 2)
    assert loop.done == ["0", "1"]
    loop.iterate()
    loop.come("late", 0)
    assert loop.done == ["0", "1", "2", "3"]
    while loop.next:
        loop.iterate()
    assert loop.done == [*map(str, range(10)), "late"]


def test_an_iteration_runs_one_request_however_long_it_takes() -> None:
    loop = Loop()
    for name in ("a", "b", "c"):
        loop.come(name, 10 * TIME_SLICE_S)
    loop.iterate()
    assert loop.done == ["a", "b"]


def test_what_waits_is_bounded() -> None:
    loop = Loop()
    loop.come("first", TIME_SLICE_S)
    loop.come("large", 0, QUEUED_BYTES_MAX)
    assert loop.done == ["first"]
    loop.come("too much", 0)
    assert loop.done == ["first", "too much"]
    loop.iterate()
    loop.come("again", TIME_SLICE_S)
    loop.come("large again", 0, QUEUED_BYTES_MAX)
    assert loop.done == ["first", "too much", "large", "again"]

"""A broker in a world of events: time passes from one to the next, and a bad network is between it and its clients.

The network loses, delays, reorders and repeats requests and loses answers, until the world is calm. What a client says
in one connection comes in order: a request that was given up may be handled later only where that may happen.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any

from tests.sim.broker_world import BrokerWorld

from levada.broker.partition.partition import Partition
from levada.core.cluster.image import ClusterImage
from levada.errors import ErrorCode, KafkaError
from levada.testing.sim_disk import SimCrash, SimDisk

Give = Callable[[Any], None]


class EventWorld(BrokerWorld):
    """One broker and what is on its way to it and from it."""

    def __init__(self, seed: int, disk_type: type[SimDisk], settings: Mapping[str, str], image: ClusterImage) -> None:
        super().__init__(seed, disk_type, settings, image)
        self.calm = False  # nothing goes wrong any more
        self.reachable_at_ms = 0
        self.flush_due = self.sync_due = self.task_due = False
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.numbers = count()

    def look(self) -> None:
        """What must hold after every event."""
        raise NotImplementedError

    # Time.

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        heappush(self.events, (self.clock.ms + delay_ms, next(self.numbers), action))

    def step(self) -> None:
        """The next event of any source."""
        timers, events = self.broker.timers, self.events
        rings = bool(timers) and (not events or timers[0].at_ms <= events[0][0])
        at_ms = timers[0].at_ms if rings else events[0][0]
        self.clock.ms = self.disk.now_ms = max(self.clock.ms, at_ms)
        try:
            if rings:
                self.broker.ring()
                self.flush_soon()
            else:
                heappop(events)[2]()
        except SimCrash:
            self.crash(self.may_cut_power())
        if self.failed:
            self.crash(power_cut=False)
        if self.broker.tasks.waiting and not self.task_due:
            self.task_due = True
            self.later(self.random.choice((1, 5, 300, 2_500)), self.run_task)
        self.look()

    def flush_soon(self) -> None:
        if not self.flush_due:
            self.flush_due = True
            self.later(self.random.choice((0, 0, 1, 4)), self.end_iteration)

    def end_iteration(self) -> None:
        self.flush_due = False
        super().end_iteration()

    def run_task(self) -> None:
        self.task_due = False
        if self.broker.tasks.waiting:
            self.broker.tasks.run(0)
            self.flush_soon()

    def sync_soon(self, partition: Partition) -> None:
        super().sync_soon(partition)
        if not self.sync_due:
            self.sync_due = True
            self.later(self.random.choice((1, 5, 30)), self.sync)

    def sync(self) -> None:
        self.sync_due = False
        super().sync()
        for partition in self.waiting_for_sync()[:1]:
            self.sync_soon(partition)

    def forget_calls(self) -> None:
        super().forget_calls()
        self.task_due = self.sync_due = self.flush_due = False
        self.reachable_at_ms = self.clock.ms + self.random.choice((0, 100, 3_000))

    # The network.

    def send(
        self,
        what: str,
        submit: Callable[[Give], None],
        answered: Give | None = None,
        given: Give | None = None,
        in_order: bool = False,
    ) -> None:
        """A request goes to the broker; `in_order` if it comes once, and before whatever this client says next."""
        random = self.random
        self.note(what)
        chance = 1.0 if self.calm else random.random()
        if chance < 0.03:
            return

        def arrive() -> None:
            if self.reachable_at_ms > self.clock.ms:
                self.answer(answered, KafkaError(ErrorCode.NETWORK_EXCEPTION))
                return
            self.handle(submit, answered, given)

        delay_ms = random.randint(1, 8)
        if chance < 0.06:
            delay_ms = random.randint(100, 2_500)
        elif chance < 0.09 and not in_order:
            delay_ms = random.randint(2_500, 25_000)
        self.later(delay_ms, arrive)
        if 0.09 <= chance < 0.12 and not in_order:
            self.later(random.randint(1, 15_000), arrive)

    def handle(self, submit: Callable[[Give], None], answered: Give | None, given: Give | None) -> None:
        broker = self.broker

        def give(result: Any) -> None:
            if broker is not self.broker:
                return
            if isinstance(result, Exception) and not isinstance(result, KafkaError):
                raise result
            if given is not None:
                given(result)
            self.answer(answered, result)

        try:
            submit(give)
        except KafkaError as error:
            give(error)
        self.flush_soon()

    def answer(self, answered: Give | None, result: Any) -> None:
        if answered is None or (not self.calm and self.random.random() < 0.03):
            return
        on_response = answered
        self.later(self.random.randint(1, 8), lambda: on_response(result))

"""Kills, stops, pauses and restarts broker and copiers at random.

What happens is drawn from a seed; how much was copied says when, not the clock, so that a slow machine is treated
like a fast one.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from tests.eos.processes import Copier
from tests.support.broker import BrokerProcess

LOOK_S = 0.02
TIMEOUT_S = 600.0
PAUSE_S = (1.0, 10.0)  # around the timeouts of sessions (3 s) and transactions (8 s)


class Fault(StrEnum):
    """What may happen, and how often in proportion."""

    BROKER_KILLED = "broker killed"
    BROKER_STOPPED = "broker stopped"  # in order, by SIGTERM
    BROKER_PAUSED = "broker paused"  # by SIGSTOP, as a machine that hangs: timers fire late
    COPIER_KILLED = "copier killed"
    COPIER_PAUSED = "copier paused"  # a zombie when it wakes up: others have its partitions
    BOTH_KILLED = "both killed"


WEIGHTS = {
    Fault.BROKER_KILLED: 4,
    Fault.BROKER_STOPPED: 1,
    Fault.BROKER_PAUSED: 1,
    Fault.COPIER_KILLED: 4,
    Fault.COPIER_PAUSED: 2,
    Fault.BOTH_KILLED: 2,
}


class Size(NamedTuple):
    """How long a run is."""

    messages: int
    transaction: int
    faults: int


class Event(NamedTuple):
    """A fault that comes when so many transactions have ended."""

    transactions: int
    fault: Fault
    copier: int  # which one, where the fault is about one


def plan(chance: random.Random, size: Size, copiers: int) -> list[Event]:
    """Faults over the first part of the run."""
    last = max(int(0.7 * size.messages / size.transaction), size.faults)
    times = sorted(chance.choices(range(last), k=size.faults))
    faults = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=size.faults)
    return [Event(at, fault, chance.randrange(copiers)) for at, fault in zip(times, faults, strict=True)]


class Chaos:
    """A broker, its copiers, and the one who does this to them."""

    def __init__(self, server: BrokerProcess, copiers: Sequence[Copier], chance: random.Random) -> None:
        self._server = server
        self._copiers = copiers
        self._chance = chance
        self._paused: dict[Copier, float] = {}  # and when they go on
        self.transactions = 0
        self.faults: Counter[Fault] = Counter()
        self.ended_by_themselves: list[str] = []

    def run(self, events: list[Event], done: Callable[[], bool]) -> None:
        """Go on until all has happened and all is copied."""
        deadline = time.monotonic() + TIMEOUT_S
        left = list(events)
        for copier in self._copiers:
            copier.start()
        try:
            while left or self._paused or not done():
                assert time.monotonic() < deadline, f"not done: {self}; to come: {left}"
                self._look()
                while left and left[0].transactions <= self.transactions:
                    self._happen(left.pop(0))
        finally:
            for copier in self._copiers:
                copier.kill()

    def __str__(self) -> str:
        happened = ", ".join(f"{count} x {fault}" for fault, count in self.faults.items())
        return f"{self.transactions} transactions; {happened}; ended by themselves: {self.ended_by_themselves}"

    def _look(self) -> None:
        """Wait a little, count what was copied, start again who has ended, wake up who has slept."""
        time.sleep(LOOK_S)
        for copier in self._copiers:
            self.transactions += copier.transactions()
            if not copier.alive:
                self.ended_by_themselves.append(f"{copier.name}.{copier.lives}: {copier.code}")
                copier.start()
        for copier, until in list(self._paused.items()):
            if time.monotonic() > until:
                del self._paused[copier]
                copier.resume()

    def _happen(self, event: Event) -> None:
        time.sleep(self._chance.uniform(0, 0.05))  # any moment of a transaction will do
        fault, copier = event.fault, self._copiers[event.copier]
        self.faults[fault] += 1
        killed = fault in (Fault.COPIER_KILLED, Fault.BOTH_KILLED)
        if killed:
            self._paused.pop(copier, None)
            copier.kill()
        if fault in (Fault.BROKER_KILLED, Fault.BOTH_KILLED, Fault.BROKER_STOPPED):
            self._server.stop(signal.SIGTERM if fault is Fault.BROKER_STOPPED else signal.SIGKILL)
            time.sleep(self._chance.uniform(0, 0.5))
            self._server.start()
        if killed:
            self.transactions += copier.transactions()
            copier.start()
        if fault is Fault.COPIER_PAUSED and copier.alive:
            self._paused[copier] = time.monotonic() + self._chance.uniform(*PAUSE_S)
            copier.pause()
        if fault is Fault.BROKER_PAUSED:
            os.kill(self._server.pid, signal.SIGSTOP)
            time.sleep(self._chance.uniform(*PAUSE_S) / 2)
            os.kill(self._server.pid, signal.SIGCONT)

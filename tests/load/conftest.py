"""A broker of its own for each load, and the figures of all loads in the end.

A load fails only on wrong results; whether a goal is met says the table, since it depends on the machine.
`SECONDS=10 make load` shortens the long ones.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench import machine
from bench.brokers import Broker, Levada
from bench.outcome import Outcome
from bench.report import number, table

SECONDS = float(os.environ.get("SECONDS", "60"))

Figure = tuple[str, float, str, float | None]  # what, how much, unit, at most or (negative) at least so much
_figures: list[tuple[str, Figure]] = []


class Ordinary(Levada):
    """With Kafka's default delay of a group's first rebalance, in which all its members come."""

    initial_rebalance_delay_ms = 3_000


class Report:
    """Takes the figures of one load."""

    def __init__(self, load: str) -> None:
        self._load = load

    def add(self, what: str, value: float, unit: str, goal: float | None = None) -> None:
        """A goal is the most that a figure may be, or with a minus sign the least."""
        _figures.append((self._load, (what, value, unit, goal)))

    def add_memory(self, broker: Broker) -> None:
        self.add("anonymous memory of the broker", machine.memory(broker.pid).anonymous, "MB")

    def add_outcome(self, outcome: Outcome, p99_goal_ms: float | None = None) -> None:
        """What every load with requests tells."""
        self.add("p50", outcome.latency["p50_ms"], "ms")
        self.add("p99", outcome.latency["p99_ms"], "ms", p99_goal_ms)
        self.add("broker", outcome.broker.total / outcome.seconds, "cores")
        self.add("generator", outcome.generator.total / outcome.seconds, "cores")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Fresh, so that its memory tells of one load."""
    one = Ordinary(tmp_path)
    try:
        one.start()
        yield one
    finally:
        one.remove()


@pytest.fixture
def report() -> Callable[[str], Report]:
    """A place for the figures of a load, by its title."""
    return Report


def _judged(value: float, goal: float | None, unit: str) -> str:
    if goal is None:
        return ""
    met = value >= -goal if goal < 0 else value <= goal
    bound = f"≥ {number(-goal)}" if goal < 0 else f"≤ {number(goal)}"
    return f"{bound} {unit}: {'met' if met else 'missed'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """All figures, in one table."""
    if not _figures:
        return
    lines = [
        (load, what, f"{number(value)} {unit}", _judged(value, goal, unit))
        for load, (what, value, unit, goal) in _figures
    ]
    terminalreporter.write_line("")
    terminalreporter.write_line(table(("load", "figure", "", "goal"), lines))

"""The measurements of loads: one table beside the goals, and where it is recorded.

Only a whole run of `make load` in which nothing was wrong is recorded: in bench/results/load.json and in
docs/benchmarks.md.
"""

import datetime
from typing import Any, NamedTuple

from bench import machine, results
from bench.brokers import Broker
from bench.generator.outcome import Outcome
from bench.report import DOCS, number, put_between_markers, table

RECORD = results.DIRECTORY / "load.json"
MARK = "load"


class Figure(NamedTuple):
    """A goal is the most that a figure may be, or with a minus sign the least."""

    load: str
    what: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        met = self.value >= -self.goal if self.goal < 0 else self.value <= self.goal
        bound = f"≥ {number(-self.goal)}" if self.goal < 0 else f"≤ {number(self.goal)}"
        return f"{bound} {self.unit}: {'met' if met else '**missed**'}"


ALL: list[Figure] = []


class Report:
    """Takes the figures of one load."""

    def __init__(self, load: str) -> None:
        self._load = load

    def add(self, what: str, value: float, unit: str, goal: float | None = None) -> None:
        ALL.append(Figure(self._load, what, value, unit, goal))

    def add_memory(self, broker: Broker) -> None:
        self.add("anonymous memory of the broker", machine.memory(broker.pid).anonymous, "MB")

    def add_outcome(self, outcome: Outcome, p99_goal_ms: float | None = None) -> None:
        """What every load with requests tells."""
        self.add("p50", outcome.latency["p50_ms"], "ms")
        self.add("p99", outcome.latency["p99_ms"], "ms", p99_goal_ms)
        self.add("broker", outcome.broker.total / outcome.seconds, "cores")
        self.add("generator", outcome.generator.total / outcome.seconds, "cores")


def markdown() -> str:
    """All figures, in one table."""
    lines, before = [], ""
    for one in ALL:
        lines.append(("" if one.load == before else one.load, one.what, f"{number(one.value)} {one.unit}", one.verdict))
        before = one.load
    return table(("load", "figure", "", "goal"), lines)


def record() -> None:
    """Into the file and the page."""
    found: dict[str, Any] = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "revision": results.revision(),
        "figures": [one._asdict() for one in ALL],
    }
    results.save_results(RECORD, found)
    about = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    head = f"{found['when']}, revision {found['revision']}; {about}."
    put_between_markers(DOCS, f"{head}\n\n{markdown()}", MARK)

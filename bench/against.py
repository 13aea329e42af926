"""`make bench-quick BASE=REV`: the hot path of this tree and of an earlier commit, in turns in one run.

A host that changes its speed between two runs moves a figure by more than most changes to the code do, and so does the
memory layout of a process. So each round measures both states within seconds of each other, the first one changing,
both start again every few rounds, and the row is the median of the rounds' ratios, with the interval that holds the
true median in 95 of 100 runs.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import comb
from pathlib import Path
from statistics import median

from bench import results
from bench.brokers import Levada, alone
from bench.generator.outcome import ROOT
from bench.report import number, table
from bench.rows import Row

CONFIDENCE = 0.95
ROUNDS_PER_START = 4

Costs = dict[str, list[tuple[float, float]]]  # CPU of the first broker and of the second, by row
Pair = tuple[Levada, Levada]


class EarlierLevada(Levada):
    """The broker of an earlier commit, with the packages of this environment."""

    name = "earlier"

    def __init__(self, root: Path, base: str) -> None:
        super().__init__(root)
        self.source = self.directory / "tree" / "src"
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", base, "src"], check=True, stdout=subprocess.PIPE)
        self.source.parent.mkdir()
        subprocess.run(["tar", "-x", "-C", str(self.source.parent)], check=True, input=archive.stdout)


@contextmanager
def running(brokers: Pair) -> Iterator[Pair]:
    """Both brokers, running."""
    try:
        for broker in brokers:
            broker.prepare()
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.remove()


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """A confidence interval of the median by order statistics: it assumes nothing about how the ratios spread."""
    ordered, count = sorted(ratios), len(ratios)
    rank, tail = 0, 1 / 2**count
    while rank + 1 < count / 2 and 2 * (tail + comb(count, rank + 1) / 2**count) <= 1 - CONFIDENCE:
        rank += 1
        tail += comb(count, rank) / 2**count
    return ordered[rank], ordered[-1 - rank]


def measure(rows: Sequence[Row], root: Path, base: str, rounds: int) -> Costs:
    """The costs of an earlier commit's broker and of this tree's."""
    return measure_pairs(rows, lambda: (EarlierLevada(root, base), Levada(root)), rounds)


def measure_pairs(rows: Sequence[Row], make: Callable[[], Pair], rounds: int) -> Costs:
    """The costs of all rounds of two brokers; the first round after a start is not counted."""
    costs: Costs = {row.key: [] for row in rows}
    for done in range(0, rounds, ROUNDS_PER_START):
        with running(make()) as brokers:
            for number_of_round in range(done, min(done + ROUNDS_PER_START, rounds) + 1):
                print(f"round {number_of_round} of {rounds}", file=sys.stderr, flush=True)
                for row in rows:
                    cost = _measure_row(row, brokers if number_of_round % 2 else brokers[::-1])
                    if number_of_round > done:
                        costs[row.key].append((cost[brokers[0].name], cost[brokers[1].name]))
    return costs


def _measure_row(row: Row, brokers: Sequence[Levada]) -> dict[str, float]:
    cost = {}
    for broker in brokers:
        with alone(brokers, broker):
            cost[broker.name] = results.figures(row.run(broker))[row.cost]
    return cost


def show(rows: Sequence[Row], costs: Costs, base: str) -> str:
    """A table for people."""
    lines = []
    for row in rows:
        ratios = [now / before for before, now in costs[row.key]]
        low, high = interval(ratios)
        unit = "us/request" if row.cost == "cpu_us_per_request" else "us/MB"
        before, now = (number(median(pair[side] for pair in costs[row.key])) for side in (0, 1))
        change = f"{median(ratios) - 1:+.1%}", f"{low - 1:+.1%} to {high - 1:+.1%}"
        lines.append((row.title, f"{before} {unit}", f"{now} {unit}", *change))
    return table(("broker CPU", base, "this tree", "change", "95 %"), lines)

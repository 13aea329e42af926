"""What metrics and logs cost: the same load on two brokers of this tree, with both and without, in turns.

The goal is at most 2 % of the broker's CPU on every row.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import against
from bench.brokers import Levada
from bench.generator import loads
from bench.rows import Row, small

COST_MAX = 0.02
SECONDS = 0.8
ROUNDS = 20
ROWS = (
    small("one-8", "produce one 100 B message a request, 8 connections", loads.one_message(8, seconds=SECONDS)),
    small("latency", "1,000 messages/s, each consumed at once", loads.end_to_end(messages=1_000)),
    small("commit-8", "commit offsets one by one, 8 connections", loads.commits(8, seconds=SECONDS)),
    small("rebalance-50", "a group of 50 members rebalances", loads.rebalances(50, times=40)),
)


class Unobserved(Levada):
    """The broker without metrics, whose log has warnings only."""

    name = "unobserved"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"KAFKA_LEVADA_METRICS_LISTENER": "", "KAFKA_LEVADA_LOG_LEVEL": "warning"}


def measure(root: Path, rounds: int = ROUNDS, rows: Sequence[Row] = ROWS) -> dict[str, dict[str, Any]]:
    """By row: its title, CPU without and with metrics and logs, the change, and its interval."""
    costs = against.measure_pairs(rows, lambda: (Unobserved(root), Levada(root)), rounds)
    found = {}
    for row in rows:
        ratios = [observed / without for without, observed in costs[row.key]]
        low, high = against.interval(ratios)
        without, observed = (median(pair[side] for pair in costs[row.key]) for side in (0, 1))
        found[row.key] = {
            "title": row.title,
            "without_us": without,
            "with_us": observed,
            "change": median(ratios) - 1,
            "low": low - 1,
            "high": high - 1,
        }
    return found

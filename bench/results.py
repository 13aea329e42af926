"""From outcomes of rounds to the figures of a row: medians, what limited it, and where results are kept."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.generator.outcome import ROOT, Outcome
from bench.machine import MEGABYTE

DIRECTORY = ROOT / "bench" / "results"
LATEST = DIRECTORY / "latest.json"

BUSY = 0.85  # of a core: such a process is the limit
NO_IDLE = 0.12  # of all cores: nothing is left to use
OTHERS = 0.2  # of all cores: other processes use the machine

Figures = dict[str, float]


def figures(outcome: Outcome) -> Figures:
    """All that a round tells, as plain numbers."""
    cores = os.cpu_count() or 1
    megabytes = max(outcome.bytes, 1) / MEGABYTE
    requests = max(outcome.requests, 1)
    broker = outcome.broker
    used = (broker.total + outcome.generator.total) / outcome.seconds / cores
    return {
        "requests_per_s": outcome.requests / outcome.seconds,
        "mb_per_s": outcome.bytes / MEGABYTE / outcome.seconds,
        "tail_mb_per_s": outcome.tail_bytes / MEGABYTE / outcome.seconds,
        **outcome.latency,
        "cpu_us_per_request": broker.total * 1e6 / requests,
        "user_us_per_request": broker.user * 1e6 / requests,
        "system_us_per_request": broker.system * 1e6 / requests,
        "cpu_us_per_mb": broker.total * 1e6 / megabytes,
        "user_us_per_mb": broker.user * 1e6 / megabytes,
        "system_us_per_mb": broker.system * 1e6 / megabytes,
        "broker_cores": broker.total / outcome.seconds,
        "generator_cores": outcome.generator.total / outcome.seconds,
        "idle": outcome.idle,
        "steal": outcome.steal,
        "others": max(0.0, 1.0 - outcome.idle - used),
    }


def medians(rounds: Sequence[Figures]) -> Figures:
    """Of each figure by itself."""
    return {name: median(each.get(name, 0.0) for each in rounds) for name in rounds[0]}


def bottleneck(row: Figures) -> str:
    """What kept this row from going faster."""
    broker, generator = row["broker_cores"], row["generator_cores"]
    cores = f"broker {broker:.1f} + load {generator:.1f} cores"
    if row["others"] > OTHERS:
        return f"other processes on the machine ({cores})"
    if row["idle"] < NO_IDLE:
        return f"all cores busy ({cores})"
    if generator >= BUSY and generator > broker:
        return f"the load generator ({cores})"
    if broker >= BUSY:
        return f"the broker ({cores})"
    return f"waiting for each other ({cores})"


def load_results(path: Path) -> dict[str, Any] | None:
    """What an earlier run recorded, if anything."""
    try:
        recorded = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return recorded if isinstance(recorded, dict) else None


def save_results(path: Path, results: dict[str, Any]) -> None:
    """Numbers are rounded to what a measurement can mean, so that recorded results differ only where they differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(results), indent=1, sort_keys=True) + "\n")


def ratio(row: dict[str, Any], metric: str) -> float | None:
    """Levada : Kafka, where both were measured."""
    levada, kafka = row.get("levada"), row.get("kafka")
    if not levada or not kafka or not kafka.get(metric) or metric not in levada:
        return None
    return float(levada[metric] / kafka[metric])


def ratio_range(row: dict[str, Any], metric: str) -> tuple[float, float] | None:
    """The least and the greatest ratio of the rounds, where both were measured."""
    rounds = [row.get(name, {}).get("rounds", {}).get(metric, ()) for name in ("levada", "kafka")]
    ratios = [levada / kafka for levada, kafka in zip(*rounds, strict=False) if kafka]
    return (min(ratios), max(ratios)) if ratios else None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value


def revision() -> str:
    """The commit that was measured."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip() or "unknown"

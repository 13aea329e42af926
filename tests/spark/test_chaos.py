"""Exactly once under kill -9: topic to topic, with and without counts, while driver, worker and broker die (R62).

A few kills here; `make chaos-spark` does the rest: everybody at every step, then at random, then executors.
"""

import os
from pathlib import Path

import pytest
from tests.spark.chaos import Kill, at_each_step, at_random, chaos

FULL = os.environ.get("CHAOS") == "full"
SEED = int(os.environ.get("SEED", "1"))
pytestmark = pytest.mark.slow

FEW = [Kill("worker", "written"), Kill("broker", "decided"), Kill("driver", "ended one")]


@pytest.mark.skipif(FULL, reason="part of the full run")
def test_a_few_kills(tmp_path: Path) -> None:
    with chaos(tmp_path, SEED) as pipeline:
        for kill in FEW:
            pipeline.kill(kill)
        pipeline.check()


@pytest.mark.skipif(not FULL, reason="make chaos-spark")
@pytest.mark.parametrize(
    ("name", "master"),
    [("each step", "local[2,4]"), ("random", "local[2,4]"), ("executors", "local-cluster[2,1,1024]")],
)
def test_many_kills(tmp_path: Path, name: str, master: str) -> None:
    kills = {
        "each step": at_each_step(),
        "random": at_random(SEED, 15, ("driver", "worker", "broker", "broker")),
        "executors": at_random(SEED, 6, ("executor", "executor", "worker")),
    }[name]
    with chaos(tmp_path, SEED, master=master) as pipeline:
        for kill in kills:
            print(kill, flush=True)
            pipeline.kill(kill)
        print(f"\n{name}: {pipeline.check()}; 0 lost, 0 doubled")
        for kind, times in sorted(pipeline.done.items()):
            print(f"  {times} x {kind}")

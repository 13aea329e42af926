"""Exactly once under kill -9: topic to topic, with and without counts, while driver, worker and broker die.

A few kills here; `make chaos-spark` does the rest: everybody at every step, then at random, then executors.
"""

import os
from pathlib import Path

import pytest
from tests.spark.chaos.chaos import Kill, at_each_step, at_random, chaos
from tests.spark.chaos.copies import Copies
from tests.spark.chaos.steps import SINK_STEPS

FULL = os.environ.get("CHAOS") == "full"
SEED = int(os.environ.get("SEED", "1"))
pytestmark = pytest.mark.slow

FEW = [Kill("worker", "written"), Kill("broker", "committed"), Kill("driver", "ended one")]
MANY = {
    "each step": at_each_step(SINK_STEPS, "worker", "broker", "driver"),
    "random": at_random(SEED, 15, "driver", "worker", "broker", "broker"),
    "executors": at_random(SEED, 6, "executor", "executor", "worker"),
}
MASTERS = {"executors": "local-cluster[2,1,1024]"}


@pytest.mark.parametrize("name", MANY if FULL else ["few"])
def test_kills(tmp_path: Path, name: str) -> None:
    with chaos(tmp_path, SEED, Copies, master=MASTERS.get(name, "local[2,4]")) as pipeline:
        pipeline.kill_all(MANY.get(name, FEW))
        pipeline.check(name)

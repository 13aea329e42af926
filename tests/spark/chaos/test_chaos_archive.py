"""archive under kill -9: lake and log have each record once, while driver, worker and broker die.

A few kills here; `make chaos-spark` does the rest: at every step, then at random. The steps are in the driver's Python,
so "worker", the process that comes to a step, means that one alone there, while its JVM lives a moment longer.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.chaos.chaos import Kill, at_each_step, at_random, chaos
from tests.spark.chaos.lake_steps import DELTA_STEPS, PARQUET_STEPS
from tests.spark.chaos.lakes import DeltaTableLake, KeptLake, ParquetLake
from tests.spark.chaos.steps import READING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = os.environ.get("CHAOS") == "full"
SEED = int(os.environ.get("SEED", "1"))
pytestmark = pytest.mark.slow

Series = list[tuple[type[KeptLake], list[Kill]]]
FEW: Series = [
    (ParquetLake, [Kill("worker", READING), Kill("driver", "joining committed")]),
    (DeltaTableLake, [Kill("driver", "committed")]),
]
MANY: Series = [
    (ParquetLake, [Kill("broker", READING), *at_each_step(PARQUET_STEPS, "driver")]),
    (DeltaTableLake, [Kill("broker", READING), *at_each_step(DELTA_STEPS, "worker")]),
    (ParquetLake, at_random(SEED, 8, "driver", "worker", "broker")),
    (DeltaTableLake, at_random(SEED + 1, 4, "driver", "driver", "broker")),
]


@pytest.mark.parametrize(("lake", "kills"), MANY if FULL else FEW)
def test_kills(tmp_path: Path, spark: "SparkSession", lake: type[KeptLake], kills: list[Kill]) -> None:
    with chaos(tmp_path, SEED, partial(lake, spark=spark)) as pipeline:
        pipeline.kill_all(kills)
        pipeline.check(lake.form)

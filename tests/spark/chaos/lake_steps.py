"""Steps of archive at which a process is killed, put into the driver's Python.

Orders are those of `steps`. What Spark does in between, the writing of files, is met by kills at random.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.spark.chaos.steps import READING, meet

from levada.pipelines.lake.archive import BatchWriter
from levada.pipelines.lake.delta import DeltaLake
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.parquet import COMMITS, ParquetLake

BOTH = (READING, "called", "written")
PARQUET_STEPS = (
    *BOTH,
    "committing",
    "committed",
    "moved one",
    "joined",
    "joining committed",
    "removed one",
    "done",
)
DELTA_STEPS = (*BOTH, "moved one", "committing", "committed", "joining", "joined", "done")

Condition = Callable[..., bool]


def put_steps_into(form: str, folder: Path) -> None:
    """From now on archive comes to these steps; form is that of its lake."""

    def step(
        owner: type, method: str, before: str = "", after: str = "", when: Condition = lambda *_, **__: True
    ) -> None:
        plain: Callable[..., Any] = getattr(owner, method)

        def stepped(*positional: Any, **named: Any) -> Any:
            counts = when(*positional, **named)
            if before and counts:
                meet(folder, before)
            result = plain(*positional, **named)
            if after and counts:
                meet(folder, after)
            return result

        setattr(owner, method, stepped)

    step(BatchWriter, "write", "called", "done")
    step(Files, "write_records", after="written")
    step(Files, "rename", after="moved one", when=_moves_records)
    if form == "delta":
        step(
            DeltaTable,
            "create_write_transaction",
            "committing",
            "committed",
            when=lambda _, added, *__, **___: bool(added),
        )
        step(DeltaLake, "compact", "joining", "joined")
        return
    step(ParquetLake, "commit", "joined", when=_joins)
    step(Files, "create", "committing", "committed", when=_adds_records)
    step(ParquetLake, "_publish", "joining committed", when=lambda _, commit, **__: bool(commit.removed))
    step(Files, "remove", after="removed one", when=lambda _, name: name.endswith(".parquet"))


def _adds_records(_: Files, name: str, text: str) -> bool:
    return name.startswith(COMMITS) and bool(json.loads(text)["added"])  # a claim adds none


def _moves_records(_: Files, __: str, target: str) -> bool:
    return target.endswith(".parquet")


def _joins(_: ParquetLake, *, removed: object = (), **__: object) -> bool:
    return bool(removed)

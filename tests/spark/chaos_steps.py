"""The sink with places at which somebody is killed: a data source for the kill tests, loaded in Spark's Python workers.

An order is a file named after a step; the first process that comes to the step takes it and kills whom it names. So
each order is met once, in a batch that is really under way.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from levada.spark import transactions
from levada.spark.sink import stream_writer
from levada.spark.source import LevadaDataSource
from levada.spark.writing import RowWriter

TASK_STEPS = ("begun", "written")
DRIVER_STEPS = ("called", "locked", "held", "deciding", "decided", "ended one", "ended all")
STEPS = TASK_STEPS + DRIVER_STEPS
HERE = 0  # in an order: the process that meets it


def order(folder: Path, step: str, pids: Sequence[int]) -> None:
    """Whoever comes to the step next kills these."""
    hidden = folder / f".{step}"
    hidden.write_text(json.dumps(list(pids)))
    hidden.rename(folder / step)


def is_met(folder: Path, step: str) -> bool:
    return not (folder / step).exists()


def _meet(folder: Path, step: str) -> None:
    taken = folder / f"{step}.{os.getpid()}"
    try:
        (folder / step).rename(taken)
    except FileNotFoundError:
        return
    for pid in json.loads(taken.read_text()):
        os.kill(pid or os.getpid(), signal.SIGKILL)


class ChaosWriter(DataSourceStreamArrowWriter):
    """The writer of a stream, on a way with places to die."""

    def __init__(self, writer: DataSourceStreamArrowWriter, folder: Path) -> None:
        self._writer = writer
        self._folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._watch(transactions, "begin", "begun", after=True)
        plain = RowWriter.write

        def write(writer: RowWriter, batches: Any) -> None:
            plain(writer, batches)
            _meet(self._folder, "written")

        RowWriter.write = write  # type: ignore[method-assign, assignment]
        try:
            return self._writer.write(iterator)
        finally:
            RowWriter.write = plain  # type: ignore[method-assign]

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _meet(self._folder, "called")
        self._watch(transactions, "read_decision", "locked")
        self._watch(transactions, "_hold_all", "held", after=True)
        self._watch(transactions, "write_decision", "deciding")
        self._watch(transactions, "write_decision", "decided", after=True)
        self._watch(transactions, "_commit", "ended one", after=True)
        self._writer.commit(messages, batchId)  # type: ignore[arg-type]
        _meet(self._folder, "ended all")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)  # type: ignore[arg-type]

    def _watch(self, owner: Any, name: str, step: str, *, after: bool = False) -> None:
        """Have a step before or after a coroutine function; once in a process, which may serve many batches."""
        plain: Callable[..., Any] = getattr(owner, name)
        if step in getattr(plain, "steps", ()):
            return

        async def watched(*positional: Any, **named: Any) -> Any:
            if not after:
                _meet(self._folder, step)
            result = await plain(*positional, **named)
            if after:
                _meet(self._folder, step)
            return result

        watched.steps = (step, *getattr(plain, "steps", ()))  # type: ignore[attr-defined]
        setattr(owner, name, watched)


class ChaosSource(LevadaDataSource):
    """`format("chaos")`: as levada, with an option `orders` for a folder."""

    @classmethod
    def name(cls) -> str:
        return "chaos"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        options = {name: value for name, value in self.options.items() if name.lower() != "orders"}
        folder = Path(next(value for name, value in self.options.items() if name.lower() == "orders"))
        return ChaosWriter(stream_writer(options, schema, overwrite), folder)

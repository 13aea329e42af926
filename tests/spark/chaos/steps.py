"""Steps of reader and sink at which a process is killed: a data source, loaded in Spark's workers.

An order is a file named after a step; the first process that comes to the step takes it and kills whom it names. So
each order is met once, in a batch that is really under way.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, InputPartition, WriterCommitMessage

from levada.spark.read.options import read_options
from levada.spark.read.stream import StreamReader
from levada.spark.source import LevadaDataSource
from levada.spark.write import driver, transactions
from levada.spark.write.sink import stream_writer
from levada.spark.write.task import RowWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TASK_STEPS = ("begun", "written")
DRIVER_STEPS = ("called", "locked", "held", "committing", "committed", "ended one", "ended all")
SINK_STEPS = TASK_STEPS + DRIVER_STEPS
READING = "reading"
HERE = 0  # in an order: the process that meets it


def order(folder: Path, step: str, pids: Sequence[int]) -> None:
    """The next process that comes to the step kills these."""
    for old in folder.glob(f"{step}.*"):
        old.unlink()
    hidden = folder / f".{step}"
    hidden.write_text(json.dumps(list(pids)))
    hidden.rename(folder / step)


def met_by(folder: Path, step: str) -> int | None:
    """The process that came to the step and carried out the last order for it."""
    return next((int(path.suffix[1:]) for path in folder.glob(f"{step}.*")), None)


def meet(folder: Path, step: str) -> None:
    """Come to a step: if there is an order for it, it is carried out here."""
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
        self._watch(transactions, "begin_stream_task", "begun", after=True)
        plain = RowWriter.write

        def write(writer: RowWriter, batches: Any) -> None:
            plain(writer, batches)
            meet(self._folder, "written")

        RowWriter.write = write  # type: ignore[method-assign, assignment]
        try:
            return self._writer.write(iterator)
        finally:
            RowWriter.write = plain  # type: ignore[method-assign]

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        meet(self._folder, "called")
        self._watch(driver, "_fence_all", "locked")
        self._watch(driver, "_fence_all", "held", after=True)
        self._watch(driver, "append_commit", "committing")
        self._watch(driver, "append_commit", "committed", after=True)
        self._watch(driver, "_commit", "ended one", after=True)
        self._writer.commit(messages, batchId)  # type: ignore[arg-type]
        meet(self._folder, "ended all")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)  # type: ignore[arg-type]

    def _watch(self, owner: Any, name: str, step: str, *, after: bool = False) -> None:
        """Have a step before or after a coroutine function; once in a process, which may serve many batches."""
        plain: Callable[..., Any] = getattr(owner, name)
        if step in getattr(plain, "steps", ()):
            return

        async def watched(*positional: Any, **named: Any) -> Any:
            if not after:
                meet(self._folder, step)
            result = await plain(*positional, **named)
            if after:
                meet(self._folder, step)
            return result

        watched.steps = (step, *getattr(plain, "steps", ()))  # type: ignore[attr-defined]
        setattr(owner, name, watched)


class ChaosReader(StreamReader):
    """The reader of a stream, with a place to die in each of its tasks."""

    def __init__(self, options: Mapping[str, str], schema: "StructType", folder: Path) -> None:
        super().__init__(read_options(options), schema)
        self._folder = folder

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for rows in super().read(partition):
            meet(self._folder, READING)
            yield rows


class ChaosSource(LevadaDataSource):
    """In place of `format("levada")`, with an option `orders` for a folder."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name.lower() != "orders"})
        self._orders = Path(next(value for name, value in options.items() if name.lower() == "orders"))

    def streamReader(self, schema: "StructType") -> ChaosReader:
        return ChaosReader(self.options, schema, self._orders)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> ChaosWriter:
        return ChaosWriter(stream_writer(self.options, schema, overwrite), self._orders)

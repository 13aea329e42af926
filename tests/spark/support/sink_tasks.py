"""Writers without Spark: task attempts and drivers, called as Spark calls them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType
from tests.support.reading import read_committed

from levada.spark.write import driver
from levada.spark.write.jobs import batch_writer
from levada.spark.write.sink import BATCH_ID, QUERY_ID, RUN_ID, TaskCommit, stream_writer
from levada.testing import EmbeddedBroker

TEXT, BYTES = StringType(), BinaryType()
PLAIN: dict[str, DataType] = {"key": TEXT, "value": TEXT}


def structs(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


HEADERS = ArrayType(structs(key=TEXT, value=BYTES))


def rows(*values: object, **columns: Any) -> Iterator[Any]:
    """An Arrow batch of rows; the key is the value, if nothing else is said."""
    texts = [str(value) for value in values]
    arrays = {"key": pa.array(texts), "value": pa.array(texts)} | columns
    yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


@contextmanager
def task(partition: int = 0, attempt: int = 0, /, **properties: str) -> Iterator[None]:
    """The context in which Spark calls `write`."""
    context = TaskContext(partitionId=partition, taskAttemptId=attempt, localProperties=properties)
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


class Killed(BaseException):
    """Where a driver ends."""


@contextmanager
def killed_at(step: str) -> Iterator[None]:
    """A driver that dies as it comes to a step of `driver`."""

    async def dies(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, step, dies)
        with pytest.raises(Killed):
            yield


class Query:
    """A streaming query that writes to one topic; `restarted` is the same after its driver died."""

    def __init__(self, bootstrap: str, name: str, topic: str, **options: object) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.topic = topic
        self._options = options
        self._runs = 0

    def writer(self) -> Any:
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic}
        return stream_writer(
            given | {name: str(value) for name, value in self._options.items()}, structs(**PLAIN), False
        )

    def restarted(self) -> "Query":
        self._runs += 1
        return self

    def attempt(self, batch: int, values: Sequence[object], partition: int = 0) -> TaskCommit:
        """A task of a batch, up to the message that it leaves for the driver."""
        return self.attempt_with(batch, rows(*values) if values else iter(()), partition)

    def attempt_with(self, batch: int, batches: Iterator[Any], partition: int = 0) -> TaskCommit:
        """The same, with Arrow batches."""
        properties = {QUERY_ID: self.name, BATCH_ID: str(batch), RUN_ID: f"{self.name}-{self._runs}"}
        with task(partition, **properties):
            written: TaskCommit = self.writer().write(batches)
        return written

    def commit(self, batch: int, *messages: TaskCommit | None) -> None:
        self.writer().commit(list(messages), batch)

    def abort(self, batch: int, *messages: TaskCommit | None) -> None:
        self.writer().abort(list(messages), batch)

    def visible(self) -> list[str]:
        return visible(self.bootstrap, self.topic)


class Job:
    """A batch job."""

    def __init__(self, broker: EmbeddedBroker, columns: dict[str, DataType] = PLAIN, /, **options: object) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap} | {name: str(value) for name, value in options.items()}
        self.writer: Any = batch_writer(given, structs(**columns), False)

    def attempt(self, batches: Iterable[Any], partition: int = 0, attempt: int = 0) -> TaskCommit:
        with task(partition, attempt):
            written: TaskCommit = self.writer.write(batches)
        return written

    def run(self, batches: Iterable[Any]) -> None:
        self.writer.commit([self.attempt(batches)])


def visible(bootstrap: str, topic: str) -> list[str]:
    """The values that readers of committed records see now, sorted."""
    found = read_committed(bootstrap, topic)
    return sorted(record.value for records in found.values() for record in records)

"""Tasks that end early: their transactions end with them, whatever ended the task."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.support.sink_tasks import visible
from tests.support.shell import Shell
from tests.support.waiting import until

from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT_S = 180
WIDE = 1_000  # bytes of a value, so that a task has sent some when it ends


class Stream:
    """A query from one topic to another, whose rows go through a function."""

    def __init__(self, spark: "SparkSession", broker: EmbeddedBroker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.servers = {"kafka.bootstrap.servers": broker.bootstrap}
        self.source, self.target = broker.topic(), broker.topic()

    def fill(self, count: int) -> None:
        rows = self.spark.range(count).selectExpr(f"lpad(string(id), {WIDE}, '0') AS value")
        options = {"topic": self.source, "delivery": "at_least_once"}
        rows.coalesce(1).write.format("levada").mode("append").options(**self.servers, **options).save()

    def start(self, function: Any, **options: str) -> Any:
        read = {**self.servers, "subscribe": self.source, "startingOffsets": "earliest"}
        rows: DataFrame = self.spark.readStream.format("levada").options(**read).load().select("value")
        written = rows.mapInArrow(function, "value binary")
        own = {"topic": self.target, "checkpointLocation": str(self.folder / "checkpoint"), **options}
        return written.writeStream.format("levada").options(**self.servers, **own).start()

    def open_transactions(self) -> list[str]:
        rows = Shell(self.broker.bootstrap)("txn", "list", "--open", "-o", "json").json()
        return [row["transactional_id"] for row in rows if any(self.target in one for one in row["partitions"])]


@pytest.fixture
def stream(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def passes(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_a_task_whose_input_fails_leaves_no_transaction(stream: Stream) -> None:
    stream.fill(6_000)

    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if int(batch.column("value")[-1].as_py()) >= 4_000:
                raise ValueError("a bad record")

    query = stream.start(fails)
    with pytest.raises(Exception, match="a bad record"):
        query.awaitTermination(TIMEOUT_S)
    assert stream.open_transactions() == []
    query = stream.start(passes)
    query.processAllAvailable()
    query.stop()
    assert len(visible(stream.broker.bootstrap, stream.target)) == 6_000


def test_a_query_stopped_within_a_batch_leaves_no_transaction(stream: Stream) -> None:
    stream.fill(6_000)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if int(batch.column("value")[-1].as_py()) >= 4_000:
                time.sleep(600)

    query = stream.start(slow)
    until(lambda: bool(stream.open_transactions()), "the task has not begun a transaction")
    query.stop()
    until(lambda: not stream.open_transactions(), "a transaction stays open", 10)

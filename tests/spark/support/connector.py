"""The stock connector and ours with the same methods to read, write and query."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.support.feeds import TIMEOUT_S, Feeds

from levada.testing import EmbeddedBroker

SOON = {"processingTime": "0 seconds"}  # Spark's default: the next batch as soon as there is something


class Connector(Feeds):
    """A data source of Spark with one broker; queries started here end with the test."""

    form: str

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path) -> None:
        super().__init__(broker)
        self.spark = spark
        self._folder = folder
        self._servers = {"kafka.bootstrap.servers": broker.bootstrap}
        self._started: list[StreamingQuery] = []

    def read(self, **options: object) -> DataFrame:
        """A batch; `kafka__isolation_level` is `kafka.isolation.level`."""
        return self.spark.read.format(self.form).options(**self._servers, **_named(options)).load()

    def stream(self, **options: object) -> DataFrame:
        return self.spark.readStream.format(self.form).options(**self._servers, **_named(options)).load()

    def write(self, frame: DataFrame, **options: object) -> None:
        frame.write.format(self.form).options(**self._servers, **_named(options)).save()

    def start(
        self, frame: DataFrame, topic: str, trigger: dict[str, Any], mode: str = "update", **options: object
    ) -> StreamingQuery:
        """From a stream to a topic, from where the last query to that topic ended."""
        rows = frame.drop("partition")  # it would name the partition to write to
        writer = rows.writeStream.format(self.form).outputMode(mode).trigger(**trigger)
        writer = writer.options(**self._servers, checkpointLocation=str(self._folder / topic))
        query = writer.options(topic=topic, **_named(options)).start()
        self._started.append(query)
        return query

    def run(self, frame: DataFrame, topic: str, **options: object) -> StreamingQuery:
        """Everything there is now, and end."""
        query = self.start(frame, topic, {"availableNow": True}, "update", **options)
        assert query.awaitTermination(TIMEOUT_S), query.status
        return query

    def stop(self) -> None:
        for query in self._started:
            query.stop()


class Stock(Connector):
    """`spark-sql-kafka-0-10`."""

    form = "kafka"


class Levada(Connector):
    """`format("levada")`."""

    form = "levada"


def eventually(holds: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for what a running query does; its failure is raised here."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        failure = query.exception()
        if failure is not None:
            raise failure
        assert time.monotonic() < deadline, query.status
        time.sleep(0.05)


def _named(options: dict[str, object]) -> dict[str, str]:
    """`kafka__isolation_level` is one of the client's own settings."""
    return {
        name.replace("__", ".").replace("_", ".") if "__" in name else name: str(value)
        for name, value in options.items()
    }

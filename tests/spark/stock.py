"""The stock connector in a test's hand: short words for its reads, writes and queries, and for what feeds them."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from levada.testing import EmbeddedBroker

PATIENCE_S = 60  # for anything that a query does; passing it is a failure, not a slow machine
SOON = {"processingTime": "0 seconds"}  # Spark's default: the next batch as soon as there is something


class Stock:
    """`spark-sql-kafka-0-10` with one broker; queries started here end with the test."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self._folder = folder
        self._servers = {"kafka.bootstrap.servers": broker.bootstrap}
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._started: list[StreamingQuery] = []

    def read(self, **options: object) -> DataFrame:
        """A batch; `kafka__isolation_level` is `kafka.isolation.level`."""
        return self.spark.read.format("kafka").options(**self._servers, **_named(options)).load()

    def stream(self, **options: object) -> DataFrame:
        return self.spark.readStream.format("kafka").options(**self._servers, **_named(options)).load()

    def write(self, frame: DataFrame, **options: object) -> None:
        frame.write.format("kafka").options(**self._servers, **_named(options)).save()

    def start(
        self, frame: DataFrame, topic: str, trigger: dict[str, Any], **options: object
    ) -> StreamingQuery:
        """From a stream to a topic, from where the last query to that topic ended."""
        rows = frame.drop("partition")  # it would name the partition to write to
        writer = rows.writeStream.format("kafka").outputMode("update").trigger(**trigger)
        writer = writer.options(**self._servers, checkpointLocation=str(self._folder / topic))
        query = writer.options(topic=topic, **_named(options)).start()
        self._started.append(query)
        return query

    def run(self, frame: DataFrame, topic: str, **options: object) -> StreamingQuery:
        """Everything there is now, and end."""
        query = self.start(frame, topic, {"availableNow": True}, **options)
        assert query.awaitTermination(PATIENCE_S), query.status
        return query

    def stop(self) -> None:
        for query in self._started:
            query.stop()

    def produce(self, topic: str, values: Iterable[object], partition: int = 0, **more: Any) -> None:
        """Write with another client; all are there when this returns."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for value in values:
            producer.produce(topic, str(value).encode(), partition=partition, **more)
        assert producer.flush(PATIENCE_S) == 0

    @contextmanager
    def transaction(self, topic: str, values: Iterable[object], *, commit: bool) -> Iterator[None]:
        """Open with its records written for the length of the block, and ended after it."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": f"to-{topic}"})
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, str(value).encode(), partition=0)
        assert producer.flush(PATIENCE_S) == 0
        yield
        producer.commit_transaction() if commit else producer.abort_transaction()

    def transact(self, topic: str, values: Iterable[object], *, commit: bool) -> None:
        with self.transaction(topic, values, commit=commit):
            pass

    def values(self, topic: str) -> list[str]:
        """What is in a topic, in no order."""
        return sorted((record.value or b"").decode() for record in self.broker.records(topic))

    def grow(self, topic: str, partitions: int) -> None:
        self._done(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def delete(self, topic: str) -> None:
        self._done(self._admin.delete_topics([topic]))

    def delete_records(self, topic: str, before: int) -> None:
        """As retention would: the log starts at this offset now."""
        self._done(self._admin.delete_records([TopicPartition(topic, 0, before)]))

    @staticmethod
    def _done(answers: dict[Any, Future[Any]]) -> None:
        for answer in answers.values():
            answer.result(PATIENCE_S)


def texts(numbers: Iterable[int]) -> list[str]:
    """As `Stock.values` shows them."""
    return sorted(map(str, numbers))


def eventually(holds: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for what a running query does; its failure is raised here."""
    deadline = time.monotonic() + PATIENCE_S
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

"""The jobs that rows on Spark are made of: each function here gives a function that runs the job on a side.

A job is timed from the call to its end, with everything that Spark does before and after the rows. The JVM collects
its garbage before, and what the job will put into the page cache is touched before, so that no side pays for
another. What was written is counted afterwards.
"""

import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from bench import machine
from bench.generator import wire
from bench.generator.outcome import Outcome
from bench.spark.sides import PARTITIONS, Shape, Side

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Job = Callable[[Side], Outcome]
COPY_TIMEOUT_S = 300
EVENTS_PER_SECOND = 100
STAMP = struct.Struct("<d")
MIB = 1 << 20
_numbers = count(1)


def read_to_noop(shape: Shape, rows: int) -> Job:
    """All columns of the connector, thrown away by Spark."""

    def run(side: Side) -> Outcome:
        writer = side.read(shape.topic, rows).write.format("noop").mode("overwrite")
        return _timed(side, shape, rows, writer.save)

    return run


def read_to_parquet(shape: Shape, rows: int) -> Job:
    """Key, value and time of records into files."""

    def run(side: Side) -> Outcome:
        columns = side.read(shape.topic, rows).select("key", "value", "timestamp")
        machine.warm_memory(rows * shape.value_bytes // MIB)
        with _folder(side) as folder:
            return _timed(side, shape, rows, lambda: columns.write.mode("overwrite").parquet(str(folder / "lake")))

    return run


def write(shape: Shape, rows: int) -> Job:
    """Rows that Spark makes up, with a key, to a topic."""

    def run(side: Side) -> Outcome:
        made = side.spark.range(0, rows, 1, PARTITIONS)
        frame = made.selectExpr("lpad(id, 8, '0') key", f"{shape.value_expression} value")
        machine.warm_memory(rows * shape.value_bytes // MIB)
        with _topic(side) as topic:
            outcome = _timed(side, shape, rows, side.write(frame, topic, shape.compression).save)
            side.check(topic, rows)
            return outcome

    return run


def copy(shape: Shape, rows: int) -> Job:
    """A stream from a topic to a topic: all that is there, and its end."""

    def run(side: Side) -> Outcome:
        frame = side.stream(shape.topic, rows).select("key", "value")
        machine.warm_memory(rows * shape.value_bytes // MIB)
        with _topic(side) as topic, _folder(side) as folder:
            writer = side.write_stream(frame, topic, shape.compression).trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(folder))

            def work() -> None:
                query = writer.start()
                if not query.awaitTermination(COPY_TIMEOUT_S):
                    query.stop()
                    raise wire.BrokerError(f"the query did not end in {COPY_TIMEOUT_S} s")

            outcome = _timed(side, shape, rows, work)
            side.check(topic, rows)
            return outcome

    return run


def latency(seconds: float) -> Job:
    """From a producer through a running query to a consumer, micro-batch after micro-batch at once."""

    def run(side: Side) -> Outcome:
        with (
            _topic(side) as source,
            _topic(side) as target,
            _folder(side) as folder,
            _failing_as_a_row(side),
        ):
            reader = side.spark.readStream.format(side.format).options(**side.servers, subscribe=source)
            writer = side.write_stream(reader.load().select("value"), target, "none")
            query = writer.option("checkpointLocation", str(folder)).start()
            try:
                return _events_through(side, query, source, target, seconds)
            finally:
                query.stop()

    return run


def _events_through(side: Side, query: "StreamingQuery", source: str, target: str, seconds: float) -> Outcome:
    """Events at a fixed rate; those of the first second after the first that passed are not counted."""
    servers = {"bootstrap.servers": side.broker.bootstrap}
    consumer = Consumer(servers | {"group.id": target, "auto.offset.reset": "earliest"})
    consumer.subscribe([target])
    stopped = Event()
    feeder = Thread(target=_feed, args=(Producer(servers | {"linger.ms": 0}), source, stopped), daemon=True)
    feeder.start()
    try:
        _await_first(consumer, query)
        _take(consumer, 1.0)
        meter, began = side.meter(), time.perf_counter()
        taken = _take(consumer, seconds)
        return meter.outcome(time.perf_counter() - began, len(taken), len(taken) * STAMP.size, taken)
    finally:
        stopped.set()
        feeder.join()
        consumer.close()


def _feed(producer: Producer, topic: str, stopped: Event) -> None:
    began = time.perf_counter()
    for number in count(1):
        producer.produce(topic, STAMP.pack(time.perf_counter()), partition=number % PARTITIONS)
        producer.poll(0)
        if stopped.wait(max(0.0, began + number / EVENTS_PER_SECOND - time.perf_counter())):
            break
    producer.flush(10)


def _await_first(consumer: Consumer, query: "StreamingQuery") -> None:
    deadline = time.perf_counter() + 60
    while not _take(consumer, 0.05):
        failure = query.exception()
        if failure is not None or time.perf_counter() > deadline:
            raise wire.BrokerError(f"nothing passes: {failure}")


def _take(consumer: Consumer, seconds: float) -> list[float]:
    """How long events were on their way."""
    until, taken = time.perf_counter() + seconds, []
    while (left := until - time.perf_counter()) > 0:
        messages = consumer.consume(100, min(left, 0.01))
        now = time.perf_counter()
        taken += [now - STAMP.unpack(message.value() or b"")[0] for message in messages if not message.error()]
    return taken


def _timed(side: Side, shape: Shape, rows: int, work: Callable[[], object]) -> Outcome:
    assert side.spark._jvm is not None
    side.spark._jvm.System.gc()
    meter, began = side.meter(), time.perf_counter()
    with _failing_as_a_row(side):
        work()
    return meter.outcome(time.perf_counter() - began, rows, rows * shape.value_bytes, ())


@contextmanager
def _failing_as_a_row(side: Side) -> Iterator[None]:
    """A query that fails is a row that fails."""
    try:
        yield
    except (PySparkException, Py4JError) as problem:
        raise wire.BrokerError(f"{side.title}: {str(problem)[-600:]}") from problem


@contextmanager
def _topic(side: Side) -> Iterator[str]:
    with wire.temporary_topic(side.broker.port, f"{side.name}-{next(_numbers)}", PARTITIONS) as name:
        yield name


@contextmanager
def _folder(side: Side) -> Iterator[Path]:
    """On the disk of the brokers."""
    folder = Path(tempfile.mkdtemp(dir=side.broker.directory.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

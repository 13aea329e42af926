"""The compared sides: Levada's connector on Levada, the stock connector on Levada, the stock connector on Kafka.

All use one Spark session and the same stored topics, filled through the protocol with the same bytes. A side says
how its connector is asked for rows and given rows, and otherwise knows nothing of what is measured.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from bench import machine
from bench.brokers import Broker
from bench.generator import wire
from bench.generator.outcome import Meter
from levada.model import Codec
from levada.wire.batches import Record, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 2  # as many as Spark has cores: every side may use both
BATCH_BYTES = 16 << 10  # the Java producer's default
BATCHES = 256  # different ones, sent over and over
SKEW = 0.9  # of a skewed topic's records are in its first partition
BATCHES_BYTES_MAX = 32 << 20  # of all of them, before compression
WINDOW = 32  # requests under way
TIMEOUT_S = 30.0
LINE_BYTES = 100
WRITTEN_BYTES = 256_000  # of the different values that Spark writes: lz4 looks back at most 64 KiB
UNIT_BYTES = 1_000  # larger values repeat one of this size
PADDING = '","agent":"Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"}'


@dataclass(frozen=True, slots=True)
class Shape:
    """The records of a row of the benchmark."""

    value_bytes: int
    codec: Codec
    partitions: int = PARTITIONS
    is_skewed: bool = False

    @property
    def topic(self) -> str:
        skew = "-skewed" if self.is_skewed else ""
        return f"stored-{self.value_bytes}-{self.compression}-{self.partitions}{skew}"

    def shares(self) -> list[float]:
        """The part of the records that each partition has."""
        if not self.is_skewed:
            return [1 / self.partitions] * self.partitions
        return [SKEW, *[(1 - SKEW) / (self.partitions - 1)] * (self.partitions - 1)]

    @property
    def compression(self) -> str:
        return self.codec.name.lower()

    def value(self, number: int) -> bytes:
        """Lines of JSON, nearly: what a web server may say of requests, with 64 bits of chance in each."""
        page = f'","page":"/products/{number % 997}'
        lines = (f'{{"user":"{_chance(number, line)}{page}{PADDING}'[:LINE_BYTES] for line in self._lines)
        return "".join(lines).encode()

    @property
    def value_expression(self) -> str:
        """One of a few such values in SQL, by a column `id`. They cost little: a row is about the connector."""
        unit = replace(self, value_bytes=min(self.value_bytes, UNIT_BYTES))
        count = max(2, WRITTEN_BYTES // self.value_bytes)
        values = ", ".join(f"'{unit.value(number).decode()}'" for number in range(count))
        chosen = f"element_at(array({values}), cast(id % {count} AS int) + 1)"
        return f"repeat({chosen}, {self.value_bytes // unit.value_bytes})" if unit != self else chosen

    @property
    def _lines(self) -> range:
        return range(self.value_bytes // LINE_BYTES)


def _chance(*numbers: int) -> str:
    return blake2b(repr(numbers).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Side:
    """A connector with a broker; `stored` says how many records each partition of a stored topic has."""

    name: str
    title: str
    format: str
    broker: Broker
    spark: "SparkSession"
    stored: dict[str, list[int]]

    @property
    def servers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.bootstrap}

    def _last(self, topic: str, rows: int) -> dict[str, str]:
        """Options that ask for the last rows of a topic."""
        starts = dict(enumerate(starting_offsets(self.stored[topic], rows)))
        return {"subscribe": topic, "startingOffsets": json.dumps({topic: starts})}

    def read(self, topic: str, rows: int) -> "DataFrame":
        reader = self.spark.read.format(self.format).options(**self.servers)
        return reader.options(**self._last(topic, rows)).load()

    def stream(self, topic: str, rows: int) -> "DataFrame":
        reader = self.spark.readStream.format(self.format).options(**self.servers)
        return reader.options(**self._last(topic, rows)).load()

    def write(self, frame: "DataFrame", topic: str, compression: str) -> "DataFrameWriter":
        return frame.write.format(self.format).mode("append").options(**self._into(topic, compression))

    def write_stream(self, frame: "DataFrame", topic: str, compression: str) -> "DataStreamWriter":
        return frame.writeStream.format(self.format).options(**self._into(topic, compression))

    def _into(self, topic: str, compression: str) -> dict[str, str]:
        return self.servers | {"topic": topic, "kafka.compression.type": compression}

    def meter(self) -> "SparkMeter":
        return SparkMeter(self.broker.pid, java_pid())

    def log_tail(self) -> str:
        return self.broker.log_tail()

    def check(self, topic: str, rows: int) -> None:
        """All rows that were written are in the topic; markers of transactions take offsets too."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "check"})
        try:
            found = sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)[1]
                for partition in range(PARTITIONS)
            )
        finally:
            consumer.close()
        if found < rows:
            raise wire.BrokerError(f"{found} of {rows} rows are in the topic")


def starting_offsets(stored: Sequence[int], rows: int) -> list[int]:
    """Where reading starts in partitions with so many records each, to read this number of rows from all of them."""
    taken = [rows * records // sum(stored) for records in stored]
    taken[0] += rows - sum(taken)
    return [records - part for records, part in zip(stored, taken, strict=True)]


class SparkMeter(Meter):
    """The load is Spark: its JVM with the Python workers."""

    __slots__ = ("spark",)

    def __init__(self, pid: int, spark: int) -> None:
        self.spark = spark
        super().__init__(pid)

    def read(self) -> tuple[machine.Usage, machine.Usage, machine.HostTimes]:
        broker, _, host = super().read()
        return broker, machine.usage(self.spark), host


def java_pid() -> int:
    """Of the JVM in which Spark runs; its Python workers are its children."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "Spark is not running"
    return int(gateway.proc.pid)


def batches(shape: Shape) -> list[tuple[bytes, int]]:
    """Record batches as the Java producer makes them, with how many records each has."""
    per_batch = max(1, BATCH_BYTES // (shape.value_bytes + 20))
    different = min(BATCHES, BATCHES_BYTES_MAX // (per_batch * shape.value_bytes))
    return [(bytes(_batch(shape, number * per_batch, per_batch)), per_batch) for number in range(different)]


def _batch(shape: Shape, first: int, records: int) -> bytearray:
    now_ms = int(time.time() * 1000)  # records of another time would soon be gone by retention
    numbers = range(first, first + records)
    return encode([Record(n, now_ms, b"%08d" % n, shape.value(n)) for n in numbers], codec=shape.codec)


def fill(broker: Broker, shape: Shape, records: int, parts: Sequence[tuple[bytes, int]]) -> list[int]:
    """Make the stored topic of a shape; how many records each partition has, together at least those asked for."""
    identity = wire.create_topic(broker.port, shape.topic, shape.partitions)
    each, stored = parts[0][1], []
    for partition, share in enumerate(shape.shares()):
        requests = math.ceil(records * share / each)
        frames = [wire.produce(identity, partition, part)[0] for part, _ in parts[:requests]]
        with wire.connect(broker.port) as sock:
            for reply in wire.pipelined(sock, _repeated(frames, requests), WINDOW):
                (error,) = wire.I16.unpack_from(reply, wire.PRODUCE_ERROR_AT)
                if error:
                    raise wire.BrokerError(f"Produce failed with error {error}")
        stored.append(requests * each)
    return stored


def _repeated(frames: Sequence[bytes], count: int) -> Iterator[bytes]:
    for number in range(count):
        yield frames[number % len(frames)]

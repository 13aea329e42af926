"""How many rows a core reads, decodes and encodes between a log and Arrow: `python -m bench.spark.columns`.

The reference implementation in plain Python and librdkafka process the same bytes. Figures are per second of CPU time
of the process that reads or writes, all its threads together, so that a busy machine disturbs them little; the broker
has a process of its own and is not counted. Each is the best of some rounds.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as TopicPartitionOffset
from tests.spark.support import reference_decoder as reference

from bench.brokers import Levada
from levada.client.client import Client
from levada.model import Codec, TopicPartition
from levada.spark import blocking
from levada.spark.formats.decoder import decode_chunk
from levada.spark.formats.encoder import Rows, StickyPartition, assign_partitions, encode_rows
from levada.spark.read.fetcher import fetch_range
from levada.spark.read.rows import read_columns
from levada.spark.write.sender import Sender
from levada.spark.write.task import PIECE_BYTES
from levada.wire.batches import Record, encode

CHUNK_BYTES = 8 << 20
STORED_BYTES = 200 << 20
BATCH_BYTES = 16 << 10  # what most producers send
ROUNDS = 5
NOW_MS = 1_750_000_000_000


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds of CPU time."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def value(index: int, size: int) -> bytes:
    return (b'{"user":%08d,"page":"/products/%04d","ms":%d}' % (index, index % 997, index % 1300)).ljust(size, b".")


def columns(rows: int, size: int) -> Rows:
    return Rows(pa.array([b"%08d" % i for i in range(rows)]), pa.array([value(i, size) for i in range(rows)]))


def chunk(size: int, codec: Codec, per_batch: int) -> tuple[memoryview, int]:
    """About CHUNK_BYTES of records with a key of 8 bytes."""
    rows = CHUNK_BYTES // (size + 20) // per_batch * per_batch
    data = bytearray()
    for first in range(0, rows, per_batch):
        records = [Record(i, NOW_MS + i, b"%08d" % i, value(i, size)) for i in range(first, first + per_batch)]
        data += encode(records, base_offset=first, codec=codec)
    return memoryview(bytes(data)), rows


def show(what: str, size: int, rows: int, seconds: float) -> None:
    rate, volume = rows / seconds / 1e6, rows * (size + 8) / seconds / 1e6
    print(f"{what:<44} {size:>5} B {rate:8.2f} M rows/s {volume:7.0f} MB/s", flush=True)


def decoding() -> None:
    """Bytes in memory to columns."""
    for size in (100, 1000):
        for codec in Codec:
            data, rows = chunk(size, codec, BATCH_BYTES // (size + 20))
            seconds = best(lambda data=data, rows=rows: decode_chunk(data, 0, rows, (), False))  # type: ignore[misc]
            show(f"decode {codec.name.lower()}, batches of 16 KiB", size, rows, seconds)
        data, rows = chunk(size, Codec.NONE, BATCH_BYTES // (size + 20))
        seconds = best(lambda data=data, rows=rows: reference.decode_chunk(data, 0, rows, (), False), 2)  # type: ignore[misc]
        show("the reference implementation, batches of 16 KiB", size, rows, seconds)
    for per_batch in (1, 10, 10_000):
        data, rows = chunk(100, Codec.NONE, per_batch)
        seconds = best(lambda data=data, rows=rows: decode_chunk(data, 0, rows, (), True))  # type: ignore[misc]
        show(f"decode none with headers, {per_batch} a batch", 100, rows, seconds)


def encoding() -> None:
    """Columns to batches in memory, of 512 KiB as the sink makes them."""
    for size in (100, 1000):
        count = 20_000_000 // (size + 20)
        source = columns(count, size)
        for partitions in (1, 8):
            seconds = best(lambda source=source, partitions=partitions: encoded(source, partitions))  # type: ignore[misc]
            show(f"encode none, partitions: {partitions}", size, count, seconds)
        for codec in (Codec.LZ4, Codec.ZSTD):
            seconds = best(lambda source=source, codec=codec: encoded(source, 1, codec), 2)  # type: ignore[misc]
            show(f"encode {codec.name.lower()}, 1 partition", size, count, seconds)
        pairs = list(zip(source.key.to_pylist(), source.value.to_pylist(), strict=True))
        seconds = best(lambda pairs=pairs: encode(Record(0, NOW_MS, *pair) for pair in pairs), 2)  # type: ignore[misc]
        show("plain Python, 1 partition", size, count, seconds)


def encoded(source: Rows, partitions: int, codec: Codec = Codec.NONE) -> None:
    spread = StickyPartition()
    for piece in pieces(source):
        where = assign_partitions(piece, partitions, spread)
        drained(encode_rows(piece, where, now_ms=NOW_MS, codec=codec, max_batch_bytes=512 << 10))


def pieces(source: Rows) -> Iterator[Rows]:
    """Rows as the sink gathers them."""
    step = PIECE_BYTES * len(source.value) // source.value.nbytes
    for start in range(0, len(source.value), step):
        yield Rows(source.key[start : start + step], source.value[start : start + step])


def fill(broker: Levada, topic: str, size: int) -> int:
    """Store a topic in batches of 16 KiB; the number of its records."""
    count = STORED_BYTES // (size + 20)
    batches = encode_rows(columns(count, size), np.zeros(count, np.int32), now_ms=NOW_MS, max_batch_bytes=BATCH_BYTES)

    async def send() -> None:
        async with Client(broker.bootstrap) as client:
            await client.admin.create_topic(topic, partitions=1)
            pipeline = Sender(client, None)
            await pipeline.send(topic, batches)
            await pipeline.flush()

    blocking.run(send())
    return count


def reading(broker: Levada) -> None:
    """A topic of a real broker to columns, and to librdkafka's messages."""
    for size in (100, 1000):
        topic = f"rows-of-{size}"
        count = fill(broker, topic, size)
        where = (broker.bootstrap, TopicPartition(topic, 0), 0, count)
        show("fetch_range", size, count, best(lambda where=where: drained(fetch_range(*where))))  # type: ignore[misc]
        seconds = best(lambda where=where: drained(read_columns(*where, want_headers=False)))  # type: ignore[misc]
        show("fetch and decode", size, count, seconds)
        show("librdkafka's consume", size, count, best(lambda where=where: consumed(*where), 1))  # type: ignore[misc]


def drained(found: Iterable[object]) -> None:
    for _ in found:
        pass


def consumed(bootstrap: str, partition: TopicPartition, start: int, end: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartitionOffset(partition.topic, partition.partition, start)])
    found = 0
    while found < end:
        for message in consumer.consume(10_000, 10):
            message.value(), message.key()
            found += 1
    consumer.close()


def writing(broker: Levada) -> None:
    """Columns to a topic of a real broker, and as librdkafka produces them."""
    for size in (100, 1000):
        count = 60_000_000 // (size + 20)
        source = columns(count, size)
        seconds = best(lambda source=source: sent(broker, source), 3)  # type: ignore[misc]
        show("encode and produce, 4 partitions", size, count, seconds)
        pairs = list(zip(source.key.to_pylist(), source.value.to_pylist(), strict=True))
        show("librdkafka's produce", size, count, best(lambda pairs=pairs: produced(broker, pairs), 1))  # type: ignore[misc]


def sent(broker: Levada, source: Rows) -> None:
    async def send() -> None:
        async with Client(broker.bootstrap) as client:
            topic = f"sent-{time.monotonic_ns()}"
            await client.admin.create_topic(topic, partitions=4)
            pipeline = Sender(client, None)
            spread = StickyPartition()
            for piece in pieces(source):
                batches = encode_rows(
                    piece,
                    assign_partitions(piece, 4, spread),
                    now_ms=NOW_MS,
                    max_batch_bytes=512 << 10,
                )
                await pipeline.send(topic, batches)
            await pipeline.flush()

    blocking.run(send())


def produced(broker: Levada, pairs: list[tuple[bytes, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 10})
    for key, content in pairs:
        while True:
            try:
                producer.produce("produced", content, key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()


def main() -> None:
    """All of it, with a broker for the half that needs one."""
    decoding()
    encoding()
    with tempfile.TemporaryDirectory() as folder:
        broker = Levada(Path(folder))
        broker.start()
        try:
            reading(broker)
            writing(broker)
        finally:
            blocking.close()
            broker.remove()


if __name__ == "__main__":
    main()

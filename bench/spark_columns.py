"""How many rows a core decodes from record batches and encodes into them: `python -m bench.spark_columns`."""

import time
from collections.abc import Callable

from levada.model import Codec
from levada.spark.decoding import decode_chunk
from levada.wire.batches import Record, encode

CHUNK_BYTES = 8 << 20
ROUNDS = 7


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def value(index: int, size: int) -> bytes:
    return (b'{"user":%08d,"page":"/products/%04d","ms":%d}' % (index, index % 997, index % 1300)).ljust(
        size, b"."
    )


def chunk(size: int, codec: Codec, per_batch: int) -> tuple[memoryview, int]:
    """About CHUNK_BYTES of records with a key of 8 bytes."""
    rows = CHUNK_BYTES // (size + 20) // per_batch * per_batch
    data = bytearray()
    for first in range(0, rows, per_batch):
        records = [
            Record(i, 1_700_000_000_000 + i, b"%08d" % i, value(i, size))
            for i in range(first, first + per_batch)
        ]
        data += encode(records, base_offset=first, codec=codec)
    return memoryview(bytes(data)), rows


def show(what: str, size: int, rows: int, seconds: float) -> None:
    print(
        f"{what:<34} {size:>5} B  {rows / seconds / 1e6:7.2f} M rows/s  {rows * size / seconds / 1e6:8.0f} MB/s"
    )


def main() -> None:
    for size in (100, 1000):
        for codec in Codec:
            data, rows = chunk(size, codec, 16_384 // (size + 20))
            seconds = best(lambda data=data, rows=rows: decode_chunk(data, 0, rows, (), False))  # type: ignore[misc]
            show(f"decode {codec.name.lower()}, batches of 16 KiB", size, rows, seconds)
    for per_batch in (1, 10, 10_000):
        data, rows = chunk(100, Codec.NONE, per_batch)
        seconds = best(lambda data=data, rows=rows: decode_chunk(data, 0, rows, (), True))  # type: ignore[misc]
        show(f"decode none, {per_batch} a batch", 100, rows, seconds)


if __name__ == "__main__":
    main()

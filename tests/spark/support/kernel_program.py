"""A worker: runs every kernel over good and bad input and says how many of them came from the cache.

Compiled kernels must not count references to arrays, which numba's functions named NRT_ do.
"""

import numpy as np
import pyarrow as pa
from tests.spark.support.random_logs import EXAMPLE, batch, lies

from levada.errors import KafkaError
from levada.spark.formats.decoder import HEADERS_TYPE, Filter, decode_chunk
from levada.spark.formats.encoder import Rows, StickyPartition, assign_partitions, encode_rows, rows_digest
from levada.spark.kernels import decode as kernels
from levada.spark.kernels import digest as digest_kernel
from levada.spark.kernels import encode as encode_kernels
from levada.spark.kernels import walk as walk_kernels
from levada.wire.batches import decode

FOREVER = 1 << 62
KERNELS = [
    walk_kernels.walk_headers,
    walk_kernels.offset_after,
    kernels.scan_records,
    kernels.copy_headers,
    encode_kernels.assign_partitions,
    encode_kernels.order_rows,
    encode_kernels.plan_batches,
    encode_kernels.write_records,
    digest_kernel.digest,
]


def main() -> None:
    columns, _ = decode_chunk(memoryview(batch(EXAMPLE)), 0, FOREVER)
    assert columns.value.to_pylist() == [record.value for record in EXAMPLE]
    where = Filter(b"key", (("a", b"1"),))
    assert decode_chunk(memoryview(batch(EXAMPLE)), 0, FOREVER, (), True, where)[0].rows == 1
    for _, data in lies():
        walk_kernels.offset_after(np.frombuffer(data + data[:80], np.uint8))
        try:
            decode_chunk(memoryview(data), 0, FOREVER)
        except KafkaError:
            continue
    chance = np.random.default_rng(1)
    cells = [None if size == 0 else b"." * size for size in chance.integers(0, 300, 500)]
    headers = [[{"key": "name", "value": cell}] * (index % 3) for index, cell in enumerate(cells)]
    rows = Rows(pa.array(cells, pa.binary()), pa.array(cells, pa.binary()), pa.array(headers, HEADERS_TYPE))
    batches = list(encode_rows(rows, assign_partitions(rows, 5, StickyPartition()), now_ms=5, max_batch_bytes=3_000))
    assert sum(len(decode(one.data)) for one in batches) == 500
    assert rows_digest(rows.key, rows.value, rows.headers)
    stats = [kernel.stats for kernel in KERNELS]  # type: ignore[attr-defined]
    hits = sum(sum(one.cache_hits.values()) for one in stats)
    if not hits:  # cached code cannot be inspected
        assert not any("NRT_" in code for kernel in KERNELS for code in kernel.inspect_llvm().values())  # type: ignore[attr-defined]
    print(f"{hits} of {len(KERNELS)} from the cache")


if __name__ == "__main__":
    main()

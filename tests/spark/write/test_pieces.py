"""Arrow batches are joined only as far as record batches need it."""

import pyarrow as pa

from levada.spark.write.task import pieces


def batch(rows: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([bytes(size)] * rows, pa.binary())], names=["Value"])


def test_small_batches_are_joined_and_empty_ones_left_out() -> None:
    found = list(pieces([batch(3, 10), batch(0, 0), batch(4, 10), batch(5, 2_000)], lambda: 1_000))
    assert [piece.num_rows for piece in found] == [12]
    assert found[0].schema.names == ["value"]


def test_a_large_batch_is_not_copied() -> None:
    given = [batch(2, 600), batch(1, 10), batch(1, 1_000)]
    found = list(pieces(given, lambda: 1_000))
    assert [piece.num_rows for piece in found] == [2, 2]
    assert found[0].column(0).buffers()[2].address == given[0].column(0).buffers()[2].address

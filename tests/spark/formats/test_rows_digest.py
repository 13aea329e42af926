"""The digest of rows: the same for the same rows in any order and division, another one for other rows."""

from typing import Any

import pyarrow as pa
import pytest

from levada.spark.write.digest import DIGESTS, RowsDigest, sum_digests

HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
KINDS = (pa.binary(), pa.binary(), HEADERS)
Row = tuple[Any, ...]
ROWS: list[Row] = [
    (None, b"a", None),
    (b"", b"a", []),
    (b"k", None, [("h", b"1"), ("i", None)]),
    (b"k", b"", [("h", b"1")]),
    *[(b"key", bytes(range(size)), None) for size in range(20)],
    *[(str(number).encode(), b"x" * 1000, None) for number in range(20)],
]


def digest(*batches: list[Row], start: int = 0) -> int:
    found = RowsDigest()
    for rows in batches:
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, names=["Key", "value", "headers"])
        assert sum(one.num_rows for one in found.of([batch.slice(start)])) == len(rows) - start
    return found.value


def test_order_and_division_make_no_difference() -> None:
    whole = digest(ROWS)
    assert whole == digest(ROWS[::-1]) == digest(ROWS[7:], ROWS[:7]) == digest(ROWS[:3] + ROWS, start=3)
    assert whole == sum_digests([digest(ROWS[:5]), digest(ROWS[5:]), 0])
    assert sum_digests([whole, None]) is None
    assert 0 < whole < DIGESTS


def test_each_part_of_a_row_counts() -> None:
    assert len({digest([row]) for row in ROWS}) == len(ROWS)
    assert digest([(b"k", b"a", None)]) == digest([(b"k", b"a", [])])
    assert digest([ROWS[1]]) != digest([ROWS[1]] * 2)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 1000])
def test_each_byte_counts(size: int) -> None:
    values = {bytes(size - 1 - at) + b"\1" + bytes(at) for at in range(size)} | {bytes(size)}
    assert len({digest([(None, value, None)]) for value in values}) == size + 1
    assert digest([(b"a", b"b", None)]) != digest([(b"b", b"a", None)])
    assert digest([(b"a", b"b", None), (b"c", b"d", None)]) != digest([(b"a", b"d", None), (b"c", b"b", None)])

"""Confluent's wire format: ids and indexes of messages before the data."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.spark.registry.wire_format import NO_ID, encode_indexes, prefix, schema_ids, split_indexes


@given(
    st.lists(st.none() | st.binary(max_size=9) | st.binary(max_size=9).map(lambda rest: b"\0" + rest)),
    st.integers(0, 3),
)
def test_ids_are_those_of_the_values(values: list[bytes | None], sliced: int) -> None:
    found = schema_ids(pa.array(values, pa.binary()).slice(sliced)).tolist()
    framed = [value is not None and len(value) >= 5 and value[0] == 0 for value in values]
    wanted = [
        int.from_bytes((value or b"")[1:5], "big") if is_framed else NO_ID
        for value, is_framed in zip(values, framed, strict=True)
    ]
    assert found == wanted[sliced:]
    assert prefix(2**32 - 1) == b"\0\xff\xff\xff\xff"


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), st.binary(max_size=5))
def test_indexes_are_read_as_they_are_written(indexes: list[int], rest: bytes) -> None:
    head = encode_indexes(indexes)
    assert split_indexes(head + rest) == (tuple(indexes), len(head))


def test_the_first_message_is_one_zero() -> None:
    assert encode_indexes([0]) == b"\0" and split_indexes(b"\0\x08") == ((0,), 1)
    assert encode_indexes([1, 0]) == b"\x04\x02\x00"  # as Confluent's serializer writes it


@pytest.mark.parametrize("value", [b"", b"\x80", b"\x04\x02", b"\x01", b"\xfe\xff\x03", b"\xff" * 6])
def test_indexes_that_are_cut_or_wrong_are_reported(value: bytes) -> None:
    with pytest.raises(ValueError, match="indexes"):
        split_indexes(value)

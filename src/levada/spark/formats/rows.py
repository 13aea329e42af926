"""Applies a function to each value of a column; one malformed value does not affect other rows."""

import struct
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

# What decoders raise for values that are not of their format, and Arrow for numbers that are not of their type.
MALFORMED = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, AttributeError, RecursionError, struct.error,
    pa.ArrowException,
)  # fmt: skip


class ValueDecoder(Protocol):
    """Decodes values of one format."""

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of decoded values, and an array that is true where one is not of the format."""


def decode_rows(values: Any, decode: Callable[[bytes], Any], kind: Any) -> tuple[Any, Any]:
    """An array of the decoded values, and an array that is true where `decode` fails or the type does not fit."""
    found, bad = [], []
    for value in values.to_pylist():
        one, wrong = None, False
        if value is not None:
            try:
                one = decode(value)
            except MALFORMED:
                wrong = True
        found.append(one)
        bad.append(wrong)
    try:
        return pa.array(found, kind), pa.array(bad, pa.bool_())
    except MALFORMED:
        return _one_by_one(found, bad, kind)


def _one_by_one(found: list[Any], bad: list[bool], kind: Any) -> tuple[Any, Any]:
    """The same, without the values that Arrow refuses."""
    for row, one in enumerate(found):
        try:
            pa.array([one], kind)
        except MALFORMED:
            found[row], bad[row] = None, True
    return pa.array(found, kind), pa.array(bad, pa.bool_())


def skip_bytes(values: Any, count: int) -> Any:
    """Binary values without their first bytes; shorter ones become empty. (Arrow's own slice fails on those.)"""
    if not count:
        return values
    _, edges, data = values.buffers()
    ends = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.minimum(np.diff(ends), count)
    cut = np.repeat(ends[:-1] + lengths - np.cumsum(lengths), lengths) + np.arange(lengths.sum())
    kept = np.delete(np.frombuffer(data, np.uint8)[: ends[-1]], np.append(np.arange(ends[0]), cut))
    offsets = np.append(0, np.cumsum(np.diff(ends) - lengths)).astype(np.int32)
    missing = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(values.type, len(values), [missing, pa.py_buffer(offsets), pa.py_buffer(kept)])

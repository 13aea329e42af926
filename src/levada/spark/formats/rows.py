"""Applies a function to each value of a column; one malformed value does not affect other rows."""

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

# What decoders raise for values that are not of their format, and Arrow for numbers that are not of their type.
MALFORMED = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, AttributeError, RecursionError, struct.error,
    pa.ArrowException,
)  # fmt: skip


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

"""A kernel over rows: a digest of their content, which does not depend on their order.

It tells other rows from the same ones; it does not resist anyone who looks for two contents with one digest.
"""

from typing import Any

import numpy as np
from numba import types

from levada.spark.kernels.compiler import kernel, load_word, subroutine
from levada.spark.kernels.encode import CELLS, LISTS


@subroutine
def _mixed(value: Any) -> Any:
    """MurmurHash3's finalizer: each bit changes all bits."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@subroutine
def _cell(cells: Any, row: Any) -> Any:
    """The hash of a cell: words of 8 bytes, each with its own odd factor; no multiplication waits for another."""
    size, data, at = cells.sizes[row], cells.data, cells.starts[row]
    total = np.uint64(size) * np.uint64(0xFF51AFD7ED558CCD)
    factor = np.uint64(0x9E3779B97F4A7C15)
    for _ in range(size >> 3):  # a null has the size -1, and no bytes
        word = load_word(data, at)
        total += (word ^ (word >> np.uint64(32))) * factor  # of a word's last bytes alone few bits would remain
        factor += np.uint64(0xD1B54A32D192ED02)
        at += 8
    rest = max(size, 0) & 7
    if rest:
        word = np.uint64(0)
        if size > 8:
            word = load_word(data, at + rest - 8)  # with some bytes that were counted already
        else:
            for index in range(rest):
                word |= np.uint64(data[at + index]) << np.uint64(8 * index)
        total += (word ^ (word >> np.uint64(32))) * factor
    return total


@kernel(CELLS, CELLS, LISTS, returns=types.uint64)
def digest(keys: Any, values: Any, headers: Any) -> Any:
    """The sum of the hashes of all rows: of their key, value and headers."""
    total = np.uint64(0)
    factor = np.uint64(0xC4CEB9FE1A85EC53)
    for row in range(values.sizes.size):
        found = _cell(values, row)
        if keys.sizes[row] >= 0:
            found = _mixed(found) + _cell(keys, row) * factor
        if headers.counts.size:
            for header in range(headers.starts[row], headers.starts[row] + headers.counts[row]):
                found = _mixed(found) * factor + _cell(headers.names, header)
                found = _mixed(found) * factor + _cell(headers.values, header)
        total += _mixed(found)
    return total

"""Kernels over rows: Arrow buffers in, records out.

Sizes are computed first, so that all batches are written into one buffer of exactly the right size. Nothing is checked
while it is written, and no references are counted: the caller holds the arrays and guarantees that the cells lie within
their data.
"""

from typing import Any, NamedTuple

import numpy as np

from levada.spark.kernels.compiler import (
    BATCHES,
    BYTES,
    INT,
    INT32S,
    INT64S,
    READ,
    copy_bytes,
    inlined,
    kernel,
    subroutine,
    tuple_of,
)
from levada.wire.batches import HEADER_BYTES

# Columns of the table of batches: its rows by their index in the order, its position, and fields of its header.
PARTITION, FIRST, ROWS, AT, SIZE, BASE_TIMESTAMP, MAX_TIMESTAMP, BATCH_FIELDS = range(8)

# Indexes of the state.
BATCH_COUNT, TOTAL_BYTES, BAD_ROW, STATE_FIELDS = range(4)

OK = 0
HEADER_WITHOUT_NAME = -1


class Cells(NamedTuple):
    """A nullable binary column: where each cell begins, its size (-1: null), and the bytes."""

    starts: Any
    sizes: Any
    data: Any


class Lists(NamedTuple):
    """The headers of each row: the index of the first and their number; empty if no row has headers."""

    starts: Any
    counts: Any
    names: Any
    values: Any


class Source(NamedTuple):
    """The columns that become records."""

    order: Any  # rows by partition, in their order within it
    partitions: Any
    timestamps: Any
    keys: Any
    values: Any
    headers: Any


CELLS = tuple_of(Cells, INT64S, INT64S, READ)
LISTS = tuple_of(Lists, INT64S, INT64S, CELLS, CELLS)
SOURCE = tuple_of(Source, INT64S, INT32S, INT64S, CELLS, CELLS, LISTS)


@subroutine
def _murmur2(data: Any, start: Any, size: Any) -> Any:
    """The hash of Kafka's clients, as in `levada.client.producer.partitioner`."""
    mask = np.uint64(0xFFFFFFFF)
    factor = np.uint64(0x5BD1E995)
    value = (np.uint64(0x9747B28C) ^ np.uint64(size)) & mask
    whole = size & ~3
    for at in range(start, start + whole, 4):
        word = (
            np.uint64(data[at])
            | np.uint64(data[at + 1]) << np.uint64(8)
            | np.uint64(data[at + 2]) << np.uint64(16)
            | np.uint64(data[at + 3]) << np.uint64(24)
        )
        word = (word * factor) & mask
        word ^= word >> np.uint64(24)
        word = (word * factor) & mask
        value = ((value * factor) & mask) ^ word
    if size > whole:
        word = np.uint64(0)
        for index in range(size - whole):
            word |= np.uint64(data[start + whole + index]) << np.uint64(8 * index)
        value = ((value ^ word) * factor) & mask
    value ^= value >> np.uint64(13)
    value = (value * factor) & mask
    return value ^ (value >> np.uint64(15))


@kernel(INT32S, CELLS, INT, INT, INT64S, INT32S)
def assign_partitions(given: Any, keys: Any, count: Any, sticky_rows: Any, sticky: Any, found: Any) -> None:
    """The partition of each row: as `given` (may be empty), by key, or the sticky partition and the next after it."""
    partition, left = sticky[0], sticky[1]
    for row in range(found.size):
        if given.size and given[row] >= 0:
            found[row] = given[row]
        elif keys.sizes[row] >= 0:
            positive = _murmur2(keys.data, keys.starts[row], keys.sizes[row]) & np.uint64(0x7FFFFFFF)
            found[row] = positive % np.uint64(count)
        else:
            if left == 0:
                partition = (partition + 1) % count
                left = sticky_rows
            found[row] = partition
            left -= 1
    sticky[0], sticky[1] = partition, left


@kernel(INT32S, INT64S, INT64S)
def order_rows(partitions: Any, starts: Any, order: Any) -> None:
    """Rows by partition; `starts` has the index of the first row of each, and is advanced."""
    for row in range(partitions.size):
        index = starts[partitions[row]]
        order[index] = row
        starts[partitions[row]] = index + 1


@inlined
def _varint_bytes(value: Any) -> Any:
    """The size of a zigzag varint."""
    folded = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while folded >= 128:
        folded >>= np.uint64(7)
        size += 1
    return size


@inlined
def _cell_bytes(size: Any) -> Any:
    return _varint_bytes(size) + max(size, 0)


@subroutine
def _header_bytes(headers: Any, row: Any) -> Any:
    """The size of a row's headers and their count; HEADER_WITHOUT_NAME if one has no name."""
    if headers.counts.size == 0:
        return np.int64(1)
    total = np.int64(_varint_bytes(headers.counts[row]))
    first = headers.starts[row]
    for header in range(first, first + headers.counts[row]):
        if headers.names.sizes[header] < 0:
            return np.int64(HEADER_WITHOUT_NAME)
        total += _cell_bytes(headers.names.sizes[header]) + _cell_bytes(headers.values.sizes[header])
    return total


@kernel(SOURCE, INT, INT64S, BATCHES, INT64S, returns=INT)
def plan_batches(source: Any, limit: Any, bodies: Any, batches: Any, state: Any) -> Any:
    """Compute the size of each record (without its length field) and divide them into batches; OK or an error."""
    batch, used, base = np.int64(-1), np.int64(0), np.int64(0)
    partition, index, at = np.int64(-1), np.int64(0), np.int64(0)
    for position in range(source.order.size):
        row = source.order[position]
        time = source.timestamps[row]
        headers = _header_bytes(source.headers, row)
        if headers < 0:
            state[BAD_ROW] = row
            return HEADER_WITHOUT_NAME
        fields = 1 + _cell_bytes(source.keys.sizes[row]) + _cell_bytes(source.values.sizes[row]) + headers
        body = fields + _varint_bytes(time - base) + _varint_bytes(index)
        size = _varint_bytes(body) + body
        if partition != source.partitions[row] or used + size > limit:
            at += used
            batch += 1
            body = fields + 2  # the first of its batch has deltas of 0
            size = _varint_bytes(body) + body
            base, index, used = time, np.int64(0), np.int64(HEADER_BYTES)
            partition = np.int64(source.partitions[row])
            batches[batch, PARTITION], batches[batch, FIRST], batches[batch, AT] = partition, position, at
            batches[batch, BASE_TIMESTAMP] = batches[batch, MAX_TIMESTAMP] = time
        bodies[position] = body
        used += size
        index += 1
        batches[batch, ROWS], batches[batch, SIZE] = index, used
        batches[batch, MAX_TIMESTAMP] = max(batches[batch, MAX_TIMESTAMP], time)
    state[BATCH_COUNT], state[TOTAL_BYTES] = batch + 1, at + used
    return OK


@inlined
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    """The position after it."""
    folded = np.uint64((value << 1) ^ (value >> 63))
    while folded >= 128:
        out[at] = np.uint8(folded & np.uint64(0x7F)) | np.uint8(0x80)
        folded >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(folded)
    return at + 1


@subroutine
def _put_cell(out: Any, at: Any, cells: Any, row: Any) -> Any:
    size = cells.sizes[row]
    at = _put_varint(out, at, size)
    if size > 0:
        copy_bytes(out, at, cells.data, cells.starts[row], size)
        at += size
    return at


@kernel(SOURCE, INT64S, BATCHES, INT, BYTES)
def write_records(source: Any, bodies: Any, batches: Any, count: Any, out: Any) -> None:
    """Write the records of each batch, after the space for its header."""
    headers = source.headers
    for batch in range(count):
        at = batches[batch, AT] + HEADER_BYTES
        base, first = batches[batch, BASE_TIMESTAMP], batches[batch, FIRST]
        for index in range(batches[batch, ROWS]):
            row = source.order[first + index]
            at = _put_varint(out, at, bodies[first + index])
            out[at] = 0  # a record's attributes are unused
            at = _put_varint(out, at + 1, source.timestamps[row] - base)
            at = _put_varint(out, at, np.int64(index))
            at = _put_cell(out, at, source.keys, row)
            at = _put_cell(out, at, source.values, row)
            if headers.counts.size == 0:
                out[at] = 0
                at += 1
                continue
            at = _put_varint(out, at, headers.counts[row])
            for header in range(headers.starts[row], headers.starts[row] + headers.counts[row]):
                at = _put_cell(out, at, headers.names, header)
                at = _put_cell(out, at, headers.values, header)

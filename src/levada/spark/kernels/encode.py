"""The loops over rows, compiled: Arrow's buffers in, records out.

Sizes are reckoned first, so that every batch is written to its place in one buffer of exactly the right size. Nothing
is checked while it is written: the caller promises that the cells lie within their data.
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
    part,
    tuple_of,
)
from levada.wire.batches import HEADER_BYTES

# Columns of the table of batches: rows by their places in the order, where it is written, and what its header says.
PARTITION, FIRST, ROWS, AT, SIZE, BASE_TIMESTAMP, MAX_TIMESTAMP, BATCH_FIELDS = range(8)

# Places of the state.
BATCH_COUNT, BYTES_IN_ALL, BAD_ROW, STATE_FIELDS = range(4)

FINE = 0
NAMELESS = -1  # a header without a name


class Cells(NamedTuple):
    """A nullable binary column: where each cell begins, its size (-1: null), and the bytes."""

    starts: Any
    sizes: Any
    data: Any


class Lists(NamedTuple):
    """The headers of each row: where they begin among all, how many they are; no rows at all if there are none."""

    starts: Any
    counts: Any
    names: Any
    values: Any


class Source(NamedTuple):
    """What records are made of."""

    order: Any  # rows by partition, otherwise as they came
    partitions: Any
    timestamps: Any
    keys: Any
    values: Any
    headers: Any


CELLS = tuple_of(Cells, INT64S, INT64S, READ)
LISTS = tuple_of(Lists, INT64S, INT64S, CELLS, CELLS)
SOURCE = tuple_of(Source, INT64S, INT32S, INT64S, CELLS, CELLS, LISTS)


@part
def _murmur2(data: Any, start: Any, size: Any) -> Any:
    """The hash of Kafka's clients; `levada.client.producer.partitioner` says more."""
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
def assign_partitions(given: Any, keys: Any, count: Any, run_rows: Any, spread: Any, found: Any) -> None:
    """The partition of each row: as `given` (no rows: nowhere), by key, or as the run goes that `spread` tells of."""
    partition, left = spread[0], spread[1]
    for row in range(found.size):
        if given.size and given[row] >= 0:
            found[row] = given[row]
        elif keys.sizes[row] >= 0:
            positive = _murmur2(keys.data, keys.starts[row], keys.sizes[row]) & np.uint64(0x7FFFFFFF)
            found[row] = positive % np.uint64(count)
        else:
            if left == 0:
                partition = (partition + 1) % count
                left = run_rows
            found[row] = partition
            left -= 1
    spread[0], spread[1] = partition, left


@kernel(INT32S, INT64S, INT64S)
def order_rows(partitions: Any, places: Any, order: Any) -> None:
    """Rows by partition; `places` says where the rows of each begin, and is moved along."""
    for row in range(partitions.size):
        place = places[partitions[row]]
        order[place] = row
        places[partitions[row]] = place + 1


@inlined
def _varint_bytes(value: Any) -> Any:
    """How many bytes a zigzag varint takes."""
    folded = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while folded >= 128:
        folded >>= np.uint64(7)
        size += 1
    return size


@inlined
def _cell_bytes(size: Any) -> Any:
    return _varint_bytes(size) + max(size, 0)


@part
def _header_bytes(headers: Any, row: Any) -> Any:
    """Of all headers of a row and their count; NAMELESS if one has no name."""
    if headers.counts.size == 0:
        return np.int64(1)
    total = np.int64(_varint_bytes(headers.counts[row]))
    first = headers.starts[row]
    for header in range(first, first + headers.counts[row]):
        if headers.names.sizes[header] < 0:
            return np.int64(NAMELESS)
        total += _cell_bytes(headers.names.sizes[header]) + _cell_bytes(headers.values.sizes[header])
    return total


@kernel(SOURCE, INT, INT64S, BATCHES, INT64S, returns=INT)
def plan_batches(source: Any, limit: Any, bodies: Any, batches: Any, state: Any) -> Any:
    """The size of each record without its length, and the batches they go to; what is wrong, or FINE."""
    batch, used, base = np.int64(-1), np.int64(0), np.int64(0)
    partition, index, at = np.int64(-1), np.int64(0), np.int64(0)
    for place in range(source.order.size):
        row = source.order[place]
        time = source.timestamps[row]
        headers = _header_bytes(source.headers, row)
        if headers < 0:
            state[BAD_ROW] = row
            return NAMELESS
        fields = 1 + _cell_bytes(source.keys.sizes[row]) + _cell_bytes(source.values.sizes[row]) + headers
        body = fields + _varint_bytes(time - base) + _varint_bytes(index)
        size = _varint_bytes(body) + body
        if partition != source.partitions[row] or used + size > limit:
            at += used
            batch += 1
            body = fields + 2  # it is the first one
            size = _varint_bytes(body) + body
            base, index, used = time, np.int64(0), np.int64(HEADER_BYTES)
            partition = np.int64(source.partitions[row])
            batches[batch, PARTITION], batches[batch, FIRST], batches[batch, AT] = partition, place, at
            batches[batch, BASE_TIMESTAMP] = batches[batch, MAX_TIMESTAMP] = time
        bodies[place] = body
        used += size
        index += 1
        batches[batch, ROWS], batches[batch, SIZE] = index, used
        batches[batch, MAX_TIMESTAMP] = max(batches[batch, MAX_TIMESTAMP], time)
    state[BATCH_COUNT], state[BYTES_IN_ALL] = batch + 1, at + used
    return FINE


@inlined
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    """The place after it."""
    folded = np.uint64((value << 1) ^ (value >> 63))
    while folded >= 128:
        out[at] = np.uint8(folded & np.uint64(0x7F)) | np.uint8(0x80)
        folded >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(folded)
    return at + 1


@part
def _put_cell(out: Any, at: Any, cells: Any, row: Any) -> Any:
    size = cells.sizes[row]
    at = _put_varint(out, at, size)
    if size > 0:
        copy_bytes(out, at, cells.data, cells.starts[row], size)
        at += size
    return at


@kernel(SOURCE, INT64S, BATCHES, INT, BYTES)
def write_records(source: Any, bodies: Any, batches: Any, count: Any, out: Any) -> None:
    """The records of each batch to their place, behind the room for its header."""
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

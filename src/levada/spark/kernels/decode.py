"""Kernels over records: varints in, Arrow buffers out, without a Python object for any record.

The code runs without bounds checks and without reference counts, so every length is checked against the remaining bytes
before anything is read. The caller allocates as many rows as the headers of the batches claim, and as many bytes for
keys and for values as the batches have.
"""

from typing import Any, NamedTuple

import numpy as np

from levada.spark.kernels.compiler import (
    BYTES,
    INT,
    INT8S,
    INT32S,
    INT64S,
    READ,
    TABLE,
    copy_bytes,
    inlined,
    kernel,
    subroutine,
    tuple_of,
)

# Columns of the table of batches.
BODY, BODY_END, COUNT, BASE_OFFSET, LAST_DELTA, BASE_TIMESTAMP, APPEND_TIME, TIMESTAMP_TYPE, BATCH_FIELDS = range(9)

# Indexes of the state, which is kept from call to call.
ROWS, HEADERS, HEADER_BYTES, BAD_BATCH, BAD_RECORD, STATE_FIELDS = range(6)

# The result of a scan: OK, or why it stopped.
OK = 0
INVALID_VARINT = -1
RECORD_TOO_LONG = -2
FIELD_TOO_LONG = -3
LENGTH_WRONG = -4
HEADERS_WRONG = -5
OFFSET_WRONG = -6
TIME_WRONG = -7
BYTES_LEFT = -8
REASONS = {
    INVALID_VARINT: "an invalid varint",
    RECORD_TOO_LONG: "a record ends beyond its batch",
    FIELD_TOO_LONG: "a field ends beyond its record",
    LENGTH_WRONG: "the length of a record is wrong",
    HEADERS_WRONG: "a header without a name, or more headers than bytes",
    OFFSET_WRONG: "the offset of a record is outside its batch",
    TIME_WRONG: "the timestamp of a record overflows",
    BYTES_LEFT: "bytes after the last record",
}


class BinaryColumn(NamedTuple):
    """A nullable binary column: Arrow's offsets, data and validity bitmap; the bitmap starts with all bits set."""

    ends: Any
    data: Any
    bits: Any


class Fields(NamedTuple):
    """The fixed-size fields of every row, and the position of its headers."""

    offset: Any
    timestamp: Any
    timestamp_type: Any
    header_at: Any
    header_counts: Any


BINARY_COLUMN = tuple_of(BinaryColumn, INT32S, BYTES, BYTES)
FIELDS = tuple_of(Fields, INT64S, INT64S, INT8S, INT64S, INT32S)


@inlined
def _varint(data: Any, position: Any, end: Any) -> Any:
    """A zigzag varint and the position after it; a negative position is an error."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if position >= end:
            return np.int64(0), np.int64(INVALID_VARINT)
        byte = data[position]
        position += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:
                return np.int64(0), np.int64(INVALID_VARINT)
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), np.int64(position)
        shift += np.uint64(7)
        if shift > 63:
            return np.int64(0), np.int64(INVALID_VARINT)


@subroutine
def _field(data: Any, position: Any, end: Any) -> Any:
    """Length (-1: null) and start of a nullable field, its end is checked; a negative start is an error."""
    size, position = _varint(data, position, end)
    if position < 0:
        return np.int64(0), position
    if size < 0:
        return np.int64(-1), position
    if size > end - position:
        return np.int64(0), np.int64(FIELD_TOO_LONG)
    return size, position


@subroutine
def _skip_headers(data: Any, position: Any, end: Any, count: Any) -> Any:
    """The position after `count` headers."""
    if count < 0 or count > (end - position) // 2:
        return HEADERS_WRONG
    for _ in range(count):
        size, position = _field(data, position, end)
        if position < 0:
            return position
        if size < 0:
            return HEADERS_WRONG
        position += size
        size, position = _field(data, position, end)
        if position < 0:
            return position
        position += max(size, 0)
    return position


@inlined
def _record(data: Any, position: Any, end: Any) -> Any:
    """One record: its end (negative: an error), its deltas, and the positions of its fields."""
    none = np.int64(0)
    length, position = _varint(data, position, end)
    if position < 0:
        return position, none, none, none, none, none, none, none, none
    if length < 1 or length > end - position:
        return np.int64(RECORD_TOO_LONG), none, none, none, none, none, none, none, none
    stop = position + length
    time_delta, position = _varint(data, position + 1, stop)  # a record's attributes are unused
    if position < 0:
        return position, none, none, none, none, none, none, none, none
    offset_delta, position = _varint(data, position, stop)
    if position < 0:
        return position, none, none, none, none, none, none, none, none
    key_size, key_at = _field(data, position, stop)
    if key_at < 0:
        return key_at, none, none, none, none, none, none, none, none
    value_size, value_at = _field(data, key_at + max(key_size, 0), stop)
    if value_at < 0:
        return value_at, none, none, none, none, none, none, none, none
    headers, position = _varint(data, value_at + max(value_size, 0), stop)
    if position < 0:
        return position, none, none, none, none, none, none, none, none
    after = position if headers == 0 else _skip_headers(data, position, stop, headers)
    if after >= 0 and after != stop:
        after = np.int64(LENGTH_WRONG)
    return after, time_delta, offset_delta, key_size, key_at, value_size, value_at, headers, position


@subroutine
def _equals(data: Any, at: Any, size: Any, wanted: Any, start: Any, end: Any) -> bool:
    if size != end - start:
        return False
    for index in range(size):  # noqa: SIM110 (numba has no generators)
        if data[at + index] != wanted[start + index]:
            return False
    return True


@subroutine
def _has_headers(data: Any, at: Any, count: Any, stop: Any, wanted: Any, spans: Any) -> bool:
    """Whether each wanted header is among those of a record, whose bounds are checked."""
    for row in range(spans.shape[0]):
        found = False
        position = at
        for _ in range(count):
            name_size, name_at = _field(data, position, stop)
            size, value_at = _field(data, name_at + name_size, stop)
            position = value_at + max(size, 0)
            if _equals(data, name_at, name_size, wanted, spans[row, 0], spans[row, 1]) and _equals(
                data, value_at, size, wanted, spans[row, 1], spans[row, 2]
            ):
                found = True
                break
        if not found:
            return False
    return True


@subroutine
def _put(data: Any, at: Any, size: Any, row: Any, filled: Any, column: Any) -> Any:
    """Append a field to its column, which has `filled` bytes; the bytes filled after it."""
    if size > 0:
        copy_bytes(column.data, filled, data, at, size)
        filled += size
    elif size < 0:
        column.bits[row >> 3] &= ~np.uint8(1 << (row & 7))
    column.ends[row + 1] = filled
    return filled


@kernel(READ, TABLE, INT64S, READ, TABLE, INT64S, FIELDS, BINARY_COLUMN, BINARY_COLUMN, returns=INT)
def scan_records(data: Any, batches: Any, wanted: Any, wanted_bytes: Any, wanted_headers: Any, state: Any,
                 rows: Any, keys: Any, values: Any) -> Any:  # fmt: skip
    """Decode the selected records of batches into columns; OK or an error."""
    row, headers, header_bytes = state[ROWS], state[HEADERS], state[HEADER_BYTES]
    start, past, time_from, time_to, key_wanted = wanted[0], wanted[1], wanted[2], wanted[3], wanted[4]
    key_filled, value_filled = np.int64(keys.ends[row]), np.int64(values.ends[row])
    for batch in range(batches.shape[0]):
        position, end = batches[batch, BODY], batches[batch, BODY_END]
        base_offset, last_delta = batches[batch, BASE_OFFSET], batches[batch, LAST_DELTA]
        base_timestamp, append_time = batches[batch, BASE_TIMESTAMP], batches[batch, APPEND_TIME]
        kind = batches[batch, TIMESTAMP_TYPE]
        for record in range(batches[batch, COUNT]):
            stop, delay, delta, key_size, key_at, size, value_at, count, at = _record(data, position, end)
            timestamp = append_time if kind else base_timestamp + delay
            if stop >= 0 and (delta < 0 or delta > last_delta):
                stop = np.int64(OFFSET_WRONG)
            if stop >= 0 and not kind and (timestamp < base_timestamp) != (delay < 0):
                stop = np.int64(TIME_WRONG)
            if stop < 0:
                state[BAD_BATCH], state[BAD_RECORD] = batch, record
                return stop
            position = stop
            offset = base_offset + delta
            if offset < start or offset >= past or timestamp < time_from or timestamp >= time_to:
                continue
            if key_wanted >= 0 and not _equals(data, key_at, key_size, wanted_bytes, 0, key_wanted):
                continue
            if len(wanted_headers) and not _has_headers(data, at, count, stop, wanted_bytes, wanted_headers):
                continue
            rows.offset[row], rows.timestamp[row], rows.timestamp_type[row] = offset, timestamp, kind
            rows.header_at[row], rows.header_counts[row] = at, count
            headers, header_bytes = headers + count, header_bytes + stop - at
            key_filled = _put(data, key_at, key_size, row, key_filled, keys)
            value_filled = _put(data, value_at, size, row, value_filled, values)
            row += 1
        if position != end:
            state[BAD_BATCH], state[BAD_RECORD] = batch, batches[batch, COUNT]
            return np.int64(BYTES_LEFT)
    state[ROWS], state[HEADERS], state[HEADER_BYTES] = row, headers, header_bytes
    return OK


@kernel(READ, INT, INT, FIELDS, INT32S, BINARY_COLUMN, BINARY_COLUMN)
def copy_headers(data: Any, first: Any, last: Any, rows: Any, list_ends: Any, names: Any, values: Any) -> Any:
    """Copy the headers of the rows first <= row < last, found by `scan_records`, into columns."""
    header = np.int64(list_ends[first])
    names_filled, values_filled = np.int64(names.ends[header]), np.int64(values.ends[header])
    for row in range(first, last):
        position = rows.header_at[row]
        for _ in range(rows.header_counts[row]):
            size, at = _field(data, position, data.size)
            names_filled = _put(data, at, size, header, names_filled, names)
            size, at = _field(data, at + size, data.size)
            values_filled = _put(data, at, size, header, values_filled, values)
            position = at + max(size, 0)
            header += 1
        list_ends[row + 1] = header

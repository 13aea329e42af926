"""Kernels over batch headers: producers without linger write batches of one record each."""

from typing import Any

import numpy as np

from levada.spark.kernels.compiler import BATCHES, INT, INT64S, READ, inlined, kernel
from levada.wire.batches import CONTROL_BIT, HEADER_BYTES, LOG_OVERHEAD, MAGIC

# Columns of the table of batch headers.
AT, SIZE, OFFSET, LAST_OFFSET, CRC, ATTRIBUTES, TIMESTAMP, MAX_TIMESTAMP, PRODUCER, RECORDS, HEADER_FIELDS = range(11)

# Indexes of the state: the number of headers found, the last offset seen, and where the walk ended.
FOUND, LAST_SEEN, BAD_AT, BAD_OFFSET, STATE_FIELDS = range(5)

# Why a walk ended.
INCOMPLETE = 0  # the next batch is incomplete, or there is none
PAST_END = 1
MAGIC_WRONG = -1
TOO_SHORT = -2
BACKWARDS = -3


@inlined
def _int32(data: Any, at: Any) -> Any:
    value = np.uint32(0)
    for index in range(4):
        value = (value << np.uint32(8)) | np.uint32(data[at + index])
    return np.int64(np.int32(value))


@inlined
def _int64(data: Any, at: Any) -> Any:
    value = np.uint64(0)
    for index in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[at + index])
    return np.int64(value)


@kernel(READ, INT, INT, BATCHES, INT64S, returns=INT)
def walk_headers(data: Any, start: Any, end: Any, found: Any, state: Any) -> Any:
    """Find the headers of complete batches before `end`; data batches that end before `start` are left out.

    The caller allocates room for as many headers as the data can hold.
    """
    count, position, last_offset = np.int64(0), np.int64(0), np.int64(-1)
    outcome = INCOMPLETE
    while data.size - position >= HEADER_BYTES:
        offset, size = _int64(data, position), _int32(data, position + 8) + LOG_OVERHEAD
        state[BAD_AT], state[BAD_OFFSET] = position, offset
        if data[position + 16] != MAGIC:
            outcome = MAGIC_WRONG
            break
        if size < HEADER_BYTES:
            outcome = TOO_SHORT
            break
        if size > data.size - position:
            break
        its_last = offset + _int32(data, position + 23)
        if offset <= last_offset or its_last < offset:
            outcome = BACKWARDS
            break
        if offset >= end:
            outcome = PAST_END
            break
        last_offset = its_last
        attributes = np.int64(data[position + 22])
        if last_offset >= start or attributes & CONTROL_BIT:
            found[count, AT], found[count, SIZE] = position, size
            found[count, OFFSET], found[count, LAST_OFFSET] = offset, last_offset
            found[count, CRC], found[count, ATTRIBUTES] = _int32(data, position + 17) & 0xFFFFFFFF, attributes
            found[count, TIMESTAMP] = _int64(data, position + 27)
            found[count, MAX_TIMESTAMP] = _int64(data, position + 35)
            found[count, PRODUCER], found[count, RECORDS] = (
                _int64(data, position + 43),
                _int32(data, position + 57),
            )
            count += 1
        position += size
    state[FOUND], state[LAST_SEEN] = count, last_offset
    return outcome


@kernel(READ, returns=INT)
def offset_after(data: Any) -> Any:
    """The offset after the last complete batch, -1 if there is none."""
    position, after = np.int64(0), np.int64(-1)
    while data.size - position >= HEADER_BYTES:
        size = _int32(data, position + 8) + LOG_OVERHEAD
        if size < HEADER_BYTES or size > data.size - position:
            break
        after = _int64(data, position) + _int32(data, position + 23) + 1
        position += size
    return after

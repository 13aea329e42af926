"""Raw record batches to Arrow columns, without an object for any record.

Headers of batches are walked in Python, as they are few; batches that are not compressed go to the kernel in one call,
each compressed one in a call of its own. Keys and values are copied once, from where they came to Arrow's buffers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from levada.spark import kernels
from levada.spark.batch_walk import Walk, check_count, corrupt, unfold
from levada.spark.columns import HEADERS_TYPE, Columns, Filter
from levada.wire.batches import (
    CODEC_MASK,
    DECODED_BYTES_MAX,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)

__all__ = ["DECODED_BYTES_SOFT", "Columns", "Filter", "decode_all", "decode_chunk"]

DECODED_BYTES_SOFT = 256 << 20  # what one call unfolds, about; a single batch may pass it
DECODED_BYTES_HARD = 1 << 30  # with one more batch still within the 31 bits of Arrow's offsets


class _Body(NamedTuple):
    """Bytes with the records of one or more batches, and the batches as the kernel knows them."""

    data: Any
    batches: list[tuple[int, ...]]


def decode_chunk(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
    limit_bytes: int = DECODED_BYTES_SOFT,
) -> tuple[Columns, int]:
    """The records of `data` with start <= offset < end, and the offset to go on from.

    `data` is what a Fetch gave: batches in order, the first may begin before `start`, the last may be incomplete and is
    then left alone. `aborted` is the answer's list of (producer id, first offset); empty for read_uncommitted. Markers
    and aborted records make no rows. The offset returned is that after the last batch looked at (or `end`, if that is
    less), whether or not it had rows. It is before the last whole batch only if the records unfold to more than
    `limit_bytes`: then ask again with it as `start` and all else the same, or use `decode_all`.

    Broken data raises KafkaError(CORRUPT_MESSAGE) that names the offset.
    """
    walk = Walk(data, start, end, aborted)
    bodies = _bodies(data, walk, min(limit_bytes, DECODED_BYTES_HARD))
    rows = _Rows(bodies)
    wanted = _Wanted(start, end, where or Filter())
    spans = [rows.scan(body, wanted) for body in bodies]
    return rows.columns(bodies, spans, want_headers), walk.next_offset


def decode_all(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
    limit_bytes: int = DECODED_BYTES_SOFT,
) -> Iterator[Columns]:
    """All of a chunk, in as many pieces as `limit_bytes` asks for (nearly always one), none of them empty."""
    position, before = start, None
    while position != before and position < end:
        before = position
        columns, position = decode_chunk(data, position, end, aborted, want_headers, where, limit_bytes)
        if columns.rows:
            yield columns


def _bodies(data: memoryview, walk: Walk, limit_bytes: int) -> list[_Body]:
    """What the kernel shall scan, up to the limit."""
    whole = np.frombuffer(data, np.uint8)
    bodies: list[_Body] = []
    unfolded = 0
    for position, header in walk:
        size = header[1] + LOG_OVERHEAD - HEADER_BYTES
        if unfolded and unfolded + size > limit_bytes:
            break  # the walk has not passed it: it comes with the next call
        if header[5] & CODEC_MASK:
            body = np.frombuffer(unfold(data, position, header, DECODED_BYTES_MAX), np.uint8)
            bodies.append(_Body(body, [_entry(header, 0, len(body))]))
            unfolded += len(body)
        else:
            check_count(header, size)
            if not bodies or bodies[-1].data is not whole:
                bodies.append(_Body(whole, []))
            first = position + HEADER_BYTES
            bodies[-1].batches.append(_entry(header, first, first + size))
            unfolded += size
    return bodies


def _entry(header: BatchHeader, start: int, end: int) -> tuple[int, ...]:
    """A batch as the kernel knows it, in the order of its columns."""
    base_offset, _, _, _, _, attributes, last_delta, base_timestamp, max_timestamp, _, _, _, count = header
    append_time = 1 if attributes & TIMESTAMP_TYPE_BIT else 0
    return start, end, count, base_offset, last_delta, base_timestamp, max_timestamp, append_time


class _Wanted:
    """A range of offsets and a filter, as the kernel knows them."""

    __slots__ = ("data", "header_spans", "limits")

    def __init__(self, start: int, end: int, where: Filter) -> None:
        parts = [b"" if where.key is None else where.key]
        position = len(parts[0])
        spans: list[tuple[int, int, int]] = []
        for name, value in where.headers:
            encoded = name.encode()
            middle = position + len(encoded)
            spans.append((position, middle, middle + len(value)))
            position = middle + len(value)
            parts += (encoded, value)
        self.data = np.frombuffer(b"".join(parts), np.uint8)
        self.header_spans = np.array(spans, np.int64).reshape(len(spans), 3)
        key_bytes = -1 if where.key is None else len(where.key)
        self.limits = np.array([start, end, where.timestamp_from, where.timestamp_to, key_bytes], np.int64)


class _Rows:
    """The columns while they are filled: room for all that the batches claim; pages not needed are never touched."""

    def __init__(self, bodies: list[_Body]) -> None:
        entries = [entry for body in bodies for entry in body.batches]
        count = sum(entry[kernels.COUNT] for entry in entries)
        room = sum(entry[kernels.BODY_END] - entry[kernels.BODY] for entry in entries)
        self.state = np.zeros(kernels.STATE_FIELDS, np.int64)
        self.fields = kernels.Fields(
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.int8),
            np.empty(count, np.int64),
            np.empty(count, np.int32),
        )
        self.key = _blobs(count, room)
        self.value = _blobs(count, room)

    def scan(self, body: _Body, wanted: _Wanted) -> tuple[int, int]:
        """The wanted records of a body; the rows that they became."""
        first = int(self.state[kernels.ROWS])
        batches = np.array(body.batches, np.int64)
        failure = kernels.scan_records(
            body.data, batches, wanted.limits, wanted.data, wanted.header_spans, self.state,
            self.fields, self.key, self.value,
        )  # fmt: skip
        if failure != kernels.FINE:
            batch = body.batches[self.state[kernels.BAD_BATCH]]
            record = self.state[kernels.BAD_RECORD]
            why = f"record {record} of {batch[kernels.COUNT]}: {kernels.REASONS[failure]}"
            raise corrupt(batch[kernels.BASE_OFFSET], why)
        return first, int(self.state[kernels.ROWS])

    def columns(self, bodies: list[_Body], spans: list[tuple[int, int]], want_headers: bool) -> Columns:
        """What was filled, as Arrow has it."""
        rows = int(self.state[kernels.ROWS])
        return Columns(
            _array(pa.binary(), self.key, rows),
            _array(pa.binary(), self.value, rows),
            _numbers(pa.int64(), self.fields.offset, rows),
            _numbers(pa.int64(), self.fields.timestamp, rows),
            _numbers(pa.int8(), self.fields.timestamp_type, rows),
            self._headers(bodies, spans) if want_headers else None,
        )

    def _headers(self, bodies: list[_Body], spans: list[tuple[int, int]]) -> Any:
        rows, count = int(self.state[kernels.ROWS]), int(self.state[kernels.HEADERS])
        ends = np.zeros(rows + 1, np.int32)
        room = int(self.state[kernels.HEADER_BYTES]) if count else 0
        names, values = _blobs(count, room), _blobs(count, room)
        if count:
            for body, (first, last) in zip(bodies, spans, strict=True):
                kernels.copy_headers(body.data, first, last, self.fields, ends, names, values)
        pairs = pa.StructArray.from_arrays(
            [self._names(_array(pa.string(), names, count), ends), _array(pa.binary(), values, count)],
            fields=list(HEADERS_TYPE.value_type),
        )
        return pa.Array.from_buffers(HEADERS_TYPE, rows, [None, pa.py_buffer(ends)], 0, children=[pairs])

    def _names(self, names: Any, ends: Any) -> Any:
        """Checked to be UTF-8, which Spark relies on."""
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:
            for index, name in enumerate(names.view(pa.binary()).to_pylist()):
                try:
                    name.decode()
                except UnicodeDecodeError:
                    row = int(np.searchsorted(ends, index, side="right")) - 1
                    raise corrupt(
                        int(self.fields.offset[row]), f"a header's name is not UTF-8: {name!r}"
                    ) from None
        return names


def _blobs(rows: int, room: int) -> kernels.Blobs:
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return kernels.Blobs(ends, np.empty(room, np.uint8), np.full((rows + 7) // 8, 255, np.uint8))


def _array(kind: Any, column: kernels.Blobs, rows: int) -> Any:
    """The first rows of a column, as Arrow has them."""
    ends, data = pa.py_buffer(column.ends[: rows + 1]), pa.py_buffer(column.data[: column.ends[rows]])
    array = pa.Array.from_buffers(kind, rows, [pa.py_buffer(column.bits), ends, data])
    return array if array.null_count else pa.Array.from_buffers(kind, rows, [None, ends, data], 0)


def _numbers(kind: Any, data: Any, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data[:rows])], 0)

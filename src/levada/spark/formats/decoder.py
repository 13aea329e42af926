"""Decodes record batches into Arrow columns, without a Python object for any record.

Consecutive uncompressed batches go to the kernel in one call; compressed ones are first decompressed into one buffer.
Keys and values are copied once, from the Fetch response into Arrow's buffers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from levada.spark.formats.batch_headers import (
    BatchHeaders,
    check_counts,
    corrupt_batch,
    decompress_records,
    decompress_records_into,
)
from levada.spark.kernels import decode as kernels
from levada.spark.kernels import walk
from levada.wire.batches import CODEC_MASK, DECODED_BYTES_MAX, HEADER_BYTES, TIMESTAMP_TYPE_BIT

# Exactly Spark's type of the headers column, so that nothing is converted.
HEADERS_TYPE: Any = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TIMESTAMP_MIN = -(1 << 63)
TIMESTAMP_MAX = (1 << 63) - 1
PIECE_BYTES = 4 << 20  # decoded at once, about: fits into the CPU's caches on its way to Spark
DECOMPRESSED_RATIO = 4  # the likely size of decompressed batches,
DECOMPRESSED_BYTES_MIN = 64 << 10  # or this, if they are small
DECODED_BYTES_HARD = 1 << 30  # with one more batch still within the 31 bits of Arrow's offsets


class Columns(NamedTuple):
    """Records as columns of one length, ordered by offset."""

    key: Any  # pyarrow.BinaryArray, nullable
    value: Any  # pyarrow.BinaryArray, nullable
    offset: Any  # pyarrow.Int64Array
    timestamp: Any  # pyarrow.Int64Array, milliseconds since 1970
    timestamp_type: Any  # pyarrow.Int8Array: 0 CreateTime, 1 LogAppendTime
    headers: Any | None  # pyarrow.ListArray of HEADERS_TYPE, never null; None if not wanted

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.offset)


class Filter(NamedTuple):
    """Selects records while they are scanned: those for which all conditions hold."""

    key: bytes | None = None  # None: any key
    headers: tuple[tuple[str, bytes], ...] = ()  # each must be among the record's headers
    timestamp_from: int = TIMESTAMP_MIN  # milliseconds, inclusive
    timestamp_to: int = TIMESTAMP_MAX  # exclusive


class _Body(NamedTuple):
    """Bytes with the records of one or more batches, and the table of these batches for the kernel."""

    data: Any
    batches: Any


def decode_chunk(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
) -> tuple[Columns, int]:
    """The records of `data` with start <= offset < end, and the offset to continue from.

    `data` are the records of a Fetch response: batches in order, the first may begin before `start`, the last may be
    incomplete and is ignored then. `aborted` is the response's list of (producer id, first offset); empty for
    read_uncommitted. Control records and aborted records give no rows. The returned offset is that after the last
    batch decoded (or `end`, if that is less), whether or not it had rows. It is before the last whole batch only if
    the records are larger than DECODED_BYTES_HARD when decompressed: `decode_all` decodes them all.

    Corrupt data raises KafkaError(CORRUPT_MESSAGE) with the offset.
    """
    headers = BatchHeaders(data, start, end, aborted)
    selection = _Selection(start, end, where or Filter())
    columns, decoded = _decode(data, headers.table, selection, want_headers, DECODED_BYTES_HARD)
    if decoded < len(headers.table):
        return columns, int(headers.table[decoded, walk.OFFSET])
    return columns, headers.next_offset


def decode_all(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Columns]:
    """All records of a Fetch response, in non-empty pieces of about `piece_bytes`; each has its own memory."""
    table = BatchHeaders(data, start, end, aborted).table
    selection = _Selection(start, end, where or Filter())
    while len(table):
        columns, decoded = _decode(data, table, selection, want_headers, piece_bytes)
        table = table[decoded:]
        if columns.rows:
            yield columns


def _decode(
    data: memoryview, table: Any, selection: "_Selection", want_headers: bool, limit_bytes: int
) -> tuple[Columns, int]:
    """The records of the first batches of a table, and how many batches these are: at least one."""
    bodies, decoded = _bodies(data, table, limit_bytes)
    rows = _Rows(bodies)
    spans = [rows.scan(body, selection) for body in bodies]
    return rows.columns(bodies, spans, want_headers), decoded


def _bodies(data: memoryview, table: Any, limit_bytes: int) -> tuple[list[_Body], int]:
    """The bodies that the kernel scans, up to the first beyond the limit, and how many batches they hold."""
    compressed = table[:, walk.ATTRIBUTES] & CODEC_MASK != 0
    ends = [*(np.flatnonzero(compressed[1:] != compressed[:-1]) + 1).tolist(), len(table)]
    bodies: list[_Body] = []
    first = 0
    for end in ends if len(table) else ():
        make = _decompressed if compressed[first] else _uncompressed
        body, size = make(data, table[first:end], limit_bytes)
        bodies.append(body)
        first += len(body.batches)
        limit_bytes -= size
        if first < end or limit_bytes <= 0:
            break
    return bodies, first


def _uncompressed(data: memoryview, table: Any, limit_bytes: int) -> tuple[_Body, int]:
    """Uncompressed batches, in place."""
    starts = table[:, walk.AT] + HEADER_BYTES
    sizes = table[:, walk.SIZE] - HEADER_BYTES
    sums = np.cumsum(sizes)
    count = min(int(np.searchsorted(sums, limit_bytes)) + 1, len(sums))
    batches = _entries(table[:count], starts[:count], sizes[:count])
    return _Body(np.frombuffer(data, np.uint8), batches), int(sums[count - 1])


def _decompressed(data: memoryview, table: Any, limit_bytes: int) -> tuple[_Body, int]:
    """Compressed batches, decompressed one after another into a buffer."""
    sizes = DECOMPRESSED_RATIO * table[:, walk.SIZE]
    buffer = np.empty(min(limit_bytes, int(sizes.sum())) + max(int(sizes.max()), DECOMPRESSED_BYTES_MIN), np.uint8)
    ends = [0]
    for header in table.tolist():
        start = ends[-1]
        if start >= limit_bytes:
            break
        size = decompress_records_into(data, header, buffer.data[start:])
        if size is None:
            body = decompress_records(data, header, DECODED_BYTES_MAX)
            size = len(body)
            if start + size > len(buffer):
                buffer = np.concatenate([buffer[:start], np.empty(max(len(buffer), size), np.uint8)])
            buffer.data[start : start + size] = body
        ends.append(start + size)
    starts = np.array(ends[:-1], np.int64)
    batches = _entries(table[: len(starts)], starts, np.diff(ends))
    return _Body(buffer[: ends[-1]], batches), ends[-1]


def _entries(table: Any, starts: Any, sizes: Any) -> Any:
    """The kernel's table of these batches."""
    check_counts(table[:, walk.OFFSET], table[:, walk.RECORDS], sizes)
    entries = np.empty((len(table), kernels.BATCH_FIELDS), np.int64)
    entries[:, kernels.BODY] = starts
    entries[:, kernels.BODY_END] = starts + sizes
    entries[:, kernels.COUNT] = table[:, walk.RECORDS]
    entries[:, kernels.BASE_OFFSET] = table[:, walk.OFFSET]
    entries[:, kernels.LAST_DELTA] = table[:, walk.LAST_OFFSET] - table[:, walk.OFFSET]
    entries[:, kernels.BASE_TIMESTAMP] = table[:, walk.TIMESTAMP]
    entries[:, kernels.APPEND_TIME] = table[:, walk.MAX_TIMESTAMP]
    entries[:, kernels.TIMESTAMP_TYPE] = table[:, walk.ATTRIBUTES] & TIMESTAMP_TYPE_BIT != 0
    return entries


class _Selection:
    """An offset range and a filter, in the form of the kernel's arguments."""

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
    """The columns while they are filled: sized by the record counts in batch headers, touched only as needed."""

    def __init__(self, bodies: list[_Body]) -> None:
        count = sum(int(body.batches[:, kernels.COUNT].sum()) for body in bodies)
        bounds = [body.batches[:, kernels.BODY_END] - body.batches[:, kernels.BODY] for body in bodies]
        room = sum(int(sizes.sum()) for sizes in bounds)
        self.state = np.zeros(kernels.STATE_FIELDS, np.int64)
        self.fields = kernels.Fields(
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.int8),
            np.empty(count, np.int64),
            np.empty(count, np.int32),
        )
        self.key = _binary_column(count, room)
        self.value = _binary_column(count, room)

    def scan(self, body: _Body, selection: _Selection) -> tuple[int, int]:
        """Decode the selected records of a body; the range of rows that they become."""
        first = int(self.state[kernels.ROWS])
        failure = kernels.scan_records(
            body.data, body.batches, selection.limits, selection.data, selection.header_spans, self.state,
            self.fields, self.key, self.value,
        )  # fmt: skip
        if failure != kernels.OK:
            batch = body.batches[self.state[kernels.BAD_BATCH]].tolist()
            record = self.state[kernels.BAD_RECORD]
            why = f"record {record} of {batch[kernels.COUNT]}: {kernels.REASONS[failure]}"
            raise corrupt_batch(batch[kernels.BASE_OFFSET], why)
        return first, int(self.state[kernels.ROWS])

    def columns(self, bodies: list[_Body], spans: list[tuple[int, int]], want_headers: bool) -> Columns:
        """The filled rows as Arrow arrays."""
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
        names, values = _binary_column(count, room), _binary_column(count, room)
        if count:
            for body, (first, last) in zip(bodies, spans, strict=True):
                kernels.copy_headers(body.data, first, last, self.fields, ends, names, values)
        pairs = pa.StructArray.from_arrays(
            [self._names(_array(pa.string(), names, count), ends), _array(pa.binary(), values, count)],
            fields=list(HEADERS_TYPE.value_type),
        )
        return pa.Array.from_buffers(HEADERS_TYPE, rows, [None, pa.py_buffer(ends)], 0, children=[pairs])

    def _names(self, names: Any, ends: Any) -> Any:
        """Check that header names are UTF-8, which Spark relies on."""
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:
            for index, name in enumerate(names.view(pa.binary()).to_pylist()):
                try:
                    name.decode()
                except UnicodeDecodeError:
                    row = int(np.searchsorted(ends, index, side="right")) - 1
                    raise corrupt_batch(
                        int(self.fields.offset[row]), f"a header's name is not UTF-8: {name!r}"
                    ) from None
        return names


def _binary_column(rows: int, room: int) -> kernels.BinaryColumn:
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    return kernels.BinaryColumn(ends, np.empty(room, np.uint8), np.full((rows + 7) // 8, 255, np.uint8))


def _array(kind: Any, column: kernels.BinaryColumn, rows: int) -> Any:
    """The first rows of a column as an Arrow array."""
    ends, data = pa.py_buffer(column.ends[: rows + 1]), pa.py_buffer(column.data[: column.ends[rows]])
    array = pa.Array.from_buffers(kind, rows, [pa.py_buffer(column.bits), ends, data])
    return array if array.null_count else pa.Array.from_buffers(kind, rows, [None, ends, data], 0)


def _numbers(kind: Any, data: Any, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data[:rows])], 0)

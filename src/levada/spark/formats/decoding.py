"""Raw record batches to Arrow columns, without an object for any record.

Batches that follow one another go to the kernel in one call, compressed ones after they were unfolded side by side.
Keys and values are copied once, from where they came to Arrow's buffers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from levada.spark.formats.columns import HEADERS_TYPE, Columns, Filter
from levada.spark.kernels import decode as kernels
from levada.spark.kernels import walk
from levada.spark.kernels.batch_walk import Headers, check_counts, corrupt, unfold, unfold_into
from levada.wire.batches import CODEC_MASK, DECODED_BYTES_MAX, HEADER_BYTES, TIMESTAMP_TYPE_BIT

__all__ = ["Columns", "Filter", "decode_all", "decode_chunk"]

PIECE_BYTES = 4 << 20  # what is decoded at once, about: little enough for the caches, on its way to Spark
UNFOLDED_RATIO = 4  # what compressed batches are likely to unfold to,
UNFOLDED_BYTES = 64 << 10  # or this, if they are small
DECODED_BYTES_HARD = 1 << 30  # with one more batch still within the 31 bits of Arrow's offsets


class _Body(NamedTuple):
    """Bytes with the records of one or more batches, and the batches as the kernel knows them."""

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
    """The records of `data` with start <= offset < end, and the offset to go on from.

    `data` is what a Fetch gave: batches in order, the first may begin before `start`, the last may be incomplete and is
    then left alone. `aborted` is the answer's list of (producer id, first offset); empty for read_uncommitted. Markers
    and aborted records make no rows. The offset returned is that after the last batch looked at (or `end`, if that is
    less), whether or not it had rows. It is before the last whole batch only if the records unfold to more than
    DECODED_BYTES_HARD: `decode_all` gives them all.

    Broken data raises KafkaError(CORRUPT_MESSAGE) that names the offset.
    """
    headers = Headers(data, start, end, aborted)
    wanted = _Wanted(start, end, where or Filter())
    columns, looked_at = _decode(data, headers.table, wanted, want_headers, DECODED_BYTES_HARD)
    if looked_at < len(headers.table):
        return columns, int(headers.table[looked_at, walk.OFFSET])
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
    """All of a chunk, in pieces of about so many bytes, none of them empty; the memory of each is its own."""
    table = Headers(data, start, end, aborted).table
    wanted = _Wanted(start, end, where or Filter())
    while len(table):
        columns, looked_at = _decode(data, table, wanted, want_headers, piece_bytes)
        table = table[looked_at:]
        if columns.rows:
            yield columns


def _decode(
    data: memoryview, table: Any, wanted: "_Wanted", want_headers: bool, limit_bytes: int
) -> tuple[Columns, int]:
    """The records of the first batches of a table, and how many batches that were: at least one."""
    bodies, looked_at = _bodies(data, table, limit_bytes)
    rows = _Rows(bodies)
    spans = [rows.scan(body, wanted) for body in bodies]
    return rows.columns(bodies, spans, want_headers), looked_at


def _bodies(data: memoryview, table: Any, limit_bytes: int) -> tuple[list[_Body], int]:
    """What the kernel shall scan, until the limit is passed, and how many batches that are."""
    folded = table[:, walk.ATTRIBUTES] & CODEC_MASK != 0
    ends = [*(np.flatnonzero(folded[1:] != folded[:-1]) + 1).tolist(), len(table)]
    bodies: list[_Body] = []
    first = 0
    for end in ends if len(table) else ():
        make = _unfolded if folded[first] else _plain
        body, size = make(data, table[first:end], limit_bytes)
        bodies.append(body)
        first += len(body.batches)
        limit_bytes -= size
        if first < end or limit_bytes <= 0:
            break
    return bodies, first


def _plain(data: memoryview, table: Any, limit_bytes: int) -> tuple[_Body, int]:
    """Batches that are not compressed, where they are."""
    starts = table[:, walk.AT] + HEADER_BYTES
    sizes = table[:, walk.SIZE] - HEADER_BYTES
    sums = np.cumsum(sizes)
    count = min(int(np.searchsorted(sums, limit_bytes)) + 1, len(sums))
    batches = _entries(table[:count], starts[:count], sizes[:count])
    return _Body(np.frombuffer(data, np.uint8), batches), int(sums[count - 1])


def _unfolded(data: memoryview, table: Any, limit_bytes: int) -> tuple[_Body, int]:
    """Compressed batches, one after another in memory of their own."""
    sizes = UNFOLDED_RATIO * table[:, walk.SIZE]
    place = np.empty(min(limit_bytes, int(sizes.sum())) + max(int(sizes.max()), UNFOLDED_BYTES), np.uint8)
    ends = [0]
    for header in table.tolist():
        start = ends[-1]
        if start >= limit_bytes:
            break
        size = unfold_into(data, header, place.data[start:])
        if size is None:
            body = unfold(data, header, DECODED_BYTES_MAX)
            size = len(body)
            if start + size > len(place):
                place = np.concatenate([place[:start], np.empty(max(len(place), size), np.uint8)])
            place.data[start : start + size] = body
        ends.append(start + size)
    starts = np.array(ends[:-1], np.int64)
    batches = _entries(table[: len(starts)], starts, np.diff(ends))
    return _Body(place[: ends[-1]], batches), ends[-1]


def _entries(table: Any, starts: Any, sizes: Any) -> Any:
    """Batches as the kernel knows them, in the order of its columns."""
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
        self.key = _blobs(count, room)
        self.value = _blobs(count, room)

    def scan(self, body: _Body, wanted: _Wanted) -> tuple[int, int]:
        """The wanted records of a body; the rows that they became."""
        first = int(self.state[kernels.ROWS])
        failure = kernels.scan_records(
            body.data, body.batches, wanted.limits, wanted.data, wanted.header_spans, self.state,
            self.fields, self.key, self.value,
        )  # fmt: skip
        if failure != kernels.FINE:
            batch = body.batches[self.state[kernels.BAD_BATCH]].tolist()
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

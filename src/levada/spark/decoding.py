"""Raw record batches to Arrow columns, without an object for any record.

Batches that follow one another go to the kernel in one call, compressed ones after they were unfolded together. Keys
and values are copied once, from where they came to Arrow's buffers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from levada.spark import kernels
from levada.spark import walk_kernels as walk
from levada.spark.batch_walk import Headers, check_counts, corrupt, unfold
from levada.spark.columns import HEADERS_TYPE, Columns, Filter
from levada.wire.batches import CODEC_MASK, DECODED_BYTES_MAX, HEADER_BYTES, TIMESTAMP_TYPE_BIT

__all__ = ["DECODED_BYTES_SOFT", "Columns", "Filter", "decode_all", "decode_chunk"]

DECODED_BYTES_SOFT = 64 << 20  # what one call unfolds, about; a single batch may pass it
UNFOLDED_RATIO = 4  # what compressed batches are likely to unfold to
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
    headers = Headers(data, start, end, aborted)
    bodies, looked_at = _bodies(data, headers.table, min(limit_bytes, DECODED_BYTES_HARD))
    next_offset = headers.next_offset
    if looked_at < len(headers.table):  # the next call goes on with the first that is left
        next_offset = int(headers.table[looked_at, walk.OFFSET])
    rows = _Rows(bodies)
    wanted = _Wanted(start, end, where or Filter())
    spans = [rows.scan(body, wanted) for body in bodies]
    return rows.columns(bodies, spans, want_headers), next_offset


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


def _bodies(data: memoryview, table: Any, limit_bytes: int) -> tuple[list[_Body], int]:
    """What the kernel shall scan, up to the limit, and how many batches that are."""
    folded = table[:, walk.ATTRIBUTES] & CODEC_MASK != 0
    ends = [*(np.flatnonzero(folded[1:] != folded[:-1]) + 1).tolist(), len(table)]
    bodies: list[_Body] = []
    first = 0
    for end in ends if len(table) else ():
        make = _unfolded if folded[first] else _plain
        body, size = make(data, table[first:end], limit_bytes, not bodies)
        if len(body.batches):
            bodies.append(body)
        first += len(body.batches)
        limit_bytes -= size
        if first < end:
            break
    return bodies, first


def _plain(data: memoryview, table: Any, limit_bytes: int, at_least_one: bool) -> tuple[_Body, int]:
    """Batches that are not compressed, where they are."""
    starts = table[:, walk.AT] + HEADER_BYTES
    sizes = table[:, walk.SIZE] - HEADER_BYTES
    sums = np.cumsum(sizes)
    count = max(int(np.searchsorted(sums, limit_bytes, "right")), int(at_least_one))
    batches = _entries(table[:count], starts[:count], sizes[:count])
    return _Body(np.frombuffer(data, np.uint8), batches), int(sums[count - 1]) if count else 0


def _unfolded(data: memoryview, table: Any, limit_bytes: int, at_least_one: bool) -> tuple[_Body, int]:
    """Compressed batches, one after another in memory of their own."""
    place = np.empty(
        UNFOLDED_RATIO * int(table[:, walk.SIZE].sum()), np.uint8
    )  # pages not needed are not touched
    ends = [0]
    for header in table.tolist():
        body = unfold(data, header, DECODED_BYTES_MAX)
        start, end = ends[-1], ends[-1] + len(body)
        if end > limit_bytes and (start or not at_least_one):
            break  # unfolded in vain, but memory is bounded
        if end > len(place):
            place = np.concatenate([place[:start], np.empty(max(start, len(body)), np.uint8)])
        place.data[start:end] = body
        ends.append(end)
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

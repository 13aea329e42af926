"""The reference implementation of the decoder: plain Python, one object per record."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from levada.errors import KafkaError
from levada.spark.formats.batch_headers import corrupt_batch, is_abort, wrong_magic
from levada.spark.formats.decoder import HEADERS_TYPE, TIMESTAMP_MAX, TIMESTAMP_MIN, Columns, Filter
from levada.wire.batches import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Record,
    crc_is_valid,
    decode,
    read_header,
)

OFFSET_MAX = (1 << 63) - 1


def decode_chunk(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
) -> tuple[Columns, int]:
    """As `levada.spark.formats.decoder.decode_chunk`, without a limit."""
    where = where or Filter()
    walk = _Walk(data, start, end, aborted)
    rows: list[Record] = []
    types: list[int] = []
    for position, header in walk:
        try:
            records = decode(data[position : position + header.size])
        except KafkaError as error:
            raise corrupt_batch(header.base_offset, error.detail) from None
        for record in records:
            if not header.base_offset <= record.offset <= header.last_offset:
                raise corrupt_batch(header.base_offset, "the offset of a record is outside its batch")
            if not TIMESTAMP_MIN <= record.timestamp <= TIMESTAMP_MAX:
                raise corrupt_batch(header.base_offset, "the timestamp of a record overflows")
            if start <= record.offset < end and _is_wanted(record, where):
                rows.append(record)
                types.append(header.timestamp_type)
    columns = Columns(
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp for row in rows], pa.int64()),
        pa.array(types, pa.int8()),
        pa.array([_pairs(row) for row in rows], HEADERS_TYPE) if want_headers else None,
    )
    return columns, walk.next_offset


def _is_wanted(record: Record, where: Filter) -> bool:
    return (
        (where.key is None or record.key == where.key)
        and all(header in record.headers for header in where.headers)
        and where.timestamp_from <= record.timestamp < where.timestamp_to
    )


def _pairs(record: Record) -> list[dict[str, object]]:
    return [{"key": name, "value": value} for name, value in record.headers]


class _Walk:
    """Goes over the batches of `data` that reach into [start, end); `next_offset` moves along.

    Batches that end before `start` are passed over, but their markers count: they end aborted transactions.
    """

    __slots__ = ("_aborted", "_data", "_end", "_pending", "_start", "next_offset")

    def __init__(self, data: memoryview, start: int, end: int, aborted: Sequence[tuple[int, int]]) -> None:
        self._data = data
        self._start = start
        self._end = end
        self._pending = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._aborted: set[int] = set()  # producers whose transaction at this place will be aborted
        self.next_offset = start  # after the last batch that was given or passed over, at most the end

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch with rows."""
        last_offset = -1
        for position, header in self._whole_batches():
            base_offset, last_delta = header[0], header[6]
            if base_offset <= last_offset or last_delta < 0 or base_offset + last_delta > OFFSET_MAX:
                raise corrupt_batch(base_offset, "offsets go backwards")
            if base_offset >= self._end:
                self.next_offset = self._end
                return
            last_offset = base_offset + last_delta
            if self._has_rows(position, header, last_offset):
                yield position, header
            if last_offset >= self.next_offset:
                self.next_offset = min(last_offset + 1, self._end)

    def _whole_batches(self) -> Iterator[tuple[int, BatchHeader]]:
        data, size, position = self._data, len(self._data), 0
        while size - position >= HEADER_BYTES:
            header = read_header(data, position)
            batch_length, magic = header[1], header[3]
            if magic != MAGIC:
                raise wrong_magic(header[0], magic)
            if batch_length < HEADER_BYTES - LOG_OVERHEAD:
                raise corrupt_batch(header[0], f"a length of {batch_length}")
            if batch_length > size - position - LOG_OVERHEAD:
                return
            yield position, header
            position += LOG_OVERHEAD + batch_length

    def _has_rows(self, position: int, header: BatchHeader, last_offset: int) -> bool:
        """Whether it has rows for the reader, given the transactions so far."""
        while self._pending and self._pending[-1][1] <= last_offset:
            self._aborted.add(self._pending.pop()[0])
        attributes = header[5]
        if last_offset < self._start and not attributes & CONTROL_BIT:
            return False
        view = self._data[position : position + LOG_OVERHEAD + header[1]]
        if not crc_is_valid(view):
            raise corrupt_batch(header[0], "a wrong CRC")
        if attributes & CONTROL_BIT:
            if header.producer_id in self._aborted and is_abort(view, header.base_offset):
                self._aborted.remove(header.producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and header.producer_id in self._aborted)

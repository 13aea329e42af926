"""Which batches of a Fetch answer have rows: the walk over their headers, with CRCs and transactions.

The decoder and its twin share it: what they differ in, and are tested against each other for, is the reading of
records.
"""

from collections.abc import Iterator, Sequence

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.wire.batches import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_is_valid,
    decode,
    read_header,
)
from levada.wire.compression import decompress

CONTROL_ABORT = 0


def corrupt(offset: int, why: str) -> KafkaError:
    """What is raised for broken data: it names the first offset that cannot be read."""
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset}: {why}")


class Walk:
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
            if base_offset <= last_offset or last_delta < 0:
                raise corrupt(base_offset, "offsets go backwards")
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
                why = f"the batch at offset {header[0]} is of magic {magic}, only {MAGIC} is read"
                raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, why)
            if batch_length < HEADER_BYTES - LOG_OVERHEAD:
                raise corrupt(header[0], f"a length of {batch_length}")
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
            raise corrupt(header[0], "a wrong CRC")
        if attributes & CONTROL_BIT:
            if header.producer_id in self._aborted and _is_abort(view):
                self._aborted.remove(header.producer_id)
            return False
        return not (attributes & TRANSACTIONAL_BIT and header.producer_id in self._aborted)


def _is_abort(view: memoryview) -> bool:
    """Whether a marker ends a transaction by abort: its key holds a version and a type."""
    keys = [record.key for record in decode(view)]
    return any(key is not None and int.from_bytes(key[2:4], "big") == CONTROL_ABORT for key in keys)


def unfold(data: memoryview, position: int, header: BatchHeader, limit_bytes: int) -> bytes | memoryview:
    """The records of the batch at a position, decompressed."""
    number = header.attributes & CODEC_MASK
    if number > Codec.ZSTD:
        why = f"the batch at offset {header.base_offset} has the unknown codec {number}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why)
    folded = data[position + HEADER_BYTES : position + header.size]
    try:
        body = decompress(Codec(number), folded, limit_bytes)
    except KafkaError as error:
        raise corrupt(header.base_offset, error.detail) from None
    check_count(header, len(body))
    return body


def check_count(header: BatchHeader, body_bytes: int) -> None:
    """Nothing is allocated for more records than can be there."""
    if not 0 <= header.record_count <= body_bytes // RECORD_BYTES_MIN:
        raise corrupt(header.base_offset, f"{header.record_count} records in {body_bytes} bytes")

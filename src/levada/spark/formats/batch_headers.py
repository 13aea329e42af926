"""The headers of the batches in a Fetch response: CRCs checked, control batches and aborted transactions removed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from crc32c import crc32c

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.spark.kernels import walk
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_BIT,
    decode,
)
from levada.wire.compression import decompress, decompress_into

CONTROL_ABORT = 0


def corrupt_batch(offset: int, why: str) -> KafkaError:
    """The error for corrupt data, with the first offset that cannot be read."""
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset}: {why}")


def wrong_magic(offset: int, magic: int) -> KafkaError:
    """The error for batches of another format version."""
    why = f"the batch at offset {offset} has magic {magic}, only {MAGIC} can be read"
    return KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, why)


class BatchHeaders:
    """The batches of `data` that overlap [start, end) and have rows for the reader, one per line of `table`."""

    __slots__ = ("next_offset", "table")

    def __init__(self, data: memoryview, start: int, end: int, aborted: Sequence[tuple[int, int]]) -> None:
        room = np.empty((len(data) // HEADER_BYTES, walk.HEADER_FIELDS), np.int64)
        state = np.zeros(walk.STATE_FIELDS, np.int64)
        outcome = walk.walk_headers(np.frombuffer(data, np.uint8), start, end, room, state)
        table = room[: state[walk.FOUND]]
        _check_crcs(data, table)
        if outcome < 0:
            raise _failure(data, outcome, *state[[walk.BAD_AT, walk.BAD_OFFSET]].tolist())
        self.table = table[_have_rows(data, table, aborted)]
        last_seen = int(state[walk.LAST_SEEN])
        # After the last batch that was visited, whether or not it has rows.
        self.next_offset = end if outcome == walk.PAST_END else max(min(last_seen + 1, end), start)


def _failure(data: memoryview, outcome: int, position: int, offset: int) -> KafkaError:
    if outcome == walk.MAGIC_WRONG:
        return wrong_magic(offset, int.from_bytes(data[position + 16 : position + 17], "big", signed=True))
    if outcome == walk.TOO_SHORT:
        length = int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        return corrupt_batch(offset, f"a length of {length}")
    return corrupt_batch(offset, "offsets go backwards")


def _check_crcs(data: memoryview, table: Any) -> None:
    columns = (
        table[:, walk.AT] + ATTRIBUTES_OFFSET,
        table[:, walk.AT] + table[:, walk.SIZE],
        table[:, walk.CRC],
    )
    for row, (start, end, crc) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if crc32c(data[start:end]) != crc:
            raise corrupt_batch(int(table[row, walk.OFFSET]), "a wrong CRC")


def _have_rows(data: memoryview, table: Any, aborted: Sequence[tuple[int, int]]) -> Any:
    """Whether each batch has rows for the reader: control batches and aborted ones have none."""
    attributes = table[:, walk.ATTRIBUTES]
    wanted = attributes & CONTROL_BIT == 0
    if not aborted:
        return wanted
    pending = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    aborted_now: set[int] = set()  # producers whose current transaction is aborted later
    for row in np.flatnonzero(attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)).tolist():
        last_offset, producer = int(table[row, walk.LAST_OFFSET]), int(table[row, walk.PRODUCER])
        while pending and pending[-1][1] <= last_offset:
            aborted_now.add(pending.pop()[0])
        if producer not in aborted_now:
            continue
        if wanted[row]:
            wanted[row] = False
        elif is_abort(data[table[row, walk.AT] :], int(table[row, walk.OFFSET])):
            aborted_now.remove(producer)
    return wanted


def is_abort(marker: memoryview, offset: int) -> bool:
    """Whether a control batch is an ABORT marker: its key holds a version and a type."""
    try:
        keys = [record.key for record in decode(marker)]
    except KafkaError as error:
        raise corrupt_batch(offset, error.detail) from None
    return any(key is not None and int.from_bytes(key[2:4], "big") == CONTROL_ABORT for key in keys)


def decompress_records_into(data: memoryview, header: list[int], target: memoryview) -> int | None:
    """Decompress the records of a batch into `target`: their size, None where only `decompress_records` can."""
    number, at = header[walk.ATTRIBUTES] & CODEC_MASK, header[walk.AT]
    if number > Codec.ZSTD:
        return None
    return decompress_into(Codec(number), data[at + HEADER_BYTES : at + header[walk.SIZE]], target)


def decompress_records(data: memoryview, header: list[int], limit_bytes: int) -> bytes | memoryview:
    """The records of a batch, decompressed."""
    offset, number = header[walk.OFFSET], header[walk.ATTRIBUTES] & CODEC_MASK
    if number > Codec.ZSTD:
        why = f"the batch at offset {offset} has the unknown codec {number}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why)
    at = header[walk.AT]
    try:
        return decompress(Codec(number), data[at + HEADER_BYTES : at + header[walk.SIZE]], limit_bytes)
    except KafkaError as error:
        raise corrupt_batch(offset, error.detail) from None


def check_counts(offsets: Any, counts: Any, sizes: Any) -> None:
    """Check record counts against the bytes before anything is allocated for them."""
    wrong = (counts < 0) | (counts > sizes // RECORD_BYTES_MIN)
    if wrong.any():
        row = int(wrong.argmax())
        raise corrupt_batch(int(offsets[row]), f"{counts[row]} records in {sizes[row]} bytes")

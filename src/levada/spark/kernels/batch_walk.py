"""Which batches of a Fetch answer have rows: their headers in a table, checked against CRCs and transactions."""

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


def corrupt(offset: int, why: str) -> KafkaError:
    """What is raised for broken data: it names the first offset that cannot be read."""
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset}: {why}")


def wrong_magic(offset: int, magic: int) -> KafkaError:
    """What is raised for batches of another format."""
    why = f"the batch at offset {offset} is of magic {magic}, only {MAGIC} is read"
    return KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, why)


class Headers:
    """The batches of `data` that reach into [start, end) and have rows, one in each line of `table`."""

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
        # After the last batch that was looked at, whether or not it has rows.
        self.next_offset = end if outcome == walk.PAST_END else max(min(last_seen + 1, end), start)


def _failure(data: memoryview, outcome: int, position: int, offset: int) -> KafkaError:
    if outcome == walk.MAGIC_WRONG:
        return wrong_magic(offset, int.from_bytes(data[position + 16 : position + 17], "big", signed=True))
    if outcome == walk.TOO_SHORT:
        length = int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        return corrupt(offset, f"a length of {length}")
    return corrupt(offset, "offsets go backwards")


def _check_crcs(data: memoryview, table: Any) -> None:
    columns = (
        table[:, walk.AT] + ATTRIBUTES_OFFSET,
        table[:, walk.AT] + table[:, walk.SIZE],
        table[:, walk.CRC],
    )
    for row, (start, end, crc) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if crc32c(data[start:end]) != crc:
            raise corrupt(int(table[row, walk.OFFSET]), "a wrong CRC")


def _have_rows(data: memoryview, table: Any, aborted: Sequence[tuple[int, int]]) -> Any:
    """For each batch whether it has rows for the reader: markers and what was aborted have none."""
    attributes = table[:, walk.ATTRIBUTES]
    wanted = attributes & CONTROL_BIT == 0
    if not aborted:
        return wanted
    pending = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    open_now: set[int] = set()  # producers whose transaction at this place will be aborted
    for row in np.flatnonzero(attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)).tolist():
        last_offset, producer = int(table[row, walk.LAST_OFFSET]), int(table[row, walk.PRODUCER])
        while pending and pending[-1][1] <= last_offset:
            open_now.add(pending.pop()[0])
        if producer not in open_now:
            continue
        if wanted[row]:
            wanted[row] = False
        elif is_abort(data[table[row, walk.AT] :], int(table[row, walk.OFFSET])):
            open_now.remove(producer)
    return wanted


def is_abort(marker: memoryview, offset: int) -> bool:
    """Whether a marker ends a transaction by abort: its key holds a version and a type."""
    try:
        keys = [record.key for record in decode(marker)]
    except KafkaError as error:
        raise corrupt(offset, error.detail) from None
    return any(key is not None and int.from_bytes(key[2:4], "big") == CONTROL_ABORT for key in keys)


def unfold_into(data: memoryview, header: list[int], place: memoryview) -> int | None:
    """Decompress the records of a batch to a place; how many bytes they are, None where `unfold` must be asked."""
    number, at = header[walk.ATTRIBUTES] & CODEC_MASK, header[walk.AT]
    if number > Codec.ZSTD:
        return None
    return decompress_into(Codec(number), data[at + HEADER_BYTES : at + header[walk.SIZE]], place)


def unfold(data: memoryview, header: list[int], limit_bytes: int) -> bytes | memoryview:
    """The records of a batch, decompressed."""
    offset, number = header[walk.OFFSET], header[walk.ATTRIBUTES] & CODEC_MASK
    if number > Codec.ZSTD:
        why = f"the batch at offset {offset} has the unknown codec {number}"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why)
    at = header[walk.AT]
    try:
        return decompress(Codec(number), data[at + HEADER_BYTES : at + header[walk.SIZE]], limit_bytes)
    except KafkaError as error:
        raise corrupt(offset, error.detail) from None


def check_counts(offsets: Any, counts: Any, sizes: Any) -> None:
    """Nothing is allocated for more records than can be there."""
    wrong = (counts < 0) | (counts > sizes // RECORD_BYTES_MIN)
    if wrong.any():
        row = int(wrong.argmax())
        raise corrupt(int(offsets[row]), f"{counts[row]} records in {sizes[row]} bytes")

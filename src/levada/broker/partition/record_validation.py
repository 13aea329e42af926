"""Checks the single records of a batch, where the rules of a topic demand it.

Small batches are checked on the event loop, large ones in a thread (`levada.api.data.large_batches`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import CODEC_AT, CODEC_MASK, Record, TooManyHeadersError, iterate
from levada.wire.compression import DecompressedTooLargeError

LOOP_BYTES_MAX: Final = 16 * 1024  # batches whose records have more are checked and recompressed in a thread
LOOP_RECORDS_MAX: Final = 200  # of an uncompressed batch of any size
LOOP_HEADERS_MAX: Final = 1_000  # of the records of any batch
RECORD_ERRORS_MAX = 1_000  # listed in a response: a small batch may decompress to millions of invalid records


class LargeBatchError(Exception):
    """Checking the records of a valid batch, or recompressing it, would block the event loop."""


class InvalidRecordsError(KafkaError):
    """A batch with invalid records: (index in the batch, message) of the first ones, as Produce responses list them."""

    def __init__(self, code: ErrorCode, detail: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors


def iterate_on_loop(batch: memoryview, count: int) -> Iterator[Record]:
    """Decode the records of a batch one by one. LargeBatchError if that would block the event loop."""
    if len(batch) > LOOP_BYTES_MAX and (count > LOOP_RECORDS_MAX or batch[CODEC_AT] & CODEC_MASK):
        raise LargeBatchError
    try:
        yield from iterate(batch, LOOP_BYTES_MAX, LOOP_HEADERS_MAX)
    except (DecompressedTooLargeError, TooManyHeadersError):
        raise LargeBatchError from None


def check_keys_and_timestamps(records: Iterable[Record], needs_keys: bool, first_ms: int, last_ms: int) -> None:
    """InvalidRecordsError for records without a key that need one, or with a timestamp outside of [first, last]."""
    keyless: list[tuple[int, str]] = []
    out_of_range: list[tuple[int, str]] = []
    for index, record in enumerate(records):
        if needs_keys and record.key is None:
            keyless.append((index, "a compacted topic needs a key"))
            if len(keyless) == RECORD_ERRORS_MAX:
                break
        elif not first_ms <= record.timestamp <= last_ms and len(out_of_range) < RECORD_ERRORS_MAX:
            out_of_range.append((index, f"timestamp {record.timestamp} is not within [{first_ms}, {last_ms}]"))
    if keyless:
        raise InvalidRecordsError(ErrorCode.INVALID_RECORD, "records without a key", keyless)
    if out_of_range:
        raise InvalidRecordsError(ErrorCode.INVALID_TIMESTAMP, "timestamps too far from now", out_of_range)

"""Filters the records of one batch, for compaction.

Offsets never change: a batch keeps its base offset, last offset, producer id and base sequence, however few of its
records are retained. A retained record is copied as it is, unless the batch gets a delete horizon (KIP-534), which
replaces the base timestamp to which the records' timestamps are relative.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from levada.errors import ErrorCode, KafkaError
from levada.model import NO_TIMESTAMP, Codec, TimestampType
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    DECODED_BYTES_MAX,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    RECORD_BYTES_MIN,
    BatchHeader,
    encode_varint,
    read_header,
    read_varint,
)
from levada.wire.compression import compress, decompress


class RecordSpan(NamedTuple):
    """The position of a record in the decompressed bytes of its batch, and the fields that compaction needs."""

    start: int
    end: int
    body: int  # position of the fields after the timestamp delta
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def locate_records(batch: memoryview, header: BatchHeader) -> tuple[bytes, list[RecordSpan]]:
    """Decompress a batch's records and locate each one; raise CORRUPT_MESSAGE if they are malformed."""
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"codec {header.attributes & CODEC_MASK}")
    data = bytes(decompress(header.codec, batch[HEADER_BYTES:], DECODED_BYTES_MAX))
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{header.record_count} records in {len(data)} bytes")
    try:
        return data, _spans(data, header.record_count)
    except IndexError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"malformed record: {error}") from None


def _spans(data: bytes, count: int) -> list[RecordSpan]:
    spans: list[RecordSpan] = []
    position = 0
    for _ in range(count):
        start = position
        length, position = read_varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise IndexError("the record ends after its batch")
        timestamp_delta, body = read_varint(data, position + 1)
        offset_delta, position = read_varint(data, body)
        key_bytes, position = read_varint(data, position)
        key = None
        if key_bytes >= 0:
            key = data[position : position + key_bytes]
            position += key_bytes
        value_bytes, position = read_varint(data, position)
        if position + value_bytes > end:
            raise IndexError("a field ends after its record")
        spans.append(RecordSpan(start, end, body, timestamp_delta, offset_delta, key, value_bytes >= 0))
        position = end
    return spans


def retain_records(
    header: BatchHeader, data: bytes, kept: Sequence[RecordSpan], new_horizon_ms: int | None
) -> bytearray:
    """Build the batch with the `kept` records only, compressed as before.

    `new_horizon_ms` becomes its delete horizon; None leaves the batch's own.
    """
    base_timestamp = header.base_timestamp
    attributes = header.attributes
    if new_horizon_ms is None:
        body = b"".join([data[span.start : span.end] for span in kept])
    else:
        base_timestamp, attributes = new_horizon_ms, attributes | DELETE_HORIZON_BIT
        body = _shift_timestamps(data, kept, header.base_timestamp - new_horizon_ms)
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = header.base_timestamp + max([span.timestamp_delta for span in kept])
    return _with_length_and_crc(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        compress(header.codec, body),
    )


def _shift_timestamps(data: bytes, kept: Sequence[RecordSpan], shift: int) -> bytes:
    """Copy the records with timestamps relative to another base timestamp."""
    body = bytearray()
    for span in kept:
        record = bytearray(1)  # record attributes, unused
        record += encode_varint(span.timestamp_delta + shift)
        record += data[span.body : span.end]
        body += encode_varint(len(record))
        body += record
    return bytes(body)


def empty_batch(header: BatchHeader) -> bytearray:
    """Build the batch without records, which keeps its offsets and its producer's sequence numbers."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return _with_length_and_crc(
        header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""
    )


def placeholder_batch(before: BatchHeader | None, offsets: range, timestamp: int) -> tuple[bytearray, BatchHeader]:
    """Build a batch without records that spans lost offsets, so that consumers skip them; return it and its header.

    It has the leader epoch and the timestamp of the batch `before` it, or else the timestamp given.
    """
    header = BatchHeader(
        base_offset=offsets.start,
        batch_length=0,
        partition_leader_epoch=0 if before is None else before.partition_leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=len(offsets) - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=timestamp if before is None else before.max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    batch = _with_length_and_crc(header, b"")
    return batch, read_header(batch)


def _with_length_and_crc(header: BatchHeader, records: bytes) -> bytearray:
    """Build a batch from its header and records; set its length and CRC."""
    batch = bytearray(HEADER_BYTES) + records
    header = header._replace(batch_length=len(batch) - LOG_OVERHEAD)
    HEADER.pack_into(batch, 0, *header)
    crc = crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:])
    HEADER.pack_into(batch, 0, *header._replace(crc=crc))
    return batch

"""What compaction does to one batch: its records are found, and those that stay are put together again.

Offsets never change: base offset, last offset, producer and sequence of a batch stay what they were, however few
of its records are left. A record that stays is copied as it is, unless the batch gets a delete horizon (KIP-534):
that takes the place of the base timestamp, to which the records' timestamps are relative.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from levada.errors import ErrorCode, KafkaError
from levada.model import NO_TIMESTAMP, Codec, TimestampType
from levada.wire.batches import (
    CODEC_MASK,
    CRC_START,
    DECODED_BYTES_MAX,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    RECORD_BYTES_MIN,
    BatchHeader,
    put_varint,
    varint,
)
from levada.wire.compression import compress, decompress


class Span(NamedTuple):
    """A record in the unfolded bytes of its batch, from `start` to `end`."""

    start: int
    end: int
    body: int  # where the fields after its timestamp begin
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def unfold(batch: memoryview, header: BatchHeader) -> tuple[bytes, list[Span]]:
    """The bytes of a batch's records and where each is; CORRUPT_MESSAGE where they are not what they say."""
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"codec {header.attributes & CODEC_MASK}")
    data = bytes(decompress(header.codec, batch[HEADER_BYTES:], DECODED_BYTES_MAX))
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{header.record_count} records in {len(data)} bytes")
    try:
        return data, _spans(data, header.record_count)
    except IndexError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record is broken: {error}") from None


def _spans(data: bytes, count: int) -> list[Span]:
    spans: list[Span] = []
    position = 0
    for _ in range(count):
        start = position
        length, position = varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise IndexError("it ends beyond its batch")
        timestamp_delta, body = varint(data, position + 1)
        offset_delta, position = varint(data, body)
        key_bytes, position = varint(data, position)
        key = None
        if key_bytes >= 0:
            key = data[position : position + key_bytes]
            position += key_bytes
        value_bytes, position = varint(data, position)
        if position + value_bytes > end:
            raise IndexError("it is longer than it says")
        spans.append(Span(start, end, body, timestamp_delta, offset_delta, key, value_bytes >= 0))
        position = end
    return spans


def rebuild(header: BatchHeader, data: bytes, kept: Sequence[Span], new_horizon_ms: int | None) -> bytearray:
    """The batch with the `kept` of its records, compressed as it was; `new_horizon_ms` where it had none."""
    base_timestamp = header.base_timestamp
    attributes = header.attributes
    if new_horizon_ms is None:
        body = b"".join([data[span.start : span.end] for span in kept])
    else:
        base_timestamp, attributes = new_horizon_ms, attributes | DELETE_HORIZON_BIT
        body = _shifted(data, kept, header.base_timestamp - new_horizon_ms)
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = header.base_timestamp + max([span.timestamp_delta for span in kept])
    return _sealed(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        compress(header.codec, body),
    )


def _shifted(data: bytes, kept: Sequence[Span], shift: int) -> bytes:
    """The records with their timestamps relative to another base."""
    body = bytearray()
    for span in kept:
        record = bytearray(1)  # attributes, unused
        put_varint(record, span.timestamp_delta + shift)
        record += data[span.body : span.end]
        put_varint(body, len(record))
        body += record
    return bytes(body)


def emptied(header: BatchHeader) -> bytearray:
    """The batch without records: its offsets and its producer's sequence numbers are still known."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return _sealed(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _sealed(header: BatchHeader, records: bytes) -> bytearray:
    """A batch of this header, with the length and CRC of its bytes."""
    batch = bytearray(HEADER_BYTES) + records
    header = header._replace(batch_length=len(batch) - LOG_OVERHEAD)
    HEADER.pack_into(batch, 0, *header)
    crc = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *header._replace(crc=crc))
    return batch

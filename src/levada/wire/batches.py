"""Encodes and decodes record batches of magic 2: the unit that producers send, the log stores and consumers fetch.

The CRC covers the batch from its attributes on. So the broker sets the base offset and the partition leader epoch in
place and the producer's CRC stays valid.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, cast

from crc32c import crc32c

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec, TimestampType
from levada.wire.compression import compress, decompress

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD = 12  # base offset and batch length, which the batch length does not count
MAGIC = 2
ATTRIBUTES_OFFSET = 21  # the first byte that the CRC covers
CODEC_AT = 22  # the byte of the attributes that names the codec
OFFSET_LENGTH_EPOCH = Struct(">qii")  # base offset, batch length, leader epoch: set by the broker
DECODED_BYTES_MAX = 256 * 1024 * 1024
RECORD_BYTES_MIN = 7

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40  # the base timestamp is the delete horizon of tombstones and markers (KIP-534)

_UP_TO_CRC, _AFTER_CRC = (
    Struct(">qiibI"),
    Struct(">hiqqqhii"),
)  # the header, before and inside the CRC's range
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_CRC_OFFSET = 17
_MAX_TIMESTAMP_OFFSET = 35


class TooManyHeadersError(KafkaError):
    """The records of a batch have more headers than allowed."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, "the records have too many headers")


class BatchHeader(NamedTuple):
    """The fixed-size header of a batch, with Kafka's field names."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & TIMESTAMP_TYPE_BIT))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may remove the batch's tombstones or marker; None before its first cleaning."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


class Record(NamedTuple):
    """One record with its absolute offset and timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> BatchHeader:
    """Read the header at `offset`; the caller ensures that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, offset))


def crc_is_valid(batch: memoryview) -> bool:
    """Whether the CRC of one whole batch matches its bytes."""
    (crc,) = _CRC.unpack_from(batch, _CRC_OFFSET)
    return bool(crc32c(batch[ATTRIBUTES_OFFSET:]) == crc)


def iterate_headers(data: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch in `data`; stop before an incomplete or malformed one."""
    position, end = 0, len(data)
    while end - position >= HEADER_BYTES:
        header = read_header(data, position)
        if header.batch_length < HEADER_BYTES - LOG_OVERHEAD or header.size > end - position:
            return
        yield position, header
        position += header.size


def set_log_append_time(batch: memoryview, now_ms: int) -> None:
    """Set the batch's timestamp type to LogAppendTime and its max timestamp to `now_ms`, and compute its CRC again."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_OFFSET)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_OFFSET, attributes | TIMESTAMP_TYPE_BIT)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_OFFSET, now_ms)
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(batch[ATTRIBUTES_OFFSET:]))


def recompress(batch: memoryview, codec: Codec, level: int | None, limit_bytes: int = DECODED_BYTES_MAX) -> bytearray:
    """Return a valid batch with another codec; records and all other fields of the header stay. CORRUPT_MESSAGE."""
    header = read_header(batch)
    records = decompress(header.codec, batch[HEADER_BYTES:], limit_bytes)
    target = bytearray(batch[:HEADER_BYTES])
    target += compress(codec, records, level)
    OFFSET_LENGTH_EPOCH.pack_into(
        target, 0, header.base_offset, len(target) - LOG_OVERHEAD, header.partition_leader_epoch
    )
    _ATTRIBUTES.pack_into(target, ATTRIBUTES_OFFSET, header.attributes & ~CODEC_MASK | codec)
    _CRC.pack_into(target, _CRC_OFFSET, crc32c(memoryview(target)[ATTRIBUTES_OFFSET:]))
    return target


def decode(batch: memoryview, limit_bytes: int = DECODED_BYTES_MAX) -> list[Record]:
    """Decode the records of one whole batch; raise CORRUPT_MESSAGE if they are malformed."""
    return list(iterate(batch, limit_bytes))


def iterate(
    batch: memoryview,
    limit_bytes: int = DECODED_BYTES_MAX,
    headers_max: int = DECODED_BYTES_MAX,
    copied_bytes_max: int = DECODED_BYTES_MAX,
) -> Iterator[Record]:
    """Decode the records of one whole batch one by one; raise CORRUPT_MESSAGE at the first that is malformed.

    DecompressedTooLargeError beyond `limit_bytes`, TooManyHeadersError beyond `headers_max` of all records. Beyond
    `copied_bytes_max` keys and values are memoryviews: a copy holds the GIL.
    """
    header = read_header(batch)
    if header.magic != MAGIC:
        raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"record batch of magic {header.magic}")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.attributes & CODEC_MASK}")
    data = decompress(header.codec, batch[HEADER_BYTES : header.size], limit_bytes)
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{header.record_count} records in {len(data)} bytes")
    append_time = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    plain = bytes(data) if len(data) <= copied_bytes_max else cast(bytes, data)
    try:
        yield from _decode_records(plain, header, append_time, headers_max)
    except (IndexError, UnicodeDecodeError, StructError) as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"malformed record: {error}") from None


def _decode_records(data: bytes, header: BatchHeader, append_time: int | None, headers_max: int) -> Iterator[Record]:
    position = 0
    for _ in range(header.record_count):
        length, position = read_varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise IndexError("the record ends after its batch")
        timestamp_delta, position = read_varint(data, position + 1)
        offset_delta, position = read_varint(data, position)
        key, position = _read_blob(data, position, end)
        value, position = _read_blob(data, position, end)
        count, position = read_varint(data, position)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if count:
            headers_max -= count
            if headers_max < 0:
                raise TooManyHeadersError
            headers, position = _decode_headers(data, position, end, count)
        if position != end:
            raise IndexError("the record's length does not match its fields")
        timestamp = append_time if append_time is not None else header.base_timestamp + timestamp_delta
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)
    if position != len(data):
        raise IndexError("bytes after the last record")


def _decode_headers(
    data: bytes, position: int, end: int, count: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if not 0 <= count <= (end - position) // 2:
        raise IndexError("more headers than bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_blob(data, position, end)
        value, position = _read_blob(data, position, end)
        if key is None:
            raise IndexError("a header key is null")
        headers.append((str(key, "utf-8"), value))
    return tuple(headers), position


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint; return it and the position after it."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 1 << 64:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if byte < 0x80 or shift > 63:
            raise IndexError("a varint of more than 64 bits")


def _read_blob(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise IndexError("a field ends after its record")
    return data[position : position + length], position + length


def encode(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """Encode one batch of `records`; their offsets count from `base_offset` in the order given."""
    body = bytearray()
    base_timestamp = max_timestamp = -1
    count = 0
    for count, record in enumerate(records, start=1):
        if count == 1:
            base_timestamp = max_timestamp = record.timestamp
        elif record.timestamp > max_timestamp:
            max_timestamp = record.timestamp
        body += _encode_record(record, record.timestamp - base_timestamp, count - 1)
    data = compress(codec, body) if codec else body
    times = (base_timestamp, max_timestamp)
    producer = (producer_id, producer_epoch, base_sequence)
    return _batch(data, count, *times, *producer, attributes | codec, base_offset, leader_epoch)


def encode_key_values(
    pairs: Iterable[tuple[bytes, bytes | None]],
    timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    attributes: int = 0,
) -> bytearray:
    """Encode one batch of keys and values with one timestamp and no headers, as coordinators append them."""
    parts: list[bytes] = []
    count = 0
    for key, value in pairs:
        end = b"\x01\0" if value is None else _VARINTS[len(value)] + value + b"\0"
        # Attributes and timestamp delta are 0.
        record = b"".join((b"\0\0", _VARINTS[count], _VARINTS[len(key)], key, end))
        parts.append(_VARINTS[len(record)] + record)
        count += 1
    return _batch(b"".join(parts), count, timestamp, timestamp, producer_id, producer_epoch, -1, attributes)


def _batch(
    data: bytes | bytearray,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    attributes: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Build a batch from its encoded records `data`."""
    last_offset_delta = count - 1 if count else 0
    header_end = _AFTER_CRC.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    checked = header_end + data
    length = _UP_TO_CRC.size + len(checked) - LOG_OVERHEAD
    batch = bytearray(_UP_TO_CRC.pack(base_offset, length, leader_epoch, MAGIC, crc32c(checked)))
    batch += checked  # in place: concatenating first would copy large batches once more
    return batch


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    parts = [
        b"\0",
        encode_varint(timestamp_delta),
        encode_varint(offset_delta),
    ]  # record attributes are unused
    _add_blob(parts, record.key)
    _add_blob(parts, record.value)
    parts.append(encode_varint(len(record.headers)))
    for name, value in record.headers:
        _add_blob(parts, name.encode())
        _add_blob(parts, value)
    inner = b"".join(parts)
    return encode_varint(len(inner)) + inner


def _add_blob(parts: list[bytes], blob: bytes | None) -> None:
    if blob is None:
        parts.append(b"\x01")  # the varint of -1
    else:
        parts += (encode_varint(len(blob)), blob)


def encode_varint(number: int) -> bytes:
    """Encode a zigzag varint."""
    return _VARINTS[number]


class _Varints(dict[int, bytes]):
    """Encoded varints: small ones are precomputed, others are encoded at each lookup and not kept."""

    def __missing__(self, number: int) -> bytes:
        target = bytearray()
        value = (number << 1) ^ (number >> 63)
        while value > 0x7F:
            target.append((value & 0x7F) | 0x80)
            value >>= 7
        target.append(value)
        return bytes(target)


_VARINTS = _Varints()
_VARINTS.update({number: _VARINTS[number] for number in range(1 << 9)})

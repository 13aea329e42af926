"""Compresses and decompresses record batches with Kafka's four codecs.

The broker stores and sends compressed records as received, unless their topic has another codec; the client, the tools
and record validation use these functions as well. A small malicious batch can decompress to gigabytes, so every
function checks `limit_bytes` before it allocates.
"""

import struct
import zlib
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import cramjam

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec

_GZIP_WBITS = 31  # a gzip header and the largest window
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_BYTES = 32 * 1024
# An LZ4 frame of independent 64 KiB blocks without checksums: Kafka's Java client reads no other.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_UNCOMPRESSED_BIT = 0x8000_0000
_LZ4_BLOCK_SIZE = struct.Struct("<I")
_LZ4_CONTENT_SIZE_BIT = 0x08  # of the flags in a frame's header: 8 more bytes follow
_LZ4_LEVEL_MAX = 12  # Kafka's levels end at 17, as those of lz4-java, which compress the same
_ZSTD_LEVEL_MAX = 19  # 20 to 22 compress a usual batch the same; a large one takes 200 to 700 MB
_FIRST_BUFFER_BYTES = 64 * 1024
_LARGE_BUFFER_BYTES = 4 << 20  # buffers from here on get their memory while the GIL is released
_GZIP_STEP_BYTES = 1 << 20  # decompressed, and then copied with the GIL
# Kafka's defaults. LZ4's 9 is the fast mode; every other level is one of the high-compression mode.
DEFAULT_LEVELS = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}


class DecompressedTooLargeError(KafkaError):
    """The records of a batch decompress to more bytes than allowed."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"records decompress to more than {limit_bytes} bytes")


def compress(codec: Codec, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """Compress the records of a batch, at Kafka's default level unless another one is given."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(level, wbits=_GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=min(level, _ZSTD_LEVEL_MAX)))


def decompress(codec: Codec, data: memoryview, limit_bytes: int) -> bytes | memoryview:
    """Decompress the records of a batch; raise CORRUPT_MESSAGE if they are malformed or exceed `limit_bytes`."""
    try:
        match codec:
            case Codec.NONE:
                return data
            case Codec.GZIP:
                return _decompress_gzip(data, limit_bytes)
            case Codec.SNAPPY:
                return _decompress_snappy(data, limit_bytes)
            case Codec.LZ4:
                return _decompress_growing(cramjam.lz4.decompress_into, data, limit_bytes)
            case Codec.ZSTD:
                return _decompress_growing(cramjam.zstd.decompress_into, data, limit_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error, EOFError) as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"records cannot be decompressed: {error}") from None


def decompress_into(codec: Codec, data: memoryview, target: memoryview) -> int | None:
    """Decompress the records of a batch into `target` and return their size.

    Return None if this needs a copy, `target` is too small, or the records are malformed: use `decompress` then.
    """
    try:
        match codec:
            case Codec.LZ4:
                return _decompress_kafka_lz4(data, target)
            case Codec.ZSTD:
                return cramjam.zstd.decompress_into(data, target)
    except (cramjam.DecompressionError, struct.error):
        pass
    return None


def _compress_snappy(data: bytes | bytearray | memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_CHUNK_BYTES]))
        parts.append(len(chunk).to_bytes(4, "big"))
        parts.append(chunk)
    return b"".join(parts)


def _compress_lz4(data: bytes | bytearray | memoryview, level: int) -> bytes:
    parts = [_LZ4_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        if level != DEFAULT_LEVELS[Codec.LZ4]:
            parts.append(_compress_lz4_block(block, level))
            continue
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts.append(len(packed).to_bytes(4, "little"))
            parts.append(packed)
        else:
            parts.append((len(block) | _LZ4_UNCOMPRESSED_BIT).to_bytes(4, "little"))
            parts.append(bytes(block))
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _compress_lz4_block(block: memoryview, level: int) -> bytes:
    """Compress a block, with its size, in the high-compression mode, which cramjam has for whole frames only."""
    frame = bytes(cramjam.lz4.compress(block, level=min(level, _LZ4_LEVEL_MAX)))
    start = len(_LZ4_HEADER) + (8 if frame[4] & _LZ4_CONTENT_SIZE_BIT else 0)
    (size,) = _LZ4_BLOCK_SIZE.unpack_from(frame, start)
    return frame[start : start + _LZ4_BLOCK_SIZE.size + (size & ~_LZ4_UNCOMPRESSED_BIT)]


def _decompress_gzip(data: memoryview, limit_bytes: int) -> bytes | memoryview:
    unpacker = zlib.decompressobj(wbits=_GZIP_WBITS)
    first_bytes = min(limit_bytes, _LARGE_BUFFER_BYTES) + 1
    records = unpacker.decompress(data, first_bytes)
    if len(records) == first_bytes:
        return _decompress_gzip_in_steps(unpacker, records, limit_bytes)
    if not unpacker.eof:
        raise EOFError("the gzip stream ends early")
    return records


def _decompress_gzip_in_steps(unpacker: "zlib._Decompress", first: bytes, limit_bytes: int) -> memoryview:
    if len(first) > limit_bytes:
        raise DecompressedTooLargeError(limit_bytes)
    target, filled = _buffer(limit_bytes), 0
    while True:
        target[filled : filled + len(first)] = first
        filled += len(first)
        if unpacker.eof:
            return target[:filled]
        first = unpacker.decompress(unpacker.unconsumed_tail, min(_GZIP_STEP_BYTES, limit_bytes - filled + 1))
        if filled + len(first) > limit_bytes:
            raise DecompressedTooLargeError(limit_bytes)
        if not (first or unpacker.eof):
            raise EOFError("the gzip stream ends early")


def _decompress_snappy(data: memoryview, limit_bytes: int) -> bytes:
    """Decompress snappy: Java clients write xerial chunks, librdkafka raw snappy."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _decompress_raw_snappy(data, limit_bytes)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        (chunk_bytes,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < chunk_bytes <= len(data) - position:
            raise EOFError("a snappy chunk ends early")
        chunk = _decompress_raw_snappy(data[position : position + chunk_bytes], limit_bytes)
        limit_bytes -= len(chunk)
        parts.append(chunk)
        position += chunk_bytes
    return b"".join(parts)


def _decompress_raw_snappy(data: memoryview, limit_bytes: int) -> bytes:
    if not data:
        return b""
    if cramjam.snappy.decompress_raw_len(data) > limit_bytes:
        raise DecompressedTooLargeError(limit_bytes)
    return bytes(cramjam.snappy.decompress_raw(data))


def _decompress_kafka_lz4(data: memoryview, target: memoryview) -> int | None:
    """Decompress an LZ4 frame as `_compress_lz4`, Kafka's Java client and librdkafka write it; None for others."""
    if data[: len(_LZ4_HEADER)] != _LZ4_HEADER:
        return None
    position, filled = len(_LZ4_HEADER), 0
    while True:
        (size,) = _LZ4_BLOCK_SIZE.unpack_from(data, position)
        position += _LZ4_BLOCK_SIZE.size
        if not size:
            return filled if position == len(data) else None
        block = data[position : position + (size & ~_LZ4_UNCOMPRESSED_BIT)]
        position += len(block)
        room = target[filled : filled + _LZ4_BLOCK_BYTES]
        if not size & _LZ4_UNCOMPRESSED_BIT:
            filled += cramjam.lz4.decompress_block_into(block, room, output_len=len(room))
        elif len(block) <= len(room):
            room[: len(block)] = block
            filled += len(block)
        else:
            return None


def _decompress_growing(
    into: Callable[[memoryview, memoryview], int], data: memoryview, limit_bytes: int
) -> memoryview:
    """Decompress into ever larger buffers, up to the limit: LZ4 and zstd frames need not state their size."""
    room = min(limit_bytes, max(_FIRST_BUFFER_BYTES, 4 * len(data)))
    while True:
        target = _buffer(room)
        try:
            return target[: into(data, target)]
        except cramjam.DecompressionError as error:
            if room < limit_bytes:
                room = min(limit_bytes, room * 8)
            elif "write whole buffer" in str(error):  # of Rust's io::Write: `target` is full
                raise DecompressedTooLargeError(limit_bytes) from None
            else:
                raise
        target.release()  # before the next one is allocated


def _buffer(size: int) -> memoryview:
    """Zeroed memory. A large buffer gets its pages as they are written, so that clearing it does not hold the GIL."""
    if size < _LARGE_BUFFER_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))

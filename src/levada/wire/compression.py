"""The four codecs of record batches, with a bound on what a batch may unfold to.

The broker passes compressed records through untouched (R14); these functions serve the client, the tools and the
few places that must look inside a batch. A hostile batch can claim to be small and unfold to gigabytes, so every
way out of here is bounded by `limit_bytes` before memory is taken.
"""

import struct
import zlib
from collections.abc import Callable

import cramjam

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec

_GZIP_WINDOW = 31  # zlib's name for "a gzip header, the largest window"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_BYTES = 32 * 1024
# An LZ4 frame of independent 64 KiB blocks without checksums, the only kind Kafka's Java client reads.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x8000_0000
_LZ4_SIZE = struct.Struct("<I")
_GUESS_BYTES = 64 * 1024


def compress(codec: Codec, data: bytes | bytearray | memoryview) -> bytes:
    """Fold the records of a batch."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(6, wbits=_GZIP_WINDOW)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3))


def decompress(codec: Codec, data: memoryview, limit_bytes: int) -> bytes | memoryview:
    """Unfold the records of a batch; CORRUPT_MESSAGE if it is broken or grows past `limit_bytes`."""
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
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"records do not decompress: {error}") from None


def decompress_into(codec: Codec, data: memoryview, place: memoryview) -> int | None:
    """Unfold the records of a batch to where they shall be; how many bytes they are.

    None where that cannot be done without a copy, the place is too small, or the batch is broken: ask `decompress`.
    """
    try:
        match codec:
            case Codec.LZ4:
                return _decompress_usual_lz4(data, place)
            case Codec.ZSTD:
                return cramjam.zstd.decompress_into(data, place)
    except (cramjam.DecompressionError, struct.error):
        pass
    return None


def _too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"records decompress to more than {limit_bytes} bytes")


def _compress_snappy(data: bytes | bytearray | memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_CHUNK_BYTES]))
        parts.append(len(chunk).to_bytes(4, "big"))
        parts.append(chunk)
    return b"".join(parts)


def _compress_lz4(data: bytes | bytearray | memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts.append(len(packed).to_bytes(4, "little"))
            parts.append(packed)
        else:
            parts.append((len(block) | _LZ4_STORED).to_bytes(4, "little"))
            parts.append(bytes(block))
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _decompress_gzip(data: memoryview, limit_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
    records = unpacker.decompress(data, limit_bytes + 1)
    if len(records) > limit_bytes:
        raise _too_large(limit_bytes)
    if not unpacker.eof:
        raise EOFError("the gzip stream ends early")
    return records


def _decompress_snappy(data: memoryview, limit_bytes: int) -> bytes:
    """Java frames snappy in chunks (xerial), librdkafka sends it raw: both are valid."""
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
        raise _too_large(limit_bytes)
    return bytes(cramjam.snappy.decompress_raw(data))


def _decompress_usual_lz4(data: memoryview, place: memoryview) -> int | None:
    """Frames as `_compress_lz4` writes them, and Kafka's Java client and librdkafka, too."""
    if data[: len(_LZ4_HEADER)] != _LZ4_HEADER:
        return None
    position, filled = len(_LZ4_HEADER), 0
    while True:
        (size,) = _LZ4_SIZE.unpack_from(data, position)
        position += _LZ4_SIZE.size
        if not size:
            return filled if position == len(data) else None
        block = data[position : position + (size & ~_LZ4_STORED)]
        position += len(block)
        room = place[filled : filled + _LZ4_BLOCK_BYTES]
        if not size & _LZ4_STORED:
            filled += cramjam.lz4.decompress_block_into(block, room, output_len=len(room))
        elif len(block) <= len(room):
            room[: len(block)] = block
            filled += len(block)
        else:
            return None


def _decompress_growing(
    into: Callable[[memoryview, bytearray], int], data: memoryview, limit_bytes: int
) -> memoryview:
    """Frames of LZ4 and zstd need not say their size, so offer more and more room, up to the limit."""
    room = min(limit_bytes, max(_GUESS_BYTES, 4 * len(data)))
    while True:
        target = bytearray(room)
        try:
            return memoryview(target)[: into(data, target)]
        except cramjam.DecompressionError:
            if room == limit_bytes:
                raise
            room = min(limit_bytes, room * 8)

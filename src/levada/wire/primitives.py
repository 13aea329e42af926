"""Reads and writes primitive types of Kafka's protocol, for the hand-tuned messages.

Readers raise IndexError or struct.error if the bytes end early or an array has too many elements; callers turn that
into INVALID_REQUEST.
"""

from struct import Struct
from typing import Final

SHORT = Struct(">h")
INT = Struct(">i")
INT_PAIR = Struct(">ii")
UVARINT_SHIFT_MAX = 28  # five bytes
# Topics, partitions, groups and so on in one request, which blocks the event loop: a topic of 10,000 partitions fits.
ELEMENTS_MAX: Final = 11_000
TAGGED_FIELDS_MAX: Final = 16  # of one struct; Kafka's have three at most


def read_uvarint(view: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it and the position after it."""
    byte = view[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = view[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > UVARINT_SHIFT_MAX:
            raise IndexError("a varint of more than five bytes")


def skip_tagged_fields(view: memoryview, position: int, stop: int) -> int:
    """Skip tagged fields; return the position after them."""
    count = view[position]
    if count == 0:
        return position + 1
    count, position = read_uvarint(view, position)
    if count > TAGGED_FIELDS_MAX:
        raise IndexError("too many tagged fields")
    for _ in range(count):
        _, position = read_uvarint(view, position)
        length, position = read_uvarint(view, position)
        position += length
        if position > stop:
            raise IndexError("tagged fields end early")
    return position


def read_nullable_string(view: memoryview, position: int, stop: int, flexible: bool) -> tuple[bytes | None, int]:
    """Read a nullable string as bytes; return it and the position after it."""
    if flexible:
        length, position = read_uvarint(view, position)
        length -= 1
    else:
        (length,) = SHORT.unpack_from(view, position)
        position += 2
    if length < 0:
        return None, position
    if length > stop - position:
        raise IndexError("a string ends early")
    return bytes(view[position : position + length]), position + length


def read_array_length(view: memoryview, position: int, stop: int, flexible: bool, taken: int = 0) -> tuple[int, int]:
    """Read the length of an array (0 for null); return it and the position after it.

    The length is at most the number of bytes left, and with the `taken` elements before it at most `ELEMENTS_MAX`.
    """
    if flexible:
        count, position = read_uvarint(view, position)
        count -= 1
    else:
        (count,) = INT.unpack_from(view, position)
        position += 4
    if count > stop - position or count + taken > ELEMENTS_MAX:
        raise IndexError("an array has more elements than its request can hold, or may have")
    return max(count, 0), position


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    data = bytearray()
    while value > 0x7F:
        data.append((value & 0x7F) | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def encode_array_length(count: int, flexible: bool) -> bytes:
    """Encode the length of an array."""
    return encode_uvarint(count + 1) if flexible else INT.pack(count)


def encode_nullable_string(data: bytes | None, flexible: bool) -> bytes:
    """Encode a nullable string."""
    if data is None:
        return b"\0" if flexible else b"\xff\xff"
    return (encode_uvarint(len(data) + 1) if flexible else SHORT.pack(len(data))) + data

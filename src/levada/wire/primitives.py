"""The few types of Kafka's protocol that the hand-written messages read and write themselves.

Readers raise IndexError or struct.error where the bytes end early, or there is more than a request may name; who
calls them turns that into INVALID_REQUEST.
"""

from struct import Struct
from typing import Final

SHORT = Struct(">h")
INT = Struct(">i")
TWO_INTS = Struct(">ii")
UVARINT_SHIFT_MAX = 28  # five bytes
# Topics, partitions, groups and the like that one request may name: all others wait while they are looked at.
ELEMENTS_MAX: Final = 10_000
TAGS_MAX: Final = 16  # in one place; Kafka has three at most


def uvarint(view: memoryview | bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, and the position after it."""
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


def skip_tags(view: memoryview, position: int, stop: int) -> int:
    """Pass over tagged fields; the position after them."""
    count = view[position]
    if count == 0:
        return position + 1
    count, position = uvarint(view, position)
    if count > TAGS_MAX:
        raise IndexError("too many tagged fields")
    for _ in range(count):
        _, position = uvarint(view, position)
        length, position = uvarint(view, position)
        position += length
        if position > stop:
            raise IndexError("tagged fields end early")
    return position


def read_bytes(view: memoryview, position: int, stop: int, flexible: bool) -> tuple[bytes | None, int]:
    """A nullable string as its bytes, and the position after it."""
    if flexible:
        length, position = uvarint(view, position)
        length -= 1
    else:
        (length,) = SHORT.unpack_from(view, position)
        position += 2
    if length < 0:
        return None, position
    if length > stop - position:
        raise IndexError("a string ends early")
    return bytes(view[position : position + length]), position + length


def read_count(view: memoryview, position: int, stop: int, flexible: bool, taken: int = 0) -> tuple[int, int]:
    """The length of an array (null counts as empty), no more than the bytes that remain could hold.

    Nor more than a request may name, where `taken` were named before.
    """
    if flexible:
        count, position = uvarint(view, position)
        count -= 1
    else:
        (count,) = INT.unpack_from(view, position)
        position += 4
    if count > stop - position or count + taken > ELEMENTS_MAX:
        raise IndexError("an array is longer than its request, or than it may be")
    return max(count, 0), position


def uvarint_bytes(value: int) -> bytes:
    """An unsigned varint."""
    data = bytearray()
    while value > 0x7F:
        data.append((value & 0x7F) | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def count_bytes(count: int, flexible: bool) -> bytes:
    """The length of an array."""
    return uvarint_bytes(count + 1) if flexible else INT.pack(count)


def string_bytes(data: bytes | None, flexible: bool) -> bytes:
    """A nullable string."""
    if data is None:
        return b"\0" if flexible else b"\xff\xff"
    return (uvarint_bytes(len(data) + 1) if flexible else SHORT.pack(len(data))) + data

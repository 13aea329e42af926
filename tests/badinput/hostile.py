"""Hostile values for a field: extremes, nulls, wrong lengths, floods of tags, invalid UTF-8."""

import struct
from collections.abc import Iterator

from crc32c import crc32c
from tests.badinput.golden import INTEGERS, Golden, Piece, batch, length, uvarint

NAMES = (
    "",
    ".",
    "..",
    "a/b",
    "../../etc/passwd",
    "nul\0",
    "a" * 250,
    "é",
    "__consumer_offsets",
    " ",
    "a\nb",
    "-1",
)
NO_UTF8 = (b"\xff\xfe\xfd", b"\xc0\x80", b"\xed\xa0\x80", b"a\x80")
UNENDING = b"\xff" * 10  # a varint that never ends

Mutation = tuple[str, bytes]  # what was done, the whole frame


def replacements(piece: Piece) -> Iterator[tuple[str, bytes]]:
    """Everything to put in the place of a piece, each with a name."""
    if piece.kind in INTEGERS:
        yield from _integers(INTEGERS[piece.kind])
    elif piece.kind in ("count", "string", "bytes", "records"):
        yield from _lengths(piece)
        if piece.kind == "string":
            yield from _strings(piece.flexible)
    elif piece.kind == "tags":
        yield from _tags()
    elif piece.kind == "uuid":
        yield from (("zero", bytes(16)), ("ones", b"\xff" * 16), ("one", bytes(15) + b"\x01"))
    elif piece.kind == "float64":
        yield from ((name, struct.pack(">d", float(name))) for name in ("nan", "inf", "-inf"))
    else:
        yield from ((f"byte {value}", bytes([value])) for value in (0, 1, 2, 127, 128, 255))


def _integers(form: str) -> Iterator[tuple[str, bytes]]:
    bits = 8 * struct.calcsize(form)
    signed = form[1].islower()
    values = [-1, 0, 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))] if signed else [0, 1, 2**bits - 1]
    for value in values:
        yield str(value), struct.pack(form, value)


def _lengths(piece: Piece) -> Iterator[tuple[str, bytes]]:
    legacy = ">h" if piece.kind == "string" else ">i"
    content = b"" if piece.kind == "count" else piece.data[len(length(0, piece.flexible, legacy)) :]
    yield "null", length(-1, piece.flexible, legacy)
    yield "empty", length(0, piece.flexible, legacy)
    largest = 2**15 - 1 if legacy == ">h" else 2**31 - 1
    for size in (1, len(content) + 1, 1_000, largest):
        yield f"length {size}", length(size, piece.flexible, legacy) + content
    if piece.flexible:
        yield "length past 32 bits", uvarint(2**32 + 1) + content
        yield "unending length", UNENDING + content
    else:
        yield "length -2", struct.pack(legacy, -2) + content
        yield "smallest length", struct.pack(legacy, -largest - 1) + content


def _strings(flexible: bool) -> Iterator[tuple[str, bytes]]:
    for text in (*(name.encode() for name in NAMES), *NO_UTF8):
        yield repr(text)[:20], length(len(text), flexible, ">h") + text
    if flexible:
        yield "long", length(1 << 20, True) + b"x" * (1 << 20)


def _tags() -> Iterator[tuple[str, bytes]]:
    yield "one unknown tag", b"\x01" + uvarint(99) + b"\x03abc"
    yield "known tags with garbage", b"\x02\x00\x02\xff\xff\x01\x01\xff"
    yield "a tag twice", b"\x02" + 2 * (uvarint(99) + b"\x01x")
    yield "tags going down", b"\x02" + uvarint(9) + b"\x00" + uvarint(8) + b"\x00"
    yield "a tag longer than the request", b"\x01" + uvarint(99) + uvarint(2**31 - 1)
    yield "2^31 tags", uvarint(2**31 - 1)
    yield "unending tags", UNENDING
    yield "flood", uvarint(5_000) + b"".join(uvarint(1_000 + i) + b"\x00" for i in range(5_000))


def mutations(request: Golden) -> Iterator[Mutation]:
    """The request with each field in turn replaced, and cut or prolonged."""
    for number, piece in enumerate(request.body):
        before = b"".join(each.data for each in request.body[:number])
        after = b"".join(each.data for each in request.body[number + 1 :])
        for what, data in replacements(piece):
            if not waits_for_long(piece, what):
                yield f"{piece.field} = {what}", request.frame(before + data + after)
    whole = b"".join(piece.data for piece in request.body)
    for cut in {0, 1, len(whole) // 2, len(whole) - 1} - {len(whole)}:
        yield f"cut after {cut}", request.frame(whole[:cut])
    for extra in (b"\0", b"\xff" * 100):
        yield f"{len(extra)} bytes too many", request.frame(whole + extra)


def waits_for_long(piece: Piece, what: str) -> bool:
    """Whether the mutation only asks for a long poll of 24 days, which is no fault of the client."""
    return piece.field in ("max_wait", "max_wait_ms") and what == str(2**31 - 1)


def broken_batches() -> Iterator[tuple[str, bytes]]:
    """Batches that must not enter a log."""
    good = batch()
    fields = {
        "base_offset": (0, ">q"), "batch_length": (8, ">i"), "magic": (16, ">b"), "crc": (17, ">i"),
        "attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "base_timestamp": (27, ">q"),
        "max_timestamp": (35, ">q"), "producer_id": (43, ">q"), "producer_epoch": (51, ">h"),
        "base_sequence": (53, ">i"), "record_count": (57, ">i"),
    }  # fmt: skip
    for name, (position, form) in fields.items():
        for what, data in _integers(form):
            mutated = bytearray(good)
            mutated[position : position + len(data)] = data
            if mutated != good:
                yield f"{name} = {what}, CRC stale", bytes(mutated)
                if position > 17:
                    yield f"{name} = {what}", signed(mutated)
    for position in range(61, len(good)):
        mutated = bytearray(good)
        mutated[position] ^= 0xFF
        yield f"record byte {position} flipped", bytes(mutated)
        yield f"record byte {position} flipped, CRC right", signed(mutated)
    for cut in range(0, len(good), 7):
        yield f"cut at {cut}", good[:cut]
    yield "two batches", good + good
    yield "garbage after it", good + b"\0" * 30
    yield "zeros", bytes(len(good))


def signed(data: bytearray) -> bytes:
    """The batch with the CRC of its bytes."""
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)

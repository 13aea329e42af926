"""Random pieces of logs for the decoder: compaction gaps, transactions, wrong fields."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from levada.model import Codec
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    CONTROL_BIT,
    HEADER,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Record,
    encode_varint,
)
from levada.wire.compression import compress

ABORT, COMMIT = 0, 1
PRODUCERS = 3
NEWEST_MS = 1_800_000_000_000
MANY_BYTES = bytes(9 * [0xFF])
# Numbers that a record may claim: null, off by one, beyond the record, the batch, 32 bits, 64 bits; one without end.
LIES = [
    *(encode_varint(number) for number in (-2, -1, 0, 1, 2, 63, 64, 8_191, 2**31 - 1, -(2**31), 2**31, 2**40)),
    *(encode_varint(number) for number in (2**63 - 1, -(2**63))),
    *(MANY_BYTES + b"\x01", MANY_BYTES + b"\x02", MANY_BYTES + b"\x7f", MANY_BYTES + b"\xff\x01", b"\x80"),
]


class Log(NamedTuple):
    """Batches one after another, and what a broker says with them."""

    data: memoryview
    aborted: tuple[tuple[int, int], ...]
    end: int


def fields(record: Record, base_offset: int, base_timestamp: int) -> list[bytes]:
    """The parts of a record as they stand in a batch, without its length."""
    parts = [
        b"\0",
        encode_varint(record.timestamp - base_timestamp),
        encode_varint(record.offset - base_offset),
    ]
    blobs = [record.key, record.value]
    for index, blob in enumerate(blobs):
        parts += [encode_varint(-1 if blob is None else len(blob)), blob or b""]
        if index == 1:
            parts.append(encode_varint(len(record.headers)))
    for name, value in record.headers:
        parts += [encode_varint(len(name.encode())), name.encode()]
        parts += [encode_varint(-1 if value is None else len(value)), value or b""]
    return parts


def with_length(parts: Sequence[bytes]) -> bytes:
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def batch_bytes(
    body: bytes,
    count: int,
    *,
    base_offset: int = 0,
    last_delta: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
) -> bytes:
    """A batch around records, whatever they are, with the right CRC."""
    codec = Codec(attributes & 7)
    body = compress(codec, body)
    size = HEADER.size + len(body) - 12
    producer = (producer_id, 0, 0)
    times = (base_timestamp, max_timestamp)
    data = bytearray(HEADER.pack(base_offset, size, 5, MAGIC, 0, attributes, last_delta, *times, *producer, count))
    data += body
    Struct(">I").pack_into(data, 17, crc32c(data[ATTRIBUTES_OFFSET:]))
    return bytes(data)


def batch(records: Sequence[Record], *, attributes: int = 0, producer_id: int = -1, gap: int = 0) -> bytes:
    """A batch of records at the offsets they have; `gap` offsets after the last were compacted away."""
    base_offset, base_timestamp = records[0].offset, records[0].timestamp
    return batch_bytes(
        b"".join(with_length(fields(record, base_offset, base_timestamp)) for record in records),
        len(records),
        base_offset=base_offset,
        last_delta=records[-1].offset - base_offset + gap,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        attributes=attributes,
        producer_id=producer_id,
    )


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    """The end of a transaction."""
    record = Record(offset, NEWEST_MS, Struct(">hh").pack(0, kind), bytes(6))
    return batch([record], attributes=CONTROL_BIT | TRANSACTIONAL_BIT, producer_id=producer_id)


blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=8), blobs), max_size=3).map(tuple)
contents = st.tuples(st.integers(0, NEWEST_MS), blobs, blobs, headers)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Batches of every codec, some of transactions, with holes between records and between batches."""
    offset = draw(st.integers(0, 2**40))
    data = bytearray()
    first_of: dict[int, int] = {}  # of each producer's open transaction
    aborted: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(st.integers(0, 3))
        producer = draw(st.integers(-1, PRODUCERS - 1))
        if producer in first_of and draw(st.booleans()):
            kind = draw(st.sampled_from([ABORT, COMMIT]))
            if kind == ABORT:
                aborted.append((producer, first_of[producer]))
            del first_of[producer]
            data += marker(offset, producer, kind)
            offset += 1
            continue
        records = []
        for content in draw(st.lists(contents, min_size=1, max_size=8)):
            records.append(Record(offset, *content))
            offset += draw(st.integers(1, 3))
        attributes = draw(st.sampled_from(Codec)) | (TIMESTAMP_TYPE_BIT if draw(st.booleans()) else 0)
        if producer >= 0:
            attributes |= TRANSACTIONAL_BIT
            first_of.setdefault(producer, records[0].offset)
        gap = offset - records[-1].offset - 1
        data += batch(records, attributes=attributes, producer_id=producer, gap=gap)
    for producer, first in first_of.items():  # an answer may end before the marker
        if draw(st.booleans()):
            aborted.append((producer, first))
    return Log(memoryview(bytes(data)), tuple(draw(st.permutations(aborted))), offset)


EXAMPLE = [
    Record(7, 1_000, b"key", b"value", (("a", b"1"), ("b", None))),
    Record(8, 1_001, None, b"v" * 100, (("name", b""),)),
    Record(9, 1_002, b"", None, ()),
]


def lies() -> Iterator[tuple[str, bytes]]:
    """Batches with one number of one record replaced by another, signed as if they were right."""
    for victim, record in enumerate(EXAMPLE):
        parts = fields(record, 7, 1_000)
        numbers = [1, 2, 3, 5, 7, *range(8, len(parts), 2)]
        for place in [-1, *numbers]:
            for lie in LIES:
                for keep_length in (True, False):
                    changed = list(parts)
                    if place >= 0:
                        changed[place] = lie
                        length = encode_varint(len(b"".join(parts if keep_length else changed)))
                    else:
                        length = lie
                    encoded = [with_length(fields(one, 7, 1_000)) for one in EXAMPLE]
                    encoded[victim] = length + b"".join(changed)
                    name = f"record {victim}, number {place}, {lie.hex()}, {keep_length}"
                    yield (
                        name,
                        batch_bytes(b"".join(encoded), 3, base_offset=7, last_delta=2, base_timestamp=1_000),
                    )
    whole = b"".join(with_length(fields(one, 7, 1_000)) for one in EXAMPLE)
    for count in (-1, 0, 1, 2, 4, 5, 50, 2**31 - 1, -(2**31)):
        yield f"{count} records", batch_bytes(whole, count, base_offset=7, last_delta=2)
    for last_delta in (-1, 0, 1, 2**31 - 1, -(2**31)):
        yield f"last delta {last_delta}", batch_bytes(whole, 3, base_offset=7, last_delta=last_delta)
    for cut in range(len(whole)):
        yield f"{cut} bytes of records", batch_bytes(whole[:cut], 3, base_offset=7, last_delta=2)
    for base in (2**63 - 1, -(2**63)):
        yield (
            f"base timestamp {base}",
            batch_bytes(whole, 3, base_offset=7, last_delta=2, base_timestamp=base),
        )

"""Record batches: kio reads what we write, every codec round-trips, damage is a protocol error."""

import gzip
import os
from pathlib import Path
from random import Random

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec, TimestampType
from levada.wire import batches, compression
from levada.wire.batches import HEADER_BYTES, Record, TooManyHeadersError
from levada.wire.compression import DecompressedTooLargeError

blobs = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), blobs), max_size=4).map(tuple)
records = st.lists(st.builds(Record, st.just(0), st.integers(0, 2**40), blobs, blobs, headers), min_size=1, max_size=20)


def placed(given_records: list[Record], base_offset: int) -> list[Record]:
    return [record._replace(offset=base_offset + n) for n, record in enumerate(given_records)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(records, st.sampled_from(Codec), st.integers(0, 2**50))
def test_what_is_written_comes_back(given_records: list[Record], codec: Codec, base_offset: int) -> None:
    """Key, value, headers, timestamps and order survive every codec."""
    batch = memoryview(batches.encode(given_records, base_offset=base_offset, codec=codec))
    header = batches.read_header(batch)
    assert batches.crc_is_valid(batch)
    assert header.size == len(batch)
    assert header.codec is codec
    assert header.last_offset == base_offset + len(given_records) - 1
    assert header.max_timestamp == max(record.timestamp for record in given_records)
    assert batches.decode(batch) == placed(given_records, base_offset)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(records)
def test_kio_reads_what_we_write(given_records: list[Record]) -> None:
    batch, size = read_batch(bytes(batches.encode(given_records, producer_id=7, base_sequence=3)), 0)
    assert size > HEADER_BYTES
    assert (batch.producer_id, batch.base_sequence) == (7, 3)
    assert [(r.offset, r.key, r.value) for r in batch.records] == [
        (n, r.key, r.value) for n, r in enumerate(given_records)
    ]
    assert [[(h.key, h.value) for h in r.headers] for r in batch.records] == [
        [(name.encode(), value) for name, value in r.headers] for r in given_records
    ]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.binary(max_size=300), blobs), min_size=1, max_size=20), st.integers(0, 2**40))
def test_pairs_are_written_as_records_without_headers(pairs: list[tuple[bytes, bytes | None]], timestamp: int) -> None:
    written = batches.encode_key_values(pairs, timestamp, 7, 3, batches.TRANSACTIONAL_BIT)
    assert written == batches.encode(
        [Record(0, timestamp, key, value) for key, value in pairs],
        producer_id=7,
        producer_epoch=3,
        attributes=batches.TRANSACTIONAL_BIT,
    )


def test_append_time_is_signed_anew() -> None:
    batch = memoryview(batches.encode([Record(0, 5, None, b"x"), Record(1, 9, None, b"y")]))
    batches.set_log_append_time(batch, 1_000)
    assert batches.crc_is_valid(batch)
    assert batches.read_header(batch).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in batches.decode(batch)] == [1_000, 1_000]


def test_headers_stop_before_an_incomplete_batch() -> None:
    one = bytes(batches.encode([Record(0, 0, None, b"a")]))
    found = list(batches.iterate_headers(memoryview(one + one[:-1])))
    assert [position for position, _ in found] == [0]


BOMB = bytes(40 << 20)
BOMBS = {
    Codec.GZIP: gzip.compress(BOMB),
    Codec.SNAPPY: bytes(cramjam.snappy.compress_raw(BOMB)),
    Codec.LZ4: bytes(cramjam.lz4.compress(BOMB)),
    Codec.ZSTD: bytes(cramjam.zstd.compress(BOMB)),
}


@pytest.mark.parametrize("limit_bytes", [0, 16 << 10, 1 << 20, (40 << 20) - 1])
@pytest.mark.parametrize("codec", BOMBS)
def test_a_decompression_bomb_is_too_large(codec: Codec, limit_bytes: int) -> None:
    with pytest.raises(DecompressedTooLargeError) as refused:
        compression.decompress(codec, memoryview(BOMBS[codec]), limit_bytes)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert len(compression.decompress(codec, memoryview(BOMBS[codec]), 40 << 20)) == 40 << 20


@pytest.mark.parametrize("codec", BOMBS)
def test_garbage_is_refused(codec: Codec) -> None:
    random = Random(codec)
    for size in (0, 1, 7, 100, 5_000):
        data = memoryview(random.randbytes(size))
        if codec is Codec.SNAPPY and not size:
            continue  # raw snappy of nothing is nothing
        with pytest.raises(KafkaError) as refused:
            compression.decompress(codec, data, 1 << 20)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        assert not isinstance(refused.value, DecompressedTooLargeError) or codec is Codec.SNAPPY  # it states a size


@pytest.mark.parametrize("limit_bytes", [16 << 10, 1 << 20])
@pytest.mark.parametrize("codec", BOMBS)
def test_records_that_end_early_are_not_too_large(codec: Codec, limit_bytes: int) -> None:
    whole = compression.compress(codec, Random(codec).randbytes(10_000))
    for size in (17, 100, 5_000, len(whole) - 1):
        with pytest.raises(KafkaError, match="cannot be decompressed") as refused:
            compression.decompress(codec, memoryview(whole)[:size], limit_bytes)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.sampled_from([Codec.LZ4, Codec.ZSTD]),
    st.binary(max_size=30),
    st.integers(0, 7_000),
    st.sampled_from([-1, 0, 5]),
    st.none() | st.tuples(st.integers(0, 2**20), st.integers(1, 255)),
)
def test_records_unfold_into_their_place_as_elsewhere_or_not_at_all(
    codec: Codec, part: bytes, times: int, spare: int, damage: tuple[int, int] | None
) -> None:
    """In blocks of 64 KiB, some stored as they are; whatever is wrong, nothing is written beside the place."""
    plain = part * times + os.urandom(len(part))
    data = bytearray(compression.compress(codec, plain))
    if damage is not None:
        data[damage[0] % len(data)] ^= damage[1]
    memory = bytearray(b"\xaa" * (len(plain) + 64))
    room = max(len(plain) + spare, 0)
    size = compression.decompress_into(codec, memoryview(data), memoryview(memory)[:room])
    assert memory[room:] == b"\xaa" * (len(memory) - room)
    if size is not None:
        assert memory[:size] == bytes(compression.decompress(codec, memoryview(data), 1 << 20))
    elif damage is None:
        assert room < len(plain)


def test_raw_snappy_of_librdkafka_is_read() -> None:
    data = os.urandom(1_000) * 3
    assert (
        bytes(compression.decompress(Codec.SNAPPY, memoryview(bytes(cramjam.snappy.compress_raw(data))), 1 << 20))
        == data
    )


def test_headers_are_counted_before_they_are_decoded() -> None:
    sent = [Record(number, 0, None, b"", (("name", b"value"),) * 500) for number in range(2)]
    batch = memoryview(batches.encode(sent))
    assert list(batches.iterate(batch, headers_max=1_000)) == sent
    found = batches.iterate(batch, headers_max=999)
    assert next(found) == sent[0]
    with pytest.raises(TooManyHeadersError):
        next(found)


@pytest.mark.parametrize("codec", Codec)
def test_damaged_batches_raise_only_kafka_errors(codec: Codec) -> None:
    random = Random(codec)
    whole = batches.encode([Record(0, n, b"key", os.urandom(30), (("h", b"v"),)) for n in range(20)], codec=codec)
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[random.randrange(HEADER_BYTES, len(damaged))] = random.randrange(256)
        try:
            batches.decode(memoryview(damaged), 1 << 20)
        except KafkaError as error:
            code = error.code
            assert code is ErrorCode.CORRUPT_MESSAGE


def test_more_records_than_bytes_are_refused_before_any_is_made() -> None:
    batch = batches.encode([Record(0, 0, None, b"a")])
    batch[HEADER_BYTES - 4 : HEADER_BYTES] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(KafkaError, match="2147483647 records"):
        batches.decode(memoryview(batch))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    records,
    st.sampled_from(Codec),
    st.sampled_from(
        [
            (Codec.NONE, None),
            (Codec.SNAPPY, None),
            *((Codec.GZIP, level) for level in (-1, 1, 9)),
            *((Codec.LZ4, level) for level in (1, 9, 12, 17)),
            *((Codec.ZSTD, level) for level in (-131_072, 3, 22)),
        ]
    ),
)
def test_a_recompressed_batch_has_the_same_records_and_header(
    given_records: list[Record], codec: Codec, target: tuple[Codec, int | None]
) -> None:
    more = {"base_offset": 9, "leader_epoch": 2, "producer_id": 7, "producer_epoch": 3, "base_sequence": 5}
    batch = memoryview(batches.encode(given_records, codec=codec, attributes=batches.TRANSACTIONAL_BIT, **more))
    recompressed = memoryview(batches.recompress(batch, *target))
    header = batches.read_header(recompressed)
    assert header.codec is target[0] and header.is_transactional
    assert header.size == len(recompressed) and batches.crc_is_valid(recompressed)
    former = batches.read_header(batch)
    assert header == former._replace(
        batch_length=header.batch_length, crc=header.crc, attributes=batches.TRANSACTIONAL_BIT | target[0]
    )
    assert batches.decode(recompressed) == batches.decode(batch)
    body = recompressed[HEADER_BYTES:]
    if target[0] is Codec.LZ4:
        plain = bytes(compression.decompress(codec, batch[HEADER_BYTES:], 1 << 20))
        assert lz4.frame.decompress(bytes(body)) == plain


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_higher_level_makes_a_batch_smaller(codec: Codec) -> None:
    text = Path(batches.__file__).read_bytes() * 8
    low, high = {Codec.GZIP: (1, 9), Codec.LZ4: (9, 12), Codec.ZSTD: (-7, 19)}[codec]  # 9 is the fast mode of LZ4
    assert len(compression.compress(codec, text, high)) < 0.9 * len(compression.compress(codec, text, low))
    assert compression.decompress(codec, memoryview(compression.compress(codec, text, high)), 1 << 20) == text


def test_the_highest_levels_of_zstd_have_the_window_of_level_19() -> None:
    assert compression.compress(Codec.ZSTD, BOMB, 22) == compression.compress(Codec.ZSTD, BOMB, 19)

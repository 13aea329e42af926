"""The compiled decoder agrees with the reference implementation, kio and librdkafka; corrupt batches are detected."""

import random
from struct import Struct

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from crc32c import crc32c
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch
from tests.spark.support import reference_decoder as reference
from tests.spark.support.random_logs import EXAMPLE, Log, batch, batch_bytes, lies, logs

from levada.errors import ErrorCode, KafkaError
from levada.model import Codec, TopicPartition
from levada.spark.formats.decoder import HEADERS_TYPE, Columns, Filter, decode_all, decode_chunk
from levada.spark.kernels.walk import offset_after
from levada.spark.read.rows import read_columns
from levada.testing import EmbeddedBroker
from levada.wire.batches import ATTRIBUTES_OFFSET, HEADER_BYTES, Record, iterate_headers, read_header

THOROUGH = settings(max_examples=100, deadline=None, derandomize=True)
FOREVER = 1 << 62


def records(columns: Columns) -> list[Record]:
    """Rows as records; columns are checked to be what Arrow and Spark want."""
    for array in columns:
        assert array is not None and len(array) == columns.rows
        array.validate(full=True)
    assert columns.headers is not None and columns.headers.type == HEADERS_TYPE
    pairs = [tuple((pair["key"], pair["value"]) for pair in row) for row in columns.headers.to_pylist()]
    arrays = (columns.offset, columns.timestamp, columns.key, columns.value)
    return [Record(*row) for row in zip(*(array.to_pylist() for array in arrays), pairs, strict=True)]


def outcome(decode: object, data: memoryview, *rest: object) -> object:
    """What a decoder gives, or how it refuses."""
    try:
        columns, after = decode(data, *rest)  # type: ignore[operator]
    except KafkaError as error:
        return error.code
    return records(columns), columns.timestamp_type.to_pylist(), after


@THOROUGH
@given(logs(), st.data())
def test_any_part_of_any_log_is_decoded_as_by_the_reference(log: Log, data: st.DataObject) -> None:
    """Offsets, times, nulls, headers, codecs, gaps, markers and aborted transactions."""
    first = read_header(log.data).base_offset
    start = data.draw(st.integers(max(first - 2, 0), log.end + 1))
    end = data.draw(st.integers(start, log.end + 2))
    cut = data.draw(st.sampled_from([0, 0, 1, 30, 70]))
    aborted = data.draw(st.sampled_from([log.aborted, ()]))
    piece = log.data[: max(len(log.data) - cut, 0)]
    found = outcome(decode_chunk, piece, start, end, aborted)
    assert found == outcome(reference.decode_chunk, piece, start, end, aborted)
    assert isinstance(found, tuple)


@THOROUGH
@given(logs(), st.data())
def test_a_filter_leaves_what_it_leaves_in_the_reference(log: Log, data: st.DataObject) -> None:
    rows = records(reference.decode_chunk(log.data, 0, FOREVER)[0])
    one = data.draw(st.sampled_from(rows)) if rows else EXAMPLE[0]
    pairs = [pair for pair in one.headers if pair[1] is not None]
    where = Filter(
        data.draw(st.sampled_from([None, one.key, b"other"])),
        data.draw(st.sampled_from([(), tuple(pairs), (("a", b"b"),)])),
        data.draw(st.sampled_from([0, one.timestamp, one.timestamp + 1])),
        data.draw(st.sampled_from([one.timestamp, one.timestamp + 1, FOREVER])),
    )
    found = outcome(decode_chunk, log.data, 0, FOREVER, (), True, where)
    assert found == outcome(reference.decode_chunk, log.data, 0, FOREVER, (), True, where)


@THOROUGH
@given(logs(), st.integers(1, 2_000))
def test_small_pieces_are_the_whole(log: Log, piece_bytes: int) -> None:
    """Memory is bounded: a chunk that unfolds to much is decoded in several goes, and nothing falls between them."""
    pieces = list(decode_all(log.data, 0, FOREVER, log.aborted, piece_bytes=piece_bytes))
    whole = records(decode_chunk(log.data, 0, FOREVER, log.aborted)[0])
    assert [row for piece in pieces for row in records(piece)] == whole
    assert all(piece.rows for piece in pieces)


@THOROUGH
@given(logs(), st.integers(0, 300))
def test_the_next_fetch_goes_on_after_the_last_whole_batch(log: Log, cut: int) -> None:
    piece = log.data[: max(len(log.data) - cut, 0)]
    last = [header.last_offset for _, header in iterate_headers(piece)][-1:]
    assert offset_after(np.frombuffer(piece, np.uint8)) == (last[0] + 1 if last else -1)


@pytest.mark.parametrize("codec", Codec)
def test_memory_is_bounded_whatever_a_chunk_unfolds_to(codec: Codec) -> None:
    """40 MB, in a chunk of some kilobytes if it is compressed; of which no more than 4 MB are had at once."""
    data = b"".join(batch([Record(n, 0, None, bytes(1_000_000))], attributes=codec) for n in range(40))
    pieces = [
        (piece.value.nbytes, piece.offset.to_pylist())
        for piece in decode_all(memoryview(data), 0, FOREVER, piece_bytes=3_000_500)
    ]
    assert [offset for _, offsets in pieces for offset in offsets] == list(range(40))
    assert all(size < 4_100_000 for size, _ in pieces)
    assert len(pieces) < 15


@pytest.mark.parametrize("codec", Codec)
def test_a_piece_that_is_kept_does_not_change(codec: Codec) -> None:
    """A piece may be kept: later pieces and later fetches use other memory."""
    data = bytearray().join(batch([Record(n, 0, b"%d" % n, b"%06d" % n * 5_000)], attributes=codec) for n in range(20))
    kept = list(decode_all(memoryview(data), 0, FOREVER, piece_bytes=100_000))
    data[:] = bytes(len(data))
    for _ in range(3):
        list(decode_all(memoryview(batch([Record(0, 0, b"x", bytes(90_000))])), 0, FOREVER))
    assert len(kept) > 3
    found = [record for piece in kept for record in records(piece)]
    assert [(row.key, row.value) for row in found] == [(b"%d" % n, b"%06d" % n * 5_000) for n in range(20)]


@THOROUGH
@given(logs())
def test_kio_reads_the_same(log: Log) -> None:
    """Another reader of the format, written by others; it has no codecs."""
    for position, header in iterate_headers(log.data):
        if header.codec is Codec.NONE and not header.is_control:
            plain = log.data[position : position + header.size]
            ours = records(decode_chunk(plain, 0, FOREVER)[0])
            theirs = read_batch(bytes(plain), 0)[0].records
            assert [(row.offset, row.key, row.value) for row in ours] == [
                (row.offset, row.key, row.value) for row in theirs
            ]
            assert [[(name.encode(), value) for name, value in row.headers] for row in ours] == [
                [(pair.key, pair.value) for pair in row.headers] for row in theirs
            ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_writes_is_read(broker: EmbeddedBroker, codec: str) -> None:
    """Key, value, headers and timestamp of each record as it was given to librdkafka."""
    chance = random.Random(codec)
    topic = broker.topic(partitions=1)
    settings = {
        "compression.type": codec,
        "linger.ms": 20,
        "enable.idempotence": True,
    }  # retries keep the order
    producer = Producer({"bootstrap.servers": broker.bootstrap} | settings)
    sent = []
    for number in range(3_000):
        key = None if chance.random() < 0.2 else chance.randbytes(chance.randrange(20))
        value = None if chance.random() < 0.1 else bytes(chance.choices(b"abc", k=chance.randrange(400)))
        headers = [
            (f"h{index}", None if chance.random() < 0.2 else chance.randbytes(5))
            for index in range(chance.randrange(4))
        ]
        timestamp = 1_700_000_000_000 + chance.randrange(-1_000, 1_000)
        producer.produce(topic, value, key, headers=headers, timestamp=timestamp)  # type: ignore[arg-type]
        sent.append(Record(number, timestamp, key, value, tuple(headers)))
    assert producer.flush(30) == 0
    pieces = read_columns(broker.bootstrap, TopicPartition(topic, 0), 0, len(sent))
    assert [row for piece in pieces for row in records(piece)] == sent


def test_every_number_in_a_record_may_lie() -> None:
    """The decoder rejects a signed batch with false claims, or reads it as the reference implementation does."""
    refused = 0
    for name, data in lies():
        found = outcome(decode_chunk, memoryview(data), 0, FOREVER)
        assert found == outcome(reference.decode_chunk, memoryview(data), 0, FOREVER), name
        refused += found is ErrorCode.CORRUPT_MESSAGE
    assert refused > 500


@THOROUGH
@given(logs(), st.data())
def test_any_byte_may_be_wrong_though_signed(log: Log, data: st.DataObject) -> None:
    broken = bytearray(log.data)
    size = read_header(broken).size
    assume(read_header(broken).codec is Codec.NONE)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(HEADER_BYTES, size - 1))] = data.draw(st.integers(0, 255))
    Struct(">I").pack_into(broken, 17, crc32c(broken[ATTRIBUTES_OFFSET:size]))
    piece = memoryview(bytes(broken))
    assert outcome(decode_chunk, piece, 0, FOREVER) == outcome(reference.decode_chunk, piece, 0, FOREVER)


@pytest.mark.parametrize("place", range(ATTRIBUTES_OFFSET, 130))
def test_a_byte_that_changed_on_the_way_is_found(place: int) -> None:
    data = bytearray(batch(EXAMPLE) + batch([Record(20, 0, None, b"next")]))
    data[place] ^= 0x40
    with pytest.raises(KafkaError) as refused:
        decode_chunk(memoryview(data), 0, FOREVER)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert "offset 7" in str(refused.value)


@pytest.mark.parametrize("length", [0, 48, -1, -(2**31)])
def test_a_length_that_cannot_be_is_refused(length: int) -> None:
    data = bytearray(batch(EXAMPLE))
    Struct(">i").pack_into(data, 8, length)
    with pytest.raises(KafkaError, match=f"CORRUPT_MESSAGE: the batch at offset 7: a length of {length}"):
        decode_chunk(memoryview(data), 0, FOREVER)


def test_batches_out_of_order_are_refused() -> None:
    data = batch(EXAMPLE) + batch([Record(9, 0, None, b"again")])
    with pytest.raises(KafkaError, match="offset 9: offsets go backwards"):
        decode_chunk(memoryview(data), 0, FOREVER)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_another_format_is_named(magic: int) -> None:
    data = bytearray(batch(EXAMPLE))
    data[16] = magic
    with pytest.raises(KafkaError, match=f"UNSUPPORTED_FOR_MESSAGE_FORMAT.*offset 7 has magic {magic}"):
        decode_chunk(memoryview(data), 0, FOREVER)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named(codec: int) -> None:
    data = bytearray(batch(EXAMPLE))
    data[22] |= codec
    Struct(">I").pack_into(data, 17, crc32c(data[ATTRIBUTES_OFFSET:]))
    with pytest.raises(KafkaError, match=f"UNSUPPORTED_COMPRESSION_TYPE.*offset 7 has the unknown codec {codec}"):
        decode_chunk(memoryview(data), 0, FOREVER)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_records_that_do_not_unfold_are_named(codec: Codec) -> None:
    data = bytearray(batch(EXAMPLE, attributes=codec))
    data[HEADER_BYTES:] = bytes(len(data) - HEADER_BYTES)
    Struct(">I").pack_into(data, 17, crc32c(data[ATTRIBUTES_OFFSET:]))
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: the batch at offset 7: "):
        decode_chunk(memoryview(data), 0, FOREVER)


def test_a_header_name_that_is_not_text_is_named() -> None:
    """Spark relies on strings being UTF-8."""
    broken = batch(EXAMPLE).replace(b"name", b"n\xffme")
    body = broken[HEADER_BYTES:]
    data = memoryview(batch_bytes(body, 3, base_offset=7, last_delta=2))
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: the batch at offset 8: a header's name is not UTF-8"):
        decode_chunk(data, 0, FOREVER)


def test_nothing_is_a_chunk_too() -> None:
    columns, after = decode_chunk(memoryview(b""), 5, 9)
    assert (records(columns), after) == ([], 5)
    assert columns.key.type == pa.binary()

"""Rejects invalid record batches, and batches that decompress to too much."""

import struct
import uuid
import zlib

import cramjam
import pytest
from tests.badinput.broker import HEALTHY, Broker, Offender, produce_result
from tests.badinput.golden import TOPIC, batch, golden
from tests.badinput.hostile import broken_batches, signed
from tests.support.raw import Connection, fetch

from levada.errors import ErrorCode
from levada.model import Codec
from levada.wire import batches

COMPACTED = "compacted"
BOMB_BYTES = 1 << 30

# With a valid CRC a broker may take these: such values are legal, or, as records, not looked at on the way.
LEGAL = (
    "attributes",
    "base_time",
    "max_time",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record byte",
)


def test_broken_batches_are_refused(broker: Broker) -> None:
    refused = 0
    with Connection(broker.bootstrap) as one:
        for what, data in broken_batches():
            code = produce_result(one, TOPIC, data).error_code
            signed_right = "CRC stale" not in what and not what.endswith("flipped")
            harmless = what.startswith("base_offset") or (what.startswith(LEGAL) and signed_right)
            assert code != ErrorCode.NONE or harmless, f"{what} was taken"
            assert code != ErrorCode.UNKNOWN_SERVER_ERROR, what
            refused += code != ErrorCode.NONE
    assert refused > 100


def test_what_was_taken_is_served_whole_and_with_a_valid_crc(broker: Broker) -> None:
    with Connection(broker.bootstrap) as one:
        offset = 0
        while (part := fetch(one, TOPIC, offset)).high_watermark > offset:
            data = memoryview(bytes(part.records))
            for position, header in batches.iterate_headers(data):
                assert batches.crc_is_valid(data[position : position + header.size])
                assert header.base_offset == offset
                assert header.record_count == header.last_offset_delta + 1 > 0
                offset = header.last_offset + 1


def test_mutated_batches_in_every_version(broker: Broker, offender: Offender) -> None:
    for version in range(3, 14):
        request = golden("produce", version, uuid.UUID(int=0))
        good = batch()
        whole = b"".join(piece.data for piece in request.body)
        for what, data in broken_batches():
            if len(data) == len(good) and "record byte" not in what:
                offender.attack(request.frame(whole.replace(good, data)))


def bombs() -> dict[str, tuple[Codec, bytes]]:
    """A small batch of each codec that claims or unpacks to a gibibyte."""
    zeros = bytes(1 << 20)
    deflate = zlib.compressobj(9, wbits=31)
    gzip = b"".join(deflate.compress(zeros) for _ in range(BOMB_BYTES >> 20)) + deflate.flush()
    snappy_claims = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 20) + b"\xff\xff\xff\xff\x07" + bytes(15)
    zstd = bytes(cramjam.zstd.compress(bytes(256 << 20), level=1))
    return {
        "gzip": (Codec.GZIP, gzip),
        "gzip garbage": (Codec.GZIP, gzip[:500] + bytes(500)),
        "snappy claims": (Codec.SNAPPY, snappy_claims),
        "snappy raw claims": (Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + bytes(100)),
        "lz4": (Codec.LZ4, bytes(cramjam.lz4.compress(bytes(256 << 20), level=1))),
        "lz4 garbage": (Codec.LZ4, b"\x04\x22\x4d\x18" + b"\xff" * 100),
        "zstd": (Codec.ZSTD, zstd),
        "zstd claims": (Codec.ZSTD, bytes.fromhex("28b52ffde0") + b"\xff" * 8 + bytes(20)),
        "nothing": (Codec.ZSTD, b""),
    }


def bomb_batch(codec: Codec, payload: bytes) -> bytes:
    data = bytearray(batch()[:61]) + payload
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    return signed(data)


def test_bombs_do_not_explode_in_the_broker(broker: Broker) -> None:
    """Keys of a compacted topic are looked at on append; times are looked up in stored batches."""
    topic = {
        "name": COMPACTED,
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [
            {"name": "cleanup.policy", "value": "compact"},
            {"name": "max.message.bytes", "value": "20000000"},
        ],
    }
    with Connection(broker.bootstrap) as one:
        one.call("create_topics", 7, {"topics": [topic], "timeout": 10_000})
        for what, (codec, payload) in bombs().items():
            data = bomb_batch(codec, payload)
            refused = produce_result(one, COMPACTED, data)
            assert refused.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR), what
            broker.check_memory()
            produce_result(one, TOPIC, data)
            asked = {"partition_index": 0, "timestamp": 1_000, "current_leader_epoch": -1}
            fields = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [asked]}]}
            answer = one.call("list_offsets", 7, fields).topics[0].partitions[0]
            assert answer.error_code != ErrorCode.UNKNOWN_SERVER_ERROR, what
            broker.check_memory()


@pytest.mark.parametrize("field", [("producer_id", 43, ">q"), ("base_sequence", 53, ">i")])
def test_a_flood_of_producer_ids_is_bounded(field: tuple[str, int, str], broker: Broker) -> None:
    name, position, form = field
    with Connection(broker.bootstrap) as one:
        for number in range(3_000):
            data = bytearray(batch())
            struct.pack_into(">qhi", data, 43, 1, 0, 0)
            struct.pack_into(form, data, position, number * 7)
            produce_result(one, TOPIC, signed(data))
    assert name


def test_a_batch_cannot_be_stored_under_another_topics_name(broker: Broker) -> None:
    with Connection(broker.bootstrap) as one:
        for name in ("..", ".", "a/b", "../healthy-0", "healthy-0/../../x", "", "a" * 250, "a\0b"):
            result = produce_result(one, name, batch())
            assert result.error_code in (
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ), name
        assert fetch(one, HEALTHY, 0).error_code == 0

"""Batches that the broker checks or recompresses: on the loop or in a thread, in the producer's order."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c
from tests.support.broker import BrokerThread
from tests.support.logs import read_all
from tests.support.raw import Connection, batch, produce
from tests.support.waiting import until

from levada.api.data import large_batches
from levada.api.data.large_batches import RATIO_MAX, YIELD_RECORDS
from levada.broker.partition import recompression, record_validation
from levada.broker.partition.record_validation import LOOP_BYTES_MAX, LOOP_HEADERS_MAX, RECORD_ERRORS_MAX
from levada.config.broker import BrokerConfig
from levada.errors import ErrorCode
from levada.model import Codec
from levada.wire import batches as batches_module
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    HEADER_BYTES,
    LOG_OVERHEAD,
    Record,
    decode,
    encode,
    iterate,
    read_header,
)
from levada.wire.compression import compress

CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
NOW_MS = 1_700_000_000_000
SMALL, LARGE = 50, 4_000  # values of about 50 bytes: on the loop, and in a thread


def records(count: int, tag: str = "value") -> list[Record]:
    return [Record(number, NOW_MS + number, b"key", f"{tag}-{number} of some text".encode()) for number in range(count)]


def batches(broker: BrokerThread, topic: str, index: int = 0) -> list[bytes]:
    return broker.call(lambda: [bytes(each) for each in read_all(broker.partition(topic, index).log)])


def stored(broker: BrokerThread, topic: str, index: int = 0) -> list[tuple[Codec, list[Record]]]:
    """The codec and the records of each batch of a partition."""
    return [(read_header(each).codec, decode(memoryview(each))) for each in batches(broker, topic, index)]


def values(found: list[tuple[Codec, list[Record]]]) -> list[bytes | None]:
    return [record.value for _, inner in found for record in inner]


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("target", CODECS)
def test_every_codec_becomes_the_topics(
    broker: BrokerThread, wire: Connection, target: str, codec: Codec, count: int
) -> None:
    topic = broker.topic(compression_type=target)
    sent = encode(records(count), codec=codec)
    assert (len(encode(records(count))) > LOOP_BYTES_MAX) is (count == LARGE)
    first, second = produce(wire, topic, bytes(sent)), produce(wire, topic, bytes(sent))
    assert (first.error_code, first.base_offset, second.base_offset) == (ErrorCode.NONE, 0, count)
    found = stored(broker, topic)
    assert [stored_codec for stored_codec, _ in found] == [CODECS[target]] * 2
    assert found[0][1] == records(count)
    assert [record.offset for record in found[1][1]] == list(range(count, 2 * count))


@pytest.mark.parametrize(
    ("count", "settings", "in_thread"),
    [
        (SMALL, {"compression_type": "gzip"}, False),
        (LARGE, {"compression_type": "gzip"}, True),
        (SMALL, {"compression_type": "zstd"}, False),
        (SMALL, {"compression_type": "zstd", "compression_zstd_level": 19}, True),
    ],
)
def test_what_takes_long_does_not_block_the_event_loop(
    broker: BrokerThread,
    wire: Connection,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    settings: dict[str, Any],
    in_thread: bool,
) -> None:
    threads: list[str] = []

    def observed(*arguments: Any) -> bytearray:
        threads.append(threading.current_thread().name)
        return batches_module.recompress(*arguments)

    monkeypatch.setattr(recompression, "recompress", observed)
    topic = broker.topic(**settings)
    for codec in (Codec.NONE, Codec.SNAPPY):
        assert produce(wire, topic, bytes(encode(records(count), codec=codec))).error_code == ErrorCode.NONE
    assert len(stored(broker, topic)) == 2
    assert threads[-1].startswith("compression") is in_thread


@pytest.mark.parametrize(
    ("settings", "ahead_ms", "error"),
    [
        ({"cleanup_policy": "compact"}, 0, ErrorCode.NONE),
        ({"message_timestamp_before_max_ms": 10**9}, 0, ErrorCode.NONE),
        ({"message_timestamp_before_max_ms": 10**9}, -(10**10), ErrorCode.INVALID_TIMESTAMP),
        ({}, 10**10, ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=["compacted", "recent", "old", "late"],
)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_the_records_of_large_batches_are_checked_in_a_thread(
    broker: BrokerThread,
    wire: Connection,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    ahead_ms: int,
    error: ErrorCode,
    count: int,
) -> None:
    threads, first_ms = list[str](), time.time_ns() // 1_000_000 + ahead_ms

    def observed(*arguments: Any, **limits: Any) -> Iterator[Record]:
        threads.append(threading.current_thread().name)
        return iterate(*arguments, **limits)

    for module in (record_validation, large_batches):
        monkeypatch.setattr(module, "iterate", observed)
    topic = broker.topic(**settings)
    sent = [record._replace(timestamp=first_ms + record.offset) for record in records(count)]
    for codec in (Codec.NONE, Codec.ZSTD):
        response = produce(wire, topic, bytes(encode(sent, codec=codec)))
        assert response.error_code == error
        assert len(response.record_errors) == (min(count, RECORD_ERRORS_MAX) if error else 0)
    assert values(stored(broker, topic)) == [record.value for record in sent if not error] * 2
    assert threads[-1].startswith("compression") is (count == LARGE)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"message_timestamp_before_max_ms": 10**9}])
def test_small_batches_that_decompress_to_large_ones(
    broker: BrokerThread, wire: Connection, settings: dict[str, Any], codec: Codec
) -> None:
    topic, now_ms = broker.topic(**settings), time.time_ns() // 1_000_000
    sent = bytes(encode([Record(0, now_ms, b"key", b"x" * 1_000)] * 100, codec=codec))
    assert (len(sent) < LOOP_BYTES_MAX) is (codec is not Codec.NONE)
    assert produce(wire, topic, sent).error_code == ErrorCode.NONE
    assert values(stored(broker, topic)) == [b"x" * 1_000] * 100


def test_a_response_lists_the_first_invalid_records(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(cleanup_policy="compact")
    response = produce(wire, topic, bytes(encode([record._replace(key=None) for record in records(LARGE)])))
    assert response.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in response.record_errors] == list(range(RECORD_ERRORS_MAX))


def test_a_recompressed_batch_with_late_records_names_them(broker: BrokerThread, wire: Connection) -> None:
    topic, late_ms = broker.topic(compression_type="zstd"), time.time_ns() // 1_000_000 + 10**10
    sent = [record._replace(timestamp=late_ms) for record in records(SMALL)]
    response = produce(wire, topic, bytes(encode(sent, codec=Codec.GZIP)))
    assert (response.error_code, len(response.record_errors)) == (ErrorCode.INVALID_TIMESTAMP, SMALL)


def test_a_thread_that_checks_records_yields_the_gil(
    broker: BrokerThread, wire: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    monkeypatch.setattr(
        large_batches, "time", SimpleNamespace(sleep=lambda _: threads.append(threading.current_thread().name))
    )
    topic = broker.topic(cleanup_policy="compact")
    for count in (SMALL, LARGE):
        assert produce(wire, topic, bytes(encode(records(count), codec=Codec.GZIP))).error_code == ErrorCode.NONE
    assert len(threads) == LARGE // YIELD_RECORDS
    assert all(name.startswith("compression") for name in threads)


def test_one_large_record_is_checked_on_the_loop(
    broker: BrokerThread, wire: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.broker, "run_in_thread", None)
    topic = broker.topic(cleanup_policy="compact")
    sent = bytes(encode([Record(0, NOW_MS, b"key", bytes(4 * LOOP_BYTES_MAX))]))
    assert produce(wire, topic, sent).error_code == ErrorCode.NONE


@pytest.mark.parametrize("count", [LOOP_HEADERS_MAX, LOOP_HEADERS_MAX + 1, 100_000])
def test_records_with_many_headers_are_checked_in_a_thread(
    broker: BrokerThread, wire: Connection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    threads, run_in_thread = list[Any](), broker.broker.run_in_thread

    def observed(work: Any, done: Any) -> None:
        threads.append(work)
        run_in_thread(work, done)

    monkeypatch.setattr(broker.broker, "run_in_thread", observed)
    topic = broker.topic(cleanup_policy="compact")
    sent = Record(0, NOW_MS, b"key", b"", (("h", b""),) * count)
    assert produce(wire, topic, bytes(encode([sent]))).error_code == ErrorCode.NONE
    assert stored(broker, topic) == [(Codec.NONE, [sent])]
    assert bool(threads) is (count > LOOP_HEADERS_MAX)


def test_rules_that_change_while_a_batch_waits_are_checked(
    broker: BrokerThread, wire: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is compacted when the thread that recompresses the batch is done."""
    topic = broker.topic(compression_type="zstd")
    partition = broker.call(lambda: broker.partition(topic))
    run_in_thread, compacted = broker.broker.run_in_thread, replace(partition.log.config, cleanup_policy=("compact",))

    def run_after_a_change(work: Any, done: Any) -> None:
        partition.configure(compacted)
        run_in_thread(work, done)

    monkeypatch.setattr(broker.broker, "run_in_thread", run_after_a_change)
    response = produce(wire, topic, bytes(encode([record._replace(key=None) for record in records(LARGE)])))
    assert response.error_code == ErrorCode.INVALID_RECORD


def test_a_large_batch_with_a_record_without_a_key_is_refused(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(cleanup_policy="compact")
    sent = [record._replace(key=None if record.offset == 7 else b"key") for record in records(LARGE)]
    response = produce(wire, topic, bytes(encode(sent, codec=Codec.LZ4)))
    assert (response.error_code, [each.batch_index for each in response.record_errors]) == (
        ErrorCode.INVALID_RECORD,
        [7],
    )


def test_a_batch_with_the_codec_of_the_topic_is_stored_as_received(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(compression_type="gzip", compression_gzip_level=1)
    sent = encode(records(LARGE), codec=Codec.GZIP)
    produce(wire, topic, bytes(sent))
    (found,) = batches(broker, topic)
    assert found[ATTRIBUTES_OFFSET:] == sent[ATTRIBUTES_OFFSET:]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_levels_are_used(broker: BrokerThread, wire: Connection, codec: str) -> None:
    text = Path(__file__).read_bytes() * 4
    sizes: list[int] = []
    for level in {"gzip": (1, 9), "lz4": (9, 12), "zstd": (-7, 19)}[codec]:
        own: dict[str, Any] = {f"compression_{codec}_level": level}
        topic = broker.topic(compression_type=codec, **own)
        produce(wire, topic, bytes(encode([Record(0, NOW_MS, None, text)])))
        sizes += map(len, batches(broker, topic))
    assert sizes[1] < sizes[0] < len(text)


def test_the_brokers_default_and_a_change_of_the_topic(wire: Connection, tmp_path: Path) -> None:
    with BrokerThread(tmp_path, compression_type="zstd") as own, own.connect() as one:
        topic, changed = own.topic(), own.topic(compression_type="producer")
        produce(one, topic, batch(b"x" * 100))
        produce(one, changed, batch(b"x" * 100))
        assert (stored(own, topic)[0][0], stored(own, changed)[0][0]) == (Codec.ZSTD, Codec.NONE)
        entry = {"name": "compression.type", "config_operation": 0, "value": "snappy"}
        resource = {"resource_type": 2, "resource_name": changed, "configs": [entry]}
        one.call("incremental_alter_configs", 1, {"resources": [resource]})
        produce(one, changed, batch(b"x" * 100))
        assert [codec for codec, _ in stored(own, changed)] == [Codec.NONE, Codec.SNAPPY]
    assert BrokerConfig().topic_defaults.compression_type == "producer"


def test_the_order_of_a_producer_stays(broker: BrokerThread, wire: Connection) -> None:
    """Batches that a thread recompresses, and those that follow them on the same connection."""
    topic = broker.topic(compression_type="gzip")
    chance = Random(7)
    sent, sequence = [], 0
    for number in range(40):
        part = records(chance.choice([1, 3, LARGE]), f"batch {number}")
        codec = chance.choice(list(Codec))
        made = encode(part, codec=codec, producer_id=77, producer_epoch=0, base_sequence=sequence)
        place = {"name": topic, "partition_data": [{"index": 0, "records": bytes(made)}]}
        wire.send("produce", 12, {"acks": -1, "timeout": 10_000, "topic_data": [place]})
        sent += [record.value for record in part]
        sequence += len(part)
    for _ in range(40):
        _, response = wire.receive()
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert values(stored(broker, topic)) == sent


def test_without_acks_a_client_may_close_before_its_batch_is_recompressed(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, closed = broker.topic(compression_type="gzip"), threading.Event()

    def held(*arguments: Any) -> bytearray:
        closed.wait(60)
        return batches_module.recompress(*arguments)

    def is_parked() -> bool:
        (listener,) = broker.server._listeners
        return any(connection.muted for connection in listener.connections)

    monkeypatch.setattr(recompression, "recompress", held)
    with broker.connect() as own:
        place = {"name": topic, "partition_data": [{"index": 0, "records": bytes(encode(records(LARGE)))}]}
        own.send("produce", 12, {"acks": 0, "timeout": 10_000, "topic_data": [place]})
        until(lambda: broker.call(is_parked))
    until(lambda: not broker.call(is_parked))
    closed.set()
    until(lambda: len(stored(broker, topic)) == 1)


def test_a_repeated_batch_of_an_idempotent_producer_is_a_duplicate(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(compression_type="zstd")
    made = bytes(encode(records(LARGE), producer_id=78, producer_epoch=0, base_sequence=0))
    assert [produce(wire, topic, made).base_offset for _ in range(2)] == [0, 0]
    assert len(stored(broker, topic)) == 1


def test_partitions_of_one_request(broker: BrokerThread, wire: Connection) -> None:
    """With and without recompression, small and large, valid and not: each has its own result."""
    kept, packed = broker.topic(partitions=2), broker.topic(partitions=6, compression_type="lz4")
    damaged = bytearray(encode(records(LARGE)))
    damaged[-1] ^= 1
    malformed = undecompressable(LARGE)
    large, small = bytes(encode(records(LARGE))), batch(b"small")
    data: list[dict[str, Any]] = [
        {"name": kept, "partition_data": [{"index": 0, "records": large}]},
        {
            "name": packed,
            "partition_data": [
                {"index": index, "records": part}
                for index, part in enumerate((small, large, bytes(damaged), malformed, large, b""))
            ],
        },
    ]
    response = wire.call("produce", 12, {"acks": -1, "timeout": 10_000, "topic_data": data})
    codes = {
        (topic.name, part.index): part.error_code for topic in response.responses for part in topic.partition_responses
    }
    corrupt, fine = ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE
    assert codes.pop((kept, 0)) == fine
    assert [codes[packed, index] for index in range(6)] == [
        fine,
        fine,
        corrupt,
        corrupt,
        fine,
        ErrorCode.INVALID_RECORD,
    ]
    assert [len(stored(broker, packed, index)) for index in range(6)] == [1, 1, 0, 0, 1, 0]
    assert [codec for codec, _ in stored(broker, packed, 4)] == [Codec.LZ4]


def undecompressable(count: int) -> bytes:
    """A batch with a valid CRC whose records are not what its codec says."""
    made = encode(records(count))
    made[22] |= Codec.ZSTD
    return signed(made)


def signed(made: bytearray) -> bytes:
    """The batch with the length and the CRC of its bytes."""
    made[8:12] = (len(made) - LOG_OVERHEAD).to_bytes(4, "big")
    made[17:21] = crc32c(memoryview(made)[ATTRIBUTES_OFFSET:]).to_bytes(4, "big")
    return bytes(made)


@pytest.mark.parametrize("count", [1, LARGE])
def test_records_that_cannot_be_decompressed(broker: BrokerThread, wire: Connection, count: int) -> None:
    topic = broker.topic(compression_type="gzip")
    assert produce(wire, topic, undecompressable(count)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert produce(wire, topic, batch(b"next")).base_offset == 0


def test_a_batch_that_grows_beyond_the_limit(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(compression_type="uncompressed", max_message_bytes=100_000)
    packed = bytes(encode([Record(0, NOW_MS, None, bytes(200_000))], codec=Codec.ZSTD))
    assert produce(wire, topic, packed).error_code == ErrorCode.MESSAGE_TOO_LARGE
    too_large = bytes(encode([Record(0, NOW_MS, None, Random(1).randbytes(100_000))]))
    smaller = broker.topic(compression_type="gzip", max_message_bytes=100_000)
    assert produce(wire, smaller, too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE, "checked as received, too"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])  # snappy compresses to a 21st at best
@pytest.mark.parametrize("settings", [{"compression_type": "uncompressed"}, {"cleanup_policy": "compact"}])
def test_a_decompression_bomb(broker: BrokerThread, wire: Connection, settings: dict[str, Any], codec: Codec) -> None:
    topic = broker.topic(max_message_bytes=100_000, **settings)
    header = encode([Record(0, NOW_MS, b"key", b"")], codec=codec)[:HEADER_BYTES]
    bomb = signed(header + compress(codec, bytes(RATIO_MAX * 100_000 + 1)))
    assert len(bomb) < 100_000
    assert produce(wire, topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_many_batches_that_grow_need_the_memory_of_one(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(partitions=40, compression_type="uncompressed", max_message_bytes=100_000)
    growing = bytes(encode([Record(0, NOW_MS, None, bytes(5 << 20))], codec=Codec.ZSTD))
    parts = [{"index": index, "records": growing} for index in range(40)]
    data = [{"name": topic, "partition_data": parts}]
    tracemalloc.start()
    try:
        response = wire.call("produce", 12, {"acks": -1, "timeout": 10_000, "topic_data": data})
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    codes = {part.error_code for part in response.responses[0].partition_responses}
    assert codes == {ErrorCode.MESSAGE_TOO_LARGE}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_records_of_a_large_batch_are_checked_without_a_copy(
    broker: BrokerThread, wire: Connection, codec: Codec
) -> None:
    topic, value = broker.topic(cleanup_policy="compact"), bytes(40 << 20)
    sent = bytes(encode([Record(0, NOW_MS, b"key", value, (("h", b"1"),))], codec=codec))
    tracemalloc.start()  # of memory that is cleared or copied with the GIL; pages of a mapping are not
    try:
        assert produce(wire, topic, sent).error_code == ErrorCode.NONE
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_one_batch_at_a_time_is_prepared(
    broker: BrokerThread, wire: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, begun = 0, 0, threading.Event()

    def observed(*arguments: Any) -> bytearray:
        nonlocal running, most
        running += 1
        most = max(most, running)
        begun.wait(0.1)  # for a second one that began meanwhile
        recompressed = batches_module.recompress(*arguments)
        running -= 1
        return recompressed

    monkeypatch.setattr(recompression, "recompress", observed)
    topic = broker.topic(compression_type="gzip")
    place = {"name": topic, "partition_data": [{"index": 0, "records": bytes(encode(records(LARGE)))}]}
    with broker.connect() as one, broker.connect() as two:
        for connection in (one, two):
            connection.send("produce", 12, {"acks": -1, "timeout": 10_000, "topic_data": [place]})
        for connection in (one, two):
            connection.receive()
    assert most == 1


def test_the_recompressed_batches_of_a_request_are_limited_like_a_request(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, socket_request_max_bytes=200_000) as broker, broker.connect() as wire:
        topic = broker.topic(partitions=5, compression_type="uncompressed")
        growing = bytes(encode([Record(0, NOW_MS, None, bytes(60_000))], codec=Codec.ZSTD))
        data = [{"name": topic, "partition_data": [{"index": index, "records": growing} for index in range(5)]}]
        response = wire.call("produce", 12, {"acks": -1, "timeout": 10_000, "topic_data": data})
        codes = {part.index: part.error_code for part in response.responses[0].partition_responses}
        assert codes == {0: 0, 1: 0, 2: 0, 3: ErrorCode.MESSAGE_TOO_LARGE, 4: ErrorCode.MESSAGE_TOO_LARGE}


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_client_that_does_not_know_zstd(broker: BrokerThread, wire: Connection, count: int) -> None:
    topic = broker.topic(compression_type="zstd")
    assert produce(wire, topic, bytes(encode(records(count))), version=3).error_code == ErrorCode.NONE
    assert stored(broker, topic)[0][0] is Codec.ZSTD


def test_a_produce_without_acks(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(compression_type="snappy")
    place = {"name": topic, "partition_data": [{"index": 0, "records": bytes(encode(records(LARGE)))}]}
    wire.send("produce", 12, {"acks": 0, "timeout": 10_000, "topic_data": [place]})
    assert produce(wire, topic, batch(b"after it")).base_offset == LARGE


def test_append_time_and_compaction(broker: BrokerThread, wire: Connection) -> None:
    topic = broker.topic(compression_type="lz4", message_timestamp_type="LogAppendTime", cleanup_policy="compact")
    for count in (SMALL, LARGE):
        result = produce(wire, topic, bytes(encode(records(count))))
        assert result.error_code == ErrorCode.NONE and result.log_append_time.timestamp() * 1000 > NOW_MS
    keyless = bytes(encode([Record(0, NOW_MS, None, b"x")]))
    assert produce(wire, topic, keyless).error_code == ErrorCode.INVALID_RECORD
    assert {codec for codec, _ in stored(broker, topic)} == {Codec.LZ4}

"""Columns become batches that the plain decoder, kio and librdkafka read; keys choose partitions as with librdkafka."""

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Place
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch
from tests.spark.support.random_logs import NEWEST_MS, blobs

from levada.client.client import Client
from levada.client.producer.partitioner import partition_for_key
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.spark import blocking
from levada.spark.formats.decoder import HEADERS_TYPE, decode_all
from levada.spark.formats.encoder import (
    EncodedBatch,
    ProducerIdAndEpoch,
    Rows,
    StickyPartition,
    assign_partitions,
    encode_rows,
)
from levada.spark.write.sender import Sender
from levada.testing import EmbeddedBroker
from levada.wire.batches import HEADER_BYTES, Record, crc_is_valid, decode, read_header

THOROUGH = settings(max_examples=150, deadline=None, derandomize=True)
TIMEOUT_S = 30.0
NOW_MS = 1_750_000_000_000
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

pairs = st.tuples(st.text(max_size=8), blobs)
row_tuples = st.tuples(
    blobs, blobs, st.none() | st.lists(pairs, max_size=3), st.none() | st.integers(0, NEWEST_MS // 1_000)
)


class Case(NamedTuple):
    """Columns, and the records that they are; timestamps are whole seconds."""

    rows: Rows
    records: list[Record]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Columns of all types that are allowed, cut out of larger ones, so that their offsets do not begin at 0."""
    tuples = draw(st.lists(row_tuples, min_size=1, max_size=30))
    before = draw(st.integers(0, min(3, len(tuples) - 1)))
    binary = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    keys, values, headers, seconds = (list(column) for column in zip(*tuples, strict=True))
    lists = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers]
    has_key, has_headers, has_time = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    unit = draw(st.sampled_from(["s", "ms", "us", "ns", None]))
    kind = pa.int64() if unit is None else pa.timestamp(unit, draw(st.sampled_from([None, "UTC"])))
    scaled = [None if second is None else second * UNITS[unit or "ms"] for second in seconds]
    rows = Rows(
        pa.array(keys, binary)[before:] if has_key else None,
        pa.array(values, binary)[before:],
        pa.array(lists, HEADERS_TYPE)[before:] if has_headers else None,
        pa.array(scaled, pa.int64()).cast(kind)[before:] if has_time else None,
    )
    records = [
        Record(
            0,
            NOW_MS if second is None or not has_time else second * 1_000,
            key if has_key else None,
            value,
            tuple(row or ()) if has_headers else (),
        )
        for key, value, row, second in tuples[before:]
    ]
    return Case(rows, records)


def plain(record: Record) -> Record:
    return record._replace(offset=0)


def encode(case: Case, partitions: Any, **options: Any) -> list[EncodedBatch]:
    return list(encode_rows(case.rows, partitions, now_ms=NOW_MS, **options))


@THOROUGH
@given(cases(), st.data())
def test_what_is_encoded_is_what_was_given(case: Case, data: st.DataObject) -> None:
    """Every field, every codec, in the order given within each partition; batches within their limit."""
    count = data.draw(st.integers(1, 4))
    partitions = np.array([data.draw(st.integers(0, count - 1)) for _ in case.records], np.int32)
    codec, limit = (
        data.draw(st.sampled_from(Codec)),
        data.draw(st.sampled_from([1, 100, 300, 2_000, 1 << 20])),
    )
    sequences = {0: 2**31 - 2, 1: 5}
    sent = dict(sequences)
    batches = encode(
        case,
        partitions,
        codec=codec,
        max_batch_bytes=limit,
        identity=ProducerIdAndEpoch(77, 3, transactional=True),
        sequences=sequences,
    )
    found: dict[int, list[Record]] = {}
    for batch in batches:
        header = read_header(batch.data)
        records = decode(batch.data)
        assert crc_is_valid(batch.data) and header.size == len(batch.data)
        assert (header.codec, header.is_transactional, header.is_control) == (codec, True, False)
        assert (header.producer_id, header.producer_epoch) == (77, 3)
        assert header.base_sequence == batch.base_sequence == sent.get(batch.partition, 0)
        sent[batch.partition] = (batch.base_sequence + batch.rows) % 2**31
        assert [record.offset for record in records] == list(range(batch.rows))
        assert header.max_timestamp == max(record.timestamp for record in records)
        assert header.base_timestamp == records[0].timestamp
        if codec is Codec.NONE and batch.rows > 1:
            assert len(batch.data) <= limit
        found.setdefault(batch.partition, []).extend(map(plain, records))
    assert sequences == sent
    assert found == {
        int(partition): [record for record, where in zip(case.records, partitions, strict=True) if where == partition]
        for partition in partitions
    }


@THOROUGH
@given(cases())
def test_kio_reads_what_is_encoded(case: Case) -> None:
    [batch] = encode(case, np.zeros(len(case.records), np.int32))
    theirs = read_batch(bytes(batch.data), 0)[0].records
    assert [(row.key, row.value, [(pair.key, pair.value) for pair in row.headers]) for row in theirs] == [
        (row.key, row.value, [(name.encode(), value) for name, value in row.headers]) for row in case.records
    ]


def test_batches_are_filled() -> None:
    """A batch ends because the next row would not fit."""
    rows = Rows(None, pa.array([b"." * 100] * 1_000))
    batches = list(encode_rows(rows, np.zeros(1_000, np.int32), now_ms=NOW_MS, max_batch_bytes=10_000))
    assert all(9_890 < len(batch.data) <= 10_000 for batch in batches[:-1])
    assert sum(batch.rows for batch in batches) == 1_000
    assert {batch.base_sequence for batch in batches} == {-1}


def test_text_is_bytes() -> None:
    rows = Rows(pa.array(["ключ", None]), pa.array(["wert", ""], pa.large_string()))
    [batch] = encode_rows(rows, np.zeros(2, np.int32), now_ms=NOW_MS)
    assert [(row.key, row.value) for row in decode(batch.data)] == [("ключ".encode(), b"wert"), (None, b"")]


def test_no_rows_are_no_batches() -> None:
    rows = Rows(pa.array([], pa.binary()), pa.array([], pa.binary()), pa.array([], HEADERS_TYPE))
    assert list(encode_rows(rows, assign_partitions(rows, 3, StickyPartition()), now_ms=NOW_MS)) == []


# Partitions


@THOROUGH
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50), st.integers(1, 100))
def test_keys_choose_as_in_the_client(keys: list[bytes], count: int) -> None:
    rows = Rows(pa.array(keys, pa.binary()), pa.array(keys, pa.binary()))
    assert assign_partitions(rows, count, StickyPartition()).tolist() == [partition_for_key(key, count) for key in keys]


def test_a_partition_column_goes_before_a_key() -> None:
    rows = Rows(pa.array([b"a", b"b", None]), pa.array([b"", b"", b""]), partition=pa.array([4, None, 3], pa.int32()))
    assert assign_partitions(rows, 5, StickyPartition()).tolist() == [4, partition_for_key(b"b", 5), 3]


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
def test_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    rows = Rows(None, pa.array([b"", b"", b""]), partition=pa.array([None, 4, wrong], pa.int32()))
    with pytest.raises(KafkaError, match=f"row 2 is for partition {wrong}, and the topic has 5") as refused:
        assign_partitions(rows, 5, StickyPartition())
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS


def test_rows_without_key_go_in_runs_to_every_partition() -> None:
    """Runs go on over Arrow batches, so that batches of records are large and partitions are filled evenly."""
    spread = StickyPartition()
    rows = Rows(None, pa.array([b"." * 100] * 1_000))
    found = np.concatenate([assign_partitions(rows, 4, spread) for _ in range(40)])
    changes = int(np.count_nonzero(np.diff(found)))
    assert changes < 60
    sizes = np.bincount(found, minlength=4)
    assert sizes.min() > 0.7 * sizes.max()
    assert found.dtype == np.int32


def test_many_writers_of_few_rows_do_not_choose_one_partition() -> None:
    rows = Rows(None, pa.array([b"x"]))
    assert {int(assign_partitions(rows, 4, StickyPartition())[0]) for _ in range(200)} == {0, 1, 2, 3}


def test_large_rows_without_key_are_spread_one_by_one() -> None:
    rows = Rows(None, pa.array([b"." * 500_000] * 8))
    assert np.bincount(assign_partitions(rows, 4, StickyPartition())).tolist() == [2, 2, 2, 2]


# What cannot be written


@pytest.mark.parametrize("bad", [[{"key": None, "value": b"x"}], [{"key": "a", "value": b"x"}, None]])
def test_a_header_without_a_name_is_refused(bad: list[Any]) -> None:
    headers = pa.array([[], None, [{"key": "fine", "value": None}], bad], HEADERS_TYPE)
    rows = Rows(None, pa.array([b""] * 4), headers)
    with pytest.raises(KafkaError, match="INVALID_RECORD: row 3 has a header without a name"):
        list(encode_rows(rows, np.zeros(4, np.int32), now_ms=NOW_MS))


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.timestamp("s", "UTC")])
def test_a_time_before_1970_is_refused(kind: Any) -> None:
    """As Kafka's own producers do. -1 ms is Kafka's value for no timestamp."""
    before = -2 if kind != pa.timestamp("us") else -2000
    rows = Rows(None, pa.array([b""] * 3), timestamp=pa.array([5, None, before], pa.int64()).cast(kind))
    with pytest.raises(KafkaError, match="INVALID_TIMESTAMP: row 2 is from before 1970"):
        list(encode_rows(rows, np.zeros(3, np.int32), now_ms=NOW_MS))


def test_a_record_without_a_timestamp_is_one() -> None:
    rows = Rows(None, pa.array([b"a", b"b"]), timestamp=pa.array([-1000, 5000], pa.timestamp("us")))
    (batch,) = encode_rows(rows, np.zeros(2, np.int32), now_ms=NOW_MS)
    decoded = [pieces.timestamp.to_pylist() for pieces in decode_all(batch.data, 0, 2)]
    assert decoded == [[-1, 5]]


# librdkafka


def send(bootstrap: str, topic: str, batches: Iterable[EncodedBatch]) -> None:
    async def work() -> None:
        async with Client(bootstrap) as client:
            pipeline = Sender(client, None)
            await pipeline.send(topic, batches)
            await pipeline.flush()

    blocking.run(work())


def consume(bootstrap: str, topic: str, partition: int, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "check.crcs": True})
    consumer.assign([Place(topic, partition, 0)])
    messages = consumer.consume(count, TIMEOUT_S)
    consumer.close()
    assert [message.error() for message in messages] == [None] * count
    return messages


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_reads_what_is_encoded(broker: EmbeddedBroker, codec: Codec) -> None:
    chance = random.Random(codec)
    topic = broker.topic(partitions=2)
    records = [
        Record(
            0,
            NOW_MS + chance.randrange(-500, 500),
            None if chance.random() < 0.2 else chance.randbytes(chance.randrange(30)),
            None if chance.random() < 0.1 else bytes(chance.choices(b"xyz", k=chance.randrange(1, 300))),
            tuple((f"h{index}", chance.randbytes(3)) for index in range(chance.randrange(3))),
        )
        for _ in range(2_000)
    ]
    rows = Rows(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([[{"key": k, "value": v} for k, v in record.headers] for record in records], HEADERS_TYPE),
        pa.array([record.timestamp for record in records], pa.timestamp("ms")),
    )
    partitions = assign_partitions(rows, 2, StickyPartition())
    send(
        broker.bootstrap,
        topic,
        encode_rows(rows, partitions, now_ms=NOW_MS, codec=codec, max_batch_bytes=20_000),
    )
    for partition in range(2):
        mine = [record for record, where in zip(records, partitions, strict=True) if where == partition]
        messages = consume(broker.bootstrap, topic, partition, len(mine))
        assert [
            Record(0, m.timestamp()[1], m.key(), m.value(), tuple(m.headers() or ()))  # type: ignore[arg-type]
            for m in messages
        ] == mine


def test_librdkafka_chooses_the_same_partitions(broker: EmbeddedBroker) -> None:
    """The same key goes to the same partition as with librdkafka's murmur2_random, which is Kafka's hash."""
    chance = random.Random(12)
    topic = broker.topic(partitions=7)
    keys = [chance.randbytes(chance.randrange(1, 30)) for _ in range(500)]
    theirs: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})

    def delivered(_: object, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes) and partition is not None
        theirs[key] = partition

    for key in keys:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    rows = Rows(pa.array(keys, pa.binary()), pa.array(keys, pa.binary()))
    assert dict(zip(keys, assign_partitions(rows, 7, StickyPartition()).tolist(), strict=True)) == theirs


def test_a_row_larger_than_a_batch_is_a_batch(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    values = [b"a", b"." * 100_000, b"b", b"c"]
    rows = Rows(None, pa.array(values))
    batches = list(encode_rows(rows, np.zeros(4, np.int32), now_ms=NOW_MS, max_batch_bytes=HEADER_BYTES + 100))
    assert [batch.rows for batch in batches] == [1, 1, 2]
    send(broker.bootstrap, topic, batches)
    assert [message.value() for message in consume(broker.bootstrap, topic, 0, 4)] == values

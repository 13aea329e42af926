"""A range of a partition is read whole, over transactions, deletions and restarts of the broker."""

import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from tests.support.broker import BrokerProcess, BrokerThread
from tests.support.waiting import until

from levada.client.errors import ConnectionFailed
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.errors import DataLoss
from levada.spark.read.fetcher import FetchOptions, StreamStalled, fetch_range
from levada.spark.read.rows import read_columns
from levada.testing import EmbeddedBroker
from levada.wire.batches import iterate_headers

TIMEOUT_S = 30.0
SMALL = FetchOptions(fetch_bytes=64 << 10)  # so that a range takes many answers
HASTY = SMALL._replace(fetch_wait_ms=20, stall_timeout_ms=200)
LENIENT = HASTY._replace(fail_on_data_loss=False)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


def produce(bootstrap: str, topic: str, values: Iterable[bytes]) -> None:
    settings = {
        "batch.num.messages": 50,
        "linger.ms": 5,
        "enable.idempotence": True,
    }  # so that retries keep the order
    producer = Producer({"bootstrap.servers": bootstrap} | settings)
    for value in values:
        producer.produce(topic, value + b"." * 200, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def read(bootstrap: str, topic: str, start: int, end: int, options: FetchOptions = SMALL) -> list[tuple[int, bytes]]:
    """Offset and key of each record."""
    pieces = read_columns(bootstrap, TopicPartition(topic, 0), start, end, options=options)
    return [row for piece in pieces for row in zip(piece.offset.to_pylist(), piece.key.to_pylist(), strict=True)]


def expected(keys: Sequence[bytes], start: int, end: int) -> list[tuple[int, bytes]]:
    return list(enumerate(keys))[start:end]


@pytest.mark.parametrize(("start", "end"), [(0, 3_000), (0, 1), (1_234, 1_235), (17, 2_983), (2_999, 3_000), (5, 5)])
def test_a_range_is_exactly_what_was_asked_for(broker: EmbeddedBroker, start: int, end: int) -> None:
    """Though batches begin before it and end after it."""
    topic, keys = broker.topic(), numbers(3_000)
    produce(broker.bootstrap, topic, keys)
    assert read(broker.bootstrap, topic, start, end) == expected(keys, start, end)


def test_chunks_follow_one_another(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbers(3_000))
    position = 10
    chunks = list(fetch_range(broker.bootstrap, TopicPartition(topic, 0), 10, 2_900, SMALL))
    assert len(chunks) > 5
    for chunk in chunks:
        assert chunk.start == position
        assert len(chunk.data) <= SMALL.fetch_bytes
        position = chunk.next_offset
    assert position >= 2_900


def test_a_batch_larger_than_a_fetch_comes_whole(broker: EmbeddedBroker) -> None:
    topic = broker.topic(max_message_bytes=4_000_000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 4_000_000})
    for value in (b"small", b"x" * 2_000_000, b"last"):
        producer.produce(topic, value)
        assert producer.flush(TIMEOUT_S) == 0
    pieces = read_columns(broker.bootstrap, TopicPartition(topic, 0), 0, 3, options=SMALL)
    assert [len(value) for piece in pieces for value in piece.value.to_pylist()] == [5, 2_000_000, 4]


def test_whoever_leaves_in_the_middle_leaves_nothing_behind(broker: EmbeddedBroker) -> None:
    topic, keys = broker.topic(), numbers(3_000)
    produce(broker.bootstrap, topic, keys)
    for _ in range(3):
        chunks = fetch_range(broker.bootstrap, TopicPartition(topic, 0), 0, 3_000, SMALL)
        assert next(chunks).start == 0
        chunks.close()  # type: ignore[attr-defined]
    assert read(broker.bootstrap, topic, 0, 3_000) == expected(keys, 0, 3_000)


# Transactions


def transactions(bootstrap: str, topic: str) -> list[bytes]:
    """Three of them, the second aborted; the keys that stay. Each takes 40 offsets and one for its marker."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "batch.num.messages": 7})
    producer.init_transactions(TIMEOUT_S)
    for part in range(3):
        producer.begin_transaction()
        for key in numbers(40, 40 * part):
            producer.produce(topic, b"." * 200, key)
        if part == 1:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    return numbers(40) + numbers(40, 80)


def test_aborted_records_are_not_read(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    kept = transactions(broker.bootstrap, topic)
    assert [key for _, key in read(broker.bootstrap, topic, 0, 123)] == kept
    assert [key for _, key in read(broker.bootstrap, topic, 60, 123)] == kept[40:]


def test_aborted_records_are_read_by_those_who_want_them(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    transactions(broker.bootstrap, topic)
    found = read(broker.bootstrap, topic, 0, 123, SMALL._replace(read_committed=False))
    assert [key for _, key in found] == numbers(120)


def test_an_open_transaction_is_waited_for_and_named(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for key in numbers(40):
        producer.produce(topic, b"", key)
    producer.flush(TIMEOUT_S)
    with pytest.raises(StreamStalled, match=f"{topic}-0 can be read up to 0 only, not to 40"):
        read(broker.bootstrap, topic, 0, 40, HASTY)
    chunks = fetch_range(broker.bootstrap, TopicPartition(topic, 0), 0, 41, SMALL._replace(fetch_wait_ms=20))
    producer.commit_transaction(TIMEOUT_S)
    assert [chunk.next_offset for chunk in chunks] == [41]


# Logs that have lost something


def test_a_compacted_log_is_read_to_its_end(tmp_path: Path) -> None:
    """Offsets that do not exist any more are passed over, also where a range begins and ends among them."""
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("t", cleanup_policy="compact", segment_bytes=20_000, min_cleanable_dirty_ratio=0.01)
        keys = [b"%d" % (number % 5) for number in range(2_000)]
        produce(broker.bootstrap, "t", keys)
        log, compacted = broker.partition("t").log, tmp_path / "cleaner-offset-checkpoint"
        whole = f"t 0 {log.active.base_offset}\n"  # then nothing changes any more between two readings
        until(lambda: compacted.exists() and compacted.read_text().endswith(whole), "it is not compacted")
        found = read(broker.bootstrap, "t", 0, 2_000)
        assert 5 <= len(found) < 1_000
        assert {key: offset for offset, key in found} == {b"%d" % n: 1_995 + n for n in range(5)}
        assert found == sorted(found)
        assert all(keys[offset] == key for offset, key in found)
        for start, end in [(1, 999), (found[0][0] + 1, 1_999), (10, 11)]:
            assert read(broker.bootstrap, "t", start, end) == [row for row in found if start <= row[0] < end]
        blocking.close()


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.delete_records([Place(topic, 0, offset)]).values()
    done.result(TIMEOUT_S)


def test_records_deleted_before_they_were_read_are_a_loss(broker: EmbeddedBroker) -> None:
    """Retention or DeleteRecords overtook the reader."""
    topic, keys = broker.topic(), numbers(500)
    produce(broker.bootstrap, topic, keys)
    delete_before(broker.bootstrap, topic, 123)
    with pytest.raises(DataLoss, match=f"OFFSET_OUT_OF_RANGE: {topic}-0 begins at 123, offsets from 100 on are gone"):
        read(broker.bootstrap, topic, 100, 500)
    with pytest.warns(
        UserWarning,
        match="begins at 123, offsets from 100 on are gone; the query continues with what is left",
    ):
        assert read(broker.bootstrap, topic, 100, 500, LENIENT) == expected(keys, 123, 500)
    with pytest.warns(UserWarning, match="begins at 123"):
        assert read(broker.bootstrap, topic, 100, 110, LENIENT) == []


def test_records_deleted_in_the_middle_are_a_loss(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbers(3_000))
    chunks = fetch_range(broker.bootstrap, TopicPartition(topic, 0), 0, 3_000, SMALL)
    first = next(chunks)
    delete_before(broker.bootstrap, topic, 2_500)
    with pytest.raises(DataLoss, match="begins at 2500, offsets from"):
        list(chunks)
    assert first.next_offset < 2_500


@pytest.mark.parametrize("start", [50, 900])
def test_a_log_shorter_than_it_was_is_a_loss(broker: EmbeddedBroker, start: int) -> None:
    """A leader that had not all of it was elected; the range was planned before."""
    topic, keys = broker.topic(), numbers(100)
    produce(broker.bootstrap, topic, keys)
    with pytest.raises(DataLoss, match=f"OFFSET_OUT_OF_RANGE: {topic}-0 ends at 100"):
        read(broker.bootstrap, topic, start, 1_000, HASTY)
    with pytest.warns(UserWarning, match=f"{topic}-0 ends at 100"):
        assert read(broker.bootstrap, topic, start, 1_000, LENIENT) == expected(keys, start, 100)


# Topics that come and go


def test_a_deleted_topic_is_a_loss(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker:
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(3_000))
        chunks = fetch_range(broker.bootstrap, TopicPartition("t", 0), 0, 3_000, SMALL)
        next(chunks)
        broker.delete("t")
        with pytest.raises(DataLoss, match="t-0 does not exist any more: its topic was deleted"):
            list(chunks)
        with pytest.warns(UserWarning, match="t-0 does not exist any more"):
            assert read(broker.bootstrap, "t", 0, 3_000, LENIENT) == []
        blocking.close()


def test_a_topic_made_again_is_not_the_old_one(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker:
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(100))
        old = broker.broker.image.topics["t"].id
        broker.delete("t")
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(100))
        place = TopicPartition("t", 0)
        assert len(list(fetch_range(broker.bootstrap, place, 0, 100, SMALL))) > 0
        with pytest.raises(DataLoss, match="UNKNOWN_TOPIC_ID: topic t was deleted and created again"):
            list(fetch_range(broker.bootstrap, place, 0, 100, SMALL, old))
        with pytest.warns(UserWarning, match="created again"):
            assert list(fetch_range(broker.bootstrap, place, 0, 100, LENIENT, old)) == []
        blocking.close()


def test_a_topic_made_again_in_the_middle_is_not_the_old_one(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker:
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(3_000))
        chunks = fetch_range(broker.bootstrap, TopicPartition("t", 0), 0, 3_000, SMALL)
        next(chunks)
        broker.delete("t")
        broker.create("t")
        with pytest.raises(DataLoss, match="created again"):
            list(chunks)
        blocking.close()


@pytest.mark.parametrize("planned", [True, False])
def test_what_a_worker_remembers_of_a_topic_may_be_older_than_the_plan(tmp_path: Path, planned: bool) -> None:
    """Its client is kept from task to task: a topic that was created again is read as it is now."""
    with BrokerThread(tmp_path) as broker:
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(100))
        assert len(read(broker.bootstrap, "t", 0, 100)) == 100
        broker.delete("t")
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(200, 1_000))
        now = broker.broker.image.topics["t"].id if planned else None
        chunks = fetch_range(broker.bootstrap, TopicPartition("t", 0), 0, 200, LENIENT, now)
        assert [chunk.next_offset for chunk in chunks][-1] == 200
        blocking.close()


def test_a_partition_that_is_not_there_is_a_loss(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    with pytest.raises(DataLoss, match="UNKNOWN_TOPIC_OR_PARTITION"):
        list(fetch_range(broker.bootstrap, TopicPartition(topic, 7), 0, 1, SMALL))


# Brokers that fail


@pytest.mark.parametrize(
    "error",
    [
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_SERVER_ERROR",
    ],
)
def test_an_answer_that_heals_is_asked_again(broker: EmbeddedBroker, error: str) -> None:
    topic, keys = broker.topic(), numbers(3_000)
    produce(broker.bootstrap, topic, keys)
    broker.fail_next("fetch", error, times=2)
    assert read(broker.bootstrap, topic, 0, 3_000) == expected(keys, 0, 3_000)


def test_an_answer_that_does_not_heal_is_raised(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbers(10))
    broker.fail_next("fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match=f"TOPIC_AUTHORIZATION_FAILED: {topic}-0 at offset 3"):
        read(broker.bootstrap, topic, 3, 10)


def test_an_answer_that_never_heals_is_raised_in_the_end(broker: EmbeddedBroker) -> None:
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbers(10))
    broker.fail_next("fetch", "NOT_LEADER_OR_FOLLOWER", times=1_000)
    with pytest.raises(KafkaError, match=f"NOT_LEADER_OR_FOLLOWER: {topic}-0 at offset 3"):
        read(broker.bootstrap, topic, 3, 10, SMALL._replace(retry_timeout_ms=500))


def test_a_connection_that_is_lost_is_made_again(broker: EmbeddedBroker) -> None:
    topic, keys = broker.topic(), numbers(3_000)
    produce(broker.bootstrap, topic, keys)
    chunks = fetch_range(broker.bootstrap, TopicPartition(topic, 0), 0, 3_000, SMALL)
    position = next(chunks).next_offset
    broker.drop("fetch", times=2)
    for chunk in chunks:
        assert chunk.start == position
        position = chunk.next_offset
    assert position == 3_000


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    """Killed in the middle of a range."""
    with BrokerProcess(tmp_path) as server:
        produce(server.bootstrap, "t", numbers(5_000))
        chunks = fetch_range(server.bootstrap, TopicPartition("t", 0), 0, 5_000, SMALL)
        position = next(chunks).next_offset
        server.stop(signal.SIGKILL)
        server.start()
        for chunk in chunks:
            assert chunk.start == position
            position = chunk.next_offset
        assert position == 5_000
        blocking.close()


def test_brokers_that_are_not_there_are_named() -> None:
    options = SMALL._replace(request_timeout_ms=200, retry_timeout_ms=300)
    with pytest.raises(ConnectionFailed, match=r"t-0 cannot be read from the brokers at 127.0.0.1:1: .*refused"):
        list(fetch_range("127.0.0.1:1", TopicPartition("t", 0), 0, 10, options))


# Disks that fail


def damage(broker: BrokerThread, topic: str, batch: int, place: int) -> int:
    """Change a byte of a batch in its file; the offset where that batch begins."""
    [path] = (broker.log_dir(topic) / f"{topic}-0").glob("*.log")
    data = bytearray(path.read_bytes())
    position, header = list(iterate_headers(memoryview(bytes(data))))[batch]
    data[position + place] ^= 0x40
    path.write_bytes(data)
    return header.base_offset


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    """What was decoded before it has been given; partition and offset say where to look."""
    with BrokerThread(tmp_path) as broker:
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(3_000))
        offset = damage(broker, "t", 30, 100)
        found: list[int] = []
        pieces = read_columns(broker.bootstrap, TopicPartition("t", 0), 0, 3_000, options=SMALL)
        with pytest.raises(KafkaError, match=f"CORRUPT_MESSAGE: t-0: the batch at offset {offset}: a wrong CRC"):
            found.extend(number for piece in pieces for number in piece.offset.to_pylist())
        assert found == list(range(len(found))) and 0 < len(found) <= offset
        assert read(broker.bootstrap, "t", 0, offset) == expected(numbers(3_000), 0, offset)
        blocking.close()


def test_a_reader_names_where_a_partition_went_offline(tmp_path: Path) -> None:
    """The broker notices a damaged length, and takes the partition offline."""
    with BrokerThread(tmp_path) as broker:
        broker.create("t")
        produce(broker.bootstrap, "t", numbers(3_000))
        damage(broker, "t", 30, 9)
        quick = SMALL._replace(retry_timeout_ms=500)
        with pytest.raises(KafkaError, match=r"(LEADER_NOT_AVAILABLE|KAFKA_STORAGE_ERROR): t-0 at offset \d+"):
            read(broker.bootstrap, "t", 0, 3_000, quick)
        blocking.close()

"""A partition: record validation, visibility of records, and failing disks."""

import errno
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import NOW_MS, split, topic_config

from levada.broker.partition.partition import Partition, PartitionContext
from levada.broker.partition.record_validation import InvalidRecordsError
from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.wire.batches import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    Record,
    crc_is_valid,
    decode,
    encode,
    read_header,
)

LEADER_EPOCH = 7


class World:
    """The broker around a partition, its turn ended by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = FaultyDisk()
        self.scheduled = 0
        self.flush_queue = FlushQueue(self._schedule)
        self.asked_to_sync: list[Partition] = []
        self.failures: list[OSError | CorruptBatchError] = []

    def _schedule(self, _: object) -> None:
        self.scheduled += 1

    def _failed(self, partition: Partition, error: OSError | CorruptBatchError) -> None:
        self.failures.append(error)
        partition.go_offline()

    def open(self, clean: bool = True, topic: str = "orders", **settings: object) -> Partition:
        config = topic_config(**settings)
        log = Log.open(str(self.folder), config, self.disk, now_ms=NOW_MS, clean=clean)
        context = PartitionContext(self.flush_queue, self.asked_to_sync.append, self._failed)
        return Partition(topic, UUID(int=1), 0, LEADER_EPOCH, log, context)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "orders-0")


class Listening:
    def __init__(self) -> None:
        self.received: list[int] = []

    def try_complete(self, published_bytes: int) -> None:
        self.received.append(published_bytes)


def batch_of(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: Codec = Codec.NONE,
    attributes: int = 0,
) -> bytearray:
    records = [Record(i, timestamp + i, key, value) for i, value in enumerate(values)]
    producer_id, epoch, sequence = producer
    return encode(
        records,
        codec=codec,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def append(partition: Partition, batch: bytearray, now_ms: int = NOW_MS) -> int:
    """Append a batch as it would lie in the arena, between other bytes."""
    arena = memoryview(bytearray(b"before") + batch + b"after")
    return partition.append(arena, 6, 6 + len(batch), now_ms)


def stored(partition: Partition) -> list[bytes]:
    """What a consumer gets from the beginning."""
    start = partition.log_start_offset
    if start == partition.high_watermark:
        return []
    return list(split(b"".join(partition.read(start, 1 << 20, minimum_one=True).views)))


def values(partition: Partition) -> list[bytes | None]:
    return [record.value for batch in stored(partition) for record in decode(memoryview(batch))]


def refused(partition: Partition, batch: bytearray, code: ErrorCode, now_ms: int = NOW_MS) -> KafkaError:
    """The batch is refused with that code, and the log is as it was."""
    before = partition.log.next_offset
    with pytest.raises(KafkaError) as caught:
        append(partition, batch, now_ms)
    assert caught.value.code == code
    assert partition.log.next_offset == before
    return caught.value


# Append reserves, publish publishes.


def test_nothing_is_seen_before_the_iteration_ends(world: World) -> None:
    partition, waiter = world.open(), Listening()
    partition.watchers.add(waiter)
    assert [append(partition, batch_of(b"a", b"b")), append(partition, batch_of(b"c"))] == [0, 2]
    assert world.scheduled == 1
    assert (partition.high_watermark, partition.log.log_end_offset, waiter.received) == (0, 0, [])
    assert stored(partition) == []
    world.flush_queue.flush()
    assert partition.high_watermark == partition.log.log_end_offset == 3
    assert values(partition) == [b"a", b"b", b"c"]
    assert waiter.received == [sum(map(len, stored(partition)))]


def test_batches_get_their_offset_and_leader_epoch_and_stay_valid(world: World) -> None:
    partition = world.open()
    sent = [batch_of(b"a", b"b", codec=codec) for codec in Codec]
    for batch in sent:
        append(partition, bytearray(batch))
    world.flush_queue.flush()
    headers = [read_header(batch) for batch in stored(partition)]
    assert [header.base_offset for header in headers] == [0, 2, 4, 6, 8]
    assert {header.partition_leader_epoch for header in headers} == {LEADER_EPOCH}
    assert all(crc_is_valid(memoryview(batch)) for batch in stored(partition))
    assert [batch[16:] for batch in stored(partition)] == [bytes(batch[16:]) for batch in sent]


def test_short_writes_are_finished(world: World) -> None:
    partition = world.open()
    world.disk.short_writes = True
    for number in range(20):
        append(partition, batch_of(b"%d" % number * 100))
    world.flush_queue.flush()
    assert values(partition) == [b"%d" % number * 100 for number in range(20)]


def test_a_full_segment_is_synced_and_its_producers_saved(world: World) -> None:
    partition = world.open(segment_bytes=500)
    append(partition, batch_of(b"x" * 300, producer=(5, 0, 0)))
    assert world.asked_to_sync == []
    append(partition, batch_of(b"y" * 300, producer=(5, 0, 1)))
    world.flush_queue.flush()
    assert world.asked_to_sync == [partition]
    assert partition.log.producer_snapshots.offsets() == [1]
    assert partition.high_watermark == 2


# What may enter.


def test_a_changed_byte_is_noticed(world: World) -> None:
    partition = world.open()
    for position in (21, 40, 60, 61, 70):
        batch = batch_of(b"value")
        batch[position] ^= 1
        refused(partition, batch, ErrorCode.CORRUPT_MESSAGE)
    refused(partition, batch_of(b"x" * 100)[:60], ErrorCode.INVALID_RECORD)


def test_a_batch_must_be_one_and_whole(world: World) -> None:
    partition = world.open()
    refused(partition, bytearray(), ErrorCode.INVALID_RECORD)
    refused(partition, batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD)
    refused(partition, batch_of(b"a" * 100)[:-1], ErrorCode.INVALID_RECORD)
    old = batch_of(b"a")
    old[16] = 1
    refused(partition, old, ErrorCode.INVALID_RECORD)


def test_what_is_too_large_is_reported(world: World) -> None:
    limit = len(batch_of(b"x" * 100))
    partition = world.open(max_message_bytes=limit)
    error = refused(partition, batch_of(b"x" * 101), ErrorCode.MESSAGE_TOO_LARGE)
    assert "max.message.bytes" in error.detail
    assert append(partition, batch_of(b"x" * 100)) == 0


def test_a_batch_larger_than_a_segment_is_refused_and_the_partition_goes_on(world: World) -> None:
    partition = world.open(segment_bytes=200)
    refused(partition, batch_of(b"x" * 300), ErrorCode.RECORD_LIST_TOO_LARGE)
    assert append(partition, batch_of(b"x")) == 0
    world.flush_queue.flush()
    assert values(partition) == [b"x"]


@pytest.mark.parametrize(
    ("attributes", "code"),
    [(CONTROL_BIT, ErrorCode.INVALID_RECORD), (TRANSACTIONAL_BIT, ErrorCode.INVALID_TXN_STATE)],
)
def test_clients_write_no_markers_and_no_transactions(world: World, attributes: int, code: ErrorCode) -> None:
    refused(world.open(), batch_of(b"a", producer=(5, 0, 0), attributes=attributes), code)


def test_records_without_keys_are_reported_one_by_one(world: World) -> None:
    partition = world.open(cleanup_policy="compact")
    records = [Record(i, NOW_MS, key, b"v") for i, key in enumerate([b"k", None, b"", None])]
    error = refused(partition, encode(records), ErrorCode.INVALID_RECORD)
    assert isinstance(error, InvalidRecordsError)
    assert [position for position, _ in error.record_errors] == [1, 3]
    compressed = refused(partition, encode(records, codec=Codec.ZSTD), ErrorCode.INVALID_RECORD)
    assert isinstance(compressed, InvalidRecordsError)
    assert append(partition, batch_of(b"v", key=b"k")) == 0


def test_times_far_from_now_are_reported_one_by_one(world: World) -> None:
    partition = world.open(message_timestamp_after_max_ms=1000, message_timestamp_before_max_ms=5000)
    for shift, positions in ((2_000, [0, 1]), (1_000, [1]), (-5_001, [0]), (-6_000, [0, 1])):
        batch = batch_of(b"a", b"b", timestamp=NOW_MS + shift)
        error = refused(partition, batch, ErrorCode.INVALID_TIMESTAMP)
        assert isinstance(error, InvalidRecordsError)
        assert [position for position, _ in error.record_errors] == positions
    assert append(partition, batch_of(b"a", timestamp=NOW_MS - 5_000)) == 0


def test_log_append_time_is_stamped_and_signed(world: World) -> None:
    partition = world.open(message_timestamp_type="LogAppendTime")
    append(partition, batch_of(b"a", b"b", timestamp=1), now_ms=NOW_MS + 5)
    append(partition, batch_of(b"c", codec=Codec.LZ4, timestamp=1), now_ms=NOW_MS + 6)
    world.flush_queue.flush()
    batches = stored(partition)
    assert all(crc_is_valid(memoryview(batch)) for batch in batches)
    assert [read_header(batch).timestamp_type for batch in batches] == [1, 1]
    times = [record.timestamp for batch in batches for record in decode(memoryview(batch))]
    assert times == [NOW_MS + 5, NOW_MS + 5, NOW_MS + 6]


# Producers.


def test_a_duplicate_is_answered_with_its_first_offset(world: World) -> None:
    """Also while the first is not yet written."""
    partition = world.open()
    append(partition, batch_of(b"other"))
    first, second = batch_of(b"a", b"b", producer=(5, 0, 0)), batch_of(b"c", producer=(5, 0, 2))
    assert [append(partition, bytearray(batch)) for batch in (first, second, first, second)] == [1, 3, 1, 3]
    world.flush_queue.flush()
    assert [append(partition, bytearray(batch)) for batch in (first, second)] == [1, 3]
    assert values(partition) == [b"other", b"a", b"b", b"c"]


def test_sequences_have_no_gaps(world: World) -> None:
    partition = world.open()
    append(partition, batch_of(b"a", producer=(5, 3, 0)))
    refused(partition, batch_of(b"c", producer=(5, 3, 2)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    refused(partition, batch_of(b"z", producer=(5, 2, 1)), ErrorCode.INVALID_PRODUCER_EPOCH)
    refused(partition, batch_of(b"x", producer=(5, 3, -1)), ErrorCode.INVALID_RECORD)
    assert append(partition, batch_of(b"b", producer=(5, 3, 1))) == 1


@pytest.mark.parametrize("end", ["closed", "crashed", "crashed and its snapshots damaged"])
def test_duplicates_are_known_after_a_restart(world: World, end: str) -> None:
    """From the snapshot, from the log after it, from the log alone."""
    partition = world.open(segment_bytes=400)
    batches = [batch_of(b"%d" % number * 200, producer=(5, 0, number)) for number in range(6)]
    for batch in batches:
        append(partition, bytearray(batch))
        world.flush_queue.flush()
    if end == "closed":
        partition.close()
    for snapshot in world.folder.glob("*.snapshot") if "damaged" in end else ():
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    again = world.open(clean=end == "closed", segment_bytes=400)
    assert again.high_watermark == 6
    assert [append(again, bytearray(batch)) for batch in batches[1:]] == [1, 2, 3, 4, 5]
    assert append(again, batch_of(b"new", producer=(5, 0, 6))) == 6
    refused(again, batch_of(b"gap", producer=(5, 0, 8)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


# The disk.


def test_acks_wait_for_the_disk(world: World) -> None:
    """levada.acks.wait.for.fsync: neither visible nor acknowledged before."""
    partition, waiter = world.open(levada_acks_wait_for_fsync="true"), Listening()
    partition.watchers.add(waiter)
    append(partition, batch_of(b"a"))
    world.flush_queue.flush()
    assert world.asked_to_sync == [partition]
    assert (partition.log.log_end_offset, partition.high_watermark, waiter.received) == (1, 0, [])
    assert stored(partition) == []
    partition.log.flush()
    append(partition, batch_of(b"after the fsync began"))
    world.flush_queue.flush()
    partition.synced()
    assert partition.high_watermark == 1 and values(partition) == [b"a"]
    assert len(waiter.received) == 1
    partition.log.flush()
    partition.synced()
    assert values(partition) == [b"a", b"after the fsync began"]


def test_who_waits_for_the_disk_is_served_when_the_topic_no_longer_does(world: World) -> None:
    partition = world.open(levada_acks_wait_for_fsync="true")
    append(partition, batch_of(b"a"))
    world.flush_queue.flush()
    partition.configure(topic_config())
    partition.log.flush()
    partition.synced()
    assert values(partition) == [b"a"]


def test_messages_are_synced_after_so_many(world: World) -> None:
    partition = world.open(flush_messages=5)
    for number in range(4):
        append(partition, batch_of(b"%d" % number))
        world.flush_queue.flush()
    assert world.asked_to_sync == []
    append(partition, batch_of(b"4"))
    world.flush_queue.flush()
    assert world.asked_to_sync == [partition]
    partition.log.flush()
    partition.synced()
    append(partition, batch_of(b"5"))
    world.flush_queue.flush()
    assert world.asked_to_sync == [partition]


def test_messages_are_synced_after_so_long(world: World) -> None:
    partition = world.open(flush_ms=1000)
    append(partition, batch_of(b"a"))
    world.flush_queue.flush()
    for after_ms, asked in ((0, 0), (999, 0), (1000, 1)):
        partition.flush_if_due(NOW_MS + after_ms)
        assert len(world.asked_to_sync) == asked
    partition.log.flush()
    partition.flush_if_due(NOW_MS + 5000)
    assert len(world.asked_to_sync) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_is_never_seen(world: World, number: int) -> None:
    partition, waiter = world.open(), Listening()
    append(partition, batch_of(b"good"))
    world.flush_queue.flush()
    partition.watchers.add(waiter)
    world.disk.fail("pwritev", world.folder, number)
    append(partition, batch_of(b"bad"))
    world.flush_queue.flush()
    assert [error.errno for error in world.failures if isinstance(error, OSError)] == [number]
    assert (partition.high_watermark, partition.offline, waiter.received) == (1, True, [0])
    refused(partition, batch_of(b"more"), ErrorCode.KAFKA_STORAGE_ERROR)
    for read in (lambda: partition.read(0, 100, minimum_one=True), lambda: partition.delete_records(1)):
        with pytest.raises(KafkaError) as caught:
            read()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    world.disk.broken.clear()
    assert values(world.open(clean=False)) == [b"good"]


def test_a_failed_roll_is_reported_to_the_appender(world: World) -> None:
    partition = world.open(segment_bytes=300)
    append(partition, batch_of(b"x" * 150))
    world.disk.fail("open", world.folder)
    refused(partition, batch_of(b"y" * 150), ErrorCode.KAFKA_STORAGE_ERROR)
    assert partition.offline and len(world.failures) == 1


def test_a_failed_read_is_reported(world: World) -> None:
    partition = world.open()
    append(partition, batch_of(b"a"))
    world.flush_queue.flush()
    world.disk.fail("pread", world.folder)
    with pytest.raises(KafkaError) as caught:
        partition.read(0, 100, minimum_one=True)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.offline and len(world.failures) == 1


def test_a_bug_while_publishing_takes_one_partition_and_not_the_iteration(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other_world = World(tmp_path / "orders-1")
    other_world.flush_queue = world.flush_queue
    partition, other = world.open(), other_world.open()
    append(partition, batch_of(b"a"))
    append(other, batch_of(b"b"))

    def bug(self: Log) -> None:
        if self is partition.log:
            raise RuntimeError("planted")
        original(self)

    original = Log.publish
    monkeypatch.setattr(Log, "publish", bug)
    world.flush_queue.flush()
    assert (partition.offline, other.offline, values(other)) == (True, False, [b"b"])
    append(other, batch_of(b"c"))
    world.flush_queue.flush()
    assert values(other) == [b"b", b"c"]


# Giving up, and epochs.


def test_records_are_deleted_up_to_the_high_watermark(world: World) -> None:
    partition = world.open()
    for number in range(3):
        append(partition, batch_of(b"%d" % number))
    world.flush_queue.flush()
    assert partition.delete_records(2) == 2
    assert values(partition) == [b"2"]
    for offset in (-2, 4):
        with pytest.raises(KafkaError) as caught:
            partition.delete_records(offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("topic", "policy", "code"),
    [
        ("__consumer_offsets", "compact,delete", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("orders", "compact", ErrorCode.POLICY_VIOLATION),
    ],
)
def test_records_that_clients_may_not_delete(topic: str, policy: str, code: ErrorCode, world: World) -> None:
    partition = world.open(topic=topic, cleanup_policy=policy)
    with pytest.raises(KafkaError) as caught:
        partition.delete_records(0)
    assert caught.value.code is code


def test_clients_with_another_epoch_look_again(world: World) -> None:
    partition = world.open()
    partition.check_leader_epoch(-1)
    partition.check_leader_epoch(LEADER_EPOCH)
    for epoch, code in (
        (LEADER_EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (LEADER_EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        with pytest.raises(KafkaError) as caught:
            partition.check_leader_epoch(epoch)
        assert caught.value.code == code


def test_settings_are_taken_over_while_running(world: World) -> None:
    partition = world.open()
    append(partition, batch_of(b"x" * 100))
    configs: Iterator[TopicConfig] = iter(
        [topic_config(max_message_bytes=80), topic_config(message_timestamp_type="LogAppendTime")]
    )
    partition.configure(next(configs))
    refused(partition, batch_of(b"x" * 100), ErrorCode.MESSAGE_TOO_LARGE)
    partition.configure(next(configs))
    append(partition, batch_of(b"x" * 100, timestamp=1))
    world.flush_queue.flush()
    assert [read_header(batch).max_timestamp for batch in stored(partition)] == [NOW_MS, NOW_MS]

"""Bugs that the simulator found, each as a small history of its own."""

from collections.abc import Mapping
from random import Random
from typing import cast
from uuid import UUID

import pytest
from tests.sim.partition.world import SimFlushQueue

from levada.broker.partition.partition import Partition, PartitionContext
from levada.config.topic import TopicConfig, TopicDefaults
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.testing.sim_disk import SimDisk
from levada.wire import batches

DIRECTORY = "/data/t-0"
NOW_MS = 1_700_000_000_000
SEEDS = range(150)


def open_log(disk: SimDisk, recovery_point: int = 0, overrides: Mapping[str, str] | None = None) -> Log:
    config = TopicConfig.build(TopicDefaults(), {"segment.bytes": "4000", **(overrides or {})})
    return Log.open(DIRECTORY, config, disk, now_ms=NOW_MS, clean=False, recovery_point=recovery_point)


def append(log: Log, value: bytes) -> None:
    record = batches.Record(0, NOW_MS, None, value, ())
    log.reserve(memoryview(batches.encode([record], base_offset=log.next_offset)), 1, NOW_MS, NOW_MS)
    log.publish()


def values(log: Log) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < log.log_end_offset:
        data = memoryview(b"".join(log.read(len(found), 1 << 20, log.log_end_offset, minimum_one=True).views))
        for position, header in batches.iterate_headers(data):
            found += [record.value or b"" for record in batches.decode(data[position : position + header.size])]
    return found


def new_disk(seed: int) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.mkdir("/data")
    disk.fsync_dir("/")
    return disk


@pytest.mark.parametrize("cut", SEEDS)
def test_a_synced_log_keeps_its_folder(cut: int) -> None:
    """The name of a new partition's folder stands in the data dir, which must be synced with the first batch."""
    disk = new_disk(cut)
    log = open_log(disk)
    append(log, b"kept")
    log.flush()
    disk.cut_power()
    assert values(open_log(disk)) == [b"kept"]


@pytest.mark.parametrize("cut", SEEDS)
def test_a_dropped_segment_does_not_come_back_behind_other_batches(cut: int) -> None:
    """After a cut the later segments go; if only their names were gone in memory, the next power cut revived them."""
    disk = new_disk(cut)
    log = open_log(disk)
    append(log, b"synced")
    first = log.active.path
    whole = disk.contents()[first]
    append(log, b"lost")
    log.roll(NOW_MS)
    append(log, b"phantom")
    log.flush()
    disk.kill()
    disk.overwrite(first, whole)
    log = open_log(disk, recovery_point=1)
    assert log.log_end_offset == 1
    append(log, b"other")
    fd = disk.open(first)
    disk.fsync(fd)
    disk.cut_power()
    assert values(open_log(disk, recovery_point=1)) == [b"synced", b"other"]


@pytest.mark.parametrize("cut", SEEDS)
def test_a_snapshot_of_a_lost_tail_does_not_come_back(cut: int) -> None:
    """It would tell of producers that the batches now in its place know nothing of."""
    disk = new_disk(cut)
    log = open_log(disk)
    append(log, b"synced")
    log.flush()
    append(log, b"lost" * 200)
    log.producer_snapshots.write(2, b"a state that was")
    disk.cut_power()
    log = open_log(disk, recovery_point=1)
    if log.log_end_offset == 1:
        append(log, b"other")
        append(log, b"more")
        disk.cut_power()
        assert 2 not in open_log(disk, recovery_point=1).producer_snapshots.offsets()


@pytest.mark.parametrize("cut", SEEDS)
def test_a_segment_that_was_removed_is_not_missed_after_a_clean_stop(cut: int) -> None:
    """A power cut after the stop brings the names of its indexes back; nobody has taken its log away."""
    disk = new_disk(cut)
    log = open_log(disk)
    append(log, b"removed")
    log.roll(NOW_MS)
    append(log, b"kept")
    log.flush()
    log.delete_records(1)
    assert log.apply_retention(NOW_MS) == 1
    log.close(clean=True)
    disk.cut_power()
    config = TopicConfig.build(TopicDefaults(), {})
    opened = Log.open(DIRECTORY, config, disk, now_ms=NOW_MS, clean=True, recovery_point=2, log_start_offset=1)
    assert (opened.log_start_offset, opened.log_end_offset) == (1, 2)


def test_a_retry_after_a_kill_is_not_answered_before_it_is_synced() -> None:
    """The page cache outlives the process; the acknowledgement of a duplicate must not be older than the fsync."""
    disk = new_disk(1)
    waits = {"levada.acks.wait.for.fsync": "true"}
    flush_queue = SimFlushQueue()
    context = PartitionContext(cast(FlushQueue, flush_queue), lambda partition: None, lambda partition, error: None)
    partition = Partition("t", UUID(int=1), 0, 0, open_log(disk, overrides=waits), context)
    record = batches.Record(0, NOW_MS, None, b"once", ())
    batch = batches.encode([record], producer_id=7, producer_epoch=0, base_sequence=0)
    partition.append(memoryview(batch), 0, len(batch), NOW_MS)
    flush_queue.flush()
    assert partition.high_watermark == 0  # nobody asked the disk yet
    disk.kill()
    partition = Partition("t", UUID(int=1), 0, 0, open_log(disk, overrides=waits), context)
    assert partition.append(memoryview(batch), 0, len(batch), NOW_MS) == 0
    assert partition.high_watermark == 1  # a duplicate is answered at once
    disk.cut_power()
    assert values(open_log(disk, overrides=waits)) == [b"once"]


def test_a_search_by_time_between_reserve_and_publish_forgets_nothing() -> None:
    """The indexes run ahead of the file; found wanting, they were made again without what was about to be written."""
    log = open_log(new_disk(1), overrides={"index.interval.bytes": "0"})
    for number in range(10):
        record = batches.Record(0, NOW_MS + number, None, b"x" * 50, ())
        data = memoryview(batches.encode([record], base_offset=log.next_offset))
        log.reserve(data, 1, record.timestamp, NOW_MS)
    assert log.offset_for_timestamp(NOW_MS + 5) == (NOW_MS + 5, 5)
    log.publish()
    assert log.offset_for_timestamp(NOW_MS + 9) == (NOW_MS + 9, 9)
    assert log.max_timestamp() == (NOW_MS + 9, 9)

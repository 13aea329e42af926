"""Logs of followers: batches as the leader sent them, gaps of compaction, and truncation in a thread."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from struct import pack_into
from uuid import UUID

import pytest
from tests.support.logs import NOW_MS, QuickDisk, make_batch, open_log, read_all

from levada.broker.log_files.truncation import LogTruncations
from levada.broker.partition.follower import OffsetsMissingError, append_received
from levada.broker.partition.partition import Partition, PartitionContext
from levada.errors import ErrorCode, KafkaError
from levada.net.flush import FlushQueue
from levada.storage.handles import FileHandleCache
from levada.storage.log.log import Log

DISK = QuickDisk()


def follower(log: Log, leader_epoch: int = 3) -> Partition:
    context = PartitionContext(FlushQueue(lambda _: None), lambda _: None, lambda *_: None)
    partition = Partition("orders", UUID(int=1), 0, -1, log, context, high_watermark=0)
    partition.follow(leader_epoch)
    return partition


def receive(partition: Partition, *batches: bytes, compacted: bool = False) -> int:
    return append_received(partition, memoryview(b"".join(batches)), NOW_MS, lambda _: compacted)


def test_batches_are_appended_as_received(tmp_path: Path) -> None:
    partition = follower(open_log(tmp_path / "orders-0"))
    sent = [make_batch(0, 3, leader_epoch=1), make_batch(3, leader_epoch=2), make_batch(4, leader_epoch=2)]
    assert receive(partition, *sent) == sum(map(len, sent))
    assert read_all(partition.log) == sent
    assert partition.log.leader_epochs.entries == [(1, 0), (2, 3)]
    assert partition.written_offset == 5 and partition.high_watermark == 0
    partition.advance_follower(4, 0)
    assert partition.high_watermark == 4
    partition.advance_follower(99, 0)
    assert partition.high_watermark == 5


def test_what_is_already_there_is_skipped_and_the_rest_of_a_response_is_left(tmp_path: Path) -> None:
    partition = follower(open_log(tmp_path / "orders-0"))
    first, second, third = make_batch(0, 2), make_batch(2), make_batch(3)
    receive(partition, first)
    assert receive(partition, first, second, third[:-1]) == len(second)
    assert read_all(partition.log) == [first, second]


@pytest.mark.parametrize("damage", ["crc", "offset", "epoch"])
def test_an_invalid_batch_does_not_spread(tmp_path: Path, damage: str) -> None:
    partition = follower(open_log(tmp_path / "orders-0"))
    good, bad = make_batch(0, leader_epoch=2), bytearray(make_batch(1, 2, leader_epoch=2))
    if damage == "crc":
        bad[-1] ^= 1
    elif damage == "offset":
        pack_into(">q", bad, 0, 0)
    else:
        pack_into(">i", bad, 12, 1)
    with pytest.raises(KafkaError) as refused:
        receive(partition, good, bytes(bad))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert read_all(partition.log) == [good] and partition.written_offset == 1


def test_gaps_of_compaction_are_kept_once_that_is_recorded(tmp_path: Path) -> None:
    partition = follower(open_log(tmp_path / "orders-0", segment_bytes=300))
    sent = [make_batch(0), make_batch(10, 2), make_batch(100), make_batch(101), make_batch(5_000), make_batch(9_000)]
    with pytest.raises(OffsetsMissingError):
        receive(partition, *sent)
    assert read_all(partition.log) == sent[:1]
    receive(partition, *sent[1:], compacted=True)
    assert read_all(partition.log) == sent
    assert len(partition.log.segments) > 1
    partition.log.close(clean=False)
    again = open_log(tmp_path / "orders-0", clean=False, segment_bytes=300, power_lost=False, may_have_gaps=True)
    assert read_all(again) == sent


def test_a_restarted_log_is_found_again_after_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path / "orders-0", segment_bytes=150)
    partition = follower(log)
    receive(partition, *[make_batch(offset) for offset in range(5)])
    log.producer_snapshots.write(3, partition.producers.encode_snapshot(3))
    log.restart_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.leader_epochs.entries) == (100, 100, [])
    receive(partition, make_batch(100, leader_epoch=2))
    log.close(clean=False)
    again = open_log(tmp_path / "orders-0", clean=False, power_lost=False)
    assert (again.log_start_offset, again.log_end_offset) == (100, 101)
    assert again.leader_epochs.entries == [(2, 100)]


class Owner:
    """What truncations need of the log dirs."""

    def __init__(self) -> None:
        self.handles = FileHandleCache(DISK, 64)
        self.written = 0
        self.errors: list[Exception] = []

    def forget_checkpoints(self, partitions: Iterable[Partition]) -> None: ...

    def write_checkpoints(self) -> None:
        self.written += 1

    def use_shared_handles(self, partition: Partition) -> None:
        partition.log.use(self.handles)

    def failed(self, partition: Partition, error: Exception) -> None:
        self.errors.append(error)


@pytest.mark.slow
def test_a_large_segment_is_truncated_beside_the_event_loop(tmp_path: Path) -> None:
    """The loop is not blocked while a GiB is copied, and nothing reads the log meanwhile."""
    log = open_log(tmp_path / "orders-0", segment_bytes=(1 << 31) - 1)
    partition = follower(log)
    receive(partition, make_batch(0), make_batch(1, leader_epoch=1))
    size = log.active.size
    with open(log.active.path, "r+b") as file:  # a hole before the last two batches
        head, tail = bytearray(file.read(len(make_batch(0)))), file.read()
        hole = 1 << 30
        pack_into(">i", head, 8, len(head) - 12 + hole)
        file.seek(0)
        file.write(head)
        file.truncate(len(head) + hole)
        file.seek(len(head) + hole)
        file.write(tail)
    log.active.size = log._end = size + hole
    log.active.reset_indexes()
    owner = Owner()

    async def main() -> None:
        truncations = LogTruncations(DISK, owner)
        done = asyncio.get_running_loop().create_future()
        truncations.done = done.set_result
        truncations.request(partition, 1, restart=False)
        assert partition.truncating
        with pytest.raises(KafkaError):
            partition.read(0, 100, True)
        beats = 0
        while not done.done():
            await asyncio.sleep(0.001)
            beats += 1
        assert beats > 1  # the loop goes on
        truncations.close()

    asyncio.run(main())
    assert not owner.errors and owner.written == 1 and not partition.truncating
    assert log.log_end_offset == partition.written_offset == 1
    assert log.active.size == os.path.getsize(log.active.path) == len(make_batch(0)) + (1 << 30)
    assert log.leader_epochs.entries == [(0, 0)]
    receive(partition, make_batch(1, leader_epoch=2))
    assert log.log_end_offset == 2

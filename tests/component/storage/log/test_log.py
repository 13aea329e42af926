"""The log against a list of batches: published batches are read in order, by every way of reading."""

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.logs import NOW_MS, QuickDisk, append, make_batch, open_log, read_all, split, topic_config

from levada.errors import ErrorCode, KafkaError
from levada.storage.disk import OsDisk
from levada.storage.handles import FileHandleCache
from levada.storage.log.deletion import rename_deleted_log
from levada.storage.log.log import Log
from levada.wire.batches import read_header


def test_a_reserved_batch_is_seen_only_once_published(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    batch = make_batch(0, 3)
    log.reserve(memoryview(batch), 3, NOW_MS + 2, NOW_MS)
    assert (log.next_offset, log.log_end_offset, log.size_bytes) == (3, 0, 0)
    assert log.read(0, 1000, log.log_end_offset, True).size == 0
    log.publish()
    assert (log.log_end_offset, log.size_bytes) == (3, len(batch))
    assert read_all(log) == [batch]


def test_one_write_takes_thousands_of_batches(tmp_path: Path) -> None:
    """More iovecs than one call takes, and a disk that writes less than it is given."""

    class Stingy(QuickDisk):
        calls = 0

        def pwritev(self, fd: int, views: Sequence[bytes | memoryview], position: int, /) -> int:  # type: ignore[override]
            Stingy.calls += 1
            return os.pwrite(fd, b"".join(views)[:777], position)

    log = Log.open(str(tmp_path / "t-0"), topic_config(), Stingy(), now_ms=NOW_MS, clean=True)
    batches = [make_batch(offset) for offset in range(2_500)]
    for batch in batches:
        log.reserve(memoryview(batch), 1, NOW_MS, NOW_MS)
    log.publish()
    assert Stingy.calls > 1
    assert read_all(log) == batches


def test_offsets_outside_the_log_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(10):
        append(log)
    log.delete_records(4)
    for offset in (-1, 3, 11):
        with pytest.raises(KafkaError) as raised:
            log.read(offset, 100, log.log_end_offset, True)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(10, 100, 10, True).size == 0


def test_only_batches_below_the_end_offset_are_read(tmp_path: Path) -> None:
    """No reader sees a batch at or past the high watermark."""
    log = open_log(tmp_path / "t-0", segment_bytes=1000)
    batches = [append(log, count=2, value=b"x" * 50) for _ in range(40)]
    for end in range(0, 81, 2):
        for offset in range(end):
            data = b"".join(log.read(offset, 1 << 20, end, True).views)
            found = list(split(data))
            assert found[0] == batches[offset // 2]
            assert read_header(found[-1]).last_offset < end
        assert log.read(end, 1000, end, True).size == 0


def test_a_large_first_batch_is_read_only_if_one_is_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    big = append(log, value=b"x" * 5000)
    append(log)
    assert b"".join(log.read(0, 100, 2, True).views) == big
    assert log.read(0, 100, 2, False).size == 0


def test_segments_roll_by_size_age_and_full_index(tmp_path: Path) -> None:
    by_size = open_log(tmp_path / "size-0", segment_bytes=1000)
    for _ in range(30):
        append(by_size, value=b"x" * 100)
    assert len(by_size.segments) > 3
    assert all(segment.size <= 1000 for segment in by_size.segments)

    by_age = open_log(tmp_path / "age-0", segment_ms=1000)
    for timestamp in (0, 500, 1000, 1001, 1500, 2001, 2002):
        append(by_age, timestamp=timestamp)
    assert [segment.base_offset for segment in by_age.segments] == [0, 3, 6]

    by_index = open_log(tmp_path / "index-0", segment_index_bytes=40, index_interval_bytes=0)
    for _ in range(30):
        append(by_index)
    assert all(len(segment.offset_index) <= 5 for segment in by_index.segments)
    assert len(by_index.segments) == 5
    for log in (by_size, by_age, by_index):
        assert len(read_all(log)) == log.log_end_offset


def test_a_log_without_timestamps_rolls_by_the_clock(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_ms=1000)
    for now_ms in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001):
        log.reserve(memoryview(make_batch(log.next_offset, timestamp=-1)), 1, -1, now_ms)
        log.publish()
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_offsets_too_far_for_an_index_begin_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=0)
    append(log)
    far = make_batch(1)
    log.reserve(memoryview(far), 2**31 - 3, NOW_MS, NOW_MS)
    log.reserve(memoryview(make_batch(log.next_offset)), 1, NOW_MS, NOW_MS)
    log.reserve(memoryview(make_batch(log.next_offset)), 1, NOW_MS, NOW_MS)
    log.publish()
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 - 1]


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    with pytest.raises(KafkaError) as raised:
        append(log, value=b"x" * 300)
    assert raised.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    append(log)


def test_new_settings_hold_for_the_next_append(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, value=b"x" * 500)
    log.config = topic_config(segment_bytes=600)
    append(log, value=b"x" * 400)
    assert len(log.segments) == 2


def test_the_roll_is_reported_before_the_batch_that_caused_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    rolls: list[tuple[int, int]] = []
    log.on_roll = lambda offset: rolls.append((offset, log.log_end_offset))
    for _ in range(5):
        append(log, value=b"x" * 150)
    assert rolls == [(1, 1), (2, 2), (3, 3), (4, 4)]


class FailingDisk(QuickDisk):
    """Fails the next calls of one kind."""

    __slots__ = ("broken",)

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""

    def pwritev(self, fd: int, views: Sequence[bytes | memoryview], position: int, /) -> int:  # type: ignore[override]
        if self.broken == "write":
            os.pwrite(fd, b"".join(views)[:40], position)
            raise OSError(errno.ENOSPC, "disk full")
        return os.pwritev(fd, views, position)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        if self.broken == "fsync":
            raise OSError(errno.EIO, "fsync")
        super().fsync(fd)


def test_a_failed_write_publishes_nothing_and_is_final(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = Log.open(str(tmp_path / "t-0"), topic_config(), disk, now_ms=NOW_MS, clean=True)
    kept = append(log)
    disk.broken = "write"
    with pytest.raises(OSError, match="disk full"):
        append(log)
    assert (log.log_end_offset, log.size_bytes) == (1, len(kept))
    disk.broken = ""
    with pytest.raises(OSError, match="disk full"):
        append(log)
    with pytest.raises(OSError, match="disk full"):
        log.flush()
    log.close(clean=False)
    again = Log.open(str(tmp_path / "t-0"), topic_config(), disk, now_ms=NOW_MS, clean=False)
    assert read_all(again) == [kept]


def test_a_failed_fsync_is_never_taken_back(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = Log.open(str(tmp_path / "t-0"), topic_config(), disk, now_ms=NOW_MS, clean=True)
    append(log)
    log.flush()
    append(log)
    disk.broken = "fsync"
    with pytest.raises(OSError, match="fsync"):
        log.flush()
    disk.broken = ""
    with pytest.raises(OSError, match="fsync"):
        log.flush()
    assert log.recovery_point == 1
    with pytest.raises(OSError, match="fsync"):
        log.close(clean=True)


def test_flush_moves_the_recovery_point_over_closed_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for _ in range(10):
        append(log, value=b"x" * 150)
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 10
    disk = log.active.disk
    assert isinstance(disk, QuickDisk)
    before = disk.fsyncs
    append(log, value=b"x" * 150)
    log.flush()
    assert disk.fsyncs - before <= 3  # the file written since, the new one, and their folder


def test_few_handles_serve_many_logs(tmp_path: Path) -> None:
    """2,000 partitions must fit the limit of open files."""
    handles = FileHandleCache(QuickDisk(), 16)
    logs = [open_log(tmp_path / f"t-{number}", handles=handles) for number in range(50)]
    before = len(os.listdir("/proc/self/fd"))
    wanted: dict[int, list[bytes]] = {number: [] for number in range(50)}
    chance = random.Random(1)
    for _ in range(1_000):
        number = chance.randrange(50)
        wanted[number].append(append(logs[number], value=b"x" * chance.randrange(2_000)))
        if chance.random() < 0.1:
            assert read_all(logs[number]) == wanted[number]
    assert len(handles) <= 8
    assert len(os.listdir("/proc/self/fd")) - before <= 16
    for number, log in enumerate(logs):
        assert read_all(log) == wanted[number]
        log.close(clean=True)
    assert len(handles) == 0


def test_a_slice_outlives_truncation_retention_and_eviction(tmp_path: Path) -> None:
    """Readers have files mapped: they are replaced or unlinked, never shrunk."""
    log = open_log(tmp_path / "t-0", segment_bytes=1 << 20, retention_bytes=0)
    batches = [append(log, value=os.urandom(60_000)) for _ in range(40)]
    pieces = [(offset, log.read(offset, 1 << 19, 40, True)) for offset in range(0, 40, 3)]
    assert any(isinstance(piece.views[0], memoryview) for _, piece in pieces)
    log.truncate_to(20)
    log.apply_retention(NOW_MS)
    log.delete_segment_files()
    log.close(clean=False)
    for offset, piece in pieces:
        found = list(split(b"".join(piece.views)))
        assert found == batches[offset : offset + len(found)]


def test_epochs_tell_where_they_end(tmp_path: Path) -> None:
    """As Kafka's LeaderEpochFileCache answers OffsetsForLeaderEpoch."""
    log = open_log(tmp_path / "t-0")
    for epoch, count in ((2, 5), (3, 0), (5, 4)):
        log.assign_epoch(epoch)
        for _ in range(count):
            append(log, leader_epoch=epoch)
    assert log.leader_epochs.entries == [(2, 0), (5, 5)]
    assert log.epoch_end_offset(5) == (5, 9)
    assert log.epoch_end_offset(6) == (-1, -1)
    assert log.epoch_end_offset(4) == log.epoch_end_offset(2) == (2, 5)
    assert log.epoch_end_offset(1) == (1, 0)
    assert log.epoch_end_offset(-1) == (-1, -1)
    log.close(clean=True)
    assert open_log(tmp_path / "t-0").leader_epochs.entries == [(2, 0), (5, 5)]
    os.unlink(tmp_path / "t-0" / "leader-epoch-checkpoint")
    log = open_log(tmp_path / "t-0")
    assert log.leader_epochs.entries == [(2, 0), (5, 5)]
    log.delete_records(7)
    assert log.leader_epochs.entries == [(5, 7)]
    log.truncate_to(7)
    assert log.leader_epochs.entries == []


def test_records_are_found_by_time(tmp_path: Path) -> None:
    """Timestamps need not rise; the first record in the log that is late enough counts."""
    chance = random.Random(7)
    log = open_log(tmp_path / "t-0", segment_bytes=2_000, segment_ms=10**12)
    times: list[int] = []
    for _ in range(120):
        count = chance.randrange(1, 4)
        timestamp = chance.randrange(1_000) if chance.random() < 0.9 else -5
        append(log, count, b"x" * chance.randrange(100), max(timestamp, 0))
        times += [max(timestamp, 0) + i for i in range(count)]
    for reopened in (log, _reopen(log, tmp_path / "t-0")):
        for start in (0, 50):
            reopened.delete_records(start)
            for timestamp in range(-1, 1_010, 7):
                wanted = next(((t, o) for o, t in enumerate(times) if t >= timestamp and o >= start), None)
                assert reopened.offset_for_timestamp(timestamp) == wanted
        assert reopened.max_timestamp() == (max(times), times.index(max(times)))
        reopened.log_start_offset = 0
    assert open_log(tmp_path / "empty-0").max_timestamp() == (-1, -1)


def _reopen(log: Log, folder: Path) -> Log:
    log.close(clean=True)
    return open_log(folder, segment_bytes=2_000, segment_ms=10**12)


def test_retention_by_time_takes_the_old_and_rolls_an_expired_active_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300, retention_ms=1_000)
    for number in range(10):
        append(log, value=b"x" * 150, timestamp=NOW_MS + 100 * number)
    assert log.apply_retention(NOW_MS + 1_000) == 0
    assert log.apply_retention(NOW_MS + 1_301) == 4
    assert (log.log_start_offset, log.log_end_offset) == (4, 10)
    assert log.apply_retention(NOW_MS + 10_000, end_offset=8) == 4
    assert log.apply_retention(NOW_MS + 10_000) == 2
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    log.delete_segment_files()
    assert sorted(name for name in os.listdir(tmp_path / "t-0") if name.endswith(".log")) == [f"{10:020d}.log"]
    append(log)
    log.close(clean=True)
    assert open_log(tmp_path / "t-0").log_start_offset == 10


def test_retention_without_timestamps_goes_by_the_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", retention_ms=1_000)
    log.reserve(memoryview(make_batch(0, timestamp=-1)), 1, -1, NOW_MS)
    log.publish()
    os.utime(log.active.path, (NOW_MS / 1000, NOW_MS / 1000))
    assert log.apply_retention(NOW_MS + 1_000) == 0
    assert log.apply_retention(NOW_MS + 1_001) == 1


def test_retention_by_size_and_by_deleted_records(tmp_path: Path) -> None:
    """DeleteRecords trims on request; a compacted topic keeps the rest."""
    log = open_log(tmp_path / "t-0", segment_bytes=300, retention_bytes=1_000)
    size = len(append(log, value=b"x" * 150))
    for _ in range(9):
        append(log, value=b"x" * 150)
    assert log.apply_retention(NOW_MS) == (10 * size - 1_000) // size
    log.delete_records(8)
    assert log.apply_retention(NOW_MS) == 8 - (10 * size - 1_000) // size
    compacted = open_log(tmp_path / "c-0", segment_bytes=300, retention_bytes=0, cleanup_policy="compact")
    for _ in range(9):
        append(compacted, value=b"x" * 150)
    assert compacted.apply_retention(NOW_MS * 2) == 0
    compacted.delete_records(3)
    assert compacted.apply_retention(NOW_MS * 2) == 3


def test_a_deleted_log_leaves_its_name_free(tmp_path: Path) -> None:
    log = open_log(tmp_path / ("t" * 249 + "-0"))
    append(log)
    log.close(clean=False)
    renamed = rename_deleted_log(OsDisk(), log.directory)
    assert os.path.basename(renamed).endswith("-delete")
    assert not (tmp_path / ("t" * 249 + "-0")).exists()


def test_snapshots_beyond_the_end_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(10):
        append(log)
    for offset in (2, 4, 6, 8, 10):
        log.producer_snapshots.write(offset, b"state %d" % offset)
    assert log.producer_snapshots.offsets() == [10, 8, 6]
    assert log.producer_snapshots.read(8) == b"state 8"
    assert log.producer_snapshots.read(2) is None
    log.truncate_to(9)
    assert log.producer_snapshots.offsets() == [8, 6]


class LogMachine(RuleBasedStateMachine):
    """Any sequence of calls leaves the log equal to a list of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []

    @initialize(segment_bytes=st.sampled_from([400, 3_000, 1 << 20]), interval=st.sampled_from([0, 100, 4096]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.folder = _FOLDERS.pop()
        self.options: dict[str, Any] = {"segment_bytes": segment_bytes, "index_interval_bytes": interval}
        self.log = open_log(self.folder, **self.options)
        self.reserved: list[bytes] = []
        self.lowest = 0  # offsets below may be gone

    @rule(count=st.integers(1, 5), size=st.sampled_from([1, 40, 250]), times=st.integers(1, 12))
    def reserve(self, count: int, size: int, times: int) -> None:
        for _ in range(times):
            batch = make_batch(self.log.next_offset, count, b"x" * (size // count), NOW_MS)
            if len(batch) <= self.options["segment_bytes"]:
                self.log.reserve(memoryview(batch), count, NOW_MS + count - 1, NOW_MS)
                self.reserved.append(batch)
        self.take_published()

    @rule()
    def publish(self) -> None:
        self.log.publish()
        self.take_published()
        assert not self.reserved

    def take_published(self) -> None:
        """A roll publishes what was reserved before it."""
        while self.reserved and read_header(self.reserved[0]).last_offset < self.log.log_end_offset:
            self.batches.append(self.reserved.pop(0))

    @rule()
    def roll(self) -> None:
        self.publish()
        self.log.roll(NOW_MS)

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction: float) -> None:
        self.publish()
        offset = round(self.log.log_end_offset * fraction)
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if read_header(batch).last_offset < offset]
        self.lowest = min(self.lowest, self.log.log_end_offset)

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction: float) -> None:
        self.publish()
        self.log.delete_records(round(self.log.log_end_offset * fraction))
        self.lowest = max(self.lowest, self.log.log_start_offset)
        self.log.apply_retention(NOW_MS)

    @rule(clean=st.booleans(), flushed=st.booleans())
    def reopen(self, clean: bool, flushed: bool) -> None:
        self.publish()
        if flushed or self.log.log_start_offset > self.log.recovery_point:  # a checkpoint never holds such offsets
            self.log.flush()
        self.log.close(clean)
        start, point = self.log.log_start_offset, self.log.recovery_point
        places: dict[str, Any] = {"recovery_point": point, "log_start_offset": start}
        self.log = open_log(self.folder, clean, **self.options, **places)

    @precondition(lambda self: self.batches)
    @rule(fraction=st.floats(0, 1), max_bytes=st.integers(1, 3_000), one=st.booleans())
    def read(self, fraction: float, max_bytes: int, one: bool) -> None:
        log = self.log
        offset = log.log_start_offset + round((log.log_end_offset - log.log_start_offset) * fraction)
        piece = log.read(offset, max_bytes, log.log_end_offset, one)
        found = list(split(b"".join(piece.views)))
        rest = [batch for batch in self.batches if read_header(batch).last_offset >= offset]
        assert found == rest[: len(found)]
        assert piece.size <= max_bytes or (one and len(found) == 1)
        if rest and one:
            assert found

    @invariant()
    def log_equals_list(self) -> None:
        if not hasattr(self, "log"):
            return
        kept = [batch for batch in self.batches if read_header(batch).last_offset >= self.log.log_start_offset]
        assert read_all(self.log, max_bytes=700) == kept
        assert [header.base_offset for header in self.log.headers(self.log.log_start_offset)] == [
            read_header(batch).base_offset for batch in kept
        ]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)


_FOLDERS: list[Path] = []


@pytest.mark.slow
def test_any_sequence_of_calls_equals_a_list(tmp_path: Path) -> None:
    _FOLDERS[:] = [tmp_path / f"t-{number}" for number in range(2_000)]
    LogMachine.TestCase.settings = settings(
        max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    LogMachine.TestCase().runTest()

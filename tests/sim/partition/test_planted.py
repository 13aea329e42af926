"""The simulator itself is tested: each of these bugs, planted into the broker, must be found within a few seeds."""

from collections.abc import Callable, Sequence

import pytest
from tests.sim.partition.world import simulate
from tests.sim.seeds import Invariant, must_be_found

from levada.broker.partition import replica as partitions
from levada.broker.partition.partition import Partition
from levada.core.partition.producer_state import ProducerStates
from levada.storage.checkpoints import ProducerSnapshotFiles
from levada.storage.log import scan
from levada.storage.log.log import Log
from levada.storage.log.segment import LogSegment
from levada.testing.sim_disk import SimDisk

Plant = Callable[[pytest.MonkeyPatch], type[SimDisk]]


def fsync_error_ignored(_: pytest.MonkeyPatch) -> type[SimDisk]:
    class Ignoring(SimDisk):
        def fsync(self, fd: int) -> None:
            try:
                super().fsync(fd)
            except OSError:
                return

    return Ignoring


def fsync_left_out(_: pytest.MonkeyPatch) -> type[SimDisk]:
    class Forgetful(SimDisk):
        def fsync(self, fd: int) -> None:
            self._step("no fsync", f"fd {fd}")

    return Forgetful


def directory_never_synced(_: pytest.MonkeyPatch) -> type[SimDisk]:
    class Forgetful(SimDisk):
        def fsync_dir(self, path: str) -> None:
            self._step("no fsync_dir", path)

    return Forgetful


def torn_tail_accepted(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(scan, "crc_is_valid", lambda batch: True)
    return SimDisk


def index_trusted(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """Stored indexes are believed, also where the log behind them was cut or never written."""
    patch.setattr(
        LogSegment, "reset_indexes", lambda self: (self.offset_index.load(self.size), self.time_index.load(self.size))
    )
    patch.setattr(LogSegment, "is_valid_entry", lambda self, relative, position: True)
    return SimDisk


def reply_before_failed_write_is_noticed(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    publish = Partition.publish

    def optimistic(self: Partition) -> None:
        reserved = self.log.next_offset
        publish(self)
        if not self.log.config.levada_acks_wait_for_fsync:
            self.high_watermark = reserved

    patch.setattr(Partition, "publish", optimistic)
    return SimDisk


def short_write_taken_for_whole(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    class Optimistic(SimDisk):
        def pwritev(self, fd: int, views: Sequence[bytes | memoryview], position: int, /) -> int:
            data = b"".join(views)
            super().pwritev(fd, [data], position)
            return len(data)

    return Optimistic


def watermark_before_fsync(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    publish = Partition.publish

    def hasty(self: Partition) -> None:
        publish(self)
        self.high_watermark = self.log.log_end_offset

    patch.setattr(Partition, "publish", hasty)
    return SimDisk


def producers_forgotten_on_restart(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(partitions, "load_producers", lambda segments: ProducerStates())
    return SimDisk


def duplicates_accepted_after_restart(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """The snapshot is read, the batches after it are not."""
    patch.setattr(ProducerStates, "replay", lambda self, history, aborted: None)
    return SimDisk


def snapshot_beyond_the_log_believed(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(ProducerSnapshotFiles, "delete_after", lambda self, offset: None)
    return SimDisk


def recovery_point_too_high(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """The recovery point moves with the writes, so that recovery skips what was never synced."""
    publish = Log.publish

    def hasty(self: Log) -> None:
        publish(self)
        self.recovery_point = self.log_end_offset

    patch.setattr(Log, "publish", hasty)
    return SimDisk


PLANTS: dict[Plant, Invariant] = {
    fsync_error_ignored: Invariant.DURABILITY,
    fsync_left_out: Invariant.DURABILITY,
    directory_never_synced: Invariant.RECOVERY,
    torn_tail_accepted: Invariant.STORED_RECORDS,
    index_trusted: Invariant.STORED_RECORDS,
    reply_before_failed_write_is_noticed: Invariant.ACKNOWLEDGEMENT,
    short_write_taken_for_whole: Invariant.DURABILITY,
    watermark_before_fsync: Invariant.ACKNOWLEDGEMENT,
    producers_forgotten_on_restart: Invariant.PRODUCER_STATE,
    duplicates_accepted_after_restart: Invariant.PRODUCER_STATE,
    snapshot_beyond_the_log_believed: Invariant.PRODUCER_STATE,
    recovery_point_too_high: Invariant.DURABILITY,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_type = plant(monkeypatch)
    must_be_found(plant, PLANTS[plant], lambda seed: simulate(seed, disk_type))

"""Compaction under crashes at any step, by many seeds: readers find the same latest values.

For every key the latest committed record survives, tombstones stay for delete.retention.ms, what was deleted does not
come back, order and offsets are kept, no transaction is left open by the loss of its marker, aborted records stay
unseen, producers are still known; and all of it again after a restart, with and without producer snapshots.
"""

from collections.abc import Callable

import pytest
from tests.sim.compaction import world as cleaner_world
from tests.sim.compaction.world import CleanerWorld
from tests.sim.seeds import Invariant, Violation, must_be_found, replayable

from levada.core.partition.producer_state import AbortedTransaction
from levada.storage.compaction import cleaner
from levada.storage.compaction import swap as cleaning_swap
from levada.storage.compaction.cleaner import Cleaner
from levada.storage.compaction.messages import CleanedSegment
from levada.storage.compaction.plan import CleaningBounds
from levada.storage.compaction.swap import SwapRefusedError
from levada.storage.compaction.transactions import CleanedTransactionMetadata
from levada.storage.file_names import CLEANED_SUFFIX, DELETED_SUFFIX
from levada.storage.log.log import Log
from levada.storage.log.recovery import Recovery
from levada.storage.log.segment import LogSegment
from levada.testing.sim_disk import SimCrash, SimDisk
from levada.wire.batches import BatchHeader
from levada.wire.record_filter import RecordSpan, retain_records

Plant = Callable[[pytest.MonkeyPatch], type[SimDisk]]
# Where the search begins for what takes a rare coincidence.
FIRST_SEEDS = {"marker_dropped_while_an_empty_batch_is_left": 225, "leftovers_of_a_killed_cleaner_used": 40}


def simulate(seed: int, disk_type: type[SimDisk] = SimDisk, actions: int = 200) -> CleanerWorld:
    """Run one seed; a failure says how to replay it."""
    world = CleanerWorld(seed, disk_type)
    with replayable(world, seed, "compaction/test_cleaner.py"):
        try:
            world.run(actions)
        except SwapRefusedError as error:
            raise Violation(Invariant.RECOVERY, f"a swap was refused: {error}") from error
    return world


def test_invariants_hold(seed: int) -> None:
    simulate(seed)


def test_seeds_reach_what_they_are_for() -> None:
    """A simulator that never cleans anything finds nothing."""
    worlds = [simulate(seed) for seed in range(30)]
    assert sum(world.swaps for world in worlds) > 60
    assert sum(world.tombstones_gone for world in worlds) > 5


@pytest.mark.parametrize("one", range(3))
def test_the_same_seed_gives_the_same_history(one: int) -> None:
    first, second = simulate(one), simulate(one)
    assert (first.trace, first.disk.digest) == (second.trace, second.disk.digest)


def live(world: CleanerWorld) -> None:
    """A short life in which a log is cleaned twice."""
    world.crashes_in_swaps = False
    for _ in range(2):
        for _ in range(14):
            world.produce()
        for writer in world.writers[::2]:
            world.end_transaction(writer)
        world.roll()
        world.sync()
        world.write_checkpoint()
        world.now_ms += world.delete_retention_ms + 500
        world.clean_completely()
        world.settle()


@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("life", [0, *(pytest.param(life, marks=pytest.mark.slow) for life in (1, 2))])
def test_a_crash_at_every_step_of_a_cleaning(life: int, power_cut: bool) -> None:
    world = CleanerWorld(life)
    live(world)
    assert world.swaps >= 2
    for step in range(1, world.disk.steps + 1):
        world = CleanerWorld(life)
        world.disk.crash_at = world.disk.steps + step
        try:
            live(world)
        except SimCrash:
            try:
                world.crash(power_cut)
                world.survive(world.clean_completely)
                world.check()
            except Exception as error:
                error.add_note(f"life {life}, crash at step {step}")
                raise


# The simulator itself is tested: each of these bugs must be found within a few seeds.


def only_marker_of_a_transaction_dropped(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """Whatever of its transaction is still in the log: a restart then finds it open for ever."""
    patch.setattr(Cleaner, "_retain_marker", lambda self, header, view, needless: None)
    return SimDisk


def marker_dropped_while_an_empty_batch_is_left(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    saw_records = CleanedTransactionMetadata.on_data_batch

    def forgetful(self: CleanedTransactionMetadata, header: BatchHeader) -> None:
        if header.record_count:
            saw_records(self, header)

    patch.setattr(CleanedTransactionMetadata, "on_data_batch", forgetful)
    return SimDisk


def tombstone_dropped_too_early(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """At the first cleaning, not after delete.retention.ms."""
    is_newest = Cleaner._is_latest
    patch.setattr(Cleaner, "_is_latest", lambda self, header, span, _: is_newest(self, header, span, False))
    return SimDisk


def horizon_from_the_beginning_of_time(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(Cleaner, "_new_horizon_ms", lambda self: 0)
    return SimDisk


def swapped_before_fsync(_: pytest.MonkeyPatch) -> type[SimDisk]:
    class Hasty(SimDisk):
        def open(self, path: str, create: bool = False) -> int:
            fd = super().open(path, create)
            if path.endswith(CLEANED_SUFFIX):
                hasty.add(fd)
            return fd

        def fsync(self, fd: int) -> None:
            if fd in hasty:
                self._step("no fsync", f"fd {fd}")
            else:
                super().fsync(fd)

    hasty: set[int] = set()
    return Hasty


def old_segments_removed_before_the_new_one_counts(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """The `.swap` name comes last, not first."""
    original = cleaning_swap.swap

    def hasty(log: Log, expected: list[LogSegment], cleaned: CleanedSegment, now_ms: int) -> None:
        disk = log.active.disk
        for segment in expected:
            disk.rename(segment.path, segment.path + ".gone" + DELETED_SUFFIX)
        for segment in expected:
            disk.rename(segment.path + ".gone" + DELETED_SUFFIX, segment.path)
        original(log, expected, cleaned, now_ms)

    patch.setattr(cleaner_world, "swap", hasty)
    return SimDisk


def swap_not_finished_by_recovery(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(Recovery, "_verified_swaps", lambda recovery, files: [])
    return SimDisk


def aborted_record_hides_an_older_one(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    note_keys = Cleaner._map_keys

    def careless(self: Cleaner, offsets: object, header: BatchHeader, view: memoryview) -> bool:
        header = header._replace(attributes=header.attributes & ~0x10)  # as if in no transaction
        return note_keys(self, offsets, header, view)  # type: ignore[arg-type]

    patch.setattr(Cleaner, "_map_keys", careless)
    return SimDisk


def cleaned_beyond_the_last_stable_offset(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(CleaningBounds, "limit", property(lambda self: min(self.recovery_point, self.active_base)))
    return SimDisk


def cleaned_beyond_the_recovery_point(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """What is not fsynced replaces what is."""
    patch.setattr(CleaningBounds, "limit", property(lambda self: self.active_base))
    patch.setattr(CleanerWorld, "sync", lambda self: None)
    return SimDisk


def last_batch_of_a_producer_dropped(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(Cleaner, "_is_last_of_producer", lambda self, header: False)
    return SimDisk


def last_batch_of_a_segment_dropped(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """Recovery then takes what follows for the rest of a cut log."""
    add = cleaner._Output.add

    def forgetful(self: cleaner._Output, source: BatchHeader, kept: bytearray | memoryview | None) -> None:
        add(self, source, kept)
        self._dropped = None

    patch.setattr(cleaner._Output, "add", forgetful)
    return SimDisk


def aborted_transactions_not_carried_over(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    saw_marker = CleanedTransactionMetadata.on_control_batch

    def forgetful(
        self: CleanedTransactionMetadata, header: BatchHeader, batch: memoryview
    ) -> tuple[bool, AbortedTransaction | None]:
        return saw_marker(self, header, batch)[0], None

    patch.setattr(CleanedTransactionMetadata, "on_control_batch", forgetful)
    return SimDisk


def latest_record_dropped(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """Greater where greater or equal is right."""
    is_newest = Cleaner._is_latest

    def strict(self: Cleaner, header: BatchHeader, span: RecordSpan, tombstones_stay: bool) -> bool:
        offset = header.base_offset + span.offset_delta
        newest = span.key is not None and self._map.get(span.key) == offset
        return is_newest(self, header, span, tombstones_stay) and not (newest and span.offset_delta == 2)

    patch.setattr(Cleaner, "_is_latest", strict)
    return SimDisk


def map_believed_beyond_its_end(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """When the map is full, the rest of the dirty part passes for clean."""
    build = Cleaner._build_map

    def boastful(self: Cleaner) -> object:
        offsets = build(self)
        offsets.latest_offset = self._job.end_offset - 1
        return offsets

    patch.setattr(Cleaner, "_build_map", boastful)
    return SimDisk


def records_lose_their_offsets(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    """What is left of a batch is counted from its start."""

    def renumbered(header: BatchHeader, data: bytes, kept: list[RecordSpan], horizon_ms: int | None) -> bytearray:
        first = kept[0].offset_delta
        return retain_records(header._replace(base_offset=header.base_offset - first), data, kept, horizon_ms)

    patch.setattr(cleaner, "retain_records", renumbered)
    return SimDisk


def leftovers_of_a_killed_cleaner_used(patch: pytest.MonkeyPatch) -> type[SimDisk]:
    patch.setattr(Cleaner, "_delete_cleaned_files", lambda self: None)
    return SimDisk


PLANTS: dict[Plant, Invariant] = {
    only_marker_of_a_transaction_dropped: Invariant.LAST_STABLE_OFFSET,
    marker_dropped_while_an_empty_batch_is_left: Invariant.LAST_STABLE_OFFSET,
    tombstone_dropped_too_early: Invariant.TOMBSTONES,
    horizon_from_the_beginning_of_time: Invariant.TOMBSTONES,
    swapped_before_fsync: Invariant.DURABILITY,
    old_segments_removed_before_the_new_one_counts: Invariant.RECOVERY,
    swap_not_finished_by_recovery: Invariant.STORED_RECORDS,
    aborted_record_hides_an_older_one: Invariant.LATEST_OF_A_KEY,
    cleaned_beyond_the_last_stable_offset: Invariant.LATEST_OF_A_KEY,
    cleaned_beyond_the_recovery_point: Invariant.LATEST_OF_A_KEY,
    last_batch_of_a_producer_dropped: Invariant.PRODUCER_STATE,
    last_batch_of_a_segment_dropped: Invariant.DURABILITY,
    aborted_transactions_not_carried_over: Invariant.STORED_RECORDS,
    latest_record_dropped: Invariant.LATEST_OF_A_KEY,
    map_believed_beyond_its_end: Invariant.DELETED_KEYS,
    records_lose_their_offsets: Invariant.STORED_RECORDS,
    leftovers_of_a_killed_cleaner_used: Invariant.RECOVERY,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_type = plant(monkeypatch)
    first = FIRST_SEEDS.get(plant.__name__, 0)
    must_be_found(plant, PLANTS[plant], lambda seed: simulate(seed, disk_type), first)

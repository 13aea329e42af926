"""The simulator of transactions is tested itself: each of these bugs, planted into the broker, must be found."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.seeds import Invariant, Plant, must_be_found
from tests.sim.transactions.world import simulate

from levada.broker.coordinator import transactions as txn_coordinators
from levada.broker.coordinator.journal import Journal
from levada.broker.coordinator.shard import CoordinatorShard
from levada.broker.partition.partition import Partition
from levada.broker.partition.transactions import Transactions
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import Outcome
from levada.core.partition.producer_state import ProducerStates
from levada.core.transactions.machine import TransactionsMachine
from levada.core.transactions.state import Transaction
from levada.storage.checkpoints import TransactionIndexChecksums
from levada.storage.log.indexes import TransactionIndex
from levada.storage.log.recovery import CheckedSegment, Recovery

# Where the search begins for what takes a rare coincidence, as a power cut between two fsyncs and a client that dies.
FIRST_SEEDS = {
    "the_index_of_aborted_ones_is_not_synced": 30,
    "a_marker_that_fails_is_given_up": 70,
}


def marker_before_the_prepare_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorShard, "_append_and_apply", _hasty(CoordinatorShard._append_and_apply))


def _hasty(append_and_apply: Any) -> Any:
    def at_once(self: Any, machine: Any, outcome: Outcome, batches: Any, now_ms: int) -> None:
        append_and_apply(self, machine, replace(outcome, effects=()), batches, now_ms)
        if outcome.effects and self.machine is machine:
            self._run_effects(machine, outcome.effects)

    return at_once


def state_answered_before_the_journal_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "is_committed", True)


def last_stable_offset_is_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def last_stable_offset_off_by_one(patch: pytest.MonkeyPatch) -> None:
    first = ProducerStates.first_unstable_offset

    def late(self: ProducerStates) -> int | None:
        found = first(self)
        return None if found is None else found + 1

    patch.setattr(ProducerStates, "first_unstable_offset", late)


def aborted_transactions_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "aborted", lambda self, offset, size: [])


def the_index_of_aborted_ones_is_lost_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    load = Recovery._load_txn_indexes

    def forgetful(self: Recovery, checked: list[CheckedSegment]) -> None:
        load(self, checked)
        for one in checked:
            one.segment.txn_index.stale = False

    patch.setattr(Recovery, "_load_txn_indexes", forgetful)


def the_index_of_aborted_ones_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """And has no checksum, by which recovery would notice it."""
    patch.setattr(TransactionIndex, "fsync", lambda self: None)
    patch.setattr(TransactionIndexChecksums, "store", lambda self, entries: None)


def open_transactions_are_forgotten_on_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "begin", lambda self, producer_id, first_offset: None)


def markers_are_not_written_again_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionsMachine, "on_loaded", lambda self, now_ms: Outcome())


def a_marker_that_fails_is_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(txn_coordinators._MarkerWriter, "_is_unnecessary", lambda self, topic_partition, error: True)


def a_fence_leaves_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "prepared_fence", lambda self, now_ms: self.prepared(False, self.client, 0, now_ms))


def batches_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "is_verified", lambda self, producer_id, producer_epoch: True)


def old_epochs_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionsMachine, "_validate_producer", lambda self, name, client: self._existing(name))


def offsets_count_before_the_marker(patch: pytest.MonkeyPatch) -> None:
    commit = GroupsMachine.commit
    patch.setattr(
        GroupsMachine,
        "commit",
        lambda self, request, now_ms, handle: commit(self, replace(request, producer_id=-1), now_ms, handle),
    )


PLANTS: dict[Plant, Invariant] = {
    marker_before_the_prepare_is_durable: Invariant.MARKER_AFTER_PREPARE,
    state_answered_before_the_journal_is_committed: Invariant.TRANSACTION_END,
    last_stable_offset_is_the_high_watermark: Invariant.COMMITTED_READS,
    last_stable_offset_off_by_one: Invariant.COMMITTED_READS,
    aborted_transactions_are_not_listed: Invariant.TRANSACTION_END,
    the_index_of_aborted_ones_is_lost_in_a_crash: Invariant.COMMITTED_READS,
    the_index_of_aborted_ones_is_not_synced: Invariant.COMMITTED_READS,
    open_transactions_are_forgotten_on_restart: Invariant.TRANSACTION_END,
    markers_are_not_written_again_after_a_restart: Invariant.PROGRESS,
    a_marker_that_fails_is_given_up: Invariant.COMMITTED_OFFSETS,
    a_fence_leaves_the_epoch: Invariant.VALID_REQUESTS,
    batches_are_not_verified: Invariant.LAST_STABLE_OFFSET,
    old_epochs_write: Invariant.ONE_TRANSACTION_A_MARKER,
    offsets_count_before_the_marker: Invariant.COMMITTED_OFFSETS,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    must_be_found(plant, PLANTS[plant], simulate, FIRST_SEEDS.get(plant.__name__, 0))

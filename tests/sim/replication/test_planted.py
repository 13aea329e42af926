"""Planted bugs of replication: each is found by the invariant that it breaks."""

from collections.abc import Callable

import pytest
from tests.sim.replication.world import simulate
from tests.sim.seeds import Invariant, must_be_found

from levada.broker.partition.replica import PartitionReplica
from levada.core.partition.fetch_sessions import FetchPartition
from levada.core.partition.replica import LeaderReplicas, Replica

Plant = Callable[[pytest.MonkeyPatch], object]


def shrink_counts_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    def effective(self: LeaderReplicas) -> object:
        return self.isr if self._pending is None else self._pending.isr

    patch.setattr(LeaderReplicas, "maximal_isr", property(effective))


def member_joins_before_it_has_everything(patch: pytest.MonkeyPatch) -> None:
    def may_join(self: LeaderReplicas, replica: Replica) -> bool:
        return replica.broker not in self.isr and self._is_eligible(replica)

    patch.setattr(LeaderReplicas, "_may_join", may_join)


def change_with_an_unknown_result_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    propose = LeaderReplicas.propose_isr

    def forgetful(self: LeaderReplicas, now_ms: int) -> object:
        change = propose(self, now_ms)
        self._pending = None
        return change

    patch.setattr(LeaderReplicas, "propose_isr", forgetful)


def acknowledged_when_the_leader_has_written(patch: pytest.MonkeyPatch) -> None:
    def appended(self: LeaderReplicas, log_end_offset: int, now_ms: int) -> bool:
        self.log_end_offset = self.high_watermark = log_end_offset
        return True

    patch.setattr(LeaderReplicas, "appended", appended)


def member_that_has_not_fetched_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    def advance(self: LeaderReplicas, now_ms: int) -> bool:
        known = [one.log_end_offset for one in self.followers.values() if one.log_end_offset >= 0]
        former, self.high_watermark = self.high_watermark, max(self.high_watermark, min([*known, self.log_end_offset]))
        return self.high_watermark > former

    patch.setattr(LeaderReplicas, "advance", advance)


def diverging_logs_are_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionReplica, "diverging_epoch", lambda self, wanted: None)


def only_the_end_of_the_log_diverges(patch: pytest.MonkeyPatch) -> None:
    def diverging_epoch(self: PartitionReplica, wanted: FetchPartition) -> tuple[int, int] | None:
        end_offset = self.log.log_end_offset
        return (wanted.last_fetched_epoch, end_offset) if wanted.fetch_offset > end_offset else None

    patch.setattr(PartitionReplica, "diverging_epoch", diverging_epoch)


PLANTS: dict[Plant, Invariant] = {
    shrink_counts_before_its_commit: Invariant.REPLICATION,
    member_joins_before_it_has_everything: Invariant.REPLICATION,
    change_with_an_unknown_result_is_forgotten: Invariant.REPLICATION,
    acknowledged_when_the_leader_has_written: Invariant.REPLICATION,
    member_that_has_not_fetched_is_not_waited_for: Invariant.REPLICATION,
    diverging_logs_are_not_truncated: Invariant.PROGRESS,
    only_the_end_of_the_log_diverges: Invariant.COMMITTED_RECORDS,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    must_be_found(plant, PLANTS[plant], simulate)

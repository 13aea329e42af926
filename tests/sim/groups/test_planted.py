"""The simulator of groups and offsets is tested itself: each of these bugs, planted into the broker, must be found."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.groups.world import simulate
from tests.sim.seeds import Invariant, Plant, must_be_found

from levada.broker.coordinator.journal import Journal
from levada.core.groups.classic import join as classic_join
from levada.core.groups.classic.draft import Draft
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.consumer import member as consumer_member
from levada.core.groups.consumer.draft import ConsumerDraft
from levada.core.groups.consumer.group import ConsumerGroup
from levada.core.groups.events import GroupChanged, OffsetPut
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.migration import classic_members, conversion
from levada.core.groups.offsets import CommitRequest, Offsets
from levada.core.machine import Outcome

# Where the search begins for what takes a rare coincidence.
FIRST_SEEDS = {
    "a_stale_generation_commits": 30,
    "a_transaction_commits_for_any_member": 20,
    "a_static_member_restarts_and_what_it_was_to_give_up_is_lost": 400,
    "an_upgrade_forgets_what_members_read": 90,
    "a_group_goes_back_halfway_and_nobody_joins_again": 90,
    "new_partitions_are_not_seen": 70,
}


# Who may commit.


def a_stale_generation_commits(patch: pytest.MonkeyPatch) -> None:
    validate = ClassicGroup.validate_offset_commit

    def lenient(self: ClassicGroup, request: CommitRequest, image: Any) -> int | None:
        return validate(self, replace(request, generation=self.generation), image)

    patch.setattr(ClassicGroup, "validate_offset_commit", lenient)


def a_stale_epoch_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "validate_offset_commit", lambda self, request, image: None)


def a_transaction_commits_for_any_member(patch: pytest.MonkeyPatch) -> None:
    """What a member's transaction commits is not checked against its generation (KIP-447)."""
    validate = GroupsMachine._validate_commit
    patch.setattr(
        GroupsMachine,
        "_validate_commit",
        lambda self, request, now_ms: [] if request.is_transactional else validate(self, request, now_ms),
    )


# Who owns a partition.


def a_partition_is_given_before_it_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "owner", lambda self, topic, partition: None)


def partitions_count_as_given_back_when_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer_member, "_may_own", lambda revoked, owned: False)


def a_generation_is_used_twice(patch: pytest.MonkeyPatch) -> None:
    complete = Draft.complete_join

    def again(self: Draft) -> None:
        self.group.generation = max(0, self.group.generation - 1)
        complete(self)

    patch.setattr(Draft, "complete_join", again)


def an_upgrade_forgets_what_members_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        conversion,
        "_owned",
        lambda members: {member_id: dict(member.assigned) for member_id, member in members.items()},
    )


# Who is there.


def silent_members_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Draft, "renew_session", lambda self, member: None)


def silent_members_stay_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupsMachine, "on_loaded", lambda self, now_ms: Outcome([self._next_check(now_ms)]))


def a_static_member_restarts_and_what_it_was_to_give_up_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_join, "_was_revoking", lambda group, member: False)


def a_group_goes_back_halfway_and_nobody_joins_again(patch: pytest.MonkeyPatch) -> None:
    downgrade = conversion.downgrade
    patch.setattr(
        classic_members,
        "downgrade",
        lambda limits, draft, rebalance: downgrade(limits, draft, rebalance=False),
    )


def new_partitions_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerDraft, "refresh_topics", lambda self: False)


# What offsets are.


def answered_before_the_journal_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "is_committed", property(lambda self: True))


def offsets_of_a_transaction_count_at_once(patch: pytest.MonkeyPatch) -> None:
    put = Offsets.put
    patch.setattr(
        Offsets,
        "put",
        lambda self, group, topic_partition, value, *_: put(self, group, topic_partition, value),
    )


def offsets_of_an_aborted_transaction_count(patch: pytest.MonkeyPatch) -> None:
    end = Offsets.end_transaction
    patch.setattr(Offsets, "end_transaction", lambda self, producer_id, committed: end(self, producer_id, True))


def an_older_commit_wins_when_its_transaction_ends(patch: pytest.MonkeyPatch) -> None:
    """Whatever was committed since then is overwritten."""
    end = Offsets.end_transaction

    def backwards(self: Offsets, producer_id: int, committed: bool) -> None:
        for pending in self._pending.get(producer_id, {}).values():
            for topic_partition, commit in pending.items():
                pending[topic_partition] = replace(commit, order=self._order + 1)
        end(self, producer_id, committed)

    patch.setattr(Offsets, "end_transaction", backwards)


def undecided_offsets_pass_for_stable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Offsets, "is_pending", lambda self, group, topic_partition: False)


def offsets_in_use_expire(patch: pytest.MonkeyPatch) -> None:
    for group in (ClassicGroup, ConsumerGroup):
        patch.setattr(group, "retained_since_ms", lambda self, topic, value: value.commit_timestamp)


def offsets_never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupsMachine, "_remove_expired", lambda self, now_ms: [self._next_check(now_ms)])


# The journal.


def deleted_offsets_come_back_with_a_restart(patch: pytest.MonkeyPatch) -> None:
    record = OffsetPut.record
    patch.setattr(OffsetPut, "record", lambda self: None if self.value is None else record(self))


def a_generation_is_not_journaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupChanged, "record", lambda self: None)


PLANTS: dict[Plant, Invariant] = {
    a_stale_generation_commits: Invariant.COMMITS_OF_OWNERS,
    a_stale_epoch_commits: Invariant.COMMITS_OF_OWNERS,
    a_transaction_commits_for_any_member: Invariant.COMMITS_OF_OWNERS,
    a_partition_is_given_before_it_is_given_back: Invariant.ONE_OWNER,
    partitions_count_as_given_back_when_asked_for: Invariant.ONE_OWNER,
    a_generation_is_used_twice: Invariant.ONE_OWNER,
    an_upgrade_forgets_what_members_read: Invariant.ONE_OWNER,
    silent_members_stay: Invariant.EXPIRY,
    silent_members_stay_after_a_restart: Invariant.PROGRESS,
    a_static_member_restarts_and_what_it_was_to_give_up_is_lost: Invariant.PROGRESS,
    a_group_goes_back_halfway_and_nobody_joins_again: Invariant.PROGRESS,
    new_partitions_are_not_seen: Invariant.PROGRESS,
    answered_before_the_journal_is_committed: Invariant.COMMITTED_OFFSETS,
    offsets_of_a_transaction_count_at_once: Invariant.COMMITTED_OFFSETS,
    offsets_of_an_aborted_transaction_count: Invariant.COMMITTED_OFFSETS,
    an_older_commit_wins_when_its_transaction_ends: Invariant.COMMITTED_OFFSETS,
    undecided_offsets_pass_for_stable: Invariant.COMMITTED_OFFSETS,
    offsets_in_use_expire: Invariant.COMMITTED_OFFSETS,
    offsets_never_expire: Invariant.EXPIRY,
    deleted_offsets_come_back_with_a_restart: Invariant.JOURNAL_REPLAY,
    a_generation_is_not_journaled: Invariant.JOURNAL_REPLAY,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    must_be_found(plant, PLANTS[plant], simulate, FIRST_SEEDS.get(plant.__name__, 0))

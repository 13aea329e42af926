"""A leader's replicas: the high watermark, ISR changes, and who may claim to be a follower."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.core.partition.replica import IsrChange, LeaderReplicas, LiveBrokers
from levada.errors import ErrorCode, KafkaError

LEADER, LAG_MAX_MS = 1, 1_000
EPOCHS = {1: 11, 2: 22, 3: 33}


def live_brokers() -> LiveBrokers:
    live = LiveBrokers()
    live.epochs.update(EPOCHS)
    return live


def leader(end: int = 0, high_watermark: int = 0, isr: tuple[int, ...] = (1, 2, 3), now_ms: int = 0) -> LeaderReplicas:
    replicas = LeaderReplicas(LEADER, 5, end, high_watermark, live_brokers(), LAG_MAX_MS)
    replicas.update((1, 2, 3), {broker: EPOCHS[broker] for broker in isr}, 7, now_ms)
    return replicas


def fetch(replicas: LeaderReplicas, broker: int, offset: int, now_ms: int = 0) -> bool:
    return replicas.fetched(broker, EPOCHS[broker], offset, 0, now_ms)


def commit(replicas: LeaderReplicas, change: IsrChange | None, now_ms: int = 0) -> None:
    assert change is not None
    replicas.update((1, 2, 3), change.isr, change.partition_epoch + 1, now_ms)


def test_the_high_watermark_is_the_smallest_log_end_of_the_isr() -> None:
    replicas = leader()
    replicas.appended(10, 0)
    assert not fetch(replicas, 2, 10) and replicas.high_watermark == 0
    assert fetch(replicas, 3, 8) and replicas.high_watermark == 8
    assert fetch(replicas, 3, 10) and replicas.high_watermark == 10


def test_a_new_leader_does_not_count_a_follower_that_has_not_fetched() -> None:
    replicas = leader(end=10, high_watermark=4)
    fetch(replicas, 2, 10)
    assert replicas.high_watermark == 4


def test_an_isr_of_the_leader_alone_has_everything() -> None:
    assert leader(end=10, high_watermark=4, isr=(1,)).high_watermark == 10


def test_a_shrink_counts_only_after_its_commit() -> None:
    replicas = leader()
    replicas.appended(10, 0)
    fetch(replicas, 2, 10, 2_000)
    change = replicas.propose_isr(2_000)
    assert change is not None and set(change.isr) == {1, 2}
    assert replicas.high_watermark == 0 and set(replicas.maximal_isr) == {1, 2, 3}
    commit(replicas, change, 2_000)
    assert replicas.high_watermark == 10


def test_an_expansion_counts_at_once() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(10, 5_000)
    fetch(replicas, 2, 10, 5_000)
    fetch(replicas, 3, 10, 5_000)
    change = replicas.propose_isr(5_000)
    assert change is not None and set(change.isr) == {1, 2, 3}
    replicas.appended(20, 9_000)
    fetch(replicas, 2, 20, 9_000)
    assert replicas.high_watermark == 10
    replicas.refused(change)
    assert not replicas.pending and replicas.advance(9_000) and replicas.high_watermark == 20


def test_an_earlier_change_that_is_refused_is_ignored() -> None:
    replicas = leader()
    replicas.appended(10, 0)
    first = replicas.propose_isr(2_000)
    assert first is not None
    replicas.update((1, 2, 3), EPOCHS, 8, 2_000)
    second = replicas.propose_isr(2_000)
    replicas.refused(first)
    assert replicas.pending == second != first


def test_no_second_change_is_proposed_while_one_is_pending() -> None:
    replicas = leader()
    replicas.appended(10, 0)
    assert replicas.propose_isr(2_000) and replicas.propose_isr(9_000) is None


def test_a_follower_joins_once_it_has_reached_watermark_and_start_of_the_epoch() -> None:
    replicas = leader(end=10, high_watermark=4, isr=(1, 2))
    fetch(replicas, 3, 8)
    assert replicas.propose_isr(0) is None
    fetch(replicas, 3, 10)
    change = replicas.propose_isr(0)
    assert change is not None and set(change.isr) == {1, 2, 3}
    assert change.isr == EPOCHS


def test_a_broker_that_shuts_down_does_not_join_and_is_not_waited_for() -> None:
    replicas = leader(isr=(1, 2))
    replicas._live.fenced.add(3)
    fetch(replicas, 3, 0)
    replicas.appended(10, 0)
    fetch(replicas, 2, 10)
    assert replicas.high_watermark == 10
    fetch(replicas, 3, 10)
    assert replicas.propose_isr(0) is None


def test_a_follower_that_lags_by_one_response_stays() -> None:
    replicas = leader()
    for now_ms in range(0, 10_000, 500):
        fetch(replicas, 2, replicas.log_end_offset, now_ms)
        fetch(replicas, 3, max(0, replicas.log_end_offset - 10), now_ms)
        assert replicas.propose_isr(now_ms) is None
        replicas.appended(replicas.log_end_offset + 10, now_ms)


def test_a_follower_at_the_log_end_stays_however_long_nothing_comes() -> None:
    replicas = leader()
    replicas.appended(10, 0)
    for broker in (2, 3):
        fetch(replicas, broker, 10)
    assert replicas.propose_isr(1 << 40) is None


@pytest.mark.parametrize(("broker", "epoch"), [(4, 44), (2, 21), (2, -1), (1, 11)])
def test_only_a_registered_replica_moves_offsets(broker: int, epoch: int) -> None:
    replicas = leader()
    with pytest.raises(KafkaError) as refused:
        replicas.fetched(broker, epoch, 10, 0, 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_removed_replica_is_forgotten() -> None:
    replicas = leader()
    fetch(replicas, 3, 0)
    replicas.update((1, 2), {1: 11, 2: 22}, 8, 0)
    with pytest.raises(KafkaError):
        fetch(replicas, 3, 0)
    replicas.appended(5, 0)
    assert fetch(replicas, 2, 5) and replicas.high_watermark == 5


def test_the_preferred_read_replica_is_in_the_rack_and_has_the_offset() -> None:
    replicas = leader()
    racks = {1: "a", 2: "b", 3: "b"}
    replicas.appended(10, 0)
    fetch(replicas, 2, 5)
    fetch(replicas, 3, 8)
    assert replicas.preferred_read_replica("a", racks, 0) == 1
    assert replicas.preferred_read_replica("b", racks, 5) == 3
    assert replicas.preferred_read_replica("b", racks, 9) == 1
    assert replicas.preferred_read_replica("c", racks, 0) == 1


# Against a reference implementation.


@dataclass
class ReferenceReplicas:
    """All that has happened, searched anew for every question."""

    ends: dict[int, int] = field(default_factory=lambda: {1: 0})
    caught_up_ms: dict[int, int] = field(default_factory=lambda: {2: 0, 3: 0})
    fetches: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {2: [], 3: []})  # time, leader's end
    committed: set[int] = field(default_factory=lambda: {1, 2, 3})
    proposed: set[int] = field(default_factory=set)
    high_watermark: int = 0

    def fetch(self, broker: int, offset: int, now_ms: int) -> None:
        if offset >= self.ends[1]:
            self.caught_up_ms[broker] = now_ms
        elif self.fetches[broker] and offset >= self.fetches[broker][-1][1]:
            self.caught_up_ms[broker] = max(self.caught_up_ms[broker], self.fetches[broker][-1][0])
        self.fetches[broker].append((now_ms, self.ends[1]))
        self.ends[broker] = offset

    def advance(self, now_ms: int) -> None:
        waited_for = self.committed | self.proposed
        waited_for |= {b for b in (2, 3) if self.fetches[b] and now_ms - self.caught_up_ms[b] <= LAG_MAX_MS}
        self.high_watermark = max(self.high_watermark, min(self.ends.get(b, -1) for b in waited_for | {1}))


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("fetch"), st.sampled_from([2, 3]), st.integers(0, 6)),
    st.tuples(st.just("wait"), st.integers(1, 1_500)),
    st.tuples(st.just("propose")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("refuse")),
)


@given(st.lists(ACTIONS, max_size=60))
@settings(deadline=None)
def test_agrees_with_the_reference_implementation(actions: list[tuple[str, int, int]]) -> None:
    replicas, reference, now_ms = leader(), ReferenceReplicas(), 0
    for action, *arguments in actions:
        change = replicas.pending
        if action == "append":
            end = replicas.log_end_offset + arguments[0]
            reference.ends[1] = end
            replicas.appended(end, now_ms)
        elif action == "fetch":
            broker, behind = arguments
            offset = max(0, replicas.log_end_offset - behind)
            reference.fetch(broker, offset, now_ms)
            fetch(replicas, broker, offset, now_ms)
        elif action == "wait":
            now_ms += arguments[0]
        elif action == "propose":
            proposal = replicas.propose_isr(now_ms)
            assert proposal is None or change is None
            if proposal is not None:
                reference.proposed = set(proposal.isr)
        elif change is not None and action == "commit":
            reference.committed, reference.proposed = set(change.isr), set()
            commit(replicas, change, now_ms)
        elif change is not None:
            reference.proposed = set()
            replicas.refused(change)
        replicas.advance(now_ms)
        reference.advance(now_ms)
        assert replicas.high_watermark == reference.high_watermark
        assert LEADER in replicas.maximal_isr

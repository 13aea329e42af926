"""The state machine of transactions: fencing, endings, recovery."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from levada.core.machine import Outcome
from levada.core.transactions import machine as transaction
from levada.core.transactions.machine import (
    LOADED_GRACE_MS,
    UNKNOWN_PRODUCER,
    DeadlineMoved,
    EndRequest,
    InitRequest,
    NeedsProducerIdError,
    TransactionLimits,
    TransactionMarkers,
    TransactionsMachine,
)
from levada.core.transactions.state import EPOCH_MAX, NO_TIMEOUT_MS, ProducerIdAndEpoch, Transaction
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.batches import BatchHeader
from levada.wire.internal.transaction_records import TRANSACTIONS, Status, TransactionLogKey

HEADER = BatchHeader(0, 0, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
A, B = ("orders", 0), ("orders", 1)
TIMEOUT_MS = 60_000


@dataclass
class Shard:
    """The machine with a journal, as the runtime runs it: what is decided is applied and committed at once."""

    limits: TransactionLimits = field(default_factory=TransactionLimits)
    now_ms: int = 1_000_000
    next_id: int = 100
    journal: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    endings: list[TransactionMarkers] = field(default_factory=list)  # decided, their markers not yet written

    def __post_init__(self) -> None:
        self.machine = TransactionsMachine(self.limits)

    def carry_out(self, outcome: Outcome) -> Any:
        for event in outcome.events:
            record = self.machine.encode(event)
            if not isinstance(event, DeadlineMoved):
                assert record is not None, "all that a transaction is must survive"
                self.journal.append(record)
            self.machine.apply(event)
        self.endings += outcome.effects
        assert len(outcome.responses) <= 1
        for _, reply in outcome.responses:
            if isinstance(reply, KafkaError):
                raise reply
            return reply
        return None

    def decide(self, decide: Callable[[int], Outcome]) -> Any:
        try:
            return self.carry_out(decide(-1))
        except NeedsProducerIdError:
            self.next_id += 1
            return self.carry_out(decide(self.next_id))

    def init(
        self,
        name: str = "t",
        expected: ProducerIdAndEpoch = UNKNOWN_PRODUCER,
        timeout_ms: int = TIMEOUT_MS,
        **more: Any,
    ) -> Any:
        return self.decide(
            lambda new_id: self.machine.init(
                InitRequest(name, timeout_ms, expected, new_producer_id=new_id, **more), self.now_ms, None
            )
        )

    def begin(self, name: str = "t") -> ProducerIdAndEpoch:
        """A client begins anew, and waits for what was before."""
        try:
            return ProducerIdAndEpoch(*self.init(name).client)
        except KafkaError:
            self.write_markers()
            return ProducerIdAndEpoch(*self.init(name).client)

    def add(
        self,
        client: ProducerIdAndEpoch,
        *topic_partitions: TopicPartitionKey,
        name: str = "t",
        version: int = 2,
    ) -> None:
        self.carry_out(self.machine.add(name, client, topic_partitions, version, self.now_ms, None))

    def end(self, client: ProducerIdAndEpoch, committed: bool, name: str = "t", version: int = 2) -> ProducerIdAndEpoch:
        reply: ProducerIdAndEpoch = self.decide(
            lambda new_id: self.machine.end(EndRequest(name, client, committed, version, new_id), self.now_ms, None)
        )
        return reply

    def write_markers(self) -> None:
        endings, self.endings = self.endings, []
        for ending in endings:
            self.carry_out(self.machine.complete(ending, self.now_ms, None))

    def expire(self) -> None:
        self.carry_out(self.machine.expire(self.now_ms))

    def restart(self) -> None:
        """The broker is killed and reads the journal: markers that were not complete are written again."""
        before = self.machine.transactions
        self.machine, self.endings = self.replayed(), []
        assert self.machine.transactions == before
        self.carry_out(self.machine.on_loaded(self.now_ms))

    def replayed(self) -> TransactionsMachine:
        machine = TransactionsMachine(self.limits)
        for key, value in self.journal:
            machine.replay(key, value, HEADER)
        return machine

    def status(self, name: str = "t") -> Status:
        return self.machine.transactions[name].status


@pytest.fixture
def shard() -> Shard:
    return Shard()


def aborts_after(shard: Shard, timeout_ms: int) -> bool:
    """Whether the transaction is aborted when so much time has passed, and not a millisecond before."""
    shard.now_ms += timeout_ms - 1
    shard.expire()
    was_open = shard.status() is Status.ONGOING
    shard.now_ms += 1
    shard.expire()
    return was_open and shard.status() is Status.PREPARE_ABORT


def refused(action: Callable[..., Any], *arguments: Any, **named: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        action(*arguments, **named)
    return caught.value.code


# A client begins.


def test_each_client_that_begins_gets_the_next_epoch_and_fences_the_one_before(shard: Shard) -> None:
    first = shard.begin()
    assert first == (101, 0)
    second = shard.begin()
    assert second == (101, 1)
    assert refused(lambda: shard.add(first, A)) == ErrorCode.PRODUCER_FENCED
    assert refused(lambda: shard.end(first, True)) == ErrorCode.PRODUCER_FENCED
    assert refused(lambda: shard.machine.verify("t", first, [A])) == ErrorCode.PRODUCER_FENCED
    shard.add(second, A)


def test_a_client_that_was_before_names_itself_and_gets_the_next_epoch_once(shard: Shard) -> None:
    """KIP-360; the second answer is the same as the first, also after a restart of the coordinator."""
    client = shard.begin()
    bumped = shard.init(expected=client).client
    assert bumped == (101, 1)
    shard.restart()
    assert shard.init(expected=client).client == bumped
    assert shard.init(expected=bumped).client == (101, 2)
    assert refused(lambda: shard.init(expected=client)) == ErrorCode.PRODUCER_FENCED
    assert refused(lambda: shard.init(expected=ProducerIdAndEpoch(7, 0))) == ErrorCode.PRODUCER_FENCED


def test_epochs_that_are_used_up_bring_a_new_producer_id(shard: Shard) -> None:
    client = shard.begin()
    for _ in range(EPOCH_MAX - 1):
        client = shard.begin()
    assert client == (101, EPOCH_MAX - 1)
    last, client = client, shard.init(expected=client).client
    assert client == (102, 0)
    assert shard.init(expected=last).client == client, "asked twice"
    assert shard.begin() == (102, 1)
    assert refused(lambda: shard.init(expected=last)) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
def test_a_timeout_out_of_bounds_is_refused(shard: Shard, timeout_ms: int) -> None:
    assert refused(lambda: shard.init(timeout_ms=timeout_ms)) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert shard.journal == []


def test_what_a_client_left_open_is_aborted_before_the_next_begins(shard: Shard) -> None:
    client = shard.begin()
    shard.add(client, A)
    assert refused(shard.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(shard.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    (ending,) = shard.endings
    assert not ending.committed and ending.partitions == {A} and ending.producer_epoch > client.epoch
    assert refused(lambda: shard.end(client, True)) == ErrorCode.PRODUCER_FENCED
    shard.write_markers()
    following = ProducerIdAndEpoch(*shard.init().client)
    assert following.epoch > ending.producer_epoch > client.epoch
    shard.add(following, A)


def test_a_client_of_another_life_may_not_abort_the_current_one(shard: Shard) -> None:
    old = shard.begin()
    current = shard.begin()
    shard.add(current, A)
    assert refused(lambda: shard.init(expected=old)) == ErrorCode.PRODUCER_FENCED
    assert shard.status() is Status.ONGOING


# Version 1: the epoch stays.


def test_a_transaction_of_version_1_ends_and_the_next_one_begins_in_the_same_epoch(shard: Shard) -> None:
    client = shard.begin()
    shard.add(client, A, version=1)
    shard.add(client, A, B, version=1)
    assert shard.machine.verify("t", client, [A, B, ("other", 0)]) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.TRANSACTION_ABORTABLE,
    ]
    assert shard.end(client, True, version=1) == client
    assert shard.status() is Status.PREPARE_COMMIT
    assert refused(lambda: shard.add(client, A, version=1)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(lambda: shard.machine.verify("t", client, [A])) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(lambda: shard.end(client, True, version=1)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(lambda: shard.end(client, False, version=1)) == ErrorCode.INVALID_TXN_STATE
    assert refused(shard.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.endings == [TransactionMarkers("t", 101, 0, True, frozenset((A, B)), False)]
    shard.write_markers()
    assert shard.status() is Status.COMPLETE_COMMIT
    assert shard.end(client, True, version=1) == client, "asked twice"
    assert refused(lambda: shard.end(client, False, version=1)) == ErrorCode.INVALID_TXN_STATE
    shard.add(client, B, version=1)
    shard.end(client, False, version=1)
    shard.write_markers()
    assert shard.status() is Status.COMPLETE_ABORT
    assert shard.end(client, False, version=1) == client


def test_nothing_ends_that_did_not_begin(shard: Shard) -> None:
    assert refused(lambda: shard.end(ProducerIdAndEpoch(1, 0), True)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    client = shard.begin()
    for committed in (True, False):
        assert refused(shard.end, client, committed, version=1) == ErrorCode.INVALID_TXN_STATE
    assert refused(lambda: shard.end(client, True)) == ErrorCode.INVALID_TXN_STATE
    assert refused(lambda: shard.end(ProducerIdAndEpoch(7, 0), True)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refused(lambda: shard.add(ProducerIdAndEpoch(7, 0), A)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refused(lambda: shard.add(client, A, name="other")) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# Version 2: each end raises the epoch.


def test_a_transaction_of_version_2_ends_with_a_new_epoch_and_a_retry_gets_the_same(shard: Shard) -> None:
    client = shard.begin()
    shard.add(client, A)
    following = shard.end(client, True)
    assert following == (101, 1)
    assert shard.endings == [TransactionMarkers("t", 101, 1, True, frozenset((A,)), True)]
    assert refused(lambda: shard.end(client, True)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(lambda: shard.end(client, False)) == ErrorCode.INVALID_TXN_STATE
    assert refused(lambda: shard.add(following, A)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused(lambda: shard.end(following, False)) == ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    shard.restart()
    assert shard.end(client, True) == following
    assert refused(lambda: shard.end(client, False)) == ErrorCode.INVALID_TXN_STATE
    assert refused(lambda: shard.add(client, A)) == ErrorCode.PRODUCER_FENCED
    shard.add(following, A)
    assert refused(lambda: shard.end(client, True)) == ErrorCode.PRODUCER_FENCED, "no longer a retry"


def test_an_empty_transaction_of_version_2_can_be_aborted_in_any_state(shard: Shard) -> None:
    client = shard.begin()
    following = shard.end(client, False)
    assert following == (101, 1) and shard.status() is Status.COMPLETE_ABORT and shard.endings == []
    assert shard.end(client, False) == following
    following = shard.end(following, False)
    shard.add(following, A)
    following = shard.end(following, True)
    shard.write_markers()
    assert refused(lambda: shard.end(following, True)) == ErrorCode.INVALID_TXN_STATE
    assert shard.end(following, False) == (101, following.epoch + 1)


def test_the_last_epoch_ends_with_a_new_producer_id(shard: Shard) -> None:
    client = shard.begin()
    for _ in range(EPOCH_MAX - 1):
        client = shard.begin()
    shard.add(client, A)
    following = shard.end(client, True)
    assert following == (102, 0)
    assert shard.endings == [TransactionMarkers("t", 101, EPOCH_MAX, True, frozenset((A,)), True)]
    assert refused(lambda: shard.end(client, True)) == ErrorCode.CONCURRENT_TRANSACTIONS
    shard.restart()
    shard.write_markers()
    assert shard.end(client, True) == following
    shard.add(following, A)


# Prepared transactions (KIP-939).


@pytest.fixture
def two_phase() -> Shard:
    return Shard(TransactionLimits(two_phase_commit=True))


def test_two_phase_commit_must_be_allowed(shard: Shard) -> None:
    assert refused(lambda: shard.init(two_phase=True)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_waits_for_its_owner_who_may_come_again(two_phase: Shard, committed: bool) -> None:
    shard = two_phase
    client = ProducerIdAndEpoch(*shard.init(two_phase=True, timeout_ms=-1).client)
    assert shard.machine.transactions["t"].timeout_ms == NO_TIMEOUT_MS
    shard.add(client, A, B)
    shard.now_ms += 365 * 24 * 3_600_000
    shard.expire()
    assert shard.status() is Status.ONGOING
    reply = shard.init(two_phase=True, keep_prepared=True)
    assert (reply.client, reply.ongoing) == ((101, 1), client)
    shard.restart()
    reply = shard.init(two_phase=True, keep_prepared=True)
    assert (reply.client, reply.ongoing) == ((101, 2), client)
    owner = reply.client
    for former in (client, ProducerIdAndEpoch(101, 1)):
        assert refused(shard.end, former, committed) == ErrorCode.PRODUCER_FENCED
        assert refused(shard.add, former, A) == ErrorCode.PRODUCER_FENCED
        assert refused(shard.machine.verify, "t", former, [A]) == ErrorCode.PRODUCER_FENCED
    assert refused(lambda: shard.add(owner, A)) == ErrorCode.INVALID_TXN_STATE
    assert refused(lambda: shard.machine.verify("t", owner, [A])) == ErrorCode.INVALID_TXN_STATE
    following = shard.end(owner, committed)
    assert following == (101, 3)
    assert shard.endings == [TransactionMarkers("t", 101, 1, committed, frozenset((A, B)), True)]
    assert refused(lambda: shard.end(owner, committed)) == ErrorCode.CONCURRENT_TRANSACTIONS
    shard.restart()
    shard.write_markers()
    assert shard.end(owner, committed) == following
    shard.add(following, A)
    assert shard.end(following, True) == (101, 4)


def test_a_prepared_transaction_that_is_not_kept_is_aborted_by_the_next_client(two_phase: Shard) -> None:
    shard = two_phase
    client = ProducerIdAndEpoch(*shard.init(two_phase=True).client)
    shard.add(client, A)
    owner = ProducerIdAndEpoch(*shard.init(two_phase=True, keep_prepared=True).client)
    assert refused(shard.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert [ending.committed for ending in shard.endings] == [False]
    shard.write_markers()
    assert refused(lambda: shard.end(owner, True)) == ErrorCode.PRODUCER_FENCED
    following = ProducerIdAndEpoch(*shard.init().client)
    assert following.epoch > owner.epoch
    assert shard.machine.transactions["t"].timeout_ms == TIMEOUT_MS


def test_a_prepared_transaction_does_not_time_out_under_a_client_that_would(two_phase: Shard) -> None:
    """As an operator's, who ends it long after it was prepared."""
    shard = two_phase
    client = ProducerIdAndEpoch(*shard.init(two_phase=True).client)
    shard.add(client, A)
    shard.now_ms += 10 * TIMEOUT_MS
    owner = ProducerIdAndEpoch(*shard.init(keep_prepared=True).client)
    shard.restart()
    shard.now_ms += 10 * TIMEOUT_MS
    shard.expire()
    shard.end(owner, True)
    assert [ending.committed for ending in shard.endings] == [True]


def test_without_a_prepared_transaction_keeping_it_is_an_ordinary_beginning(two_phase: Shard) -> None:
    client = two_phase.begin()
    reply = two_phase.init(two_phase=True, keep_prepared=True)
    assert (reply.client, reply.ongoing) == ((101, client.epoch + 1), UNKNOWN_PRODUCER)


def test_the_owner_of_a_prepared_transaction_gets_a_new_id_when_epochs_are_used_up(two_phase: Shard) -> None:
    shard = two_phase
    client = ProducerIdAndEpoch(*shard.init(two_phase=True).client)
    shard.add(client, A)
    for _ in range(EPOCH_MAX - 1):
        owner = ProducerIdAndEpoch(*shard.init(two_phase=True, keep_prepared=True).client)
    assert owner == (101, EPOCH_MAX - 1)
    owner = ProducerIdAndEpoch(*shard.init(two_phase=True, keep_prepared=True).client)
    assert owner == (102, 0)
    assert shard.end(owner, True) == (102, 1)
    assert shard.endings[0][1:4] == (101, 1, True)
    shard.write_markers()
    shard.add(ProducerIdAndEpoch(102, 1), A)


@pytest.fixture
def bounded() -> Shard:
    return Shard(TransactionLimits(two_phase_commit=True, two_phase_timeout_ms=24 * LOADED_GRACE_MS))


def test_a_prepared_transaction_is_aborted_unless_its_owner_renews_it(bounded: Shard) -> None:
    shard, timeout_ms = bounded, 24 * LOADED_GRACE_MS
    client = ProducerIdAndEpoch(*shard.init(two_phase=True).client)
    shard.add(client, A)
    shard.now_ms += timeout_ms - 1
    shard.add(client, B)
    shard.now_ms += timeout_ms - 1
    shard.expire()
    assert shard.status() is Status.ONGOING, "a new partition renews it"
    owner = ProducerIdAndEpoch(*shard.init(two_phase=True, keep_prepared=True).client)
    shard.now_ms += timeout_ms - 1
    shard.expire()
    assert shard.status() is Status.ONGOING, "so does a new owner"
    assert shard.machine.next_deadline_ms() == shard.now_ms + 1
    shard.now_ms += 1
    shard.expire()
    assert shard.status() is Status.PREPARE_ABORT
    assert [(ending.committed, ending.timed_out) for ending in shard.endings] == [(False, True)]
    shard.write_markers()
    assert refused(lambda: shard.end(owner, True)) == ErrorCode.PRODUCER_FENCED
    assert shard.init(two_phase=True, keep_prepared=True).ongoing == UNKNOWN_PRODUCER, "its owner learns of it"


def test_an_owner_can_renew_its_transaction_after_a_long_outage_of_the_broker(bounded: Shard) -> None:
    shard, timeout_ms = bounded, 24 * LOADED_GRACE_MS
    shard.add(ProducerIdAndEpoch(*shard.init(two_phase=True).client), A)
    shard.now_ms += 10 * timeout_ms
    shard.restart()
    shard.now_ms += LOADED_GRACE_MS - 1
    shard.expire()
    owner = ProducerIdAndEpoch(*shard.init(two_phase=True, keep_prepared=True).client)
    shard.now_ms += timeout_ms - 1
    shard.expire()
    shard.end(owner, True)
    assert [ending.committed for ending in shard.endings] == [True]


def test_a_restart_does_not_renew_a_transaction_beyond_the_grace_period(bounded: Shard) -> None:
    shard, timeout_ms = bounded, 24 * LOADED_GRACE_MS
    shard.add(ProducerIdAndEpoch(*shard.init(two_phase=True).client), A)
    shard.now_ms += timeout_ms - 1
    shard.restart()
    shard.now_ms += LOADED_GRACE_MS
    shard.expire()
    assert shard.status() is Status.PREPARE_ABORT


# Transactions that become two-phase when their owner takes them over, as those of the Spark sink.


def test_a_transaction_is_renewed_by_adding_a_partition_that_it_has(two_phase: Shard) -> None:
    shard = two_phase
    client = shard.begin()
    shard.add(client, A)
    for _ in range(3):
        shard.now_ms += TIMEOUT_MS - 1
        shard.expire()
        shard.add(client, A)
    shard.add(client, B)  # more partitions take no time away
    assert aborts_after(shard, TIMEOUT_MS)


def test_a_renewed_transaction_has_half_its_timeout_after_a_restart(two_phase: Shard) -> None:
    shard = two_phase
    client = shard.begin()
    shard.add(client, A)
    shard.now_ms += TIMEOUT_MS - 1
    shard.add(client, A)
    shard.now_ms += TIMEOUT_MS - 1
    shard.restart()
    # Its owner renews it three times in a timeout, but its producer may be dead.
    assert aborts_after(shard, TIMEOUT_MS // 2)


def test_a_restart_takes_no_time_away_from_a_transaction(two_phase: Shard) -> None:
    shard = two_phase
    shard.add(shard.begin(), A)
    shard.restart()
    assert aborts_after(shard, TIMEOUT_MS)


@pytest.mark.parametrize("version", [1, 2])
def test_adding_no_partition_begins_nothing_and_renews_nothing(two_phase: Shard, version: int) -> None:
    shard = two_phase
    client = shard.begin()
    shard.add(client, version=version)
    assert shard.status() is Status.EMPTY
    shard.add(client, A, version=version)
    shard.now_ms += TIMEOUT_MS - 1
    shard.add(client, version=version)
    shard.now_ms += 1
    shard.expire()
    assert shard.status() is Status.PREPARE_ABORT


@pytest.mark.parametrize(("allowed", "version"), [(True, 1), (False, 2)])
def test_a_transaction_is_not_renewed_by_an_old_client_or_without_two_phase_commit(allowed: bool, version: int) -> None:
    shard = Shard(TransactionLimits(two_phase_commit=allowed))
    client = shard.begin()
    shard.add(client, A, version=version)
    shard.now_ms += TIMEOUT_MS - 1
    shard.add(client, A, version=version)
    shard.restart()
    shard.now_ms += 1
    shard.expire()
    assert shard.status() is Status.PREPARE_ABORT


def test_an_open_transaction_that_is_taken_over_for_two_phase_commit_loses_its_timeout(bounded: Shard) -> None:
    shard = bounded
    client = shard.begin()
    shard.add(client, A)
    shard.now_ms += TIMEOUT_MS - 1
    reply = shard.init(two_phase=True, keep_prepared=True)
    assert reply.ongoing == client
    shard.init(keep_prepared=True)  # by another owner that would not
    assert aborts_after(shard, 24 * LOADED_GRACE_MS)


def test_a_transaction_is_kept_only_where_two_phase_commit_is_allowed(shard: Shard) -> None:
    shard.add(shard.begin(), A)
    assert refused(lambda: shard.init(keep_prepared=True)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert shard.status() is Status.ONGOING


# Time.


def test_a_transaction_that_is_open_for_too_long_is_aborted(shard: Shard) -> None:
    client = shard.begin()
    shard.add(client, A)
    deadline = shard.now_ms + TIMEOUT_MS
    assert shard.machine.next_deadline_ms() == deadline
    shard.now_ms = deadline - 1
    shard.add(client, B)
    shard.expire()
    assert shard.status() is Status.ONGOING, "more partitions give no more time"
    shard.now_ms = deadline
    shard.expire()
    assert shard.status() is Status.PREPARE_ABORT
    assert [(ending.committed, ending.partitions) for ending in shard.endings] == [(False, frozenset((A, B)))]
    assert refused(shard.end, client, True) == ErrorCode.INVALID_TXN_STATE
    assert refused(shard.end, client, False) == ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    assert refused(shard.end, client, True) == ErrorCode.INVALID_TXN_STATE
    assert shard.end(client, False) == ProducerIdAndEpoch(client.producer_id, client.epoch + 1), "as Kafka does"
    assert shard.begin().epoch == client.epoch + 2
    assert refused(shard.end, client, False) == ErrorCode.PRODUCER_FENCED


def test_a_timeout_never_gives_a_client_the_epoch_that_is_left_to_fence_it_with(shard: Shard) -> None:
    client = shard.begin()
    while client.epoch < EPOCH_MAX - 1:
        client = shard.begin()
    shard.add(client, A)
    shard.now_ms += TIMEOUT_MS
    shard.expire()
    shard.write_markers()
    assert refused(shard.end, client, False) == ErrorCode.PRODUCER_FENCED
    assert shard.begin() == ProducerIdAndEpoch(client.producer_id + 1, 0)


def test_many_timeouts_at_once_are_ended_a_few_at_a_time(shard: Shard) -> None:
    for number in range(250):
        name = f"t{number}"
        shard.add(shard.begin(name), A, name=name)
    shard.now_ms += TIMEOUT_MS
    rounds = 0
    while any(t.status is Status.ONGOING for t in shard.machine.transactions.values()):
        shard.now_ms = max(shard.now_ms, shard.machine.next_deadline_ms() or 0)
        shard.expire()
        rounds += 1
    assert rounds == 3 and len(shard.endings) == 250


def test_an_id_that_nobody_uses_is_forgotten_unless_its_transaction_is_open(two_phase: Shard) -> None:
    shard = two_phase
    shard.begin("idle")
    prepared = ProducerIdAndEpoch(*shard.init("prepared", two_phase=True).client)
    shard.add(prepared, A, name="prepared")
    shard.now_ms += shard.limits.id_expiration_ms - 1
    shard.expire()
    assert set(shard.machine.transactions) == {"idle", "prepared"}
    shard.now_ms += 1
    shard.expire()
    assert set(shard.machine.transactions) == {"prepared"}
    assert shard.journal[-1] == TRANSACTIONS.encode(TransactionLogKey("idle"), None)
    shard.restart()
    assert shard.begin("idle") == (103, 0)


# Over any history.


@dataclass
class Log:
    """A partition as far as transactions matter: records by (producer id, epoch) and what ended them."""

    open: dict[int, tuple[int, int]] = field(default_factory=dict)  # producer id -> (epoch, transaction number)
    epochs: dict[int, int] = field(default_factory=dict)
    ended: dict[int, set[bool]] = field(default_factory=dict)  # transaction number -> how it ended here


@dataclass
class Client:
    """What one client believes; several share a transactional id."""

    identity: ProducerIdAndEpoch | None = None
    number: int = -1  # of its open transaction
    unanswered: bool | None = None  # what it asked for with an EndTxn that it has to repeat
    added: set[tuple[int, TopicPartitionKey]] = field(
        default_factory=set
    )  # version 1: transaction number and partition


SEEDS = range(150)  # of the test below, and of the planted bugs that it must find
TWO_ENDINGS = "a transaction was committed on one partition and aborted on another"
OLD_EPOCH_WRITES = "the coordinator let an old epoch write"
FORMER_TRANSACTION = "a record fell into the transaction before"
NOT_REQUESTED = "committed, but no client requested it"
HANGS = "a transaction hangs"


def play(seed: int, version: int) -> None:
    """Clients of one transactional id begin, write, end and retry in any order; the coordinator is killed in between.

    Held: a transaction ends with one kind of marker on all its partitions (invariant 8), a fenced epoch never
    appends (7), no record of transaction n is decided by the end of n-1 (9), replaying the journal gives the state.
    """
    chance = Random(seed)
    bound_ms = chance.choice((None, TIMEOUT_MS))
    shard = Shard(TransactionLimits(two_phase_commit=True, two_phase_timeout_ms=bound_ms))
    logs: dict[TopicPartitionKey, Log] = {(f"p{n}", 0): Log() for n in range(3)}
    clients = [Client() for _ in range(3)]
    asked: dict[int, bool] = {}  # transaction number -> what its client asked for last
    numbers = iter(range(10_000))
    written_by: dict[ProducerIdAndEpoch, int] = {}  # the transaction number that a client wrote in
    newest: dict[int, int] = {}  # producer id -> the newest epoch that was given out

    def write(client: Client, topic_partition: TopicPartitionKey) -> None:
        assert client.identity is not None
        producer_id, epoch = client.identity
        log = logs[topic_partition]
        number = client.number if client.number >= 0 else next(numbers)
        if version == 1 and (number, topic_partition) not in client.added:
            shard.add(client.identity, topic_partition, version=version)
            client.added.add((number, topic_partition))
        client.number = number
        if log.open.get(producer_id, (-1, 0))[0] != epoch:
            if version > 1:
                shard.add(client.identity, topic_partition, version=version)
            assert shard.machine.verify("t", client.identity, [topic_partition]) == [ErrorCode.NONE]
        assert epoch >= log.epochs.get(producer_id, -1), OLD_EPOCH_WRITES
        log.epochs[producer_id] = epoch
        written_by[client.identity] = client.number
        opened = log.open.setdefault(producer_id, (epoch, client.number))
        assert opened[1] == client.number, FORMER_TRANSACTION

    def write_marker(ending: TransactionMarkers, topic_partition: TopicPartitionKey) -> None:
        log = logs[topic_partition]
        assert ending.producer_epoch >= log.epochs.get(ending.producer_id, -1)
        log.epochs[ending.producer_id] = ending.producer_epoch
        opened = log.open.pop(ending.producer_id, None)
        if opened is not None:
            log.ended.setdefault(opened[1], set()).add(ending.committed)

    def end(client: Client) -> None:
        """The answer may be lost: then the client can only ask again."""
        assert client.identity is not None
        committed = chance.random() < 0.5 if client.unanswered is None else client.unanswered
        client.unanswered = committed
        following = shard.end(client.identity, committed, version=version)
        asked[client.number] = committed
        if chance.random() < 0.7:
            client.identity, client.number, client.unanswered = following, -1, None

    def step() -> None:
        client = chance.choice(clients)
        kind = chance.choice(("begin", "write", "write", "write", "end", "marker", "markers", "kill", "time"))
        if kind == "begin" or client.identity is None:
            keep = version >= 2 and chance.random() < 0.2
            reply = shard.init(keep_prepared=keep, two_phase=keep)
            client.identity, client.unanswered = reply.client, None
            client.number = written_by.get(reply.ongoing, -1)  # whose transaction it took over
            assert client.identity.epoch >= newest.get(client.identity.producer_id, -1)
            newest[client.identity.producer_id] = client.identity.epoch
        elif client.unanswered is not None or kind == "end":
            end(client)
        elif kind == "write":
            write(client, chance.choice(list(logs)))
        elif kind == "marker" and shard.endings:
            ending = chance.choice(shard.endings)
            if ending.partitions:
                write_marker(ending, chance.choice(sorted(ending.partitions)))
        elif kind == "markers":
            finish()
        elif kind == "kill":
            shard.restart()
        elif kind == "time":
            shard.now_ms += chance.choice((10, TIMEOUT_MS))
            shard.expire()

    def finish() -> None:
        for ending in shard.endings:
            for topic_partition in ending.partitions:
                write_marker(ending, topic_partition)
        shard.write_markers()

    codes: set[ErrorCode] = set()
    for _ in range(120):
        try:
            step()
        except KafkaError as error:
            codes.add(error.code)
    assert codes <= {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
    finish()
    shard.now_ms += TIMEOUT_MS
    shard.expire()
    finish()
    kinds: dict[int, set[bool]] = {}
    for log in logs.values():
        for number, how in log.ended.items():
            kinds.setdefault(number, set()).update(how)
    assert all(len(how) == 1 for how in kinds.values()), TWO_ENDINGS
    for number, how in kinds.items():
        assert how == {False} or asked.get(number) is True, NOT_REQUESTED
    current = shard.machine.transactions.get("t")
    if current is None or not current.is_two_phase or bound_ms is not None:
        assert not any(log.open for log in logs.values()), HANGS
    assert shard.replayed().transactions == shard.machine.transactions


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_ends_once_and_as_a_whole(version: int) -> None:
    for seed in SEEDS:
        play(seed, version)


# The test itself is tested: each of these bugs, planted into the machine, must break what it is meant to break.


def _fence_forgets_the_epoch(patch: pytest.MonkeyPatch) -> None:
    fenced = Transaction.prepared_fence
    patch.setattr(
        Transaction,
        "prepared_fence",
        lambda self, now_ms: replace(fenced(self, now_ms), producer_epoch=self.producer_epoch),
    )


def _every_end_is_a_retry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "_is_retry", lambda current, client: True)


def _epochs_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        TransactionsMachine,
        "_validate_producer",
        lambda self, transactional_id, client: self._existing(transactional_id),
    )


def _a_new_client_gets_the_old_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "_bump_epoch", lambda client, new_producer_id: client)


def _decided_transactions_are_forgotten_on_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionsMachine, "on_loaded", lambda self, now_ms: Outcome())


def _the_decision_can_be_changed(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is being committed counts as open still."""
    patch.setattr(Transaction, "is_completing", property(lambda self: False))
    record = Transaction.record

    def open_still(self: Transaction) -> Any:
        value = record(self)
        if value.transaction_status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT):
            return value._replace(transaction_status=Status.ONGOING)
        return value

    patch.setattr(Transaction, "record", open_still)


def _a_partition_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Partitions that are added later replace those from before."""
    grown = Transaction.with_partitions

    def replaced(self: Transaction, topic_partitions: Any, version: int, now_ms: int) -> Transaction:
        return replace(grown(self, topic_partitions, version, now_ms), partitions=frozenset(topic_partitions))

    patch.setattr(Transaction, "with_partitions", replaced)


def must_be_found(expected: str) -> None:
    """Play the seeds until one of them fails with this message; another failure is not what the plant is for."""
    others: dict[str, int] = {}
    for seed in SEEDS:
        try:
            play(seed, 2)
        except AssertionError as error:
            found = str(error).partition("\n")[0]
            if found == expected:
                return
            others.setdefault(found, seed)
    pytest.fail(f"not found: {expected}; found instead, with their first seeds: {others}")


PLANTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    _fence_forgets_the_epoch: TWO_ENDINGS,
    _every_end_is_a_retry: NOT_REQUESTED,
    _epochs_are_not_checked: OLD_EPOCH_WRITES,
    _a_new_client_gets_the_old_epoch: FORMER_TRANSACTION,
    _decided_transactions_are_forgotten_on_restart: HANGS,
    _the_decision_can_be_changed: FORMER_TRANSACTION,
    _a_partition_is_left_out: HANGS,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    must_be_found(PLANTS[plant])


def test_another_failure_than_the_expected_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    _every_end_is_a_retry(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match=f"not found: {HANGS}; found instead.*{NOT_REQUESTED}"):
        must_be_found(HANGS)

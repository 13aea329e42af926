"""Transactions as their coordinator decides them: one machine for each shard of `__transaction_state`.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

A transaction is decided when its prepare record is committed, not earlier: only then are markers written (the
`Ending` of an outcome), and whatever happens afterwards they are written, again after a restart if need be. Who may
speak is told by the epoch: a client that begins anew fences the one before, and with version 2 (KIP-890) every end
raises the epoch, so that nothing late belongs to the wrong transaction.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from levada.core.machine import Deadlines, JournalRecord, Outcome, ResponseHandle
from levada.core.transactions.state import (
    NEVER_MS,
    TRANSACTION_VERSION_2,
    Place,
    ProducerIdAndEpoch,
    Transaction,
    is_exhausted,
    restored,
)
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader
from levada.wire.internal.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONS,
    Status,
    TransactionLogKey,
    TransactionLogValue,
)

EXPIRED_AT_ONCE_MAX: Final = 100  # what one look at the time ends or removes
NOBODY: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


class TransactionLimits(NamedTuple):
    """Settings of the coordinator."""

    max_timeout_ms: int = 15 * 60_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    two_phase_commit: bool = False


class InitRequest(NamedTuple):
    """A client that wants to begin. `new_producer_id` is one that nobody has had, where one may be needed."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch = NOBODY  # who the client was before (KIP-360)
    two_phase: bool = False
    keep_prepared: bool = False
    new_producer_id: int = NO_PRODUCER_ID


class InitResult(NamedTuple):
    """Who the client is, and whose records are in the prepared transaction that it took over."""

    client: ProducerIdAndEpoch
    ongoing: ProducerIdAndEpoch = NOBODY


class EndRequest(NamedTuple):
    """A client that wants its transaction to end."""

    transactional_id: str
    client: ProducerIdAndEpoch
    committed: bool
    version: int
    new_producer_id: int = NO_PRODUCER_ID


class Ending(NamedTuple):
    """A decided transaction: to be written into each of its partitions, then `complete` is due."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[Place]
    bumped: bool  # the epoch is above that of the transaction's records
    timed_out: bool = False


class NeedsProducerIdError(Exception):
    """The decision needs a producer id that nobody has had: ask again with one."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A transactional id has this state now, or is forgotten."""

    transactional_id: str
    transaction: Transaction | None


@dataclass(slots=True)
class TransactionsMachine:
    """The state of one shard."""

    limits: TransactionLimits = field(default_factory=TransactionLimits)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    deadlines: Deadlines[str] = field(default_factory=Deadlines)

    # A client begins.

    def init(self, request: InitRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
        """InitProducerId: the client gets an identity that fences all before; what they left open is aborted."""
        timeout_ms = self._timeout_ms(request)
        current = self.transactions.get(request.transactional_id)
        if current is None:
            first = Transaction(_fresh(request.new_producer_id), 0, timeout_ms, now_ms)
            return _changed(request.transactional_id, first, handle, InitResult(first.client))
        expected = request.expected
        if expected != NOBODY and not _was(current, expected):
            raise _fenced(expected, current)
        if current.is_ending:
            raise _concurrent()
        if current.status is not Status.ONGOING:
            return self._begin(request, current, timeout_ms, now_ms, handle)
        if expected != NOBODY and expected.epoch not in (current.client.epoch, current.last_epoch):
            raise _fenced(expected, current)
        if request.keep_prepared:
            client = _bumped(current.client, request.new_producer_id)
            kept = current.taken_over(client, timeout_ms, now_ms)
            reply = InitResult(client, ProducerIdAndEpoch(current.producer_id, current.producer_epoch))
            return _changed(request.transactional_id, kept, handle, reply)
        fenced = current.fenced(now_ms)
        return _changed(
            request.transactional_id, fenced, handle, _concurrent(), _ending(request.transactional_id, fenced)
        )

    def _timeout_ms(self, request: InitRequest) -> int:
        if request.two_phase:
            if not self.limits.two_phase_commit:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "two-phase commit needs transaction.two.phase.commit.enable=true",
                )
            return NEVER_MS
        if not 0 < request.timeout_ms <= self.limits.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a timeout of {request.timeout_ms} ms; transaction.max.timeout.ms is {self.limits.max_timeout_ms}",
            )
        return request.timeout_ms

    def _begin(
        self, request: InitRequest, current: Transaction, timeout_ms: int, now_ms: int, handle: ResponseHandle
    ) -> Outcome:
        expected, epoch = request.expected, current.producer_epoch
        if expected == NOBODY:
            last_epoch = NO_EPOCH
        elif expected == current.client:
            last_epoch = expected.epoch
        elif expected.epoch == current.last_epoch:  # asked twice: the same answer
            same = current.given(current.client, current.last_epoch, timeout_ms, now_ms)
            return _changed(request.transactional_id, same, handle, InitResult(current.client))
        else:
            raise _fenced(expected, current)
        client = _bumped(ProducerIdAndEpoch(current.producer_id, epoch), request.new_producer_id)
        begun = current.given(client, last_epoch, timeout_ms, now_ms)
        return _changed(request.transactional_id, begun, handle, InitResult(client))

    # A transaction grows.

    def verify(
        self, transactional_id: str, client: ProducerIdAndEpoch, places: Collection[Place]
    ) -> list[ErrorCode]:
        """For each partition whether the open transaction has it (KIP-890 part 1)."""
        current = self._of(transactional_id, client)
        return [
            ErrorCode.NONE if place in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for place in places
        ]

    def add(
        self,
        transactional_id: str,
        client: ProducerIdAndEpoch,
        places: Collection[Place],
        version: int,
        now_ms: int,
        handle: ResponseHandle,
    ) -> Outcome:
        """AddPartitionsToTxn, AddOffsetsToTxn, and what a Produce of version 2 adds by itself."""
        current = self._of(transactional_id, client)
        if current.status is Status.ONGOING and current.partitions.issuperset(places):
            return Outcome(responses=[(handle, None)])
        return _changed(transactional_id, current.with_partitions(places, version, now_ms), handle, None)

    def _of(self, transactional_id: str, client: ProducerIdAndEpoch) -> Transaction:
        """The state of a client that may add to its transaction."""
        current = self._known(transactional_id)
        if client.producer_id != current.client.producer_id:
            raise _unmapped(transactional_id, client)
        if client.epoch != current.client.epoch:
            raise _fenced(client, current)
        if current.is_ending:
            raise _concurrent()
        if current.is_taken_over:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, "a prepared transaction was taken over; it can only be ended"
            )
        return current

    def _known(self, transactional_id: str) -> Transaction:
        current = self.transactions.get(transactional_id)
        if current is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"no producer has the transactional id {transactional_id!r}",
            )
        return current

    # A transaction ends.

    def end(self, request: EndRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
        """EndTxn; the reply is who the client is from now on."""
        current = self._known(request.transactional_id)
        bumps = request.version >= TRANSACTION_VERSION_2
        again = bumps and _ended_before(current, request.client)
        if not again:
            if request.client.producer_id != current.client.producer_id:
                raise _unmapped(request.transactional_id, request.client)
            if request.client.epoch != current.client.epoch:
                raise _fenced(request.client, current)
            if bumps and current.is_ending:
                raise _concurrent()
        wanted = current.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)
        if current.status is Status.ONGOING:
            return self._decide(request, current, now_ms, handle)
        if current.status is Status.EMPTY:
            empty = bumps and not request.committed
        else:
            if (again or not bumps) and request.committed == wanted:
                if current.is_ending:
                    raise _concurrent()
                return Outcome(responses=[(handle, current.client)])
            empty = bumps and not again and not request.committed
        if not empty:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"{'commit' if request.committed else 'abort'} of a transaction that is {current.status.title}",
            )
        client = _bumped(current.client, request.new_producer_id)
        ended = current.decided(False, client, request.version, now_ms).completed(now_ms)
        return _changed(request.transactional_id, ended, handle, client)

    def _decide(
        self, request: EndRequest, current: Transaction, now_ms: int, handle: ResponseHandle
    ) -> Outcome:
        client = current.client
        if request.version >= TRANSACTION_VERSION_2:
            client = _bumped(client, request.new_producer_id)
        decided = current.decided(request.committed, client, request.version, now_ms)
        ending = _ending(request.transactional_id, decided)
        return _changed(request.transactional_id, decided, handle, client, ending)

    def complete(self, ending: Ending, now_ms: int, handle: ResponseHandle) -> Outcome:
        """All markers are written and committed. A second time it is no news."""
        current = self.transactions.get(ending.transactional_id)
        if (
            current is None
            or not current.is_ending
            or (current.producer_id, current.producer_epoch) != (ending.producer_id, ending.producer_epoch)
        ):
            return Outcome(responses=[(handle, None)])
        return _changed(ending.transactional_id, current.completed(now_ms), handle, None)

    # Time.

    def on_loaded(self, now_ms: int) -> Outcome:
        """Transactions that were decided are ended, whatever was done of it before."""
        return Outcome(
            effects=[
                _ending(name, current) for name, current in self.transactions.items() if current.is_ending
            ]
        )

    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_ms()

    def expire(self, now_ms: int) -> Outcome:
        """Abort what is open for too long; forget ids that nobody has used for long."""
        events, effects = [], []
        for name in self.deadlines.due(now_ms)[:EXPIRED_AT_ONCE_MAX]:
            current = self.transactions[name]
            if current.status is Status.ONGOING:
                aborted = current.timed_out(now_ms)
                events.append(Changed(name, aborted))
                effects.append(_ending(name, aborted)._replace(timed_out=True))
            else:
                events.append(Changed(name, None))
        return Outcome(events, effects=effects)

    # Applying.

    def encode(self, event: Changed) -> JournalRecord | None:
        value = None if event.transaction is None else event.transaction.record()
        return TRANSACTIONS.encode(TransactionLogKey(event.transactional_id), value)

    def apply(self, event: Changed) -> None:
        name, transaction = event.transactional_id, event.transaction
        if transaction is None:
            self.transactions.pop(name, None)
            self.deadlines.cancel(name)
            return
        self.transactions[name] = transaction
        deadline_ms = transaction.deadline_ms(self.limits.id_expiration_ms)
        if deadline_ms is None:
            self.deadlines.cancel(name)
        else:
            self.deadlines.set(name, deadline_ms)

    def replay(self, key: bytes | None, value: bytes | None, batch: BatchHeader) -> None:
        found = None if batch.is_control else TRANSACTIONS.decode(key or b"", value)
        if found is not None:
            name, content = found
            known = restored(content) if isinstance(content, TransactionLogValue) else None
            self.apply(Changed(name.transactional_id, known))


def _changed(
    name: str, transaction: Transaction, handle: ResponseHandle, reply: Any, ending: Ending | None = None
) -> Outcome:
    effects = () if ending is None else (ending,)
    return Outcome([Changed(name, transaction)], [(handle, reply)], effects=effects)


def _ending(name: str, decided: Transaction) -> Ending:
    return Ending(
        name,
        decided.producer_id,
        decided.producer_epoch,
        decided.status is Status.PREPARE_COMMIT,
        decided.partitions,
        decided.version >= TRANSACTION_VERSION_2,
    )


def _fresh(producer_id: int) -> int:
    if producer_id == NO_PRODUCER_ID:
        raise NeedsProducerIdError
    return producer_id


def _bumped(client: ProducerIdAndEpoch, new_producer_id: int) -> ProducerIdAndEpoch:
    """The same producer one epoch on, or a new one when its epochs are used up."""
    if is_exhausted(client.epoch):
        return ProducerIdAndEpoch(_fresh(new_producer_id), 0)
    return ProducerIdAndEpoch(client.producer_id, client.epoch + 1)


def _was(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Whether a client may be what it says it was: the epoch is looked at later, unless the id was used up."""
    used_up = expected.producer_id == current.previous_producer_id and is_exhausted(expected.epoch)
    return expected.producer_id == current.client.producer_id or used_up


def _ended_before(current: Transaction, client: ProducerIdAndEpoch) -> bool:
    """Whether this client's EndTxn was carried out already, and its answer lost (KIP-890 part 2)."""
    return (
        current.version >= TRANSACTION_VERSION_2
        and current.status not in (Status.EMPTY, Status.ONGOING)
        and 0 <= client.epoch == current.last_epoch
        and client.producer_id in (current.producer_id, current.previous_producer_id)
    )


def _fenced(client: ProducerIdAndEpoch, current: Transaction) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"producer {client.producer_id} has epoch {client.epoch}, the current one is {current.client.epoch}",
    )


def _unmapped(name: str, client: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"producer {client.producer_id} is not that of {name!r}"
    )


def _concurrent() -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction before is being ended")

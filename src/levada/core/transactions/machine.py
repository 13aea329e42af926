"""The state machine of a partition of `__transaction_state`: its transactional ids and their transactions.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

The outcome of a transaction is final when its PrepareCommit or PrepareAbort record is committed. Only then are its
markers written (the effect `TransactionMarkers`), and written again after a restart until all are there. The producer
epoch fences zombies: InitProducerId bumps it, and with transaction version 2 (KIP-890) every EndTxn does, so that a
late request cannot join the next transaction.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from levada.core.machine import Deadlines, JournalRecord, Outcome, ResponseHandle
from levada.core.transactions.state import (
    NO_TIMEOUT_MS,
    TRANSACTION_VERSION_2,
    ProducerIdAndEpoch,
    Transaction,
    is_exhausted,
    restored,
)
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import TopicPartitionKey
from levada.wire.batches import BatchHeader
from levada.wire.internal.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONS,
    Status,
    TransactionLogKey,
    TransactionLogValue,
)

log = EventLog(__name__)

EXPIRIES_MAX: Final = 100  # transactional ids handled by one `expire`
# After a restart, two-phase transactions wait at least so long: their owners could not renew them before.
LOADED_GRACE_MS: Final = 3_600_000
# Ordinary ones that can be renewed wait at least for this part of their timeout, because renewals are not journaled:
# owners renew them three times in each timeout. Longer would hold up readers for the transactions of dead producers.
LOADED_GRACE_OF_TIMEOUT: Final = 0.5
UNKNOWN_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


class TransactionLimits(NamedTuple):
    """Settings of the coordinator."""

    max_timeout_ms: int = 15 * 60_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    two_phase_commit: bool = False
    two_phase_timeout_ms: int | None = None  # None: never


class InitRequest(NamedTuple):
    """InitProducerId; `new_producer_id` is an unused id, for the case that one is needed."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch = UNKNOWN_PRODUCER  # the client's current pair (KIP-360)
    two_phase: bool = False
    keep_prepared: bool = False
    new_producer_id: int = NO_PRODUCER_ID


class InitResult(NamedTuple):
    """The client's pair, and that of the prepared transaction which it kept (KIP-939)."""

    client: ProducerIdAndEpoch
    ongoing: ProducerIdAndEpoch = UNKNOWN_PRODUCER


class EndRequest(NamedTuple):
    """EndTxn."""

    transactional_id: str
    client: ProducerIdAndEpoch
    committed: bool
    version: int
    new_producer_id: int = NO_PRODUCER_ID


class TransactionMarkers(NamedTuple):
    """The markers of a prepared transaction: once all partitions have one, `complete` follows."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TopicPartitionKey]
    epoch_bumped: bool  # the marker's epoch is above that of the transaction's records
    timed_out: bool = False


class NeedsProducerIdError(Exception):
    """The decision needs a new producer id: repeat it with one."""


@dataclass(frozen=True, slots=True)
class TransactionChanged:
    """A transactional id has new metadata, or is removed (None)."""

    transactional_id: str
    transaction: Transaction | None


@dataclass(frozen=True, slots=True)
class DeadlineMoved:
    """A transaction has a later deadline; kept in memory only."""

    transactional_id: str
    at_ms: int


@dataclass(slots=True)
class TransactionsMachine:
    """The state of one shard."""

    limits: TransactionLimits = field(default_factory=TransactionLimits)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    deadlines: Deadlines[str] = field(default_factory=Deadlines)

    # InitProducerId.

    def init(self, request: InitRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
        """Give the client a producer id and epoch that fence former clients; their open transaction is aborted."""
        timeout_ms, name = self._timeout_ms(request), request.transactional_id
        current = self.transactions.get(name)
        if request.keep_prepared and not (self.limits.two_phase_commit or (current and current.is_two_phase)):
            raise _two_phase_not_allowed()
        if current is None:
            first = Transaction(_new_producer_id(request.new_producer_id), 0, timeout_ms, now_ms)
            return _changed(name, first, handle, InitResult(first.client))
        expected = request.expected
        if expected != UNKNOWN_PRODUCER and not _may_be_predecessor(current, expected):
            raise _fenced(expected, current)
        if current.is_completing:
            raise _concurrent_transactions()
        if current.status is not Status.ONGOING:
            return self._start_epoch(request, current, timeout_ms, now_ms, handle)
        known_epochs = (current.client.epoch, current.last_producer_epoch)
        if expected != UNKNOWN_PRODUCER and expected.epoch not in known_epochs:
            raise _fenced(expected, current)
        if request.keep_prepared:
            client = _bump_epoch(current.client, request.new_producer_id)
            kept = current.kept_prepared(client, timeout_ms, now_ms)
            result = InitResult(client, ProducerIdAndEpoch(current.producer_id, current.producer_epoch))
            return _changed(name, kept, handle, result)
        fenced = current.prepared_fence(now_ms)
        return _changed(name, fenced, handle, _concurrent_transactions(), _markers(name, fenced))

    def _timeout_ms(self, request: InitRequest) -> int:
        if request.two_phase:
            if not self.limits.two_phase_commit:
                raise _two_phase_not_allowed()
            return NO_TIMEOUT_MS
        if not 0 < request.timeout_ms <= self.limits.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a timeout of {request.timeout_ms} ms; transaction.max.timeout.ms is {self.limits.max_timeout_ms}",
            )
        return request.timeout_ms

    def _start_epoch(
        self, request: InitRequest, current: Transaction, timeout_ms: int, now_ms: int, handle: ResponseHandle
    ) -> Outcome:
        expected, epoch = request.expected, current.producer_epoch
        if expected == UNKNOWN_PRODUCER:
            last_producer_epoch = NO_EPOCH
        elif expected == current.client:
            last_producer_epoch = expected.epoch
        elif expected.epoch == current.last_producer_epoch:  # a retry: the same response
            same = current.with_producer(current.client, current.last_producer_epoch, timeout_ms, now_ms)
            return _changed(request.transactional_id, same, handle, InitResult(current.client))
        else:
            raise _fenced(expected, current)
        client = _bump_epoch(ProducerIdAndEpoch(current.producer_id, epoch), request.new_producer_id)
        begun = current.with_producer(client, last_producer_epoch, timeout_ms, now_ms)
        return _changed(request.transactional_id, begun, handle, InitResult(client))

    # Partitions.

    def verify(
        self,
        transactional_id: str,
        client: ProducerIdAndEpoch,
        topic_partitions: Collection[TopicPartitionKey],
    ) -> list[ErrorCode]:
        """An error code for each partition: whether the ongoing transaction has it (KIP-890 part 1)."""
        current = self._validate_producer(transactional_id, client)
        return [
            ErrorCode.NONE if topic_partition in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for topic_partition in topic_partitions
        ]

    def add(
        self,
        transactional_id: str,
        client: ProducerIdAndEpoch,
        topic_partitions: Collection[TopicPartitionKey],
        version: int,
        now_ms: int,
        handle: ResponseHandle,
    ) -> Outcome:
        """AddPartitionsToTxn, AddOffsetsToTxn, and partitions that a Produce of transaction version 2 adds.

        Repeating partitions that the transaction has restarts its timeout, if the client has transaction version 2.
        """
        current = self._validate_producer(transactional_id, client)
        if not topic_partitions:  # nothing begins without a partition, and nothing is renewed
            return Outcome(responses=[(handle, None)])
        if current.status is Status.ONGOING and current.partitions.issuperset(topic_partitions):
            timeout_ms = self._renewable_timeout_ms(current) if version >= TRANSACTION_VERSION_2 else None
            renewed = [] if timeout_ms is None else [DeadlineMoved(transactional_id, now_ms + timeout_ms)]
            return Outcome(renewed, [(handle, None)])
        return _changed(transactional_id, current.with_partitions(topic_partitions, version, now_ms), handle, None)

    def _renewable_timeout_ms(self, current: Transaction) -> int | None:
        """How long after a renewal a transaction times out; None if it does not, or cannot be renewed."""
        if current.is_two_phase:
            return self.limits.two_phase_timeout_ms
        if self.limits.two_phase_commit and current.version >= TRANSACTION_VERSION_2:
            return current.timeout_ms
        return None

    def _validate_producer(self, transactional_id: str, client: ProducerIdAndEpoch) -> Transaction:
        """The metadata of a client that may add partitions. PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, ..."""
        current = self._existing(transactional_id)
        if client.producer_id != current.client.producer_id:
            raise _invalid_mapping(transactional_id, client)
        if client.epoch != current.client.epoch:
            raise _fenced(client, current)
        if current.is_completing:
            raise _concurrent_transactions()
        if current.is_kept_prepared:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a prepared transaction was kept; it can only be ended")
        return current

    def _existing(self, transactional_id: str) -> Transaction:
        current = self.transactions.get(transactional_id)
        if current is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"no producer has the transactional id {transactional_id!r}",
            )
        return current

    # EndTxn.

    def end(self, request: EndRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
        """Prepare the commit or abort; the result is the client's new producer id and epoch."""
        current = self._existing(request.transactional_id)
        bumps = request.version >= TRANSACTION_VERSION_2
        is_retry = bumps and _is_retry(current, request.client)
        if not is_retry:
            if request.client.producer_id != current.client.producer_id:
                raise _invalid_mapping(request.transactional_id, request.client)
            if request.client.epoch != current.client.epoch:
                raise _fenced(request.client, current)
            if bumps and current.is_completing:
                raise _concurrent_transactions()
        was_committed = current.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)
        if current.status is Status.ONGOING:
            return self._prepare(request, current, now_ms, handle)
        if current.status is Status.EMPTY:
            empty = bumps and not request.committed
        else:
            if (is_retry or not bumps) and request.committed == was_committed:
                if current.is_completing:
                    raise _concurrent_transactions()
                return Outcome(responses=[(handle, current.client)])
            empty = bumps and not is_retry and not request.committed
        if not empty:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"{'commit' if request.committed else 'abort'} of a transaction that is {current.status.title}",
            )
        client = _bump_epoch(current.client, request.new_producer_id)
        ended = current.prepared(False, client, request.version, now_ms).completed(now_ms)
        return _changed(request.transactional_id, ended, handle, client)

    def _prepare(self, request: EndRequest, current: Transaction, now_ms: int, handle: ResponseHandle) -> Outcome:
        client = current.client
        if request.version >= TRANSACTION_VERSION_2:
            client = _bump_epoch(client, request.new_producer_id)
        prepared = current.prepared(request.committed, client, request.version, now_ms)
        markers = _markers(request.transactional_id, prepared)
        return _changed(request.transactional_id, prepared, handle, client, markers)

    def complete(self, markers: TransactionMarkers, now_ms: int, handle: ResponseHandle) -> Outcome:
        """All markers are written and committed. Does nothing the second time."""
        current = self.transactions.get(markers.transactional_id)
        if (
            current is None
            or not current.is_completing
            or (current.producer_id, current.producer_epoch) != (markers.producer_id, markers.producer_epoch)
        ):
            return Outcome(responses=[(handle, None)])
        return _changed(markers.transactional_id, current.completed(now_ms), handle, None)

    # Timers.

    def on_loaded(self, now_ms: int) -> Outcome:
        """Write the markers of all prepared transactions, again if they were written before."""
        return Outcome(
            [
                DeadlineMoved(name, max(self.deadlines.get(name) or 0, now_ms + grace_ms))
                for name, current in self.transactions.items()
                if current.status is Status.ONGOING and (grace_ms := self._loaded_grace_ms(current)) is not None
            ],
            effects=[_markers(name, current) for name, current in self.transactions.items() if current.is_completing],
        )

    def _loaded_grace_ms(self, current: Transaction) -> int | None:
        """How long an open transaction waits for a renewal after a restart; None if it cannot be renewed."""
        timeout_ms = self._renewable_timeout_ms(current)
        if timeout_ms is None:
            return None
        return min(timeout_ms, LOADED_GRACE_MS) if current.is_two_phase else int(timeout_ms * LOADED_GRACE_OF_TIMEOUT)

    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_ms()

    def expire(self, now_ms: int) -> Outcome:
        """Abort transactions that timed out, and remove expired transactional ids."""
        events, effects = [], []
        for name in self.deadlines.due(now_ms)[:EXPIRIES_MAX]:
            current = self.transactions[name]
            if current.status is Status.ONGOING:
                if current.is_two_phase:
                    open_ms = now_ms - current.start_ms
                    log.warning("two-phase transaction aborted", transactional_id=name, open_for_ms=open_ms)
                aborted = current.prepared_timeout(now_ms)
                events.append(TransactionChanged(name, aborted))
                effects.append(_markers(name, aborted)._replace(timed_out=True))
            else:
                events.append(TransactionChanged(name, None))
        return Outcome(events, effects=effects)

    # Applying and replaying events.

    def encode(self, event: TransactionChanged | DeadlineMoved) -> JournalRecord | None:
        if isinstance(event, DeadlineMoved):
            return None
        value = None if event.transaction is None else event.transaction.record()
        return TRANSACTIONS.encode(TransactionLogKey(event.transactional_id), value)

    def apply(self, event: TransactionChanged | DeadlineMoved) -> None:
        if isinstance(event, DeadlineMoved):
            self.deadlines.set(event.transactional_id, event.at_ms)
            return
        name, transaction = event.transactional_id, event.transaction
        if transaction is None:
            self.transactions.pop(name, None)
            self.deadlines.cancel(name)
            return
        former = self.transactions.get(name)
        self.transactions[name] = transaction
        deadline_ms = transaction.deadline_ms(self.limits.id_expiration_ms, self.limits.two_phase_timeout_ms)
        if deadline_ms is not None and former is not None and former.status is transaction.status is Status.ONGOING:
            deadline_ms = max(deadline_ms, self.deadlines.get(name) or 0)  # it may have been renewed
        if deadline_ms is None:
            self.deadlines.cancel(name)
        else:
            self.deadlines.set(name, deadline_ms)

    def replay(self, key: bytes | None, value: bytes | None, batch: BatchHeader) -> None:
        found = None if batch.is_control else TRANSACTIONS.decode(key or b"", value)
        if found is not None:
            name, content = found
            metadata = restored(content) if isinstance(content, TransactionLogValue) else None
            self.apply(TransactionChanged(name.transactional_id, metadata))


def _changed(
    name: str,
    transaction: Transaction,
    handle: ResponseHandle,
    result: Any,
    markers: TransactionMarkers | None = None,
) -> Outcome:
    effects = () if markers is None else (markers,)
    return Outcome([TransactionChanged(name, transaction)], [(handle, result)], effects=effects)


def _markers(name: str, prepared: Transaction) -> TransactionMarkers:
    return TransactionMarkers(
        name,
        prepared.producer_id,
        prepared.producer_epoch,
        prepared.status is Status.PREPARE_COMMIT,
        prepared.partitions,
        prepared.version >= TRANSACTION_VERSION_2,
    )


def _new_producer_id(producer_id: int) -> int:
    if producer_id == NO_PRODUCER_ID:
        raise NeedsProducerIdError
    return producer_id


def _bump_epoch(client: ProducerIdAndEpoch, new_producer_id: int) -> ProducerIdAndEpoch:
    """The next epoch, or a new producer id if the epochs are exhausted."""
    if is_exhausted(client.epoch):
        return ProducerIdAndEpoch(_new_producer_id(new_producer_id), 0)
    return ProducerIdAndEpoch(client.producer_id, client.epoch + 1)


def _may_be_predecessor(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Whether the expected producer id is the current one, or the former one whose epochs were exhausted."""
    was_exhausted = expected.producer_id == current.previous_producer_id and is_exhausted(expected.epoch)
    return expected.producer_id == current.client.producer_id or was_exhausted


def _is_retry(current: Transaction, client: ProducerIdAndEpoch) -> bool:
    """Whether the EndTxn is a retry after a lost response (KIP-890 part 2)."""
    return (
        current.version >= TRANSACTION_VERSION_2
        and current.status not in (Status.EMPTY, Status.ONGOING)
        and 0 <= client.epoch == current.last_producer_epoch
        and client.producer_id in (current.producer_id, current.previous_producer_id)
    )


def _fenced(client: ProducerIdAndEpoch, current: Transaction) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"producer {client.producer_id} has epoch {client.epoch}, the current one is {current.client.epoch}",
    )


def _invalid_mapping(name: str, client: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"producer {client.producer_id} is not that of {name!r}")


def _two_phase_not_allowed() -> KafkaError:
    return KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "two-phase commit needs transaction.two.phase.commit.enable=true",
    )


def _concurrent_transactions() -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction is still completing")

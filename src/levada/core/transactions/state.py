"""The state of one transactional id and its steps: pure values, each step a new one.

Two pairs of producer id and epoch matter. `producer_id` and `producer_epoch` are those of the transaction, which its
markers carry. A client may have been told of another pair already, `next_...`: because the epochs of its id are used
up, or because it took over a prepared transaction (KIP-939) whose records have the older epoch. `client` is whichever
the client has to name. `last_epoch` is what the client named before, so that a request which comes twice is known.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple, Self

from levada.wire.internal.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Status,
    TopicPartitions,
    TransactionLogValue,
)

Place = tuple[str, int]  # topic and partition

EPOCH_MAX: Final = (1 << 15) - 1  # never given to a client, so that there is one left to fence it with
NEVER_MS: Final = (1 << 31) - 1  # the timeout of transactions that only their owner may end (KIP-939)
TRANSACTION_VERSION_2: Final = (
    2  # the version of transactions in which each end raises the epoch (KIP-890 part 2)
)


class ProducerIdAndEpoch(NamedTuple):
    """A producer in one of its lives."""

    producer_id: int
    epoch: int


def is_exhausted(epoch: int) -> bool:
    """Whether the next epoch may not be given to a client."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its open or last transaction."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[Place] = frozenset()
    started_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    version: int = 0

    @property
    def client(self) -> ProducerIdAndEpoch:
        """Who may speak for this transactional id."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
        return ProducerIdAndEpoch(self.next_producer_id, max(self.next_epoch, 0))

    @property
    def is_ending(self) -> bool:
        """Whether it is decided, and markers may be missing."""
        return self.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def is_taken_over(self) -> bool:
        """Whether a new client came for a prepared transaction: it can only be ended."""
        return self.status is Status.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def is_two_phase(self) -> bool:
        """Whether only its owner ends it."""
        return self.timeout_ms == NEVER_MS

    def deadline_ms(self, expiration_ms: int) -> int | None:
        """When it is to be aborted, or forgotten."""
        if self.status is Status.ONGOING:
            return None if self.is_two_phase else self.started_ms + self.timeout_ms
        return None if self.is_ending else self.updated_ms + expiration_ms

    # Steps.

    def given(self, identity: ProducerIdAndEpoch, last_epoch: int, timeout_ms: int, now_ms: int) -> Self:
        """A client begins anew, as this producer."""
        previous = self.producer_id if identity.producer_id != self.producer_id else self.previous_producer_id
        return replace(
            self,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            previous_producer_id=previous,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            status=Status.EMPTY,
            started_ms=-1,
        )

    def taken_over(self, identity: ProducerIdAndEpoch, timeout_ms: int, now_ms: int) -> Self:
        """A client comes for the prepared transaction, which stays as it is: it never times out, whoever comes."""
        return replace(
            self,
            next_producer_id=identity.producer_id,
            next_epoch=identity.epoch,
            last_epoch=NO_EPOCH,
            timeout_ms=self.timeout_ms if self.is_two_phase else timeout_ms,
            updated_ms=now_ms,
        )

    def with_partitions(self, places: Iterable[Place], version: int, now_ms: int) -> Self:
        """It goes on, or begins, with these partitions as well."""
        ongoing = self.status is Status.ONGOING
        return replace(
            self,
            status=Status.ONGOING,
            partitions=self.partitions.union(places),
            started_ms=self.started_ms if ongoing else now_ms,
            updated_ms=now_ms,
            version=version,
        )

    def decided(self, committed: bool, client: ProducerIdAndEpoch, version: int, now_ms: int) -> Self:
        """It will end so, and its client goes on as `client`; from now on nothing can change that."""
        epoch = self.producer_epoch + 1 if version >= TRANSACTION_VERSION_2 else self.producer_epoch
        unchanged = client == ProducerIdAndEpoch(self.producer_id, epoch)
        return replace(
            self,
            status=Status.PREPARE_COMMIT if committed else Status.PREPARE_ABORT,
            producer_epoch=epoch,
            last_epoch=self.client.epoch if version >= TRANSACTION_VERSION_2 else self.last_epoch,
            next_producer_id=NO_PRODUCER_ID if unchanged else client.producer_id,
            next_epoch=NO_EPOCH if unchanged else client.epoch,
            started_ms=self.started_ms if self.started_ms >= 0 else now_ms,
            updated_ms=now_ms,
            version=version,
        )

    def fenced(self, now_ms: int) -> Self:
        """It will be aborted, and its client hears of it: two epochs on, as if a new client had come and aborted."""
        taken_over = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            status=Status.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 2, EPOCH_MAX),
            next_epoch=min(self.next_epoch + 2, EPOCH_MAX) if taken_over else NO_EPOCH,
            last_epoch=NO_EPOCH,
            updated_ms=now_ms,
            version=TRANSACTION_VERSION_2,
        )

    def timed_out(self, now_ms: int) -> Self:
        """It will be aborted as if its client had: who comes back late to abort it, or to begin anew, may go on."""
        if self.is_taken_over or is_exhausted(self.producer_epoch):
            return self.fenced(now_ms)
        client = ProducerIdAndEpoch(self.producer_id, self.producer_epoch + 1)
        return self.decided(False, client, TRANSACTION_VERSION_2, now_ms)

    def completed(self, now_ms: int) -> Self:
        """All its markers are written."""
        producer_id, epoch = self.client
        return replace(
            self,
            status=Status.COMPLETE_COMMIT if self.status is Status.PREPARE_COMMIT else Status.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_epoch=NO_EPOCH,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    # Its record.

    def record(self) -> TransactionLogValue:
        """The value of its record in the journal."""
        by_topic = groupby(sorted(self.partitions), key=lambda place: place[0])
        partitions = tuple(
            TopicPartitions(topic, tuple(index for _, index in places)) for topic, places in by_topic
        )
        return TransactionLogValue(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            self.status,
            None if self.status is Status.EMPTY else partitions,
            self.updated_ms,
            self.started_ms,
            self.previous_producer_id,
            self.next_producer_id,
            self.version,
            self.next_epoch,
            self.last_epoch,
        )


def restored(value: TransactionLogValue) -> Transaction | None:
    """The state that a record tells; None for one that only says that the id is going."""
    try:
        status = Status(value.transaction_status)
    except ValueError:
        return None
    return Transaction(
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        value.transaction_last_update_timestamp_ms,
        status,
        frozenset(
            (topic, index) for topic, indexes in value.transaction_partitions or () for index in indexes
        ),
        value.transaction_start_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        value.last_producer_epoch,
        value.client_transaction_version,
    )

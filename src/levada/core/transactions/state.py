"""The metadata of one transactional id (Kafka's TransactionMetadata) and its transitions: immutable values.

There are two pairs of producer id and epoch. `producer_id` and `producer_epoch` belong to the transaction and its
markers. `next_producer_id` and `next_producer_epoch` are set when the client already has another pair: its epochs were
exhausted, or it kept a prepared transaction (KIP-939) whose records have the older epoch. `client` is the pair that the
client has to send. `last_producer_epoch` is its former epoch, by which a retried request is recognised (KIP-360).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple, Self

from levada.model import TopicPartitionKey
from levada.wire.internal.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Status,
    TopicPartitions,
    TransactionLogValue,
)

EPOCH_MAX: Final = (1 << 15) - 1  # reserved for fencing, never given to a client
NO_TIMEOUT_MS: Final = (1 << 31) - 1  # of two-phase commit transactions (KIP-939)
TRANSACTION_VERSION_2: Final = 2  # each end of a transaction bumps the epoch (KIP-890 part 2)


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


def is_exhausted(epoch: int) -> bool:
    """Whether the next epoch must not be given to a client."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """The producer of a transactional id, and its ongoing or last transaction."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_update_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartitionKey] = frozenset()
    start_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    version: int = 0

    @property
    def client(self) -> ProducerIdAndEpoch:
        """The producer id and epoch that requests must have."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
        return ProducerIdAndEpoch(self.next_producer_id, max(self.next_producer_epoch, 0))

    @property
    def is_completing(self) -> bool:
        """Whether it is in PrepareCommit or PrepareAbort: its markers may be missing."""
        return self.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def is_kept_prepared(self) -> bool:
        """Whether a new client kept a prepared transaction (KIP-939): it can only be ended."""
        return self.status is Status.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def is_two_phase(self) -> bool:
        """Whether it is a two-phase commit transaction, which has no timeout of its own."""
        return self.timeout_ms == NO_TIMEOUT_MS

    def deadline_ms(self, expiration_ms: int, two_phase_timeout_ms: int | None) -> int | None:
        """When the transaction is aborted, or the transactional id expires. New owners renew two-phase transactions."""
        if self.status is Status.ONGOING:
            if not self.is_two_phase:
                return self.start_ms + self.timeout_ms
            return None if two_phase_timeout_ms is None else self.last_update_ms + two_phase_timeout_ms
        return None if self.is_completing else self.last_update_ms + expiration_ms

    # Transitions.

    def with_producer(
        self, identity: ProducerIdAndEpoch, last_producer_epoch: int, timeout_ms: int, now_ms: int
    ) -> Self:
        """InitProducerId: Empty, with a new producer id or epoch."""
        previous = self.producer_id if identity.producer_id != self.producer_id else self.previous_producer_id
        return replace(
            self,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            previous_producer_id=previous,
            last_producer_epoch=last_producer_epoch,
            timeout_ms=timeout_ms,
            last_update_ms=now_ms,
            status=Status.EMPTY,
            start_ms=-1,
        )

    def kept_prepared(self, identity: ProducerIdAndEpoch, timeout_ms: int, now_ms: int) -> Self:
        """InitProducerId with keepPreparedTxn: a new client epoch, and the transaction stays (KIP-939)."""
        return replace(
            self,
            next_producer_id=identity.producer_id,
            next_producer_epoch=identity.epoch,
            last_producer_epoch=NO_EPOCH,
            timeout_ms=self.timeout_ms if self.is_two_phase else timeout_ms,
            last_update_ms=now_ms,
        )

    def with_partitions(self, topic_partitions: Iterable[TopicPartitionKey], version: int, now_ms: int) -> Self:
        """Ongoing, with more partitions."""
        ongoing = self.status is Status.ONGOING
        return replace(
            self,
            status=Status.ONGOING,
            partitions=self.partitions.union(topic_partitions),
            start_ms=self.start_ms if ongoing else now_ms,
            last_update_ms=now_ms,
            version=version,
        )

    def prepared(self, committed: bool, client: ProducerIdAndEpoch, version: int, now_ms: int) -> Self:
        """PrepareCommit or PrepareAbort; the client continues as `client`."""
        epoch = self.producer_epoch + 1 if version >= TRANSACTION_VERSION_2 else self.producer_epoch
        unchanged = client == ProducerIdAndEpoch(self.producer_id, epoch)
        return replace(
            self,
            status=Status.PREPARE_COMMIT if committed else Status.PREPARE_ABORT,
            producer_epoch=epoch,
            last_producer_epoch=self.client.epoch if version >= TRANSACTION_VERSION_2 else self.last_producer_epoch,
            next_producer_id=NO_PRODUCER_ID if unchanged else client.producer_id,
            next_producer_epoch=NO_EPOCH if unchanged else client.epoch,
            start_ms=self.start_ms if self.start_ms >= 0 else now_ms,
            last_update_ms=now_ms,
            version=version,
        )

    def prepared_fence(self, now_ms: int) -> Self:
        """PrepareAbort that fences the client: the epoch is bumped twice, as by a new client that aborts."""
        has_next = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            status=Status.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 2, EPOCH_MAX),
            next_producer_epoch=min(self.next_producer_epoch + 2, EPOCH_MAX) if has_next else NO_EPOCH,
            last_producer_epoch=NO_EPOCH,
            last_update_ms=now_ms,
            version=TRANSACTION_VERSION_2,
        )

    def prepared_timeout(self, now_ms: int) -> Self:
        """PrepareAbort after a timeout, as if the client had aborted: a late client can still abort it."""
        if self.is_kept_prepared or is_exhausted(self.producer_epoch):
            return self.prepared_fence(now_ms)
        client = ProducerIdAndEpoch(self.producer_id, self.producer_epoch + 1)
        return self.prepared(False, client, TRANSACTION_VERSION_2, now_ms)

    def completed(self, now_ms: int) -> Self:
        """CompleteCommit or CompleteAbort: all markers are written."""
        producer_id, epoch = self.client
        return replace(
            self,
            status=Status.COMPLETE_COMMIT if self.status is Status.PREPARE_COMMIT else Status.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    # The journal.

    def record(self) -> TransactionLogValue:
        """The value of the transaction log record."""
        by_topic = groupby(sorted(self.partitions), key=lambda topic_partition: topic_partition[0])
        partitions = tuple(
            TopicPartitions(topic, tuple(index for _, index in topic_partitions))
            for topic, topic_partitions in by_topic
        )
        return TransactionLogValue(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            self.status,
            None if self.status is Status.EMPTY else partitions,
            self.last_update_ms,
            self.start_ms,
            self.previous_producer_id,
            self.next_producer_id,
            self.version,
            self.next_producer_epoch,
            self.last_producer_epoch,
        )


def restored(value: TransactionLogValue) -> Transaction | None:
    """The metadata of a record; None for a state that only marks removal (Dead)."""
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
        frozenset((topic, index) for topic, indexes in value.transaction_partitions or () for index in indexes),
        value.transaction_start_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        value.last_producer_epoch,
        value.client_transaction_version,
    )

"""The state of the idempotent and transactional producers of a partition: each batch is appended once and in order.

The state machine is pure. `check` decides and changes nothing; `apply` changes the state and cannot fail. Replaying
the batch headers of a log rebuilds the state: after a failed write it is rebuilt from the last snapshot and the log. A
batch is applied when its offsets are reserved, so that the next request of the same loop iteration sees it. The
response to a duplicate is sent no earlier than that to the original batch.

The rules are those of Kafka 4. The last five batches of a producer are known, and a duplicate of one of them receives
its base offset. Sequences wrap from 2^31-1 to 0. A new epoch starts at 0, an older epoch is fenced. An unknown producer
(new, expired, its records deleted) may start at any sequence.

A transaction is ongoing from its first batch until a marker completes it. The first unstable offset is the first
offset of all ongoing transactions and of those whose marker is not below the high watermark.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import NamedTuple, Self

from levada.core.partition import producer_snapshots as snapshots
from levada.core.partition.producer_snapshots import (
    BATCHES_KEPT,
    SEQUENCE_MAX,
    CorruptSnapshotError,
    ProducerStateEntry,
)
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader
from levada.wire.control_records import Marker

__all__ = ["APPEND", "SEQUENCE_MAX", "AbortedTransaction", "CorruptSnapshotError", "ProducerStates"]

APPEND = -1  # the result of `check` for a batch that is not a duplicate
PRODUCERS_MAX = 20_000  # of a partition; those with the oldest batches are evicted first
NO_EPOCH = -1


class AbortedTransaction(NamedTuple):
    """A transaction whose records read_committed consumers skip."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    last_stable_offset: int  # after the marker


@dataclass(slots=True)
class ProducerStates:
    """The producers of one partition, by producer id."""

    producers_max: int = PRODUCERS_MAX
    _producers: dict[int, ProducerStateEntry] = field(default_factory=dict)
    # First offset -> producer id, in the order of the log.
    ongoing_txns: dict[int, int] = field(default_factory=dict)
    # (offset of the marker, first offset) of completed transactions whose marker is not below the high watermark.
    unreplicated_txns: deque[tuple[int, int]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> Iterable[tuple[int, ProducerStateEntry]]:
        """Return the entries by producer id."""
        return self._producers.items()

    def check(self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int) -> int:
        """Check a batch of a client; return APPEND, or the base offset of the original batch for a duplicate."""
        producer = self._producers.get(producer_id)
        if producer is None:
            if producer_epoch < NO_EPOCH:
                raise _fenced(producer_id, producer_epoch, NO_EPOCH)
            return APPEND
        if (
            base_sequence == producer.next_sequence
            and producer_epoch == producer.epoch
            and producer.transaction_first_offset < 0
        ):
            return APPEND
        result = _check_known(producer_id, producer, producer_epoch, base_sequence, record_count)
        if result == APPEND and producer.transaction_first_offset >= 0:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has an ongoing transaction and cannot write outside of it",
            )
        return result

    def check_transactional(self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int) -> int:
        """Check a batch of a transaction; its verification (KIP-890) is not part of this check."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return self.check(producer_id, producer_epoch, base_sequence, record_count)
        return _check_known(producer_id, producer, producer_epoch, base_sequence, record_count)

    def apply(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_offset: int,
        record_count: int,
        timestamp: int,
    ) -> None:
        """Apply a batch of the log. `record_count` is its span of offsets: the last offset delta + 1."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, producer_epoch)
        batches = producer.batches
        if producer.epoch != producer_epoch:
            producer.epoch = producer_epoch
            batches.clear()
        elif len(batches) == BATCHES_KEPT:
            del batches[0]
        next_sequence = base_sequence + record_count
        last_sequence = (next_sequence - 1) & SEQUENCE_MAX
        batches.append((base_sequence, last_sequence, last_offset - record_count + 1, last_offset))
        producer.next_sequence = next_sequence & SEQUENCE_MAX
        producer.timestamp = timestamp

    # Transactions.

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH if the epoch of a producer is fenced."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            raise _fenced(producer_id, producer_epoch, producer.epoch)

    def has_ongoing_txn(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has an ongoing transaction in this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_first_offset >= 0 and producer.epoch == producer_epoch

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Begin a transaction with its first applied batch, unless it is ongoing."""
        producer = self._producers[producer_id]
        if producer.transaction_first_offset < 0:
            producer.transaction_first_offset = first_offset
            self.ongoing_txns[first_offset] = producer_id

    def check_marker(self, producer_id: int, producer_epoch: int, marker: Marker, bumped: bool) -> None:
        """Check a marker; one of an older producer epoch or coordinator epoch is fenced.

        With transaction version 2 the end of a transaction has `bumped` the epoch, so that a duplicate of its marker
        cannot complete the next transaction.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        duplicate = bumped and producer_epoch == producer.epoch and producer.transaction_first_offset >= 0
        if producer_epoch < producer.epoch or duplicate:
            raise _fenced(producer_id, producer_epoch, producer.epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the marker has coordinator epoch {marker.coordinator_epoch}, but the last one had "
                f"{producer.coordinator_epoch}",
            )

    def end(
        self, producer_id: int, producer_epoch: int, marker: Marker, offset: int, timestamp: int
    ) -> AbortedTransaction | None:
        """Apply a marker of the log; return the transaction if the marker aborts one."""
        producer = self._entry(producer_id, producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.timestamp = timestamp
        producer.marker_offset = offset
        first_offset = producer.transaction_first_offset
        if first_offset < 0:
            return None
        producer.transaction_first_offset = -1
        del self.ongoing_txns[first_offset]
        self.unreplicated_txns.append((offset, first_offset))
        if marker.committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, next(iter(self.ongoing_txns), offset + 1))

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Remove the completed transactions whose marker is below the high watermark."""
        while self.unreplicated_txns and self.unreplicated_txns[0][0] < high_watermark:
            self.unreplicated_txns.popleft()

    def first_unstable_offset(self) -> int | None:
        """Return the first offset of all transactions that are ongoing or whose marker can still be lost."""
        candidates = [first_offset for _, first_offset in self.unreplicated_txns]
        candidates.extend(
            first_offset for first_offset in (next(iter(self.ongoing_txns), None),) if first_offset is not None
        )
        return min(candidates, default=None)

    def observe(self, producer_id: int, producer_epoch: int, timestamp: int) -> None:
        """Apply a batch without sequence numbers, as coordinators write on behalf of producers."""
        self._entry(producer_id, producer_epoch).timestamp = timestamp

    def _entry(self, producer_id: int, producer_epoch: int) -> ProducerStateEntry:
        """Return the entry of a producer, updated to this epoch."""
        producer = self._producers.get(producer_id) or self._add(producer_id, producer_epoch)
        if producer.epoch != producer_epoch:
            producer.epoch = producer_epoch
            producer.batches.clear()
            producer.next_sequence = 0
        return producer

    def _add(self, producer_id: int, producer_epoch: int) -> ProducerStateEntry:
        producer = self._producers[producer_id] = ProducerStateEntry(producer_epoch, 0)
        if len(self._producers) > self.producers_max:
            self._evict(producer_id)
        return producer

    def replay(
        self,
        history: Iterable[tuple[BatchHeader, Marker | None]],
        aborted: Callable[[AbortedTransaction], None] = lambda _: None,
    ) -> None:
        """Apply batches read from the log, in order, without checks. Control batches come with their marker.

        `aborted` is called with each aborted transaction.
        """
        for header, marker in history:
            if header.producer_id < 0:
                continue
            producer_id, epoch, timestamp = header.producer_id, header.producer_epoch, header.max_timestamp
            if header.is_control:
                if marker is not None:
                    ended = self.end(producer_id, epoch, marker, header.last_offset, timestamp)
                    if ended is not None:
                        aborted(ended)
                continue
            if header.base_sequence < 0:
                self.observe(producer_id, epoch, timestamp)
            else:
                count = header.last_offset_delta + 1
                self.apply(producer_id, epoch, header.base_sequence, header.last_offset, count, timestamp)
            if header.is_transactional:
                self.begin(producer_id, header.base_offset)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove idle producers without an ongoing transaction; return their number."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_first_offset < 0 and now_ms - producer.timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def last_batches(self, end_offset: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (producer id, epoch, offset of its last batch, offset of its last marker) if these are below an offset.

        Unknown offsets are -1. Compaction retains these batches.
        """
        for producer_id, producer in self._producers.items():
            data_offset = producer.batches[-1][3] if producer.batches else -1
            if (data_offset if data_offset >= 0 else producer.marker_offset) < end_offset:
                yield producer_id, producer.epoch, data_offset, producer.marker_offset

    def clear(self) -> None:
        """Remove everything, before the state is rebuilt after a truncation."""
        self._producers.clear()
        self.ongoing_txns.clear()
        self.unreplicated_txns.clear()

    def encode_snapshot(self, offset: int) -> bytes:
        """Return the content of Kafka's `.snapshot` file as of an offset."""
        return snapshots.encode(self._producers, offset)

    @classmethod
    def decode_snapshot(cls, data: bytes, offset: int, producers_max: int = PRODUCERS_MAX) -> Self:
        """Decode the `.snapshot` file of an offset, written by Levada or Kafka. Raises CorruptSnapshotError."""
        states = cls(producers_max, snapshots.decode(data, offset))
        ongoing = (
            (producer.transaction_first_offset, producer_id)
            for producer_id, producer in states._producers.items()
            if producer.transaction_first_offset >= 0
        )
        states.ongoing_txns.update(sorted(ongoing))
        return states

    def _evict(self, newest_id: int) -> None:
        # A sixteenth at once, to amortise the search. A producer without an offset has only markers from before the
        # restart: it is the oldest.
        idle = (
            item for item in self._producers.items() if item[1].transaction_first_offset < 0 and item[0] != newest_id
        )
        for producer_id, _ in nsmallest(max(1, self.producers_max // 16), idle, key=lambda item: item[1].last_offset):
            del self._producers[producer_id]


def _check_known(
    producer_id: int, producer: ProducerStateEntry, producer_epoch: int, base_sequence: int, record_count: int
) -> int:
    if producer_epoch < producer.epoch:
        raise _fenced(producer_id, producer_epoch, producer.epoch)
    if producer_epoch == producer.epoch:
        if base_sequence == producer.next_sequence:
            return APPEND
        last_sequence = (base_sequence + record_count - 1) & SEQUENCE_MAX
        for first, last, base_offset, _ in producer.batches:
            if first == base_sequence and last == last_sequence:
                return base_offset
    elif base_sequence == 0:
        return APPEND
    if producer.epoch == NO_EPOCH:
        return APPEND
    expected = producer.next_sequence if producer_epoch == producer.epoch else 0
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} (epoch {producer_epoch}) sent sequence {base_sequence}, expected {expected}",
    )


def _fenced(producer_id: int, producer_epoch: int, current_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} sent epoch {producer_epoch}, the current epoch is {current_epoch}",
    )

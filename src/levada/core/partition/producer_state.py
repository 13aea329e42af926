"""What a partition remembers of its idempotent producers: a retried batch is stored once and in order.

The machine is pure. `check` decides and changes nothing, `apply` is the only way in and cannot fail, and
applying the headers of a log in order rebuilds the state: a partition drops it after a failed write and folds
it again from the last snapshot and the log. A batch is applied when its offsets are reserved, so the next
request of the same loop turn sees it; a duplicate is answered no earlier than the batch it repeats.

The rules are those of Kafka 4: the last five batches of a producer are known, a retry of one of them is
answered with its first offset, sequences go on after 2^31-1 with 0, a new epoch starts at 0, an older
epoch is fenced, and a producer that is not known (new, expired, its records deleted) may start anywhere.

A transaction is open here from its first batch until a marker ends it. Readers of committed records stop before the
first record of any open one, and of any whose marker may still be lost: it is not below the high watermark.
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
    Producer,
)
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader
from levada.wire.control_records import Marker

__all__ = ["APPEND", "SEQUENCE_MAX", "AbortedTransaction", "CorruptSnapshotError", "ProducerStates"]

APPEND = -1  # the answer of `check` for a batch that is not a duplicate
PRODUCERS_MAX = 20_000  # per partition; the ones that wrote longest ago are forgotten first
NO_EPOCH = -1


class AbortedTransaction(NamedTuple):
    """A transaction that readers of committed records must skip."""

    producer_id: int
    first_offset: int
    last_offset: int  # its marker's
    last_stable_offset: int  # below it everything was decided once the marker was there


@dataclass(slots=True)
class ProducerStates:
    """The producers of one partition, by producer id."""

    producers_max: int = PRODUCERS_MAX
    _producers: dict[int, Producer] = field(default_factory=dict)
    # The open transactions: first offset -> producer id, in the order of the log.
    open: dict[int, int] = field(default_factory=dict)
    # (marker's offset, first offset) of those that ended, until the marker is below the high watermark.
    ended: deque[tuple[int, int]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> Iterable[tuple[int, Producer]]:
        """All that is known, by producer id."""
        return self._producers.items()

    def check(self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int) -> int:
        """Decide on a batch of a client: APPEND, or for a duplicate the base offset it was first given."""
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
        answer = _check_known(producer_id, producer, producer_epoch, base_sequence, record_count)
        if answer == APPEND and producer.transaction_first_offset >= 0:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open: it may not write outside",
            )
        return answer

    def check_transactional(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
    ) -> int:
        """The same for a batch of a transaction; whether the transaction may write here is not asked."""
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
        """Remember a batch of the log. `record_count` is its span of offsets: the last offset delta + 1."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(producer_epoch, 0)
            if len(self._producers) > self.producers_max:
                self._forget_oldest(producer_id)
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
        """A producer that a newer one has replaced may not write, whoever writes for it."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            raise _fenced(producer_id, producer_epoch, producer.epoch)

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here in this epoch."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.transaction_first_offset >= 0
            and producer.epoch == producer_epoch
        )

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A batch of a transaction was applied: it opens the transaction unless that is open."""
        producer = self._producers[producer_id]
        if producer.transaction_first_offset < 0:
            producer.transaction_first_offset = first_offset
            self.open[first_offset] = producer_id

    def check_marker(self, producer_id: int, producer_epoch: int, marker: Marker, bumped: bool) -> None:
        """Decide on a marker: one of an older producer epoch or coordinator is refused.

        With transactions of version 2 the epoch was `bumped` by the end of the transaction, so that a marker
        which comes twice cannot end the next one.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        again = bumped and producer_epoch == producer.epoch and producer.transaction_first_offset >= 0
        if producer_epoch < producer.epoch or again:
            raise _fenced(producer_id, producer_epoch, producer.epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch}, {producer.coordinator_epoch} was here",
            )

    def end(
        self, producer_id: int, producer_epoch: int, marker: Marker, offset: int, timestamp: int
    ) -> AbortedTransaction | None:
        """Apply a marker of the log; the transaction that it aborted, if it did."""
        producer = self._know(producer_id, producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.timestamp = timestamp
        producer.marker_offset = offset
        first_offset = producer.transaction_first_offset
        if first_offset < 0:
            return None
        producer.transaction_first_offset = -1
        del self.open[first_offset]
        self.ended.append((offset, first_offset))
        if marker.committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, next(iter(self.open), offset + 1))

    def settle(self, high_watermark: int) -> None:
        """The high watermark has moved: markers below it are there to stay."""
        while self.ended and self.ended[0][0] < high_watermark:
            self.ended.popleft()

    def first_unstable_offset(self) -> int | None:
        """The first record of a transaction that is not decided for good."""
        candidates = [first_offset for _, first_offset in self.ended]
        candidates.extend(
            first_offset for first_offset in (next(iter(self.open), None),) if first_offset is not None
        )
        return min(candidates, default=None)

    def observe(self, producer_id: int, producer_epoch: int, timestamp: int) -> None:
        """Remember a batch without sequence numbers: coordinators write so in the name of producers."""
        self._know(producer_id, producer_epoch).timestamp = timestamp

    def _know(self, producer_id: int, producer_epoch: int) -> Producer:
        """The producer, in this epoch from now on."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(producer_epoch, 0)
            if len(self._producers) > self.producers_max:
                self._forget_oldest(producer_id)
        elif producer.epoch != producer_epoch:
            producer.epoch = producer_epoch
            producer.batches.clear()
            producer.next_sequence = 0
        return producer

    def replay(
        self,
        history: Iterable[tuple[BatchHeader, Marker | None]],
        aborted: Callable[[AbortedTransaction], None] = lambda _: None,
    ) -> None:
        """Apply batches read from the log, in order; they were checked before they were written.

        Control batches come with their marker. `aborted` is told of each transaction that turns out to be.
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
        """Forget producers silent for that long without an open transaction; how many these were."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_first_offset < 0 and now_ms - producer.timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def last_batches(self, end_offset: int) -> Iterator[tuple[int, int, int, int]]:
        """(producer id, epoch, offset of its newest batch, of its newest marker) of those that ended below an offset.

        Offsets are -1 where they are not known; compaction keeps what they name.
        """
        for producer_id, producer in self._producers.items():
            data_offset = producer.batches[-1][3] if producer.batches else -1
            if (data_offset if data_offset >= 0 else producer.marker_offset) < end_offset:
                yield producer_id, producer.epoch, data_offset, producer.marker_offset

    def clear(self) -> None:
        """Forget everything, before the state is folded again after a truncation."""
        self._producers.clear()
        self.open.clear()
        self.ended.clear()

    def encode_snapshot(self) -> bytes:
        """The content of Kafka's `.snapshot` file."""
        return snapshots.encode(self._producers)

    @classmethod
    def decode_snapshot(cls, data: bytes, producers_max: int = PRODUCERS_MAX) -> Self:
        """Read a `.snapshot` file of ours or of Kafka. Raises CorruptSnapshotError."""
        states = cls(producers_max, snapshots.decode(data))
        openings = (
            (producer.transaction_first_offset, producer_id)
            for producer_id, producer in states._producers.items()
            if producer.transaction_first_offset >= 0
        )
        states.open.update(sorted(openings))
        return states

    def _forget_oldest(self, newest_id: int) -> None:
        # A sixteenth at once, so that a flood of new producer ids pays for the search only now and then. Whoever has
        # no offset wrote markers only, and before the restart: before all others.
        idle = (
            item
            for item in self._producers.items()
            if item[1].transaction_first_offset < 0 and item[0] != newest_id
        )
        for producer_id, _ in nsmallest(
            max(1, self.producers_max // 16), idle, key=lambda item: item[1].last_offset
        ):
            del self._producers[producer_id]


def _check_known(
    producer_id: int, producer: Producer, producer_epoch: int, base_sequence: int, record_count: int
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
        f"producer {producer_id} sent epoch {producer_epoch}, the current one is {current_epoch}",
    )

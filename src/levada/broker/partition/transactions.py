"""The transactions of a partition: verification guards, markers, and the last stable offset.

A transactional batch is appended only if its transaction is open here, or the coordinator has verified that the
partition belongs to it (KIP-890). A marker that comes between verification and append removes the guard, so that a
late batch never opens a transaction that no marker will end.
"""

from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import ref

from levada.broker.purgatory import DelayedResult, Watcher
from levada.core.partition.producer_state import CorruptSnapshotError, ProducerStates
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.disk import errors_of_one_log
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.wire.batches import BatchHeader
from levada.wire.control_records import Marker, decode_marker, encode_marker

if TYPE_CHECKING:
    from levada.broker.partition.partition import Partition

log = EventLog(__name__)

GUARDS_MAX: Final = 1_000  # a partition; they live as long as a verification


class VerificationGuard:
    """The verification of one producer in one epoch: it allows a batch once verified, until a marker comes."""

    __slots__ = ("error", "verified")

    def __init__(self) -> None:
        self.verified = False
        self.error: ErrorCode | None = None  # of the batch that waits


class Transactions:
    """The transactional side of one partition.

    It refers to its partition weakly, so that a deleted partition is freed without the garbage collector.
    """

    __slots__ = ("_guards", "_pending_markers", "_reference")

    def __init__(self, partition: "Partition") -> None:
        self._reference = ref(partition)
        self._guards: dict[tuple[int, int], VerificationGuard] = {}  # by producer id and epoch
        # Where the log ends with a marker, and what completes when that is committed.
        self._pending_markers: deque[tuple[int, DelayedResult]] = deque()

    @property
    def _partition(self) -> "Partition":
        partition = self._reference()
        assert partition is not None, "a partition outlives its transactions"
        return partition

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here: then its batches need no verification."""
        return self._partition.producers.has_ongoing_txn(producer_id, producer_epoch)

    def guard(self, producer_id: int, producer_epoch: int) -> VerificationGuard:
        """The guard of a verification that starts; its result is set in the guard."""
        key, guards = (producer_id, producer_epoch), self._guards
        guard = guards.get(key)
        if guard is None or guard.error is not None:
            if len(guards) >= GUARDS_MAX:
                del guards[next(iter(guards))]
            guard = guards[key] = VerificationGuard()
        return guard

    def is_verified(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a batch of this producer need not wait: its transaction is open, or verified."""
        if self._guards:
            guard = self._guards.get((producer_id, producer_epoch))
            if guard is not None and guard.verified:
                return True
        return self._partition.producers.has_ongoing_txn(producer_id, producer_epoch)

    def check(self, producer_id: int, producer_epoch: int) -> None:
        """KafkaError unless the producer may write in a transaction here."""
        if self.is_verified(producer_id, producer_epoch):
            return
        guard, code = self._guards.get((producer_id, producer_epoch)), None
        if guard is not None and guard.error is not None:
            code = guard.error
            del self._guards[producer_id, producer_epoch]
        raise KafkaError(
            code or ErrorCode.INVALID_TXN_STATE,
            f"no transaction of producer {producer_id} (epoch {producer_epoch}) is open",
        )

    def aborted(self, offset: int, size: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions in a read_committed read from `offset`."""
        partition = self._partition
        try:
            found = partition.log.reader.aborted_transactions(offset, size, partition.last_stable_offset)
        except (OSError, CorruptBatchError) as error:
            raise partition.failed(error) from None
        return [(transaction.producer_id, transaction.first_offset) for transaction in found]

    def _remove_guards(self, producer_id: int) -> None:
        for key in [key for key in self._guards if key[0] == producer_id]:
            del self._guards[key]

    def append(
        self,
        batch: memoryview,
        length: int,
        count: int,
        max_timestamp: int,
        now_ms: int,
        producer_id: int,
        epoch: int,
        sequence: int,
    ) -> int:
        """Queue a client's batch after validation; its base offset, also when it is a duplicate."""
        partition = self._partition
        producers = partition.producers
        first = producers.check_transactional(producer_id, epoch, sequence, count)
        if first >= 0:
            return first
        self.check(producer_id, epoch)
        base_offset = partition.reserve(batch, length, count, max_timestamp, now_ms)
        producers.apply(producer_id, epoch, sequence, base_offset + count - 1, count, max_timestamp)
        producers.begin(producer_id, base_offset)
        if self._guards:
            self._remove_guards(producer_id)
        return base_offset

    def end(self, producer_id: int, producer_epoch: int, marker: Marker, bumped: bool, now_ms: int) -> DelayedResult:
        """Queue the marker that ends a producer's transaction; the result completes when it is committed."""
        partition = self._partition
        partition.producers.check_marker(producer_id, producer_epoch, marker, bumped)
        batch = encode_marker(marker, producer_id, producer_epoch, now_ms)
        required_offset = partition.append_own(batch, now_ms)
        committed = DelayedResult()
        self._pending_markers.append((required_offset, committed))
        partition.watchers.add(self)
        return committed

    def end_epoch(self) -> None:
        """The leader epoch has ended: fail the markers that are not committed, forget what was verified."""
        partition, pending = self._partition, self._pending_markers
        self._guards.clear()
        while pending:
            pending.popleft()[1].complete(partition.not_leader())
        partition.watchers.discard(self)

    def try_complete(self, published_bytes: int) -> None:
        """Complete the markers that are committed, or fail them all if the partition is offline."""
        partition, pending = self._partition, self._pending_markers
        while pending and (pending[0][0] <= partition.high_watermark or partition.offline):
            required_offset, committed = pending.popleft()
            is_committed = required_offset <= partition.high_watermark
            committed.complete(None if is_committed else partition.storage_error())
        if not pending:
            partition.watchers.discard(self)

    def observe(self, header: BatchHeader, batch: memoryview) -> None:
        """Apply a queued batch that this broker wrote for a producer: a marker, or a group coordinator's records."""
        marker = decode_marker(batch) if header.is_control else None
        self._remove_guards(header.producer_id)
        partition = self._partition
        partition.producers.replay([(header, marker)], partition.log.reader.add_aborted)


class LastStableWatch:
    """The watchers of the last stable offset: read_committed fetches, which are notified of what they may read."""

    __slots__ = ("_bytes_in", "_offset", "watchers")

    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()
        self._offset = 0
        self._bytes_in = 0

    def advance(self, offset: int, bytes_in: int) -> None:
        """Notify of the last stable offset; `bytes_in` counts all bytes appended to the partition."""
        if offset > self._offset:
            fresh = max(1, bytes_in - self._bytes_in)
            self._offset, self._bytes_in = offset, bytes_in
            for watcher in list(self.watchers):
                watcher.try_complete(fresh)


def load_producers(segments: Log) -> ProducerStates:
    """The producer states of a log: its newest valid snapshot, and the batches after it.

    Where the index of aborted transactions is stale, an older snapshot is taken and the index rebuilt on the way.
    """
    reader = segments.reader
    stale_from = reader.stale_from()
    states, start = ProducerStates(), segments.log_start_offset
    with errors_of_one_log(segments.directory):
        for offset in segments.producer_snapshots.offsets():
            if stale_from is not None and offset > stale_from:
                continue
            try:
                states = ProducerStates.decode_snapshot(segments.producer_snapshots.read(offset) or b"", offset)
                start = offset
                break
            except CorruptSnapshotError as error:
                log.warning("producer snapshot is damaged", directory=segments.directory, offset=offset, why=str(error))
        with reader.rebuilding_txn_indexes() as found:
            states.replay(reader.headers_and_markers(start), found)
        if stale_from is not None:
            segments.txn_checksums.store(reader.txn_checksums())
    states.on_high_watermark_updated(segments.log_end_offset)
    return states

"""Transactions as a partition sees them: who may write in one, how a marker ends it, and how far it can be read.

A batch of a transaction enters only if its transaction is open here already, or if the coordinator has said that the
partition belongs to it (KIP-890). Between that question and the append a marker may come: it takes back every
permission that was given before it, so a late batch can never open a transaction that nobody will end.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from levada.broker.purgatory import DelayedResult, Watcher
from levada.core.partition.producer_state import CorruptSnapshotError, ProducerStates
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.log.log import Log
from levada.wire.batches import BatchHeader
from levada.wire.control_records import Marker, decode_marker, encode_marker

if TYPE_CHECKING:
    from levada.broker.partition.partition import Partition

log = EventLog(__name__)

PERMISSIONS_MAX: Final = 1_000  # a partition; they live for the time of a question


class Permission:
    """Asked of the coordinator for one producer in one epoch; it counts once it is granted, until a marker comes."""

    __slots__ = ("granted", "refused")

    def __init__(self) -> None:
        self.granted = False
        self.refused: ErrorCode | None = None  # how the batch that waits is to be refused


class Transactions:
    """The transactional side of one partition."""

    __slots__ = ("_ending", "_partition", "_permissions")

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self._permissions: dict[tuple[int, int], Permission] = {}  # by producer id and epoch
        # Where the log ends with a marker, and who waits for that to be committed.
        self._ending: deque[tuple[int, DelayedResult]] = deque()

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here: then its batches need no permission."""
        return self._partition.producers.has_open(producer_id, producer_epoch)

    def ask(self, producer_id: int, producer_epoch: int) -> Permission:
        """Begin to ask the coordinator; what it answers is to be set in what this gives."""
        key, permissions = (producer_id, producer_epoch), self._permissions
        permission = permissions.get(key)
        if permission is None or permission.refused is not None:
            if len(permissions) >= PERMISSIONS_MAX:
                del permissions[next(iter(permissions))]
            permission = permissions[key] = Permission()
        return permission

    def may_write(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a batch of this producer need not wait: its transaction is open, or may be opened."""
        if self._permissions:
            permission = self._permissions.get((producer_id, producer_epoch))
            if permission is not None and permission.granted:
                return True
        return self._partition.producers.has_open(producer_id, producer_epoch)

    def check(self, producer_id: int, producer_epoch: int) -> None:
        """KafkaError unless the producer may write in a transaction here."""
        if self.may_write(producer_id, producer_epoch):
            return
        permission, refused = self._permissions.get((producer_id, producer_epoch)), None
        if permission is not None and permission.refused is not None:
            refused = permission.refused
            del self._permissions[producer_id, producer_epoch]
        raise KafkaError(
            refused or ErrorCode.INVALID_TXN_STATE,
            f"no transaction of producer {producer_id} (epoch {producer_epoch}) is open",
        )

    def _forget(self, producer_id: int) -> None:
        """Take back every permission of a producer."""
        for key in [key for key in self._permissions if key[0] == producer_id]:
            del self._permissions[key]

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
        """Queue a client's batch, checked but for its producer; its base offset, also when it is a duplicate."""
        partition, producers = self._partition, self._partition.producers
        first = producers.check_transactional(producer_id, epoch, sequence, count)
        if first >= 0:
            return first
        self.check(producer_id, epoch)
        base_offset = partition.take(batch, length, count, max_timestamp, now_ms)
        producers.apply(producer_id, epoch, sequence, base_offset + count - 1, count, max_timestamp)
        producers.begin(producer_id, base_offset)
        if self._permissions:
            self._forget(producer_id)
        return base_offset

    def end(
        self, producer_id: int, producer_epoch: int, marker: Marker, bumped: bool, now_ms: int
    ) -> DelayedResult:
        """Queue the marker that ends a producer's transaction; answered when it is committed."""
        self._partition.producers.check_marker(producer_id, producer_epoch, marker, bumped)
        goal = self._partition.append_own(encode_marker(marker, producer_id, producer_epoch, now_ms), now_ms)
        committed = DelayedResult()
        self._ending.append((goal, committed))
        self._partition.watchers.add(self)
        return committed

    def try_complete(self, published_bytes: int) -> None:
        """Complete the markers that are committed, or fail them all if the partition is offline."""
        partition, ending = self._partition, self._ending
        while ending and (ending[0][0] <= partition.high_watermark or partition.offline):
            goal, committed = ending.popleft()
            committed.complete(None if goal <= partition.high_watermark else partition.storage_error())
        if not ending:
            partition.watchers.discard(self)

    def observe(self, header: BatchHeader, batch: memoryview) -> None:
        """A batch that this broker wrote in the name of a producer is queued: a marker, or a coordinator's records."""
        marker = decode_marker(batch) if header.is_control else None
        self._forget(header.producer_id)
        self._partition.producers.replay([(header, marker)], self._partition.log.reader.add_aborted)


class StableEnd:
    """Where readers of committed records stop: who waits here hears only of what they may read."""

    __slots__ = ("_bytes_in", "_offset", "watchers")

    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()
        self._offset = 0
        self._bytes_in = 0

    def moved(self, offset: int, bytes_in: int) -> None:
        """The last stable offset is this now; `bytes_in` counts all bytes that the partition ever got."""
        if offset > self._offset:
            fresh = max(1, bytes_in - self._bytes_in)
            self._offset, self._bytes_in = offset, bytes_in
            for watcher in list(self.watchers):
                watcher.try_complete(fresh)


def load_producers(segments: Log) -> ProducerStates:
    """The producers of a log: its newest good snapshot, and the batches after it.

    Where it must be found out which transactions were aborted, the batches are read from there on.
    """
    reader = segments.reader
    stale_from = reader.stale_from()
    states, start = ProducerStates(), segments.log_start_offset
    for offset in segments.snapshots():
        if stale_from is not None and offset > stale_from:
            continue
        try:
            states = ProducerStates.decode_snapshot(segments.read_snapshot(offset) or b"")
            start = offset
            break
        except CorruptSnapshotError as error:
            log.warning(
                "producer snapshot is damaged", directory=segments.directory, offset=offset, why=str(error)
            )
    with reader.finding_aborted() as found:
        states.replay(reader.history(start), found)
    states.settle(segments.log_end_offset)
    return states

"""What a partition remembers of its idempotent producers: a retried batch is stored once and in order.

The machine is pure. `check` decides and changes nothing, `apply` is the only way in and cannot fail, and
applying the headers of a log in order rebuilds the state: a partition drops it after a failed write and folds
it again from the last snapshot and the log. A batch is applied when its offsets are reserved, so the next
request of the same loop turn sees it; a duplicate is answered no earlier than the batch it repeats.

The rules are those of Kafka 4: the last five batches of a producer are known, a retry of one of them is
answered with its first offset, sequences go on after 2^31-1 with 0, a new epoch starts at 0, an older
epoch is fenced, and a producer that is not known (new, expired, its records deleted) may start anywhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from struct import Struct
from typing import Self

from crc32c import crc32c

from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader

APPEND = -1  # the answer of `check` for a batch that is not a duplicate
BATCHES_KEPT = 5  # what max.in.flight.requests.per.connection may be at most for an idempotent producer
PRODUCERS_MAX = 20_000  # per partition; the ones that wrote longest ago are forgotten first
SEQUENCE_MAX = 0x7FFFFFFF
NO_EPOCH = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hIi")  # version, CRC32C of all that follows it, number of entries
_CRC_COVERS_FROM = 6
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
# Ours, after what Kafka reads: number of earlier batches, then each with its producer's id, oldest first.
_EARLIER_HEAD = Struct(">i")
_EARLIER_ENTRY = Struct(">qiiqq")


class CorruptSnapshotError(ValueError):
    """Not a producer snapshot of a known version with a valid CRC: delete it and take an older one."""


# Base sequence, last sequence, base offset, last offset. A plain tuple: one is made for each batch appended.
_Batch = tuple[int, int, int, int]


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int  # always that after the newest batch; 0 without one
    timestamp: int = -1  # the largest of the newest batch
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1  # -1 when no transaction is open
    batches: list[_Batch] = field(default_factory=list)  # oldest first, at most BATCHES_KEPT, all of `epoch`

    @property
    def last_offset(self) -> int:
        return self.batches[-1][3] if self.batches else -1


@dataclass(slots=True)
class ProducerStates:
    """The producers of one partition, by producer id."""

    producers_max: int = PRODUCERS_MAX
    _producers: dict[int, _Producer] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int) -> int:
        """Decide on a batch of a client: APPEND, or for a duplicate the base offset it was first given."""
        producer = self._producers.get(producer_id)
        if producer is None:
            if producer_epoch < NO_EPOCH:
                raise _fenced(producer_id, producer_epoch, NO_EPOCH)
            return APPEND
        if base_sequence == producer.next_sequence and producer_epoch == producer.epoch:
            return APPEND
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
            producer = self._producers[producer_id] = _Producer(producer_epoch, 0)
            if len(self._producers) > self.producers_max:
                self._forget_oldest()
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

    def replay(self, headers: Iterable[BatchHeader]) -> None:
        """Apply batches read from the log, in order; they were checked before they were written."""
        for header in headers:
            if header.producer_id >= 0 and not header.is_control:
                self.apply(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.base_offset + header.last_offset_delta,
                    header.last_offset_delta + 1,
                    header.max_timestamp,
                )

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

    def clear(self) -> None:
        """Forget everything, before the state is folded again after a truncation."""
        self._producers.clear()

    def encode_snapshot(self) -> bytes:
        """The content of Kafka's `.snapshot` file: of each producer the newest batch.

        The earlier ones follow where Kafka does not look: a client that had five batches on their way when the
        broker went down sends them all again.
        """
        data = bytearray(_SNAPSHOT_HEAD.size)
        for producer_id, producer in self._producers.items():
            last_sequence, last_offset, offset_delta = -1, -1, 0
            if producer.batches:
                _, last_sequence, base_offset, last_offset = producer.batches[-1]
                offset_delta = last_offset - base_offset
            data += _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last_sequence,
                last_offset,
                offset_delta,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )
        earlier = [
            _EARLIER_ENTRY.pack(producer_id, *batch)
            for producer_id, producer in self._producers.items()
            for batch in producer.batches[:-1]
        ]
        if earlier:
            data += _EARLIER_HEAD.pack(len(earlier)) + b"".join(earlier)
        _SNAPSHOT_HEAD.pack_into(data, 0, _SNAPSHOT_VERSION, 0, len(self._producers))
        crc = crc32c(bytes(data[_CRC_COVERS_FROM:]))
        _SNAPSHOT_HEAD.pack_into(data, 0, _SNAPSHOT_VERSION, crc, len(self._producers))
        return bytes(data)

    @classmethod
    def decode_snapshot(cls, data: bytes, producers_max: int = PRODUCERS_MAX) -> Self:
        """Read a `.snapshot` file of ours or of Kafka. Raises CorruptSnapshotError."""
        if len(data) < _SNAPSHOT_HEAD.size:
            raise CorruptSnapshotError(f"{len(data)} bytes are too few")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptSnapshotError(f"unknown version {version}")
        computed = crc32c(memoryview(data)[_CRC_COVERS_FROM:])
        if crc != computed:
            raise CorruptSnapshotError(f"CRC is {computed:#010x}, stored is {crc:#010x}")
        end = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
        if not 0 <= count <= end <= len(data):
            raise CorruptSnapshotError(f"{count} entries do not fit {len(data)} bytes")
        states = cls(producers_max)
        for entry in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size : end]):
            states._load(*entry)
        if end < len(data):
            states._load_earlier(memoryview(data)[end:])
        return states

    def _load_earlier(self, data: memoryview) -> None:
        count = _EARLIER_HEAD.unpack_from(data)[0] if len(data) >= _EARLIER_HEAD.size else -1
        if _EARLIER_HEAD.size + count * _EARLIER_ENTRY.size != len(data):
            raise CorruptSnapshotError(f"{count} earlier batches do not fill {len(data)} bytes")
        for producer_id, *batch in _EARLIER_ENTRY.iter_unpack(data[_EARLIER_HEAD.size :]):
            producer = self._producers.get(producer_id)
            if producer is None or not 0 < len(producer.batches) < BATCHES_KEPT:
                raise CorruptSnapshotError(
                    f"an earlier batch of producer {producer_id}, which has no room for it"
                )
            first, last, base_offset, last_offset = batch
            producer.batches.insert(-1, (first, last, base_offset, last_offset))

    def _load(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        transaction_first_offset: int,
    ) -> None:
        producer = _Producer(epoch, 0, timestamp, coordinator_epoch, transaction_first_offset)
        if last_offset >= 0:
            base_sequence = (last_sequence - offset_delta) & SEQUENCE_MAX
            producer.batches.append((base_sequence, last_sequence, last_offset - offset_delta, last_offset))
            producer.next_sequence = (last_sequence + 1) & SEQUENCE_MAX
        self._producers[producer_id] = producer

    def _forget_oldest(self) -> None:
        # A sixteenth at once, so that a flood of new producer ids pays for the search only now and then.
        idle = (
            item
            for item in self._producers.items()
            if item[1].transaction_first_offset < 0 and item[1].batches
        )
        for producer_id, _ in nsmallest(
            max(1, self.producers_max // 16), idle, key=lambda item: item[1].last_offset
        ):
            del self._producers[producer_id]


def _check_known(
    producer_id: int, producer: _Producer, producer_epoch: int, base_sequence: int, record_count: int
) -> int:
    """Decide on a batch that does not simply follow the producer's newest one."""
    if producer_epoch < producer.epoch:
        raise _fenced(producer_id, producer_epoch, producer.epoch)
    if producer_epoch == producer.epoch:
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

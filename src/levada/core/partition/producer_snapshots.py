"""The state of one producer in a partition, and the format of Kafka's `.snapshot` files.

A snapshot has a CRC. A corrupt snapshot is ignored, and the state is rebuilt from an older one and the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from crc32c import crc32c

BATCHES_KEPT = 5  # the greatest max.in.flight.requests.per.connection of an idempotent producer
SEQUENCE_MAX = 0x7FFFFFFF

_VERSION = 1
_HEAD = Struct(">hIi")  # version, CRC32C of all that follows it, number of entries
_CRC_COVERS_FROM = 6
_ENTRY = Struct(">qhiqiqiq")
# An extension after the part that Kafka reads: number of earlier batches, then each with its producer id, in order,
# and the offset of the snapshot, which Kafka has in the file name only.
_EARLIER_HEAD = Struct(">i")
_EARLIER_ENTRY = Struct(">qiiqq")
_OFFSET = Struct(">q")


class CorruptSnapshotError(ValueError):
    """The content is no producer snapshot of a known version with a valid CRC."""


# Base sequence, last sequence, base offset, last offset. A plain tuple, because one is made for each appended batch.
BatchMetadata = tuple[int, int, int, int]


@dataclass(slots=True)
class ProducerStateEntry:
    """The state of one producer."""

    epoch: int
    next_sequence: int  # the one after the newest batch; 0 without batches
    timestamp: int = -1  # the greatest of the newest batch
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1  # -1 without an ongoing transaction
    batches: list[BatchMetadata] = field(default_factory=list)  # oldest first, at most BATCHES_KEPT, all of `epoch`
    marker_offset: int = field(default=-1, compare=False)  # of the newest marker since the start

    @property
    def last_offset(self) -> int:
        return max(self.marker_offset, self.batches[-1][3] if self.batches else -1)


def encode(producers: Mapping[int, ProducerStateEntry], offset: int) -> bytes:
    """Encode a snapshot as of an offset, with the newest batch of each producer.

    Earlier batches follow where Kafka does not read: a client with five batches in flight when the broker stops sends
    all of them again.
    """
    data = bytearray(_HEAD.size)
    for producer_id, producer in producers.items():
        last_sequence, last_offset, offset_delta = -1, -1, 0
        if producer.batches:
            _, last_sequence, base_offset, last_offset = producer.batches[-1]
            offset_delta = last_offset - base_offset
        data += _ENTRY.pack(
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
        for producer_id, producer in producers.items()
        for batch in producer.batches[:-1]
    ]
    data += _EARLIER_HEAD.pack(len(earlier)) + b"".join(earlier) + _OFFSET.pack(offset)
    _HEAD.pack_into(data, 0, _VERSION, 0, len(producers))
    crc = crc32c(bytes(data[_CRC_COVERS_FROM:]))
    _HEAD.pack_into(data, 0, _VERSION, crc, len(producers))
    return bytes(data)


def decode(data: bytes, offset: int) -> dict[int, ProducerStateEntry]:
    """Decode the `.snapshot` file of an offset, written by Levada or Kafka. Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"unknown version {version}")
    computed = crc32c(memoryview(data)[_CRC_COVERS_FROM:])
    if crc != computed:
        raise CorruptSnapshotError(f"CRC is {computed:#010x}, stored is {crc:#010x}")
    end = _HEAD.size + count * _ENTRY.size
    if not 0 <= count <= end <= len(data):
        raise CorruptSnapshotError(f"{count} entries do not fit {len(data)} bytes")
    producers: dict[int, ProducerStateEntry] = {}
    for producer_id, *entry in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size : end]):
        producers[producer_id] = _entry(*entry)
    if end < len(data):
        _load_extension(producers, memoryview(data)[end:], offset)
    return producers


def _entry(
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_first_offset: int,
) -> ProducerStateEntry:
    producer = ProducerStateEntry(epoch, 0, timestamp, coordinator_epoch, transaction_first_offset)
    if last_offset >= 0 and last_sequence >= 0:
        base_sequence = (last_sequence - offset_delta) & SEQUENCE_MAX
        producer.batches.append((base_sequence, last_sequence, last_offset - offset_delta, last_offset))
        producer.next_sequence = (last_sequence + 1) & SEQUENCE_MAX
    return producer


def _load_extension(producers: Mapping[int, ProducerStateEntry], data: memoryview, offset: int) -> None:
    count = _EARLIER_HEAD.unpack_from(data)[0] if len(data) >= _EARLIER_HEAD.size else -1
    end = _EARLIER_HEAD.size + count * _EARLIER_ENTRY.size
    if count < 0 or len(data) not in (end, end + _OFFSET.size):
        raise CorruptSnapshotError(f"{count} earlier batches do not fill {len(data)} bytes")
    if end < len(data) and (written := _OFFSET.unpack_from(data, end)[0]) != offset:
        raise CorruptSnapshotError(f"it is the snapshot of offset {written}, under another name")
    for producer_id, *batch in _EARLIER_ENTRY.iter_unpack(data[_EARLIER_HEAD.size : end]):
        producer = producers.get(producer_id)
        if producer is None or not 0 < len(producer.batches) < BATCHES_KEPT:
            raise CorruptSnapshotError(f"an earlier batch of producer {producer_id}, which has no room for it")
        first, last, base_offset, last_offset = batch
        producer.batches.insert(-1, (first, last, base_offset, last_offset))

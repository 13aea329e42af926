"""A partition of an internal topic as the journal of a coordinator shard.

A shard applies events when their records are appended, and completes responses when the records are committed: when the
high watermark has passed them. If an append fails, the shard drops its state and replays the journal.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader, crc_is_valid, decode, iterate_headers

READ_BYTES = 1 << 20


class ReplayedRecord(NamedTuple):
    """A record of the journal, and the header of its batch."""

    key: bytes | None
    value: bytes | None
    batch: BatchHeader
    offset: int


class Journal:
    """One partition of `__consumer_offsets` or `__transaction_state`."""

    __slots__ = ("_leader_epoch", "_on_committed", "_on_failure", "end_offset", "partition")

    def __init__(
        self,
        partition: Partition,
        on_committed: Callable[[int], None],
        on_failure: Callable[[KafkaError], None],
    ) -> None:
        self.partition = partition
        self.end_offset = 0  # after the last append
        self._leader_epoch = partition.leader_epoch  # of this journal: in another one offsets mean other records
        self._on_committed = on_committed  # called with the high watermark when it has advanced
        self._on_failure = on_failure  # called when appended records will never be committed
        partition.watchers.add(self)

    @property
    def is_committed(self) -> bool:
        """Whether all appended records are committed."""
        return self.end_offset <= self.partition.high_watermark

    @property
    def has_ended(self) -> bool:
        """Whether another leader epoch has begun: this shard is being closed."""
        return self.partition.leader_epoch != self._leader_epoch

    def replayed(self, end_offset: int) -> None:
        """Records below this offset were replayed; a new leader may not have committed all of them yet."""
        self.end_offset = max(self.end_offset, end_offset)

    def append(self, batch: bytearray, now_ms: int) -> None:
        """Append a record batch. Raises KafkaError."""
        self.end_offset = self.partition.append_own(batch, now_ms)

    def close(self) -> None:
        self.partition.watchers.discard(self)

    def try_complete(self, published_bytes: int) -> None:
        """The high watermark has advanced, or the partition has failed."""
        partition = self.partition
        if self.has_ended:
            return
        self._on_committed(partition.high_watermark)
        if partition.offline and not self.is_committed:
            self._on_failure(partition.storage_error())

    def replay(self) -> Iterator[ReplayedRecord]:
        """All records in order; a control batch has one record.

        CORRUPT_MESSAGE for a damaged batch: skipping it could restore a wrong offset.
        """
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, READ_BYTES, log.log_end_offset, minimum_one=True)
            view = memoryview(b"".join(piece.views))
            start = offset
            for position, header in iterate_headers(view):
                batch = view[position : position + header.size]
                # The CRC does not cover the offsets.
                if not (offset <= header.last_offset < log.log_end_offset and crc_is_valid(batch)):
                    raise _corrupt(offset)
                for record in decode(batch):
                    if record.offset >= log.log_start_offset:
                        yield ReplayedRecord(record.key, record.value, header, record.offset)
                offset = header.last_offset + 1
            if offset == start:
                raise _corrupt(offset)


def _corrupt(offset: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} is corrupt")

"""An internal topic's partition as the journal of a coordinator: events go in, and come back in order after a restart.

A machine applies its events when they are appended and answers when they are committed, that is when the high
watermark has passed them. If an append fails, the coordinator drops its state and replays the journal.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader, crc_is_valid, decode, iterate_headers

READ_BYTES = 1 << 20


class Entry(NamedTuple):
    """A record of the journal and the batch that brought it."""

    key: bytes | None
    value: bytes | None
    batch: BatchHeader
    offset: int


class Journal:
    """One partition of `__consumer_offsets` or `__transaction_state`."""

    __slots__ = ("_committed", "_failed", "end", "partition")

    def __init__(
        self,
        partition: Partition,
        committed: Callable[[int], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        self.partition = partition
        self.end = 0  # of the partition with everything appended
        self._committed = committed  # told whenever the high watermark has moved
        self._failed = failed  # told when something appended never will be committed
        partition.watchers.add(self)

    @property
    def is_committed(self) -> bool:
        """Whether everything appended is."""
        return self.end <= self.partition.high_watermark

    def append(self, batch: bytearray, now_ms: int) -> None:
        """Write one batch. Raises KafkaError."""
        self.end = self.partition.append_own(batch, now_ms)

    def close(self) -> None:
        """Tell nobody any more."""
        self.partition.watchers.discard(self)

    def try_complete(self, published_bytes: int) -> None:
        """The partition has moved on, or has failed."""
        partition = self.partition
        self._committed(partition.high_watermark)
        if partition.offline and not self.is_committed:
            self._failed(partition.storage_error())

    def replay(self) -> Iterator[Entry]:
        """Everything that is in the journal, in order; control batches come as their one record.

        CORRUPT_MESSAGE where it is damaged: a wrong offset is worse than none.
        """
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, READ_BYTES, log.log_end_offset, minimum_one=True)
            view = memoryview(b"".join(piece.views))
            start = offset
            for position, header in iterate_headers(view):
                batch = view[position : position + header.size]
                # Offsets are no part of the CRC.
                if not (offset <= header.last_offset < log.log_end_offset and crc_is_valid(batch)):
                    raise _damaged(offset)
                for record in decode(batch):
                    if record.offset >= log.log_start_offset:
                        yield Entry(record.key, record.value, header, record.offset)
                offset = header.last_offset + 1
            if offset == start:
                raise _damaged(offset)


def _damaged(offset: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} is damaged")

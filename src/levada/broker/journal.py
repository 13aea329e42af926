"""An internal topic's partition as the journal of a coordinator: events go in, and come back in order after a restart.

A machine applies its events when they are appended and answers when they are committed, that is when the high
watermark has passed them. If an append fails, the coordinator drops its state and replays the journal.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from levada.broker.partitions import Partition
from levada.clock import Clock
from levada.core.machines import PLAIN, Stamp
from levada.errors import KafkaError
from levada.wire.batches import BatchHeader, decode, encode_pairs, iterate_headers

READ_BYTES = 1 << 20


class Entry(NamedTuple):
    """A record of the journal and the batch that brought it."""

    key: bytes | None
    value: bytes | None
    batch: BatchHeader
    offset: int


class Journal:
    """One partition of `__consumer_offsets` or `__transaction_state`."""

    __slots__ = ("_clock", "_failed", "_goal", "_waiting", "partition")

    def __init__(self, partition: Partition, clock: Clock, failed: Callable[[KafkaError], None]) -> None:
        self.partition = partition
        self._clock = clock
        self._failed = failed  # told when something appended never will be committed
        self._goal = 0  # where the partition ends with everything appended
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # in the order of their goals

    def append(self, records: Sequence[tuple[bytes, bytes | None]], stamp: Stamp = PLAIN) -> None:
        """Write one batch. Raises KafkaError."""
        partition, now_ms = self.partition, self._clock.now_ms()
        self._goal = partition.append_own(encode_pairs(records, now_ms, *stamp), now_ms)
        partition.waiters.add(self)

    def after_all(self, action: Callable[[], None]) -> None:
        """Call `action` when everything appended so far is committed; at once if it is already."""
        if self._waiting or self._goal > self.partition.high_watermark:
            self._waiting.append((self._goal, action))
        else:
            action()

    def forget(self) -> None:
        """Call nobody who waits."""
        self._waiting.clear()

    def news(self, published_bytes: int) -> None:
        """The partition has moved on, or has failed."""
        partition, waiting = self.partition, self._waiting
        while waiting and waiting[0][0] <= partition.high_watermark:
            waiting.popleft()[1]()
        if self._goal <= partition.high_watermark:
            partition.waiters.discard(self)
        elif partition.offline:
            partition.waiters.discard(self)
            self._failed(partition.storage_error())

    def replay(self) -> Iterator[Entry]:
        """Everything that is in the journal, in order; control batches come as their one record."""
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, READ_BYTES, log.log_end_offset, minimum_one=True)
            view = memoryview(b"".join(piece.views))
            for position, header in iterate_headers(view):
                for record in decode(view[position : position + header.size]):
                    if record.offset >= log.log_start_offset:
                        yield Entry(record.key, record.value, header, record.offset)
                offset = header.last_offset + 1

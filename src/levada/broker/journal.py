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

Committed = Callable[[KafkaError | None], None]


class Entry(NamedTuple):
    """A record of the journal and the batch that brought it."""

    key: bytes | None
    value: bytes | None
    batch: BatchHeader
    offset: int


class Journal:
    """One partition of `__consumer_offsets` or `__transaction_state`."""

    __slots__ = ("_clock", "_waiting", "partition")

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._waiting: deque[tuple[int, Committed]] = deque()  # in the order of their goals

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        committed: Committed,
        stamp: Stamp = PLAIN,
    ) -> None:
        """Write one batch; `committed` is called once, with the error if it never will be. Raises KafkaError."""
        now_ms = self._clock.now_ms()
        goal = self.partition.append_own(encode_pairs(records, now_ms, *stamp), now_ms)
        self._waiting.append((goal, committed))
        self.partition.waiters.add(self)

    def after_all(self, committed: Committed) -> None:
        """Call `committed` when everything appended so far is; at once if it is already."""
        if self._waiting:
            self._waiting.append((self._waiting[-1][0], committed))
        else:
            committed(None)

    def news(self, published_bytes: int) -> None:
        """The partition has moved on, or has failed."""
        partition, waiting = self.partition, self._waiting
        while waiting and waiting[0][0] <= partition.high_watermark:
            waiting.popleft()[1](None)
        if partition.offline:
            while waiting:
                waiting.popleft()[1](partition.storage_error())
        if not waiting:
            partition.waiters.discard(self)

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

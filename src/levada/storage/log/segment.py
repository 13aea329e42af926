"""One segment of a log: a file of record batches and the indexes beside it (R17, R18).

Batches are parsed only from `pread`, never from a mapping: a device error would turn into a killed process.
"""

import os
from collections.abc import Iterator

from levada.errors import ErrorCode, KafkaError
from levada.model import NO_TIMESTAMP
from levada.storage.disk import Disk, fsync_file
from levada.storage.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from levada.storage.handles import Handle, Handles
from levada.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from levada.storage.log.txn_index import TxnIndex
from levada.wire.batches import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, read_header

HEADER_BLOCK_BYTES = 8 * 1024
SCAN_BLOCK_BYTES = 1024 * 1024
WRONG_ENTRIES_MAX = 8  # after so many wrong entries the whole index is made again
RELATIVE_OFFSET_MAX = 2**31 - 1

Placed = tuple[int, BatchHeader, memoryview]  # position of a batch, its header, its bytes (or some of them)


class BrokenBatchError(KafkaError):
    """Bytes that cannot be a batch, where one must begin."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path} is broken at byte {position}: {reason}")
        self.position = position
        self.reason = reason


def walk(disk: Disk, fd: int, path: str, start: int, end: int, whole: bool = False) -> Iterator[Placed]:
    """Each batch from `start`, a batch's position, up to `end`; with `whole` all bytes of each are in its view.

    Raises BrokenBatchError at the first header that does not fit.
    """
    block_bytes = SCAN_BLOCK_BYTES if whole else HEADER_BLOCK_BYTES
    position, block_start, block = start, start, memoryview(b"")
    while position < end:
        at = position - block_start
        if at + HEADER_BYTES > len(block):
            block = memoryview(disk.pread(fd, min(block_bytes, end - position), position))
            block_start, at = position, 0
            if len(block) < HEADER_BYTES:
                raise BrokenBatchError(path, position, "the file ends within a header")
        header = read_header(block, at)
        size = header.batch_length + LOG_OVERHEAD
        if header.magic != MAGIC or size < HEADER_BYTES or header.last_offset_delta < 0:
            raise BrokenBatchError(path, position, "no record batch of version 2")
        if size > end - position:
            raise BrokenBatchError(path, position, f"a batch of {size} bytes where {end - position} remain")
        if whole and at + size > len(block):
            block = memoryview(disk.pread(fd, max(size, min(block_bytes, end - position)), position))
            block_start, at = position, 0
            if len(block) < size:
                raise BrokenBatchError(path, position, "the file ends within a batch")
        yield position, header, block[at : at + size]
        position += size


class Segment:
    """A file of batches from `base_offset` on. Its last `size` bytes are published; more may be reserved."""

    __slots__ = (
        "base_offset",
        "created_ms",
        "disk",
        "first_timestamp",
        "handle",
        "handles",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "removed",
        "size",
        "time_index",
        "txn_index",
    )

    def __init__(
        self, directory: str, base_offset: int, disk: Disk, handles: Handles, now_ms: int, suffix: str = ""
    ) -> None:
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.disk = disk
        self.handles = handles
        self.size = 0
        self.removed = False  # from the log, by retention or truncation
        self.first_timestamp: int | None = None  # the first batch's greatest; None until it is asked for
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset  # the last offset of the first batch that has it
        stem = os.path.join(directory, file_name(base_offset, ""))
        self.handle = Handle(stem + LOG_SUFFIX + suffix)
        self.index = SparseIndex(OFFSET_ENTRY, stem + INDEX_SUFFIX + suffix, disk, handles)
        self.time_index = SparseIndex(TIME_ENTRY, stem + TIME_INDEX_SUFFIX + suffix, disk, handles)
        self.txn_index = TxnIndex(stem + TXN_INDEX_SUFFIX + suffix, disk, handles)

    @property
    def path(self) -> str:
        return self.handle.path

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(handle.path for handle in self._handles)

    @property
    def _handles(self) -> tuple[Handle, ...]:
        return self.handle, self.index.handle, self.time_index.handle, self.txn_index.handle

    def fd(self) -> int:
        return self.handles.fd(self.handle)

    def use(self, handles: Handles) -> None:
        """From now on share these handles; those of before are closed."""
        self.close()
        self.handles = self.index.handles = self.time_index.handles = self.txn_index.handles = handles

    def close(self) -> None:
        for handle in self._handles:
            self.handles.close(handle)

    def walk(self, start: int = 0, whole: bool = False) -> Iterator[Placed]:
        """The published batches from the position `start` on."""
        return walk(self.disk, self.fd(), self.path, start, self.size, whole)

    def note_timestamp(self, timestamp: int, last_offset: int) -> None:
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset

    def add_entry(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`, whose timestamp has been noted."""
        self.index.append(last_offset - self.base_offset, position)
        self.add_time_entry()

    def add_time_entry(self) -> None:
        last = self.time_index.last()
        if self.max_timestamp > (last[0] if last else NO_TIMESTAMP):
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def index_is_full(self, index_bytes: int) -> bool:
        return len(self.index) >= max(1, index_bytes // OFFSET_ENTRY.size) or len(self.time_index) >= max(
            1, index_bytes // TIME_ENTRY.size - 1
        )

    def seal(self) -> None:
        """Store the indexes: the last entry of the time index tells the segment's greatest timestamp."""
        self.add_time_entry()
        self.index.store()
        self.time_index.store()

    def forget_indexes(self) -> None:
        self.index.reset()
        self.time_index.reset()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def rebuild_indexes(self, interval: int) -> None:
        """Make both indexes from the headers of the log."""
        self.forget_indexes()
        indexed = 0
        for position, header, _ in self.walk():
            if not 0 <= header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
                raise BrokenBatchError(
                    self.path, position, f"offset {header.last_offset} is not of this segment"
                )
            self.note_timestamp(header.max_timestamp, header.last_offset)
            if position - indexed > interval:
                self.add_entry(header.last_offset, position)
                indexed = position

    def locate(self, offset: int, interval: int) -> tuple[int, int]:
        """The position of the first batch that ends at or after `offset`, and a hint for `floor`.

        The position is `size` when every batch ends before.
        """
        number, start = self._start_for(offset, interval)
        for position, header, _ in self.walk(start):
            if header.last_offset >= offset:
                return position, number
        return self.size, number

    def _start_for(self, offset: int, interval: int) -> tuple[int, int]:
        """The number and position of the last index entry at or before `offset` that is true."""
        relative = offset - self.base_offset
        found = self.index.floor(0, relative)
        if found is None:
            return -1, 0
        for number in range(found[0], max(-1, found[0] - WRONG_ENTRIES_MAX), -1):
            entry = self.index.entry(number)
            if entry and entry[0] <= relative and (number >= self.index.stored or self.entry_is_true(*entry)):
                return number, entry[1]
        self.rebuild_indexes(interval)
        found = self.index.floor(0, relative)
        return (found[0], found[1][1]) if found else (-1, 0)

    def end_of_batches(self, start: int, max_bytes: int, minimum_one: bool) -> tuple[int, int]:
        """Where at most `max_bytes` of whole batches from `start` end, and the offset after them."""
        end, following = start, -1
        for position, header, _ in self.walk(start):
            if position + header.size > start + max_bytes and (position > start or not minimum_one):
                break
            end, following = position + header.size, header.last_offset + 1
            if end >= start + max_bytes:
                break
        return end, following

    def entry_is_true(self, relative: int, position: int) -> bool:
        """Whether an index entry tells of a batch; that of an empty index is (-1, 0)."""
        header = self.header_at(position)
        return header is not None and relative in (-1, header.last_offset - self.base_offset)

    def time_entry_is_true(self, timestamp: int, relative: int, interval: int) -> bool:
        """Whether the batch that an entry of the time index tells of has this timestamp."""
        last_offset = self.base_offset + relative
        position, _ = self.locate(last_offset, interval)
        header = self.header_at(position)
        return header is not None and (header.max_timestamp, header.last_offset) == (timestamp, last_offset)

    def header_at(self, position: int, waits: bool = True) -> BatchHeader | None:
        """The header at a position that may be no batch's; None where it cannot be one.

        Where it `waits` not for the device, it raises BlockingIOError instead.
        """
        if not 0 <= position <= self.size - HEADER_BYTES:
            return None
        pread = self.disk.pread if waits else self.disk.pread_cached
        data = pread(self.fd(), HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            return None
        header = read_header(data)
        return header if header.magic == MAGIC and 0 < header.size <= self.size - position else None

    def fsync(self) -> None:
        """Make the batches survive a crash; for a thread. The sparse indexes need no such care."""
        try:
            self.txn_index.fsync()
            fsync_file(self.disk, self.path)
        except FileNotFoundError:
            if not self.removed:
                raise

    def remove(self) -> None:
        """Take the segment out of the log: its files get names that the next opening throws away."""
        self.close()
        self.removed = True
        for path in self.paths:
            if self.disk.exists(path):
                self.disk.rename(path, path + DELETED_SUFFIX)

    def unlink_removed(self) -> None:
        """Free the space of a removed segment; may run in a thread. Slices of a mapping stay valid."""
        for path in self.paths:
            try:
                self.disk.unlink(path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue

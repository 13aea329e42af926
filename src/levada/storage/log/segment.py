"""One segment of a log: a file of record batches and its indexes.

Batches are parsed only from `pread`, never from a mapping: with a mapping a device error would kill the process.
"""

import os
from collections.abc import Iterator

from levada.errors import ErrorCode, KafkaError
from levada.model import NO_TIMESTAMP
from levada.storage.disk import Disk, Reads, fsync_file
from levada.storage.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from levada.storage.handles import FileHandle, FileHandleCache
from levada.storage.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from levada.wire.batches import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, read_header

HEADER_BLOCK_BYTES = 8 * 1024
SCAN_BLOCK_BYTES = 1024 * 1024
WRONG_ENTRIES_MAX = 8  # after so many wrong entries the whole index is rebuilt
RELATIVE_OFFSET_MAX = 2**31 - 1

StoredBatch = tuple[int, BatchHeader, memoryview]  # position of a batch, its header, its bytes (or some of them)


class CorruptBatchError(KafkaError):
    """The bytes at the position of a batch are no valid batch."""

    def __init__(self, path: str, position: int, reason: str, offset: int | None = None) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path} is corrupt at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
        self.offset = offset  # of the batch, as far as that is known


def read_batches(disk: Reads, fd: int, path: str, start: int, end: int, whole: bool = False) -> Iterator[StoredBatch]:
    """Yield each batch from `start`, the position of a batch, up to `end`; with `whole` all bytes of each.

    Raises CorruptBatchError at the first invalid header.
    """
    block_bytes = SCAN_BLOCK_BYTES if whole else HEADER_BLOCK_BYTES
    position, block_start, block = start, start, memoryview(b"")
    while position < end:
        at = position - block_start
        if at + HEADER_BYTES > len(block):
            block = memoryview(disk.pread(fd, min(block_bytes, end - position), position))
            block_start, at = position, 0
            if len(block) < HEADER_BYTES:
                raise CorruptBatchError(path, position, "the file ends within a header")
        header = read_header(block, at)
        size = header.batch_length + LOG_OVERHEAD
        if header.magic != MAGIC or size < HEADER_BYTES or header.last_offset_delta < 0:
            raise CorruptBatchError(path, position, "no record batch of version 2")
        if size > end - position:
            raise CorruptBatchError(path, position, f"a batch of {size} bytes where {end - position} remain")
        if whole and at + size > len(block):
            block = memoryview(disk.pread(fd, max(size, min(block_bytes, end - position)), position))
            block_start, at = position, 0
            if len(block) < size:
                raise CorruptBatchError(path, position, "the file ends within a batch")
        yield position, header, block[at : at + size]
        position += size


class LogSegment:
    """A file of batches from `base_offset` on. Its first `size` bytes are published; more may be reserved."""

    __slots__ = (
        "base_offset",
        "created_ms",
        "deleted",
        "disk",
        "first_timestamp",
        "handle",
        "handles",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "size",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        disk: Disk,
        handles: FileHandleCache,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.disk = disk
        self.handles = handles
        self.size = 0
        self.deleted = False  # from the log, by retention, truncation or compaction
        self.first_timestamp: int | None = None  # the greatest of the first batch; None: not read yet
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset  # the last offset of the first batch that has it
        stem = os.path.join(directory, file_name(base_offset, ""))
        self.handle = FileHandle(stem + LOG_SUFFIX + suffix)
        self.offset_index = OffsetIndex(stem + INDEX_SUFFIX + suffix, disk, handles)
        self.time_index = TimeIndex(stem + TIME_INDEX_SUFFIX + suffix, disk, handles)
        self.txn_index = TransactionIndex(stem + TXN_INDEX_SUFFIX + suffix, disk, handles)

    @property
    def path(self) -> str:
        return self.handle.path

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(handle.path for handle in self._handles)

    @property
    def _handles(self) -> tuple[FileHandle, ...]:
        return self.handle, self.offset_index.handle, self.time_index.handle, self.txn_index.handle

    @property
    def index_bytes(self) -> int:
        """The size of the larger of the offset and the time index."""
        return max(self.offset_index.size_bytes, self.time_index.size_bytes)

    def fd(self) -> int:
        return self.handles.fd(self.handle)

    def use(self, handles: FileHandleCache) -> None:
        """Close the present handles and use another cache from now on."""
        self.close()
        self.handles = self.offset_index.handles = self.time_index.handles = self.txn_index.handles = handles

    def close(self) -> None:
        for handle in self._handles:
            self.handles.close(handle)

    def batches(self, start: int = 0, whole: bool = False) -> Iterator[StoredBatch]:
        """Yield the published batches from the position `start` on."""
        return read_batches(self.disk, self.fd(), self.path, start, self.size, whole)

    def update_max_timestamp(self, timestamp: int, last_offset: int) -> None:
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset

    def add_entry(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`, whose timestamp is already in `max_timestamp`."""
        self.offset_index.append(last_offset - self.base_offset, position)
        self.add_time_entry()

    def add_time_entry(self) -> None:
        last = self.time_index.last()
        if self.max_timestamp > (last[0] if last else NO_TIMESTAMP):
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def index_is_full(self, index_bytes: int) -> bool:
        return len(self.offset_index) >= max(1, index_bytes // OffsetIndex.ENTRY.size) or len(self.time_index) >= max(
            1, index_bytes // TimeIndex.ENTRY.size - 1
        )

    def seal(self) -> None:
        """Store the indexes; the last entry of the time index holds the greatest timestamp of the segment."""
        self.add_time_entry()
        self.offset_index.store()
        self.time_index.store()

    def reset_indexes(self) -> None:
        self.offset_index.reset()
        self.time_index.reset()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def rebuild_indexes(self, interval: int) -> None:
        """Rebuild the offset and the time index from the batch headers."""
        self.reset_indexes()
        indexed = 0
        for position, header, _ in self.batches():
            if not 0 <= header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
                reason = f"offset {header.last_offset} is not of this segment"
                raise CorruptBatchError(self.path, position, reason)
            self.update_max_timestamp(header.max_timestamp, header.last_offset)
            if position - indexed > interval:
                self.add_entry(header.last_offset, position)
                indexed = position

    def locate(self, offset: int, interval: int) -> int:
        """Return the position of the first batch that ends at or after `offset`, or `size` if every batch ends before.

        Where batches are larger than the index interval, each has an entry: the one after the floor is the batch.
        Elsewhere the batches from the floor on are scanned; the first of them validates the entry.
        """
        index, wanted = self.offset_index, offset - self.base_offset
        number, (relative, start) = index.floor(0, wanted) or (-1, (-1, 0))
        following = index.entry(number + 1) if number + 1 < len(index) else None
        if following and following[1] - start > 2 * interval and self._contains(following, offset):
            return following[1]
        if not 0 <= number < index.stored or 0 <= start < self.size:  # only stored entries can be wrong
            try:
                for position, header, _ in self.batches(start):
                    if position == start and relative not in (-1, header.last_offset - self.base_offset):
                        break
                    if header.last_offset >= offset:
                        return position
                else:
                    return self.size
            except CorruptBatchError:
                if number < 0:
                    raise
        start = self._valid_position(number, wanted, interval)
        scanned = (position for position, header, _ in self.batches(start) if header.last_offset >= offset)
        return next(scanned, self.size)

    def _contains(self, entry: tuple[int, int], offset: int) -> bool:
        """Whether an index entry matches a batch, and that batch contains `offset`."""
        header = self.header_at(entry[1])
        if header is None or header.last_offset - self.base_offset != entry[0]:
            return False
        return header.base_offset <= offset <= header.last_offset

    def _valid_position(self, number: int, relative: int, interval: int) -> int:
        """Return the position of the last valid index entry up to the one with this number."""
        index = self.offset_index
        for earlier in range(number, max(-1, number - WRONG_ENTRIES_MAX), -1):
            entry = index.entry(earlier)
            if entry and entry[0] <= relative and self.is_valid_entry(*entry):
                return entry[1]
        self.rebuild_indexes(interval)
        found = index.floor(0, relative)
        return found[1][1] if found else 0

    def end_of_batches(self, start: int, max_bytes: int, minimum_one: bool) -> tuple[int, int]:
        """Return where at most `max_bytes` of whole batches from `start` end, and the offset after them."""
        end, following = start, -1
        for position, header, _ in self.batches(start):
            if position + header.size > start + max_bytes and (position > start or not minimum_one):
                break
            end, following = position + header.size, header.last_offset + 1
            if end >= start + max_bytes:
                break
        return end, following

    def is_valid_entry(self, relative: int, position: int) -> bool:
        """Whether an entry of the offset index matches a batch; the entry of an empty index is (-1, 0)."""
        header = self.header_at(position)
        return header is not None and relative in (-1, header.last_offset - self.base_offset)

    def is_valid_time_entry(self, timestamp: int, relative: int, interval: int) -> bool:
        """Whether an entry of the time index matches a batch."""
        last_offset = self.base_offset + relative
        position = self.locate(last_offset, interval)
        header = self.header_at(position)
        return header is not None and (header.max_timestamp, header.last_offset) == (timestamp, last_offset)

    def header_at(self, position: int, waits: bool = True) -> BatchHeader | None:
        """Return the header at any position; None if no batch can be there.

        Without `waits` it raises BlockingIOError instead of waiting for the device.
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
        """Make batches and aborted transactions durable. Runs in a thread. The sparse indexes need no fsync."""
        try:
            self.txn_index.fsync()
            fsync_file(self.disk, self.path)
        except FileNotFoundError:
            if not self.deleted:
                raise

    def mark_deleted(self) -> None:
        """Rename the files to `.deleted`; the next start deletes them if `delete_files` did not."""
        self.close()
        self.deleted = True
        for path in self.paths:
            if self.disk.exists(path):
                self.disk.rename(path, path + DELETED_SUFFIX)

    def delete_files(self) -> None:
        """Delete the `.deleted` files, the log last; may run in a thread. Slices of a mapping remain valid."""
        for path in reversed(self.paths):
            try:
                self.disk.unlink(path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue

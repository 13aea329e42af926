"""The indexes of a segment in Kafka's formats: OffsetIndex, TimeIndex and TransactionIndex.

Offset and time indexes are sparse hints. A reader validates an entry against the batch it points to and rebuilds the
index from the log if it is wrong, so these indexes need neither fsync nor checksums. The transaction index is not a
hint: a missing entry would show aborted records to read_committed consumers. It is fsynced with the log, its
checksum is stored, and it is rebuilt where recovery scans the log or the checksum differs.
"""

import errno
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from struct import Struct
from typing import ClassVar, Final

from crc32c import crc32c

from levada.core.partition.producer_state import AbortedTransaction
from levada.storage.checkpoints import Checksum
from levada.storage.disk import Disk, fsync_file, read_file, write_all, write_atomically
from levada.storage.handles import FileHandle, FileHandleCache

TAIL_ENTRIES_MAX: Final = 64
BLOCK_ENTRIES: Final = 256  # that are read from the file at once
BLOCKS_CACHED_MAX: Final = 32  # of an index
BLOCKS_SCANNED: Final = 16  # with one read, when an index is searched for the first time
TRANSACTION_VERSION: Final = 0
NO_ENTRIES: Final = Checksum()
TRANSACTION_RUN_ENTRIES: Final = 64
TRANSACTION_INDEX_BYTES_MAX: Final = 1024 * 1024 * 1024  # a segment has 2 GiB at most, and a marker two entries' size
# Version, producer id, first offset, last offset (that of the marker), last stable offset.
TRANSACTION_ENTRY: Final = Struct(">hqqqq")

Entry = tuple[int, int]
_COLUMNS: tuple[Callable[[Entry], int], Callable[[Entry], int]] = (itemgetter(0), itemgetter(1))


Columns = tuple[Sequence[int], Sequence[int]]


class CachedEntries:
    """What a reader keeps of the stored entries: the first of every block, by column, and the blocks read last."""

    __slots__ = ("blocks", "first")

    def __init__(self) -> None:
        self.blocks: dict[int, Columns] = {}  # by number; only full ones, which never change
        self.first: tuple[array[int], array[int]] = array("q"), array("q")


class SparseIndex:
    """Entries of two increasing numbers. The newest are in memory, all others in the file.

    The file is read on demand: while it is open, some blocks of it are in memory.
    """

    ENTRY: ClassVar[Struct]

    __slots__ = ("_disk", "handle", "handles", "stored", "tail")

    def __init__(self, path: str, disk: Disk, handles: FileHandleCache) -> None:
        self._disk = disk
        self.handle = FileHandle(path)
        self.handles = handles
        self.stored = 0  # entries in the file
        self.tail: list[Entry] = []  # the entries after them

    def load(self, segment_bytes: int) -> bool:
        """Count the stored entries; return whether the file exists, holds whole entries, and not too many.

        A batch is larger than its entry.
        """
        if not self._disk.exists(self.handle.path):
            return False
        size = self._disk.size(self.handles.fd(self.handle))
        self.stored = size // self.ENTRY.size
        return size % self.ENTRY.size == 0 and size <= segment_bytes

    def __len__(self) -> int:
        return self.stored + len(self.tail)

    @property
    def size_bytes(self) -> int:
        return len(self) * self.ENTRY.size

    def append(self, first: int, second: int) -> None:
        self.tail.append((first, second))
        if len(self.tail) >= TAIL_ENTRIES_MAX:
            self.store()

    def store(self) -> None:
        """Write the entries in memory to the file; an empty index becomes an empty file."""
        if self.stored and not self.tail:
            return
        handle = self.handle
        fd = self.handles.fd(handle) if self.stored else self.handles.open_or_create(handle)
        if self.tail:
            data = b"".join([self.ENTRY.pack(first, second) for first, second in self.tail])
            write_all(self._disk, fd, [data], self.stored * self.ENTRY.size)
            self.stored += len(self.tail)
            self.tail = []

    def _read(self, number: int, count: int) -> bytes:
        """Read at most `count` stored entries from `number` on, undecoded."""
        size = self.ENTRY.size
        count = min(count, self.stored - number)
        data = self._disk.pread(self.handles.fd(self.handle), count * size, number * size)
        return data[: len(data) // size * size]  # the file may be shorter than it was

    def entry(self, number: int) -> Entry | None:
        """Return one entry; None if the file no longer has it."""
        if number >= self.stored:
            return self.tail[number - self.stored]
        cached = self.handle.cached
        block = cached.blocks.get(number // BLOCK_ENTRIES) if isinstance(cached, CachedEntries) else None
        if block is not None:
            return block[0][number % BLOCK_ENTRIES], block[1][number % BLOCK_ENTRIES]
        data = self._read(number, 1)
        if len(data) < self.ENTRY.size:
            return None
        first, second = self.ENTRY.unpack(data)
        return first, second

    def last(self) -> Entry | None:
        return self.entry(len(self) - 1) if len(self) else None

    def floor(self, column: int, value: int) -> tuple[int, Entry] | None:
        """Return the number of the last entry whose `column` is at most `value`, and the entry."""
        tail = self.tail
        if tail and tail[0][column] <= value:
            found = bisect_right(tail, value, key=_COLUMNS[column]) - 1
            return self.stored + found, tail[found]
        cached = self._cached()
        number = bisect_right(cached.first[column], value) - 1
        if number < 0:
            return None
        block = cached.blocks.get(number) or self._read_block(cached, number)
        found = bisect_right(block[column], value) - 1
        return None if found < 0 else (number * BLOCK_ENTRIES + found, (block[0][found], block[1][found]))

    def _cached(self) -> CachedEntries:
        """Return what is cached as long as the file is open, with the first entry of every stored block."""
        cached = self.handle.cached
        if not isinstance(cached, CachedEntries):
            self.handle.cached = cached = CachedEntries()
        first = cached.first
        while (start := len(first[0]) * BLOCK_ENTRIES) < self.stored:
            data = self._read(start, BLOCKS_SCANNED * BLOCK_ENTRIES)
            if not data:
                break  # the file is shorter than it was
            for position in range(0, len(data), BLOCK_ENTRIES * self.ENTRY.size):
                for known, number in zip(first, self.ENTRY.unpack_from(data, position), strict=True):
                    known.append(number)
        return cached

    def _read_block(self, cached: CachedEntries, number: int) -> Columns:
        block = self._columns(self._read(number * BLOCK_ENTRIES, BLOCK_ENTRIES))
        if len(block[0]) == BLOCK_ENTRIES:
            blocks = cached.blocks
            blocks[number] = block
            if len(blocks) > BLOCKS_CACHED_MAX:
                del blocks[next(iter(blocks))]
        return block

    def _columns(self, data: bytes) -> Columns:
        """Decode entries into their two columns."""
        entries = list(self.ENTRY.iter_unpack(data))
        return array("q", [first for first, _ in entries]), array("q", [second for _, second in entries])

    def reset(self) -> None:
        """Remove every entry, in memory and on disk."""
        self.handles.close(self.handle)
        if self._disk.exists(self.handle.path):
            self._disk.unlink(self.handle.path)
        self.stored = 0
        self.tail = []


class OffsetIndex(SparseIndex):
    """Last offset of a batch relative to the segment's base offset, and the position of the batch."""

    ENTRY = Struct(">ii")

    __slots__ = ()

    def _columns(self, data: bytes) -> Columns:
        numbers = array("i", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers[0::2], numbers[1::2]


class TimeIndex(SparseIndex):
    """Greatest timestamp so far, and the relative last offset of the first batch that has it."""

    ENTRY = Struct(">qi")

    __slots__ = ()


class TransactionIndex:
    """The aborted transactions whose marker is in a segment, in the order of the markers (`.txnindex`).

    All entries are in the file, none in memory. A segment without aborted transactions has no file.
    """

    __slots__ = ("_directory_dirty", "_disk", "checksum", "count", "handle", "handles", "stale")

    def __init__(self, path: str, disk: Disk, handles: FileHandleCache) -> None:
        self._disk = disk
        self.handle = FileHandle(path)
        self.handles = handles
        self.count = 0
        self.checksum = NO_ENTRIES  # of all entries; of a stale index, what they should be
        self.stale = False  # the entries have to be rebuilt from the log
        self._directory_dirty = False  # the file is new and its directory not fsynced yet

    def load(self, base_offset: int, size_bytes: int, expected: Checksum = NO_ENTRIES) -> None:
        """Accept the file if it is plausible for a segment of that size; mark the index as stale otherwise.

        Its first entries have the `expected` checksum.
        """
        data = read_file(self._disk, self.handle.path, bytes_max=size_bytes) or b""
        count = len(data) // TRANSACTION_ENTRY.size
        known = data[: expected.entries * TRANSACTION_ENTRY.size]
        self.stale = count < expected.entries or crc32c(known) != expected.crc
        self.stale |= len(data) % TRANSACTION_ENTRY.size != 0 or len(data) > size_bytes  # a marker is larger
        last = base_offset - 1
        for version, _, first_offset, last_offset, stable_offset in TRANSACTION_ENTRY.iter_unpack(
            data[: count * TRANSACTION_ENTRY.size]
        ):
            plausible = last < last_offset > first_offset and stable_offset <= last_offset + 1
            if version != TRANSACTION_VERSION or not plausible:
                self.stale = True
                break
            last = last_offset
        self.count = 0 if self.stale else count
        self.checksum = expected if self.stale else Checksum(count, crc32c(data))

    def append(self, aborted: AbortedTransaction) -> None:
        """Add the transaction of the newest abort marker."""
        self._directory_dirty |= not self.count
        fd = self.handles.fd(self.handle) if self.count else self.handles.open_or_create(self.handle)
        data = TRANSACTION_ENTRY.pack(TRANSACTION_VERSION, *aborted)
        write_all(self._disk, fd, [data], self.count * TRANSACTION_ENTRY.size)
        self.count += 1
        self.checksum = Checksum(self.count, crc32c(data, self.checksum.crc))

    def since(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield the transactions that ended at or after `offset`, in the order of their markers."""
        low, high = 0, self.count
        while high - low > TRANSACTION_RUN_ENTRIES:
            middle = (low + high) // 2
            (entry,) = self._read(middle, 1)
            if entry.last_offset < offset:
                low = middle + 1
            else:
                high = middle
        while low < self.count:
            entries = self._read(low, TRANSACTION_RUN_ENTRIES)
            yield from (entry for entry in entries if entry.last_offset >= offset)
            low += len(entries)

    def _read(self, number: int, count: int) -> list[AbortedTransaction]:
        size = TRANSACTION_ENTRY.size
        count = min(count, self.count - number)
        data = self._disk.pread(self.handles.fd(self.handle), count * size, number * size)
        if len(data) != count * size:
            raise OSError(errno.EBADMSG, f"it has lost entries after {number}", self.handle.path)
        return [AbortedTransaction(*entry[1:]) for entry in TRANSACTION_ENTRY.iter_unpack(data)]

    def truncate(self, offset: int) -> None:
        """Remove the transactions whose marker is at or after `offset`."""
        kept = []
        for entry in self.since(0):
            if entry.last_offset >= offset:
                break
            kept.append(TRANSACTION_ENTRY.pack(TRANSACTION_VERSION, *entry))
        if len(kept) < self.count:
            self.reset()
            if kept:
                data = b"".join(kept)
                write_atomically(self._disk, self.handle.path, data)
                self.count = len(kept)
                self.checksum = Checksum(self.count, crc32c(data))

    def reset(self) -> None:
        """Remove every entry."""
        self.handles.close(self.handle)
        if self._disk.exists(self.handle.path):
            self._disk.unlink(self.handle.path)
        self.count, self.checksum = 0, NO_ENTRIES

    def fsync(self) -> None:
        """Make the entries durable. Runs in a thread."""
        if self.count:
            fsync_file(self._disk, self.handle.path)
            if self._directory_dirty:
                self._disk.fsync_dir(os.path.dirname(self.handle.path))
                self._directory_dirty = False

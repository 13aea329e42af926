"""The aborted transactions of a segment: read_committed readers are told of them, so as to skip their records.

Kafka's `.txnindex`: an entry for each abort marker in the segment, in the order of the markers; a segment without
one has no file. The other indexes are hints, this one is not: an entry that is missing shows aborted records to
readers. So it is fsynced with the log, and made again from the log wherever the log itself had to be checked.
"""

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from levada.core.partition.producer_state import AbortedTransaction
from levada.storage.disk import Disk, fsync_file, read_file, write_all, write_atomically
from levada.storage.handles import Handle, Handles

ENTRY: Final = Struct(
    ">hqqqq"
)  # version, producer id, first offset, last offset (the marker's), last stable offset
VERSION: Final = 0
RUN_ENTRIES: Final = 64


class TxnIndex:
    """The entries of one segment; all are in the file, none in memory."""

    __slots__ = ("_disk", "_name_dirty", "count", "handle", "handles", "stale")

    def __init__(self, path: str, disk: Disk, handles: Handles) -> None:
        self._disk = disk
        self.handle = Handle(path)
        self.handles = handles
        self.count = 0
        self.stale = False  # what the file should hold is to be found out from the log
        self._name_dirty = False  # the file is new, and its folder not yet fsynced

    def load(self, base_offset: int, size_bytes: int) -> None:
        """Take the file as it is if it can be true of a segment of that size; otherwise it is stale."""
        self.count, self.stale = 0, False
        data = read_file(self._disk, self.handle.path)
        if not data:
            return
        self.stale = len(data) % ENTRY.size != 0
        last = base_offset - 1
        for version, _, first_offset, last_offset, stable_offset in ENTRY.iter_unpack(
            data[: len(data) // ENTRY.size * ENTRY.size]
        ):
            if (
                version != VERSION
                or not (first_offset < last_offset > last)
                or stable_offset > last_offset + 1
            ):
                self.stale = True
                break
            last = last_offset
        if not size_bytes:
            self.stale = True
        self.count = 0 if self.stale else len(data) // ENTRY.size

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker is the newest of all."""
        self._name_dirty |= not self.count
        fd = self.handles.fd(self.handle) if self.count else self.handles.open_or_create(self.handle)
        write_all(self._disk, fd, [ENTRY.pack(VERSION, *aborted)], self.count * ENTRY.size)
        self.count += 1

    def since(self, offset: int) -> Iterator[AbortedTransaction]:
        """Those that ended at or after `offset`, in the order of their markers."""
        low, high = 0, self.count
        while high - low > RUN_ENTRIES:
            middle = (low + high) // 2
            (entry,) = self._read(middle, 1)
            if entry.last_offset < offset:
                low = middle + 1
            else:
                high = middle
        while low < self.count:
            entries = self._read(low, RUN_ENTRIES)
            yield from (entry for entry in entries if entry.last_offset >= offset)
            low += len(entries)

    def _read(self, number: int, count: int) -> list[AbortedTransaction]:
        count = min(count, self.count - number)
        data = self._disk.pread(self.handles.fd(self.handle), count * ENTRY.size, number * ENTRY.size)
        if len(data) != count * ENTRY.size:
            raise OSError(f"{self.handle.path} has lost entries after {number}")
        return [AbortedTransaction(*entry[1:]) for entry in ENTRY.iter_unpack(data)]

    def truncate(self, offset: int) -> None:
        """Drop the transactions whose marker is at or after `offset`."""
        kept = []
        for entry in self.since(0):
            if entry.last_offset >= offset:
                break
            kept.append(entry)
        if len(kept) < self.count:
            self.reset()
            if kept:
                write_atomically(
                    self._disk, self.handle.path, b"".join(ENTRY.pack(VERSION, *entry) for entry in kept)
                )
                self.count = len(kept)

    def reset(self) -> None:
        """Forget every entry, in memory and on disk."""
        self.handles.close(self.handle)
        if self._disk.exists(self.handle.path):
            self._disk.unlink(self.handle.path)
        self.count = 0

    def fsync(self) -> None:
        """Make the entries survive a crash; for a thread."""
        if self.count:
            fsync_file(self._disk, self.handle.path)
            if self._name_dirty:
                self._disk.fsync_dir(os.path.dirname(self.handle.path))
                self._name_dirty = False

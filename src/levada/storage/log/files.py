"""The files of a log by their names; completes or reverts what a crash interrupted.

Temporary, `.deleted` and `.cleaned` files are deleted. A `.swap` segment is the complete replacement of the segments
that start from its first to its last offset: its swap is completed. A file with such a name that compaction cannot have
left is damage: completing its swap would delete segments that it does not replace.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple, Self

from levada.storage.disk import Disk
from levada.storage.file_names import (
    DELETED_SUFFIX,
    EPOCHS_FILE,
    INDEX_SUFFIX,
    INTERRUPTED_SUFFIXES,
    LOG_SUFFIX,
    METADATA_FILE,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_CHECKSUMS_FILE,
    TXN_INDEX_SUFFIX,
    file_name,
    parse_file_name,
)
from levada.storage.log.scan import OffsetRule, valid_batches
from levada.storage.log.segment import CorruptBatchError, read_batches


class Swap(NamedTuple):
    """A cleaned segment that replaces those that start from `base_offset` up to `end_offset`."""

    base_offset: int
    end_offset: int
    replaced: list[int]  # the base offsets of the other segments that are still there


class LogFiles:
    """The names in the directory of a log."""

    __slots__ = ("_names", "_unneeded", "bases", "deleted", "directory", "irregular", "orphans", "snapshots", "swaps")

    def __init__(self, directory: str, names: list[str], irregular: list[str]) -> None:
        self.directory = directory
        self._names = set(names)
        self.irregular = sorted(
            name
            for name in irregular
            if parse_file_name(name) or name in (EPOCHS_FILE, METADATA_FILE, TXN_CHECKSUMS_FILE)
        )
        parsed = sorted(found for name in names if (found := parse_file_name(name)))
        by_suffix = {suffix: [name.offset for name in parsed if name.suffix == suffix] for _, suffix in parsed}
        self.bases = by_suffix.get(LOG_SUFFIX, [])  # of the segments
        self.snapshots = by_suffix.get(SNAPSHOT_SUFFIX, [])
        swaps = by_suffix.get(LOG_SUFFIX + SWAP_SUFFIX, [])
        self.swaps = [base for base in swaps if file_name(base, LOG_SUFFIX + SWAP_SUFFIX) not in self.irregular]
        self.deleted = by_suffix.get(LOG_SUFFIX + DELETED_SUFFIX, [])
        known = {*self.bases, *swaps}
        indexes = [name for name in parsed if name.suffix in SEGMENT_SUFFIXES and name.offset not in known]
        # Indexes without their log mean that the log is missing, unless the segment was being deleted: its
        # `.log.deleted` is unlinked after its indexes, and a power failure may restore them all.
        self.orphans = sorted({name.offset for name in indexes}.difference(self.deleted))
        self._unneeded = [file_name(*name) for name in indexes]
        self._unneeded += sorted(name for name in names if name.endswith(INTERRUPTED_SUFFIXES))

    @classmethod
    def read(cls, disk: Disk, directory: str) -> Self:
        """List the directory of a log."""
        return cls(directory, disk.listdir(directory), disk.irregular_files(directory))

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def verified_swap(self, disk: Disk, base: int, compacted: bool) -> Swap:
        """Return an interrupted swap; raise CorruptBatchError if compaction did not leave the file of its segment.

        A swap renames all files of the new segment before the first one of the old segments.
        """
        path = self.path(file_name(base, LOG_SUFFIX + SWAP_SUFFIX))
        if not compacted:
            raise CorruptBatchError(path, 0, "it replaces segments, but the log was never compacted")
        end_offset, size = _end_offset(disk, path, base)
        if not size:
            raise CorruptBatchError(path, 0, "it replaces segments, but it is empty")
        if end_offset not in self.bases:
            raise CorruptBatchError(path, size, f"it ends at offset {end_offset}, where no segment starts")
        indexes = [file_name(base, suffix + SWAP_SUFFIX) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        if base in self.bases and (missing := [name for name in indexes if name not in self._names]):
            raise CorruptBatchError(path, 0, f"it replaces segments, but {missing[0]} is missing")
        return Swap(base, end_offset, [one for one in self.bases if base < one < end_offset])

    def apply(self, swaps: Iterable[Swap]) -> None:
        """Take the segments as they are after these swaps."""
        for swap in swaps:
            self.bases = sorted({swap.base_offset, *self.bases}.difference(swap.replaced))

    def complete(self, disk: Disk, swap: Swap) -> None:
        """Complete a swap; the caller fsyncs the directory. A segment loses its indexes before its log."""
        for replaced in swap.replaced:
            self._unlink(disk, replaced, reversed(SEGMENT_SUFFIXES))
        self._unlink(disk, swap.base_offset, (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        aborted = self.path(file_name(swap.base_offset, TXN_INDEX_SUFFIX))
        if disk.exists(aborted + SWAP_SUFFIX):  # otherwise it is renamed already
            disk.rename(aborted + SWAP_SUFFIX, aborted)
        path = self.path(file_name(swap.base_offset, LOG_SUFFIX))
        disk.rename(path + SWAP_SUFFIX, path)

    def delete_unneeded(self, disk: Disk) -> None:
        """Delete what a crash has left: a power failure after the next clean shutdown must not restore it."""
        for path in map(self.path, self._unneeded):
            if disk.exists(path):  # storing the leader epochs has used their temporary file
                disk.unlink(path)
        if self._unneeded:
            disk.fsync_dir(self.directory)

    def _unlink(self, disk: Disk, base_offset: int, suffixes: Iterable[str]) -> None:
        for suffix in suffixes:
            path = self.path(file_name(base_offset, suffix))
            if disk.exists(path):
                disk.unlink(path)


def _end_offset(disk: Disk, path: str, base_offset: int) -> tuple[int, int]:
    """Return the offset after the last batch of a file, and its size."""
    fd = disk.open(path)
    try:
        end_offset, size = base_offset, disk.size(fd)
        batches = read_batches(disk, fd, path, 0, size, whole=True)
        for _, header, _ in valid_batches(batches, path, OffsetRule(base_offset, contiguous=False)):
            end_offset = header.last_offset + 1
        return end_offset, size
    finally:
        disk.close(fd)

"""Checks the files of a log completely and lists all damage; changes nothing.

The rules are those of opening a log (`damage`); in addition every batch is read, and every entry of the indexes.
"""

import errno
import os

from levada.storage.checkpoints import LeaderEpochFileCache, LogCheckpoint, TransactionIndexChecksums
from levada.storage.disk import FILE_ERRORS, Disk, OsDisk, open_regular
from levada.storage.file_names import EPOCHS_FILE, SWAP_SUFFIX, TXN_CHECKSUMS_FILE
from levada.storage.handles import FileHandleCache
from levada.storage.log.damage import Damage, file_damage, segment_damage, snapshot_damage
from levada.storage.log.files import LogFiles, Swap
from levada.storage.log.indexes import NO_ENTRIES
from levada.storage.log.scan import (
    InvalidBytes,
    Progress,
    SegmentScan,
    scan_segment,
    unreported,
    valid_and_invalid_batches,
)
from levada.storage.log.segment import CorruptBatchError, LogSegment

OPEN_FILES_MAX = 8
INTERVAL_BYTES = 1 << 30  # no index is built


class ReadOnlyDisk(OsDisk):
    """A disk that opens files for reading only."""

    __slots__ = ()

    def open(self, path: str, create: bool = False) -> int:
        return open_regular(path, os.O_RDONLY)


class CheckedLog:
    """The segments of a log as they are after interrupted swaps, and all damage in them."""

    __slots__ = (
        "_checkpoint",
        "_checksums",
        "_disk",
        "_progress",
        "damages",
        "directory",
        "end_offset",
        "files",
        "segments",
    )

    def __init__(self, disk: Disk, directory: str, checkpoint: LogCheckpoint, progress: Progress = unreported) -> None:
        self.directory = directory
        self._disk = disk
        self._checkpoint = checkpoint
        self._checksums = TransactionIndexChecksums(disk, directory)
        self._progress = progress
        self.damages: list[Damage] = []
        self.segments: list[LogSegment] = []
        self.end_offset = checkpoint.log_start_offset or 0

    def check(self) -> list[Damage]:
        """Read all files of the log; return the damage."""
        self.files = files = LogFiles.read(self._disk, self.directory)
        handles = FileHandleCache(self._disk, OPEN_FILES_MAX)
        try:
            epochs = self._epochs()
            self._load_checksums()
            self.damages += file_damage(files, self._checkpoint, epochs)
            self.segments = self._segments(handles)
            bases = [segment.base_offset for segment in self.segments]
            for segment, following in zip(self.segments, [*bases[1:], None], strict=bool(bases)):
                self._check_segment(segment, following)
            if bases:
                self.damages += snapshot_damage(files, self.end_offset, self._checkpoint)
        finally:
            handles.close_all()
        return self.damages

    def _epochs(self) -> list[tuple[int, int]] | None:
        if EPOCHS_FILE in self.files.irregular:
            return None
        cache = LeaderEpochFileCache(self._disk, self.directory)
        if cache.load():
            return cache.entries
        if cache.exists():
            problem = "it is corrupt; the next start rebuilds it"
            self.damages.append(Damage(self.files.path(EPOCHS_FILE), problem, in_index=True))
        return None

    def _load_checksums(self) -> None:
        if TXN_CHECKSUMS_FILE not in self.files.irregular and not self._checksums.load():
            problem = "it is corrupt; the next start rebuilds it and the transaction indexes"
            self.damages.append(Damage(self.files.path(TXN_CHECKSUMS_FILE), problem, in_index=True))

    def _segments(self, handles: FileHandleCache) -> list[LogSegment]:
        files = self.files
        swaps: list[Swap] = []
        try:
            swaps = files.verified_swaps(self._disk)
        except CorruptBatchError as error:
            self.damages.append(Damage(error.path, error.reason, error.position))
        swapped = {swap.base_offset for swap in swaps}
        replaced = {base for swap in swaps for base in files.bases if swap.base_offset < base < swap.end_offset}
        return [
            LogSegment(self.directory, base, self._disk, handles, 0, SWAP_SUFFIX if base in swapped else "")
            for base in sorted(swapped.union(files.bases) - replaced)
        ]

    def _check_segment(self, segment: LogSegment, following: int | None) -> None:
        try:
            segment.size = self._disk.size(segment.fd())
        except OSError as error:
            if error.errno not in FILE_ERRORS:
                raise
            if error.errno != errno.EINVAL:  # other irregular files are listed already
                self.damages.append(Damage(segment.path, error.strerror or str(error)))
            return
        contiguous = following is None
        scan = scan_segment(segment, INTERVAL_BYTES, contiguous=contiguous, progress=self._progress)
        self.end_offset = scan.end_offset
        found = list(segment_damage(segment, scan.end_offset, scan, following, self._checkpoint))
        if found and scan.reason:
            end_offset = following if following is not None else self._checkpoint.recovery_point or 0
            found = [damage for damage in found if damage.position is None]
            for piece in valid_and_invalid_batches(segment, end_offset, contiguous):
                if isinstance(piece, InvalidBytes):
                    found.append(Damage(segment.path, piece.reason, piece.position, piece.offsets))
                else:
                    self.end_offset = piece[1].last_offset + 1
        elif following is not None or self._checkpoint.clean:
            self._check_indexes(segment, scan)
        self.damages += found

    def _check_indexes(self, segment: LogSegment, scan: SegmentScan) -> None:
        """Check the indexes that exist; a missing one is rebuilt like a wrong one."""
        wrong = []
        if self._is_regular(segment.offset_index.handle.path) and not _offset_index_matches(segment):
            wrong.append(segment.offset_index.handle.path)
        if self._is_regular(segment.time_index.handle.path) and not _time_index_matches(segment, scan):
            wrong.append(segment.time_index.handle.path)
        aborted = segment.txn_index.handle.path
        if os.path.basename(aborted) not in self.files.irregular and not self._txn_index_matches(segment):
            wrong.append(aborted)
        problem = "it does not match its segment; the next start rebuilds it"
        self.damages += (Damage(path, problem, in_index=True) for path in wrong)

    def _txn_index_matches(self, segment: LogSegment) -> bool:
        checksum = self._checksums.entries.get(segment.base_offset, NO_ENTRIES)
        segment.txn_index.load(segment.base_offset, segment.size, checksum)
        return not segment.txn_index.stale

    def _is_regular(self, path: str) -> bool:
        return os.path.basename(path) not in self.files.irregular and self._disk.exists(path)


def _offset_index_matches(segment: LogSegment) -> bool:
    index = segment.offset_index
    if not index.load(segment.size):
        return False
    entries = [index.entry(number) for number in range(len(index))]
    return all(entry is not None and segment.is_valid_entry(*entry) for entry in entries)


def _time_index_matches(segment: LogSegment, scan: SegmentScan) -> bool:
    """Whether the last entry has the greatest timestamp of the segment."""
    index = segment.time_index
    if not index.load(segment.size):
        return False
    expected = (scan.max_timestamp, scan.max_timestamp_offset - scan.base_offset)
    return index.last() == (expected if segment.size else None)

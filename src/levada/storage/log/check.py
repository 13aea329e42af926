"""Checks the files of a log completely and lists all damage; changes nothing.

The rules are those of opening a log (`damage`); in addition every batch is read, and every entry of the indexes.
"""

import os
from collections.abc import Iterator

from levada.storage.checkpoints import LeaderEpochFileCache, LogCheckpoint, TransactionIndexChecksums
from levada.storage.disk import FILE_ERRORS, Disk, OsDisk, open_regular
from levada.storage.file_names import EPOCHS_FILE, SWAP_SUFFIX, TXN_CHECKSUMS_FILE
from levada.storage.handles import FileHandleCache
from levada.storage.log.damage import Damage, file_damage, segment_damage, snapshot_damage
from levada.storage.log.files import LogFiles, Swap
from levada.storage.log.indexes import NO_ENTRIES
from levada.storage.log.scan import (
    InvalidBytes,
    OffsetRule,
    Progress,
    SegmentScan,
    scan_segment,
    unreported,
    valid_and_invalid_batches,
)
from levada.storage.log.segment import CorruptBatchError, LogSegment, StoredBatch

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
        "_compacted",
        "_disk",
        "_progress",
        "damages",
        "directory",
        "end_offset",
        "files",
        "rules",
        "segments",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        checkpoint: LogCheckpoint,
        *,
        compacted: bool,
        progress: Progress = unreported,
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._checkpoint = checkpoint
        self._compacted = compacted  # possibly: offsets are missing in closed segments
        self._checksums = TransactionIndexChecksums(disk, directory)
        self._progress = progress
        self.damages: list[Damage] = []
        self.segments: list[LogSegment] = []
        self.rules: dict[int, OffsetRule] = {}  # by the base offsets of the segments
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
            if error.errno not in FILE_ERRORS or os.path.basename(segment.path) not in self.files.irregular:
                raise
            return  # it is listed already
        contiguous = self._is_contiguous(following)
        scan = scan_segment(
            segment, INTERVAL_BYTES, contiguous=contiguous, following=following, progress=self._progress
        )
        self.end_offset = scan.end_offset
        self._set_rule(segment, scan, following)
        found = list(segment_damage(segment, scan.end_offset, scan, following, self._checkpoint))
        if found and scan.reason:
            found = [damage for damage in found if damage.position is None]
            found += self._invalid_pieces(segment, following)
        elif following is not None or self._checkpoint.clean:
            self._check_indexes(segment, scan)
        self.damages += found

    def _set_rule(self, segment: LogSegment, scan: SegmentScan, following: int | None) -> None:
        """Set which offsets valid batches may have; after a clean shutdown the last segment has a known end, too."""
        point, end = self._checkpoint.recovery_point, following
        if following is None and self._checkpoint.clean and point is not None and scan.end_offset < point:
            end = point
        self.rules[segment.base_offset] = OffsetRule(segment.base_offset, self._is_contiguous(following), end)

    def _is_contiguous(self, following: int | None) -> bool:
        """Whether no offsets may be missing in a segment; in the last one they may be if a leader has compacted it."""
        return not self._compacted or (following is None and not self._checkpoint.may_have_gaps)

    def _invalid_pieces(self, segment: LogSegment, following: int | None) -> Iterator[Damage]:
        reached = segment.base_offset
        for piece in self.pieces(segment):
            if isinstance(piece, InvalidBytes):
                position, reason, reached = piece.position, piece.reason, piece.offsets.stop
                yield Damage(segment.path, reason, position, piece.offsets, in_batch=piece.has_batch)
            else:
                self.end_offset = reached = piece[1].last_offset + 1
        if following is not None and reached < following:
            problem = f"it ends at offset {reached}, but the next segment starts at {following}"
            yield Damage(segment.path, problem, lost=range(reached, following))

    def pieces(self, segment: LogSegment) -> Iterator[StoredBatch | InvalidBytes]:
        """Yield the valid batches of a checked segment, and the invalid bytes between them."""
        rule = self.rules[segment.base_offset]
        end_offset = rule.end if rule.end is not None else self._checkpoint.recovery_point or 0
        return valid_and_invalid_batches(segment, rule, end_offset)

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

"""Opens a log and recovers it after an unclean shutdown.

Recovery first checks and then changes: it compares the files with each other and with the checkpoints, and raises
DamagedLogError before it has deleted anything. After a clean shutdown segments are accepted if their indexes and last
batches match the files. After a crash every batch from the recovery point on is read with its CRC, and the log is
truncated at the first invalid one: nothing beyond was durable. What was fsynced and is invalid is damage, because only
a person can decide which data to give up. Recovery uses handles of its own, so that several logs can be opened in
threads.
"""

from dataclasses import dataclass

from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.checkpoints import (
    LeaderEpochFileCache,
    LogCheckpoint,
    ProducerSnapshotFiles,
    TransactionIndexChecksums,
)
from levada.storage.disk import Disk, errors_of_one_log
from levada.storage.file_names import EPOCHS_FILE
from levada.storage.handles import FileHandleCache
from levada.storage.log.damage import DamagedLogError, file_damage, segment_damage, snapshot_damage
from levada.storage.log.deletion import delete_last_segments, truncate_segment
from levada.storage.log.files import LogFiles
from levada.storage.log.indexes import NO_ENTRIES
from levada.storage.log.scan import Progress, SegmentScan, scan_segment, unreported
from levada.storage.log.segment import SCAN_BLOCK_BYTES, CorruptBatchError, LogSegment
from levada.wire.batches import crc_is_valid

OPEN_FILES_MAX = 8

_log = EventLog("levada.storage")


@dataclass(slots=True)
class RecoveredLog:
    """The state of an opened log: at least one segment, the last of which is active."""

    segments: list[LogSegment]
    end_offset: int
    leader_epochs: LeaderEpochFileCache
    producer_snapshots: ProducerSnapshotFiles
    txn_checksums: TransactionIndexChecksums


@dataclass(slots=True)
class CheckedSegment:
    """A segment, the offset after its valid batches, and its scan unless indexes and last batch were enough."""

    segment: LogSegment
    end_offset: int
    scan: SegmentScan | None
    durable: bool  # all of it was fsynced


class Recovery:
    """Opens one log."""

    __slots__ = (
        "_checkpoint",
        "_checksums",
        "_config",
        "_directory",
        "_disk",
        "_epochs",
        "_handles",
        "_now_ms",
        "_progress",
        "_snapshots",
    )

    def __init__(
        self,
        directory: str,
        config: TopicConfig,
        disk: Disk,
        now_ms: int,
        checkpoint: LogCheckpoint,
        progress: Progress = unreported,
    ) -> None:
        self._directory = directory
        self._config = config
        self._disk = disk
        self._now_ms = now_ms
        self._checkpoint = checkpoint
        self._progress = progress
        self._handles = FileHandleCache(disk, OPEN_FILES_MAX)
        self._epochs = LeaderEpochFileCache(disk, directory)
        self._snapshots = ProducerSnapshotFiles(disk, directory)
        self._checksums = TransactionIndexChecksums(disk, directory)

    def run(self) -> RecoveredLog:
        """Check and open the log; raise KAFKA_STORAGE_ERROR if it is damaged, OSError if its device fails."""
        try:
            with errors_of_one_log(self._directory):
                return self._run()
        except CorruptBatchError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.detail) from error
        finally:
            self._handles.close_all()

    def _run(self) -> RecoveredLog:
        self._disk.mkdir(self._directory)
        files = self._complete_swaps()
        epochs_known = EPOCHS_FILE not in files.irregular and self._epochs.load()
        for damage in file_damage(files, self._checkpoint, self._epochs.entries if epochs_known else None):
            raise DamagedLogError(damage)
        checked, dropped = self._check(files.bases)
        for damage in snapshot_damage(files, checked[-1].end_offset, self._checkpoint) if checked else ():
            raise DamagedLogError(damage)
        # From here on files change.
        stored_epochs = list(self._epochs.entries)
        if files.bases and stored_epochs and files.bases[0] > stored_epochs[0][1]:
            self._epochs.truncate_from_start(files.bases[0])
            self._epochs.store()  # before the last trace of the deleted segments is gone
        files.delete_unneeded(self._disk)
        if not self._checkpoint.clean:  # a later power failure must not revert the renames of a killed process
            self._disk.fsync_dir(self._directory)
        segments, end_offset = self._recover(checked, dropped)
        self._load_txn_indexes(checked)
        if not epochs_known:
            self._rebuild_epochs(segments)
        self._epochs.truncate_from_end(end_offset)
        if self._epochs.entries != stored_epochs:
            self._epochs.store()
        if any(offset > end_offset for offset in files.snapshots):
            self._snapshots.delete_after(end_offset)
        return RecoveredLog(segments, end_offset, self._epochs, self._snapshots, self._checksums)

    def _complete_swaps(self) -> LogFiles:
        """Complete the swaps of compaction that a crash interrupted; return the files of the log."""
        files = LogFiles.read(self._disk, self._directory)
        swaps = files.verified_swaps(self._disk)
        for swap in swaps:
            files.complete(self._disk, swap)
        if swaps:
            self._disk.fsync_dir(self._directory)
            files = LogFiles.read(self._disk, self._directory)
        return files

    def _check(self, bases: list[int]) -> tuple[list[CheckedSegment], list[LogSegment]]:
        """Return the segments up to the first that a crash has truncated, and those after it.

        Raises DamagedLogError.
        """
        segments = [LogSegment(self._directory, base, self._disk, self._handles, self._now_ms) for base in bases]
        checked: list[CheckedSegment] = []
        for number, segment in enumerate(segments):
            following = bases[number + 1] if number + 1 < len(bases) else None
            interval = self._config.index_interval_bytes
            one = check_segment(segment, following, self._checkpoint, interval, self._progress)
            for damage in segment_damage(
                segment, one.end_offset, one.scan, following, self._checkpoint, self._progress
            ):
                raise DamagedLogError(damage)
            checked.append(one)
            if following is not None and one.end_offset != following:
                return checked, segments[number + 1 :]
        return checked, []

    def _recover(self, checked: list[CheckedSegment], dropped: list[LogSegment]) -> tuple[list[LogSegment], int]:
        """Truncate what a crash has left incomplete and rebuild indexes; return the segments and the end offset."""
        if dropped:
            offset = checked[-1].end_offset
            _log.warning("segments after a truncation deleted", directory=self._directory, offset=offset)
            delete_last_segments(dropped)
        for number, one in enumerate(checked):
            self._recover_segment(one)
            if one.scan is not None and number + 1 < len(checked):
                one.segment.seal()
        if checked:
            return [one.segment for one in checked], checked[-1].end_offset
        start_offset = self._checkpoint.log_start_offset or 0
        segment = LogSegment(self._directory, start_offset, self._disk, self._handles, self._now_ms)
        self._handles.open(segment.handle, create=True)
        return [segment], start_offset

    def _recover_segment(self, checked: CheckedSegment) -> None:
        segment, scan = checked.segment, checked.scan
        if scan is not None:
            scan.rebuild_indexes(segment)
            for epoch, start_offset in scan.epochs:
                self._epochs.assign(epoch, start_offset)
            if scan.valid_bytes < segment.size:
                lost = segment.size - scan.valid_bytes
                at, reason = scan.valid_bytes, scan.reason
                _log.warning("invalid tail truncated", file=segment.path, at=at, lost=lost, reason=reason)
                truncate_segment(segment, scan.valid_bytes)

    def _load_txn_indexes(self, checked: list[CheckedSegment]) -> None:
        """Load the transaction indexes of durable segments; the others are rebuilt from the log."""
        checksums_known = self._checksums.load()
        for one in checked:
            index, base_offset = one.segment.txn_index, one.segment.base_offset
            if one.scan is not None and not one.durable:
                index.reset()
                index.stale = one.scan.has_control_batches
                continue
            index.load(base_offset, one.segment.size, self._checksums.entries.get(base_offset, NO_ENTRIES))
            index.stale |= not checksums_known
            if index.stale:
                _log.warning("transaction index is wrong; rebuilding it", file=index.handle.path)

    def _rebuild_epochs(self, segments: list[LogSegment]) -> None:
        """Read the leader epochs from the batches."""
        self._epochs.entries.clear()
        for segment in segments:
            for _, header, _ in segment.batches():
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)


def check_segment(
    segment: LogSegment, following: int | None, checkpoint: LogCheckpoint, interval: int, progress: Progress
) -> CheckedSegment:
    """Find out where the valid batches of a segment end: by its indexes where it is durable, otherwise by a scan."""
    segment.size = segment.disk.size(segment.fd())
    durable = checkpoint.clean or (following is not None and following <= (checkpoint.recovery_point or 0))
    verified = verified_end_offset(segment, interval) if durable else None
    if verified is not None:
        return CheckedSegment(segment, verified, None, durable)
    contiguous = following is None and not checkpoint.may_have_gaps
    scan = scan_segment(segment, interval, contiguous=contiguous, following=following, progress=progress)
    return CheckedSegment(segment, scan.end_offset, scan, durable)


def verified_end_offset(segment: LogSegment, interval: int) -> int | None:
    """Return the offset after the last batch if that batch and the indexes match the file; None otherwise."""
    if not (segment.offset_index.load(segment.size) and segment.time_index.load(segment.size)):
        return None
    if not segment.size:
        return None if len(segment.offset_index) or len(segment.time_index) else segment.base_offset
    last_entry, last_time = segment.offset_index.last() or (-1, 0), segment.time_index.last()
    if last_time is None or not segment.is_valid_entry(*last_entry):
        return None
    near = segment.offset_index.floor(0, last_time[1])
    if near is not None and not segment.is_valid_entry(*near[1]):
        return None  # a search would rebuild the index
    header, batch = None, memoryview(b"")
    try:
        for position, header, view in segment.batches(last_entry[1], whole=True):
            batch = view
            if position - last_entry[1] > 2 * max(interval, SCAN_BLOCK_BYTES):
                return None  # entries are missing
            if header.max_timestamp > last_time[0]:
                return None
    except CorruptBatchError:
        return None
    if header is None or not crc_is_valid(batch) or not segment.is_valid_time_entry(*last_time, interval):
        return None
    segment.max_timestamp, segment.max_timestamp_offset = last_time[0], segment.base_offset + last_time[1]
    return header.last_offset + 1

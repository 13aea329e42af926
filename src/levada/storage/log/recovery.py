"""Opens a log and recovers it after an unclean shutdown.

After a clean shutdown segments are accepted if their indexes and last batches match the files. After a crash every
batch from the recovery point on is read with its CRC, and the log is truncated at the first invalid one: nothing
beyond was durable. Segments below the recovery point were fsynced; if one of them is corrupt the log does not open,
because only a person can decide which data to give up. Recovery uses handles of its own, so that several logs can be
opened in threads.
"""

import os
from dataclasses import dataclass

from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.checkpoints import LeaderEpochFileCache, ProducerSnapshotFiles
from levada.storage.disk import Disk
from levada.storage.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    INTERRUPTED_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileName,
    file_name,
    parse_file_name,
)
from levada.storage.handles import FileHandleCache
from levada.storage.log.deletion import delete_last_segments, truncate_segment
from levada.storage.log.segment import (
    RELATIVE_OFFSET_MAX,
    SCAN_BLOCK_BYTES,
    CorruptBatchError,
    LogSegment,
    read_batches,
)
from levada.wire.batches import BatchHeader, crc_is_valid

OPEN_FILES_MAX = 8

_log = EventLog("levada.storage")


@dataclass(slots=True)
class RecoveredLog:
    """The state of an opened log: at least one segment, the last of which is active."""

    segments: list[LogSegment]
    end_offset: int
    leader_epochs: LeaderEpochFileCache
    producer_snapshots: ProducerSnapshotFiles


class Recovery:
    """Opens one log."""

    __slots__ = ("_config", "_directory", "_disk", "_epochs", "_handles", "_now_ms", "_snapshots")

    def __init__(self, directory: str, config: TopicConfig, disk: Disk, now_ms: int) -> None:
        self._directory = directory
        self._config = config
        self._disk = disk
        self._now_ms = now_ms
        self._handles = FileHandleCache(disk, OPEN_FILES_MAX)
        self._epochs = LeaderEpochFileCache(disk, directory)
        self._snapshots = ProducerSnapshotFiles(disk, directory)

    def run(self, clean: bool, recovery_point: int, log_start_offset: int) -> RecoveredLog:
        try:
            return self._run(clean, recovery_point, log_start_offset)
        finally:
            self._handles.close_all()

    def _run(self, clean: bool, recovery_point: int, log_start_offset: int) -> RecoveredLog:
        self._disk.mkdir(self._directory)
        files = complete_interrupted_operations(self._disk, self._directory, clean)
        if not clean:  # a later power failure must not revert the renames of a killed process
            self._disk.fsync_dir(self._directory)
        segments = [self._segment(name.offset) for name in files if name.suffix == LOG_SUFFIX]
        if not segments and recovery_point > log_start_offset:
            raise _missing_segments(self._directory, log_start_offset, recovery_point)
        epochs_known = self._epochs.load()
        stored_epochs = list(self._epochs.entries)
        end_offset = self._check(segments, clean, recovery_point)
        if not segments or end_offset < log_start_offset:
            delete_last_segments(segments)
            end_offset = log_start_offset
            segments = [self._segment(end_offset)]
            self._handles.open(segments[0].handle, create=True)
        if not epochs_known:
            self._rebuild_epochs(segments)
        self._epochs.truncate_from_end(end_offset)
        if self._epochs.entries != stored_epochs:
            self._epochs.store()
        if any(name.suffix == SNAPSHOT_SUFFIX and name.offset > end_offset for name in files):
            self._snapshots.delete_after(end_offset)
        return RecoveredLog(segments, end_offset, self._epochs, self._snapshots)

    def _segment(self, base_offset: int) -> LogSegment:
        return LogSegment(self._directory, base_offset, self._disk, self._handles, self._now_ms)

    def _check(self, segments: list[LogSegment], clean: bool, recovery_point: int) -> int:
        """Check every segment and delete those after a truncation; return the log end offset."""
        end_offset = 0
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            segment.size = self._disk.size(segment.fd())
            if following is not None and (clean or following <= recovery_point):
                self._accept(segment)
                continue
            verified = _verified_end_offset(segment, self._config.index_interval_bytes) if clean else None
            if verified is None:
                end_offset = self._recover_segment(segment)
            else:
                end_offset = verified
                segment.txn_index.load(segment.base_offset, segment.size)
            if following is not None and end_offset != following:
                _log.warning("segments after a truncation deleted", directory=self._directory, offset=end_offset)
                delete_last_segments(segments[number + 1 :])
                del segments[number + 1 :]
                break
            if following is not None:
                segment.seal()
        return end_offset

    def _accept(self, segment: LogSegment) -> None:
        """Accept a durable segment; rebuild its indexes if they do not match it."""
        interval = self._config.index_interval_bytes
        try:
            if _verified_end_offset(segment, interval) is None:
                segment.rebuild_indexes(interval)
                segment.seal()
            segment.txn_index.load(segment.base_offset, segment.size)
        except CorruptBatchError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.detail) from error

    def _recover_segment(self, segment: LogSegment) -> int:
        """Check the CRC of every batch, index it, truncate at the first invalid one; return the end offset."""
        segment.reset_indexes()
        segment.txn_index.reset()
        expected, valid_bytes, indexed, reason = segment.base_offset, 0, 0, ""
        try:
            for position, header, view in segment.batches(whole=True):
                reason = _invalid_reason(header, view, expected, segment.base_offset)
                if reason:
                    break
                segment.update_max_timestamp(header.max_timestamp, header.last_offset)
                if position - indexed > self._config.index_interval_bytes:
                    segment.add_entry(header.last_offset, position)
                    indexed = position
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
                segment.txn_index.stale |= header.is_control
                expected, valid_bytes = header.last_offset + 1, position + header.size
        except CorruptBatchError as error:
            reason = error.reason
        if valid_bytes < segment.size:
            lost = segment.size - valid_bytes
            _log.warning("invalid tail truncated", file=segment.path, at=valid_bytes, lost=lost, reason=reason)
            truncate_segment(segment, valid_bytes)
        return expected

    def _rebuild_epochs(self, segments: list[LogSegment]) -> None:
        """Read the leader epochs from the batches."""
        self._epochs.entries.clear()
        for segment in segments:
            for _, header, _ in segment.batches():
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)


def _missing_segments(directory: str, log_start_offset: int, recovery_point: int) -> KafkaError:
    """An empty log instead of a missing one would hide the loss and assign its offsets again."""
    lost = f"{log_start_offset} to {recovery_point - 1}"
    detail = f"{directory} has no {LOG_SUFFIX} file, but offsets {lost} were on disk: restore it, or delete the topic"
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail)


def _invalid_reason(header: BatchHeader, batch: memoryview, expected: int, base_offset: int) -> str:
    """Return why a batch is invalid at its place in the log; empty if it is valid."""
    if header.base_offset < expected:
        return f"offset {header.base_offset} where at least {expected} is expected"
    if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return f"offset {header.last_offset} is too far from the base offset of the segment"
    return "" if crc_is_valid(batch) else "its CRC differs"


def _verified_end_offset(segment: LogSegment, interval: int) -> int | None:
    """Return the offset after the last batch if that batch and the indexes match the file; None otherwise."""
    if not (segment.offset_index.load() and segment.time_index.load()):
        return None
    if not segment.size:
        return None if len(segment.offset_index) or len(segment.time_index) else segment.base_offset
    last_entry, last_time = segment.offset_index.last() or (-1, 0), segment.time_index.last()
    if last_time is None or not segment.is_valid_entry(*last_entry):
        return None
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


def complete_interrupted_operations(disk: Disk, directory: str, clean: bool) -> list[FileName]:
    """Complete or revert what a crash interrupted; return the remaining files named by an offset, in order.

    Temporary, `.deleted` and `.cleaned` files are deleted. A `.swap` segment is the complete replacement of the
    segments that start from its first to its last offset: its swap is completed. After a clean shutdown an index
    without its log means that the log was removed by hand, unless the segment was being deleted: its `.log.deleted`
    is unlinked after its indexes, and a power failure may restore them all.
    """
    names = disk.listdir(directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        _complete_swaps(disk, directory, names)
        names = disk.listdir(directory)
    kept = [name for name in names if not name.endswith(INTERRUPTED_SUFFIXES)]
    files = sorted(parsed for name in kept if (parsed := parse_file_name(name)))
    bases = {offset for offset, suffix in files if suffix == LOG_SUFFIX}
    orphans = {name for name in files if name.suffix in SEGMENT_SUFFIXES and name.offset not in bases}
    missing = [one for one in orphans if file_name(one.offset, LOG_SUFFIX + DELETED_SUFFIX) not in names]
    if clean and missing:
        path = os.path.join(directory, file_name(min(missing).offset, LOG_SUFFIX))
        detail = f"{path} is missing, but its indexes are there: restore it"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail)
    unneeded = [*(file_name(*one) for one in sorted(orphans)), *sorted(set(names).difference(kept))]
    for name in unneeded:
        disk.unlink(os.path.join(directory, name))
    if unneeded:  # a power failure after the next clean shutdown must not restore them
        disk.fsync_dir(directory)
    return [name for name in files if name not in orphans]


def _complete_swaps(disk: Disk, directory: str, names: list[str]) -> None:
    files = [parsed for name in names if (parsed := parse_file_name(name))]
    bases = [name.offset for name in files if name.suffix == LOG_SUFFIX]
    for base in sorted(name.offset for name in files if name.suffix == LOG_SUFFIX + SWAP_SUFFIX):
        path = os.path.join(directory, file_name(base, LOG_SUFFIX))
        last_offset = _last_offset(disk, path + SWAP_SUFFIX, base)
        for replaced in [offset for offset in bases if base < offset <= last_offset]:
            _unlink(disk, directory, replaced, SEGMENT_SUFFIXES)
        _unlink(disk, directory, base, (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        aborted = os.path.join(directory, file_name(base, TXN_INDEX_SUFFIX))
        if disk.exists(aborted + SWAP_SUFFIX):  # otherwise it is renamed already
            disk.rename(aborted + SWAP_SUFFIX, aborted)
        disk.rename(path + SWAP_SUFFIX, path)
    disk.fsync_dir(directory)


def _last_offset(disk: Disk, path: str, base_offset: int) -> int:
    fd = disk.open(path)
    try:
        last_offset = base_offset
        for _, header, _ in read_batches(disk, fd, path, 0, disk.size(fd)):
            last_offset = header.last_offset
        return last_offset
    finally:
        disk.close(fd)


def _unlink(disk: Disk, directory: str, base_offset: int, suffixes: tuple[str, ...]) -> None:
    for suffix in suffixes:
        path = os.path.join(directory, file_name(base_offset, suffix))
        if disk.exists(path):
            disk.unlink(path)

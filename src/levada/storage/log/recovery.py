"""Opening a log: what is on disk is checked as far as its last shutdown asks for (R21).

After a clean shutdown the segments are taken as they are, once their indexes and last batches agree with the
files. After a crash everything from the recovery point on is read with its CRCs and cut at the first batch that
is not whole: what follows was never promised to survive. Closed segments below the recovery point were fsynced;
where one is broken the log refuses to open and says where, for only a person can decide what to give up.
Opening uses handles of its own, so that several logs may be opened in threads.
"""

import os
from dataclasses import dataclass

from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.disk import TEMPORARY_SUFFIX, Disk, write_all
from levada.storage.file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX
from levada.storage.handles import Handles
from levada.storage.log import leader_epochs, snapshots
from levada.storage.log.leader_epochs import Epochs
from levada.storage.log.leftovers import tidy
from levada.storage.log.segment import RELATIVE_OFFSET_MAX, SCAN_BLOCK_BYTES, BrokenBatchError, Segment
from levada.wire.batches import BatchHeader, crc_is_valid

HANDLES_WHILE_OPENING = 8

_log = EventLog("levada.storage")


@dataclass(slots=True)
class Recovered:
    """A log as it was found: at least one segment, the last of which takes appends."""

    segments: list[Segment]
    end_offset: int
    epochs: Epochs


class Recovery:
    """The opening of one log."""

    __slots__ = ("_config", "_directory", "_disk", "_handles", "_now_ms")

    def __init__(self, directory: str, config: TopicConfig, disk: Disk, now_ms: int) -> None:
        self._directory = directory
        self._config = config
        self._disk = disk
        self._now_ms = now_ms
        self._handles = Handles(disk, HANDLES_WHILE_OPENING)

    def run(self, clean: bool, recovery_point: int, log_start_offset: int) -> Recovered:
        try:
            return self._run(clean, recovery_point, log_start_offset)
        finally:
            self._handles.close_all()

    def _run(self, clean: bool, recovery_point: int, log_start_offset: int) -> Recovered:
        self._disk.mkdir(self._directory)
        files = tidy(self._disk, self._directory, clean)
        if not clean:  # a later power cut must not undo the names that a killed process changed
            self._disk.fsync_dir(self._directory)
        segments = [self._segment(name.offset) for name in files if name.suffix == LOG_SUFFIX]
        if not segments and recovery_point > log_start_offset:
            raise _gone(self._directory, log_start_offset, recovery_point)
        known_epochs = leader_epochs.load(self._disk, self._directory)
        epochs = list(known_epochs or ())
        end_offset = self._check(segments, epochs, clean, recovery_point)
        if not segments or end_offset < log_start_offset:
            drop_segments(segments)
            end_offset = log_start_offset
            segments = [self._segment(end_offset)]
            self._handles.open(segments[0].handle, create=True)
        if known_epochs is None:
            epochs = _epochs_of(segments)
        leader_epochs.cut_end(epochs, end_offset)
        if epochs != (known_epochs or []):
            leader_epochs.store(self._disk, self._directory, epochs)
        if any(name.suffix == SNAPSHOT_SUFFIX and name.offset > end_offset for name in files):
            snapshots.remove(self._disk, self._directory, above=end_offset)
        return Recovered(segments, end_offset, epochs)

    def _segment(self, base_offset: int) -> Segment:
        return Segment(self._directory, base_offset, self._disk, self._handles, self._now_ms)

    def _check(self, segments: list[Segment], epochs: Epochs, clean: bool, recovery_point: int) -> int:
        """Check every segment and drop those after a cut; the offset after the last batch."""
        end_offset = 0
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            segment.size = self._disk.size(segment.fd())
            if following is not None and (clean or following <= recovery_point):
                self._trust(segment)
                continue
            trusted_end = _agreed_end(segment, self._config.index_interval_bytes) if clean else None
            if trusted_end is None:
                end_offset = self._scan(segment, epochs)
            else:
                end_offset = trusted_end
                segment.txn_index.load(segment.base_offset, segment.size)
            if following is not None and end_offset != following:
                _log.warning("segments after a cut are dropped", directory=self._directory, offset=end_offset)
                drop_segments(segments[number + 1 :])
                del segments[number + 1 :]
                break
            if following is not None:
                segment.seal()
        return end_offset

    def _trust(self, segment: Segment) -> None:
        """Accept a closed segment, with its indexes made again where they disagree with it."""
        interval = self._config.index_interval_bytes
        try:
            if _agreed_end(segment, interval) is None:
                segment.rebuild_indexes(interval)
                segment.seal()
            segment.txn_index.load(segment.base_offset, segment.size)
        except BrokenBatchError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.detail) from error

    def _scan(self, segment: Segment, epochs: Epochs) -> int:
        """Read every batch with its CRC, index it, cut what is not whole; the offset after the last batch."""
        segment.forget_indexes()
        segment.txn_index.reset()
        expected, valid_bytes, indexed, reason = segment.base_offset, 0, 0, ""
        try:
            for position, header, view in segment.walk(whole=True):
                reason = _fault(header, view, expected, segment.base_offset)
                if reason:
                    break
                segment.note_timestamp(header.max_timestamp, header.last_offset)
                if position - indexed > self._config.index_interval_bytes:
                    segment.add_entry(header.last_offset, position)
                    indexed = position
                leader_epochs.assign(epochs, header.partition_leader_epoch, header.base_offset)
                segment.txn_index.stale |= header.is_control
                expected, valid_bytes = header.last_offset + 1, position + header.size
        except BrokenBatchError as error:
            reason = error.reason
        if valid_bytes < segment.size:
            lost = segment.size - valid_bytes
            _log.warning("a torn tail is cut", file=segment.path, at=valid_bytes, lost=lost, reason=reason)
            cut(segment, valid_bytes)
        return expected


def _gone(directory: str, log_start_offset: int, recovery_point: int) -> KafkaError:
    """An empty log in the place of one whose files were taken away would hide that, and give its offsets out again."""
    lost = f"{log_start_offset} to {recovery_point - 1}"
    detail = f"{directory} has no {LOG_SUFFIX} file, but offsets {lost} were on disk: restore it, or delete the topic"
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail)


def _fault(header: BatchHeader, batch: memoryview, expected: int, base_offset: int) -> str:
    """Why a batch cannot stand where it is; empty when it can."""
    if header.base_offset < expected:
        return f"offset {header.base_offset} where at least {expected} is due"
    if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return f"offset {header.last_offset} is too far from the segment's start"
    return "" if crc_is_valid(batch) else "its CRC differs"


def _agreed_end(segment: Segment, interval: int) -> int | None:
    """The offset after a segment's last batch, if its indexes and its last batch agree with the file."""
    if not (segment.index.load() and segment.time_index.load()):
        return None
    if not segment.size:
        return None if len(segment.index) or len(segment.time_index) else segment.base_offset
    last_entry, last_time = segment.index.last() or (-1, 0), segment.time_index.last()
    if last_time is None or not segment.entry_is_true(*last_entry):
        return None
    header, batch = None, memoryview(b"")
    try:
        for position, header, view in segment.walk(last_entry[1], whole=True):
            batch = view
            if position - last_entry[1] > 2 * max(interval, SCAN_BLOCK_BYTES):
                return None  # too long without an entry
            if header.max_timestamp > last_time[0]:
                return None
    except BrokenBatchError:
        return None
    if header is None or not crc_is_valid(batch) or not segment.time_entry_is_true(*last_time, interval):
        return None
    segment.max_timestamp, segment.max_timestamp_offset = last_time[0], segment.base_offset + last_time[1]
    return header.last_offset + 1


def _epochs_of(segments: list[Segment]) -> Epochs:
    """The leader epochs that the batches themselves tell."""
    epochs: Epochs = []
    for segment in segments:
        for _, header, _ in segment.walk():
            leader_epochs.assign(epochs, header.partition_leader_epoch, header.base_offset)
    return epochs


def drop_segments(segments: list[Segment]) -> None:
    """Remove segments from the end of a log, for good: later it will hold other batches at their offsets.

    The newest goes first, so that a crash in between leaves no hole.
    """
    for segment in reversed(segments):
        segment.remove()
        segment.unlink_removed()
    if segments:
        segments[0].disk.fsync_dir(os.path.dirname(segments[0].path))


def cut(segment: Segment, size: int) -> None:
    """Keep the first `size` bytes, in a new file: readers may have the old one mapped."""
    disk, path = segment.disk, segment.path
    source = segment.fd()
    target = disk.open(path + TEMPORARY_SUFFIX, create=True)
    try:
        position = 0
        while position < size:
            block = disk.pread(source, min(SCAN_BLOCK_BYTES, size - position), position)
            if not block:
                raise OSError(f"{path} ends at byte {position}, before byte {size}")
            position = write_all(disk, target, [block], position)
        disk.fsync(target)
    finally:
        disk.close(target)
    segment.handles.close(segment.handle)
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.fsync_dir(os.path.dirname(path))
    segment.size = size

"""The rules by which the files of a log agree with each other and with the checkpoints.

Opening a log raises the first contradiction as DamagedLogError, `levada log check` lists them all. Every closed
segment ends where the next one begins: compaction keeps the last batch of a segment, empty if necessary.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.storage.checkpoints import LogCheckpoint
from levada.storage.file_names import EPOCHS_FILE, LOG_SUFFIX, SNAPSHOT_SUFFIX, file_name
from levada.storage.log.files import LogFiles
from levada.storage.log.scan import OffsetRule, Progress, SegmentScan, find_following, read_valid_batch, unreported
from levada.storage.log.segment import LogSegment


class Damage(NamedTuple):
    """A contradiction between a file of a log and what is known about the log."""

    file: str
    problem: str
    position: int | None = None  # of the first invalid byte
    lost: range = range(0)  # offsets of records that cannot be read
    in_checkpoint: bool = False  # the records are there: an entry of a checkpoint is wrong
    in_index: bool = False  # the file can be rebuilt from the segments
    in_batch: bool = False  # a whole batch fits no offset; its records are lost

    def __str__(self) -> str:
        at = "" if self.position is None else f" at byte {self.position}"
        lost = f"; offsets {self.lost.start} to {self.lost.stop - 1} are lost" if self.lost else ""
        return f"{self.file}{at}: {self.problem}{lost}"


class DamagedLogError(KafkaError):
    """The log is damaged; it is opened again once its files are restored or repaired."""

    def __init__(self, damage: Damage) -> None:
        detail = f"{damage}; restore the file, or see: levada log check {os.path.dirname(os.path.dirname(damage.file))}"
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, detail)
        self.damage = damage


def file_damage(files: LogFiles, checkpoint: LogCheckpoint, epochs: list[tuple[int, int]] | None) -> Iterator[Damage]:
    """Yield irregular files, and segments whose files are missing as far as names, checkpoints and leader epochs tell.

    `epochs` is the content of the leader epoch checkpoint; None if that is missing or corrupt. It begins at the log
    start offset and is stored before retention deletes the files of segments.
    """
    for name in files.irregular:
        yield Damage(files.path(name), "it is not a regular file")
    point, start = checkpoint.recovery_point or 0, checkpoint.log_start_offset or 0
    if not files.bases:
        had_segments = bool(epochs or files.snapshots) and not checkpoint.power_lost
        if point > start or had_segments:
            problem, end = f"the log has no {LOG_SUFFIX} file", max(start, point, _snapshot_end(files, checkpoint))
            yield Damage(files.path(file_name(start, LOG_SUFFIX)), problem, lost=range(start, end))
        return
    for base in files.orphans:
        if checkpoint.clean or base < point or not checkpoint.power_lost:
            yield Damage(files.path(file_name(base, LOG_SUFFIX)), "it is missing, but its indexes are there")
    if checkpoint.clean and checkpoint.log_start_offset is not None:
        expected = start
    elif epochs:
        expected = max(start, epochs[0][1])
    elif epochs is None and not checkpoint.power_lost:
        expected = start  # a killed process leaves valid epochs, which would tell of segments that retention deleted
    else:
        return  # after an unclean shutdown the checkpoint may be older than the last deletion of segments
    first = files.bases[0]
    if first > expected and not any(base < first for base in files.deleted):
        path = files.path(file_name(expected, LOG_SUFFIX))
        why = f", and {EPOCHS_FILE} cannot be read" if epochs is None else ""
        problem = f"the log starts at offset {expected}, but its first segment at {first}{why}"
        yield Damage(path, problem, lost=range(expected, first))


def snapshot_damage(files: LogFiles, end_offset: int, checkpoint: LogCheckpoint) -> Iterator[Damage]:
    """Yield the newest producer snapshot if the log ends before it: the batches below it were written first."""
    snapshot = _snapshot_end(files, checkpoint)
    if end_offset < snapshot:
        problem = f"the log ends at offset {end_offset}, before this producer snapshot"
        yield Damage(files.path(file_name(snapshot, SNAPSHOT_SUFFIX)), problem, lost=range(end_offset, snapshot))


def _snapshot_end(files: LogFiles, checkpoint: LogCheckpoint) -> int:
    """Return the offset that the log has reached according to its producer snapshots.

    After a power failure they tell nothing, and after a clean shutdown the recovery point is the end.
    """
    return 0 if checkpoint.clean or checkpoint.power_lost else max(files.snapshots, default=0)


def segment_damage(
    segment: LogSegment,
    end_offset: int,
    scan: SegmentScan | None,
    following: int | None,
    checkpoint: LogCheckpoint,
    progress: Progress = unreported,
) -> Iterator[Damage]:
    """Yield what is wrong with a segment whose valid batches end before `end_offset`."""
    if following is None:
        yield from _last_segment_damage(segment, end_offset, scan, checkpoint, progress)
    elif damage := _closed_segment_damage(segment, end_offset, scan, following, checkpoint):
        yield damage


def _closed_segment_damage(
    segment: LogSegment, end_offset: int, scan: SegmentScan | None, following: int, checkpoint: LogCheckpoint
) -> Damage | None:
    """Return what is wrong with a closed segment.

    A power failure may cut off batches that were not fsynced; then recovery truncates the log there.
    """
    point = checkpoint.recovery_point or 0
    whole = checkpoint.clean or following <= point or not checkpoint.power_lost
    invalid = scan is not None and bool(scan.reason)
    if (end_offset == following and not invalid) or (not whole and end_offset >= point):
        return None
    position = scan.valid_bytes if scan is not None and invalid else None
    lost = range(end_offset, following if whole else point)
    if invalid and scan is not None:
        return Damage(segment.path, scan.reason, position, lost)
    if not segment.size:
        return Damage(segment.path, f"it is empty, but the next segment starts at offset {following}", None, lost)
    if end_offset > following:
        problem = f"it ends with offset {end_offset - 1}, but the next segment starts at {following}"
        return Damage(segment.path, problem)
    problem = f"it ends at offset {end_offset}, but the next segment starts at {following}"
    return Damage(segment.path, problem, None, lost)


def _last_segment_damage(
    segment: LogSegment, end_offset: int, scan: SegmentScan | None, checkpoint: LogCheckpoint, progress: Progress
) -> Iterator[Damage]:
    """Yield what is wrong with the last segment, and with the end of the log, which is that of its valid batches."""
    point, start = checkpoint.recovery_point, checkpoint.log_start_offset
    position = scan.valid_bytes if scan is not None and scan.reason else None
    why = f" ({scan.reason})" if scan is not None and scan.reason else ""
    if point is not None and end_offset < point:
        problem = f"the log ends at offset {end_offset}{why}, but it was fsynced up to {point}"
        yield Damage(segment.path, problem, position, range(end_offset, point))
    elif scan is not None and position is not None and not checkpoint.power_lost:
        if read_valid_batch(segment.disk, segment.fd(), position, segment.size) is not None:
            yield Damage(segment.path, scan.reason, position, range(end_offset, end_offset + 1))
        elif (found := _find_batch(segment, position, end_offset, progress)) is not None:
            problem = f"{scan.reason}, but valid batches follow at byte {found}"
            yield Damage(segment.path, problem, position, range(end_offset, end_offset + 1))
    if checkpoint.clean and point is not None and end_offset > point:
        problem = f"the log ends at offset {end_offset}, but it was closed at {point}"
        yield Damage(segment.path, problem, in_checkpoint=True)
    if start is not None and start > (end_offset if point is None else point):
        reach = f"ends at offset {end_offset}" if point is None else f"was fsynced up to {point}"
        problem = f"the log {reach}, but the checkpoint says that it starts at {start}"
        yield Damage(segment.path, problem, in_checkpoint=True)


def _find_batch(segment: LogSegment, position: int, offset: int, progress: Progress) -> int | None:
    rule = OffsetRule(segment.base_offset, contiguous=False)
    return find_following(segment.disk, segment.fd(), position, segment.size, rule, offset, progress)

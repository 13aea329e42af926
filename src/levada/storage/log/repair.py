"""Repairs a damaged log: replaces lost offsets by empty batches, and keeps the damaged files.

Kafka's format allows a batch without records that spans offsets, and compaction leaves such batches: consumers skip
them, offsets stay contiguous, and none is given out twice. The repaired log is written into a new directory, which
then takes the place of the damaged one; the next repair completes what was interrupted between these two renames. The
next start reads the log completely and rebuilds its indexes.
"""

import os
import shutil
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from levada.model import TopicPartition
from levada.storage.checkpoints import LogCheckpoint
from levada.storage.disk import OsDisk, fsync_file, write_all, write_atomically
from levada.storage.file_names import (
    LOG_SUFFIX,
    METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    RepairDirectories,
    file_name,
    repair_directories,
)
from levada.storage.log.check import CheckedLog
from levada.storage.log.damage import Damage
from levada.storage.log.files import LogFiles
from levada.storage.log.scan import InvalidBytes
from levada.storage.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from levada.storage.log_dir import (
    CLEANER_FILE,
    LOG_STARTS_FILE,
    RECOVERY_POINTS_FILE,
    LogDir,
)
from levada.storage.partition_directory import encode_partition_metadata
from levada.wire.batches import BatchHeader
from levada.wire.record_filter import placeholder_batch

STEP_OFFSETS_MAX = 1 << 40  # a larger gap between two offsets of a log is an error in a name or a checkpoint


class Repaired(NamedTuple):
    """A repaired log: the directory that keeps the damaged files, if any, and the offsets without records."""

    kept: str | None
    end_offset: int
    lost: list[range]  # offsets that empty batches replace
    end_is_known: bool = True  # otherwise offsets from `end_offset` on may be given out again
    hanging: frozenset[int] = frozenset()  # producers whose transactions are open, and whose markers may be lost


def costs_records(damage: Damage) -> bool:
    """Whether the repair of a damage gives up records."""
    is_harmless = damage.in_checkpoint or damage.in_index or damage.position is not None
    return bool(damage.lost) or damage.in_batch or not is_harmless


class LogRepair:
    """Repairs one log of a log dir that no broker uses."""

    __slots__ = (
        "_checkpoint",
        "_disk",
        "_end_is_known",
        "_hanging",
        "_log_dir",
        "_lost",
        "_name",
        "_open",
        "_target",
        "_timestamp",
    )

    def __init__(self, log_dir: LogDir, name: TopicPartition, disk: OsDisk) -> None:
        self._log_dir = log_dir
        self._name = name
        self._disk = disk
        self._checkpoint: LogCheckpoint = log_dir.checkpoint_of(name)
        self._lost: list[range] = []
        self._end_is_known = True
        self._open: set[int] = set()  # producers with an open transaction, at the batch that was written last
        self._hanging: set[int] = set()  # those of them that had one before lost offsets
        self._timestamp = int(time.time() * 1000)
        self._target = ""

    def implausible_offset(self, checked: CheckedLog | None) -> str:
        """Return which offset of a file's name or a checkpoint is implausible, and what to do; empty if none is."""
        if checked is not None and all(damage.in_checkpoint for damage in checked.damages):
            return ""
        former: int | None = None
        for offset, path in self._known_offsets(checked):
            if former is not None and offset - former > STEP_OFFSETS_MAX:
                remedy = f"move {path} away if that is wrong"
                return f"{path} has offset {offset}, but the one before is {former}; {remedy}, and check again"
            former = offset
        return ""

    def run(self, checked: CheckedLog | None, topic_id: UUID | None) -> Repaired:
        """Repair all damage of a checked log; without one the directory of the partition is missing."""
        only_checkpoints = checked is not None and all(damage.in_checkpoint for damage in checked.damages)
        if checked is not None and only_checkpoints:
            self._correct_checkpoints(checked.end_offset)
            return Repaired(None, checked.end_offset, [])
        paths = RepairDirectories(*map(self._in_log_dir, repair_directories(str(self._name))))
        self._target = paths.repaired
        self._disk.mkdir(self._target)
        end_offset = self._write_segments(checked)
        if topic_id is not None:
            metadata = os.path.join(self._target, METADATA_FILE)
            write_atomically(self._disk, metadata, encode_partition_metadata(topic_id, self._name.partition))
        elif checked is not None:
            self._copy(checked, METADATA_FILE)
        self._disk.fsync_dir(self._target)
        self._disk.fsync_dir(self._log_dir.path)  # the repaired directory is complete before the damaged one is renamed
        if checked is not None:  # a missing log counts as lost until its place is taken
            self._store_log_start(self._target)
        kept = None
        if os.path.lexists(self._in_log_dir(str(self._name))):  # possibly something that is no directory
            kept = paths.damaged
            self._disk.rename(self._in_log_dir(str(self._name)), kept)
        self._move_in_place(paths.repaired, end_offset)
        return Repaired(kept, end_offset, self._lost, self._end_is_known, frozenset(self._hanging))

    def complete(self, paths: RepairDirectories, end_offset: int) -> Repaired:
        """Complete a repair that was interrupted after the damaged directory was renamed."""
        self._move_in_place(paths.repaired, end_offset)
        return Repaired(paths.damaged, end_offset, [])

    def _move_in_place(self, repaired: str, end_offset: int) -> None:
        self._disk.rename(repaired, self._in_log_dir(str(self._name)))
        self._disk.fsync_dir(self._log_dir.path)
        self._correct_checkpoints(end_offset)

    def _in_log_dir(self, name: str) -> str:
        return os.path.join(self._log_dir.path, name)

    def _correct_checkpoints(self, end_offset: int) -> None:
        """Remove the recovery point, so that the next start reads the whole log, and a log start beyond it."""
        points, starts = dict(self._log_dir.recovery_points), dict(self._log_dir.log_start_offsets)
        point = points.pop(self._name, end_offset)
        if starts.get(self._name, 0) > min(point, end_offset):
            del starts[self._name]
        self._log_dir.write_recovery_points(points)
        self._log_dir.recovery_points, self._log_dir.log_start_offsets = points, starts
        self._store_log_start(self._in_log_dir(str(self._name)))

    def _store_log_start(self, directory: str) -> None:
        """Checkpoint where the repaired log starts, since it has no leader epochs that tell."""
        starts, files = dict(self._log_dir.log_start_offsets), LogFiles.read(self._disk, directory)
        starts[self._name] = max(starts.get(self._name, 0), min(files.bases, default=0))
        self._log_dir.write_log_start_offsets(starts)
        self._log_dir.log_start_offsets = starts

    def _write_segments(self, checked: CheckedLog | None) -> int:
        """Write the segments of the repaired log; return its end offset."""
        known_end = self.known_end(checked)
        segments = [] if checked is None else [one for one in checked.segments if not self._is_irregular(checked, one)]
        if checked is None or not segments:
            self._end_is_known = self._checkpoint.clean
            self._create(known_end)
            return known_end
        first = segments[0].base_offset
        starts = [damage.lost.start for damage in checked.damages if damage.lost.stop == first]
        self._write_empty(range(min([*starts, *checked.files.bases, first]), first), None)
        only_entry = [damage for damage in checked.damages if damage.in_checkpoint]
        before: BatchHeader | None = None
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            end_offset, before = self._write_segment(checked, segment, following, before)
            if following is None and not only_entry:
                following = max(end_offset, known_end)
            if following is not None:
                self._write_empty(range(end_offset, following), before)
        for offset in checked.files.snapshots:
            self._copy(checked, file_name(offset, SNAPSHOT_SUFFIX))
        return max(end_offset, following or 0)

    def known_end(self, checked: CheckedLog | None) -> int:
        """Return the offset up to which the log was written, as far as is known."""
        return self._known_offsets(checked)[-1][0]

    def _known_offsets(self, checked: CheckedLog | None) -> list[tuple[int, str]]:
        """Return the offsets of which a checkpoint or the name of a file says that the log was that long, in order."""
        checkpoints = {
            LOG_STARTS_FILE: self._checkpoint.log_start_offset,
            RECOVERY_POINTS_FILE: self._checkpoint.recovery_point,
        }
        if checked is None:
            checkpoints[CLEANER_FILE] = self._log_dir.cleaner_offsets.get(self._name)
        known = [(offset, self._in_log_dir(file)) for file, offset in checkpoints.items() if offset is not None]
        if checked is None:
            known.append((self._checkpoint.log_start_offset or 0, self._in_log_dir(str(self._name))))
        else:
            files = checked.files
            if any(damage.in_checkpoint for damage in checked.damages):
                known = []  # the entries are wrong
            names = [(base, LOG_SUFFIX) for base in files.bases] + [(base, ".*") for base in files.orphans]
            names += [(offset, SNAPSHOT_SUFFIX) for offset in files.snapshots]
            known += [(offset, files.path(file_name(offset, suffix))) for offset, suffix in names]
            known.append((checked.end_offset, files.directory))
        return sorted(known, key=itemgetter(0))

    def _is_irregular(self, checked: CheckedLog, segment: LogSegment) -> bool:
        return os.path.basename(segment.path) in checked.files.irregular

    def _write_segment(
        self, checked: CheckedLog, segment: LogSegment, following: int | None, before: BatchHeader | None
    ) -> tuple[int, BatchHeader | None]:
        """Write the valid batches of a segment, empty ones where others were; return its end and its last batch."""
        path = self._path(segment.base_offset)
        damaged = any(damage.file == segment.path and damage.position is not None for damage in checked.damages)
        if following is not None and not damaged:
            _link(segment.path, path)  # a closed segment never changes
        aborted = file_name(segment.base_offset, TXN_INDEX_SUFFIX)
        if not damaged and aborted not in checked.files.irregular and os.path.exists(checked.files.path(aborted)):
            self._copy(checked, aborted)
        end_offset, position = segment.base_offset, 0
        target = self._disk.open(path, create=True)
        try:
            for data, header, lost in self._pieces(checked, segment, before):
                if following is None or damaged:
                    position = write_all(self._disk, target, [data], position)
                self._track(header, lost)
                before, end_offset = header, header.last_offset + 1
            self._disk.fsync(target)
        finally:
            self._disk.close(target)
            segment.close()
        if end_offset == segment.base_offset and following is not None:
            self._disk.unlink(path)  # empty: an empty batch takes its place
        return end_offset, before

    def _pieces(
        self, checked: CheckedLog, segment: LogSegment, before: BatchHeader | None
    ) -> Iterator[tuple[bytes | memoryview, BatchHeader, range]]:
        """Yield the batches of the repaired segment; an empty batch with the offsets that it spans."""
        for piece in checked.pieces(segment):
            if not isinstance(piece, InvalidBytes):
                _, before, view = piece
                yield view, before, range(0)
            elif piece.offsets and piece.offsets.stop - 1 - segment.base_offset <= RELATIVE_OFFSET_MAX:
                for part in _parts(piece.offsets):
                    data, before = self._empty_batch(part, before)
                    yield data, before, part

    def _empty_batch(self, offsets: range, before: BatchHeader | None) -> tuple[bytes, BatchHeader]:
        batch, header = placeholder_batch(before, offsets, self._timestamp)
        return bytes(batch), header

    def _write_empty(self, offsets: range, before: BatchHeader | None) -> None:
        """Write segments that have only empty batches for lost offsets."""
        for part in _parts(offsets):
            data, before = self._empty_batch(part, before)
            write_atomically(self._disk, self._path(part.start), data)
            self._track(before, part)

    def _track(self, header: BatchHeader, lost: range) -> None:
        """Track lost offsets, and the transactions that are open around them."""
        if lost:
            self._lost.append(lost)
            self._hanging |= self._open
        elif header.is_control:
            self._open.discard(header.producer_id)
            self._hanging.discard(header.producer_id)
        elif header.is_transactional:
            self._open.add(header.producer_id)

    def _create(self, offset: int) -> None:
        path = self._path(offset)
        self._disk.close(self._disk.open(path, create=True))
        fsync_file(self._disk, path)

    def _path(self, base_offset: int) -> str:
        return os.path.join(self._target, file_name(base_offset, LOG_SUFFIX))

    def _copy(self, checked: CheckedLog, name: str) -> None:
        source = checked.files.path(name)
        if name not in checked.files.irregular and os.path.exists(source):
            shutil.copyfile(source, os.path.join(self._target, name))
            fsync_file(self._disk, os.path.join(self._target, name))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def _parts(offsets: range) -> Iterator[range]:
    """Split offsets into ranges that fit one segment."""
    while offsets:
        yield offsets[: RELATIVE_OFFSET_MAX + 1]
        offsets = offsets[RELATIVE_OFFSET_MAX + 1 :]

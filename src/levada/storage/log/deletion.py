"""Deletes logs and parts of them: segments by Kafka's retention rules, and the tail of a segment."""

import errno
import os
from collections.abc import Sequence

from levada.config.topic import TopicConfig
from levada.storage.disk import TEMPORARY_SUFFIX, Disk, write_all
from levada.storage.file_names import deleted_directory
from levada.storage.log.segment import SCAN_BLOCK_BYTES, LogSegment


def rename_deleted_log(disk: Disk, directory: str) -> str:
    """Rename the directory of a closed log; return the new path, whose files a thread deletes."""
    parent, name = os.path.split(directory)
    path = os.path.join(parent, deleted_directory(name))
    disk.rename(directory, path)
    return path


def deletable_segments(
    segments: Sequence[LogSegment], config: TopicConfig, now_ms: int, start_offset: int, end_offset: int
) -> int:
    """Return how many of the oldest segments retention deletes.

    None of them has offsets at or after `end_offset`. The active segment counts once it is too old itself; the log
    then rolls first.
    """
    deletes = "delete" in config.cleanup_policy
    surplus = sum([segment.size for segment in segments]) - config.retention_bytes
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if not segment.size and following is None:
            return number
        surplus -= segment.size
        by_size = deletes and config.retention_bytes >= 0 and surplus >= 0
        by_time = deletes and config.retention_ms >= 0 and _age_ms(segment, now_ms) > config.retention_ms
        by_start = following is not None and following <= start_offset
        deletable = by_size or by_time or by_start
        if not deletable or (following is not None and following > end_offset):
            return number
    return len(segments)


def _age_ms(segment: LogSegment, now_ms: int) -> int:
    timestamp = segment.max_timestamp
    return now_ms - (timestamp if timestamp >= 0 else segment.disk.modified_ms(segment.path))


def delete_last_segments(segments: list[LogSegment]) -> None:
    """Delete segments at the end of a log durably: other batches will have their offsets.

    The newest is deleted first, so that a crash in between leaves no gap.
    """
    for segment in reversed(segments):
        segment.mark_deleted()
        segment.delete_files()
    if segments:
        segments[0].disk.fsync_dir(os.path.dirname(segments[0].path))


def truncate_segment(segment: LogSegment, size: int) -> None:
    """Keep the first `size` bytes of a segment, in a new file: readers may have the old one mapped."""
    disk, path = segment.disk, segment.path
    source = segment.fd()
    target = disk.open(path + TEMPORARY_SUFFIX, create=True)
    try:
        position = 0
        while position < size:
            block = disk.pread(source, min(SCAN_BLOCK_BYTES, size - position), position)
            if not block:
                raise OSError(errno.EBADMSG, f"it ends at byte {position}, before byte {size}", path)
            position = write_all(disk, target, [block], position)
        disk.fsync(target)
    finally:
        disk.close(target)
    segment.handles.close(segment.handle)
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.fsync_dir(os.path.dirname(path))
    segment.size = size

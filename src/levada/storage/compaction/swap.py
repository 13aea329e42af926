"""Replaces segments of a log by a cleaned one; after a crash at any step the log has either the old or the new ones.

The rename to `.log.swap` commits the swap. Before it the old segments are the log, and recovery deletes the `.cleaned`
files. After it the new segment is the log, and recovery completes the swap. Renames in a directory become durable in
their order.
"""

from levada.storage.compaction.messages import CleanedSegment
from levada.storage.disk import Disk
from levada.storage.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from levada.storage.log.log import Log
from levada.storage.log.segment import LogSegment


class SwapRefusedError(Exception):
    """The log has changed since it was cleaned."""


def swap(log: Log, expected: list[LogSegment], cleaned: CleanedSegment, now_ms: int) -> None:
    """Replace the `expected` segments by the one cleaned from them. It only renames files, so it runs on the loop.

    The caller runs `complete_swap` in a thread afterwards. After an OSError the log must be reopened.
    """
    start = _find(log, expected)
    following = log.segments[start + len(expected)]
    disk = log.active.disk
    segment = LogSegment(log.directory, cleaned.replaced[0], disk, log.active.handles, now_ms)
    if _size(disk, segment.path + CLEANED_SUFFIX) != cleaned.size:
        raise SwapRefusedError("its file has a different size")
    # An earlier producer snapshot may contain a transaction as open whose marker is removed now.
    log.producer_snapshots.delete_before(following.base_offset)
    log.txn_checksums.reset()
    for path in reversed(segment.paths):
        disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    for replaced in expected:
        replaced.mark_deleted()
    for path in reversed(segment.paths):
        disk.rename(path + SWAP_SUFFIX, path)
    segment.size = cleaned.size
    segment.max_timestamp = cleaned.max_timestamp
    segment.max_timestamp_offset = cleaned.max_timestamp_offset
    segment.offset_index.load(segment.size)
    segment.time_index.load(segment.size)
    segment.txn_index.load(segment.base_offset, segment.size)
    log.segments_to_delete += log.reader.replace(start, start + len(expected), segment)


def _find(log: Log, expected: list[LogSegment]) -> int:
    """Return the number of the first of these segments, which must be consecutive and closed."""
    segments = log.segments
    try:
        start = segments.index(expected[0])
    except ValueError:
        raise SwapRefusedError("its segments are no longer in the log") from None
    if segments[start : start + len(expected)] != expected or expected[-1] is log.active:
        raise SwapRefusedError("its segments are no longer in the log")
    return start


def _size(disk: Disk, path: str) -> int:
    fd = disk.open(path)
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)


def complete_swap(log: Log) -> None:
    """Make a swap durable and delete the files of the replaced segments. Runs in a thread."""
    log.active.disk.fsync_dir(log.directory)
    log.delete_segment_files()

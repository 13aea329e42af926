"""A cleaned segment takes the place of those it was made from; a crash at any step leaves one or the other.

The name `.log.swap` is the point of no return: before it the old segments are the log and `.cleaned` files are
garbage, from then on the new segment is the log and opening it finishes what is missing (`leftovers`). The names of
a folder reach the disk in the order in which they were changed.
"""

from levada.storage.compaction.messages import Cleaned
from levada.storage.disk import Disk
from levada.storage.file_names import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX
from levada.storage.log import snapshots
from levada.storage.log.log import Log
from levada.storage.log.segment import Segment


class SwapRefusedError(Exception):
    """The log is not any more what was cleaned."""


def swap(log: Log, expected: list[Segment], cleaned: Cleaned, now_ms: int) -> None:
    """Put a cleaned segment in the place of the `expected` ones, which it was made from; quick, for the loop.

    The caller syncs the log's folder and then has `unlink_removed` free the space, both in a thread. After an OSError
    the log must be opened anew.
    """
    start = _find(log, expected)
    following = log.segments[start + len(expected)]
    disk = log.active.disk
    segment = Segment(log.directory, cleaned.replaced[0], disk, log.active.handles, now_ms)
    if _size(disk, segment.path + CLEANED_SUFFIX) != cleaned.size:
        raise SwapRefusedError("its file has another size")
    # A producer snapshot from before may tell of a transaction whose marker is gone now.
    snapshots.remove_below(disk, log.directory, following.base_offset)
    for path in reversed(segment.paths):
        disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    for replaced in expected:
        replaced.close()
        replaced.removed = True
        disk.rename(replaced.path, replaced.path + DELETED_SUFFIX)
    for path in reversed(segment.paths):
        disk.rename(path + SWAP_SUFFIX, path)
    segment.size = cleaned.size
    segment.max_timestamp = cleaned.max_timestamp
    segment.max_timestamp_offset = cleaned.max_timestamp_offset
    segment.index.load()
    segment.time_index.load()
    segment.txn_index.load(segment.base_offset, segment.size)
    log.removed += log.reader.replace(start, start + len(expected), segment)


def _find(log: Log, expected: list[Segment]) -> int:
    """Where in the log these segments are, one after the other and closed."""
    segments = log.segments
    try:
        start = segments.index(expected[0])
    except ValueError:
        raise SwapRefusedError("its segments are not in the log any more") from None
    if segments[start : start + len(expected)] != expected or expected[-1] is log.active:
        raise SwapRefusedError("its segments are not in the log any more")
    return start


def _size(disk: Disk, path: str) -> int:
    fd = disk.open(path)
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)


def settle(log: Log, replaced: list[Segment]) -> None:
    """Make a swap survive a crash and free the space of what it replaced; for a thread."""
    disk = log.active.disk
    disk.fsync_dir(log.directory)
    kept = replaced[0].paths  # the new segment has these names
    for path in [path for segment in replaced for path in segment.paths if path not in kept]:
        if disk.exists(path):
            disk.unlink(path)
    log.unlink_removed()

"""What a crash leaves half done in a partition's folder, finished or undone before the log is opened.

Temporary, deleted and cleaned files are of no use any more. A `.swap` segment is the complete replacement of the
segments it covers: its swap is finished, unless a `.cleaned` file at or below it says that the set of
replacements was not complete.
"""

import os

from levada.storage.disk import Disk
from levada.storage.names import (
    CLEANED_SUFFIX,
    LEFTOVER_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    FileName,
    file_name,
    parse_file_name,
)
from levada.storage.segment import walk


def tidy(disk: Disk, directory: str) -> list[FileName]:
    """Finish or undo what was begun; the files named by an offset that remain, in order."""
    names = disk.listdir(directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        _finish_swaps(disk, directory, names)
        names = disk.listdir(directory)
    kept = [name for name in names if not name.endswith(LEFTOVER_SUFFIXES)]
    for name in set(names).difference(kept):
        disk.unlink(os.path.join(directory, name))
    files = sorted(parsed for name in kept if (parsed := parse_file_name(name)))
    bases = {offset for offset, suffix in files if suffix == LOG_SUFFIX}
    orphans = {
        name
        for name in files
        if name.suffix in SEGMENT_SUFFIXES and name.offset not in bases
    }
    for offset, suffix in orphans:
        disk.unlink(os.path.join(directory, file_name(offset, suffix)))
    return [name for name in files if name not in orphans]


def _finish_swaps(disk: Disk, directory: str, names: list[str]) -> None:
    files = [parsed for name in names if (parsed := parse_file_name(name))]
    unfinished = min((name.offset for name in files if name.suffix.endswith(CLEANED_SUFFIX)), default=None)
    bases = [name.offset for name in files if name.suffix == LOG_SUFFIX]
    for base in sorted(name.offset for name in files if name.suffix == LOG_SUFFIX + SWAP_SUFFIX):
        if unfinished is not None and base >= unfinished:
            continue
        path = os.path.join(directory, file_name(base, LOG_SUFFIX))
        last_offset = _last_offset(disk, path + SWAP_SUFFIX, base)
        for replaced in [offset for offset in bases if base <= offset <= last_offset]:
            _remove_segment(disk, directory, replaced, but_log=replaced == base)
        disk.rename(path + SWAP_SUFFIX, path)
    disk.fsync_dir(directory)


def _last_offset(disk: Disk, path: str, base_offset: int) -> int:
    fd = disk.open(path)
    try:
        last_offset = base_offset
        for _, header, _ in walk(disk, fd, path, 0, disk.size(fd)):
            last_offset = header.last_offset
        return last_offset
    finally:
        disk.close(fd)


def _remove_segment(disk: Disk, directory: str, base_offset: int, but_log: bool) -> None:
    for suffix in SEGMENT_SUFFIXES:
        path = os.path.join(directory, file_name(base_offset, suffix))
        if disk.exists(path) and not (but_log and suffix == LOG_SUFFIX):
            disk.unlink(path)

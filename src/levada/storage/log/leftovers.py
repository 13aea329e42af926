"""What a crash leaves half done in a partition's folder, finished or undone before the log is opened.

Temporary, deleted and cleaned files are of no use any more. A `.swap` segment is the complete replacement of the
segments it covers, those that begin from its first to its last offset: its swap is finished.
"""

import os

from levada.errors import ErrorCode, KafkaError
from levada.storage.disk import Disk
from levada.storage.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEFTOVER_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileName,
    file_name,
    parse_file_name,
)
from levada.storage.log.segment import walk


def tidy(disk: Disk, directory: str, clean: bool) -> list[FileName]:
    """Finish or undo what was begun; the files named by an offset that remain, in order.

    After a clean stop an index without its log tells that somebody took the log away, unless the log was being
    removed: its `.deleted` name goes after those of its indexes, and a power cut may bring all of them back.
    """
    names = disk.listdir(directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        _finish_swaps(disk, directory, names)
        names = disk.listdir(directory)
    kept = [name for name in names if not name.endswith(LEFTOVER_SUFFIXES)]
    files = sorted(parsed for name in kept if (parsed := parse_file_name(name)))
    bases = {offset for offset, suffix in files if suffix == LOG_SUFFIX}
    orphans = {name for name in files if name.suffix in SEGMENT_SUFFIXES and name.offset not in bases}
    missing = [one for one in orphans if file_name(one.offset, LOG_SUFFIX + DELETED_SUFFIX) not in names]
    if clean and missing:
        path = os.path.join(directory, file_name(min(missing).offset, LOG_SUFFIX))
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is missing, but its indexes are there: restore it"
        )
    _forget(
        disk, directory, [*(file_name(*one) for one in sorted(orphans)), *sorted(set(names).difference(kept))]
    )
    return [name for name in files if name not in orphans]


def _forget(disk: Disk, directory: str, names: list[str]) -> None:
    """Unlink files for good: a power cut after the next clean stop must not bring them back."""
    for name in names:
        disk.unlink(os.path.join(directory, name))
    if names:
        disk.fsync_dir(directory)


def _finish_swaps(disk: Disk, directory: str, names: list[str]) -> None:
    files = [parsed for name in names if (parsed := parse_file_name(name))]
    bases = [name.offset for name in files if name.suffix == LOG_SUFFIX]
    for base in sorted(name.offset for name in files if name.suffix == LOG_SUFFIX + SWAP_SUFFIX):
        path = os.path.join(directory, file_name(base, LOG_SUFFIX))
        last_offset = _last_offset(disk, path + SWAP_SUFFIX, base)
        for replaced in [offset for offset in bases if base < offset <= last_offset]:
            _remove(disk, directory, replaced, SEGMENT_SUFFIXES)
        _remove(disk, directory, base, (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        aborted = os.path.join(directory, file_name(base, TXN_INDEX_SUFFIX))
        if disk.exists(aborted + SWAP_SUFFIX):  # otherwise it is in its place already
            disk.rename(aborted + SWAP_SUFFIX, aborted)
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


def _remove(disk: Disk, directory: str, base_offset: int, suffixes: tuple[str, ...]) -> None:
    for suffix in suffixes:
        path = os.path.join(directory, file_name(base_offset, suffix))
        if disk.exists(path):
            disk.unlink(path)

"""Producer snapshots beside the segments: files named by the offset up to which they tell the producers' state.

They carry a CRC and can be made again from the log, so they are written without fsync.
"""

import os

from levada.storage.disk import Disk, read_file, write_atomically
from levada.storage.file_names import SNAPSHOT_SUFFIX, file_name, parse_file_name

KEPT = 3


def _path(directory: str, offset: int) -> str:
    return os.path.join(directory, file_name(offset, SNAPSHOT_SUFFIX))


def offsets(disk: Disk, directory: str) -> list[int]:
    """The offsets of the snapshots that are there, the newest first."""
    names = (parse_file_name(name) for name in disk.listdir(directory))
    return sorted((name.offset for name in names if name and name.suffix == SNAPSHOT_SUFFIX), reverse=True)


def read(disk: Disk, directory: str, offset: int) -> bytes | None:
    """A snapshot as it is on disk; its reader checks it."""
    return read_file(disk, _path(directory, offset))


def write(disk: Disk, directory: str, offset: int, data: bytes) -> None:
    """Store a snapshot; all but the newest few are removed."""
    write_atomically(disk, _path(directory, offset), data, durable=False)
    for old in offsets(disk, directory)[KEPT:]:
        disk.unlink(_path(directory, old))


def remove(disk: Disk, directory: str, above: int) -> None:
    """Remove those that tell of more than the log holds, for good: later the log will hold other batches there."""
    for offset in offsets(disk, directory):
        if offset > above:
            disk.unlink(_path(directory, offset))
    disk.fsync_dir(directory)


def remove_below(disk: Disk, directory: str, offset: int) -> None:
    """Remove those of earlier offsets: the log does not tell any more how it came from there to here."""
    for old in offsets(disk, directory):
        if old < offset:
            disk.unlink(_path(directory, old))

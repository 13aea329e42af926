"""Files that save work at the next start: Kafka's checkpoints and producer snapshots.

A checkpoint is a text file: a version, the CRC-32C of all that follows, a count, and a line for each entry. Kafka's
version 0, which has no CRC, is read as well. A damaged or missing file costs a longer recovery, never data.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from crc32c import crc32c

from levada.model import TopicPartition
from levada.storage.disk import Disk, fsync_file, read_file, write_atomically
from levada.storage.file_names import (
    EPOCHS_FILE,
    OFFSET_MAX,
    SNAPSHOT_SUFFIX,
    TXN_CHECKSUMS_FILE,
    file_name,
    parse_file_name,
)

SNAPSHOTS_KEPT = 3
UNDEFINED_EPOCH_OFFSET = (-1, -1)

_VERSION, _KAFKA_VERSION = "1", "0"
_EPOCH, _START_OFFSET = itemgetter(0), itemgetter(1)


class CorruptCheckpointError(ValueError):
    """The content of a checkpoint file is invalid. The logs hold everything that it held."""


class LogCheckpoint(NamedTuple):
    """What a log dir knows about one of its logs. None: no checkpoint contains it."""

    clean: bool = False  # the log was closed cleanly, so it ends at the recovery point
    recovery_point: int | None = None  # every batch below is fsynced
    log_start_offset: int | None = None
    power_lost: bool = True  # possibly, since the last start: batches that were not fsynced may be lost
    may_have_gaps: bool = False  # in the last segment, too: a follower of a leader that has compacted its log


NEW_LOG: Final = LogCheckpoint(clean=True, recovery_point=0, log_start_offset=0)


def _encode(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    body = "".join(f"{line}\n" for line in (str(len(entries)), *entries)).encode()
    return f"{_VERSION}\n{crc32c(body):08x}\n".encode() + body


def _decode(data: bytes) -> list[str]:
    version, _, body = data.partition(b"\n")
    if version == _VERSION.encode():
        crc, _, body = body.partition(b"\n")
        if crc != b"%08x" % crc32c(body):
            raise CorruptCheckpointError("its CRC differs")
    elif version != _KAFKA_VERSION.encode():
        raise CorruptCheckpointError(f"version {version[:20]!r}; {_KAFKA_VERSION} and {_VERSION} are known")
    try:
        count, *entries = body.decode().splitlines()
        is_complete = int(count) == len(entries)
    except ValueError:
        raise CorruptCheckpointError("not a text with a count of its lines") from None
    if not is_complete:
        raise CorruptCheckpointError(f"{len(entries)} entries of {count}")
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode `topic partition offset` lines, as in recovery-point-offset-checkpoint."""
    return _encode(f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items())


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Decode what `encode_offsets` wrote; raise CorruptCheckpointError."""
    offsets: dict[TopicPartition, int] = {}
    for line in _decode(data):
        try:
            topic, partition, offset = line.split(" ")
            topic_partition, number = TopicPartition(topic, int(partition)), int(offset)
        except ValueError:
            raise CorruptCheckpointError(f"no offset: {line!r}") from None
        if not 0 <= number <= OFFSET_MAX or topic_partition.partition < 0:
            raise CorruptCheckpointError(f"no offset or partition: {line!r}")
        offsets[topic_partition] = number
    return offsets


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Encode `leader_epoch start_offset` lines, as in leader-epoch-checkpoint."""
    return _encode(f"{epoch} {start}" for epoch, start in epochs)


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Decode what `encode_epochs` wrote; raise CorruptCheckpointError."""
    epochs: list[tuple[int, int]] = []
    for line in _decode(data):
        try:
            epoch, start = map(int, line.split(" "))
        except ValueError:
            raise CorruptCheckpointError(f"no epoch: {line!r}") from None
        if epoch < 0 or start < 0 or (epochs and (epoch <= epochs[-1][0] or start <= epochs[-1][1])):
            raise CorruptCheckpointError(f"epochs and their offsets must increase: {line!r}")
        epochs.append((epoch, start))
    return epochs


class LeaderEpochFileCache:
    """Maps leader epochs to their start offsets in a log; replicas find their divergence with it.

    The file is written without fsync: recovery reads the epochs of batches beyond the recovery point from the log.
    """

    __slots__ = ("_disk", "_path", "entries")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, EPOCHS_FILE)
        self.entries: list[tuple[int, int]] = []  # (leader epoch, start offset); both increase

    def load(self) -> bool:
        """Read the file; return False if it is missing or corrupt."""
        data = read_file(self._disk, self._path)
        try:
            self.entries = decode_epochs(data) if data is not None else []
        except CorruptCheckpointError:
            return False
        return data is not None

    def exists(self) -> bool:
        """Whether there is a file."""
        return self._disk.exists(self._path)

    def store(self) -> None:
        """Replace the file."""
        write_atomically(self._disk, self._path, encode_epochs(self.entries), durable=False)

    def fsync(self) -> None:
        """Make the file durable, before the recovery point passes the batches of its epochs. Runs in a thread."""
        if self.exists():
            fsync_file(self._disk, self._path)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that an epoch starts at an offset; return whether it is a new one."""
        entries = self.entries
        if epoch < 0 or (entries and epoch <= entries[-1][0]):
            return False
        while entries and entries[-1][1] >= start_offset:
            entries.pop()  # an epoch without batches
        entries.append((epoch, start_offset))
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after the log end offset."""
        del self.entries[bisect_left(self.entries, end_offset, key=_START_OFFSET) :]

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end before the log start offset; the epoch that contains it starts there."""
        last = bisect_right(self.entries, start_offset, key=_START_OFFSET) - 1
        if last >= 0:
            self.entries[: last + 1] = [(self.entries[last][0], start_offset)]

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch` and its end offset, as OffsetsForLeaderEpoch defines them."""
        entries = self.entries
        if not entries or epoch < 0 or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        following = bisect_right(entries, epoch, key=_EPOCH)
        return (entries[following - 1][0] if following else epoch), entries[following][1]


class Checksum(NamedTuple):
    """The number of entries of an index, and their CRC-32C."""

    entries: int = 0
    crc: int = 0


class TransactionIndexChecksums:
    """The checksums of the transaction indexes of a log, by the base offsets of their segments.

    A segment without aborted transactions has no index, so nothing else would tell that one is missing, and
    read_committed consumers would read aborted records. Without an entry an index is accepted as it is; a wrong entry
    costs the rebuilding of its index, a corrupt file that of all.
    """

    __slots__ = ("_disk", "_path", "_stored", "entries")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, TXN_CHECKSUMS_FILE)
        self.entries: dict[int, Checksum] = {}
        self._stored: dict[int, Checksum] | None = {}  # None if the file is corrupt

    def load(self) -> bool:
        """Read the file, which logs without aborted transactions do not have; return False if it is corrupt."""
        data = read_file(self._disk, self._path)
        try:
            lines = [list(map(int, line.split(" "))) for line in _decode(data)] if data is not None else []
            self.entries = self._stored = {base: Checksum(entries, crc) for base, entries, crc in lines}
        except ValueError:
            self._stored = None
        return self._stored is not None

    def store(self, entries: dict[int, Checksum]) -> None:
        """Replace the file if the entries have changed."""
        if entries != self._stored:
            lines = (f"{base} {number} {crc}" for base, (number, crc) in entries.items())
            write_atomically(self._disk, self._path, _encode(lines))
            self.entries = self._stored = entries

    def reset(self) -> None:
        """Forget all entries, before indexes are replaced."""
        if self._stored:
            self._disk.unlink(self._path)
            self.entries = self._stored = {}


class ProducerSnapshotFiles:
    """The `.snapshot` files of a log, each named by the offset up to which it holds the producer state.

    Their content has a CRC and can be rebuilt from the log, so they are written without fsync.
    """

    __slots__ = ("_directory", "_disk")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, file_name(offset, SNAPSHOT_SUFFIX))

    def offsets(self) -> list[int]:
        """Return the offsets of the snapshots, the newest first; none is beyond the log end offset."""
        names = (parse_file_name(name) for name in self._disk.listdir(self._directory))
        found = (name.offset for name in names if name and name.suffix == SNAPSHOT_SUFFIX)
        return sorted(found, reverse=True)

    def read(self, offset: int) -> bytes | None:
        """Return the unchecked content of a snapshot; None if there is none."""
        return read_file(self._disk, self._path(offset))

    def write(self, offset: int, data: bytes) -> None:
        """Store a snapshot and delete all but the newest few."""
        write_atomically(self._disk, self._path(offset), data, durable=False)
        for old in self.offsets()[SNAPSHOTS_KEPT:]:
            self._disk.unlink(self._path(old))

    def delete_after(self, offset: int) -> None:
        """Delete durably the snapshots beyond a log end offset, where other batches will follow."""
        for newer in self.offsets():
            if newer > offset:
                self._disk.unlink(self._path(newer))
        self._disk.fsync_dir(self._directory)

    def delete_before(self, offset: int) -> None:
        """Delete the snapshots below an offset, from which the log can no longer be replayed."""
        for older in self.offsets():
            if older < offset:
                self._disk.unlink(self._path(older))

"""One log dir: its identity, its lock, its checkpoints and the partitions in it.

`meta.properties` ties the directory to a cluster and a node, the lock to a process: two brokers with the same files
would destroy them. The checkpoints only shorten recovery. After an I/O error the directory is offline until the next
start.
"""

import errno
import fcntl
import json
import os
import uuid
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Container, Mapping
from typing import NamedTuple, Self

from levada.config.properties import parse
from levada.logs import EventLog
from levada.model import TopicPartition
from levada.storage.checkpoints import CorruptCheckpointError, decode_offsets, encode_offsets
from levada.storage.disk import Disk, read_file, remove_tree, write_atomically
from levada.storage.file_names import (
    METADATA_FILE,
    is_deleted_directory,
    parse_partition_directory,
    stray_directory,
)

FORMAT = 1
META_FILE = "meta.properties"
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
LOG_STARTS_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"

KAFKA_FILES = ("bootstrap.checkpoint", "__cluster_metadata-0")  # of KRaft's controller

_log = EventLog("levada.storage")


class LogDirError(Exception):
    """A log dir that this broker must not use; the message contains the reason and the remedy."""


class FoundPartition(NamedTuple):
    """The directory of a partition; without a topic id if its `partition.metadata` is missing or corrupt."""

    partition: TopicPartition
    directory: str
    topic_id: uuid.UUID | None


def encode_uuid(value: uuid.UUID) -> str:
    """Encode an id as Kafka does: URL-safe base64 without padding."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Decode what `encode_uuid` wrote; raise ValueError for anything else."""
    return uuid.UUID(bytes=b64decode(text + "==", altchars=b"-_", validate=True))


class LogDir:
    """One directory of `log.dirs`, locked by this process until it is closed."""

    __slots__ = (
        "_disk",
        "_lock",
        "_node_id",
        "_stored",
        "cleaner_offsets",
        "cluster_id",
        "directory_id",
        "log_start_offsets",
        "offline",
        "path",
        "recovery_points",
        "was_clean",
    )

    def __init__(self, path: str, disk: Disk, node_id: int, lock: int) -> None:
        self.path = path
        self._disk = disk
        self._node_id = node_id
        self._lock = lock
        self.cluster_id: str | None = None  # None in a new directory
        self.directory_id = uuid.uuid4()
        self.offline = False
        self.was_clean = False  # the last shutdown was clean: recovery is not necessary
        self.recovery_points: dict[TopicPartition, int] = {}  # as of the last checkpoint
        self.log_start_offsets: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}  # the end offsets of the last cleanings
        self._stored: dict[str, Mapping[TopicPartition, int]] = {}  # the content of each checkpoint file

    @classmethod
    def open(cls, path: str, disk: Disk, *, node_id: int) -> Self:
        """Lock the directory, read its identity and checkpoints. Raises LogDirError if it belongs to another node."""
        path = os.path.abspath(path)
        disk.mkdir(path)
        log_dir = cls(path, disk, node_id, _acquire_lock(path))
        try:
            log_dir._read_meta_properties()
            log_dir._read_checkpoints()
        except BaseException:
            os.close(log_dir._lock)
            raise
        return log_dir

    def join(self, cluster_id: str) -> None:
        """Assign a new directory to the cluster. Raises LogDirError if it belongs to another."""
        if self.cluster_id is None:
            self._write_meta_properties(cluster_id)
        elif self.cluster_id != cluster_id:
            raise LogDirError(
                f"{self.path} belongs to cluster {self.cluster_id}, not to {cluster_id}: "
                "check log.dirs, or give this node an empty directory"
            )

    def partitions(self) -> list[FoundPartition]:
        """Return the partitions on disk."""
        return [
            FoundPartition(partition, self._path(name), self._topic_id(name))
            for name in sorted(self._disk.listdir(self.path))
            if (partition := parse_partition_directory(name)) and self._disk.exists(self._path(name) + os.sep)
        ]

    def create_partition(self, partition: TopicPartition, topic_id: uuid.UUID) -> str:
        """Create the directory of a partition unless it exists; return its path. The first flush makes it durable."""
        directory = self._path(str(partition))
        self._disk.mkdir(directory)
        if self._topic_id(str(partition)) != topic_id:
            text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
            write_atomically(self._disk, os.path.join(directory, METADATA_FILE), text.encode(), durable=False)
        return directory

    def mark_stray(self, found: FoundPartition) -> None:
        """Rename the directory of a stray partition, which is not in the cluster metadata.

        Its topic was deleted while this broker was down, or the metadata is older than the data: an operator decides.
        """
        path = self._path(stray_directory(str(found.partition)))
        _log.warning(
            "stray partition found, not in the cluster metadata; its data is kept until you delete it",
            kept=path,
        )
        self._disk.rename(found.directory, path)

    def delete_partition_files(self) -> None:
        """Delete the files of deleted partitions. Runs in a thread."""
        for name in self._disk.listdir(self.path):
            if is_deleted_directory(name):
                remove_tree(self._disk, self._path(name))

    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Checkpoint the recovery points. Runs in a thread."""
        self._write_offsets(RECOVERY_POINTS_FILE, offsets)

    def write_log_start_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Checkpoint the log start offsets. Runs in a thread."""
        self._write_offsets(LOG_STARTS_FILE, offsets)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Checkpoint the end offsets of the last cleanings. Runs in a thread."""
        self._write_offsets(CLEANER_FILE, offsets)

    def has_checkpoint(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint contains a partition of this name, possibly a deleted one."""
        return any(partition in offsets for offsets in self._stored.values())

    def retain_checkpoints(self, existing: Container[TopicPartition]) -> None:
        """Remove deleted partitions from the checkpoints.

        Checkpoints contain no topic ids: a new log with the name of a deleted one would start at its offset, and lose
        its records.
        """
        for file, offsets in list(self._stored.items()):
            kept = {partition: offset for partition, offset in offsets.items() if partition in existing}
            if len(kept) < len(offsets):
                self._write_offsets(file, kept)

    def _write_offsets(self, file: str, offsets: Mapping[TopicPartition, int]) -> None:
        write_atomically(self._disk, self._path(file), encode_offsets(offsets))
        self._stored[file] = offsets

    def fail(self, error: OSError) -> bool:
        """Take the directory offline until the next start; return False if it was already."""
        if self.offline:
            return False
        self.offline = True
        _log.error("log dir is offline", log_dir=self.path, error=str(error))
        return True

    def close(self, clean: bool) -> None:
        """Unlock. `clean`: every log was closed cleanly and the checkpoints are written."""
        try:
            if clean and not self.offline:
                content = json.dumps({"version": 0, "brokerEpoch": -1})
                write_atomically(self._disk, self._path(CLEAN_SHUTDOWN_FILE), content.encode())
        finally:
            os.close(self._lock)

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _topic_id(self, name: str) -> uuid.UUID | None:
        data = read_file(self._disk, os.path.join(self.path, name, METADATA_FILE))
        fields = dict(line.partition(": ")[::2] for line in (data or b"").decode(errors="replace").splitlines())
        try:
            return decode_uuid(fields["topic_id"]) if fields.get("version") == "0" else None
        except (KeyError, ValueError):
            return None

    def _read_meta_properties(self) -> None:
        path = self._path(META_FILE)
        data = read_file(self._disk, path)
        fields = parse((data or b"").decode(errors="replace"))
        if "levada.format" not in fields and self._is_kafkas(fields):
            raise LogDirError(
                f"{self.path} is a data directory of Apache Kafka, which Levada does not open: its topics, groups and "
                "ids are in Kafka's own metadata. Use another directory (log.dirs), and copy the topics while Kafka "
                "runs, by consuming them from Kafka and producing them to Levada, as MirrorMaker or kcat do"
            )
        if data is None:
            if self.partitions():
                raise LogDirError(f"{self.path} holds partitions but no {META_FILE}: restore it or use another")
            return
        stored_format = fields.get("levada.format", "")
        if not stored_format.isdecimal() or int(stored_format) > FORMAT:
            known = f"this version reads up to {FORMAT}"
            raise LogDirError(f"{path} has levada.format={stored_format or 'nothing'}; {known}")
        if fields.get("node.id") != str(self._node_id):
            found = fields.get("node.id", "nothing")
            raise LogDirError(f"{path} has node.id={found}, but this is node {self._node_id}: check log.dirs")
        self.cluster_id = fields.get("cluster.id") or None
        try:
            self.directory_id = decode_uuid(fields["directory.id"])
        except (KeyError, ValueError):
            raise LogDirError(f"{path} has no valid directory.id: restore it from a backup") from None
        if self.cluster_id is None:
            raise LogDirError(f"{path} has no cluster.id: restore it from a backup")

    def _is_kafkas(self, fields: Mapping[str, str]) -> bool:
        """Whether Apache Kafka has written this directory, by ZooKeeper (broker.id) or by KRaft."""
        if "cluster.id" in fields and ("broker.id" in fields or "node.id" in fields):
            return True
        return any(self._disk.exists(self._path(name)) for name in KAFKA_FILES)

    def _write_meta_properties(self, cluster_id: str) -> None:
        fields = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(self._node_id),
            "directory.id": encode_uuid(self.directory_id),
            "levada.format": str(FORMAT),
        }
        text = "".join(f"{name}={value}\n" for name, value in fields.items())
        write_atomically(self._disk, self._path(META_FILE), text.encode())
        self.cluster_id = cluster_id

    def _read_checkpoints(self) -> None:
        """Read the checkpoints; the marker of a clean shutdown is valid for one start only."""
        marker = self._path(CLEAN_SHUTDOWN_FILE)
        self.was_clean = self._disk.exists(marker)
        if self.was_clean:
            self._disk.unlink(marker)
            self._disk.fsync_dir(self.path)
        self.recovery_points = self._read_offsets(RECOVERY_POINTS_FILE)
        self.log_start_offsets = self._read_offsets(LOG_STARTS_FILE)
        self.cleaner_offsets = self._read_offsets(CLEANER_FILE)

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        data = read_file(self._disk, self._path(name))
        try:
            self._stored[name] = offsets = decode_offsets(data) if data is not None else {}
            return offsets
        except CorruptCheckpointError as error:
            _log.warning("checkpoint is corrupt", file=self._path(name), reason=str(error))
            return {}


def _acquire_lock(path: str) -> int:
    """Lock the directory; the lock ends with this process."""
    lock = os.open(os.path.join(path, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise LogDirError(f"{path} is in use by another broker: stop it, or use another directory") from None
    return lock

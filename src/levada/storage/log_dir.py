"""One log dir: its identity, its lock, its checkpoints and the partitions in it.

`meta.properties` ties the directory to a cluster and a node, the lock to a process: two brokers with the same files
would destroy them. The checkpoints say what the logs must contain; without them every log is read completely. After an
I/O error the directory is offline until the next start.
"""

import errno
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Self

from crc32c import crc32c

from levada.config.properties import parse
from levada.logs import EventLog
from levada.model import TopicPartition
from levada.storage.checkpoints import CorruptCheckpointError, LogCheckpoint, decode_offsets, encode_offsets
from levada.storage.disk import (
    FILE_ERRORS,
    TEMPORARY_SUFFIX,
    Disk,
    errors_of_one_log,
    open_regular,
    read_file,
    remove_tree,
    write_atomically,
)
from levada.storage.file_names import (
    METADATA_FILE,
    RepairDirectories,
    damaged_file,
    interrupted_repair,
    is_deleted_directory,
    parse_partition_directory,
    stray_directory,
)
from levada.storage.partition_directory import (
    decode_partition_metadata,
    decode_uuid,
    encode_partition_metadata,
    encode_uuid,
)

FORMAT = 1
META_BYTES_MAX = 64 * 1024
META_FILE = "meta.properties"
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
LOG_STARTS_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
CHECKPOINT_FILES = (RECOVERY_POINTS_FILE, LOG_STARTS_FILE, CLEANER_FILE)
BOOT_ID_FILE = ".boot-id"
KERNEL_BOOT_ID = "/proc/sys/kernel/random/boot_id"
UNREADABLE = {  # what a missing or corrupt checkpoint means
    RECOVERY_POINTS_FILE: "every log is recovered completely",
    LOG_STARTS_FILE: "records that DeleteRecords has deleted may be visible again",
    CLEANER_FILE: "compacted logs are cleaned from their start, and offsets may be missing in every log",
    CLEAN_SHUTDOWN_FILE: "every log is recovered",
    BOOT_ID_FILE: "the next start writes it again",
}
IRREGULAR = "it is not a regular file"

KAFKA_FILES = ("bootstrap.checkpoint", "__cluster_metadata-0")  # of KRaft's controller
KAFKA_CHECKPOINT = b"0\n"  # the first line of Kafka's checkpoints: their version

_log = EventLog("levada.storage")


class LogDirError(Exception):
    """A log dir that this broker must not use; the message contains the reason and the remedy."""


class FoundPartition(NamedTuple):
    """The directory of a partition; without a topic id if its `partition.metadata` is missing or corrupt."""

    partition: TopicPartition
    directory: str
    topic_id: uuid.UUID | None


class LogDir:
    """One directory of `log.dirs`, locked by this process until it is closed."""

    __slots__ = (
        "_disk",
        "_irregular",
        "_lock",
        "_new_boot_id",
        "_node_id",
        "_stored",
        "_unclean",
        "cleaner_offsets",
        "cluster_id",
        "directory_id",
        "log_start_offsets",
        "offline",
        "owner",
        "path",
        "power_lost",
        "recovery_points",
        "unreadable",
        "was_clean",
    )

    def __init__(self, path: str, disk: Disk, node_id: int | None, lock: int) -> None:
        self.path = path
        self._disk = disk
        self._node_id = node_id
        self._lock = lock
        self._new_boot_id: bytes | None = None  # not stored yet
        self.cluster_id: str | None = None  # None in a new directory
        self.owner: str | None = None  # the node id in its meta.properties
        self.directory_id = uuid.uuid4()
        self.offline = False
        self.was_clean = False  # the last shutdown was clean: recovery is not necessary
        self.recovery_points: dict[TopicPartition, int] = {}  # as of the last checkpoint
        self.log_start_offsets: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}  # the end offsets of the last cleanings
        self.power_lost = True  # possibly, since the last start: the page cache may be lost
        self._unclean: set[str] = set()  # partitions that were not open at the clean shutdown
        self._stored: dict[str, Mapping[TopicPartition, int]] = {}  # the content of each checkpoint file
        self._irregular: list[str] = []  # directories, fifos and broken links with the names of UNREADABLE
        self.unreadable: dict[str, str] = {}  # missing or corrupt checkpoints, and why

    @classmethod
    def open(cls, path: str, disk: Disk, *, node_id: int | None) -> Self:
        """Lock the directory, read its identity and checkpoints. Raises LogDirError if it belongs to another node.

        Without a node id it is only inspected: no file is created, changed or deleted.
        """
        path = os.path.abspath(path)
        if node_id is not None:
            disk.mkdir(path)
        try:
            lock = _acquire_lock(path, create=node_id is not None)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO):
                raise
            raise LogDirError(f"{error.filename}: {error.strerror}") from error
        log_dir = cls(path, disk, node_id, lock)
        try:
            log_dir._read_meta_properties()
            log_dir._find_irregular()
            log_dir._read_checkpoints()
            log_dir._compare_boot_id()
        except BaseException as error:
            os.close(log_dir._lock)
            if isinstance(error, OSError) and error.errno in FILE_ERRORS and error.filename:
                raise LogDirError(f"{error.filename}: {error.strerror}") from error
            raise
        return log_dir

    def join(self, cluster_id: str) -> None:
        """Assign a new directory to the cluster. Raises LogDirError if it belongs to another."""
        if self.cluster_id is None:
            for file in CHECKPOINT_FILES:  # from now on a missing one is damage
                self._write_offsets(file, self._stored.get(file, {}))
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

    def links(self) -> dict[str, str]:
        """Map the paths in this directory that are symbolic links to the real paths of their targets."""
        return {self._path(name): target for name, target in self._disk.links(self.path).items()}

    def why_not_a_directory(self, partition: TopicPartition) -> str:
        """Return why what has the name of a partition's directory is none; empty if nothing has that name."""
        name = str(partition)
        if name not in self._disk.listdir(self.path):
            return ""
        return "it is not a directory" if self._disk.exists(self._path(name)) else "it is a link to nothing"

    def create_partition(self, partition: TopicPartition, topic_id: uuid.UUID) -> str:
        """Create the directory of a partition unless it exists; return its path. The first flush makes it durable."""
        directory = self._path(str(partition))
        with errors_of_one_log(directory):
            self._disk.mkdir(directory)
            if self._topic_id(str(partition)) != topic_id:
                data = encode_partition_metadata(topic_id)
                write_atomically(self._disk, os.path.join(directory, METADATA_FILE), data, durable=False)
        return directory

    def checkpoint_of(self, partition: TopicPartition) -> LogCheckpoint:
        """Return what the checkpoints and the last shutdown say about an existing log."""
        recovery_point = self.recovery_points.get(partition)
        return LogCheckpoint(
            clean=self.was_clean and recovery_point is not None and str(partition) not in self._unclean,
            recovery_point=recovery_point,
            log_start_offset=self.log_start_offsets.get(partition),
            power_lost=self.power_lost,
        )

    def interrupted_repair(self, partition: TopicPartition, topic_id: uuid.UUID) -> RepairDirectories | None:
        """Return the paths of a repair that left a partition without its directory; the repaired one is complete."""
        try:
            found = interrupted_repair(str(partition), self._disk.listdir(self.path))
            if found is None or self._topic_id(found.repaired) not in (None, topic_id):
                return None
        except OSError:  # the next use of the log dir fails, too
            return None
        return RepairDirectories(*map(self._path, found))

    def rename_as_stray(self, partition: TopicPartition, unless: uuid.UUID | None = None) -> None:
        """Rename the directory of this name as stray, if there is one that does not belong to the topic `unless`."""
        directory = self._path(str(partition))
        if self._disk.exists(directory) and ((found := self._topic_id(str(partition))) is None or found != unless):
            self.mark_stray(FoundPartition(partition, directory, found))

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

    def delete_partition_files(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Delete the files of deleted partitions, until it is stopped: the next start continues. Runs in a thread."""
        for name in self._disk.listdir(self.path):
            if stopped():
                return
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

    @property
    def damaged_checkpoints(self) -> list[str]:
        """The paths of the checkpoints that were missing or corrupt at the start, though they are written again."""
        return [self._path(file) for file in CHECKPOINT_FILES if file in self.unreadable]

    def may_be_compacted(self, partition: TopicPartition) -> bool:
        """Whether the log of a partition may have been compacted, so that offsets are missing in closed segments.

        The cleaner writes its entry in the checkpoint before it replaces the first segment of a log.
        """
        return CLEANER_FILE in self.unreadable or partition in self._stored.get(CLEANER_FILE, {})

    def remove_checkpoints(self, deleted: Iterable[TopicPartition]) -> None:
        """Remove deleted partitions from the checkpoints.

        Checkpoints contain no topic ids: a new log with the name of a deleted one would start at its offset, and lose
        its records.
        """
        names = set(deleted)
        for file, offsets in list(self._stored.items()):
            if not names.isdisjoint(offsets):
                kept = {partition: offset for partition, offset in offsets.items() if partition not in names}
                self._write_offsets(file, kept)
        for read in (self.recovery_points, self.log_start_offsets, self.cleaner_offsets):
            for name in names:
                read.pop(name, None)

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

    def close(self, clean: bool, unclean: Collection[TopicPartition] = ()) -> None:
        """Unlock. `clean`: every log but the `unclean` ones was closed cleanly and the checkpoints are written."""
        try:
            if clean and not self.offline:
                content = json.dumps({"version": 0, "brokerEpoch": -1, "unclean": sorted(map(str, unclean))})
                write_atomically(self._disk, self._path(CLEAN_SHUTDOWN_FILE), content.encode())
        finally:
            os.close(self._lock)

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _topic_id(self, name: str) -> uuid.UUID | None:
        try:
            data = read_file(self._disk, os.path.join(self.path, name, METADATA_FILE))
        except OSError as error:
            if error.errno not in FILE_ERRORS:
                raise
            return None
        return decode_partition_metadata(data or b"")

    def _read_meta_properties(self) -> None:
        path = self._path(META_FILE)
        data = read_file(self._disk, path, META_BYTES_MAX)
        if data is not None and len(data) > META_BYTES_MAX:
            raise LogDirError(f"{path} has more than {META_BYTES_MAX} bytes: restore it from a backup")
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
        if fields.get("node.id") != str(self._node_id) and self._node_id is not None:
            found = fields.get("node.id", "nothing")
            raise LogDirError(f"{path} has node.id={found}, but this is node {self._node_id}: check log.dirs")
        self.owner, self.cluster_id = fields.get("node.id"), fields.get("cluster.id") or None
        try:
            self.directory_id = decode_uuid(fields["directory.id"])
        except (KeyError, ValueError):
            raise LogDirError(f"{path} has no valid directory.id: restore it from a backup") from None
        if self.cluster_id is None:
            raise LogDirError(f"{path} has no cluster.id: restore it from a backup")

    def _is_kafkas(self, fields: Mapping[str, str]) -> bool:
        """Whether Apache Kafka has written this directory, by ZooKeeper (broker.id) or by KRaft.

        Without meta.properties, the checkpoint of the recovery points tells: Levada does not write Kafka's version.
        """
        if "cluster.id" in fields and ("broker.id" in fields or "node.id" in fields):
            return True
        if any(self._disk.exists(self._path(name)) for name in KAFKA_FILES):
            return True
        if fields or not self.partitions():
            return False
        points = read_file(self._disk, self._path(RECOVERY_POINTS_FILE))
        return points is not None and points.startswith(KAFKA_CHECKPOINT)

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

    def _find_irregular(self) -> None:
        """Find what is in the place of a checkpoint or a temporary one, but no file: it counts as corrupt."""
        for name in sorted(self._disk.irregular_files(self.path)):
            file = name.removesuffix(TEMPORARY_SUFFIX)
            if file in UNREADABLE:
                self._irregular.append(name)
                self.unreadable[name] = f"{IRREGULAR}: {UNREADABLE[file]}"
        if self._node_id is not None:
            self.rename_irregular()

    def rename_irregular(self) -> None:
        """Rename what is no file, so that the file can be written again; nothing is deleted."""
        for name in self._irregular:
            kept = self._path(damaged_file(name))
            self._disk.rename(self._path(name), kept)
            _log.error("not a regular file; renamed", file=self._path(name), kept=kept)

    def _read(self, name: str) -> bytes | None:
        """Return the content of a small file, empty if it is no file; None if it is missing."""
        return b"" if name in self._irregular else read_file(self._disk, self._path(name))

    def _read_checkpoints(self) -> None:
        """Read the checkpoints; the marker of a clean shutdown is valid for one start only."""
        self._read_marker()
        self.recovery_points = self._read_offsets(RECOVERY_POINTS_FILE)
        self.log_start_offsets = self._read_offsets(LOG_STARTS_FILE)
        self.cleaner_offsets = self._read_offsets(CLEANER_FILE)
        if CLEANER_FILE in self.unreadable:  # every log may have been compacted
            self.cleaner_offsets = {found.partition: 0 for found in self.partitions()}
            if self._node_id is not None:  # before a cleaning: the next start must know, too
                self.write_cleaner_offsets(self.cleaner_offsets)
        if RECOVERY_POINTS_FILE not in self._stored:
            self.was_clean = False
            self.power_lost = False  # nothing may be taken for lost by a power failure

    def _read_marker(self) -> None:
        marker = self._path(CLEAN_SHUTDOWN_FILE)
        data = self._read(CLEAN_SHUTDOWN_FILE)
        if data is None or CLEAN_SHUTDOWN_FILE in self._irregular:
            return
        try:
            fields = json.loads(data)
            self._unclean = set(map(str, fields.get("unclean", ())))
            self.was_clean = fields["version"] == 0
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            _log.error("marker of a clean shutdown is corrupt; every log is recovered", file=marker)
        if self._node_id is not None:
            self._disk.unlink(marker)
            self._disk.fsync_dir(self.path)

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint; one that is missing or corrupt is `unreadable`, not in `_stored`, and empty."""
        data = self._read(name)
        try:
            if data is None or name in self._irregular:
                raise CorruptCheckpointError("it is missing" if data is None else IRREGULAR)
            self._stored[name] = offsets = decode_offsets(data)
            return offsets
        except CorruptCheckpointError as error:
            if data is not None or self.cluster_id is not None:
                self.unreadable[name] = f"{error}: {UNREADABLE[name]}"
                if self._node_id is not None:
                    _log.error("checkpoint cannot be read", file=self._path(name), error=self.unreadable[name])
            return {}

    @property
    def may_lack_messages(self) -> bool:
        """Whether the ends of logs may be lost: this start follows an unclean shutdown of the machine."""
        return not (self.was_clean and not self._unclean) and (
            self.power_lost or RECOVERY_POINTS_FILE in self.unreadable
        )

    def _compare_boot_id(self) -> None:
        """Find out whether the page cache survived since the last start."""
        try:
            with open(KERNEL_BOOT_ID, "rb") as file:
                boot_id = file.read()
        except OSError:
            return  # not Linux: a power failure is always possible
        current = boot_id + b"%08x\n" % crc32c(boot_id)
        stored = self._read(BOOT_ID_FILE)
        if stored is not None:
            former, crc = stored[:-9], stored[-9:]
            is_valid = crc == b"%08x\n" % crc32c(former)
            self.power_lost &= is_valid and stored != current
        if stored != current:
            self._new_boot_id = current
        if self._node_id is not None and (
            (self.was_clean and not self._unclean) or not self.power_lost or not self.partitions()
        ):
            self.store_boot_id()

    def store_boot_id(self) -> None:
        """Remember this boot of the machine, once no log has to be recovered from an earlier one."""
        if self._new_boot_id is not None:
            write_atomically(self._disk, self._path(BOOT_ID_FILE), self._new_boot_id)
            self._new_boot_id = None


def _acquire_lock(path: str, create: bool) -> int:
    """Lock the directory; the lock ends with this process."""
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    lock = open_regular(os.path.join(path, LOCK_FILE), flags)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise LogDirError(f"{path} is in use by another broker: stop it, or use another directory") from None
    return lock

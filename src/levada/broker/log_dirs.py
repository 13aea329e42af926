"""The broker's data directories: where a partition's log is opened or made, and what a broken disk takes with it.

An I/O error takes its directory offline with every partition in it; the process and the other directories go on.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from uuid import UUID

from levada.broker.fsync import GroupCommit
from levada.broker.partition.partition import Partition, PartitionContext
from levada.clock import Clock
from levada.config.broker import BrokerConfig
from levada.config.topic import TopicConfig
from levada.core.cluster.image import TopicImage
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.model import TopicPartition
from levada.storage.compaction.swap import settle
from levada.storage.disk import Disk
from levada.storage.handles import Handles
from levada.storage.log.log import Log
from levada.storage.log.segment import Segment
from levada.storage.log_dir import FoundPartition, LogDir, LogDirError

log = EventLog(__name__)

SYNC_THREADS = 16


class LogDirs:
    """All of `log.dirs`."""

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock, open_files_max: int) -> None:
        self.disk = disk
        self.paths = [os.path.abspath(path) for path in config.log_dirs]
        self._config = config
        self._clock = clock
        self._handles = Handles(disk, open_files_max)
        self._dirs: list[LogDir] = []
        self._unopened: list[str] = []  # directories that failed at the start
        self._found: dict[TopicPartition, list[tuple[LogDir, FoundPartition]]] = {}  # on disk, not yet opened
        self._unreachable: set[tuple[UUID, int]] = set()  # partitions that have a log, but none to use
        self._homes: dict[Partition, LogDir] = {}  # of every open partition
        self._damaged: dict[
            TopicPartition, LogDir
        ] = {}  # logs that could not be opened, and are left as they are
        self._commits: dict[str, GroupCommit] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="log-files")
        self._checkpoints = Lock()  # held while checkpoint files are written
        self._loop = asyncio.get_running_loop()
        self._starting = True

    # At the start.

    def lock(self) -> None:
        """Take the directories for this process. One that fails is offline; without the first there is no broker."""
        for path in self.paths:
            try:
                log_dir = LogDir.open(path, self.disk, node_id=self._config.node_id)
            except OSError as error:
                if path == self.paths[0]:
                    why = error.strerror or str(error)
                    if isinstance(error, FileExistsError | NotADirectoryError):
                        why = "it is no folder, or in no folder; name another with --data or log.dirs"
                    raise LogDirError(f"{path}, which holds the metadata, cannot be used: {why}") from error
                log.error("log dir is offline", log_dir=path, error=str(error))
                self._unopened.append(path)
                continue
            self._dirs.append(log_dir)
            for found in log_dir.partitions():
                self._found.setdefault(found.partition, []).append((log_dir, found))

    @property
    def first(self) -> str:
        """The directory that also holds the metadata."""
        return self._dirs[0].path

    @property
    def hold_partitions(self) -> bool:
        """Whether there are partitions on disk that wait to be opened."""
        return bool(self._found)

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directories belong to, if they have been used before."""
        return next((log_dir.cluster_id for log_dir in self._dirs if log_dir.cluster_id), None)

    def join(self, cluster_id: str) -> None:
        """Make all directories this cluster's; LogDirError if one is another's."""
        for log_dir in self._dirs:
            log_dir.join(cluster_id)
        unclean = sum(not log_dir.was_clean for places in self._found.values() for log_dir, _ in places)
        if unclean:
            log.info("the last stop was not clean: checking logs", partitions=unclean)

    def settled(self) -> None:
        """All partitions of the image are open: what else is on disk is set aside."""
        self._starting = False
        for places in self._found.values():
            for log_dir, found in places:
                log_dir.set_aside(found)
        self._found.clear()
        self._free_space()

    # Partitions.

    def open_partition(
        self, topic: TopicImage, index: int, leader_epoch: int, config: TopicConfig, context: PartitionContext
    ) -> Partition | None:
        """Open the log of a partition, or begin one; None if its directory cannot be used.

        What could not be opened once is not begun anew before the next start: an empty log would hide its data.
        """
        if (topic.id, index) in self._unreachable:
            return None
        partition = self._open_partition(topic, index, leader_epoch, config, context)
        if partition is None:
            self._unreachable.add((topic.id, index))
        return partition

    def _open_partition(
        self, topic: TopicImage, index: int, leader_epoch: int, config: TopicConfig, context: PartitionContext
    ) -> Partition | None:
        name = TopicPartition(topic.name, index)
        log_dir, found = self._take_found(name, topic.id)
        if log_dir is None and self._starting and (former := self._missing(name)):
            where = f"{former.path}/{name} is missing, but it had records when the broker was stopped"
            log.error("partition is offline, its log is broken", partition=str(name), error=where)
            self._damaged[name] = former
            return None
        if log_dir is None:
            if self._starting and self._unopened:
                return None  # it may be in a directory that is offline: an empty log would hide its data
            log_dir = self._emptiest()
        if log_dir is None or log_dir.offline:
            return None
        try:
            if found is None:
                self._forget_former(log_dir, name)
            segments = self._open_log(log_dir, name, topic, config, existed=found is not None)
            partition = Partition(topic.name, topic.id, index, leader_epoch, segments, context)
        except KafkaError as error:
            log.error("partition is offline, its log is broken", partition=str(name), error=error.detail)
            self._damaged[name] = log_dir
            return None
        except OSError as error:
            self._take_offline(log_dir, error)
            return None
        self._homes[partition] = log_dir
        return partition

    def _take_found(
        self, name: TopicPartition, topic_id: UUID
    ) -> tuple[LogDir, FoundPartition] | tuple[None, None]:
        """Where a partition is on disk. A folder of its name may also be of a topic that was deleted."""
        places = self._found.pop(name, [])
        places.sort(key=lambda place: place[1].topic_id != topic_id)  # those that say so come first
        taken = places.pop(0) if places and places[0][1].topic_id in (None, topic_id) else (None, None)
        for log_dir, found in places:
            log_dir.set_aside(found)
        return taken

    def _missing(self, name: TopicPartition) -> LogDir | None:
        """For a partition without a folder: the directory that had records of it at its last clean stop."""
        for log_dir in self._dirs:
            start = log_dir.log_start_offsets.get(name, 0)
            if log_dir.was_clean and log_dir.recovery_points.get(name, 0) > start:
                return log_dir
        return None

    def _forget_former(self, log_dir: LogDir, name: TopicPartition) -> None:
        """A log begins: no checkpoint may speak of a deleted one of its name, nor one that is being written."""
        with self._checkpoints:
            if log_dir.knows_of(name):
                open_ones = {TopicPartition(one.topic, one.index) for one in self._homes}
                log_dir.forget_all_but(open_ones | self._damaged.keys() | self._found.keys())

    def _open_log(
        self, log_dir: LogDir, name: TopicPartition, topic: TopicImage, config: TopicConfig, existed: bool
    ) -> Log:
        return Log.open(
            log_dir.create_partition(name, topic.id),
            config,
            self.disk,
            now_ms=self._clock.now_ms(),
            clean=log_dir.was_clean or not existed,
            recovery_point=log_dir.recovery_points.get(name, 0) if existed else 0,
            log_start_offset=log_dir.log_start_offsets.get(name, 0) if existed else 0,
            handles=self._handles,
        )

    def _emptiest(self) -> LogDir | None:
        counts = {log_dir.path: 0 for log_dir in self._dirs}
        for log_dir in self._homes.values():
            counts[log_dir.path] += 1
        usable = [log_dir for log_dir in self._dirs if not log_dir.offline]
        return min(usable, key=lambda log_dir: counts[log_dir.path], default=None)

    def home(self, partition: Partition) -> LogDir:
        """The directory that a partition lives in."""
        return self._homes[partition]

    def delete_partition(self, partition: Partition) -> None:
        """Take a partition's log away; its space is freed by a thread."""
        log_dir = self._homes.pop(partition)
        offline = partition.offline
        partition.go_offline()
        if not offline:
            try:
                partition.log.delete()
            except OSError as error:
                self._take_offline(log_dir, error)
        self._free_space()

    def _free_space(self) -> None:
        def remove() -> None:
            for log_dir in self._dirs:
                if not log_dir.offline:
                    log_dir.remove_deleted()

        self._in_thread(remove)

    def apply_retention(self, partition: Partition, now_ms: int) -> None:
        """Give up what the topic no longer keeps."""
        try:
            if partition.log.apply_retention(now_ms, partition.high_watermark):
                self._in_thread(partition.log.unlink_removed)
        except OSError as error:
            self.failed(partition, error)

    def settle_swap(self, partition: Partition, replaced: list[Segment]) -> None:
        """Make the swap of a compacted segment survive a crash, and free the space of what it replaced."""

        def work() -> None:
            try:
                settle(partition.log, replaced)
            except OSError as error:
                self._loop.call_soon_threadsafe(self.failed, partition, error)

        self._in_thread(work)

    def write_cleaner_offsets(self, log_dir: LogDir, offsets: dict[Partition, int]) -> None:
        """Write down up to where the logs of a directory are compacted, in a thread; what is deleted is left out."""

        def write() -> None:
            with self._checkpoints:
                log_dir.write_cleaner_offsets(
                    {
                        TopicPartition(partition.topic, partition.index): offset
                        for partition, offset in offsets.items()
                        if self._homes.get(partition) is log_dir
                    }
                )

        self._in_thread(write)

    # Durability and failure.

    def sync_soon(self, partition: Partition) -> None:
        """Have a partition's log fsynced by the group commit of its directory."""
        log_dir = self._homes.get(partition)
        if log_dir is None or log_dir.offline:
            return
        commit = self._commits.get(log_dir.path)
        if commit is None:
            commit = self._commits[log_dir.path] = GroupCommit(log_dir.path, self.failed)
        commit.request(partition)

    def failed(self, partition: Partition, error: OSError) -> None:
        """The disk under a partition is broken."""
        log_dir = self._homes.get(partition)
        if log_dir is not None:
            self._take_offline(log_dir, error)

    def _take_offline(self, log_dir: LogDir, error: OSError) -> None:
        if log_dir.fail(error):
            for partition, home in self._homes.items():
                if home is log_dir:
                    partition.go_offline()

    @property
    def offline(self) -> list[str]:
        """The directories that cannot be used until the next start."""
        return self._unopened + [log_dir.path for log_dir in self._dirs if log_dir.offline]

    def checkpoint(self, partitions: Iterable[Partition]) -> None:
        """Write down where each log is fsynced and where it starts, in a thread."""
        self._in_thread(self._checkpoint_of(partitions))

    def _checkpoint_of(self, partitions: Iterable[Partition]) -> Callable[[], None]:
        """What to write, taken now and written when called."""
        noted = [
            (partition, partition.log.recovery_point, partition.log.log_start_offset)
            for partition in partitions
            if partition in self._homes
        ]

        def write() -> None:
            with self._checkpoints:
                for log_dir in self._dirs:
                    if not log_dir.offline:
                        try:
                            self._write_checkpoint(log_dir, noted)
                        except OSError as error:
                            self._loop.call_soon_threadsafe(self._take_offline, log_dir, error)

        return write

    def _write_checkpoint(self, log_dir: LogDir, noted: list[tuple[Partition, int, int]]) -> None:
        """Write down one directory's part of it. What was deleted meanwhile is left out: its name may be new."""
        points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for name, home in self._damaged.copy().items():
            if home is log_dir:
                points[name] = home.recovery_points.get(name, 0)
                starts[name] = home.log_start_offsets.get(name, 0)
        for partition, recovery_point, log_start_offset in noted:
            if self._homes.get(partition) is log_dir:
                name = TopicPartition(partition.topic, partition.index)
                points[name] = recovery_point
                starts[name] = log_start_offset
        log_dir.write_recovery_points(points)
        log_dir.write_log_start_offsets(starts)

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Run file work off the loop; what fails there is said and breaks nothing that is running."""

        def run() -> None:
            try:
                work()
            except OSError as error:
                log.error("work on files failed", error=str(error))

        self._loop.run_in_executor(self._threads, run)

    def _sync_all(self, partitions: list[Partition]) -> list[tuple[Partition, OSError | None]]:
        """Bring all logs to the disk, several at a time, since the disk is what is waited for."""

        def sync(partition: Partition) -> tuple[Partition, OSError | None]:
            try:
                partition.log.flush()
            except OSError as error:
                return partition, error
            return partition, None

        with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync") as threads:
            return list(threads.map(sync, partitions))

    def close(self, partitions: Iterable[Partition]) -> None:
        """Close every log cleanly and let the directories go."""
        for commit in self._commits.values():
            commit.close()
        self._threads.shutdown(wait=True)
        closed = []
        for partition, failure in self._sync_all([one for one in partitions if not one.offline]):
            if failure is not None:
                self.failed(partition, failure)
            elif not partition.offline:
                try:
                    partition.close()
                    closed.append(partition)
                except OSError as error:
                    self.failed(partition, error)
        if not self._starting:
            self._checkpoint_of(closed)()
        for log_dir in self._dirs:
            unused = log_dir.was_clean and not self._homes  # a start that failed early has changed nothing
            try:
                log_dir.close(clean=unused or not self._starting)
            except OSError as error:
                self._take_offline(log_dir, error)
        self._handles.close_all()

"""The log dirs of a broker: opens, creates, checkpoints and deletes the logs of partitions.

An I/O error takes its log dir offline with every partition in it; the process and the other log dirs continue.
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
from levada.storage.checkpoints import NEW_LOG
from levada.storage.compaction.swap import complete_swap
from levada.storage.disk import Disk
from levada.storage.handles import FileHandleCache
from levada.storage.log.log import Log
from levada.storage.log.segment import LogSegment
from levada.storage.log_dir import FoundPartition, LogDir, LogDirError

log = EventLog(__name__)

FLUSH_THREADS = 16


class LogDirs:
    """All log dirs (`log.dirs`)."""

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock, open_files_max: int) -> None:
        self.disk = disk
        self.paths = [os.path.abspath(path) for path in config.log_dirs]
        self._config = config
        self._clock = clock
        self._handles = FileHandleCache(disk, open_files_max)
        self._dirs: list[LogDir] = []
        self._unopened: list[str] = []  # log dirs that failed at the start
        self._found: dict[TopicPartition, list[tuple[LogDir, FoundPartition]]] = {}  # on disk, not opened yet
        self._unavailable: set[tuple[UUID, int]] = set()  # partitions whose log cannot be opened
        self._partitions: dict[Partition, LogDir] = {}  # every open partition
        self._corrupt: dict[TopicPartition, LogDir] = {}  # logs that could not be opened
        self._commits: dict[str, GroupCommit] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="log-files")
        self._checkpoints = Lock()  # held while checkpoint files are written
        self._loop = asyncio.get_running_loop()
        self._starting = True

    def lock(self) -> None:
        """Lock the log dirs. One that fails is offline; LogDirError if it is the first, which holds the metadata."""
        for path in self.paths:
            try:
                log_dir = LogDir.open(path, self.disk, node_id=self._config.node_id)
            except OSError as error:
                if path == self.paths[0]:
                    why = error.strerror or str(error)
                    if isinstance(error, FileExistsError | NotADirectoryError):
                        why = "it is not a directory; name another with --data or log.dirs"
                    raise LogDirError(f"{path}, which holds the metadata, cannot be used: {why}") from error
                log.error("log dir is offline", log_dir=path, error=str(error))
                self._unopened.append(path)
                continue
            self._dirs.append(log_dir)
            for found in log_dir.partitions():
                self._found.setdefault(found.partition, []).append((log_dir, found))

    @property
    def first(self) -> str:
        """The log dir that also holds the metadata."""
        return self._dirs[0].path

    @property
    def hold_partitions(self) -> bool:
        """Whether there are partitions on disk that are not opened yet."""
        return bool(self._found)

    @property
    def cluster_id(self) -> str | None:
        """The cluster of the log dirs; None if all are new."""
        return next((log_dir.cluster_id for log_dir in self._dirs if log_dir.cluster_id), None)

    def join(self, cluster_id: str) -> None:
        """Assign new log dirs to the cluster; LogDirError if one belongs to another."""
        for log_dir in self._dirs:
            log_dir.join(cluster_id)
        unclean = sum(not log_dir.was_clean for dirs in self._found.values() for log_dir, _ in dirs)
        if unclean:
            log.info("unclean shutdown detected, recovering logs", partitions=unclean)

    def mark_strays(self) -> None:
        """Mark the remaining partitions on disk as stray: all partitions of the image are open now."""
        self._starting = False
        for dirs in self._found.values():
            for log_dir, found in dirs:
                log_dir.mark_stray(found)
        self._found.clear()
        self._delete_partition_files()

    def open_partition(
        self, topic: TopicImage, index: int, leader_epoch: int, config: TopicConfig, context: PartitionContext
    ) -> Partition | None:
        """Open or create the log of a partition; None if its log dir is not available.

        A log that could not be opened is not created before the next start: an empty log would hide its data.
        """
        if (topic.id, index) in self._unavailable:
            return None
        partition = self._open_partition(topic, index, leader_epoch, config, context)
        if partition is None:
            self._unavailable.add((topic.id, index))
        return partition

    def _open_partition(
        self, topic: TopicImage, index: int, leader_epoch: int, config: TopicConfig, context: PartitionContext
    ) -> Partition | None:
        name = TopicPartition(topic.name, index)
        log_dir, found = self._take_found(name, topic.id)
        if log_dir is None and self._starting and (former := self._missing_from(name)):
            where = f"{former.path}/{name} is missing, but it had records at the last checkpoint"
            log.error("partition is offline, its log is corrupt", partition=str(name), error=where)
            self._corrupt[name] = former
            return None
        if log_dir is None:
            if self._starting and self._unopened:
                return None  # it may be in an offline log dir: an empty log would hide its data
            log_dir = self._least_used()
        if log_dir is None or log_dir.offline:
            return None
        try:
            if found is None:
                self._remove_checkpoints(log_dir, name)
            segments = self._open_log(log_dir, name, topic, config, existed=found is not None)
            partition = Partition(topic.name, topic.id, index, leader_epoch, segments, context)
        except KafkaError as error:
            log.error("partition is offline, its log is corrupt", partition=str(name), error=error.detail)
            self._corrupt[name] = log_dir
            return None
        except OSError as error:
            self._take_offline(log_dir, error)
            return None
        self._partitions[partition] = log_dir
        return partition

    def _take_found(self, name: TopicPartition, topic_id: UUID) -> tuple[LogDir, FoundPartition] | tuple[None, None]:
        """Return where a partition is on disk. A directory of its name may also belong to a deleted topic."""
        candidates = self._found.pop(name, [])
        candidates.sort(key=lambda candidate: candidate[1].topic_id != topic_id)  # the one with the id first
        usable = bool(candidates) and candidates[0][1].topic_id in (None, topic_id)
        taken = candidates.pop(0) if usable else (None, None)
        for log_dir, found in candidates:
            log_dir.mark_stray(found)
        return taken

    def _missing_from(self, name: TopicPartition) -> LogDir | None:
        """Return the log dir that had records of a missing partition."""
        for log_dir in self._dirs:
            if log_dir.recovery_points.get(name, 0) > log_dir.log_start_offsets.get(name, 0):
                return log_dir
        return None

    def _remove_checkpoints(self, log_dir: LogDir, name: TopicPartition) -> None:
        """Remove a deleted log of this name from the checkpoints, also from one that is being written."""
        with self._checkpoints:
            if log_dir.has_checkpoint(name):
                open_ones = {TopicPartition(one.topic, one.index) for one in self._partitions}
                log_dir.retain_checkpoints(open_ones | self._corrupt.keys() | self._found.keys())

    def _open_log(
        self, log_dir: LogDir, name: TopicPartition, topic: TopicImage, config: TopicConfig, existed: bool
    ) -> Log:
        checkpoint = log_dir.checkpoint_of(name) if existed else NEW_LOG
        directory, now_ms = log_dir.create_partition(name, topic.id), self._clock.now_ms()
        return Log.open(directory, config, self.disk, now_ms=now_ms, handles=self._handles, **checkpoint._asdict())

    def _least_used(self) -> LogDir | None:
        counts = {log_dir.path: 0 for log_dir in self._dirs}
        for log_dir in self._partitions.values():
            counts[log_dir.path] += 1
        usable = [log_dir for log_dir in self._dirs if not log_dir.offline]
        return min(usable, key=lambda log_dir: counts[log_dir.path], default=None)

    def log_dir_of(self, partition: Partition) -> LogDir:
        """Return the log dir of a partition."""
        return self._partitions[partition]

    def delete_partition(self, partition: Partition) -> None:
        """Delete the log of a partition; a thread deletes its files."""
        log_dir = self._partitions.pop(partition)
        offline = partition.offline
        partition.go_offline()
        if not offline:
            try:
                partition.log.delete()
            except OSError as error:
                self._take_offline(log_dir, error)
        self._delete_partition_files()

    def _delete_partition_files(self) -> None:
        def remove() -> None:
            for log_dir in self._dirs:
                if not log_dir.offline:
                    log_dir.delete_partition_files()

        self._in_thread(remove)

    def apply_retention(self, partition: Partition, now_ms: int) -> None:
        """Delete the segments beyond the retention of the topic."""
        try:
            if partition.log.apply_retention(now_ms, partition.high_watermark):
                self._in_thread(partition.log.delete_segment_files)
        except OSError as error:
            self.failed(partition, error)

    def complete_swap(self, partition: Partition, replaced: list[LogSegment]) -> None:
        """Make the swap of a compacted segment durable and delete the replaced files, in a thread."""

        def work() -> None:
            try:
                complete_swap(partition.log, replaced)
            except OSError as error:
                self._loop.call_soon_threadsafe(self.failed, partition, error)

        self._in_thread(work)

    def write_cleaner_offsets(self, log_dir: LogDir, offsets: dict[Partition, int]) -> None:
        """Checkpoint the cleaner offsets of a log dir in a thread, without deleted partitions."""

        def write() -> None:
            with self._checkpoints:
                log_dir.write_cleaner_offsets(
                    {
                        TopicPartition(partition.topic, partition.index): offset
                        for partition, offset in offsets.items()
                        if self._partitions.get(partition) is log_dir
                    }
                )

        self._in_thread(write)

    def request_flush(self, partition: Partition) -> None:
        """Request a flush of a partition's log from the group commit of its log dir."""
        log_dir = self._partitions.get(partition)
        if log_dir is None or log_dir.offline:
            return
        commit = self._commits.get(log_dir.path)
        if commit is None:
            commit = self._commits[log_dir.path] = GroupCommit(log_dir.path, self.failed)
        commit.request(partition)

    def failed(self, partition: Partition, error: OSError) -> None:
        """Take the log dir of a partition offline after an I/O error."""
        log_dir = self._partitions.get(partition)
        if log_dir is not None:
            self._take_offline(log_dir, error)

    def fail_partition(self, partition: Partition, detail: str) -> None:
        """Take one open partition offline until the next start, because its log is damaged."""
        log_dir = self._partitions.get(partition)
        if log_dir is not None and not partition.offline:
            partition.go_offline()
            name = TopicPartition(partition.topic, partition.index)
            log_dir.recovery_points[name] = partition.log.recovery_point
            log_dir.log_start_offsets[name] = min(partition.log.log_start_offset, partition.log.recovery_point)
            self._corrupt[name] = log_dir
            log.error("partition is offline", partition=str(name), error=detail)

    def _take_offline(self, log_dir: LogDir, error: OSError) -> None:
        if log_dir.fail(error):
            for partition, owner in self._partitions.items():
                if owner is log_dir:
                    partition.go_offline()

    @property
    def offline(self) -> list[str]:
        """The log dirs that are offline until the next start."""
        return self._unopened + [log_dir.path for log_dir in self._dirs if log_dir.offline]

    def checkpoint(self, partitions: Iterable[Partition]) -> None:
        """Checkpoint recovery points and log start offsets in a thread; no log start is beyond its recovery point."""
        for partition in partitions:
            if partition.log.log_start_offset > partition.log.recovery_point:
                self.request_flush(partition)
        self._in_thread(self._checkpoint_of(partitions))

    def _checkpoint_of(self, partitions: Iterable[Partition]) -> Callable[[], None]:
        """Return a function that writes the checkpoint of this moment."""
        offsets = [
            (partition, partition.log.recovery_point, partition.log.log_start_offset)
            for partition in partitions
            if partition in self._partitions
        ]

        def write() -> None:
            with self._checkpoints:
                for log_dir in self._dirs:
                    if not log_dir.offline:
                        try:
                            self._write_checkpoint(log_dir, offsets)
                        except OSError as error:
                            self._loop.call_soon_threadsafe(self._take_offline, log_dir, error)

        return write

    def _write_checkpoint(self, log_dir: LogDir, offsets: list[tuple[Partition, int, int]]) -> None:
        """Write the checkpoint of one log dir, without partitions deleted meanwhile: their name may be in use again."""
        points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for name, owner in self._corrupt.copy().items():
            if owner is log_dir:
                points |= {name: owner.recovery_points[name]} if name in owner.recovery_points else {}
                starts |= {name: owner.log_start_offsets[name]} if name in owner.log_start_offsets else {}
        for partition, recovery_point, log_start_offset in offsets:
            if self._partitions.get(partition) is log_dir:
                name = TopicPartition(partition.topic, partition.index)
                points[name] = recovery_point
                starts[name] = min(log_start_offset, recovery_point)
        log_dir.write_recovery_points(points)
        log_dir.write_log_start_offsets(starts)

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Run file operations in a thread; a failure is logged."""

        def run() -> None:
            try:
                work()
            except OSError as error:
                log.error("file operation failed", error=str(error))

        self._loop.run_in_executor(self._threads, run)

    def _flush_all(self, partitions: list[Partition]) -> list[tuple[Partition, OSError | None]]:
        """Flush all logs in parallel threads."""

        def flush(partition: Partition) -> tuple[Partition, OSError | None]:
            try:
                partition.log.flush()
            except OSError as error:
                return partition, error
            return partition, None

        with ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush") as threads:
            return list(threads.map(flush, partitions))

    def close(self, partitions: Iterable[Partition]) -> None:
        """Close every log cleanly and unlock the log dirs."""
        for commit in self._commits.values():
            commit.close()
        self._threads.shutdown(wait=True)
        closed = []
        for partition, failure in self._flush_all([one for one in partitions if not one.offline]):
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
            unused = log_dir.was_clean and not self._partitions  # the start failed before it changed anything
            try:
                unclean = [name for name, owner in self._corrupt.items() if owner is log_dir]
                log_dir.close(unused or not self._starting, unclean)
            except OSError as error:
                self._take_offline(log_dir, error)
        self._handles.close_all()

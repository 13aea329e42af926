"""The log dirs of a broker: open, flush, delete and close the logs of partitions, all in threads.

An I/O error of the device takes its log dir offline with every partition in it; the process and the other log dirs
continue. An error of one file takes only its partition offline.
"""

import asyncio
import errno
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from levada.broker.fsync import GroupCommit
from levada.broker.log_files.checkpoints import LogCheckpoints
from levada.broker.log_files.opening import LogLocator, LogToOpen, OpenedLog, open_log
from levada.broker.log_files.progress import Progress
from levada.broker.partition.partition import Partition, PartitionContext
from levada.clock import Clock
from levada.config.broker import BrokerConfig
from levada.config.topic import TopicConfig
from levada.core.cluster.image import TopicImage
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import TopicPartition
from levada.storage.compaction.swap import complete_swap
from levada.storage.disk import Disk
from levada.storage.handles import FileHandleCache
from levada.storage.log.deletion import rename_deleted_log
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.storage.log_dir import LogDir, LogDirError

log = EventLog(__name__)

CLOSE_THREADS: Final = 16
LOGS_PER_CALL: Final = 20  # that a thread opens, deletes or closes before the loop continues with them
CLOSING_FILES_MAX: Final = 8
# The device or the file system fails; all other errors concern a file.
LOG_DIR_ERRORS: Final = frozenset((None, errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENODEV))


class OfflineLog(NamedTuple):
    """Why the log of a partition is offline until the next start."""

    topic_id: UUID
    detail: str
    log_dir: LogDir | None = None  # that has its directory


class LogToDelete(NamedTuple):
    """A log of a deleted partition, and the function that renames its directory."""

    log_dir: LogDir
    rename: Callable[[], object]


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
        self._locator = LogLocator(config.node_id, self._dirs, self._unopened)
        self._opening: dict[TopicPartition, LogDir] = {}  # logs on disk that threads are opening
        self._partitions: dict[Partition, LogDir] = {}  # every open partition
        self.offline_logs: dict[TopicPartition, OfflineLog] = {}  # logs that could not be opened, or have failed alone
        self._reasons: set[str] = set()  # why partitions are offline, as logged
        self._commits: dict[str, GroupCommit] = {}
        self.threads_max = config.num_recovery_threads_per_data_dir * len(self.paths)
        self.recovery_threads = ThreadPoolExecutor(self.threads_max, thread_name_prefix="log-recovery")
        self.threads = ThreadPoolExecutor(self.threads_max, thread_name_prefix="log-creation")  # and deletion
        self._files_thread = ThreadPoolExecutor(1, thread_name_prefix="log-files")
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._opened = False  # logs have been located: before that, the checkpoints are left as they are
        self.checkpoints = LogCheckpoints(self._dirs, self._partitions, self._logs_not_open, self)

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
            self._commits[path] = GroupCommit(path, self.failed)
        self._locator.find()

    @property
    def first(self) -> str:
        """The log dir that also holds the metadata."""
        return self._dirs[0].path

    @property
    def hold_partitions(self) -> bool:
        """Whether there are partitions on disk that are not opened yet."""
        return bool(self._locator.found)

    @property
    def cluster_id(self) -> str | None:
        """The cluster of the log dirs; None if all are new."""
        return next((log_dir.cluster_id for log_dir in self._dirs if log_dir.cluster_id), None)

    @property
    def may_lack_messages(self) -> bool:
        """Whether logs may lack messages that were acknowledged: the page cache was lost, or nobody knows."""
        return self.hold_partitions and any(log_dir.may_lack_messages for log_dir in self._dirs)

    def join(self, cluster_id: str) -> None:
        """Assign new log dirs to the cluster; LogDirError if one belongs to another."""
        for log_dir in self._dirs:
            log_dir.join(cluster_id)
        unclean = sum(not log_dir.was_clean for dirs in self._locator.found.values() for log_dir, _ in dirs)
        if unclean:
            log.info("unclean shutdown detected, recovering logs", partitions=unclean)

    # Opening.

    def check_usable(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if no log dir can take a new partition."""
        if not self.is_usable:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all log dirs are offline")

    @property
    def is_usable(self) -> bool:
        """Whether a log dir can take a new partition."""
        return any(not log_dir.offline for log_dir in self._dirs)

    def locate(self, topic: TopicImage, index: int, config: TopicConfig) -> LogToOpen | None:
        """Return where the log of a partition is, or is to be created; None if it is offline."""
        self._opened = True
        name = TopicPartition(topic.name, index)
        if name in self.offline_logs:
            return None
        if candidates := self._locator.found.get(name):
            self._opening[name] = candidates[0][0]  # before `found` loses it: a checkpoint must not miss it
        try:
            request = self._locator.locate(topic, index, config)
        except KafkaError as error:
            former = next((log_dir for log_dir in self._dirs if log_dir.has_checkpoint(name)), None)
            self._set_offline(name, OfflineLog(topic.id, error.detail, former))
            self._opening.pop(name, None)
            return None
        if request.existed:
            self._opening[name] = request.log_dir
        else:
            self._opening.pop(name, None)
        return request

    def mark_strays(self) -> None:
        """Mark the remaining directories as stray: all partitions of the metadata are located. Runs in a thread."""
        for log_dir, found in self._locator.strays():
            try:
                log_dir.mark_stray(found)
            except OSError as error:
                log.error("stray partition cannot be renamed", directory=found.directory, error=str(error))

    def recovered(self) -> None:
        """Remember this boot of the machine where every log was recovered. Runs in a thread."""
        damaged = {owner for _, _, owner in self.offline_logs.copy().values()}
        for log_dir in self._dirs:
            if not log_dir.offline and log_dir not in damaged:
                self._guard(log_dir, log_dir.store_boot_id)

    def _guard(self, log_dir: LogDir, work: Callable[[], None]) -> None:
        """Take a log dir offline if a file operation in a thread fails."""
        try:
            work()
        except OSError as error:
            self._loop.call_soon_threadsafe(self.take_offline, log_dir, error)

    def prepare(self, requests: Sequence[LogToOpen]) -> None:
        """Remove deleted logs from the checkpoints before logs of the same names are created. Runs in a thread."""
        created: dict[LogDir, list[TopicPartition]] = defaultdict(list)
        for request in requests:
            if not request.existed:
                created[request.log_dir].append(request.partition)
        self.checkpoints.remove(created)

    def open_logs(self, requests: Sequence[LogToOpen]) -> list[OpenedLog | Exception]:
        """Open some logs; a failure concerns its log only. Runs in a thread."""
        return [self._open_log(request) for request in requests]

    def _open_log(self, request: LogToOpen) -> OpenedLog | Exception:
        try:
            return open_log(request, self.disk, self._clock, self._handles, self._check_open)
        except Exception as error:  # noqa: BLE001 (a bug costs one partition)
            return error

    def _check_open(self, _: int) -> None:
        """Raise KAFKA_STORAGE_ERROR if the broker is stopping: the next start recovers the log."""
        if self._closing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the broker is stopping")

    def opened(self, request: LogToOpen, result: OpenedLog | Exception, context: PartitionContext) -> Partition | None:
        """Return the partition of an opened log; None if it is offline, or can be created in another log dir."""
        try:
            return self._opened_partition(request, result, context)
        finally:
            self._opening.pop(request.partition, None)  # at last: a checkpoint must not miss it

    def _opened_partition(
        self, request: LogToOpen, result: OpenedLog | Exception, context: PartitionContext
    ) -> Partition | None:
        name, topic_id, log_dir = request.partition, request.topic_id, request.log_dir
        if isinstance(result, OSError) and result.errno in LOG_DIR_ERRORS:
            self.take_offline(log_dir, result)
        if log_dir.offline:
            if request.existed:
                self._set_offline(name, OfflineLog(topic_id, f"its log dir {log_dir.path} is offline", log_dir))
            return None
        if isinstance(result, Exception):
            if not isinstance(result, KafkaError | OSError):
                log.error("a log cannot be opened because of a bug", partition=str(name), exc_info=result)
            detail = result.detail if isinstance(result, KafkaError) else str(result)
            self._set_offline(name, OfflineLog(topic_id, detail, log_dir))
            return None
        segments, producers = result
        partition = Partition(name.topic, topic_id, name.partition, request.leader_epoch, segments, context, producers)
        self._partitions[partition] = log_dir
        return partition

    def fsync_created(self, created: Iterable[LogDir]) -> None:
        """Make new directories of partitions durable. Runs in a thread."""
        for log_dir in created:
            self._guard(log_dir, partial(self.disk.fsync_dir, log_dir.path))

    @property
    def partition_count(self) -> int:
        """How many partitions are open."""
        return len(self._partitions)

    def log_dir_of(self, partition: Partition) -> LogDir:
        """Return the log dir of a partition."""
        return self._partitions[partition]

    def logs_to_recover(self) -> dict[TopicPartition, LogDir]:
        """The logs on disk that are not open yet: the start recovers them."""
        found = {name: candidates[0][0] for name, candidates in self._locator.found.copy().items()}
        return found | self._opening

    def remaining_logs(self) -> dict[str, int]:
        """How many logs of each log dir are not open yet, by path."""
        return dict.fromkeys(self.paths, 0) | Counter(log_dir.path for log_dir in self.logs_to_recover().values())

    def _logs_not_open(self) -> Mapping[TopicPartition, LogDir]:
        """The logs on disk that are not open yet, or could not be opened."""
        offline = {name: owner for name, (_, _, owner) in self.offline_logs.copy().items() if owner is not None}
        return self.logs_to_recover() | offline

    # Deleting.

    def remove(self, partition: Partition) -> LogToDelete | None:
        """Close the log of a deleted partition; None if its log dir is offline."""
        log_dir = self._partitions.pop(partition)
        self._locator.logs[log_dir.path] -= 1
        self.offline_logs.pop(TopicPartition(partition.topic, partition.index), None)
        partition.go_offline()
        partition.log.close(clean=False)
        return (
            None
            if log_dir.offline
            else LogToDelete(log_dir, partial(rename_deleted_log, self.disk, partition.log.directory))
        )

    def remove_unopened(self, request: LogToOpen) -> LogToDelete:
        """Return a log of a deleted topic that no thread has opened yet."""
        self._opening.pop(request.partition, None)
        log_dir = request.log_dir
        self._locator.logs[log_dir.path] -= 1
        directory = os.path.join(log_dir.path, str(request.partition))
        return LogToDelete(log_dir, partial(rename_deleted_log, self.disk, directory))

    def remove_offline(self, topic: TopicImage) -> list[LogToDelete]:
        """Return the logs of a deleted topic that are not open; they are renamed as stray, since they are damaged."""
        removed = []
        for index in range(len(topic.partitions)) if self.offline_logs else ():
            name = TopicPartition(topic.name, index)
            _, _, log_dir = self.offline_logs.pop(name, OfflineLog(topic.id, ""))
            if log_dir is not None and not log_dir.offline:
                removed.append(LogToDelete(log_dir, partial(log_dir.rename_as_stray, name)))
        return removed

    def delete_logs(self, logs: Iterable[LogToDelete]) -> None:
        """Rename the directories of deleted partitions. Runs in a thread."""
        for log_dir, rename in logs:
            try:
                rename()
            except OSError as error:
                log.error("directory of a deleted partition cannot be renamed", error=str(error))
                if error.errno in LOG_DIR_ERRORS:
                    self._loop.call_soon_threadsafe(self.take_offline, log_dir, error)

    def delete_files_soon(self) -> None:
        """Delete the files of deleted partitions."""
        self._in_thread(self._delete_partition_files)

    def _delete_partition_files(self) -> None:
        for log_dir in self._dirs:
            if not log_dir.offline:
                log_dir.delete_partition_files(lambda: self._closing)

    def apply_retention(self, partition: Partition, now_ms: int) -> None:
        """Delete the segments beyond the retention of the topic."""
        try:
            if partition.log.apply_retention(now_ms, partition.high_watermark):
                self._in_thread(partition.log.delete_segment_files)
        except OSError as error:
            self.failed(partition, error)

    def complete_swap(self, partition: Partition) -> None:
        """Make the swap of a compacted segment durable and delete the replaced files, in a thread."""

        def work() -> None:
            try:
                complete_swap(partition.log)
            except OSError as error:
                self._loop.call_soon_threadsafe(self.failed, partition, error)

        self._in_thread(work)
        self.request_flush(partition)  # which stores the checksums of the new transaction indexes

    async def write_cleaner_offsets(self, log_dir: LogDir, offsets: dict[Partition, int]) -> None:
        """Checkpoint the cleaner offsets of a log dir in a thread. Raises OSError."""
        not_open = self._logs_not_open()  # of the same moment: a log that is opened meanwhile is not in `offsets`
        work = partial(self.checkpoints.write_cleaner_offsets, log_dir, offsets, not_open)
        await self._loop.run_in_executor(self._files_thread, work)

    def may_be_compacted(self, partition: Partition) -> bool:
        """Whether offsets may be missing in the closed segments of a partition, because it was compacted."""
        name, log_dir = TopicPartition(partition.topic, partition.index), self._partitions.get(partition)
        return log_dir is None or "compact" in partition.log.config.cleanup_policy or log_dir.may_be_compacted(name)

    def request_flush(self, partition: Partition) -> None:
        """Request a flush of a partition's log from the group commit of its log dir."""
        log_dir = self._partitions.get(partition)
        if log_dir is not None and not log_dir.offline:
            self._commits[log_dir.path].request(partition)

    def flush(self, partition: Partition) -> None:
        """Flush a log in the thread of the group commit, since two threads must not flush it. Runs in a thread."""
        log_dir = self._partitions.get(partition)
        if log_dir is not None and not partition.offline:
            self._commits[log_dir.path].thread.submit(partition.log.flush).result()

    # Failures.

    def failed(self, partition: Partition, error: OSError | CorruptBatchError) -> None:
        """Take a partition offline after an error; with its log dir, unless the error concerns one file."""
        log_dir = self._partitions.get(partition)
        if log_dir is None:
            return
        if isinstance(error, OSError) and error.errno in LOG_DIR_ERRORS:
            self.take_offline(log_dir, error)
        else:
            self._remember_end(partition.log)
            detail = error.detail if isinstance(error, CorruptBatchError) else str(error)
            self.fail_partition(partition, detail)

    def _remember_end(self, damaged: Log) -> None:
        """Checkpoint the end of a log whose last segment was cut off meanwhile: the next start must not begin there."""
        try:
            if self.disk.size(damaged.active.fd()) < damaged.active.size:
                damaged.recovery_point = damaged.log_end_offset
                self.checkpoints.write_soon()
        except OSError:
            return  # the next start does not find the file

    def fail_partition(self, partition: Partition, detail: str) -> None:
        """Take one open partition offline until the next start, because its log is damaged."""
        log_dir = self._partitions.get(partition)
        if log_dir is not None and not partition.offline:
            partition.go_offline()
            name = TopicPartition(partition.topic, partition.index)
            self._set_offline(name, OfflineLog(partition.topic_id, detail, log_dir))

    def _set_offline(self, name: TopicPartition, why: OfflineLog) -> None:
        """Log one line for each reason: a log dir that is offline has many partitions."""
        self.offline_logs[name] = why
        if why.detail not in self._reasons:
            self._reasons.add(why.detail)
            log.error("partition is offline", partition=str(name), error=why.detail)

    def take_offline(self, log_dir: LogDir, error: OSError) -> None:
        """Take a log dir offline with all its partitions."""
        if log_dir.fail(error):
            for partition, owner in self._partitions.items():
                if owner is log_dir:
                    partition.go_offline()

    @property
    def offline(self) -> list[str]:
        """The log dirs that are offline until the next start."""
        return self._unopened + [log_dir.path for log_dir in self._dirs if log_dir.offline]

    def damaged_checkpoints(self) -> dict[str, list[str]]:
        """The checkpoints of each log dir that were missing or corrupt at the start, by its path."""
        return {log_dir.path: log_dir.damaged_checkpoints for log_dir in self._dirs}

    def offline_partitions(self) -> set[TopicPartition]:
        """The partitions that are not served until the next start."""
        failed = {TopicPartition(one.topic, one.index) for one in self._partitions if one.offline}
        return failed | self.offline_logs.keys()

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Run file operations in a thread; a failure is logged."""

        def run() -> None:
            try:
                work()
            except OSError as error:
                log.error("file operation failed", error=str(error))

        self._loop.run_in_executor(self._files_thread, run)

    # Closing.

    async def close(self) -> None:
        """Close every log cleanly and unlock the log dirs."""
        self._closing = True
        await asyncio.to_thread(self._stop_threads)
        await self._close_logs([one for one in self._partitions if not one.offline])
        if self._opened:
            await asyncio.to_thread(self.checkpoints.write)
        await asyncio.sleep(0)  # for failures that threads have reported
        for log_dir in self._dirs:
            try:
                log_dir.close(self._opened or log_dir.was_clean, self._unclean_logs(log_dir))
            except OSError as error:
                self.take_offline(log_dir, error)
        self._handles.close_all()

    def _unclean_logs(self, log_dir: LogDir) -> list[TopicPartition]:
        """The logs that the next start must recover: those that failed, and those that were unclean and not opened."""
        failed = [one for one, owner in self._partitions.items() if one.offline and owner is log_dir]
        unread = [name for name, owner in self._logs_not_open().items() if owner is log_dir]
        names = [TopicPartition(one.topic, one.index) for one in failed]
        return names + [name for name in unread if not log_dir.checkpoint_of(name).clean]

    def _stop_threads(self) -> None:
        for threads in (self.recovery_threads, self.threads):
            threads.shutdown(wait=True, cancel_futures=True)
        self.checkpoints.close()
        for commit in self._commits.values():
            commit.close()
        self._files_thread.shutdown(wait=True)

    async def _close_logs(self, partitions: list[Partition]) -> None:
        """Close logs in parallel threads; each uses handles of its own, since the cache belongs to the loop."""
        progress = Progress("closing logs", len(partitions), self._clock)
        chunks = iter([partitions[start : start + LOGS_PER_CALL] for start in range(0, len(partitions), LOGS_PER_CALL)])
        with ThreadPoolExecutor(CLOSE_THREADS, thread_name_prefix="log-closing") as threads:

            async def worker() -> None:
                for chunk in chunks:
                    for partition in chunk:
                        partition.log.use(FileHandleCache(self.disk, CLOSING_FILES_MAX))
                    for partition, error in await self._loop.run_in_executor(threads, _close, chunk):
                        self.failed(partition, error)
                    progress.advance(len(chunk))

            await asyncio.gather(*[worker() for _ in range(CLOSE_THREADS)])


def _close(partitions: list[Partition]) -> list[tuple[Partition, OSError]]:
    """Close some logs; return those that failed. Runs in a thread."""
    failed = []
    for partition in partitions:
        try:
            if partition.log.is_unchanged:
                partition.log.close(clean=False)
            else:
                partition.close()
        except OSError as error:
            failed.append((partition, error))
    return failed

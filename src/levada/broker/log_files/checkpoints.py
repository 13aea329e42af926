"""Writes the checkpoints of log dirs in a thread: recovery points, log start offsets, cleaner offsets.

Recovery points are written before log start offsets, and no log start offset is beyond its recovery point: recovery may
trust that everything below a log start offset was on disk. The entries of logs that are not open are kept.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Protocol
from weakref import WeakSet

from levada.broker.partition.partition import Partition
from levada.model import TopicPartition
from levada.storage.log_dir import LogDir

Offsets = list[tuple[Partition, int, int]]  # recovery point and log start offset of each


class LogFailures(Protocol):
    """Flushes logs, and takes them offline."""

    def flush(self, partition: Partition) -> None: ...

    def failed(self, partition: Partition, error: OSError) -> None: ...

    def take_offline(self, log_dir: LogDir, error: OSError) -> None: ...


class LogCheckpoints:
    """The checkpoint files of all log dirs."""

    def __init__(
        self,
        dirs: Sequence[LogDir],
        partitions: Mapping[Partition, LogDir],
        not_open: Callable[[], Mapping[TopicPartition, LogDir]],
        logs: LogFailures,
    ) -> None:
        self._dirs = dirs
        self._partitions = partitions  # every open partition
        self._not_open = not_open  # the logs whose entries are kept
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._lock = Lock()  # held while files are written
        self.excluded: set[Partition] = set()  # logs that a thread begins anew: the next start knows nothing of them
        self._compacted_elsewhere: WeakSet[Partition] = WeakSet()  # followers whose leader has compacted the log
        self._requested: dict[Partition, None] = {}  # their log start offsets are to be durable
        self._waiters: list[asyncio.Future[None]] = []
        self._running = False

    def write_soon(self) -> None:
        """Checkpoint recovery points and log start offsets."""
        self._loop.run_in_executor(self._thread, self._flush_and_write, list(self._partitions))

    def durable(self, partitions: Iterable[Partition]) -> asyncio.Future[None]:
        """Make log start offsets durable; requests that come during a write share the next one.

        If that fails, the partition is offline when the future is done.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        self._requested.update(dict.fromkeys(partitions))
        if not self._running:
            self._begin()
        return waiter

    def _begin(self) -> None:
        self._running = True
        partitions, self._requested = list(self._requested), {}
        waiters, self._waiters = self._waiters, []
        work = self._loop.run_in_executor(self._thread, self._flush_and_write, partitions)
        work.add_done_callback(lambda _: self._finish(waiters))

    def _finish(self, waiters: list[asyncio.Future[None]]) -> None:
        self._running = False
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._waiters:
            self._begin()

    def _flush_and_write(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            try:
                if partition.log.recovery_point < partition.log.log_start_offset:
                    self._logs.flush(partition)
            except OSError as error:
                self._loop.call_soon_threadsafe(self._logs.failed, partition, error)
        self.write()

    def write(self) -> None:
        """Write the checkpoint of this moment. Runs in a thread."""
        not_open = self._not_open()  # first: a log that is opened meanwhile is in both
        self.write_offsets(self.offsets(), not_open)

    def offsets(self) -> Offsets:
        """Return the offsets of this moment; each start is at most its recovery point."""
        logs = [(one, one.log) for one in list(self._partitions) if one not in self.excluded]
        return [(one, point := log.recovery_point, min(log.log_start_offset, point)) for one, log in logs]

    def write_offsets(self, offsets: Offsets, not_open: Mapping[TopicPartition, LogDir]) -> None:
        """Write these offsets, without partitions deleted meanwhile: their names may be in use again."""
        with self._lock:
            for log_dir in self._dirs:
                if not log_dir.offline:
                    try:
                        self._write(log_dir, offsets, not_open)
                    except OSError as error:
                        self._loop.call_soon_threadsafe(self._logs.take_offline, log_dir, error)

    def _write(self, log_dir: LogDir, offsets: Offsets, not_open: Mapping[TopicPartition, LogDir]) -> None:
        points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for name, owner in not_open.items():
            if owner is log_dir:
                points |= {name: log_dir.recovery_points[name]} if name in log_dir.recovery_points else {}
                starts |= {name: log_dir.log_start_offsets[name]} if name in log_dir.log_start_offsets else {}
        for partition, recovery_point, log_start_offset in offsets:
            if self._partitions.get(partition) is log_dir:
                name = TopicPartition(partition.topic, partition.index)
                points[name] = recovery_point
                starts[name] = log_start_offset
        log_dir.write_recovery_points(points)
        log_dir.write_log_start_offsets(starts)

    def write_high_watermarks(self) -> None:
        """Write the high watermarks of the partitions that have several replicas. Runs in a thread.

        Those of one replica are their log ends. A high watermark that is too low costs nothing but time: the replicas
        find it again together.
        """
        not_open = self._not_open()
        current = [(partition, partition.high_watermark) for partition in list(self._partitions)]
        with self._lock:
            for log_dir in self._dirs:
                offsets = {
                    name: log_dir.high_watermarks[name]
                    for name, owner in not_open.items()
                    if owner is log_dir and name in log_dir.high_watermarks
                }
                for partition, high_watermark in current:
                    if partition.is_replicated and self._partitions.get(partition) is log_dir:
                        offsets[TopicPartition(partition.topic, partition.index)] = high_watermark
                if not log_dir.offline and offsets != log_dir.high_watermarks:
                    try:
                        log_dir.write_high_watermarks(offsets)
                    except OSError as error:
                        self._loop.call_soon_threadsafe(self._logs.take_offline, log_dir, error)

    async def write_high_watermarks_soon(self) -> None:
        """Write the high watermarks in the thread of the checkpoints."""
        await self._loop.run_in_executor(self._thread, self.write_high_watermarks)

    def add_cleaner_offset(self, log_dir: LogDir, partition: Partition) -> None:
        """Add a log to the cleaner's checkpoint that was not cleaned here, but by its leader. Runs in a thread."""
        with self._lock:
            self._compacted_elsewhere.add(partition)
            name = TopicPartition(partition.topic, partition.index)
            log_dir.write_cleaner_offsets({name: 0, **log_dir.stored_cleaner_offsets})

    def write_cleaner_offsets(
        self, log_dir: LogDir, offsets: Mapping[Partition, int], not_open: Mapping[TopicPartition, LogDir]
    ) -> None:
        """Checkpoint the cleaner offsets of a log dir, without deleted partitions. Runs in a thread."""
        with self._lock:
            kept = {
                name: log_dir.cleaner_offsets[name]
                for name, owner in not_open.items()
                if owner is log_dir and name in log_dir.cleaner_offsets
            }
            cleaned = {
                TopicPartition(partition.topic, partition.index): offset
                for partition, offset in offsets.items()
                if self._partitions.get(partition) is log_dir
            }
            elsewhere = {
                TopicPartition(partition.topic, partition.index): 0
                for partition in self._compacted_elsewhere
                if self._partitions.get(partition) is log_dir
            }
            log_dir.write_cleaner_offsets(elsewhere | kept | cleaned)

    def remove(self, created: Mapping[LogDir, Sequence[TopicPartition]]) -> None:
        """Remove deleted logs from the checkpoints before logs of the same names are created. Runs in a thread."""
        with self._lock:
            for log_dir, names in created.items():
                try:
                    log_dir.remove_checkpoints(names)
                except OSError as error:
                    self._loop.call_soon_threadsafe(self._logs.take_offline, log_dir, error)

    def close(self) -> None:
        """Finish the write under way."""
        self._thread.shutdown(wait=True, cancel_futures=True)

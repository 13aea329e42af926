"""Truncates the logs of followers in one thread, off the event loop.

A truncation copies up to a segment and waits for the device, and a failover truncates many logs at once. The loop hands
a log over to the thread, and does nothing with it until it is back: `Partition.truncating`. The recovery points of all
logs that were truncated together are stored once, before any of them is appended to again.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from levada.broker.partition.partition import Partition
from levada.broker.partition.transactions import load_producers
from levada.core.partition.producer_state import ProducerStates
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.disk import Disk
from levada.storage.handles import FileHandleCache
from levada.storage.log.segment import CorruptBatchError

log = EventLog(__name__)

FILES_MAX: Final = 8
LOGS_PER_ROUND: Final = 50


class Truncation(NamedTuple):
    """A log to truncate to an offset, or to restart there without any batch."""

    partition: Partition
    offset: int
    restart: bool


class LogOwner(Protocol):
    """Owns the logs and their checkpoints."""

    def forget_checkpoints(self, partitions: Iterable[Partition]) -> None:
        """Remove logs from the checkpoints, until `write_checkpoints`. Runs in the thread."""
        ...

    def write_checkpoints(self) -> None:
        """Write the recovery points of this moment. Runs in the thread."""
        ...

    def use_shared_handles(self, partition: Partition) -> None:
        """Take a log back."""
        ...

    def failed(self, partition: Partition, error: OSError | CorruptBatchError) -> None: ...


class LogTruncations:
    """The truncations of all log dirs."""

    def __init__(self, disk: Disk, owner: LogOwner) -> None:
        self.done: Callable[[Partition], None] = lambda _: None  # called with each log that is back
        self._disk = disk
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-truncation")
        self._requested: list[Truncation] = []
        self._waiters: dict[Partition, asyncio.Future[None]] = {}
        self._running = False

    def request(self, partition: Partition, offset: int, *, restart: bool) -> None:
        """Hand a log over to the thread, which truncates it."""
        assert not partition.truncating
        partition.truncating = True
        partition.log.truncations += 1  # cleaner and scrub give up what they have begun
        partition.log.use(FileHandleCache(self._disk, FILES_MAX))
        self._waiters[partition] = self._loop.create_future()
        self._requested.append(Truncation(partition, offset, restart))
        if not self._running:
            self._begin()

    async def finished(self, partition: Partition) -> None:
        """Return when a log is not in the hands of the thread."""
        waiter = self._waiters.get(partition)
        if waiter is not None:
            await asyncio.wait((waiter,))

    def close(self) -> None:
        """Finish what has begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _begin(self) -> None:
        self._running = True
        some, self._requested = self._requested[:LOGS_PER_ROUND], self._requested[LOGS_PER_ROUND:]
        self._loop.run_in_executor(self._thread, self._work, some)

    def _work(self, truncations: list[Truncation]) -> None:
        """Runs in the thread."""
        results: list[tuple[Partition, ProducerStates | Exception]] = []
        try:
            self._owner.forget_checkpoints([one.partition for one in truncations if one.restart])
            results = [(one.partition, self._truncated(one)) for one in truncations]
            self._owner.write_checkpoints()
        except Exception as error:  # noqa: BLE001 (the logs go offline)
            results = [(one.partition, error) for one in truncations]
        self._loop.call_soon_threadsafe(self._finish, results)

    def _truncated(self, one: Truncation) -> ProducerStates | Exception:
        """Truncate one log; return its producer states. A failure concerns this log only."""
        segments = one.partition.log
        try:
            if one.restart:
                segments.restart_at(one.offset)
            else:
                segments.truncate_to(one.offset)
            return load_producers(segments)
        except Exception as error:  # noqa: BLE001 (a bug costs one partition)
            return error

    def _finish(self, results: list[tuple[Partition, ProducerStates | Exception]]) -> None:
        self._running = False
        for partition, result in results:
            partition.truncating = False
            partition.log.truncations += 1  # what was read meanwhile is void, too
            self._owner.use_shared_handles(partition)
            if isinstance(result, ProducerStates):
                partition.truncated(result)
            else:
                self._report(partition, result)
            self._waiters.pop(partition).set_result(None)
            if not partition.offline:
                self.done(partition)
        if self._requested:
            self._begin()

    def _report(self, partition: Partition, error: Exception) -> None:
        if not isinstance(error, OSError | CorruptBatchError):
            name = f"{partition.topic}-{partition.index}"
            log.error("a log cannot be truncated", partition=name, exc_info=error)
            detail = error.detail if isinstance(error, KafkaError) else str(error)
            error = CorruptBatchError(partition.log.directory, 0, f"{ErrorCode.KAFKA_STORAGE_ERROR.name}: {detail}")
        self._owner.failed(partition, error)

"""Group commit: fsync takes milliseconds and never runs on the event loop.

One thread per log dir fsyncs all partitions requested since its last run, so that a thousand waiting producers share
one fsync per partition. A failed fsync takes the partition offline and is not retried: the kernel may have dropped the
pages.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from levada.broker.partition.partition import Partition

Failed = Callable[[Partition, OSError], None]


class GroupCommit:
    """The fsyncs of one log dir."""

    def __init__(self, name: str, failed: Failed) -> None:
        self._loop = asyncio.get_running_loop()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"fsync-{name}")
        self._failed = failed
        self._requested: dict[Partition, None] = {}  # first in, first out
        self._running = False
        self._closed = False

    def request(self, partition: Partition) -> None:
        """Fsync everything that is published in the partition; `partition.synced` follows."""
        self._requested[partition] = None
        if not self._running:
            self._begin()

    def close(self) -> None:
        """Finish the running fsyncs; the others happen when their logs are closed."""
        self._closed = True
        self.thread.shutdown(wait=True)

    def _begin(self) -> None:
        self._running = True
        partitions, self._requested = list(self._requested), {}
        self._loop.run_in_executor(self.thread, self._sync, partitions)

    def _sync(self, partitions: list[Partition]) -> None:
        """Runs in the thread."""
        results: list[tuple[Partition, OSError | None]] = []
        for partition in partitions:
            try:
                partition.log.flush()
                results.append((partition, None))
            except OSError as error:
                results.append((partition, error))
        self._loop.call_soon_threadsafe(self._finish, results)

    def _finish(self, results: list[tuple[Partition, OSError | None]]) -> None:
        self._running = False
        for partition, error in results:
            if partition.offline:
                continue
            if error is None:
                partition.synced()
            else:
                self._failed(partition, error)
        if self._requested and not self._closed:
            self._begin()

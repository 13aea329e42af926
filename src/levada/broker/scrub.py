"""The scrub: reads segments slowly in the background and takes partitions with corrupt batches offline.

CRCs are checked when a batch is appended, recovered or compacted, not when it is fetched. The scrub finds damage of
files that no client reads, while a backup or another copy of the records may still exist.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Final, NamedTuple

from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.logs import EventLog
from levada.storage.disk import RESOURCE_ERRORS
from levada.storage.log.scrub import scrub_segment
from levada.storage.log.segment import CorruptBatchError, LogSegment

log = EventLog(__name__)

PARTITIONS_PER_ITERATION: Final = 20
INTERVAL_S: Final = 24 * 3600.0  # a segment is not read again before
PAUSE_S: Final = 60.0  # between searches for segments to read


class PublishedSegment(NamedTuple):
    """A segment of a partition, and the base offset of the next one; None for the active segment."""

    partition: Partition
    segment: LogSegment
    following: int | None


class StoppedError(Exception):
    """The broker stops."""


class Scrub:
    """Reads the segments of one broker, the one whose last check is the oldest first."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._bytes_per_second = broker.config.levada_scrub_bytes_per_second
        self._checked: dict[str, float] = {}  # when, by path
        self._stopping = Event()

    def start(self) -> None:
        """Start the task unless the rate is 0."""
        if self._bytes_per_second:
            self._broker.tasks.start("scrub", self._run())

    async def _run(self) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="scrub")
        try:
            while True:
                await asyncio.sleep(PAUSE_S)
                for published in await self.due():
                    await self.check(published, thread)
        finally:
            self._stopping.set()
            thread.shutdown(wait=False)

    async def due(self) -> list[PublishedSegment]:
        """Return the segments that are due for a check, the oldest check first."""
        now, found = self._broker.clock.monotonic(), []
        checked: dict[str, float] = {}
        for number, partition in enumerate(list(self._broker.partitions.values())):
            segments = [] if partition.offline or partition.truncating else partition.log.segments
            bases = [segment.base_offset for segment in segments]
            for segment, following in zip(segments, [*bases[1:], None], strict=False):
                last = checked[segment.path] = self._checked.get(segment.path, float("-inf"))
                if now - last >= INTERVAL_S and segment.size:
                    found.append((last, PublishedSegment(partition, segment, following)))
            if number % PARTITIONS_PER_ITERATION == 0:
                await asyncio.sleep(0)
        self._checked = checked  # without segments that are gone
        return [published for _, published in sorted(found, key=lambda pair: pair[0])]

    async def check(self, published: PublishedSegment, thread: ThreadPoolExecutor) -> None:
        """Read one segment in the thread; a corrupt batch takes its partition offline."""
        partition, segment, following = published
        if partition.offline or partition.truncating or segment.deleted:
            return
        truncations = partition.log.truncations
        disk, loop = self._broker.log_dirs.disk, asyncio.get_running_loop()
        is_compacted = self._broker.log_dirs.may_be_compacted(partition)
        contiguous = (following is None and not partition.is_replicated) or not is_compacted
        arguments = (segment.path, segment.base_offset, segment.size, following, self._throttle)
        try:
            await loop.run_in_executor(thread, partial(scrub_segment, disk, *arguments, contiguous=contiguous))
        except StoppedError:
            return
        except FileNotFoundError:
            self._report(published, CorruptBatchError(segment.path, 0, "the file is missing"))
        except CorruptBatchError as error:
            if truncations == partition.log.truncations:
                self._report(published, error)
        except OSError as error:
            if error.errno in RESOURCE_ERRORS:
                return  # the next round reads it again
            self._broker.log_dirs.failed(partition, error)
        self._broker.scrub_metrics.segments += 1
        self._checked[segment.path] = self._broker.clock.monotonic()

    def _report(self, published: PublishedSegment, error: CorruptBatchError) -> None:
        partition, segment, _ = published
        if segment.deleted or partition.offline or partition.truncating:
            return  # by retention or compaction, or with the topic
        self._broker.scrub_metrics.corrupt += 1
        log.error(
            "corrupt batch found",
            partition=f"{partition.topic}-{partition.index}",
            file=error.path,
            position=error.position,
            offset=segment.base_offset if error.offset is None else error.offset,
            reason=error.reason,
        )
        self._broker.log_dirs.fail_partition(partition, error.detail)

    def _throttle(self, size: int) -> None:
        """Wait as long as a read of this size may take. Runs in the thread."""
        self._broker.scrub_metrics.bytes_read += size
        if self._stopping.wait(size / self._bytes_per_second):
            raise StoppedError

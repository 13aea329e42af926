"""Runs log compaction: selects a log, lets a cleaner process clean it, and swaps in the cleaned segments.

The loop only inspects offsets and sizes and renames files; the cleaner process reads, hashes and writes. Segments are
swapped in the order of the log, and a cleaning stops at the first failed swap: a tombstone may be removed only after
all the records before it that it deletes.
"""

import asyncio
import errno
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from levada.broker.compaction.process import CleanerDiedError, CleanerProcess
from levada.broker.partition.partition import Partition
from levada.config.settings import LONG_MAX
from levada.logs import EventLog
from levada.model import TopicPartition
from levada.storage.compaction.messages import CleanedSegment, CleaningFailed, CleaningFinished
from levada.storage.compaction.plan import LogToClean, cleaning_job, dirtiest, first_timestamp, inspect_log
from levada.storage.compaction.swap import SwapRefusedError, swap
from levada.storage.log.segment import LogSegment

if TYPE_CHECKING:
    from levada.broker.broker import Broker

PARTITIONS_PER_ITERATION: Final = 20
BACKOFF_S_MIN: Final = 0.02
RETRY_BACKOFF_S_MAX: Final = 3600.0
FLUSH_POLL_S: Final = 0.02
FLUSH_TIMEOUT_S: Final = 60.0
PROCESS_IDLE_S_MAX: Final = 60.0  # then the process is stopped, which frees its memory

log = EventLog(__name__)


@dataclass(slots=True)
class CleanerMetrics:
    """Counts since the start, and gauges of the last check."""

    cleanings: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    dirty_ratio_max: float = 0.0  # of all compacted logs
    uncleanable: int = 0  # logs whose cleaning failed, until their next retry


class CleanedUpTo(NamedTuple):
    """The end offset of the last cleaning of a log, and its count of truncations at that time."""

    end_offset: int
    truncations: int


class DurableState(NamedTuple):
    """Transactions and producers of a partition as of a moment up to which everything is fsynced."""

    stable_offset: int
    last_batches: list[tuple[int, int, int, int]]


class Uncleanable(NamedTuple):
    """A log whose cleaning failed is not retried before `retry_at`."""

    retry_at: float
    failures: int


class LogChangedError(Exception):
    """Retention, a truncation or a deletion has removed what a cleaning works on, which is normal."""


class LogCleaner:
    """Compacts all logs of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._cleaned: dict[Partition, CleanedUpTo] = {}
        self._in_progress: set[Partition] = set()
        self._uncleanable: dict[Partition, Uncleanable] = {}
        self._metrics = broker.cleaner_metrics
        broker.partition_listeners.append(self._on_partition)

    def _on_partition(self, partition: Partition) -> None:
        """Continue from the checkpoint of a log that is open now; from its start if the log was truncated below it."""
        offsets = self._broker.log_dirs.log_dir_of(partition).cleaner_offsets
        offset = offsets.get(_topic_partition(partition))
        if offset is not None:
            start, end = partition.log.log_start_offset, partition.log.log_end_offset
            self._cleaned[partition] = CleanedUpTo(offset if offset <= end else start, partition.log.truncations)

    def start(self) -> None:
        """Start the cleaner tasks."""
        broker = self._broker
        if broker.config.cleaner.log_cleaner_enable:
            for number in range(broker.config.cleaner.log_cleaner_threads):
                broker.tasks.start(f"cleaner-{number}", self._run())

    async def _run(self) -> None:
        """Clean one log after the other with one cleaner process."""
        broker, process = self._broker, CleanerProcess()
        used = broker.clock.monotonic()
        try:
            while True:
                backoff_ms = broker.current_config().cleaner.log_cleaner_backoff_ms
                await asyncio.sleep(max(BACKOFF_S_MIN, backoff_ms / 1000))
                while (partition := await self._select()) is not None:
                    await self._clean_log(partition, process)
                    used = broker.clock.monotonic()
                if broker.clock.monotonic() - used > PROCESS_IDLE_S_MAX:
                    await process.stop()
        finally:
            await process.stop()

    async def _select(self) -> Partition | None:
        """Return the dirtiest cleanable log, and mark its cleaning as in progress."""
        self._remove_deleted()
        logs: list[tuple[Partition, LogToClean, float]] = []
        for number, partition in enumerate(list(self._broker.partitions.values())):
            if self._is_cleanable(partition):
                found = self._inspect(partition, partition.last_stable_offset)
                logs.append((partition, found, partition.log.config.min_cleanable_dirty_ratio))
            if number % PARTITIONS_PER_ITERATION == 0:
                await asyncio.sleep(0)
        self._metrics.dirty_ratio_max = max([found.dirty_ratio for _, found, _ in logs], default=0.0)
        self._metrics.uncleanable = len(self._uncleanable)
        selected = dirtiest(entry for entry in logs if self._is_cleanable(entry[0]))
        if selected is not None:
            self._in_progress.add(selected)
        return selected

    def _is_cleanable(self, partition: Partition) -> bool:
        failed = self._uncleanable.get(partition)
        return (
            "compact" in partition.log.config.cleanup_policy
            and not partition.offline
            and not partition.truncating
            and partition not in self._in_progress
            and (failed is None or failed.retry_at <= self._broker.clock.monotonic())
        )

    def _inspect(self, partition: Partition, stable_offset: int) -> LogToClean:
        segments, now_ms = partition.log, self._broker.clock.now_ms()
        cleaned = self._cleaned.get(partition)
        if cleaned is not None and cleaned.truncations != segments.truncations:
            cleaned = None  # other batches may have taken the place of the cleaned ones
        checkpoint = None if cleaned is None else cleaned.end_offset
        try:
            lag_ms = segments.config.max_compaction_lag_ms
            if lag_ms < LONG_MAX and 0 <= first_timestamp(segments.active) < now_ms - lag_ms:
                segments.roll(now_ms)
            return inspect_log(segments, stable_offset, checkpoint, now_ms)
        except OSError as error:
            self._broker.log_dirs.failed(partition, error)
            return LogToClean(0, 0, 0, 0)

    async def _clean_log(self, partition: Partition, process: CleanerProcess) -> None:
        """Clean one log and swap in the cleaned segments."""
        try:
            state = await self._durable_state(partition)
            found = self._inspect(partition, state.stable_offset)
            if found.dirty_bytes and not partition.offline:
                await self._clean_segments(partition, found, state, process)
        except LogChangedError as error:
            log.info("log cleaning abandoned", partition=str(_topic_partition(partition)), reason=str(error))
        except CleanerDiedError as error:
            self._mark_uncleanable(partition)
            log.warning("log cleaning interrupted", partition=str(_topic_partition(partition)), error=str(error))
        except Exception as error:  # a bug; the other logs are still cleaned
            self._mark_uncleanable(partition, for_long=True)
            log.error("log cleaning failed", partition=str(_topic_partition(partition)), exc_info=error)
        finally:
            self._in_progress.discard(partition)

    async def _durable_state(self, partition: Partition) -> DurableState:
        """Return the state of a partition once it is durable: a cleaning must not be ahead of it."""
        segments, monotonic = partition.log, self._broker.clock.monotonic
        stable_offset = partition.last_stable_offset
        state = DurableState(stable_offset, list(partition.producers.last_batches(stable_offset)))
        end_offset, deadline = segments.next_offset, monotonic() + FLUSH_TIMEOUT_S
        while segments.recovery_point < end_offset:
            if partition.offline or partition.truncating or monotonic() > deadline:
                raise CleanerDiedError("the log could not be flushed")
            self._broker.log_dirs.request_flush(partition)
            await asyncio.sleep(FLUSH_POLL_S)
        return state

    async def _clean_segments(
        self, partition: Partition, found: LogToClean, state: DurableState, process: CleanerProcess
    ) -> None:
        config, segments = self._broker.current_config().cleaner, partition.log
        truncations, processes = segments.truncations, max(1, config.log_cleaner_threads)
        job, sources = cleaning_job(
            segments,
            found,
            state.last_batches,
            now_ms=self._broker.clock.now_ms(),
            map_bytes=config.log_cleaner_dedupe_buffer_size // processes,
            io_bytes_per_second=config.log_cleaner_io_max_bytes_per_second / processes,
        )
        by_base = {segment.base_offset: segment for segment in sources}
        if partition not in self._cleaned:  # from now on a gap between its offsets is no damage
            await self._checkpoint(partition, CleanedUpTo(segments.log_start_offset, truncations))
        async with aclosing(process.clean(job)) as reports:
            async for report in reports:
                if partition.offline or partition.truncating or truncations != segments.truncations:
                    raise LogChangedError("the log is offline, deleted or truncated")
                match report:
                    case CleanedSegment():
                        self._swap(partition, [by_base[base] for base in report.replaced], report)
                    case CleaningFinished():
                        await self._finished(partition, CleanedUpTo(report.end_offset, truncations), report)
                    case CleaningFailed(errno=errno.ENOENT) if any(segment.deleted for segment in sources):
                        raise LogChangedError("segments were deleted by retention")
                    case CleaningFailed():
                        self._failed(partition, report)

    def _swap(self, partition: Partition, replaced: list[LogSegment], cleaned: CleanedSegment) -> None:
        try:
            swap(partition.log, replaced, cleaned, self._broker.clock.now_ms())
        except SwapRefusedError as error:
            raise LogChangedError(str(error)) from None
        except OSError as error:
            self._broker.log_dirs.failed(partition, error)
            raise CleanerDiedError(f"the log is offline: {error}") from None
        self._broker.log_dirs.complete_swap(partition)

    async def _checkpoint(self, partition: Partition, cleaned: CleanedUpTo) -> None:
        """Store up to where a log is cleaned."""
        self._cleaned[partition] = cleaned
        log_dirs = self._broker.log_dirs
        offsets = {one: known.end_offset for one, known in self._cleaned.items()}
        try:
            await log_dirs.write_cleaner_offsets(log_dirs.log_dir_of(partition), offsets)
        except OSError as error:
            log_dirs.failed(partition, error)
            raise CleanerDiedError(f"the log is offline: {error}") from None

    async def _finished(self, partition: Partition, cleaned: CleanedUpTo, report: CleaningFinished) -> None:
        self._metrics.cleanings += 1
        self._metrics.bytes_read += report.bytes_read
        self._metrics.bytes_written += report.bytes_written
        self._uncleanable.pop(partition, None)
        await self._checkpoint(partition, cleaned)
        log.info(
            "log compacted",
            partition=str(_topic_partition(partition)),
            up_to=cleaned.end_offset,
            records=report.records_read,
            kept=report.records_kept,
        )

    def _failed(self, partition: Partition, report: CleaningFailed) -> None:
        self._mark_uncleanable(partition, for_long=report.corrupt)
        name = str(_topic_partition(partition))
        if report.errno == errno.EIO:
            self._broker.log_dirs.failed(partition, OSError(report.errno, report.reason))
        elif report.corrupt:
            log.error("log cannot be compacted, it is corrupt", partition=name, error=report.reason)
        else:
            log.warning("log could not be compacted", partition=name, error=report.reason)

    def _mark_uncleanable(self, partition: Partition, for_long: bool = False) -> None:
        """Retry a log later, with exponential backoff."""
        failures = self._uncleanable[partition].failures + 1 if partition in self._uncleanable else 0
        backoff_s = RETRY_BACKOFF_S_MAX if for_long else min(RETRY_BACKOFF_S_MAX, 2.0**failures)
        self._uncleanable[partition] = Uncleanable(self._broker.clock.monotonic() + backoff_s, failures)

    def _remove_deleted(self) -> None:
        """Remove the entries of deleted partitions."""
        if not self._cleaned and not self._uncleanable:
            return
        existing = set(self._broker.partitions.values())
        for entries in (self._cleaned, self._uncleanable):
            for partition in [one for one in entries if one not in existing]:
                del entries[partition]


def _topic_partition(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.index)

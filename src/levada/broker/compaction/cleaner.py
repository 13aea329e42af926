"""Compaction as the broker runs it: which log is next, a process that does the work, and the swap of what it made.

The loop only looks at figures of the logs and renames files; reading, hashing and writing is the cleaner process's.
Segments are swapped in the order of the log, and a cleaning stops at the first that cannot be: a tombstone may go
only after everything before it that it deletes.
"""

import asyncio
import errno
from contextlib import aclosing
from typing import Final, NamedTuple

from levada.broker.broker import Broker
from levada.broker.compaction.process import CleanerDiedError, CleanerProcess
from levada.broker.partition.partition import Partition
from levada.config.settings import LONG_MAX
from levada.logs import EventLog
from levada.model import TopicPartition
from levada.storage.compaction.job import first_timestamp, look, prepare
from levada.storage.compaction.messages import Cleaned, Failed, Finished
from levada.storage.compaction.plan import Cleanable, dirtiest
from levada.storage.compaction.swap import SwapRefusedError, swap
from levada.storage.log.segment import Segment

PARTITIONS_A_STEP: Final = 20
BACKOFF_S_MIN: Final = 0.02
ASIDE_S_MAX: Final = 3600.0
SYNC_LOOK_S: Final = 0.02
SYNC_S_MAX: Final = 60.0
IDLE_S_MAX: Final = 60.0  # then the process is ended, and its memory free

log = EventLog(__name__)


class Clean(NamedTuple):
    """Up to where a log is clean, and how often it had been truncated then."""

    end_offset: int
    truncations: int


class Facts(NamedTuple):
    """What a partition knows of transactions and producers at one moment."""

    stable_offset: int
    last_batches: list[tuple[int, int, int, int]]


class Aside(NamedTuple):
    """A log that could not be cleaned, and until when it is left alone."""

    until: float
    failures: int


class Cleaning:
    """The compaction of all logs of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clean: dict[Partition, Clean] = {}
        self._busy: set[Partition] = set()
        self._aside: dict[Partition, Aside] = {}
        self._figures = broker.cleaner

    def start(self) -> None:
        """Go on from the checkpoints; all partitions are open."""
        broker = self._broker
        for partition in broker.partitions.values():
            offsets = broker.log_dirs.home(partition).cleaner_offsets
            offset = offsets.get(_name(partition))
            if offset is not None and offset <= partition.log.log_end_offset:
                self._clean[partition] = Clean(offset, partition.log.truncations)
        if broker.config.cleaner.log_cleaner_enable:
            for number in range(broker.config.cleaner.log_cleaner_threads):
                broker.tasks.start(f"cleaner-{number}", self._work())

    async def _work(self) -> None:
        """Clean one log after the other, with a process of its own."""
        broker, process = self._broker, CleanerProcess()
        used = broker.clock.monotonic()
        try:
            while True:
                backoff_ms = broker.current_config().cleaner.log_cleaner_backoff_ms
                await asyncio.sleep(max(BACKOFF_S_MIN, backoff_ms / 1000))
                while (partition := await self._choose()) is not None:
                    await self._clean_log(partition, process)
                    used = broker.clock.monotonic()
                if broker.clock.monotonic() - used > IDLE_S_MAX:
                    await process.stop()
        finally:
            await process.stop()

    # Which log is next.

    async def _choose(self) -> Partition | None:
        """The dirtiest log of those that may be cleaned; busy from now on."""
        self._forget_deleted()
        logs: list[tuple[Partition, Cleanable, float]] = []
        for number, partition in enumerate(list(self._broker.partitions.values())):
            if self._may_clean(partition):
                found = self._look(partition, partition.last_stable_offset)
                logs.append((partition, found, partition.log.config.min_cleanable_dirty_ratio))
            if number % PARTITIONS_A_STEP == 0:
                await asyncio.sleep(0)
        self._figures.dirty_ratio_max = max([found.dirty_ratio for _, found, _ in logs], default=0.0)
        self._figures.set_aside = len(self._aside)
        chosen = dirtiest(entry for entry in logs if self._may_clean(entry[0]))
        if chosen is not None:
            self._busy.add(chosen)
        return chosen

    def _may_clean(self, partition: Partition) -> bool:
        aside = self._aside.get(partition)
        return (
            "compact" in partition.log.config.cleanup_policy
            and not partition.offline
            and partition not in self._busy
            and (aside is None or aside.until <= self._broker.clock.monotonic())
        )

    def _look(self, partition: Partition, stable_offset: int) -> Cleanable:
        segments, now_ms = partition.log, self._broker.clock.now_ms()
        clean = self._clean.get(partition)
        if clean is not None and clean.truncations != segments.truncations:
            clean = None  # what is there now may be other than what was cleaned
        checkpoint = None if clean is None else clean.end_offset
        try:
            lag_ms = segments.config.max_compaction_lag_ms
            if lag_ms < LONG_MAX and 0 <= first_timestamp(segments.active) < now_ms - lag_ms:
                segments.roll(now_ms)
            return look(segments, stable_offset, checkpoint, now_ms)
        except OSError as error:
            self._broker.log_dirs.failed(partition, error)
            return Cleanable(0, 0, 0, 0)

    # Cleaning it.

    async def _clean_log(self, partition: Partition, process: CleanerProcess) -> None:
        """Have one log cleaned, and swap in what comes of it."""
        try:
            facts = await self._durable_facts(partition)
            found = self._look(partition, facts.stable_offset)
            if found.dirty_bytes and not partition.offline:
                await self._follow(partition, found, facts, process)
        except CleanerDiedError as error:
            self._set_aside(partition)
            log.warning("a compaction was cut short", partition=str(_name(partition)), error=str(error))
        except Exception as error:  # a bug of ours: the other logs go on
            self._set_aside(partition, for_long=True)
            log.error("a compaction failed", partition=str(_name(partition)), exc_info=error)
        finally:
            self._busy.discard(partition)

    async def _durable_facts(self, partition: Partition) -> Facts:
        """What is known of a partition, once nothing of it can be lost any more: cleaning must not be ahead of it."""
        segments, monotonic = partition.log, self._broker.clock.monotonic
        stable_offset = partition.last_stable_offset
        facts = Facts(stable_offset, list(partition.producers.last_batches(stable_offset)))
        end_offset, patience = segments.next_offset, monotonic() + SYNC_S_MAX
        while segments.recovery_point < end_offset:
            if partition.offline or monotonic() > patience:
                raise CleanerDiedError("the log could not be synced")
            self._broker.log_dirs.sync_soon(partition)
            await asyncio.sleep(SYNC_LOOK_S)
        return facts

    async def _follow(
        self, partition: Partition, found: Cleanable, facts: Facts, process: CleanerProcess
    ) -> None:
        config, segments = self._broker.current_config().cleaner, partition.log
        truncations, processes = segments.truncations, max(1, config.log_cleaner_threads)
        job, sources = prepare(
            segments,
            found,
            facts.last_batches,
            now_ms=self._broker.clock.now_ms(),
            map_bytes=config.log_cleaner_dedupe_buffer_size // processes,
            io_bytes_per_second=config.log_cleaner_io_max_bytes_per_second / processes,
        )
        by_base = {segment.base_offset: segment for segment in sources}
        async with aclosing(process.clean(job)) as reports:
            async for report in reports:
                if partition.offline or truncations != segments.truncations:
                    raise CleanerDiedError("the log is not any more what it was")
                match report:
                    case Cleaned():
                        self._swap(partition, [by_base[base] for base in report.replaced], report)
                    case Finished():
                        self._finished(partition, Clean(report.end_offset, truncations), report)
                    case Failed():
                        self._failed(partition, report)

    def _swap(self, partition: Partition, replaced: list[Segment], cleaned: Cleaned) -> None:
        try:
            swap(partition.log, replaced, cleaned, self._broker.clock.now_ms())
        except SwapRefusedError as refusal:
            raise CleanerDiedError(f"the log is not any more what it was: {refusal}") from None
        except OSError as error:
            self._broker.log_dirs.failed(partition, error)
            raise CleanerDiedError(f"the log is offline: {error}") from None
        self._broker.log_dirs.settle_swap(partition, replaced)

    def _finished(self, partition: Partition, clean: Clean, report: Finished) -> None:
        self._figures.cleanings += 1
        self._figures.bytes_read += report.bytes_read
        self._figures.bytes_written += report.bytes_written
        self._aside.pop(partition, None)
        self._clean[partition] = clean
        log_dirs = self._broker.log_dirs
        offsets = {one: known.end_offset for one, known in self._clean.items()}
        log_dirs.write_cleaner_offsets(log_dirs.home(partition), offsets)
        log.info(
            "a log is compacted",
            partition=str(_name(partition)),
            up_to=clean.end_offset,
            records=report.records_read,
            kept=report.records_kept,
        )

    def _failed(self, partition: Partition, report: Failed) -> None:
        self._set_aside(partition, for_long=report.corrupt)
        name = str(_name(partition))
        if report.errno == errno.EIO:
            self._broker.log_dirs.failed(partition, OSError(report.errno, report.reason))
        elif report.corrupt:
            log.error("a log cannot be compacted, it is broken", partition=name, error=report.reason)
        else:
            log.warning("a log could not be compacted", partition=name, error=report.reason)

    def _set_aside(self, partition: Partition, for_long: bool = False) -> None:
        """Leave a log alone for a while, longer each time."""
        failures = self._aside[partition].failures + 1 if partition in self._aside else 0
        pause_s = ASIDE_S_MAX if for_long else min(ASIDE_S_MAX, 2.0**failures)
        self._aside[partition] = Aside(self._broker.clock.monotonic() + pause_s, failures)

    def _forget_deleted(self) -> None:
        """Partitions that are gone need no memory; a new one of the same name begins anew."""
        if not self._clean and not self._aside:
            return
        living = set(self._broker.partitions.values())
        for memory in (self._clean, self._aside):
            for partition in [one for one in memory if one not in living]:
                del memory[partition]


def _name(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.index)

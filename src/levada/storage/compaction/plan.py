"""Decides which log is compacted next, how far, and into which segments.

The rules are Kafka's. A log is clean up to the end of the last cleaning. It is cleanable up to the first segment that
is active, has undecided transactions, is not fsynced, or is younger than min.compaction.lag.ms. The log with the
highest dirty ratio is cleaned first, if the ratio exceeds min.cleanable.dirty.ratio or a record is older than
max.compaction.lag.ms.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from levada.config.settings import LONG_MAX
from levada.storage.compaction.messages import CleaningJob, LastProducerBatch, SourceSegment
from levada.storage.log.segment import RELATIVE_OFFSET_MAX, LogSegment

if TYPE_CHECKING:
    from levada.storage.log.log import Log

SOURCES_MAX = 64  # of one new segment: a swap renames the files of each

Key = TypeVar("Key")


class CleaningBounds(NamedTuple):
    """The offsets of a log that limit cleaning."""

    log_start_offset: int
    log_end_offset: int
    stable_offset: int  # all transactions below are decided, by fsynced markers
    recovery_point: int  # every batch below is fsynced
    active_base: int  # the base offset of the active segment

    @property
    def limit(self) -> int:
        return min(self.stable_offset, self.recovery_point, self.active_base)


class CompactionLag(NamedTuple):
    """min.compaction.lag.ms and max.compaction.lag.ms."""

    min_ms: int
    max_ms: int


class LogToClean(NamedTuple):
    """The cleanable part of a log."""

    first_dirty_offset: int
    first_uncleanable_offset: int  # a base offset
    clean_bytes: int
    dirty_bytes: int
    need_compaction_now: bool = False  # a record is older than max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def first_dirty_offset(checkpoint: int | None, bounds: CleaningBounds) -> int:
    """Return where cleaning continues: at the checkpoint, or at the log start if the checkpoint is not of this log."""
    if checkpoint is None or not bounds.log_start_offset <= checkpoint <= bounds.log_end_offset:
        return bounds.log_start_offset
    return checkpoint


def first_uncleanable_offset(
    closed: Sequence[SourceSegment],
    bounds: CleaningBounds,
    dirty_offset: int,
    lag: CompactionLag,
    now_ms: int,
) -> int:
    """Return the base offset of the first segment that is not cleanable yet, at most that of the active one."""
    for number, segment in enumerate(closed):
        following = closed[number + 1].base_offset if number + 1 < len(closed) else bounds.active_base
        if following > bounds.limit:
            return segment.base_offset
        young = lag.min_ms > 0 and segment.max_timestamp > now_ms - lag.min_ms
        if young and following > dirty_offset:
            return segment.base_offset
    return bounds.active_base


def log_to_clean(
    closed: Sequence[SourceSegment],
    bounds: CleaningBounds,
    checkpoint: int | None,
    lag: CompactionLag,
    first_timestamps: Iterable[int],
    now_ms: int,
) -> LogToClean:
    """Return the cleanable part of a log; `first_timestamps` of dirty segments only if max.compaction.lag.ms is set."""
    dirty_offset = first_dirty_offset(checkpoint, bounds)
    end = max(dirty_offset, first_uncleanable_offset(closed, bounds, dirty_offset, lag, now_ms))
    clean_bytes = dirty_bytes = 0
    for number, segment in enumerate(closed):
        following = closed[number + 1].base_offset if number + 1 < len(closed) else bounds.active_base
        if following <= dirty_offset:
            clean_bytes += segment.size
        elif following <= end:
            dirty_bytes += segment.size
    overdue = any(0 <= timestamp < now_ms - lag.max_ms for timestamp in first_timestamps)
    return LogToClean(dirty_offset, end, clean_bytes, dirty_bytes, overdue)


def dirtiest(logs: Iterable[tuple[Key, LogToClean, float]]) -> Key | None:
    """Return the log to clean next, of (log, cleanable part, min.cleanable.dirty.ratio); None if none needs it."""
    candidates = [
        (found.dirty_ratio, log)
        for log, found, ratio_min in logs
        if found.dirty_bytes and (found.need_compaction_now or found.dirty_ratio > ratio_min)
    ]
    return max(candidates, key=lambda pair: pair[0])[1] if candidates else None


class SegmentGroup(NamedTuple):
    """The segments cleaned so far into one new segment."""

    base_offset: int
    sources: int
    size: int
    index_bytes: int

    def fits(self, source: SourceSegment, source_end: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether all of another source, which ends before `source_end`, fits into the new segment."""
        return (
            self.sources < SOURCES_MAX
            and self.size + source.size <= segment_bytes
            and self.index_bytes + source.index_bytes <= index_bytes
            and source_end - 1 - self.base_offset <= RELATIVE_OFFSET_MAX
        )


def closed_segments(log: "Log") -> list[SourceSegment]:
    """Return all segments but the active one."""
    return [
        SourceSegment(segment.base_offset, segment.size, segment.index_bytes, segment.max_timestamp)
        for segment in log.segments[:-1]
    ]


def inspect_log(log: "Log", stable_offset: int, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Return the cleanable part of a log that was cleaned up to `checkpoint`.

    All transactions below `stable_offset` are decided, by fsynced markers: if a marker could still be lost, cleaning
    must not remove the records that its transaction replaced.
    """
    config = log.config
    bounds = CleaningBounds(
        log.log_start_offset, log.log_end_offset, stable_offset, log.recovery_point, log.active.base_offset
    )
    timestamps: list[int] = []
    if config.max_compaction_lag_ms < LONG_MAX:
        start = first_dirty_offset(checkpoint, bounds)
        timestamps = [
            first_timestamp(segment)
            for number, segment in enumerate(log.segments[:-1])
            if log.segments[number + 1].base_offset > start
        ]
    lag = CompactionLag(config.min_compaction_lag_ms, config.max_compaction_lag_ms)
    return log_to_clean(closed_segments(log), bounds, checkpoint, lag, timestamps, now_ms)


def first_timestamp(segment: LogSegment) -> int:
    """Return the timestamp of the first batch; -1 if there is none."""
    if segment.first_timestamp is None and segment.size:
        header = segment.header_at(0)
        segment.first_timestamp = header.max_timestamp if header else -1
    return -1 if segment.first_timestamp is None else segment.first_timestamp


def cleaning_job(
    log: "Log",
    found: LogToClean,
    last_batches: Iterable[tuple[int, int, int, int]],
    *,
    now_ms: int,
    map_bytes: int,
    io_bytes_per_second: float,
) -> tuple[CleaningJob, list[LogSegment]]:
    """Return the job that cleans the cleanable part of a log, and its segments.

    `last_batches` is the producer state as of a moment up to which everything is fsynced.
    """
    segments = [segment for segment in log.segments if segment.base_offset < found.first_uncleanable_offset]
    config = log.config
    job = CleaningJob(
        directory=log.directory,
        sources=closed_segments(log)[: len(segments)],
        later=[segment.base_offset for segment in log.segments[len(segments) :]],
        first_dirty_offset=found.first_dirty_offset,
        end_offset=found.first_uncleanable_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes=map_bytes,
        io_bytes_per_second=io_bytes_per_second,
        last_batches=[LastProducerBatch(*last) for last in last_batches],
    )
    return job, segments

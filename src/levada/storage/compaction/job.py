"""From a log to the job of cleaning it: what can be cleaned now, and all that the cleaner must know for it."""

from collections.abc import Iterable

from levada.config.settings import LONG_MAX
from levada.storage.compaction.messages import Job, LastBatch
from levada.storage.compaction.plan import Bounds, Cleanable, Lag, Source, cleanable, first_dirty_offset
from levada.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from levada.storage.log.log import Log
from levada.storage.log.segment import Segment


def closed_segments(log: Log) -> list[Source]:
    """The segments that take no more appends."""
    return [
        Source(
            segment.base_offset,
            segment.size,
            max(len(segment.index) * OFFSET_ENTRY.size, len(segment.time_index) * TIME_ENTRY.size),
            segment.max_timestamp,
        )
        for segment in log.segments[:-1]
    ]


def look(log: Log, stable_offset: int, checkpoint: int | None, now_ms: int) -> Cleanable:
    """What can be cleaned of a log now, which was cleaned up to `checkpoint`.

    Before `stable_offset` all transactions are decided, by markers that are fsynced: if one could still be lost, what
    its records replaced must not be.
    """
    config = log.config
    bounds = Bounds(
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
    lag = Lag(config.min_compaction_lag_ms, config.max_compaction_lag_ms)
    return cleanable(closed_segments(log), bounds, checkpoint, lag, timestamps, now_ms)


def first_timestamp(segment: Segment) -> int:
    """That of its first batch; -1 if it has none."""
    if segment.first_timestamp is None and segment.size:
        header = segment.header_at(0)
        segment.first_timestamp = header.max_timestamp if header else -1
    return -1 if segment.first_timestamp is None else segment.first_timestamp


def prepare(
    log: Log,
    found: Cleanable,
    last_batches: Iterable[tuple[int, int, int, int]],
    *,
    now_ms: int,
    map_bytes: int,
    io_bytes_per_second: float,
) -> tuple[Job, list[Segment]]:
    """The job of cleaning what was found, and the segments that it is about.

    `last_batches` are of producers as they were known when everything was fsynced that is fsynced now.
    """
    segments = [segment for segment in log.segments if segment.base_offset < found.end_offset]
    config = log.config
    job = Job(
        directory=log.directory,
        sources=closed_segments(log)[: len(segments)],
        later=[segment.base_offset for segment in log.segments[len(segments) :]],
        first_dirty_offset=found.first_dirty_offset,
        end_offset=found.end_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes=map_bytes,
        io_bytes_per_second=io_bytes_per_second,
        last_batches=[LastBatch(*last) for last in last_batches],
    )
    return job, segments

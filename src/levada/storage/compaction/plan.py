"""Which log is cleaned next, how far, and in which pieces: pure functions of what is known of the logs.

The rules are Kafka's. A log is clean up to where the last cleaning came, and can be cleaned up to the first segment
that is active, holds undecided transactions, is not fsynced or is too young. The one with the largest share of dirty
bytes is cleaned first, if the share is large enough or a record has waited for max.compaction.lag.ms.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from levada.storage.log.segment import RELATIVE_OFFSET_MAX

SOURCES_MAX = 64  # of one new segment: a swap is a rename for each

Key = TypeVar("Key")


class Source(NamedTuple):
    """A closed segment as cleaning sees it."""

    base_offset: int
    size: int
    index_bytes: int
    max_timestamp: int


class Bounds(NamedTuple):
    """Where cleaning must stay below, whatever the segments are."""

    log_start_offset: int
    log_end_offset: int
    stable_offset: int  # before it all transactions are decided, by markers that are fsynced
    recovery_point: int  # before it everything is fsynced
    active_base: int  # where the segment begins that takes appends

    @property
    def limit(self) -> int:
        return min(self.stable_offset, self.recovery_point, self.active_base)


class Lag(NamedTuple):
    """How young a record must not be, and how old one must not become: min. and max.compaction.lag.ms."""

    min_ms: int
    max_ms: int


class Cleanable(NamedTuple):
    """What there is to clean in a log."""

    first_dirty_offset: int
    end_offset: int  # the base of the first segment that must not be touched
    clean_bytes: int
    dirty_bytes: int
    overdue: bool = False

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def first_dirty_offset(checkpoint: int | None, bounds: Bounds) -> int:
    """Where cleaning goes on: at the checkpoint, or from the start if that is not of this log."""
    if checkpoint is None or not bounds.log_start_offset <= checkpoint <= bounds.log_end_offset:
        return bounds.log_start_offset
    return checkpoint


def end_offset(closed: Sequence[Source], bounds: Bounds, dirty_offset: int, lag: Lag, now_ms: int) -> int:
    """The base of the first segment that must not be cleaned yet, or the end of the closed ones."""
    for number, segment in enumerate(closed):
        following = closed[number + 1].base_offset if number + 1 < len(closed) else bounds.active_base
        if following > bounds.limit:
            return segment.base_offset
        young = lag.min_ms > 0 and segment.max_timestamp > now_ms - lag.min_ms
        if young and following > dirty_offset:
            return segment.base_offset
    return bounds.active_base


def cleanable(
    closed: Sequence[Source],
    bounds: Bounds,
    checkpoint: int | None,
    lag: Lag,
    first_timestamps: Iterable[int],
    now_ms: int,
) -> Cleanable:
    """What can be cleaned of a log; `first_timestamps` of its dirty segments, where max.compaction.lag.ms asks."""
    dirty_offset = first_dirty_offset(checkpoint, bounds)
    end = max(dirty_offset, end_offset(closed, bounds, dirty_offset, lag, now_ms))
    clean_bytes = dirty_bytes = 0
    for number, segment in enumerate(closed):
        following = closed[number + 1].base_offset if number + 1 < len(closed) else bounds.active_base
        if following <= dirty_offset:
            clean_bytes += segment.size
        elif following <= end:
            dirty_bytes += segment.size
    overdue = any(0 <= timestamp < now_ms - lag.max_ms for timestamp in first_timestamps)
    return Cleanable(dirty_offset, end, clean_bytes, dirty_bytes, overdue)


def dirtiest(logs: Iterable[tuple[Key, Cleanable, float]]) -> Key | None:
    """The log to clean next, of (log, what can be cleaned, min.cleanable.dirty.ratio); None if none needs it."""
    worth = [
        (found.dirty_ratio, log)
        for log, found, ratio_min in logs
        if found.dirty_bytes and (found.overdue or found.dirty_ratio > ratio_min)
    ]
    return max(worth, key=lambda pair: pair[0])[1] if worth else None


class Growth(NamedTuple):
    """A new segment that is being written, of which more may follow."""

    base_offset: int
    sources: int
    size: int
    index_bytes: int

    def takes(self, source: Source, source_end: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether it stays as small as a segment must be with all of a source, which ends before `source_end`."""
        return (
            self.sources < SOURCES_MAX
            and self.size + source.size <= segment_bytes
            and self.index_bytes + source.index_bytes <= index_bytes
            and source_end - 1 - self.base_offset <= RELATIVE_OFFSET_MAX
        )

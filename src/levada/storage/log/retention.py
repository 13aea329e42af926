"""Which segments a log no longer needs, by Kafka's rules: from the oldest on, until one must stay (R19)."""

from collections.abc import Sequence

from levada.config.topic import TopicConfig
from levada.storage.log.segment import Segment


def expired(
    segments: Sequence[Segment], config: TopicConfig, now_ms: int, start_offset: int, end_offset: int
) -> int:
    """How many of the oldest segments can go.

    None may hold offsets at or after `end_offset`. The active one counts among them once it is too old itself;
    the log then begins a new one first.
    """
    deletes = "delete" in config.cleanup_policy
    surplus = sum([segment.size for segment in segments]) - config.retention_bytes
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if not segment.size and following is None:
            return number
        surplus -= segment.size
        by_size = deletes and config.retention_bytes >= 0 and surplus >= 0
        by_time = deletes and config.retention_ms >= 0 and _age_ms(segment, now_ms) > config.retention_ms
        by_start = following is not None and following <= start_offset
        wanted = by_size or by_time or by_start
        if not wanted or (following is not None and following > end_offset):
            return number
    return len(segments)


def _age_ms(segment: Segment, now_ms: int) -> int:
    timestamp = segment.max_timestamp
    return now_ms - (timestamp if timestamp >= 0 else segment.disk.modified_ms(segment.path))

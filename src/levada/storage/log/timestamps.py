"""Finding records by time: the time index says where to begin, the batches themselves decide (R5)."""

from collections.abc import Iterable

from levada.storage.log.segment import Segment
from levada.wire.batches import Record, decode

NO_RECORD = (-1, -1)


def offset_for_timestamp(
    segments: Iterable[Segment], timestamp: int, start_offset: int, interval: int
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `start_offset` on that is at least as late."""
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            found = _search(segment, timestamp, start_offset, interval)
            if found is not None:
                return found.timestamp, found.offset
    return None


def _search(segment: Segment, timestamp: int, start_offset: int, interval: int) -> Record | None:
    earlier = segment.time_index.floor(0, timestamp - 1)
    if earlier and not segment.time_entry_is_true(*earlier[1], interval):
        segment.rebuild_indexes(interval)
        earlier = segment.time_index.floor(0, timestamp - 1)
    relative = earlier[1][1] if earlier else 0
    start, _ = segment.locate(max(segment.base_offset + relative, start_offset), interval)
    for position, header, _ in segment.walk(start):
        if header.max_timestamp < timestamp:
            continue
        for record in _records_at(segment, position, header.size):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record
    return None


def max_timestamp(segments: Iterable[Segment], interval: int) -> tuple[int, int]:
    """(timestamp, offset) of the latest record, the first one if several are; (-1, -1) if there is none."""
    latest = max(segments, key=lambda segment: segment.max_timestamp)
    if latest.max_timestamp < 0:
        return NO_RECORD
    position, _ = latest.locate(latest.max_timestamp_offset, interval)
    header = latest.header_at(position)
    for record in _records_at(latest, position, header.size) if header else ():
        if record.timestamp == latest.max_timestamp:
            return record.timestamp, record.offset
    return latest.max_timestamp, latest.max_timestamp_offset


def _records_at(segment: Segment, position: int, size: int) -> list[Record]:
    return decode(memoryview(segment.disk.pread(segment.fd(), size, position)))

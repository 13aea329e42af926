"""The messages between the broker and its cleaner process: length-prefixed JSON.

The cleaner process accesses only files; the job contains everything else about a log.
"""

import json
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

LENGTH: Final = Struct(">I")


class SourceSegment(NamedTuple):
    """A closed segment to clean."""

    base_offset: int
    size: int
    index_bytes: int
    max_timestamp: int


class LastProducerBatch(NamedTuple):
    """The last batch of a producer, which is retained for its sequence number or epoch. -1 is unknown."""

    producer_id: int
    epoch: int
    data_offset: int
    marker_offset: int


class CleaningJob(NamedTuple):
    """One log to clean."""

    directory: str
    sources: list[SourceSegment]  # all closed segments below `end_offset`, in order
    later: list[int]  # the base offsets of the segments after them, at least the active one
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    io_bytes_per_second: float
    last_batches: list[LastProducerBatch]  # of all known producers


class CleanedSegment(NamedTuple):
    """Some segments are cleaned into one new segment, whose `.cleaned` files are durable."""

    replaced: list[int]  # base offsets; the first is that of the new segment
    size: int
    max_timestamp: int
    max_timestamp_offset: int


class CleaningFinished(NamedTuple):
    """The log is clean below `end_offset`."""

    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    keys: int


class CleaningFailed(NamedTuple):
    """The cleaning of a log failed."""

    reason: str
    errno: int = 0  # of an I/O error
    corrupt: bool = False  # a batch is corrupt: retries are useless


CleaningReport = CleanedSegment | CleaningFinished | CleaningFailed
_REPORTS: Final[dict[str, Callable[..., CleaningReport]]] = {
    kind.__name__: kind for kind in (CleanedSegment, CleaningFinished, CleaningFailed)
}


def encode(message: CleaningJob | CleaningReport) -> bytes:
    """Encode a message with its length."""
    data = json.dumps([type(message).__name__, *message]).encode()
    return LENGTH.pack(len(data)) + data


def decode_report(data: bytes) -> CleaningReport:
    """Decode a report of the cleaner process."""
    kind, *fields = json.loads(data)
    return _REPORTS[kind](*fields)


def read_job(read: Callable[[int], bytes]) -> CleaningJob | None:
    """Read the next job; None if the broker has closed the connection. `read` returns fewer bytes only then."""
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = read(length)
    if len(data) < length:
        return None
    fields: list[Any] = json.loads(data)[1:]
    job = CleaningJob(*fields)
    return job._replace(
        sources=[SourceSegment(*source) for source in job.sources],
        last_batches=[LastProducerBatch(*last) for last in job.last_batches],
    )

"""What the broker and its cleaner process tell one another: JSON behind its length.

The cleaner sees files only: everything else it must know of a log is in the job.
"""

import json
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from levada.storage.compaction.plan import Source

LENGTH: Final = Struct(">I")


class LastBatch(NamedTuple):
    """What a producer wrote last: that batch is kept, for its sequence numbers or its epoch. -1: not known."""

    producer_id: int
    epoch: int
    data_offset: int
    marker_offset: int


class Job(NamedTuple):
    """A log to clean."""

    directory: str
    sources: list[Source]  # all closed segments below `end_offset`, the oldest first
    later: list[int]  # the base offsets of the segments after them, the active one at least
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    io_bytes_per_second: float
    last_batches: list[LastBatch]  # of the producers that are known


class Cleaned(NamedTuple):
    """Some segments are cleaned into one, whose `.cleaned` files are on disk."""

    replaced: list[int]  # base offsets; the first is that of the new segment
    size: int
    max_timestamp: int
    max_timestamp_offset: int


class Finished(NamedTuple):
    """The log is clean below `end_offset`."""

    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    keys: int


class Failed(NamedTuple):
    """The log could not be cleaned."""

    reason: str
    errno: int = 0  # of the disk
    corrupt: bool = False  # a batch is broken: to try again is of no use


Report = Cleaned | Finished | Failed
_REPORTS: Final[dict[str, Callable[..., Report]]] = {
    kind.__name__: kind for kind in (Cleaned, Finished, Failed)
}


def encode(message: Job | Report) -> bytes:
    """A message behind its length."""
    data = json.dumps([type(message).__name__, *message]).encode()
    return LENGTH.pack(len(data)) + data


def decode_report(data: bytes) -> Report:
    """What the cleaner sent."""
    kind, *fields = json.loads(data)
    return _REPORTS[kind](*fields)


def read_job(read: Callable[[int], bytes]) -> Job | None:
    """The next job; None when the broker is gone. `read` gives so many bytes, fewer only at the end."""
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = read(length)
    if len(data) < length:
        return None
    fields: list[Any] = json.loads(data)[1:]
    job = Job(*fields)
    return job._replace(
        sources=[Source(*source) for source in job.sources],
        last_batches=[LastBatch(*last) for last in job.last_batches],
    )

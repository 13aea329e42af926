"""Batches and logs for tests, and a disk that does not wait for the device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levada.config.topic import TopicConfig, TopicDefaults
from levada.model import Codec
from levada.storage.compaction.messages import SourceSegment
from levada.storage.disk import OsDisk
from levada.storage.handles import FileHandleCache
from levada.storage.log.log import Log
from levada.wire.batches import Record, crc_is_valid, decode, encode, read_header

NOW_MS = 1_700_000_000_000


class QuickDisk(OsDisk):
    """A real disk whose fsync only counts: tests of logic need no platter."""

    __slots__ = ("fsyncs",)

    def __init__(self) -> None:
        super().__init__()
        self.fsyncs = 0

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.fsyncs += 1

    def fsync_dir(self, path: str) -> None:
        self.fsyncs += 1


def topic_config(**settings: object) -> TopicConfig:
    """A topic's settings, given with underscores."""
    return TopicConfig.build(TopicDefaults(), {name.replace("_", "."): str(value) for name, value in settings.items()})


def make_batch(
    base_offset: int,
    count: int = 1,
    value: bytes = b"v",
    timestamp: int = NOW_MS,
    leader_epoch: int = 0,
    codec: Codec = Codec.NONE,
) -> bytes:
    records = [Record(base_offset + i, timestamp + i, b"k%d" % i, value) for i in range(count)]
    return bytes(encode(records, base_offset=base_offset, leader_epoch=leader_epoch, codec=codec))


def open_log(folder: Path | str, clean: bool = True, handles: FileHandleCache | None = None, **options: object) -> Log:
    """A log of small segments and close index entries, unless the options say otherwise."""
    known: dict[str, Any] = {
        name: options.pop(name)
        for name in ("recovery_point", "log_start_offset", "power_lost", "may_have_gaps")
        if name in options
    }
    config = topic_config(**({"index_interval_bytes": 100} | options))
    return Log.open(str(folder), config, QuickDisk(), now_ms=NOW_MS, clean=clean, handles=handles, **known)


def append(log: Log, count: int = 1, value: bytes = b"v", timestamp: int = NOW_MS, leader_epoch: int = 0) -> bytes:
    """Reserve and publish one batch of `count` records."""
    batch = make_batch(log.next_offset, count, value, timestamp, leader_epoch)
    log.reserve(memoryview(batch), count, timestamp + count - 1, NOW_MS)
    log.publish()
    return batch


def split(data: bytes) -> Iterator[bytes]:
    """The batches of a fetched piece."""
    position = 0
    while position < len(data):
        size = read_header(data, position).size
        yield data[position : position + size]
        position += size


def read_all(log: Log, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch from the log's start, as a consumer gets them; each has a valid CRC."""
    batches: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes, log.log_end_offset, minimum_one=True)
        data = b"".join(piece.views)
        assert piece.size == len(data) > 0
        for batch in split(data):
            assert crc_is_valid(memoryview(batch))
            header = read_header(batch)
            assert header.last_offset >= offset
            offset = header.last_offset + 1
            batches.append(batch)
    return batches


SOURCES = [
    SourceSegment(0, 100, 8, 1_000),
    SourceSegment(10, 100, 8, 2_000),
    SourceSegment(20, 100, 8, 3_000),
]


def records_of(log: Log) -> list[Record]:
    return [record for batch in read_all(log) for record in decode(memoryview(batch))]

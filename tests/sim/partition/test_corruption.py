"""Files damaged at rest: the log opens, or fails and names the place; it never serves bad bytes.

Bits flip, files are cut at any byte, vanish, or hold something else altogether. No batch before the first bad byte is
lost, and indexes, snapshots and checkpoints are never needed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from levada.config.topic import TopicConfig, TopicDefaults
from levada.errors import ErrorCode, KafkaError
from levada.storage.log.log import Log
from levada.testing.sim_disk import SimDisk
from levada.wire import batches

pytestmark = pytest.mark.slow

DIRECTORY = "/data/t-0"
CONFIG = TopicConfig.build(TopicDefaults(), {"segment.bytes": "1500", "index.interval.bytes": "200"})
NOW_MS = 1_700_000_000_000


class Sample:
    """A log of a few segments, closed cleanly, with the bytes of each batch."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.mkdir("/data")
        self.stored: dict[int, bytes] = {}
        log = self.open(clean=False)
        log.assign_epoch(3)
        for number in range(40):
            record = batches.Record(0, NOW_MS + number, b"key", b"value" * (number % 7 * 4), ())
            data = memoryview(batches.encode([record], base_offset=log.next_offset))
            self.stored[log.next_offset] = bytes(data)
            log.reserve(data, 1, record.timestamp, NOW_MS)
            if number % 3 == 0:
                log.publish()
        log.producer_snapshots.write(log.next_offset, b"whatever")
        log.close(clean=True)
        self.end = len(self.stored)
        self.files = self.disk.contents()

    def open(self, clean: bool, recovery_point: int | None = None) -> Log:
        return Log.open(
            DIRECTORY,
            CONFIG,
            self.disk,
            now_ms=NOW_MS,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=0,
        )

    def restore(self) -> None:
        """Undo all damage."""
        self.disk = SimDisk(Random(1))
        self.disk.mkdir(DIRECTORY)
        for path, content in self.files.items():
            self.disk.close(self.disk.open(path, create=True))
            self.disk.overwrite(path, content)

    def segments(self) -> list[str]:
        return sorted(path for path in self.files if path.endswith(".log"))


@pytest.fixture(scope="module")
def sample() -> Sample:
    return Sample()


def served(log: Log) -> dict[int, bytes]:
    """Everything a reader gets."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = memoryview(b"".join(log.read(offset, 900, log.log_end_offset, minimum_one=True).views))
        assert data, f"nothing at {offset} below {log.log_end_offset}"
        for position, header in batches.iterate_headers(data):
            found[header.base_offset] = bytes(data[position : position + header.size])
            offset = header.last_offset + 1
    return found


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """The log may refuse, if it says why and where."""
    try:
        yield
    except KafkaError as error:
        if error.code not in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE) or path not in str(error):
            raise


def check(sample: Sample, log: Log, first_bad: int) -> None:
    """All batches before the bad one are served; none is served that differs from what was stored."""
    found = served(log)
    assert {offset: sample.stored[offset] for offset in found} == found
    assert set(range(min(first_bad, sample.end))) <= set(found)


def batch_at(sample: Sample, path: str, position: int) -> int:
    """The offset of the batch of a segment that covers a byte."""
    data = memoryview(sample.files[path])
    return next(h.base_offset for at, h in batches.iterate_headers(data) if at <= position < at + h.size)


def test_a_tail_cut_at_every_byte(sample: Sample) -> None:
    path = sample.segments()[-1]
    content = sample.files[path]
    for size in range(len(content)):
        sample.restore()
        sample.disk.overwrite(path, content[:size])
        check(sample, sample.open(clean=False), first_bad=batch_at(sample, path, size))


@pytest.mark.parametrize("clean", [False, True])
def test_a_bit_flipped_in_every_byte_of_the_last_segment(sample: Sample, clean: bool) -> None:
    """After a crash every batch is checked; after a clean shutdown the log opens as it is, or refuses."""
    path = sample.segments()[-1]
    for position in range(len(sample.files[path])):
        sample.restore()
        damaged = bytearray(sample.files[path])
        damaged[position] ^= 1 << position % 8
        sample.disk.overwrite(path, bytes(damaged))
        bad = batch_at(sample, path, position)
        with refusing(path):
            log = sample.open(clean)
            if not clean:
                # Neither the leader epoch nor the base offset is covered by the CRC; offsets are checked otherwise.
                found = {offset: data for offset, data in served(log).items() if offset < bad}
                assert found == {offset: sample.stored[offset] for offset in range(bad)}


def test_a_bit_flipped_in_a_segment_that_was_synced(sample: Sample) -> None:
    """The log opens without an error, or refuses and names the file; it is never cut on its own."""
    path = sample.segments()[1]
    for position in range(0, len(sample.files[path]), 3):
        sample.restore()
        damaged = bytearray(sample.files[path])
        damaged[position] ^= 0x10
        sample.disk.overwrite(path, bytes(damaged))
        with refusing(path):
            log = sample.open(clean=False, recovery_point=sample.end)
            assert log.log_end_offset == sample.end


def damages(content: bytes) -> Iterator[bytes | None]:
    """Ways in which a small file can be wrong; None: it is gone."""
    yield None
    yield b""
    yield b"\0" * len(content)
    yield b"\xff" * max(len(content), 13)
    yield content + content
    yield content + b"\0" * 1_000
    for position in range(len(content)):
        yield content[:position]
        yield content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_files_that_are_never_needed(sample: Sample, kind: str, clean: bool) -> None:
    for path in [path for path in sample.files if path.endswith(kind)]:
        for damage in damages(sample.files[path]):
            sample.restore()
            if damage is None:
                sample.disk.unlink(path)
            else:
                sample.disk.overwrite(path, damage)
            log = sample.open(clean)
            check(sample, log, first_bad=sample.end)
            assert log.log_end_offset == sample.end
            for number in (0, 7, 39):
                assert log.offset_for_timestamp(NOW_MS + number) == (NOW_MS + number, number)
            assert log.offset_for_timestamp(NOW_MS + 40) is None


@pytest.mark.parametrize("clean", [False, True])
def test_a_missing_segment_never_makes_another_be_served_in_its_place(sample: Sample, clean: bool) -> None:
    for path in sample.segments():
        sample.restore()
        sample.disk.unlink(path)
        with refusing(DIRECTORY):
            found = served(sample.open(clean))
            assert {offset: sample.stored[offset] for offset in found} == found


@pytest.mark.parametrize(
    "strange",
    [
        "00000000000000000005.log.tmp",
        "00000000000000000000.log.deleted",
        "notes.txt",
        "x.log",
        f"{3:020d}.index",
    ],
)
def test_files_that_do_not_belong_there(sample: Sample, strange: str) -> None:
    sample.restore()
    sample.disk.close(sample.disk.open(f"{DIRECTORY}/{strange}", create=True))
    sample.disk.overwrite(f"{DIRECTORY}/{strange}", b"something else")
    check(sample, sample.open(clean=False), first_bad=sample.end)


def test_segments_in_a_wrong_place(sample: Sample) -> None:
    """A file under another's name holds other offsets than its name says."""
    first, second, *_ = sample.segments()
    swaps: list[Callable[[], None]] = [
        lambda: sample.disk.overwrite(second, sample.files[first]),
        lambda: sample.disk.overwrite(first, sample.files[second]),
    ]
    for swap in swaps:
        sample.restore()
        swap()
        with refusing(DIRECTORY):
            found = served(sample.open(clean=False))
            assert {offset: sample.stored[offset] for offset in found} == found

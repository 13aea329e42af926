"""Segments and their parts: walking batches, sparse indexes, slices of mappings, checkpoints."""

import os
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.logs import NOW_MS, QuickDisk, append, make_batch, open_log, split

from levada.storage.disk import read_file, write_all, write_atomically
from levada.storage.handles import FileHandle, FileHandleCache
from levada.storage.log import indexes
from levada.storage.log.indexes import OffsetIndex
from levada.storage.log.reader import MAPPED_STEP_BYTES, slice_segment, warm
from levada.storage.log.scan import InvalidBytes, OffsetRule, valid_and_invalid_batches
from levada.storage.log.segment import RELATIVE_OFFSET_MAX, CorruptBatchError, LogSegment


def write_segment(folder: Path, batches: list[bytes]) -> LogSegment:
    (folder / f"{0:020d}.log").write_bytes(b"".join(batches))
    disk = QuickDisk()
    segment = LogSegment(str(folder), 0, disk, FileHandleCache(disk, 16), NOW_MS)
    segment.size = sum(map(len, batches))
    return segment


@pytest.mark.parametrize("whole", [True, False])
def test_a_walk_gives_every_batch_once(tmp_path: Path, whole: bool) -> None:
    sizes = [10, 9_000, 8_100, 20_000, 5, 5, 1_500_000, 7]
    batches = [make_batch(offset, value=b"x" * size) for offset, size in enumerate(sizes)]
    segment = write_segment(tmp_path, batches)
    walked = list(segment.batches(whole=whole))
    assert [header.base_offset for _, header, _ in walked] == list(range(len(sizes)))
    assert [position for position, _, _ in walked] == [sum(map(len, batches[:n])) for n in range(len(sizes))]
    if whole:
        assert [bytes(view) for _, _, view in walked] == batches


@pytest.mark.parametrize(
    ("position", "content", "reason"),
    [
        (16, b"\x01", "version 2"),
        (8, b"\0\0\0\x05", "version 2"),
        (8, b"\x00\x7f\0\0", "remain"),
        (23, b"\xff", "version 2"),
    ],
)
def test_a_walk_stops_at_what_cannot_be_a_batch(tmp_path: Path, position: int, content: bytes, reason: str) -> None:
    batches = [make_batch(offset) for offset in range(3)]
    segment = write_segment(tmp_path, batches)
    with open(segment.path, "r+b") as file:
        file.seek(len(batches[0]) + position)
        file.write(content)
    walk = segment.batches()
    assert next(walk)[1].base_offset == 0
    with pytest.raises(CorruptBatchError, match=reason) as raised:
        next(walk)
    assert raised.value.position == len(batches[0])
    assert segment.path in raised.value.detail


def test_index_entries_are_those_that_kafka_makes(tmp_path: Path) -> None:
    """An entry for the first batch after more than index.interval.bytes, with the batch's last offset."""
    log = open_log(tmp_path / "t-0", index_interval_bytes=1_000)
    batches = [append(log, 3, b"x" * 50, NOW_MS + 1_000 - n) for n in range(50)]
    position = indexed = 0
    wanted = []
    for number, batch in enumerate(batches):
        if position - indexed > 1_000:
            wanted.append((3 * number + 2, position))
            indexed = position
        position += len(batch)
    log.close(clean=True)
    data = (tmp_path / "t-0" / f"{0:020d}.index").read_bytes()
    assert list(OffsetIndex.ENTRY.iter_unpack(data)) == wanted
    assert (tmp_path / "t-0" / f"{0:020d}.timeindex").read_bytes() == (NOW_MS + 1_002).to_bytes(8) + (2).to_bytes(4)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.integers(1, 50), max_size=400), every=st.integers(1, 100), data=st.data())
def test_an_index_finds_the_last_entry_up_to_a_value(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], every: int, data: st.DataObject
) -> None:
    """Also while it grows, and with more blocks than it caches."""
    disk = QuickDisk()
    index = OffsetIndex(str(tmp_path_factory.mktemp("i") / "x.index"), disk, FileHandleCache(disk, 4))
    entries: list[tuple[int, int]] = []

    def check_floor() -> None:
        for column in range(2):
            values = [entry[column] for entry in entries]
            value = data.draw(st.integers(-1, max(values, default=0) + 10))
            place = bisect_right(values, value) - 1
            assert index.floor(column, value) == ((place, entries[place]) if place >= 0 else None)

    with patch.multiple(indexes, BLOCK_ENTRIES=8, BLOCKS_CACHED_MAX=3, BLOCKS_SCANNED=2):
        for number, step in enumerate(steps):
            offset = (entries[-1][0] if entries else 0) + step
            entries.append((offset, 3 * offset))
            index.append(offset, 3 * offset)
            if number % every == 0:
                check_floor()
        check_floor()
        assert len(index) == len(entries)
        assert index.last() == (entries[-1] if entries else None)
        index.store()
        again = OffsetIndex(index.handle.path, disk, FileHandleCache(disk, 4))
        assert again.load(index.size_bytes) and [again.entry(number) for number in range(len(again))] == entries
        cached = index.handle.cached
        assert cached is None or (isinstance(cached, indexes.CachedEntries) and len(cached.blocks) <= 3)


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.sampled_from([10, 900, 5_000, 20_000]), min_size=1, max_size=60), data=st.data())
def test_every_offset_is_located_in_its_batch(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    """Of batches smaller and larger than index.interval.bytes, also where an index entry is wrong."""
    log = open_log(tmp_path_factory.mktemp("t") / "t-0", index_interval_bytes=1_000)
    wanted, position = [], 0
    for size in sizes:
        batch = append(log, 3, b"x" * size)
        wanted += [position] * 3
        position += len(batch)
    segment = log.active
    segment.offset_index.store()
    located = [segment.locate(offset, 1_000) for offset in range(len(wanted))]
    assert located == wanted
    if len(segment.offset_index):
        number = data.draw(st.integers(0, len(segment.offset_index) - 1))
        damaged = Path(segment.offset_index.handle.path)
        content = bytearray(damaged.read_bytes())
        content[8 * number + 7] ^= 1 << data.draw(st.integers(0, 7))
        damaged.write_bytes(content)
        log.use(FileHandleCache(QuickDisk(), 4))
        assert [segment.locate(offset, 1_000) for offset in range(len(wanted))] == wanted


def test_small_reads_are_copied_and_large_ones_mapped(tmp_path: Path) -> None:
    """A slice of a mapping costs no copy; a mapping of a few bytes costs more than a copy."""
    log = open_log(tmp_path / "t-0")
    append(log)
    assert isinstance(log.read(0, 1 << 20, 1, True).views[0], bytes)
    for _ in range(10):
        append(log, value=b"x" * 100_000)
    piece = log.read(1, 1 << 20, 11, True)
    assert isinstance(piece.views[0], memoryview) and piece.views[0].readonly
    mapping = log.active.handle.view
    append(log)
    assert isinstance(log.read(11, 100, 12, True).views[0], bytes)
    assert isinstance(log.read(0, 100, 12, True).views[0], memoryview)  # what is mapped is not copied
    while log.active.size < len(mapping or b"") + MAPPED_STEP_BYTES:
        append(log, value=b"x" * 100_000)
    log.read(12, 1 << 20, log.log_end_offset, True)
    assert log.active.handle.view is not mapping


def test_what_is_not_in_memory_is_known_to_be_cold(tmp_path: Path) -> None:
    class ColdDisk(QuickDisk):
        cold = True

        def pread_cached(self, fd: int, count: int, position: int, /) -> bytes:
            if ColdDisk.cold:
                raise BlockingIOError
            return self.pread(fd, count, position)

    batches = [make_batch(offset, value=b"x" * 100_000) for offset in range(10)]
    segment = write_segment(tmp_path, batches)
    segment.disk = ColdDisk()
    end = len(batches[0])
    piece = slice_segment(segment, 0, end, recent=False)
    assert piece.cold and bytes(piece.views[0]) == batches[0]
    warm(segment.disk, piece)
    ColdDisk.cold = False
    assert not slice_segment(segment, 0, end, recent=False).cold
    ColdDisk.cold = True
    assert not slice_segment(segment, 0, end, recent=True).cold
    segment.mark_deleted()
    warm(segment.disk, piece)


def test_cold_reads_go_on_without_looking_at_their_end(tmp_path: Path) -> None:
    class ColdDisk(QuickDisk):
        def pread_cached(self, fd: int, count: int, position: int, /) -> bytes:
            raise BlockingIOError

    log = open_log(tmp_path / "t-0", segment_bytes=1 << 20)
    batches = [append(log, value=b"x" * 50_000) for _ in range(60)]
    for segment in log.segments:
        segment.disk = ColdDisk()
    found: list[bytes] = []
    while len(found) < len(batches):
        piece = log.read(len(found), 200_000, 60, True)
        assert piece.cold or log.active.base_offset <= len(found)
        found += split(b"".join(piece.views))
    assert found == batches


def test_a_file_shorter_than_the_log_is_an_error(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, value=b"x" * 500)
    os.truncate(log.active.path, 300)
    with pytest.raises(OSError, match="it ends after 300 of"):
        log.read(0, 1 << 20, 1, True)


def test_handles_give_a_second_chance_to_those_in_use(tmp_path: Path) -> None:
    disk = QuickDisk()
    handles = FileHandleCache(disk, 8)
    files = [FileHandle(str(tmp_path / str(number))) for number in range(12)]
    for file in files[:4]:
        handles.open_or_create(file)
    for file in files[4:]:
        handles.fd(files[0])
        handles.open_or_create(file)
        assert len(handles) == 4
    assert files[0].fd >= 0
    assert sum(file.fd >= 0 for file in files) == 4
    handles.close_all()
    assert all(file.fd < 0 for file in files)


def test_a_replaced_file_is_whole_or_old(tmp_path: Path) -> None:
    disk = QuickDisk()
    path = str(tmp_path / "checkpoint")
    assert read_file(disk, path) is None
    (tmp_path / "checkpoint.tmp").write_bytes(b"a longer rest of a crash")
    for content in (b"first", b"x" * 100_000, b""):
        write_atomically(disk, path, content)
        assert read_file(disk, path) == content
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_write_without_progress_is_an_error(tmp_path: Path) -> None:
    class Stuck(QuickDisk):
        def pwritev(self, *_: object) -> int:
            return 0

    with pytest.raises(OSError, match="no progress"):
        write_all(Stuck(), 0, [b"x"], 0)


def test_a_batch_too_far_from_the_base_offset_does_not_end_the_search(tmp_path: Path) -> None:
    """Its CRC is right, but its offset is not one of this segment: the search goes on behind it."""
    far = RELATIVE_OFFSET_MAX + 5
    segment = write_segment(tmp_path, [make_batch(0), make_batch(far), make_batch(far + 1)])
    found = list(islice(valid_and_invalid_batches(segment, OffsetRule(0, contiguous=True), far + 2), 20))
    assert len(found) < 20
    invalid = [piece for piece in found if isinstance(piece, InvalidBytes)]
    assert sum(piece.size for piece in invalid) == segment.size - len(make_batch(0))


@pytest.mark.parametrize(
    ("offsets", "kept", "lost"),
    [
        ([0, 52, 30, 40], [0, 40], [range(1, 40)]),  # 52 or 30 is wrong, and nothing tells which
        ([0, 52, 30, 31], [0, 30, 31], [range(1, 30)]),  # 30 ends where 31 starts
        ([0, 1, 1, 5], [0, 1, 5], [range(2, 5)]),  # 1 starts where 0 ends
        ([5, 20, 3, 30], [5, 20, 30], [range(21, 30)]),  # 3 fits nowhere
        ([0, 99, 30, 40], [0, 30, 40], [range(1, 30)]),  # 99 is beyond the segment
    ],
)
def test_offsets_of_a_compacted_segment_that_contradict_each_other(
    tmp_path: Path, offsets: list[int], kept: list[int], lost: list[range]
) -> None:
    segment = write_segment(tmp_path, [make_batch(offset) for offset in offsets])
    pieces = list(valid_and_invalid_batches(segment, OffsetRule(0, contiguous=False, end=60), 60))
    assert [piece[1].base_offset for piece in pieces if not isinstance(piece, InvalidBytes)] == kept
    assert [piece.offsets for piece in pieces if isinstance(piece, InvalidBytes)] == lost

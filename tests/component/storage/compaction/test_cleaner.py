"""Compaction of logs on disk: which records stay, transactions, swaps."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.logs import NOW_MS, SOURCES, QuickDisk, open_log, read_all, records_of, split

from levada.broker.partition.transactions import load_producers
from levada.errors import KafkaError
from levada.model import Codec
from levada.storage.compaction.cleaner import Cleaner
from levada.storage.compaction.messages import CleanedSegment, CleaningFailed, CleaningFinished, CleaningJob
from levada.storage.compaction.offset_map import ENTRY_BYTES
from levada.storage.compaction.plan import cleaning_job, inspect_log
from levada.storage.compaction.process import Throttler, clean
from levada.storage.compaction.swap import SwapRefusedError, complete_swap, swap
from levada.storage.log.log import Log
from levada.wire import batches
from levada.wire.batches import TRANSACTIONAL_BIT, Record, read_header
from levada.wire.control_records import Marker, encode_marker

HOUR_MS = 3_600_000

# The map of keys.


# Which log, and how far.

# What is kept of a batch.

# What is kept of a log.


def put(log: Log, records: list[tuple[bytes | None, bytes | None]], codec: Codec = Codec.NONE, **options: int) -> int:
    """Append one batch; its base offset."""
    base = log.next_offset
    listed = [Record(base + number, NOW_MS, key, value) for number, (key, value) in enumerate(records)]
    batch = batches.encode(listed, base_offset=base, codec=codec, **options)
    log.reserve(memoryview(batch), len(records), NOW_MS, NOW_MS)
    log.publish()
    return base


def clean_log(
    log: Log,
    checkpoint: int | None = None,
    now_ms: int = NOW_MS,
    map_bytes: int = 1 << 20,
    stable: int = 1 << 60,
) -> CleaningFinished:
    """What the broker and its cleaner do, one after the other."""
    log.roll(now_ms)
    log.flush()
    stable = min(stable, log.log_end_offset)
    producers = load_producers(log)
    found = inspect_log(log, stable, checkpoint, now_ms)
    job, segments = cleaning_job(
        log,
        found,
        producers.last_batches(stable),
        now_ms=now_ms,
        map_bytes=map_bytes,
        io_bytes_per_second=1e300,
    )
    by_base = {segment.base_offset: segment for segment in segments}
    for report in Cleaner(job, log.active.disk).run():
        if isinstance(report, CleaningFinished):
            return report
        replaced = [by_base[base] for base in report.replaced]
        swap(log, replaced, report, now_ms)
        complete_swap(log)
    raise AssertionError("no end")


def compacted(folder: Path, clean: bool = True, **options: object) -> Log:
    return open_log(folder, clean, None, **{"cleanup_policy": "compact", "segment_bytes": 700} | options)


Pairs = list[tuple[bytes | None, bytes | None]]
a_key = st.sampled_from([b"a", b"b", b"c", b"d", b"e" * 30])
some_records = st.lists(st.tuples(a_key, st.one_of(st.none(), st.binary(max_size=40))), min_size=1, max_size=6)


@given(
    st.lists(st.tuples(some_records, st.sampled_from(list(Codec))), min_size=1, max_size=25),
    st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_the_latest_of_each_key_is_left(written: list[tuple[Pairs, Codec]], map_keys: int) -> None:
    """A second cleaning changes nothing; with a small map it takes several."""
    with tempfile.TemporaryDirectory() as folder:
        log = compacted(Path(folder) / "t-0")
        for pairs, codec in written:
            put(log, pairs, codec)
        before = records_of(log)
        checkpoint = 0
        while checkpoint < before[-1].offset + 1:
            reached = clean_log(log, checkpoint, map_bytes=map_keys * ENTRY_BYTES).end_offset
            assert reached > checkpoint
            checkpoint = reached
        latest = {record.key: record for record in before}
        after = records_of(log)
        assert after == sorted(latest.values())
        size = log.size_bytes
        put(log, [(b"other", b"1")])
        clean_log(log, checkpoint)
        assert records_of(log)[:-1] == after and log.size_bytes <= size + 61 + 80
        log.close(clean=False)
        again = compacted(Path(folder) / "t-0", clean=False)
        assert records_of(again)[:-1] == after and again.log_end_offset == checkpoint + 1
        again.close(clean=True)


def test_tombstones_go_after_delete_retention(tmp_path: Path) -> None:
    log = compacted(tmp_path / "t-0", delete_retention_ms=HOUR_MS)
    put(log, [(b"a", b"1"), (b"b", b"1")])
    put(log, [(b"a", None), (b"c", b"1")])
    done = clean_log(log).end_offset
    assert [(record.key, record.value) for record in records_of(log)] == [
        (b"b", b"1"),
        (b"a", None),
        (b"c", b"1"),
    ]
    put(log, [(b"d", b"1")])
    done = clean_log(log, done, NOW_MS + HOUR_MS - 1).end_offset
    assert (b"a", None) in [(record.key, record.value) for record in records_of(log)]
    put(log, [(b"d", b"2")])
    clean_log(log, done, NOW_MS + HOUR_MS)
    assert [(record.key, record.value) for record in records_of(log)] == [
        (b"b", b"1"),
        (b"c", b"1"),
        (b"d", b"2"),
    ]


def test_a_horizon_beyond_all_time_is_the_end_of_time(tmp_path: Path) -> None:
    log = compacted(tmp_path / "t-0", delete_retention_ms=(1 << 63) - 1)
    put(log, [(b"a", None)])
    clean_log(log)
    assert read_header(read_all(log)[0]).delete_horizon_ms == (1 << 63) - 1


def test_records_without_a_key_go(tmp_path: Path) -> None:
    """They were written before the topic was compacted."""
    log = compacted(tmp_path / "t-0")
    put(log, [(None, b"1"), (b"a", b"1"), (None, b"2")])
    clean_log(log)
    assert [record.value for record in records_of(log)] == [b"1"]


def test_segments_become_one_as_long_as_they_fit(tmp_path: Path) -> None:
    log = compacted(tmp_path / "t-0")
    for number in range(60):
        put(log, [(b"%d" % (number % 6), b"x" * 90)])
    assert len(log.segments) > 8
    finished = clean_log(log)
    assert [segment.base_offset for segment in log.segments] == [0, 56, 60]
    assert finished.records_kept == 6 and finished.keys == 6
    names = {path.name for path in (tmp_path / "t-0").glob("*.*") if path.stat().st_size}
    assert not [name for name in names if name.endswith((".deleted", ".swap", ".cleaned"))]


def test_a_cleaned_file_is_as_old_as_what_is_in_it(tmp_path: Path) -> None:
    """Retention by age looks at it where records have no timestamp."""
    log = compacted(tmp_path / "t-0")
    for number in range(30):
        put(log, [(b"%d" % (number % 3), b"x" * 90)])
    log.roll(NOW_MS)
    for number, segment in enumerate(log.segments):
        os.utime(segment.path, (1_000_000 + number, 1_000_000 + number))
    newest = len(log.segments) - 2
    clean_log(log)
    assert log.active.disk.modified_ms(log.segments[-2].path) == (1_000_000 + newest) * 1000


def test_aborted_records_go_at_once_and_their_marker_last(tmp_path: Path) -> None:
    """The marker stays while a batch of its transaction is left, then for delete.retention.ms."""
    log = compacted(tmp_path / "t-0", delete_retention_ms=HOUR_MS)
    states = load_producers(log)

    def transact(producer_id: int, pairs: Pairs, committed: bool, sequence: int) -> None:
        for batch in (
            batches.encode(
                [Record(0, NOW_MS, *pair) for pair in pairs],
                base_offset=log.next_offset,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=TRANSACTIONAL_BIT,
            ),
            encode_marker(Marker(committed, 0), producer_id, 0, NOW_MS),
        ):
            batches.OFFSET_LENGTH_EPOCH.pack_into(batch, 0, log.next_offset, len(batch) - 12, 0)
            header = read_header(batch)
            log.reserve(memoryview(batch), header.record_count, NOW_MS, NOW_MS)
            marker = Marker(committed, 0) if header.is_control else None
            states.replay([(header, marker)], log.reader.add_aborted)
        log.publish()

    put(log, [(b"a", b"old")])
    transact(1, [(b"a", b"aborted")], committed=False, sequence=0)  # 1, marker 2
    transact(2, [(b"b", b"committed")], committed=True, sequence=0)  # 3, marker 4
    transact(1, [(b"c", b"x")], committed=False, sequence=1)  # 5, marker 6: the last batch of producer 1
    done = clean_log(log).end_offset
    assert [record.value for record in records_of(log) if record.value and record.key in (b"a", b"b")] == [
        b"old",
        b"committed",
    ]
    left = [read_header(batch) for batch in read_all(log)]
    assert [(header.base_offset, header.record_count) for header in left] == [
        (0, 1), (2, 1), (3, 1), (4, 1), (5, 0), (6, 1)
    ]  # fmt: skip
    put(log, [(b"z", b"1")])
    done = clean_log(log, done, NOW_MS + 1).end_offset  # nothing of the first transaction is left: it gets a horizon
    put(log, [(b"z", b"2")])
    clean_log(log, done, NOW_MS + 1 + HOUR_MS)
    left = [read_header(batch) for batch in read_all(log)]
    assert [header.base_offset for header in left if header.is_control] == [4, 6]
    assert not load_producers(log).ongoing_txns


def test_an_old_snapshot_does_not_bring_a_transaction_back(tmp_path: Path) -> None:
    """It knows the transaction as open, and the marker that ended it is cleaned away."""
    folder = tmp_path / "t-0"
    log = compacted(folder, delete_retention_ms=0)
    batch = batches.encode(
        [Record(0, NOW_MS, b"a", b"1")],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )
    log.reserve(memoryview(batch), 1, NOW_MS, NOW_MS)
    log.publish()
    log.roll(NOW_MS)
    states = load_producers(log)
    assert states.ongoing_txns == {0: 1}
    log.producer_snapshots.write(1, states.encode_snapshot(1))
    marker = encode_marker(Marker(False, 0), 1, 0, NOW_MS)
    batches.OFFSET_LENGTH_EPOCH.pack_into(marker, 0, 1, len(marker) - 12, 0)
    log.reserve(memoryview(marker), 1, NOW_MS, NOW_MS)
    states.replay([(read_header(marker), Marker(False, 0))], log.reader.add_aborted)
    put(log, [(b"a", b"2")], producer_id=1, producer_epoch=0, base_sequence=1)
    done = clean_log(log).end_offset
    put(log, [(b"b", b"2")])
    done = clean_log(log, done).end_offset
    put(log, [(b"b", b"3")])
    clean_log(log, done)
    assert not [batch for batch in read_all(log) if read_header(batch).is_control]
    assert log.producer_snapshots.offsets() == [] and not load_producers(log).ongoing_txns


@pytest.mark.parametrize(("at", "reason"), [(90, "CRC differs"), (3, "out of order"), (7, "out of order")])
def test_a_broken_batch_stops_the_cleaning(tmp_path: Path, at: int, reason: str) -> None:
    """Nothing is written over: what is broken must be looked at by people."""
    folder = tmp_path / "t-0"
    log = compacted(folder)
    for number in range(30):
        put(log, [(b"k", b"%d" % number * 30)])
    path = Path(log.segments[1].path)
    data = bytearray(path.read_bytes())
    data[at] ^= 2
    path.write_bytes(data)
    with pytest.raises(KafkaError, match=reason):
        clean_log(log)
    assert path.read_bytes() == data


def test_a_swap_of_a_log_that_has_changed_is_refused(tmp_path: Path) -> None:
    log = compacted(tmp_path / "t-0")
    for number in range(30):
        put(log, [(b"k", b"%d" % number * 30)])
    log.flush()
    found = inspect_log(log, log.log_end_offset, None, NOW_MS)
    job, segments = cleaning_job(log, found, [], now_ms=NOW_MS, map_bytes=0, io_bytes_per_second=1e300)
    cleaned = next(Cleaner(job, log.active.disk).run())
    assert isinstance(cleaned, CleanedSegment)
    log.delete_records(segments[1].base_offset)
    log.apply_retention(NOW_MS)
    before = read_all(log)
    with pytest.raises(SwapRefusedError):
        swap(log, segments[: len(cleaned.replaced)], cleaned, NOW_MS)
    assert read_all(log) == before


# The process.


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_the_cleaner_keeps_to_its_pace() -> None:
    """log.cleaner.io.max.bytes.per.second."""
    clock = FakeClock()
    pace = Throttler(1_000_000, clock, clock.sleep, os.getppid())
    for _ in range(100):
        pace(100_000)
    assert 8.5 <= clock.now <= 10 and max(clock.slept) <= 1.0
    clock = FakeClock()
    unhurried = Throttler(1e300, clock, clock.sleep, os.getppid())
    for _ in range(100):
        unhurried(1 << 30)
    assert clock.now < 0.001


def test_what_is_wrong_with_a_log_is_reported(tmp_path: Path) -> None:
    job = CleaningJob(str(tmp_path / "gone"), SOURCES, [30], 0, 30, NOW_MS, 1, 2, 3, 4, 5, 1e300, [])
    reports: list[object] = []
    clean(job, lambda size: None, reports.append)
    assert isinstance(reports[0], CleaningFailed) and reports[0].errno == 2


# The broker.


def test_readers_go_on_over_a_swap(tmp_path: Path) -> None:
    """What a consumer is being sent stays what it was; its next fetch is served from the new segment."""
    log = compacted(tmp_path / "t-0")
    for number in range(40):
        put(log, [(b"%d" % (number % 3), b"%d" % number * 20)])
    piece = log.read(5, 1 << 20, log.log_end_offset, minimum_one=True)
    copy = b"".join(bytes(view) for view in piece.views)
    clean_log(log)
    assert b"".join(bytes(view) for view in piece.views) == copy
    following = read_header(memoryview(b"".join(log.read(5, 1 << 20, 40, minimum_one=True).views)))
    assert following.last_offset >= 5
    assert isinstance(log.active.disk, QuickDisk)


def test_what_is_left_of_small_segments_is_read_together(tmp_path: Path) -> None:
    """Many answers of emptied batches only would be an error to librdkafka."""
    log = compacted(tmp_path / "t-0", segment_bytes=300)
    for number in range(40):
        put(log, [(b"%d" % number, b"x" * 120)], producer_id=number, producer_epoch=0, base_sequence=0)
    for number in range(40):
        put(log, [(b"%d" % number, b"x" * 130)])
    before = [read_header(batch).base_offset for batch in read_all(log)]
    clean_log(log)
    assert len(log.segments) > 20
    left = list(split(b"".join(log.read(0, 1 << 20, log.log_end_offset, minimum_one=True).views)))
    assert len(left) > 40 and any(read_header(batch).record_count for batch in left)
    assert [read_header(batch).base_offset for batch in read_all(log)] == before
    for max_bytes in (0, 61, 200, 500):
        piece = log.read(0, max_bytes, log.log_end_offset, minimum_one=False)
        assert piece.size <= max_bytes and sum(map(len, piece.views)) == piece.size
    piece = log.read(0, 1 << 20, 25, minimum_one=True)
    assert [read_header(batch).base_offset for batch in split(b"".join(piece.views))] == before[:25]

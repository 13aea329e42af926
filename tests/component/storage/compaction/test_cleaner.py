"""Compaction of logs on disk (R22): what is kept of a batch, of a log, and how the broker's cleaner process does it."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import raw
from tests.support.broker import BrokerThread
from tests.support.logs import NOW_MS, QuickDisk, open_log, read_all, split

from levada.broker.compaction import cleaner as cleaning
from levada.broker.compaction.process import MODULE
from levada.broker.partition.transactions import load_producers
from levada.clock import SystemClock
from levada.errors import KafkaError
from levada.model import Codec
from levada.storage.compaction.cleaner import Cleaner
from levada.storage.compaction.job import look, prepare
from levada.storage.compaction.messages import Cleaned, Failed, Finished, Job, decode_report, encode, read_job
from levada.storage.compaction.offset_map import ENTRY_BYTES, OffsetMap
from levada.storage.compaction.plan import Bounds, Cleanable, Growth, Lag, Source, cleanable, dirtiest
from levada.storage.compaction.process import OrphanError, Pace, clean
from levada.storage.compaction.swap import SwapRefusedError, settle, swap
from levada.storage.log.log import Log
from levada.wire import batches
from levada.wire.batches import TRANSACTIONAL_BIT, Record, crc_is_valid, decode, read_header
from levada.wire.control_records import Marker, encode_marker
from levada.wire.record_filter import empty_batch, locate_records, retain_records

PATIENCE_S = 30.0
HOUR_MS = 3_600_000

# The map of keys.


@given(st.lists(st.tuples(st.binary(max_size=12), st.integers(0, 2**62))))
def test_the_map_knows_the_newest_offset_of_each_key(pairs: list[tuple[bytes, int]]) -> None:
    offsets = OffsetMap(1 << 20, len(pairs))
    expected: dict[bytes, int] = {}
    for key, offset in pairs:
        assert offsets.put(key, offset)
        expected[key] = offset
    assert offsets.size == len(expected)
    assert {key: offsets.get(key) for key in expected} == expected
    assert offsets.get(b"a key that is not there") == -1


def test_a_full_map_takes_no_new_key_but_new_offsets() -> None:
    offsets = OffsetMap(100 * ENTRY_BYTES, 10_000)
    kept = [b"%d" % number for number in range(10_000) if offsets.put(b"%d" % number, number)]
    assert len(kept) == offsets.capacity == 90
    assert offsets.full and offsets.put(kept[7], 99_999) and not offsets.put(b"new", 1)
    assert offsets.get(kept[7]) == 99_999 and offsets.get(b"new") == -1


def test_the_map_is_no_larger_than_it_must_be() -> None:
    assert OffsetMap(128 << 20, 1_000).capacity < 1_100
    assert OffsetMap(128 << 20, 100_000_000).capacity == int((128 << 20) // 24 * 0.9)


# Which log, and how far.

SOURCES = [Source(0, 100, 8, 1_000), Source(10, 100, 8, 2_000), Source(20, 100, 8, 3_000)]
BOUNDS = Bounds(log_start_offset=0, log_end_offset=35, stable_offset=35, recovery_point=35, active_base=30)
NO_LAG = Lag(0, 1 << 60)


def plan(
    bounds: Bounds = BOUNDS,
    checkpoint: int | None = None,
    lag: Lag = NO_LAG,
    timestamps: list[int] | None = None,
) -> Cleanable:
    return cleanable(SOURCES, bounds, checkpoint, lag, timestamps or [], now_ms=3_500)


def test_everything_closed_is_dirty_at_first() -> None:
    assert plan() == Cleanable(0, 30, 0, 300)
    assert plan().dirty_ratio == 1.0


@pytest.mark.parametrize(
    ("bounds", "end"),
    [
        ({"stable_offset": 25}, 20),
        ({"stable_offset": 20}, 20),
        ({"stable_offset": 5}, 0),
        ({"recovery_point": 19}, 10),
        ({"recovery_point": 0}, 0),
    ],
)
def test_nothing_undecided_or_unsynced_is_touched(bounds: dict[str, int], end: int) -> None:
    found = plan(BOUNDS._replace(**bounds))
    assert (found.end_offset, found.dirty_bytes) == (end, end * 10)


def test_young_segments_wait() -> None:
    """min.compaction.lag.ms: from the first that is too young on, also if older ones follow."""
    assert plan(lag=Lag(1_000, 1 << 60)).end_offset == 20
    assert plan(lag=Lag(2_000, 1 << 60)).end_offset == 10
    assert plan(lag=Lag(9_000, 1 << 60)) == Cleanable(0, 0, 0, 0)


def test_a_checkpoint_parts_clean_from_dirty() -> None:
    assert plan(checkpoint=20) == Cleanable(20, 30, 200, 100)
    assert plan(checkpoint=30).dirty_bytes == 0
    assert plan(checkpoint=15) == Cleanable(15, 30, 100, 200)
    assert plan(checkpoint=99).first_dirty_offset == 0  # of another log
    assert plan(BOUNDS._replace(log_start_offset=12), checkpoint=5).first_dirty_offset == 12


def test_an_old_record_makes_a_log_overdue() -> None:
    """max.compaction.lag.ms."""
    assert not plan(lag=Lag(0, 500), timestamps=[3_000, 3_400]).overdue
    assert plan(lag=Lag(0, 499), timestamps=[3_400, 3_000]).overdue
    assert not plan(lag=Lag(0, 10), timestamps=[-1]).overdue


def test_the_dirtiest_log_is_next() -> None:
    half, most, little = Cleanable(0, 1, 50, 50), Cleanable(0, 1, 10, 90), Cleanable(0, 1, 90, 10)
    assert dirtiest([("half", half, 0.4), ("most", most, 0.4), ("little", little, 0.4)]) == "most"
    assert dirtiest([("half", half, 0.5), ("little", little, 0.5)]) is None
    assert dirtiest([("half", half, 0.5), ("little", little._replace(overdue=True), 0.5)]) == "little"
    assert dirtiest([("clean", Cleanable(9, 9, 90, 0, overdue=True), 0.0)]) is None
    assert dirtiest(list[tuple[str, Cleanable, float]]()) is None


def test_a_new_segment_grows_only_so_far() -> None:
    growth = Growth(base_offset=0, sources=1, size=100, index_bytes=8)
    assert growth.takes(SOURCES[1], 20, 200, 16)
    assert not growth.takes(SOURCES[1], 20, 199, 16)
    assert not growth.takes(SOURCES[1], 20, 200, 15)
    assert not growth.takes(SOURCES[1], (1 << 31) + 1, 200, 16)
    assert not growth._replace(sources=64).takes(SOURCES[1], 20, 200, 16)


# What is kept of a batch.

RECORDS = [
    Record(40, NOW_MS, b"a", b"1", (("h", b"x"), ("n", None))),
    Record(41, NOW_MS + 7, b"", None),
    Record(42, NOW_MS - 300, None, b"v" * 200),
    Record(43, NOW_MS + 2, b"b" * 90, b""),
]


def batch_of(codec: Codec, **options: int) -> memoryview:
    return memoryview(batches.encode(RECORDS, base_offset=40, codec=codec, **options))


@pytest.mark.parametrize("codec", list(Codec))
def test_what_stays_of_a_batch_is_what_it_was(codec: Codec) -> None:
    """R22: offsets, timestamps, headers, the producer and the codec are kept; the last offset too."""
    view = batch_of(codec, producer_id=9, producer_epoch=2, base_sequence=77)
    header = read_header(view)
    data, spans = locate_records(view, header)
    assert [span.key for span in spans] == [record.key for record in RECORDS]
    assert [span.has_value for span in spans] == [record.value is not None for record in RECORDS]
    left = memoryview(retain_records(header, data, [spans[0], spans[2]], None))
    assert crc_is_valid(left) and decode(left) == [RECORDS[0], RECORDS[2]]
    after = read_header(left)
    assert after.codec is codec and after.max_timestamp == NOW_MS and after.record_count == 2
    assert after[:1] + after[6:8] + after[9:12] == header[:1] + header[6:8] + header[9:12]
    assert after.size == len(left)


@pytest.mark.parametrize("append_time", [False, True])
def test_a_delete_horizon_moves_no_timestamp(append_time: bool) -> None:
    """KIP-534: it stands where the base timestamp was."""
    view = batch_of(Codec.NONE)
    if append_time:
        batches.set_log_append_time(view, NOW_MS + 99)
    expected = decode(view)[1:]
    header = read_header(view)
    data, spans = locate_records(view, header)
    left = memoryview(retain_records(header, data, spans[1:], NOW_MS + HOUR_MS))
    after = read_header(left)
    assert crc_is_valid(left) and decode(left) == expected
    assert (header.delete_horizon_ms, after.delete_horizon_ms) == (None, NOW_MS + HOUR_MS)
    data, spans = locate_records(left, after)
    again = memoryview(retain_records(after, data, spans[1:], None))
    assert decode(again) == expected[1:] and read_header(again).delete_horizon_ms == NOW_MS + HOUR_MS


def test_an_emptied_batch_still_tells_of_its_producer() -> None:
    header = read_header(batch_of(Codec.ZSTD, producer_id=9, producer_epoch=2, base_sequence=77))
    left = memoryview(empty_batch(header))
    after = read_header(left)
    assert crc_is_valid(left) and decode(left) == [] and len(left) == 61
    assert (after.base_offset, after.last_offset, after.max_timestamp) == (40, 43, NOW_MS + 7)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (9, 2, 77)
    assert after.codec is Codec.NONE


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_batch_is_refused(data: Any) -> None:
    """Whatever bytes are there: an error that says so, or records that are within the batch."""
    codec = data.draw(st.sampled_from(list(Codec)))
    view = batch_of(codec)
    for _ in range(data.draw(st.integers(1, 4))):
        view[data.draw(st.integers(21, len(view) - 1))] = data.draw(st.integers(0, 255))
    try:
        unfolded, spans = locate_records(view, read_header(view))
    except KafkaError:
        return
    assert all(0 <= span.start < span.body <= span.end <= len(unfolded) for span in spans)


# What is kept of a log.


def put(
    log: Log, records: list[tuple[bytes | None, bytes | None]], codec: Codec = Codec.NONE, **options: int
) -> int:
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
) -> Finished:
    """What the broker and its cleaner do, one after the other."""
    log.roll(now_ms)
    log.flush()
    stable = min(stable, log.log_end_offset)
    producers = load_producers(log)
    found = look(log, stable, checkpoint, now_ms)
    job, segments = prepare(
        log,
        found,
        producers.last_batches(stable),
        now_ms=now_ms,
        map_bytes=map_bytes,
        io_bytes_per_second=1e300,
    )
    by_base = {segment.base_offset: segment for segment in segments}
    for report in Cleaner(job, log.active.disk).run():
        if isinstance(report, Finished):
            return report
        replaced = [by_base[base] for base in report.replaced]
        swap(log, replaced, report, now_ms)
        settle(log, replaced)
    raise AssertionError("no end")


def records_of(log: Log) -> list[Record]:
    return [record for batch in read_all(log) for record in decode(memoryview(batch))]


def compacted(folder: Path, clean: bool = True, **options: object) -> Log:
    return open_log(folder, clean, None, **{"cleanup_policy": "compact", "segment_bytes": 700} | options)


Pairs = list[tuple[bytes | None, bytes | None]]
a_key = st.sampled_from([b"a", b"b", b"c", b"d", b"e" * 30])
some_records = st.lists(
    st.tuples(a_key, st.one_of(st.none(), st.binary(max_size=40))), min_size=1, max_size=6
)


@given(
    st.lists(st.tuples(some_records, st.sampled_from(list(Codec))), min_size=1, max_size=25),
    st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_the_latest_of_each_key_is_left(written: list[tuple[Pairs, Codec]], map_keys: int) -> None:
    """R22, and a second cleaning changes nothing; with a small map it takes several."""
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
    done = clean_log(
        log, done, NOW_MS + 1
    ).end_offset  # nothing of the first transaction is left: it gets a horizon
    put(log, [(b"z", b"2")])
    clean_log(log, done, NOW_MS + 1 + HOUR_MS)
    left = [read_header(batch) for batch in read_all(log)]
    assert [header.base_offset for header in left if header.is_control] == [4, 6]
    assert not load_producers(log).open


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
    assert states.open == {0: 1}
    log.write_snapshot(1, states.encode_snapshot())
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
    assert log.snapshots() == [] and not load_producers(log).open


@pytest.mark.parametrize(("at", "reason"), [(90, "CRC differs"), (3, "out of place"), (7, "out of place")])
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
    found = look(log, log.log_end_offset, None, NOW_MS)
    job, segments = prepare(log, found, [], now_ms=NOW_MS, map_bytes=0, io_bytes_per_second=1e300)
    cleaned = next(Cleaner(job, log.active.disk).run())
    assert isinstance(cleaned, Cleaned)
    log.delete_records(segments[1].base_offset)
    log.apply_retention(NOW_MS)
    before = read_all(log)
    with pytest.raises(SwapRefusedError):
        swap(log, segments[: len(cleaned.replaced)], cleaned, NOW_MS)
    assert read_all(log) == before


# The process.


def test_messages_arrive_as_they_were_sent() -> None:
    job = Job("/d", SOURCES, [30], 0, 30, NOW_MS, 1, 2, 3, 4, 5, 1e308, [])
    data = encode(job)
    cut = iter([data[:4], data[4:]])
    assert read_job(lambda count: next(cut)) == job
    assert read_job(lambda count: b"") is None
    assert read_job(lambda count: data[:4] if count == 4 else data[4:9]) is None
    for report in (Cleaned([0, 10], 5, 6, 7), Finished(1, 2, 3, 4, 5, 6), Failed("why", 28, True)):
        assert decode_report(encode(report)[4:]) == report


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
    pace = Pace(1_000_000, clock, clock.sleep, os.getppid())
    for _ in range(100):
        pace(100_000)
    assert 8.5 <= clock.now <= 10 and max(clock.slept) <= 1.0
    clock = FakeClock()
    unhurried = Pace(1e300, clock, clock.sleep, os.getppid())
    for _ in range(100):
        unhurried(1 << 30)
    assert clock.now < 0.001


def test_a_cleaner_without_its_broker_ends() -> None:
    pace = Pace(1e300, SystemClock(), time.sleep, 0)
    with pytest.raises(OrphanError):
        pace(1 << 20)


def test_what_is_wrong_with_a_log_is_told(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "gone"), SOURCES, [30], 0, 30, NOW_MS, 1, 2, 3, 4, 5, 1e300, [])
    told: list[object] = []
    clean(job, lambda size: None, told.append)
    assert isinstance(told[0], Failed) and told[0].errno == 2


def children_of(pid: int) -> Iterator[int]:
    """The cleaner processes of a broker."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid and MODULE.encode() in command:
            yield int(entry.name)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; the first process of a container may leave it as a zombie, without a command."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from levada.broker.compaction.process import CleanerProcess\n"
        "async def main():\n"
        "    process = CleanerProcess()\n"
        "    await process._start()\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until(lambda: not is_running(child))


# The broker.


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def fill(broker: BrokerThread, topic: str, count: int, keys: int = 5) -> None:
    with broker.connect() as wire:
        for number in range(count):
            data = raw.batch(b"%d" % number, keys=[b"%d" % (number % keys)])
            assert raw.produce(wire, topic, data).error_code == 0


def values(broker: BrokerThread, topic: str) -> dict[bytes | None, bytes | None]:
    log = broker.partition(topic).log
    return {record.key: record.value for record in broker.call(lambda: records_of(log))}


COMPACT: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 600,
    "min_cleanable_dirty_ratio": 0.01,
}


def test_a_broker_compacts_its_topics(tmp_path: Path) -> None:
    """R22: through a process of its own, which is there only when it is needed and ends with the broker."""
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("deleted", segment_bytes=600)
        fill(broker, "deleted", 30)
        assert list(children_of(os.getpid())) == []
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 60)
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        until(lambda: broker.partition("compacted").log.size_bytes < 1_500)
        until(checkpoint.exists)
        assert values(broker, "compacted") == {b"%d" % key: b"%d" % (55 + key) for key in range(5)}
        assert len(list(children_of(os.getpid()))) == 1
        figures = broker.broker.cleaner
        assert figures.cleanings >= 1 and figures.bytes_read > figures.bytes_written > 0
        assert broker.partition("deleted").log.size_bytes > 2_000
    assert list(children_of(os.getpid())) == []
    version, count, line = checkpoint.read_text().splitlines()
    assert (version, count) == ("0", "1") and line.startswith("compacted 0 ")
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        assert values(broker, "compacted") == {b"%d" % key: b"%d" % (55 + key) for key in range(5)}
        assert broker.partition("compacted").high_watermark == 60


def test_several_processes_clean_a_log_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the memory and the rate that compaction may take."""
    limits: set[tuple[int, float]] = set()

    def noted(*arguments: Any, **options: Any) -> Any:
        limits.add((options["map_bytes"], options["io_bytes_per_second"]))
        return prepare(*arguments, **options)

    monkeypatch.setattr(cleaning, "prepare", noted)
    allowed: dict[str, Any] = {
        "log_cleaner_dedupe_buffer_size": 4 << 20,
        "log_cleaner_io_max_bytes_per_second": 1e9,
    }
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20, log_cleaner_threads=2, **allowed) as broker:
        topics = [f"compacted-{number}" for number in range(4)]
        for topic in topics:
            broker.create(topic, **COMPACT)
            fill(broker, topic, 60)
        for topic in topics:
            until(lambda topic=topic: broker.partition(topic).log.size_bytes < 1_500)  # type: ignore[misc]
            assert values(broker, topic) == {b"%d" % key: b"%d" % (55 + key) for key in range(5)}
        until(lambda: (tmp_path / "cleaner-offset-checkpoint").read_text().startswith("0\n4\n"))
        assert limits == {(2 << 20, 0.5e9)}
    assert list(children_of(os.getpid())) == []


def test_a_killed_cleaner_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(
        tmp_path, log_cleaner_backoff_ms=20, log_cleaner_io_max_bytes_per_second=20_000
    ) as broker:
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 40)
        until(lambda: bool(list(children_of(os.getpid()))))
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        fill(broker, "compacted", 40)
        until(lambda: broker.partition("compacted").log.size_bytes < 2_000)
        assert set(values(broker, "compacted")) == {b"%d" % key for key in range(5)}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_broken_log_is_left_alone_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("broken", **COMPACT | {"min_cleanable_dirty_ratio": 1})
        fill(broker, "broken", 30)
        path = Path(broker.partition("broken").log.segments[0].path)
        data = bytearray(path.read_bytes())
        data[80] ^= 1
        path.write_bytes(data)
        broker.create("sound", **COMPACT)
        partition = broker.partition("broken")
        config = partition.log.config
        broker.call(lambda: partition.configure(type(config).build(broker.broker.config.topic_defaults, {
            "cleanup.policy": "compact", "segment.bytes": "600", "min.cleanable.dirty.ratio": "0.01",
        })))  # fmt: skip
        until(lambda: "a log cannot be compacted, it is broken" in caplog.text)
        fill(broker, "sound", 60)
        until(lambda: broker.partition("sound").log.size_bytes < 1_500)
        assert not partition.offline and path.read_bytes() == data
    assert str(path) in caplog.text or path.name in "".join(str(vars(record)) for record in caplog.records)


def test_a_topic_deleted_while_it_is_cleaned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(
        tmp_path, log_cleaner_backoff_ms=20, log_cleaner_io_max_bytes_per_second=3_000
    ) as broker:
        broker.create("doomed", **COMPACT)
        fill(broker, "doomed", 40)
        until(lambda: bool(list((tmp_path / "doomed-0").glob("*.cleaned"))))
        broker.delete("doomed")
        broker.create("doomed", **COMPACT)
        fill(broker, "doomed", 3)
        until(lambda: "cut short" in caplog.text or "could not be compacted" in caplog.text)
        assert values(broker, "doomed") == {b"0": b"0", b"1": b"1", b"2": b"2"}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_an_old_active_segment_is_closed_for_max_compaction_lag(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("slow", cleanup_policy="compact", max_compaction_lag_ms=300)
        fill(broker, "slow", 20)
        until(lambda: broker.partition("slow").log.size_bytes < 800)
        assert len(values(broker, "slow")) == 5


def test_a_cleaner_that_is_off_does_nothing(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=10, log_cleaner_enable="false") as broker:
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 60)
        size = broker.partition("compacted").log.size_bytes
        fill(broker, "compacted", 60)
        assert broker.partition("compacted").log.size_bytes > size
        assert list(children_of(os.getpid())) == []


def test_an_idle_process_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "IDLE_S_MAX", 0.1)
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 60)
        until(lambda: broker.partition("compacted").log.size_bytes < 1_500)
        until(lambda: not list(children_of(os.getpid())))


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

"""Recovery of logs after crashes and damage of their files.

The log opens, or refuses and names file and place; it never serves a batch that recovery found bad, and never loses
a batch before the first bad byte.
"""

import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.logs import NOW_MS, QuickDisk, append, make_batch, open_log, read_all, topic_config

from levada.broker.partition.transactions import load_producers
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.storage.log.deletion import delete_last_segments
from levada.storage.log.log import Log
from levada.storage.log.segment import LogSegment
from levada.wire.batches import read_header

OPTIONS: dict[str, Any] = {"segment_bytes": 1_500, "index_interval_bytes": 300}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where there is one: these tests make thousands of files, and need no platter."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def fill(folder: Path, batches: int = 30, clean: bool = True) -> list[bytes]:
    log = open_log(folder, **OPTIONS)
    log.assign_epoch(0)
    written = [append(log, 2, b"x" * (20 + 7 * n % 90), NOW_MS + 10 * n) for n in range(batches)]
    log.producer_snapshots.write(log.log_end_offset, b"snapshot")
    log.close(clean)
    return written


def last_log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def tail_of(folder: Path, written: Sequence[bytes]) -> list[int]:
    """Where the batches of the last segment end in it."""
    first = int(last_log(folder).stem) // 2
    ends, end = [], 0
    for batch in written[first:]:
        end += len(batch)
        ends.append(end)
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_the_tail_may_be_cut_at_every_byte(tmp_path: Path, clean: bool) -> None:
    """Every whole batch before the cut is kept, also when the broker believes its last stop was clean."""
    written = fill(tmp_path / "t-0", 12)
    ends = tail_of(tmp_path / "t-0", written)
    name = last_log(tmp_path / "t-0").name
    closed = len(written) - len(ends)
    for size in range(ends[-1] + 1):
        folder = tmp_path / f"c{size}-0"
        shutil.copytree(tmp_path / "t-0", folder)
        os.truncate(folder / name, size)
        log = open_log(folder, clean, **OPTIONS)
        kept = written[: closed + sum(end <= size for end in ends)]
        assert read_all(log) == kept
        assert log.log_end_offset == 2 * len(kept)
        kept.append(append(log))
        log.close(clean=False)
        log = open_log(folder, clean=False, **OPTIONS)
        assert read_all(log) == kept
        log.close(clean=False)
        shutil.rmtree(folder)


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xff" * 500, b"levada" * 100, b"x"])
def test_garbage_after_the_end_is_cut(tmp_path: Path, garbage: bytes) -> None:
    written = fill(tmp_path / "t-0", clean=False)
    with last_log(tmp_path / "t-0").open("ab") as file:
        file.write(garbage)
    for _ in range(2):
        log = open_log(tmp_path / "t-0", clean=False, **OPTIONS)
        assert read_all(log) == written
        log.close(clean=False)
    assert last_log(tmp_path / "t-0").read_bytes() == b"".join(written)[-last_log(tmp_path / "t-0").stat().st_size :]


def flips(path: Path, chance: random.Random, count: int) -> list[Callable[[], None]]:
    """Acts that each turn one bit of the file, from its original content."""
    original = path.read_bytes()

    def flip(bit: int) -> None:
        data = bytearray(original)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    bits = [chance.randrange(8 * len(original)) for _ in range(count)] if original else []
    return [lambda bit=bit: flip(bit) for bit in bits]  # type: ignore[misc]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", "leader-epoch-checkpoint", ".snapshot"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_bit_turned_beside_the_log_changes_nothing(tmp_path: Path, suffix: str, clean: bool) -> None:
    """Indexes are hints, checked against the batches they point to."""
    folder = tmp_path / "t-0"
    written = fill(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    chance = random.Random(suffix)
    for path in sorted(folder.glob("*" + suffix)):
        for act in flips(path, chance, 25):
            act()
            log = open_log(folder, clean, recovery_point=60 if clean or chance.random() < 0.5 else 0, **OPTIONS)
            assert read_all(log, max_bytes=chance.choice([1, 400, 5_000])) == written
            for _ in range(10):
                number = chance.randrange(30)
                assert log.read(2 * number + 1, 1, 60, True).views == [written[number]]
                assert log.offset_for_timestamp(NOW_MS + 10 * number) == (NOW_MS + 10 * number, 2 * number)
            assert log.max_timestamp() == (NOW_MS + 291, 59)
            log.close(clean=False)
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)


def test_a_bit_turned_in_an_index_in_use_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=100)
    written = [append(log, 2, b"x" * 90, NOW_MS + 10 * n) for n in range(400)]
    chance = random.Random(5)
    for name in (".index", ".timeindex"):
        path = max((tmp_path / "t-0").glob("*" + name))
        assert path.stat().st_size > 1_000
        for act in flips(path, chance, 60):
            act()
            number = chance.randrange(400)
            log.reader.remove(0, 0)  # forgets the places
            assert read_all(log, max_bytes=chance.choice([300, 3_000, 30_000])) == written
            assert log.read(2 * number, 1, 800, True).views == [written[number]]
            assert log.offset_for_timestamp(NOW_MS + 10 * number) == (NOW_MS + 10 * number, 2 * number)


def test_a_bit_turned_in_the_log_is_found_by_an_unclean_start(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    chance = random.Random(11)
    for path in sorted(folder.glob("*.log")):
        before = [batch for number, batch in enumerate(written) if 2 * number < int(path.stem)]
        for act in flips(path, chance, 30):
            act()
            changed = path.read_bytes()
            log = open_log(folder, clean=False, **OPTIONS)
            kept = read_all(log)
            assert kept[: len(before)] == before
            good = _common(changed, b"".join(written)[sum(map(len, before)) :])
            whole = [batch for number, batch in enumerate(written) if _end(written, number, before) <= good]
            assert kept == whole or _ignored(changed, kept, before)
            end = log.log_end_offset
            log.close(clean=False)
            log = open_log(folder, clean=False, **OPTIONS)
            assert (read_all(log), log.log_end_offset) == (kept, end)  # recovery is idempotent
            log.close(clean=False)
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)


def _common(left: bytes, right: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), len(left))


def _end(written: Sequence[bytes], number: int, before: Sequence[bytes]) -> int:
    return sum(map(len, written[: number + 1])) - sum(map(len, before))


def _ignored(changed: bytes, kept: Sequence[bytes], before: Sequence[bytes]) -> bool:
    """The flip hit a leader epoch or an offset, which no CRC covers: what is served is what the file holds."""
    return b"".join(kept[len(before) :]).startswith(changed)


def test_a_broken_closed_segment_below_the_recovery_point_is_refused(tmp_path: Path) -> None:
    """Fsynced data that does not hold together is named, not thrown away."""
    fill(tmp_path / "t-0")
    path = min((tmp_path / "t-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[8:12] = b"\x7f\xff\xff\xff"
    path.write_bytes(data)
    path.with_suffix(".index").unlink()
    for clean in (True, False):
        with pytest.raises(KafkaError, match=re.escape(f"{path} at byte 0: a batch of")) as raised:
            open_log(tmp_path / "t-0", clean, recovery_point=60, **OPTIONS)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_broken_batch_met_while_reading_is_named(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", index_interval_bytes=1 << 20)
    first = append(log)
    append(log)
    append(log)
    with open(log.active.path, "r+b") as file:
        file.seek(len(first) + 8)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(KafkaError, match=f"corrupt at byte {len(first)}") as raised:
        log.read(2, 10, 3, True)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.read(0, 10, 3, True).views == [first]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_missing_indexes_are_made_again(tmp_path: Path, clean: bool) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    wanted = {path.name: path.read_bytes() for path in folder.glob("*index")}
    for path in folder.glob("*index"):
        path.unlink()
    log = open_log(folder, clean, **OPTIONS)
    assert read_all(log) == written
    log.close(clean=True)
    assert {path.name: path.read_bytes() for path in folder.glob("*index")} == wanted


@pytest.mark.parametrize("content", [b"", b"\0" * 80, b"\0" * 3, b"\xff" * 240])
def test_an_index_of_nonsense_is_made_again(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    for path in folder.glob("*index"):
        path.write_bytes(content)
    log = open_log(folder, **OPTIONS)
    assert read_all(log, max_bytes=400) == written
    assert log.offset_for_timestamp(NOW_MS + 100) == (NOW_MS + 100, 20)


def test_an_index_is_not_trusted_past_the_logs_end(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder, 12)
    ends = tail_of(folder, written)
    os.truncate(last_log(folder), ends[0])
    log = open_log(folder, **OPTIONS)
    assert read_all(log) == written[: len(written) - len(ends) + 1]


def test_a_lost_tail_of_a_closed_segment_takes_the_later_ones_along(tmp_path: Path) -> None:
    """A power cut may keep a later file and lose the end of an earlier one: a log has no holes."""
    folder = tmp_path / "t-0"
    written = fill(folder)
    first, second = sorted(folder.glob("*.log"))[:2]
    os.truncate(first, first.stat().st_size - len(written[int(second.stem) // 2 - 1]))
    log = open_log(folder, clean=False, **OPTIONS)
    assert read_all(log) == written[: int(second.stem) // 2 - 1]
    assert [path.name for path in folder.glob("*.log")] == [first.name]


def test_the_same_log_twice_is_no_longer_one(tmp_path: Path) -> None:
    """Offsets must rise: a block written twice is cut."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    batch = append(log)
    log.close(clean=False)
    with last_log(folder).open("ab") as file:
        file.write(batch)
    log = open_log(folder, clean=False)
    assert read_all(log) == [batch]


def test_leftovers_of_a_crash_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    for name in (
        "00000000000000000007.log.deleted",
        "00000000000000000007.index.cleaned",
        "leader-epoch-checkpoint.tmp",
    ):
        (folder / name).write_bytes(b"rest")
    (folder / f"{3:020d}.index").write_bytes(b"without a log")
    (folder / f"{999:020d}.snapshot").write_bytes(b"from the future")
    (folder / "notes.txt").write_text("not ours")
    log = open_log(folder, clean=False, **OPTIONS)
    assert read_all(log) == written
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".tmp"))]
    assert f"{3:020d}.index" not in names and f"{999:020d}.snapshot" not in names
    assert "notes.txt" in names


def test_a_swap_replaces_what_it_covers(tmp_path: Path) -> None:
    """Its file is complete; what another cleaning left beside it is of no use."""
    folder = tmp_path / "t-0"
    written = fill(folder)
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    merged = b"".join(written[: bases[2] // 2 : 3] + [written[bases[2] // 2 - 1]])
    (folder / f"{0:020d}.log.swap").write_bytes(merged)
    (folder / f"{0:020d}.txnindex").write_bytes(b"of the old segment")
    for suffix in ("index", "timeindex", "txnindex"):
        (folder / f"{0:020d}.{suffix}.swap").write_bytes(b"")
    (folder / f"{0:020d}.log.cleaned").write_bytes(b"unfinished")
    log = open_log(folder, **OPTIONS)
    assert [segment.base_offset for segment in log.segments] == [0, *bases[2:]]
    assert b"".join(read_all(log)) == merged + b"".join(written[bases[2] // 2 :])
    assert not (folder / f"{0:020d}.log.cleaned").exists()
    assert (folder / f"{0:020d}.txnindex").read_bytes() == b""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def offline(folder: Path, problem: str, clean: bool = True, **options: Any) -> None:
    """Opening fails twice with a message that names the file and the problem, and changes no file."""
    before = contents(folder)
    for _ in range(2):
        with pytest.raises(KafkaError, match=problem) as raised:
            open_log(folder, clean, **OPTIONS, **options)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert str(folder) in raised.value.detail
        assert contents(folder) == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("number", "content", "compacted", "problem"),
    [
        (0, "the next segment", False, "never compacted"),
        (0, "the next segment", True, "index.swap is missing"),
        (1, "nothing", True, "it is empty"),
        (1, "half", True, "where no segment starts"),
    ],
)
def test_a_swap_that_compaction_did_not_leave_is_damage(
    tmp_path: Path, clean: bool, number: int, content: str, compacted: bool, problem: str
) -> None:
    """Its completion would delete the segments in its place."""
    folder = tmp_path / "t-0"
    fill(folder)
    segments = sorted(folder.glob("*.log"))
    data = segments[1].read_bytes()
    contents_of = {"the next segment": data, "nothing": b"", "half": data[: read_header(data).size]}
    segments[number].with_suffix(".log.swap").write_bytes(contents_of[content])
    offline(folder, problem, clean, compacted=compacted)


def test_no_swap_is_completed_in_a_damaged_log(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    first, *_, closed, _ = sorted(folder.glob("*.log"))
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    for suffix in ("index", "timeindex", "txnindex"):
        first.with_suffix(f".{suffix}.swap").write_bytes(b"")
    first.with_suffix(".log.swap").write_bytes(b"".join(written[: bases[2] // 2]))
    closed.write_bytes(b"")
    offline(folder, "it is empty")


STOPS = pytest.mark.parametrize(
    "stop",
    [{"clean": True}, {"clean": False}, {"clean": False, "power_lost": False}],
    ids=["clean", "power lost", "killed"],
)


@STOPS
def test_a_start_offset_beyond_the_end_is_a_contradiction(tmp_path: Path, stop: dict[str, bool]) -> None:
    fill(tmp_path / "t-0")
    offline(
        tmp_path / "t-0", "the checkpoint says that it starts at 100", recovery_point=60, log_start_offset=100, **stop
    )


@STOPS
def test_a_log_that_ends_before_the_recovery_point_is_damaged(tmp_path: Path, stop: dict[str, bool]) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    os.truncate(last_log(folder), last_log(folder).stat().st_size - len(written[-1]))
    offline(folder, "the log ends at offset 58, but it was fsynced up to 60", recovery_point=60, **stop)


@STOPS
@pytest.mark.parametrize("cut", ["empty", "one batch", "within a batch", "missing"])
def test_a_closed_segment_ends_where_the_next_begins(tmp_path: Path, stop: dict[str, bool], cut: str) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder)
    first, second, third = sorted(folder.glob("*.log"))[:3]
    last = len(written[int(third.stem) // 2 - 1])
    sizes = {"empty": 0, "one batch": second.stat().st_size - last, "within a batch": second.stat().st_size - 1}
    if cut == "missing":
        for path in folder.glob(f"{second.stem}.*"):
            path.unlink()
    else:
        os.truncate(second, sizes[cut])
    offline(folder, (first if cut == "missing" else second).name, recovery_point=60, log_start_offset=0, **stop)


@STOPS
def test_a_missing_first_segment_is_damage(tmp_path: Path, stop: dict[str, bool]) -> None:
    """The leader epochs begin at the log start offset, also when a checkpoint is older."""
    folder = tmp_path / "t-0"
    fill(folder)
    for path in folder.glob(f"{0:020d}.*"):
        path.unlink()
    offline(
        folder, "the log starts at offset 0, but its first segment at 16", recovery_point=60, log_start_offset=0, **stop
    )


@pytest.mark.parametrize("epochs", [None, b"", b"0\n1\n"], ids=["missing", "empty", "incomplete"])
def test_a_missing_first_segment_is_damage_also_without_leader_epochs(tmp_path: Path, epochs: bytes | None) -> None:
    """A power failure may take their content, after retention has deleted segments."""
    folder = tmp_path / "t-0"
    written = fill(folder, clean=False)
    for path in [*folder.glob(f"{0:020d}.*"), folder / "leader-epoch-checkpoint"]:
        path.unlink()
    if epochs is not None:
        (folder / "leader-epoch-checkpoint").write_bytes(epochs)
    problem = "the log starts at offset 0, but its first segment at 16, and leader-epoch-checkpoint cannot be read"
    for start in (None, 0):
        offline(folder, problem, clean=False, power_lost=False, recovery_point=60, log_start_offset=start)
    log = open_log(folder, clean=False, recovery_point=60, log_start_offset=0, **OPTIONS)
    assert read_all(log) == written[8:]
    log.close(clean=False)


def test_a_log_file_is_missed_by_its_indexes_below_the_recovery_point(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    fill(folder)
    sorted(folder.glob("*.log"))[1].unlink()
    offline(folder, "it is missing, but its indexes are there", clean=False, recovery_point=60)


def test_retention_that_a_crash_interrupted_is_no_damage(tmp_path: Path) -> None:
    """The first segment is marked as deleted, but the leader epochs still begin at its offset."""
    folder = tmp_path / "t-0"
    written = fill(folder)
    for path in folder.glob(f"{0:020d}.*"):
        path.rename(f"{path}.deleted")
    for _ in range(2):
        log = open_log(folder, clean=False, recovery_point=60, log_start_offset=0, **OPTIONS)
        assert (log.log_start_offset, read_all(log)) == (16, written[8:])
        log.close(clean=False)
        assert not list(folder.glob("*.deleted"))


def test_a_killed_process_leaves_whole_segments(tmp_path: Path) -> None:
    """Only a power failure may take a part of a closed segment, or the middle of the last one."""
    folder = tmp_path / "t-0"
    written = fill(folder)
    first = min(folder.glob("*.log"))
    content = first.read_bytes()
    os.truncate(first, len(content) - 1)
    offline(folder, first.name, clean=False, power_lost=False)
    first.write_bytes(content)
    log = open_log(folder, clean=False, power_lost=False, **OPTIONS)
    assert read_all(log) == written
    log.close(clean=False)
    (tmp_path / "short").mkdir()
    log = open_log(tmp_path / "short")
    kept = [append(log) for _ in range(3)]
    log.close(clean=False)
    path = last_log(tmp_path / "short")
    data = bytearray(path.read_bytes())
    data[len(kept[0]) + 30] ^= 1
    path.write_bytes(data)
    offline(tmp_path / "short", "its CRC differs, but valid batches follow", clean=False, power_lost=False)
    log = open_log(tmp_path / "short", clean=False)
    assert read_all(log) == kept[:1]


@pytest.mark.parametrize("gone", ["every segment", "last segment"])
def test_a_producer_snapshot_tells_how_long_a_killed_log_was(tmp_path: Path, gone: str) -> None:
    """Its batches were written first. A power failure may take them and leave the snapshot."""
    folder = tmp_path / "t-0"
    fill(folder, clean=False)
    first = 0 if gone == "every segment" else int(last_log(folder).stem)
    for path in folder.iterdir():
        if path.suffix in (".log", ".index", ".timeindex") and int(path.stem) >= first:
            path.unlink()
    (folder / "leader-epoch-checkpoint").unlink()
    problem = f"the log ends at offset {first}, before this producer snapshot" if first else "the log has no .log file"
    offline(folder, f"{problem}; offsets {first} to 59 are lost", clean=False, recovery_point=0, power_lost=False)
    log = open_log(folder, clean=False, recovery_point=0, **OPTIONS)
    assert (log.log_end_offset, log.producer_snapshots.offsets()) == (first, [])
    log.close(clean=False)


def test_a_truncation_that_a_kill_interrupts_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, left = tmp_path / "t-0", tmp_path / "left"
    fill(folder)

    def delete_and_copy(segments: list[LogSegment]) -> None:
        delete_last_segments(segments)
        shutil.copytree(folder, left)

    monkeypatch.setattr("levada.storage.log.log.delete_last_segments", delete_and_copy)
    log = open_log(folder, **OPTIONS)
    log.truncate_to(20)
    log.close(clean=False)
    log = open_log(left, clean=False, power_lost=False, recovery_point=20, **OPTIONS)
    assert 20 <= log.log_end_offset < 60
    log.close(clean=False)


def test_a_hole_after_the_batches_is_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    written = fill(folder, clean=False)
    size = last_log(folder).stat().st_size
    os.truncate(last_log(folder), 1 << 41)  # sparse
    with last_log(folder).open("r+b") as file:
        file.seek(1 << 40)
        file.write(make_batch(60))
    with pytest.raises(KafkaError, match=f"valid batches follow at byte {1 << 40}"):
        open_log(folder, clean=False, power_lost=False, **OPTIONS)
    os.truncate(last_log(folder), 1 << 40)
    log = open_log(folder, clean=False, power_lost=False, **OPTIONS)
    assert read_all(log) == written
    assert last_log(folder).stat().st_size == size
    log.close(clean=False)


def replace_with_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_with_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def replace_with_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replace_with_directory, replace_with_loop, replace_with_fifo])
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_an_odd_file_is_an_error_of_its_log(
    tmp_path: Path, replace: Callable[[Path], None], suffix: str, clean: bool
) -> None:
    folder = tmp_path / "t-0"
    fill(folder)
    path = max(folder.glob("*" + suffix))
    replace(path)
    offline(folder, f"{path.name}: it is not a regular file", clean, recovery_point=60)


def test_epochs_of_a_crash_come_from_the_batches(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_log(folder)
    for epoch in (0, 4, 6):
        log.assign_epoch(epoch)
        append(log, leader_epoch=epoch)
        append(log, leader_epoch=epoch)
    log.close(clean=False)
    for content in (b"0\n2\n0 0\n4 2\n", b"0\n3\n0 0\n4 2\n5 5\n", b"", b"rubbish", b"0\n1\n-3 x\n"):
        (folder / "leader-epoch-checkpoint").write_bytes(content)
        log = open_log(folder, clean=False)
        assert log.leader_epochs.entries == [(0, 0), (4, 2), (6, 4)]
        log.close(clean=False)


def test_a_stop_ends_the_rebuilding_of_epochs_and_producers(tmp_path: Path) -> None:
    """Both read every batch header of the log, though its last shutdown was clean."""
    written, reported = fill(tmp_path), 0
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.unlink()

    def stop(_: int) -> None:
        nonlocal reported
        reported += 1
        if reported == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        open_log(tmp_path, progress=stop)
    assert not epochs.exists()
    log, reported = open_log(tmp_path), 0
    assert epochs.exists() and read_all(log) == written
    with pytest.raises(InterruptedError):
        load_producers(log, stop)
    load_producers(log)


def test_every_codec_is_recovered_without_opening_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    batches = []
    for number in range(50):
        batch = make_batch(log.next_offset, 5, b"abc" * 50, codec=Codec(number % 5))
        log.reserve(memoryview(batch), 5, NOW_MS + 4, NOW_MS)
        batches.append(batch)
    log.publish()
    log.close(clean=False)
    assert read_all(open_log(tmp_path / "t-0", clean=False)) == batches


def test_a_large_segment_is_scanned_in_blocks(tmp_path: Path) -> None:
    """Batches larger than a block, and ones that lie across its end."""
    log = open_log(tmp_path / "t-0", max_message_bytes=1 << 22)
    chance = random.Random(3)
    sizes = [chance.choice([10, 5_000, 300_000]) for _ in range(40)] + [2_500_000, 10, 1_048_576]
    batches = [append(log, value=b"x" * size) for size in sizes]
    log.close(clean=False)
    log = open_log(tmp_path / "t-0", clean=False)
    assert read_all(log) == batches
    log.close(clean=True)
    assert read_all(open_log(tmp_path / "t-0")) == batches


def test_opening_reads_no_more_than_it_must(tmp_path: Path) -> None:
    """2,000 partitions must open quickly, so closed segments below the recovery point are not scanned."""

    class CountingDisk(QuickDisk):
        read = 0

        def pread(self, fd: int, count: int, position: int, /) -> bytes:
            data = os.pread(fd, count, position)
            CountingDisk.read += len(data)
            return data

    log = open_log(tmp_path / "t-0", segment_bytes=1 << 20)
    log.assign_epoch(0)
    for _ in range(300):
        append(log, value=b"x" * 20_000)
    log.flush()
    log.close(clean=False)
    config = topic_config(segment_bytes=1 << 20, index_interval_bytes=100)
    Log.open(str(tmp_path / "t-0"), config, CountingDisk(), now_ms=NOW_MS, clean=False, recovery_point=300)
    assert CountingDisk.read < 2 << 20

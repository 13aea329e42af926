"""`levada log check` and `repair` where the offsets of whole batches are wrong: no CRC covers a batch's base offset."""

import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import BrokerThread, crash_image
from tests.support.log_check import RECORDS, SETTINGS, check, contents, segments, served
from tests.support.raw import batch, produce
from tests.support.waiting import until

from levada.broker.scrub import Scrub
from levada.cli.main import run
from levada.model import TopicPartition
from levada.storage.checkpoints import decode_offsets, encode_offsets
from levada.wire.batches import BatchHeader, iterate_headers

SEGMENT = 1


def headers(path: Path) -> list[tuple[int, BatchHeader]]:
    return list(iterate_headers(memoryview(path.read_bytes())))


def set_offset(path: Path, number: int, offset: int) -> None:
    """Change the base offset of a batch."""
    content = bytearray(path.read_bytes())
    position = headers(path)[number][0]
    content[position : position + 8] = struct.pack(">q", offset)
    path.write_bytes(content)


def cut_out(path: Path, number: int) -> None:
    """Remove a batch, and the indexes that would tell."""
    (start, _), (end, _) = headers(path)[number : number + 2]
    content = path.read_bytes()
    path.write_bytes(content[:start] + content[end:])
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink()


def scrub(broker: BrokerThread) -> None:
    """Let the scrub read all segments."""

    async def work() -> None:
        one = Scrub(broker.broker)
        with ThreadPoolExecutor(1) as thread:
            for published in await one.due():
                await one.check(published, thread)

    broker.wait(work())


def repair_and_read(data: Path, capsys: pytest.CaptureFixture[str], end: int = RECORDS) -> set[int]:
    """Repair the data, which only --accept-loss may; return the offsets whose records are lost."""
    before = contents(data)
    assert run(["log", "repair", str(data)]) == 1
    assert contents(data) == before
    assert run(["log", "repair", str(data), "--accept-loss"]) == 0
    assert check(data, capsys) == []
    with BrokerThread(data, levada_scrub_bytes_per_second=1 << 40, **SETTINGS) as broker:
        scrub(broker)
        found = served(broker)
        assert all(value == b"%d" % offset for offset, value in found.items())
        with broker.connect() as one:
            answer = produce(one, "hurt", batch(b"%d" % end))
            assert (answer.error_code, answer.base_offset) == (0, end)
    return set(range(end)) - found.keys()


@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("bit", [0, 1, 3, 20, 35, 62])
def test_a_batch_with_a_wrong_offset_is_the_only_one_lost(
    data: Path, capsys: pytest.CaptureFixture[str], bit: int, number: int
) -> None:
    path = segments(data)[SEGMENT]
    position, header = headers(path)[number]
    offset = header.base_offset
    set_offset(path, number, offset ^ 1 << bit)
    (finding,) = check(data, capsys)
    assert (finding["file"], finding["position"], finding["offset"]) == (str(path), position, offset)
    assert finding["lost"] == f"offsets {offset} to {offset}"
    assert "--accept-loss" in finding["repair"]
    assert repair_and_read(data, capsys) == {offset}


@pytest.mark.parametrize("bit", [0, 3, 20])
def test_a_wrong_offset_at_the_end_of_the_log_is_lost(data: Path, capsys: pytest.CaptureFixture[str], bit: int) -> None:
    set_offset(segments(data)[-1], -1, (RECORDS - 1) ^ 1 << bit)
    (finding,) = [one for one in check(data, capsys) if one["lost"] != "nothing"]
    assert finding["lost"] == f"offsets {RECORDS - 1} to {RECORDS - 1}"
    assert repair_and_read(data, capsys) == {RECORDS - 1}


def test_a_whole_last_batch_with_a_lower_offset_is_no_torn_write(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill, above the recovery point: the batch was acknowledged."""
    with BrokerThread(data, **SETTINGS) as broker:
        with broker.connect() as one:
            assert produce(one, "hurt", batch(b"%d" % RECORDS)).base_offset == RECORDS
        image = crash_image(data, data.with_name("killed"))
    set_offset(segments(image)[-1], -1, 3)
    (finding,) = check(image, capsys)
    assert finding["lost"] == f"offsets {RECORDS} to {RECORDS}"
    with BrokerThread(image, **SETTINGS) as broker:
        assert ("hurt", 0) in broker.broker.log_dirs.offline_logs
    assert repair_and_read(image, capsys, RECORDS + 1) == {RECORDS}


@pytest.mark.parametrize("bit", [6, 12, 30])
def test_a_last_batch_with_a_higher_offset_does_not_move_the_end_of_the_log(
    data: Path, capsys: pytest.CaptureFixture[str], bit: int
) -> None:
    """After a kill, above the recovery point; the batch has several records."""
    with BrokerThread(data, **SETTINGS) as broker:
        with broker.connect() as one:
            assert produce(one, "hurt", batch(*[b"%d" % (RECORDS + number) for number in range(4)])).error_code == 0
        image = crash_image(data, data.with_name("killed"))
    set_offset(segments(image)[-1], -1, RECORDS ^ 1 << bit)
    (finding,) = check(image, capsys)
    assert finding["lost"] == f"offsets {RECORDS} to {RECORDS + 3}"
    with BrokerThread(image, **SETTINGS) as broker:
        assert ("hurt", 0) in broker.broker.log_dirs.offline_logs
    assert repair_and_read(image, capsys, RECORDS + 4) == set(range(RECORDS, RECORDS + 4))


def test_a_batch_missing_in_a_closed_segment_is_found(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segments(data)[SEGMENT]
    offset = headers(path)[2][1].base_offset
    cut_out(path, 2)
    (finding,) = check(data, capsys)
    assert (finding["lost"], finding["offset"]) == (f"offsets {offset} to {offset}", offset)
    with BrokerThread(data, levada_scrub_bytes_per_second=1 << 40, **SETTINGS) as broker:
        scrub(broker)
        assert ("hurt", 0) in broker.broker.log_dirs.offline_partitions()
        assert ("whole", 0) not in broker.broker.log_dirs.offline_partitions()
    assert repair_and_read(data, capsys) == {offset}


def test_a_batch_that_fits_no_offset_is_not_removed_without_asking(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segments(data)[SEGMENT]
    end, _ = headers(path)[3]
    content = path.read_bytes()
    other = batch(b"of another place")
    path.write_bytes(content[:end] + bytes(other) + content[end:])
    (finding,) = check(data, capsys)
    assert (finding["lost"], finding["position"]) == ("unknown", end)
    assert repair_and_read(data, capsys) == set()


def test_a_batch_written_twice_is_removed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segments(data)[SEGMENT]
    (start, _), (end, _) = headers(path)[2:4]
    content = path.read_bytes()
    path.write_bytes(content[:end] + content[start:])
    (finding,) = check(data, capsys)
    assert finding["lost"] == "nothing"
    assert run(["log", "repair", str(data)]) == 0
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS) as broker:
        assert len(served(broker)) == RECORDS


CHECKPOINT = "cleaner-offset-checkpoint"
COMPACTING: dict[str, Any] = {**SETTINGS, "log_cleaner_backoff_ms": 20, "levada_scrub_bytes_per_second": 1 << 40}


def compact(broker: BrokerThread, **configs: Any) -> None:
    """Create a topic and wait until its log is compacted."""
    with broker.connect() as one:
        broker.create("hurt", min_cleanable_dirty_ratio=0.01, **configs)
        for number in range(RECORDS):
            assert produce(one, "hurt", batch(b"%d" % number, keys=[b"k"])).error_code == 0
        until(lambda: len(served(broker)) < RECORDS // 2, "the log is not compacted")


def has_entry(data: Path) -> bool:
    return ("hurt", 0) in decode_offsets((data / CHECKPOINT).read_bytes())


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that was compacted, and is no longer; in `killed`, the moment before that change."""
    data = tmp_path_factory.mktemp("compacted") / "data"
    with BrokerThread(data, **COMPACTING) as broker:
        compact(broker, cleanup_policy="compact")
        crash_image(data, data.with_name("killed"))
        arguments = ["topic", "alter", "hurt", "-c", "cleanup.policy=delete", "-b", broker.bootstrap]
        assert run(arguments) == 0
    return data


def test_a_log_that_was_compacted_has_gaps(compacted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when its topic is no longer compacted, and when the broker was killed right after its first swap."""
    data = Path(shutil.copytree(compacted, tmp_path / "data"))
    for path in (data, compacted.with_name("killed")):
        assert check(path, capsys) == []
    with BrokerThread(data, **COMPACTING) as broker:
        scrub(broker)
        assert not broker.broker.log_dirs.offline_partitions()


def put_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, put_a_directory, lambda path: path.write_bytes(b"corrupt")],
    ids=["gone", "folder", "corrupt"],
)
def test_without_the_cleaner_checkpoint_every_log_may_have_gaps(
    compacted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    """Also at the starts after the first one, which writes it again, and after a repair."""
    data = Path(shutil.copytree(compacted, tmp_path / "data"))
    damage(data / CHECKPOINT)
    (finding,) = check(data, capsys)
    assert finding["file"] == str(data / CHECKPOINT)
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    for _ in range(3):
        with BrokerThread(data, **COMPACTING) as broker:
            assert has_entry(data)
            scrub(broker)
            assert not broker.broker.log_dirs.offline_partitions()
        assert check(data, capsys) == []
    assert run(["log", "repair", str(copy)]) == 0
    assert has_entry(copy)
    assert check(copy, capsys) == []


def test_a_new_log_dir_has_a_cleaner_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread(tmp_path):
        assert decode_offsets((tmp_path / CHECKPOINT).read_bytes()) == {}
    assert check(tmp_path, capsys) == []


def test_the_entry_of_a_truncated_log_stays(compacted: Path, tmp_path: Path) -> None:
    """The log ends below the checkpoint of the cleaner, as after a power failure."""
    data = Path(shutil.copytree(compacted, tmp_path / "data"))
    (data / CHECKPOINT).write_bytes(encode_offsets({TopicPartition("hurt", 0): 10 * RECORDS}))
    with BrokerThread(data, **COMPACTING) as broker, broker.connect() as one:
        broker.create("other", min_cleanable_dirty_ratio=0.01, cleanup_policy="compact")
        for number in range(RECORDS):
            assert produce(one, "other", batch(b"%d" % number, keys=[b"k"])).error_code == 0
        until(lambda: broker.broker.cleaner_metrics.cleanings > 0)
        assert has_entry(data)


def test_the_cleanup_policy_of_the_broker_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting of the start by the entry of the cleaner; a dynamic one also without it, as in a moved directory."""
    data = tmp_path / "data"
    with BrokerThread(data, log_cleanup_policy="compact", **COMPACTING) as broker:
        compact(broker)
        assert check(crash_image(data, tmp_path / "static"), capsys) == []
        assert run(["config", "set", "broker", "1", "log.cleanup.policy=compact", "-b", broker.bootstrap]) == 0
    (data / CHECKPOINT).write_bytes(encode_offsets({}))
    assert check(data, capsys) == []


def test_internal_topics_have_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also without the entry of the cleaner, as in a moved directory."""
    settings: dict[str, Any] = {
        "offsets_topic_num_partitions": 1,
        "offsets_topic_segment_bytes": 1_000,
        "log_cleaner_enable": False,
    }
    with BrokerThread(tmp_path, **settings) as broker, broker.connect() as one:
        broker.create("hurt")
        assert one.call("find_coordinator", 2, {"key": "readers", "key_type": 0}).error_code in (0, 15)
        until(lambda: ("__consumer_offsets", 0) in broker.broker.partitions)
        topics = [{"name": "hurt", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
        fields = {"group_id": "readers", "member_id": "", "generation_id_or_member_epoch": -1, "topics": topics}

        def commit() -> bool:
            response = one.call("offset_commit", 9, fields)
            return bool(response.topics[0].partitions[0].error_code == 0)

        for _ in range(20):
            until(commit)
    path = segments(tmp_path, "__consumer_offsets")[0]
    cut_out(path, 2)
    assert check(tmp_path, capsys) == []

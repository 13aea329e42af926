"""`levada log check` and `repair`: on the data directory of a stopped broker, with brokers and clients afterwards."""

import contextlib
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.broker import BrokerThread, crash_image
from tests.support.client import NoLog
from tests.support.log_check import RECORDS, SETTINGS, check, contents, segments
from tests.support.raw import batch, fetch, produce

from levada.cli.main import run
from levada.errors import ErrorCode
from levada.model import TopicPartition as Name
from levada.storage.disk import OsDisk, open_regular
from levada.storage.log.check import ReadOnlyDisk
from levada.wire.batches import iterate_headers

TIMEOUT_S = 30.0
HUGE = 1 << 62


def offline_reason(broker: BrokerThread) -> str:
    return broker.broker.log_dirs.offline_logs[Name("hurt", 0)].detail


def flip_a_bit_in_the_middle(data: Path) -> None:
    path = segments(data)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def fill_with_zeros(data: Path) -> None:
    path = segments(data)[1]
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(300) + content[400:])


def cut_a_closed_segment(data: Path) -> None:
    os.truncate(segments(data)[1], 150)


def empty_a_closed_segment(data: Path) -> None:
    os.truncate(segments(data)[1], 0)


def cut_the_last_segment(data: Path) -> None:
    os.truncate(segments(data)[-1], segments(data)[-1].stat().st_size // 2)


def remove_the_first_segment(data: Path) -> None:
    segments(data)[0].unlink()


def remove_a_segment(data: Path) -> None:
    for path in (data / "hurt-0").glob(f"{segments(data)[1].stem}.*"):
        path.unlink()


def remove_the_folder(data: Path) -> None:
    shutil.rmtree(data / "hurt-0")


def put_a_directory_in_place_of_a_log(data: Path) -> None:
    path = segments(data)[1]
    path.unlink()
    path.mkdir()


def put_a_directory_in_place_of_a_swap(data: Path) -> None:
    segments(data)[0].with_suffix(".log.swap").mkdir()


def put_a_fifo_in_place_of_a_swap(data: Path) -> None:
    os.mkfifo(segments(data)[0].with_suffix(".log.swap"))


DAMAGES = [
    flip_a_bit_in_the_middle,
    fill_with_zeros,
    cut_a_closed_segment,
    empty_a_closed_segment,
    cut_the_last_segment,
    remove_the_first_segment,
    remove_a_segment,
    remove_the_folder,
    put_a_directory_in_place_of_a_log,
]


def read_with_librdkafka(bootstrap: str, end: int) -> dict[int, bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings, logger=NoLog())
    found: dict[int, bytes] = {}
    try:
        consumer.assign([TopicPartition("hurt", 0, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and end - 1 not in found:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                found[message.offset() or 0] = message.value() or b""
    finally:
        consumer.close()
    return found


KAFKA_PYTHON = """
import json, sys, time
from kafka import KafkaConsumer, TopicPartition
bootstrap, end = sys.argv[1], int(sys.argv[2])
consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
partition, found = TopicPartition("hurt", 0), {}
consumer.assign([partition])
consumer.seek_to_beginning(partition)
deadline = time.monotonic() + 30
while time.monotonic() < deadline and end - 1 not in found:
    for records in consumer.poll(timeout_ms=200).values():
        found |= {record.offset: record.value.decode() for record in records}
consumer.close()
print(json.dumps(found))
"""


def read_with_kafka_python(bootstrap: str, end: int) -> dict[int, bytes]:
    """In a process of its own: its import warns."""
    command = [sys.executable, "-c", KAFKA_PYTHON, bootstrap, str(end)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return {int(offset): value.encode() for offset, value in json.loads(ended.stdout).items()}


def test_a_whole_data_directory_has_no_findings(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS):
        image = crash_image(data, data.with_name("killed"))
    assert check(image, capsys) == []


def test_a_data_directory_in_use_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread(data, **SETTINGS):
        command = [sys.executable, "-m", "levada", "log", "check", str(data)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "in use by another broker" in ended.stderr
    assert run(["log", "check", str(data / "hurt-0")]) == 1
    assert "is no data directory" in capsys.readouterr().err


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repaired_log_is_read_over_the_gap(
    data: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(data)
    findings = check(data, capsys)
    assert {finding["partition"] for finding in findings} == {"hurt-0"}
    with BrokerThread(data, **SETTINGS) as broker, broker.connect() as one:
        offline = fetch(one, "hurt", 0).error_code != 0
        if damage is not flip_a_bit_in_the_middle and damage is not fill_with_zeros:  # the scrub finds these
            assert offline
    before = contents(data)
    assert run(["log", "repair", str(data)]) == 1
    assert contents(data) == before
    assert run(["log", "repair", str(data), "--accept-loss"]) == 0
    printed = capsys.readouterr().err
    assert "replaced by empty batches" in printed or damage is remove_the_folder
    for path in data.glob("hurt-0.*-damaged"):
        assert str(path) in printed
        assert {name: content for name, (content, _) in contents(path).items()} == {
            name.removeprefix("hurt-0/"): content for name, (content, _) in before.items() if name.startswith("hurt-0/")
        }
    assert not list(data.glob("*-repaired"))
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS) as broker, broker.connect() as one:
        answer = produce(one, "hurt", batch(b"new"))
        assert (answer.error_code, answer.base_offset) == (0, RECORDS)
        found = read_with_librdkafka(broker.bootstrap, RECORDS + 1)
        assert found[RECORDS] == b"new"
        assert all(value == b"%d" % offset for offset, value in found.items() if offset < RECORDS)
        assert read_with_kafka_python(broker.bootstrap, RECORDS + 1) == found
        if damage is not remove_the_folder:
            assert RECORDS // 2 < len(found) < RECORDS + 1
    with BrokerThread(data, **SETTINGS) as broker, broker.connect() as one:
        assert fetch(one, "hurt", RECORDS).high_watermark == RECORDS + 1


class KilledError(BaseException):
    """Ends a repair as a kill would."""


def test_an_interrupted_repair_is_completed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_bit_in_the_middle(data)
    for step in range(20):
        copy, renames = data.with_name(f"killed {step}"), itertools.count()
        shutil.copytree(data, copy)
        with monkeypatch.context() as patch:
            patch.setattr(OsDisk, "rename", rename_until(step, renames))
            with contextlib.suppress(KilledError):
                assert run(["log", "repair", str(copy), "--accept-loss"]) == 0
        killed = next(renames) == step + 1
        if killed and not (copy / "hurt-0").exists():
            assert [(one["lost"], one["repair"]) for one in check(copy, capsys)] == [("nothing", "rename it to hurt-0")]
            with BrokerThread(copy, **SETTINGS) as broker:
                assert f"complete it with: levada log repair {copy}" in offline_reason(broker)
            assert run(["log", "repair", str(copy)]) == 0
            assert str(next(copy.glob("hurt-0.*-damaged"))) in capsys.readouterr().err
        else:
            assert run(["log", "repair", str(copy), "--accept-loss"]) == 0
        assert check(copy, capsys) == []
        with BrokerThread(copy, **SETTINGS) as broker, broker.connect() as one:
            assert produce(one, "hurt", batch(b"new")).base_offset == RECORDS
            assert len(read_with_librdkafka(broker.bootstrap, RECORDS + 1)) == RECORDS
        if not killed:
            return
    pytest.fail("the repair has more steps")


def rename_until(step: int, renames: Iterator[int]) -> Callable[[OsDisk, str, str], None]:
    def rename(_: OsDisk, source: str, target: str) -> None:
        if next(renames) == step:
            raise KilledError
        os.replace(source, target)

    return rename


def test_a_repair_that_was_not_complete_is_never_taken(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half_written = data / f"hurt-0.{'1' * 32}-repaired"
    older = data / f"hurt-0.{'2' * 32}-repaired"
    for path in (half_written, older):
        shutil.copytree(data / "hurt-0", path)
        max(path.glob("*.log")).unlink()
    older.with_name(f"hurt-0.{'2' * 32}-damaged").mkdir()
    remove_the_folder(data)
    (finding,) = check(data, capsys)
    assert finding["lost"] == f"offsets 0 to {RECORDS - 1}"
    assert run(["log", "repair", str(data)]) == 1
    assert not (data / "hurt-0").exists()


def write_checkpoint(data: Path, name: str, old: str, new: str) -> None:
    path = data / name
    _, _, _, *lines = path.read_text().splitlines()  # without version, CRC and directory.id, as Kafka writes it
    path.write_text("\n".join(["0", *(new if line == old else line for line in lines)]) + "\n")


@pytest.mark.parametrize("kind", ["log start", "recovery point", "index", "garbage"])
def test_what_costs_no_record_is_repaired_without_asking(
    data: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if kind == "log start":
        write_checkpoint(data, "log-start-offset-checkpoint", "hurt 0 0", "hurt 0 1000")
    elif kind == "recovery point":
        write_checkpoint(data, "recovery-point-offset-checkpoint", f"hurt 0 {RECORDS}", "hurt 0 5")
    elif kind == "index":
        segments(data)[1].with_suffix(".timeindex").write_bytes(b"nonsense")
    else:
        with segments(data)[1].open("ab") as file:
            file.write(b"garbage")
    assert [finding["lost"] for finding in check(data, capsys)] == ["nothing"]
    if kind != "index":
        with BrokerThread(data, **SETTINGS) as broker, broker.connect() as one:
            assert fetch(one, "hurt", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert run(["log", "repair", str(data)]) == 0
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS) as broker:
        assert len(read_with_librdkafka(broker.bootstrap, RECORDS)) == RECORDS


def name_a_huge_recovery_point(data: Path) -> str:
    write_checkpoint(data, "recovery-point-offset-checkpoint", f"hurt 0 {RECORDS}", f"hurt 0 {HUGE}")
    return "recovery-point-offset-checkpoint"


def name_a_huge_snapshot(data: Path) -> str:
    flip_a_bit_in_the_middle(data)
    (data / "hurt-0" / f"{HUGE:020d}.snapshot").touch()
    return f"{HUGE:020d}.snapshot"


def name_a_huge_segment(data: Path) -> str:
    (data / "hurt-0" / f"{HUGE:020d}.log").touch()
    return f"{HUGE:020d}.log"


def name_a_huge_index(data: Path) -> str:
    (data / "hurt-0" / f"{HUGE:020d}.index").touch()
    return f"{HUGE:020d}.index"


def name_a_huge_recovery_point_without_a_folder(data: Path) -> str:
    remove_the_folder(data)
    return name_a_huge_recovery_point(data)


@pytest.mark.parametrize(
    "damage",
    [
        name_a_huge_recovery_point,
        name_a_huge_snapshot,
        name_a_huge_segment,
        name_a_huge_index,
        name_a_huge_recovery_point_without_a_folder,
    ],
)
def test_implausible_offsets_are_refused(
    data: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], str]
) -> None:
    name = damage(data)
    findings = check(data, capsys)
    assert findings and all("not possible" in one["repair"] and str(HUGE) in one["repair"] for one in findings)
    before = contents(data)
    assert run(["log", "repair", str(data), "--accept-loss"]) == 1
    assert contents(data) == before
    assert f"{HUGE}, but" in capsys.readouterr().err
    for path in (*data.glob(name), *data.glob(f"hurt-0/{name}")):
        path.unlink()
    run(["log", "repair", str(data), "--accept-loss"])
    assert check(data, capsys) == []


@pytest.mark.parametrize("damage", [put_a_directory_in_place_of_a_swap, put_a_fifo_in_place_of_a_swap])
def test_an_irregular_swap_is_damage_of_its_partition(
    data: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(data)
    (finding,) = check(data, capsys)
    assert (finding["partition"], finding["problem"]) == ("hurt-0", "it is not a regular file")
    with BrokerThread(data, **SETTINGS) as broker:
        assert "it is not a regular file" in offline_reason(broker)
    assert run(["log", "repair", str(data), "--accept-loss"]) == 0
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS) as broker:
        assert len(read_with_librdkafka(broker.bootstrap, RECORDS)) == RECORDS


@pytest.mark.parametrize("content", ["", "the next segment"])
def test_a_swap_that_compaction_has_not_left_replaces_nothing(
    data: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    first, second, *_ = segments(data)
    first.with_suffix(".log.swap").write_bytes(second.read_bytes() if content else b"")
    (finding,) = check(data, capsys)
    assert finding["file"] == f"{first}.swap" and "never compacted" in finding["problem"]
    assert "with --accept-loss" in finding["repair"]
    with BrokerThread(data, **SETTINGS) as broker:
        assert f"{first}.swap" in offline_reason(broker)
    assert run(["log", "repair", str(data), "--accept-loss"]) == 0
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS) as broker:
        assert len(read_with_librdkafka(broker.bootstrap, RECORDS)) == RECORDS


@pytest.mark.parametrize("pattern", ["leader-epoch-checkpoint", "*00.log", "*39.log"])
def test_a_file_that_cannot_be_opened_is_damage_of_its_partition(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    (file,) = (data / "hurt-0").glob(pattern)
    segments(data, "whole")[-1].write_bytes(b"")  # the damage of another partition

    def open_file(disk: ReadOnlyDisk, path: str, create: bool = False) -> int:
        if path == str(file):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_regular(path, os.O_RDONLY)

    monkeypatch.setattr(ReadOnlyDisk, "open", open_file)
    (finding,) = [one for one in check(data, capsys) if one["partition"] == "hurt-0"]
    assert (finding["file"], finding["problem"]) == (str(file), "Permission denied")
    assert run(["log", "repair", str(data), "--accept-loss"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("hurt-0: not repaired") and "make it readable" in line for line in lines)
    assert any(line.startswith("whole-0: repaired") for line in lines)
    assert not list(data.glob("*-repaired"))


@pytest.mark.parametrize("kind", ["marker", "record"])
def test_a_lost_marker_is_announced_and_its_transaction_aborted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    data = tmp_path / "data"
    with BrokerThread(data) as broker, broker.connect() as one:
        broker.create("hurt")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"}, logger=NoLog())
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("hurt", b"in a transaction", partition=0)
        producer.commit_transaction(TIMEOUT_S)
        assert produce(one, "hurt", batch(b"after it")).base_offset == 2
    content = bytearray(segments(data)[0].read_bytes())
    headers = list(iterate_headers(memoryview(content)))
    position = next(at for at, header in headers if header.is_control == (kind == "marker"))
    content[position + 70] ^= 1
    segments(data)[0].write_bytes(content)
    for path in (data / "hurt-0").glob("*.snapshot"):  # which may know the end of the transaction
        path.unlink()
    assert run(["log", "repair", str(data), "--accept-loss"]) == 0
    hint = "levada txn abort --hanging --topic hurt"
    assert (hint in capsys.readouterr().err) == (kind == "marker")
    with BrokerThread(data) as broker, broker.connect() as one:
        if kind == "marker":
            assert fetch(one, "hurt", 0, isolation_level=1).last_stable_offset == 0
            assert run([*hint.split()[1:], "--yes", "-b", broker.bootstrap]) == 0
        stable = fetch(one, "hurt", 0, isolation_level=1)
        assert stable.last_stable_offset == stable.high_watermark
        assert read_with_librdkafka(broker.bootstrap, 3) == {2: b"after it"}


@pytest.mark.parametrize("cleaned", [None, 25])
def test_an_unknown_end_is_announced(data: Path, capsys: pytest.CaptureFixture[str], cleaned: int | None) -> None:
    with BrokerThread(data, **SETTINGS) as broker, broker.connect() as one:
        broker.create("new")
        assert produce(one, "new", batch(b"a")).error_code == 0
        image = crash_image(data, data.with_name("killed"))
    shutil.rmtree(image / "new-0")
    if cleaned is not None:
        (image / "cleaner-offset-checkpoint").write_text(f"0\n1\nnew 0 {cleaned}\n")
    (finding,) = check(image, capsys)
    assert finding["lost"] == ("unknown" if cleaned is None else "unknown, at least offsets 0 to 24")
    assert finding["repair"] == f"with --accept-loss: create an empty log at offset {cleaned or 0}"
    assert run(["log", "repair", str(image), "--accept-loss"]) == 0
    assert f"offsets from {cleaned or 0} on may be given out again" in capsys.readouterr().err
    with BrokerThread(image, **SETTINGS) as broker, broker.connect() as one:
        assert produce(one, "new", batch(b"b")).base_offset == (cleaned or 0)


def test_a_known_end_is_where_the_log_goes_on(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove_the_folder(data)
    (finding,) = check(data, capsys)
    assert finding["lost"] == f"offsets 0 to {RECORDS - 1}"
    assert run(["log", "repair", str(data), "--accept-loss"]) == 0
    assert "may be given out again" not in capsys.readouterr().err


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize("what", ["partition.metadata", "."])
def test_the_directory_of_another_topic_is_named(data: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    exchange(data / "hurt-0" / what, data / "whole-0" / what)
    findings = {finding["partition"]: finding for finding in check(data, capsys)}
    assert findings.keys() == {"hurt-0", "whole-0"}
    assert "is that of topic 'whole', but 'hurt' has" in findings["hurt-0"]["problem"]
    with BrokerThread(data, **SETTINGS) as broker:
        assert f"{data}/hurt-0/partition.metadata has topic id" in offline_reason(broker)
    before = contents(data)
    assert run(["log", "repair", str(data), "--accept-loss"]) == 1
    assert contents(data) == before
    assert "hurt-0: not repaired: delete the file if only it is wrong" in capsys.readouterr().err
    if what == ".":
        exchange(data / "hurt-0", data / "whole-0")
    else:
        for topic in ("hurt", "whole"):
            (data / f"{topic}-0" / what).unlink()
    assert check(data, capsys) == []
    with BrokerThread(data, **SETTINGS) as broker:
        assert len(read_with_librdkafka(broker.bootstrap, RECORDS)) == RECORDS


def test_partitions_of_a_log_dir_that_is_not_given_are_not_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with BrokerThread(one, other, **SETTINGS) as broker:
        broker.create("many", 4)
    (finding,) = check(one, capsys)
    assert finding["partition"] == "-" and finding["file"].startswith("directory.id=")
    assert finding["repair"] == "not possible: give all of log.dirs"
    before = contents(one)
    assert run(["log", "repair", str(one), "--accept-loss"]) == 1
    assert contents(one) == before and len([*one.glob("many-*")]) == 2
    assert run(["log", "check", str(one), str(other)]) == 0


def test_findings_are_lines(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_a_bit_in_the_middle(data)
    (data / "recovery-point-offset-checkpoint").write_bytes(b"nonsense")
    assert run(["log", "check", str(data)]) == 1
    checkpoint, line = capsys.readouterr().out.splitlines()
    assert checkpoint.startswith(f"-: {data}/recovery-point-offset-checkpoint: ")
    assert line.startswith(f"hurt-0: {segments(data)[1]} at byte ")
    assert "its CRC differs; lost: offsets " in line and "repair: with --accept-loss: " in line

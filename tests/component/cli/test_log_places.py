"""`levada log check` and `repair` where something else is in the place of a file or a directory."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.broker import BrokerThread
from tests.support.log_check import RECORDS, SETTINGS, check, make_data, served
from tests.support.raw import batch, produce

from levada.cli.main import run
from levada.errors import ErrorCode
from levada.model import TopicPartition
from levada.storage.disk import OsDisk
from levada.storage.log_dir import LogDirError

CHECKPOINTS = ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_a_directory(path: Path) -> None:
    remove(path)
    path.mkdir()
    (path / "kept").write_text("kept")


def put_a_fifo(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def put_a_link_to_itself(path: Path) -> None:
    remove(path)
    path.symlink_to(path)


@pytest.mark.parametrize("put", [put_a_directory, put_a_fifo, put_a_link_to_itself])
@pytest.mark.parametrize("name", [*CHECKPOINTS, f"{CHECKPOINTS[0]}.tmp", ".kafka_cleanshutdown", ".boot-id"])
def test_what_is_no_file_counts_as_a_corrupt_checkpoint(
    data: Path, capsys: pytest.CaptureFixture[str], name: str, put: Callable[[Path], None]
) -> None:
    put(data / name)
    (finding,) = check(data, capsys)
    assert finding["file"] == str(data / name) and "it is not a regular file" in finding["problem"]
    copy = data.with_name("copy")
    shutil.copytree(data, copy, symlinks=True, ignore=lambda folder, names: [one for one in names if one == name])
    put(copy / name)
    with BrokerThread(copy, **SETTINGS) as broker:
        assert len(served(broker)) == RECORDS
        with broker.connect() as one:
            assert produce(one, "hurt", batch(b"new")).base_offset == RECORDS
        broker.broker.log_dirs.checkpoints.write()
        assert not broker.broker.log_dirs.offline
    assert check(copy, capsys) == []
    assert run(["log", "repair", str(data)]) == 0
    assert check(data, capsys) == []
    for path in (data, copy):
        (kept,) = path.glob(f"{name}.*-damaged")
        assert put is not put_a_directory or (kept / "kept").read_text() == "kept"
    with BrokerThread(data, **SETTINGS) as broker:
        assert len(served(broker)) == RECORDS


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A topic of two partitions, and another one."""
    data = make_data(tmp_path / "data")
    with BrokerThread(data, **SETTINGS) as broker, broker.connect() as one:
        broker.create("two", 2)
        for number in range(2 * RECORDS):
            answer = produce(one, "two", batch(b"%d" % number), partition=number % 2)
            assert answer.base_offset == number // 2
    return data


def put_a_link_to_the_other_partition(path: Path) -> None:
    remove(path)
    path.symlink_to("two-1")


def put_a_link_to_nothing(path: Path) -> None:
    remove(path)
    path.symlink_to("nowhere")


def put_a_file(path: Path) -> None:
    remove(path)
    path.write_text("a file")


PLACES: dict[Callable[[Path], None], str] = {
    put_a_link_to_the_other_partition: "it is a link to",
    put_a_link_to_nothing: "it is a link to nothing",
    put_a_file: "it is not a directory",
}


@pytest.mark.parametrize("put", PLACES)
def test_what_is_no_directory_of_the_partition_is_offline(
    two: Path, capsys: pytest.CaptureFixture[str], put: Callable[[Path], None]
) -> None:
    put(two / "two-0")
    remove(two / "hurt-0")
    findings = {finding["partition"]: finding for finding in check(two, capsys)}
    assert findings.keys() == {"two-0", "hurt-0"}
    assert PLACES[put] in findings["two-0"]["problem"]
    assert {finding["lost"] for finding in findings.values()} == {f"offsets 0 to {RECORDS - 1}"}
    with BrokerThread(two, **SETTINGS) as broker, broker.connect() as one:
        offline = broker.broker.log_dirs.offline_logs
        assert offline.keys() == {("two", 0), ("hurt", 0)}
        reason = offline[TopicPartition("two", 0)].detail
        assert PLACES[put].removeprefix("it ") in reason and str(two / "two-0") in reason
        assert produce(one, "two", batch(b"no"), partition=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(one, "two", batch(b"yes"), partition=1).base_offset == RECORDS
    assert run(["log", "repair", str(two)]) == 1
    findings = {finding["partition"]: finding for finding in check(two, capsys)}
    assert {finding["lost"] for finding in findings.values()} == {f"offsets 0 to {RECORDS - 1}"}
    assert run(["log", "repair", str(two), "--accept-loss"]) == 0
    assert check(two, capsys) == []
    (kept,) = two.glob("two-0.*-damaged")
    assert os.path.lexists(kept)
    with BrokerThread(two, **SETTINGS) as broker, broker.connect() as one:
        for topic in ("two", "hurt"):
            assert produce(one, topic, batch(b"new"), partition=0).base_offset == RECORDS
        assert len(served(broker, "two", 1)) == RECORDS + 1


def test_a_repair_that_fails_leaves_the_others(
    two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hurt-0", "two-0"):
        remove(two / name)
    rename = OsDisk.rename

    def failing(source: str, target: str) -> None:
        if target == str(two / "hurt-0"):
            raise PermissionError(errno.EACCES, "Permission denied", target)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(OsDisk, "rename", staticmethod(failing))
        assert run(["log", "repair", str(two), "--accept-loss"]) == 1
    assert f"hurt-0: not repaired: {two}/hurt-0: Permission denied" in capsys.readouterr().err
    (finding,) = check(two, capsys)
    assert (finding["partition"], finding["lost"]) == ("hurt-0", f"offsets 0 to {RECORDS - 1}")


def test_a_directory_that_was_moved_and_linked_is_served(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move(two / "two-0", two.with_name("elsewhere"))
    (two / "two-0").symlink_to("../elsewhere")
    assert check(two, capsys) == []
    with BrokerThread(two, **SETTINGS) as broker:
        assert len(served(broker, "two", 0)) == RECORDS


def test_missing_metadata_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "levada-metadata.db"
    path.unlink()
    with pytest.raises(LogDirError, match=f"{path} is missing"):
        BrokerThread(data, **SETTINGS).__enter__()
    (finding,) = check(data, capsys)
    assert (finding["file"], finding["lost"]) == (str(path), "unknown")
    assert finding["repair"].startswith("not possible: restore it")
    assert run(["log", "repair", str(data), "--accept-loss"]) == 1


def test_metadata_may_be_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a file that brokers share, or in ZooKeeper, which is not read."""
    data, shared = tmp_path / "data", tmp_path / "shared.db"
    with BrokerThread(data, levada_metadata_file=shared, **SETTINGS) as broker:
        broker.create("a", 2)
    assert run(["log", "check", str(data)]) == 1
    for metadata in (str(shared), "zookeeper"):
        assert run(["log", "check", str(data), "--metadata", metadata]) == 0
    shutil.rmtree(data / "a-1")
    assert run(["log", "check", str(data), "--metadata", str(shared)]) == 1
    assert "a-1" in capsys.readouterr().out


def test_log_dirs_that_were_exchanged_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with BrokerThread(one, other, **SETTINGS) as broker:
        broker.create("many", 4)
    assert run(["log", "check", str(one), str(other)]) == 0
    capsys.readouterr()
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    with pytest.raises(LogDirError, match=r"levada-metadata\.db is missing"):
        BrokerThread(one, other, **SETTINGS).__enter__()
    assert run(["log", "check", str(one), str(other)]) == 1
    line = capsys.readouterr().out
    assert f"{other}/levada-metadata.db is there" in line and "they were exchanged" in line


def test_all_at_once_is_repaired(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sorted((two / "hurt-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[5] ^= 1  # a bit of the base offset of its first batch
    path.write_bytes(content)
    with BrokerThread(two, **SETTINGS) as broker:
        broker.create("three", 2)
    put_a_link_to_the_other_partition(two / "two-0")
    put_a_file(two / "three-0")
    put_a_link_to_nothing(two / "three-1")
    put_a_directory(two / ".kafka_cleanshutdown")
    put_a_fifo(two / "cleaner-offset-checkpoint")
    names = {"-", "hurt-0", "two-0", "three-0", "three-1"}
    assert {finding["partition"] for finding in check(two, capsys)} == names
    assert run(["log", "repair", str(two)]) == 1
    assert run(["log", "repair", str(two), "--accept-loss"]) == 0
    assert check(two, capsys) == []
    with BrokerThread(two, **SETTINGS) as broker:
        assert not broker.broker.log_dirs.offline_partitions()
        lost = int(path.stem)
        assert set(range(RECORDS)) - served(broker).keys() == {lost}
        assert len(served(broker, "whole")) == len(served(broker, "two", 1)) == RECORDS

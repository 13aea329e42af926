"""Log dirs: a failing one goes offline alone, and a start never discards data."""

import errno
import json
import logging
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker import BrokerThread, crash_image
from tests.support.downloads import Unavailable, must_be_had
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import split
from tests.support.raw import Connection, batch, fetch, produce
from tests.support.waiting import until

from levada.broker.log_files.checkpoints import LogCheckpoints
from levada.broker.partition.partition import Partition
from levada.cli.main import run
from levada.core.cluster.config_changes import AlterConfigs, ResourceType
from levada.errors import ErrorCode
from levada.storage.log_dir import LogDirError
from levada.wire.batches import decode

PREFIX = b"value:"
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def values(one: Connection, topic: str) -> list[bytes]:
    """The values (one a batch) of a topic's first partition."""
    found: list[bytes] = []
    while len(found) < (part := fetch(one, topic, len(found))).high_watermark:
        assert part.error_code == 0
        for piece in split(bytes(part.records)):
            found += (record.value[len(PREFIX) :] for record in decode(memoryview(piece)) if record.value)
    return found


def value(text: str) -> bytes:
    return batch(PREFIX + text.encode())


def two_topics(broker: BrokerThread) -> tuple[str, str]:
    """Topics in the first and in the second directory."""
    for name in ("one", "other"):
        broker.create(name)
    assert len({broker.log_dir(name) for name in ("one", "other")}) == 2, "partitions are spread over the directories"
    return two_topics_of(broker)


def two_topics_of(broker: BrokerThread) -> tuple[str, str]:
    """The topics in the first and in the second directory."""
    homes = {broker.log_dir(name): name for name in ("one", "other")}
    first, second = (Path(path) for path in broker.broker.log_dirs.paths)
    return homes[first], homes[second]


def send(one: Connection, topic: str, text: str) -> int:
    """Produce one record; the error code."""
    return int(produce(one, topic, value(text)).error_code)


# While running.


@pytest.mark.parametrize(
    ("operation", "number"), [("pwritev", errno.ENOSPC), ("pwritev", errno.EIO), ("fsync", errno.EIO)]
)
def test_a_broken_directory_goes_offline_and_the_others_go_on(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture, operation: str, number: int
) -> None:
    with BrokerThread(
        tmp_path / "a",
        tmp_path / "b",
        disk=disk,
        levada_acks_wait_for_fsync="true",
        levada_metrics_listener="127.0.0.1:0",
    ) as broker:
        good, bad = two_topics(broker)
        with broker.connect() as one:
            assert [send(one, topic, "before") for topic in (good, bad)] == [0, 0]
            disk.fail(operation, tmp_path / "b", number)
            with caplog.at_level(logging.ERROR):
                assert send(one, bad, "lost") == STORAGE_ERROR
            assert [record.message for record in caplog.records] == ["log dir is offline"]
            assert [send(one, topic, "after") for topic in (good, bad)] == [0, STORAGE_ERROR]
            assert values(one, good) == [b"before", b"after"]
            assert fetch(one, bad, 0).error_code == STORAGE_ERROR
        assert broker.broker.log_dirs.offline == [str(tmp_path / "b")]
        broker.create("new", partitions=4)
        assert {broker.log_dir("new", index) for index in range(4)} == {tmp_path / "a"}
        expected = {
            "status": "degraded",
            "offline_log_dirs": [str(tmp_path / "b")],
            "offline_partitions_count": 1,
            "offline_partitions": [f"{bad}-0"],
            "damaged_checkpoints": [],
            "remaining_logs_to_recover": 0,
        }
        assert health(broker) == (200, expected)
    disk.broken.clear()
    with BrokerThread(tmp_path / "a", tmp_path / "b") as broker, broker.connect() as one:
        assert values(one, good) == [b"before", b"after"]
        assert values(one, bad)[:1] == [b"before"]
        assert send(one, bad, "healed") == 0


def health(broker: BrokerThread) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(f"http://{broker.server.metrics_address}/healthz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_without_a_directory_the_broker_is_not_healthy(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk, levada_metrics_listener="127.0.0.1:0") as broker:
        broker.create("orders")
        assert health(broker)[0] == 200
        disk.fail("pwritev", tmp_path / "orders-0")
        with broker.connect() as one:
            assert send(one, "orders", "lost") == STORAGE_ERROR
        assert health(broker)[0] == 503


def test_all_waiters_get_an_error_for_a_broken_directory(tmp_path: Path, disk: FaultyDisk) -> None:
    """Long polls and producers of every partition in it."""
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", partitions=3)
        with broker.connect() as poll, broker.connect() as one:
            places = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1000} for index in (0, 1, 2)]
            fields = {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1000}
            poll.send("fetch", 12, fields | {"topics": [{"topic": "orders", "partitions": places}]})
            wait_for_waiters(broker, "orders")
            disk.fail("pwritev", tmp_path / "orders-2", errno.ENOSPC)
            parts = [{"index": index, "records": value("x")} for index in (0, 1, 2)]
            response = one.call(
                "produce",
                9,
                {"acks": -1, "timeout": 60_000, "topic_data": [{"name": "orders", "partition_data": parts}]},
            )
            codes = {part.index: part.error_code for part in response.responses[0].partition_responses}
            assert codes[2] == STORAGE_ERROR
            _, answer = poll.receive()
            assert STORAGE_ERROR in {part.error_code for part in answer.responses[0].partitions}


def wait_for_waiters(broker: BrokerThread, topic: str, index: int = 0) -> None:
    until(lambda: broker.call(lambda: bool(broker.partition(topic, index).watchers)))


def test_a_failed_read_takes_the_directory_offline(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders")
        with broker.connect() as one:
            assert send(one, "orders", "x") == 0
            disk.fail("pread", tmp_path / "orders-0")
            assert fetch(one, "orders", 0).error_code == STORAGE_ERROR
            assert send(one, "orders", "y") == STORAGE_ERROR


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not mount or subprocess.run(command, capture_output=True, check=False).returncode:
        must_be_had("A file system of 1 MiB", Unavailable("mounting needs root"))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path) -> None:
    """The records that were acknowledged are there, before and after a restart with room."""
    acknowledged = []
    with BrokerThread(tmp_path / "large", small_disk) as broker:
        good, bad = two_topics(broker)
        with broker.connect() as one:
            for number in range(100):
                text = f"{number}".ljust(50_000, ".")
                code = send(one, bad, text)
                if code:
                    break
                acknowledged.append(text.encode())
            assert code == STORAGE_ERROR and 5 < len(acknowledged) < 25
            assert send(one, bad, "more") == STORAGE_ERROR
            assert send(one, good, "goes on") == 0
    shutil.copytree(small_disk, tmp_path / "copy", ignore=shutil.ignore_patterns(".lock"))
    with BrokerThread(tmp_path / "large", tmp_path / "copy") as broker, broker.connect() as one:
        assert values(one, bad)[: len(acknowledged)] == acknowledged
        assert send(one, bad, "room again") == 0


# At the start.


def test_a_directory_that_cannot_be_used_at_the_start(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partitions are offline; they do not begin anew elsewhere, and come back with it."""
    folders = tmp_path / "a", tmp_path / "b"
    with BrokerThread(*folders) as broker, broker.connect() as one:
        good, bad = two_topics(broker)
        assert [send(one, topic, "before") for topic in (good, bad)] == [0, 0]
    disk.fail("mkdir", folders[1])
    with caplog.at_level(logging.ERROR), BrokerThread(*folders, disk=disk) as broker, broker.connect() as one:
        assert [record.message for record in caplog.records] == ["log dir is offline", "partition is offline"]
        assert values(one, good) == [b"before"]
        assert send(one, bad, "x") == STORAGE_ERROR
        assert fetch(one, bad, 0).error_code == STORAGE_ERROR
        assert send(one, good, "after") == 0
    with BrokerThread(*folders) as broker, broker.connect() as one:
        assert values(one, bad) == [b"before"]
        assert values(one, good) == [b"before", b"after"]


def test_without_its_metadata_a_broker_does_not_start(tmp_path: Path, disk: FaultyDisk) -> None:
    """Else every partition would pass for one of a deleted topic."""
    folders = tmp_path / "a", tmp_path / "b"
    with BrokerThread(*folders) as broker, broker.connect() as one:
        topics = two_topics(broker)
        assert [send(one, topic, "precious") for topic in topics] == [0, 0]
    disk.fail("mkdir", folders[0])
    with pytest.raises(LogDirError, match="holds the metadata"), BrokerThread(*folders, disk=disk):
        pass
    metadata = [*folders[0].glob("levada-metadata.db*")]
    for file in metadata:
        file.rename(tmp_path / file.name)
    with pytest.raises(LogDirError, match=r"levada-metadata\.db is missing"), BrokerThread(*folders):
        pass
    for file in metadata:
        (tmp_path / file.name).rename(file)
    with BrokerThread(*folders) as broker, broker.connect() as one:
        assert [values(one, topic) for topic in topics] == [[b"precious"], [b"precious"]]


def test_a_failed_start_changes_nothing(tmp_path: Path) -> None:
    """The port is taken: locks are given back, checkpoints and the mark of the clean stop stay."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("orders")
        for number in range(5):
            assert send(one, "orders", str(number)) == 0
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 3}]}]
        one.call("delete_records", 2, {"topics": topics, "timeout": 1000})
    checkpoints = {file.name: file.read_bytes() for file in tmp_path.iterdir() if "checkpoint" in file.name}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(OSError, match=r"(?i)in use"), BrokerThread(tmp_path, listeners=listener):
                pass
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert {name: (tmp_path / name).read_bytes() for name in checkpoints} == checkpoints
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert broker.partition("orders").log_start_offset == 3
        assert fetch(one, "orders", 3).high_watermark == 5


def test_a_directory_in_use_is_refused_and_the_others_are_let_go(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "b"):
        with pytest.raises(LogDirError, match="in use"), BrokerThread(tmp_path / "a", tmp_path / "b"):
            pass
        with BrokerThread(tmp_path / "a"):
            pass


def test_a_clean_stop_needs_no_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("orders")
        assert send(one, "orders", "x") == 0
        image = crash_image(tmp_path, tmp_path.with_name("crashed"))
    with caplog.at_level(logging.INFO), BrokerThread(tmp_path):
        assert not [record for record in caplog.records if "unclean shutdown" in record.message]
    with caplog.at_level(logging.INFO), BrokerThread(image) as broker, broker.connect() as one:
        assert [record for record in caplog.records if "unclean shutdown" in record.message]
        assert values(one, "orders") == [b"x"]


def test_deleted_records_stay_deleted_after_a_crash(tmp_path: Path) -> None:
    """Their log start offset is on disk when the request is answered, and so are the records up to it."""
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        broker.create("orders")
        for number in range(5):
            assert send(one, "orders", str(number)) == 0
        delete_records(one, "orders", 3)
        assert broker.partition("orders").log.recovery_point >= 3
        image = crash_image(tmp_path / "data", tmp_path / "image")
    with BrokerThread(image) as broker:
        assert broker.partition("orders").log_start_offset == 3


CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")


def trimmed(broker: BrokerThread, one: Connection) -> None:
    """Topics in two log dirs, whose records below offset 2 are deleted."""
    for topic in two_topics(broker):
        for number in range(4):
            assert send(one, topic, f"{number}") == 0
        places = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}]
        response = one.call("delete_records", 2, {"topics": places, "timeout": 1000})
        assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("killed", [False, True])
def test_deleted_records_of_a_moved_log_stay_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], killed: bool
) -> None:
    """Its entries of the checkpoints move along, also if the broker is killed before its next checkpoint."""
    source, moved = tmp_path / "source", tmp_path / "moved"
    with BrokerThread(source / "a", source / "b") as broker, broker.connect() as one:
        trimmed(broker, one)
        topic, _ = two_topics_of(broker)
        if killed:
            crash_image(source, moved)
    if not killed:
        shutil.copytree(source, moved)
    (moved / "a" / f"{topic}-0").rename(moved / "b" / f"{topic}-0")
    dirs = [moved / "a", moved / "b"]
    assert run(["log", "check", *map(str, dirs)]) == 0, capsys.readouterr()
    again = tmp_path / "again"
    for number in range(2):
        with BrokerThread(*dirs) as broker, broker.connect() as one:
            log = broker.partition(topic).log
            assert (log.log_start_offset, log.log_end_offset) == (2, 4)
            assert broker.log_dir(topic) == dirs[1]
            crash_image(moved, again / f"{number}")
        dirs = [again / f"{number}" / "a", again / f"{number}" / "b"]
    assert fetch_error(BrokerThread(*dirs), topic) == ErrorCode.OFFSET_OUT_OF_RANGE


def fetch_error(broker: BrokerThread, topic: str) -> int:
    with broker, broker.connect() as one:
        return int(fetch(one, topic, 0).error_code)


def test_exchanged_checkpoints_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is valid, but that of another log dir: it has no entries of its own logs."""
    source, killed = tmp_path / "source", tmp_path / "killed"
    with BrokerThread(source / "a", source / "b") as broker, broker.connect() as one:
        trimmed(broker, one)
        crash_image(source, killed)
    dirs = [killed / "a", killed / "b"]
    for name in CHECKPOINTS:
        contents = [(path / name).read_bytes() for path in dirs]
        for path, content in zip(dirs, reversed(contents), strict=True):
            (path / name).write_bytes(content)
    assert run(["log", "check", *map(str, dirs)]) == 1
    printed = capsys.readouterr().out
    assert all(f"{path / name}: it is that of directory.id=" in printed for path in dirs for name in CHECKPOINTS)
    with BrokerThread(*dirs, levada_metrics_listener="127.0.0.1:0") as broker:
        with urllib.request.urlopen(f"http://{broker.server.metrics_address}/healthz", timeout=20) as answer:
            health = answer.read().decode()
        assert '"degraded"' in health
        assert all(str(path / name) in health for path in dirs for name in CHECKPOINTS)
    assert caplog.text.count("checkpoint cannot be read") == 6


def test_a_checkpoint_never_holds_a_log_start_beyond_the_recovery_point(tmp_path: Path) -> None:
    """After a power failure recovery would find a log that ends before it starts."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("orders")
        for number in range(5):
            assert send(one, "orders", str(number)) == 0
        partition, checkpoints = broker.partition("orders"), broker.broker.log_dirs.checkpoints
        broker.call(lambda: partition.log.delete_records(3))
        assert checkpoints.offsets() == [(partition, 0, 0)]
        broker.wait(durable(checkpoints, partition))
        assert checkpoints.offsets() == [(partition, 5, 3)]


async def durable(checkpoints: LogCheckpoints, partition: Partition) -> None:
    await checkpoints.durable([partition])


def test_deleted_records_that_cannot_be_made_durable_are_an_error(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker, broker.connect() as one:
        broker.create("orders")
        assert send(one, "orders", "x") == 0
        disk.fail("fsync", tmp_path / "orders-0")
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]
        answer = one.call("delete_records", 2, {"topics": topics, "timeout": 1000})
        assert answer.topics[0].partitions[0].error_code == STORAGE_ERROR


@pytest.mark.parametrize("others", [True, False])
def test_data_of_an_unknown_topic_is_renamed_as_stray(tmp_path: Path, others: bool) -> None:
    """Also if the metadata has no topic at all."""
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        broker.create("orders")
        assert send(one, "orders", "x") == 0
        if not others:
            crash_image(tmp_path / "data" / "orders-0", tmp_path / "orders-0")
            broker.delete("orders")
            until(lambda: not list((tmp_path / "data").glob("orders-0*")), "the files are not deleted")
    if not others:
        shutil.move(tmp_path / "orders-0", tmp_path / "data")
    stray = tmp_path / "data" / "unknown-0"
    shutil.copytree(tmp_path / "data" / "orders-0", stray)
    content = {file.name: file.read_bytes() for file in stray.glob("*.log")}
    with BrokerThread(tmp_path / "data") as broker:
        assert ("unknown", 0) not in broker.broker.partitions
        until(lambda: not stray.exists(), "the directory is not renamed")
    (aside,) = (tmp_path / "data").glob("unknown-0.*")
    assert {file.name: file.read_bytes() for file in aside.glob("*.log")} == content


def test_a_topic_made_anew_begins_anew(tmp_path: Path) -> None:
    """The old topic's folder is found when the deletion was cut short by a crash; its id tells."""
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        broker.create("orders")
        assert send(one, "orders", "old") == 0
        old = crash_image(tmp_path / "data" / "orders-0", tmp_path / "old")
        broker.delete("orders")
        broker.create("orders")
        assert send(one, "orders", "new") == 0
    shutil.rmtree(tmp_path / "data" / "orders-0")
    shutil.copytree(old, tmp_path / "data" / "orders-0")
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        assert values(one, "orders") == []


def delete_records(one: Connection, topic: str, offset: int) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = one.call("delete_records", 2, {"topics": topics, "timeout": 1000})
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_topic_made_anew_keeps_its_records_after_a_crash(tmp_path: Path) -> None:
    """The checkpoints of the deleted one said that the log begins later: all that was acknowledged was cut."""
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        broker.create("orders")
        broker.create("others")
        for number in range(9):
            assert send(one, "orders", str(number)) == send(one, "others", str(number)) == 0
        delete_records(one, "orders", 7)
        delete_records(one, "others", 5)
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        broker.delete("orders")
        broker.create("orders")
        assert send(one, "orders", "new") == 0
        image = crash_image(tmp_path / "data", tmp_path / "image")
    with BrokerThread(image) as broker, broker.connect() as one:
        assert values(one, "orders") == [b"new"]
        assert broker.partition("others").log_start_offset == 5


def test_data_in_a_directory_that_is_away_is_not_hidden(tmp_path: Path) -> None:
    """Neither a change of the topic nor a new topic of the name may take an old log's place."""
    first, second, away = (tmp_path / name for name in ("first", "second", "away"))
    with BrokerThread(first, second) as broker, broker.connect() as one:
        for name in ("filler", "orders", "others", "shop"):  # by turns in the first and the second
            broker.create(name)
            assert send(one, name, "old") == 0
        assert broker.log_dir("orders") == broker.log_dir("shop") == second
    second.rename(away)
    second.touch()  # no directory
    with BrokerThread(first, second) as broker, broker.connect() as one:
        alter = AlterConfigs(ResourceType.TOPIC, "orders", {"retention.ms": "123456789"})
        broker.wait(broker.broker.controller.submit(alter))
        assert send(one, "orders", "hidden") == STORAGE_ERROR
        broker.delete("shop")
        broker.create("shop")
        assert send(one, "shop", "new") == 0
    second.unlink()
    away.rename(second)
    with BrokerThread(first, second) as broker, broker.connect() as one:
        assert values(one, "orders") == [b"old"]
        assert values(one, "shop") == [b"new"]


def test_a_checkpoint_on_its_way_does_not_speak_of_a_deleted_topic(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        broker.create("orders")
        for number in range(9):
            assert send(one, "orders", str(number)) == 0
        delete_records(one, "orders", 7)
        checkpoints = broker.broker.log_dirs.checkpoints
        offsets = checkpoints.offsets()
        broker.delete("orders")
        broker.create("orders")
        assert send(one, "orders", "new") == 0
        checkpoints.write_offsets(offsets, {})
        image = crash_image(tmp_path / "data", tmp_path / "image")
    with BrokerThread(image) as broker, broker.connect() as one:
        assert values(one, "orders") == [b"new"]


def test_a_damaged_log_is_refused_alone_and_left_as_it_is(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, log_segment_bytes=1000) as broker, broker.connect() as one:
        for name in ("good", "bad"):
            broker.create(name)
            for number in range(6):
                assert send(one, name, f"{number}" * 300) == 0
    segments = sorted((tmp_path / "bad-0").glob("*.log"))
    assert len(segments) > 2
    segments[0].write_bytes(segments[0].read_bytes()[:20] + b"damage" + bytes(400))
    for index in (tmp_path / "bad-0").glob("*index"):
        index.unlink()
    files = {file: file.read_bytes() for file in segments}
    for _ in range(2):
        with BrokerThread(tmp_path, log_segment_bytes=1000) as broker, broker.connect() as one:
            assert len(values(one, "good")) == 6
            assert send(one, "bad", "x") == STORAGE_ERROR
        assert {file: file.read_bytes() for file in segments} == files


def test_a_deleted_topic_frees_its_space(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        broker.create("orders", partitions=3)
        assert send(one, "orders", "x") == 0
        broker.delete("orders")
        until(lambda: not list(tmp_path.glob("orders-*")))
        assert send(one, "orders", "y") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("how", "size"), [("fetch", 0), ("fetch", 100), ("list_offsets", 0)])
def test_a_file_that_is_cut_off_below_a_running_broker_takes_its_partition_offline(
    tmp_path: Path, how: str, size: int
) -> None:
    """Not its log dir; and a start after it gives no offset out again."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("orders", "others"):
            broker.create(topic)
            assert [send(one, topic, f"value {number}") for number in range(5)] == [0] * 5
        os.truncate(next((tmp_path / "orders-0").glob("*.log")), size)
        if how == "fetch":
            assert fetch(one, "orders", 0).error_code == STORAGE_ERROR
        else:
            partitions = [{"partition_index": 0, "timestamp": 1}]
            topics = [{"name": "orders", "partitions": partitions}]
            answer = one.call("list_offsets", 7, {"replica_id": -1, "topics": topics})
            assert answer.topics[0].partitions[0].error_code == STORAGE_ERROR
        assert produce(one, "orders", batch(b"new")).error_code == STORAGE_ERROR
        assert send(one, "others", "new") == 0
        assert broker.broker.log_dirs.offline_partitions() == {("orders", 0)}
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert broker.broker.log_dirs.offline_partitions() == {("orders", 0)}
        assert produce(one, "orders", batch(b"new")).error_code == STORAGE_ERROR

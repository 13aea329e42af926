"""A log dir: its owner, its lock, and the partitions found in it."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from crc32c import crc32c
from tests.support.logs import QuickDisk, append, open_log

from levada.model import TopicPartition
from levada.storage.disk import OsDisk
from levada.storage.log.deletion import rename_deleted_log
from levada.storage.log_dir import LogDir, LogDirError
from levada.storage.partition_directory import decode_uuid, encode_uuid

CLUSTER = "cluster-a"
TOPIC_ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def open_dir(path: Path, node_id: int = 1, cluster_id: str = CLUSTER) -> LogDir:
    log_dir = LogDir.open(str(path), QuickDisk(), node_id=node_id)
    try:
        log_dir.join(cluster_id)
    except LogDirError:
        log_dir.close(clean=False)
        raise
    return log_dir


def test_a_directory_keeps_its_owner(tmp_path: Path) -> None:
    first = LogDir.open(str(tmp_path / "d"), QuickDisk(), node_id=1)
    assert first.cluster_id is None
    first.join(CLUSTER)
    first.close(clean=False)
    again = LogDir.open(str(tmp_path / "d"), QuickDisk(), node_id=1)
    assert (again.cluster_id, again.directory_id) == (CLUSTER, first.directory_id)
    again.join(CLUSTER)
    again.close(clean=False)
    text = (tmp_path / "d" / "meta.properties").read_text()
    for line in ("version=1", f"cluster.id={CLUSTER}", "node.id=1", "levada.format=1", "directory.id="):
        assert line in text


def test_a_directory_of_another_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_dir(tmp_path).close(clean=False)
    before = (tmp_path / "meta.properties").read_bytes()
    with pytest.raises(LogDirError, match=r"belongs to cluster cluster-a, not to other"):
        open_dir(tmp_path, cluster_id="other")
    with pytest.raises(LogDirError, match=r"node\.id=1, but this is node 2"):
        open_dir(tmp_path, node_id=2)
    assert (tmp_path / "meta.properties").read_bytes() == before
    open_dir(tmp_path).close(clean=False)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("levada.format=1", "levada.format=2", r"levada\.format=2; this version reads up to 1"),
        ("levada.format=1", "levada.format=", r"levada\.format=nothing"),
        ("levada.format=1", "levada.format=x", r"levada\.format=x"),
        ("node.id=1", "", r"node\.id=nothing"),
        ("cluster.id=cluster-a", "", r"no cluster\.id"),
        ("directory.id=", "directory.id=!", r"no valid directory\.id"),
    ],
)
def test_a_strange_meta_properties_is_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    open_dir(tmp_path).close(clean=False)
    path = tmp_path / "meta.properties"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(LogDirError, match=complaint):
        open_dir(tmp_path)


def test_a_huge_meta_properties_is_refused(tmp_path: Path) -> None:
    open_dir(tmp_path).close(clean=False)
    os.truncate(tmp_path / "meta.properties", 1 << 41)  # sparse
    with pytest.raises(LogDirError, match=r"meta\.properties has more than 65536 bytes"):
        open_dir(tmp_path)


def test_partitions_without_meta_properties_are_refused(tmp_path: Path) -> None:
    log_dir = open_dir(tmp_path)
    log_dir.create_partition(TopicPartition("a", 0), TOPIC_ID)
    log_dir.close(clean=False)
    (tmp_path / "meta.properties").unlink()
    with pytest.raises(LogDirError, match=r"holds partitions but no meta\.properties"):
        open_dir(tmp_path)


@pytest.mark.parametrize(
    ("meta", "files"),
    [
        ("version=1\ncluster.id=abc\nnode.id=1\ndirectory.id=def\n", ()),
        ("version=0\ncluster.id=abc\nbroker.id=1\n", ()),  # with ZooKeeper
        (None, ("bootstrap.checkpoint",)),
        (None, ("__cluster_metadata-0/00000000000000000000.log", "orders-0/00000000000000000000.log")),
        (None, ("recovery-point-offset-checkpoint", "orders-0/00000000000000000000.log")),
    ],
)
def test_a_data_directory_of_apache_kafka_is_recognised_and_left_alone(
    tmp_path: Path, meta: str | None, files: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"0\n0\n" if name.startswith("recovery") else b"")
    if meta is not None:
        (tmp_path / "meta.properties").write_text(meta)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(LogDirError, match=r"data directory of Apache Kafka.*log\.dirs.*MirrorMaker"):
        open_dir(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != ".lock") == before


def test_an_own_directory_without_meta_properties_is_not_taken_for_kafkas(tmp_path: Path) -> None:
    log_dir = open_dir(tmp_path)
    log_dir.write_recovery_points({TopicPartition("a", 0): 5})
    log_dir.create_partition(TopicPartition("a", 0), TOPIC_ID)
    log_dir.close(clean=True)
    (tmp_path / "meta.properties").unlink()
    with pytest.raises(LogDirError, match=r"holds partitions but no meta\.properties"):
        open_dir(tmp_path)


@pytest.mark.slow
def test_bits_turned_in_the_small_files_are_refused_or_harmless(tmp_path: Path) -> None:
    """Never a crash of another kind than the one that says what is wrong."""
    log_dir = open_dir(tmp_path)
    log_dir.write_recovery_points({TopicPartition("a", 0): 5})
    log_dir.write_log_start_offsets({TopicPartition("a", 0): 5})
    log_dir.create_partition(TopicPartition("a", 0), TOPIC_ID)
    log_dir.close(clean=True)
    names = ("meta.properties", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
    for path in [*(tmp_path / name for name in names), tmp_path / "a-0" / "partition.metadata"]:
        original = path.read_bytes()
        for bit in range(8 * len(original)):
            data = bytearray(original)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            try:
                opened = LogDir.open(str(tmp_path), QuickDisk(), node_id=1)
            except LogDirError:
                continue
            assert [found.partition for found in opened.partitions()] == [TopicPartition("a", 0)]
            opened.close(clean=False)
        path.write_bytes(original)


def test_only_one_process_uses_a_directory(tmp_path: Path) -> None:
    script = (
        "import sys; from levada.storage.log_dir import LogDir; from levada.storage.disk import OsDisk\n"
        "LogDir.open(sys.argv[1], OsDisk(), node_id=1); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"locked\n"
        with pytest.raises(LogDirError, match="in use by another broker"):
            open_dir(tmp_path)
        other.kill()
    open_dir(tmp_path).close(clean=False)


def test_the_mark_of_a_clean_stop_holds_for_one_start(tmp_path: Path) -> None:
    log_dir = open_dir(tmp_path)
    assert not log_dir.was_clean
    log_dir.close(clean=True)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    log_dir = open_dir(tmp_path)
    assert log_dir.was_clean
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    log_dir.close(clean=False)
    log_dir = open_dir(tmp_path)
    assert not log_dir.was_clean
    assert log_dir.fail(OSError("disk")) and not log_dir.fail(OSError("again"))
    log_dir.close(clean=True)
    assert not open_dir(tmp_path).was_clean


def test_checkpoints_are_found_again_or_forgotten(tmp_path: Path) -> None:
    log_dir = open_dir(tmp_path)
    points = {TopicPartition("orders.eu-1", 3): 17}
    log_dir.write_recovery_points(points)
    log_dir.write_log_start_offsets({TopicPartition("x", 0): 4})
    log_dir.close(clean=False)
    log_dir = open_dir(tmp_path)
    assert log_dir.recovery_points == points
    assert log_dir.log_start_offsets == {TopicPartition("x", 0): 4}
    log_dir.close(clean=False)


@pytest.mark.parametrize("content", [b"0\n9\ntorn", b"", None], ids=["torn", "empty", "missing"])
@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_checkpoint_that_cannot_be_read_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None
) -> None:
    """A clean shutdown counts only with its recovery points, and then no batch counts as lost by a power failure."""
    partition = TopicPartition("x", 0)
    log_dir = open_dir(tmp_path)
    log_dir.write_recovery_points({partition: 7})
    log_dir.write_log_start_offsets({partition: 4})
    log_dir.close(clean=True)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".boot-id").unlink(missing_ok=True)
    caplog.clear()
    log_dir = open_dir(tmp_path)
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.message == "checkpoint cannot be read" and list(log_dir.unreadable) == [name]
    if name.startswith("recovery"):
        assert log_dir.checkpoint_of(partition) == (False, None, 4, False, False)
    else:
        assert log_dir.checkpoint_of(partition) == (True, 7, None, True, False)
    log_dir.close(clean=False)


def test_partitions_that_were_not_open_are_not_clean(tmp_path: Path) -> None:
    log_dir = open_dir(tmp_path)
    names = [TopicPartition("x", 0), TopicPartition("x", 1)]
    log_dir.write_recovery_points(dict.fromkeys(names, 7))
    log_dir.close(clean=True, unclean=names[1:])
    log_dir = open_dir(tmp_path)
    assert [log_dir.checkpoint_of(name).clean for name in names] == [True, False]
    assert not log_dir.checkpoint_of(TopicPartition("x", 2)).clean  # no checkpoint has it
    log_dir.close(clean=False)


def test_a_changed_topic_id_is_found(tmp_path: Path) -> None:
    """The folder would pass for that of another topic."""
    log_dir = open_dir(tmp_path)
    path = Path(log_dir.create_partition(TopicPartition("a", 0), TOPIC_ID)) / "partition.metadata"
    original = path.read_bytes()
    for bit in range(8 * len(original)):
        data = bytearray(original)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert log_dir.partitions()[0].topic_id in (None, TOPIC_ID)
    path.write_bytes(original.partition(b"crc32c")[0])
    assert log_dir.partitions()[0].topic_id == TOPIC_ID
    log_dir.close(clean=False)


@pytest.mark.parametrize("name", ["meta.properties", ".lock"])
def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    open_dir(tmp_path).close(clean=True)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(LogDirError, match=name):
        open_dir(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b'{"version": 0, "unclean": 7}', b"[" * 100_000])
def test_a_corrupt_mark_of_a_clean_stop_does_not_count(tmp_path: Path, content: bytes) -> None:
    open_dir(tmp_path).close(clean=True)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    log_dir = open_dir(tmp_path)
    assert not log_dir.was_clean
    log_dir.close(clean=False)


@pytest.mark.parametrize("node_id", [1, None])
def test_a_fifo_in_the_place_of_the_lock_is_named(tmp_path: Path, node_id: int | None) -> None:
    open_dir(tmp_path).close(clean=True)
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(LogDirError, match=r"\.lock: is not a regular file"):
        LogDir.open(str(tmp_path), OsDisk(), node_id=node_id)


def test_partitions_are_created_found_and_deleted(tmp_path: Path) -> None:
    log_dir = open_dir(tmp_path)
    partition = TopicPartition("orders.eu-west_1", 12)
    directory = log_dir.create_partition(partition, TOPIC_ID)
    assert Path(directory) == tmp_path / "orders.eu-west_1-12"
    assert (tmp_path / "orders.eu-west_1-12" / "partition.metadata").read_text() == (
        "version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w\ncrc32c: 7f033e6b\n"
    )
    (tmp_path / "file-1").write_text("no folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "lost-3").mkdir()
    assert log_dir.partitions() == [
        (TopicPartition("lost", 3), str(tmp_path / "lost-3"), None),
        (partition, directory, TOPIC_ID),
    ]
    log = open_log(directory)
    append(log)
    log.close(clean=False)
    rename_deleted_log(OsDisk(), log.directory)
    assert [found.partition for found in log_dir.partitions()] == [TopicPartition("lost", 3)]
    log_dir.delete_partition_files()
    log_dir.delete_partition_files()
    assert sorted(name for name in os.listdir(tmp_path) if not name.startswith(".")) == [
        "cleaner-offset-checkpoint", "file-1", "log-start-offset-checkpoint", "lost-3", "meta.properties", "other",
        "recovery-point-offset-checkpoint",
    ]  # fmt: skip
    log_dir.close(clean=True)


def test_ids_are_written_as_kafka_writes_them() -> None:
    assert encode_uuid(TOPIC_ID) == "ASNFZ4mrze8BI0VniavN7w"
    assert decode_uuid("ASNFZ4mrze8BI0VniavN7w") == TOPIC_ID
    for text in ("", "short", "ASNFZ4mrze8BI0VniavN7wAAAA"):
        with pytest.raises(ValueError):
            decode_uuid(text)


def test_a_power_failure_and_a_kill_differ(tmp_path: Path) -> None:
    """By the id of the machine's boot; a corrupt one is no sign of a power failure."""
    partition, path = TopicPartition("x", 0), tmp_path / ".boot-id"

    def power_lost() -> bool:
        log_dir = open_dir(tmp_path)
        log_dir.close(clean=False)
        return log_dir.checkpoint_of(partition).power_lost

    open_dir(tmp_path).close(clean=False)
    assert not power_lost()
    current = path.read_bytes()
    for position in range(len(current)):
        path.write_bytes(current[:position] + bytes([current[position] ^ 1]) + current[position + 1 :])
        assert not power_lost()
        assert path.read_bytes() == current
    other = b"01234567-89ab-cdef-0123-456789abcdef\n"
    path.write_bytes(other + b"%08x\n" % crc32c(other))
    assert power_lost()
    assert not power_lost()


def test_a_power_failure_counts_until_every_log_is_recovered(tmp_path: Path) -> None:
    """A broker that is killed or stopped during recovery must not take torn ends of logs for damage."""
    first = open_dir(tmp_path)
    first.create_partition(TopicPartition("x", 0), TOPIC_ID)
    first.close(clean=False)
    other = b"01234567-89ab-cdef-0123-456789abcdef\n"
    (tmp_path / ".boot-id").write_bytes(other + b"%08x\n" % crc32c(other))
    for stopped in (False, True, False):
        log_dir = open_dir(tmp_path)
        assert log_dir.power_lost
        log_dir.close(stopped, unclean=[TopicPartition("x", 0)])
    recovered = open_dir(tmp_path)
    recovered.store_boot_id()
    recovered.close(clean=False)
    last = open_dir(tmp_path)
    assert not last.power_lost
    last.close(clean=False)

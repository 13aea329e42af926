"""Kafka's own DumpLogSegments reads what the log writes and finds no error."""

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.compat.tools import dump_log_segments
from tests.support.logs import NOW_MS, append, make_batch, open_log

from levada.core.partition.producer_state import ProducerStates
from levada.model import Codec, TopicPartition
from levada.storage.disk import OsDisk
from levada.storage.log.log import Log
from levada.storage.log.repair import Repaired
from levada.storage.log_check import LogDirCheck
from levada.storage.log_dir import LogDir
from levada.wire.batches import read_header, recompress

CODECS = list(Codec)
TARGETS = [(Codec.NONE, None), (Codec.GZIP, 9), (Codec.SNAPPY, None), (Codec.LZ4, 9), (Codec.LZ4, 12), (Codec.ZSTD, 19)]


def fill(log: Log) -> None:
    """A few hundred batches of every codec, some recompressed, of many sizes and with timestamps that also go back."""
    chance = random.Random(4)
    producers = ProducerStates()
    for number in range(400):
        count = chance.randrange(1, 20)
        timestamp = NOW_MS + number * 10 - chance.randrange(2_000)
        value = chance.randbytes(chance.choice([10, 300, 3_000]) // count)
        batch = make_batch(log.next_offset, count, value, timestamp, number // 200, CODECS[number % 5])
        if number % 3 == 0:
            batch = bytes(recompress(memoryview(batch), *chance.choice(TARGETS)))
        log.assign_epoch(number // 200)
        header = read_header(batch)
        producers.apply(chance.randrange(5), 0, number, log.next_offset + count - 1, count, header.max_timestamp)
        log.reserve(memoryview(batch), count, header.max_timestamp, NOW_MS)
        if number % 7 == 0:
            log.publish()
    log.publish()
    log.producer_snapshots.write(log.log_end_offset, producers.encode_snapshot(log.log_end_offset))


@pytest.fixture(scope="module", params=["closed", "recovered"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log closed cleanly, and one whose indexes were lost and made again."""
    path = tmp_path_factory.mktemp("data") / "orders.eu-west_1-7"
    options: dict[str, Any] = {"segment_bytes": 50_000, "index_interval_bytes": 1_000}
    log = open_log(path, **options)
    fill(log)
    log.close(clean=True)
    if request.param == "recovered":
        for file in [*path.glob("*index"), path / "leader-epoch-checkpoint"]:
            file.unlink()
        with max(path.glob("*.log")).open("ab") as tail:
            tail.write(b"torn")
        log = open_log(path, clean=False, **options)
        log.close(clean=True)
    return path


def test_kafka_reads_every_record(folder: Path) -> None:
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 3
    output = dump_log_segments(logs, "--deep-iteration")
    assert output.count("isvalid: true") == 400
    assert "isvalid: false" not in output
    assert "Error" not in output and "WARN" not in output and "mismatch" not in output.lower()
    with_records = open_log(folder)
    assert output.count("| offset: ") == with_records.log_end_offset
    with_records.close(clean=False)


@pytest.mark.parametrize("option", ["--deep-iteration", "--index-sanity-check", "--verify-index-only"])
def test_kafka_agrees_with_the_indexes(folder: Path, option: str) -> None:
    files = sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])
    assert sum(file.stat().st_size > 0 for file in files) > 6
    output = dump_log_segments(files, option)
    for complaint in (
        "Mismatches",
        "out of order",
        "not found",
        "Found timestamp mismatch",
        "Exception",
        "corrupt",
    ):
        assert complaint not in output, output
    if option == "--deep-iteration":
        assert output.count("offset: ") > 100
    if option == "--index-sanity-check":
        assert output.count("passed sanity check") + output.count("is empty") == len(files)


def test_kafka_reads_the_producer_snapshot(folder: Path) -> None:
    output = dump_log_segments(sorted(folder.glob("*.snapshot")))
    assert output.count("producerId: ") == 5


def test_kafka_reads_a_repaired_log(tmp_path: Path) -> None:
    """Empty batches replace lost offsets."""
    log_dir = LogDir.open(str(tmp_path), OsDisk(), node_id=1)
    log_dir.join("cluster")
    name = TopicPartition("orders", 0)
    folder = Path(log_dir.create_partition(name, uuid4()))
    log = open_log(folder, segment_bytes=1_000)
    batches = [append(log, 2) for _ in range(40)]
    log.close(clean=True)
    log_dir.write_recovery_points({name: 80})
    log_dir.close(clean=True)
    path = sorted(folder.glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(batches[0]) + 70] ^= 1  # in the second batch of the segment
    path.write_bytes(data)
    check = LogDirCheck(str(tmp_path), OsDisk())
    assert len(list(check.run({}))) == 1
    ((_, repaired),) = check.repair(accept_loss=True)
    check.close()
    assert isinstance(repaired, Repaired) and len(repaired.lost) == 1
    log = open_log(folder, clean=False, segment_bytes=1_000)
    log.close(clean=True)
    output = dump_log_segments(sorted(folder.glob("*.log")), "--deep-iteration")
    assert output.count("isvalid: true") == 40 and "isvalid: false" not in output
    assert output.count("count: 0 ") == 1 and output.count("| offset: ") == 78

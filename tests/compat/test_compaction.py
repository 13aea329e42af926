"""Compacted topics with real clients: all read the same latest values; Kafka's own tool reads the segments."""

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.compat.drivers.base import CODECS, Driver, Record
from tests.compat.drivers.confluent import Confluent
from tests.compat.drivers.registry import drivers_with
from tests.compat.own_broker import own_broker
from tests.compat.tools import dump_log_segments
from tests.support import raw
from tests.support.broker import BrokerProcess
from tests.support.downloads import Unavailable, must_be_had
from tests.support.waiting import until

from levada.wire import batches

pytestmark = own_broker

TIMEOUT_S = 60.0
ROUNDS = 80
KEYS = 30
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 30_000,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.segment.bytes": 10_000,
}
READERS = drivers_with(("consume", "offsets"))
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "8000", "min.cleanable.dirty.ratio": "0.01"}


@dataclass
class Compacting:
    """A broker that cleans eagerly."""

    server: BrokerProcess
    data: Path

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def size(self, topic: str) -> int:
        """The bytes of a topic's batches on disk."""
        sizes = []
        for path in (self.data / f"{topic}-0").glob("*.log"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        return sum(sizes)

    def compacted_to(self, topic: str, size: int) -> None:
        until(lambda: self.size(topic) <= size, f"{topic} is not compacted to {size} bytes")

    def records(self, topic: str) -> list[batches.Record]:
        """Every record that a Fetch brings."""
        found: list[batches.Record] = []
        offset = 0
        with raw.Connection(self.bootstrap) as wire:
            while True:
                part = raw.fetch(wire, topic, offset)
                assert part.error_code == 0
                data = memoryview(bytes(part.records or b""))
                if not data:
                    return found
                for position, header in batches.iterate_headers(data):
                    if not header.is_control:
                        found += batches.decode(data[position : position + header.size])
                    offset = header.last_offset + 1


@pytest.fixture(scope="module")
def compacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compacting]:
    folder = tmp_path_factory.mktemp("compacting")
    with BrokerProcess(folder, SETTINGS) as server:
        yield Compacting(server, folder / "data")


@pytest.fixture(scope="module")
def expected(compacting: Compacting) -> dict[bytes | None, bytes | None]:
    """A topic with records of every codec, overwritten and deleted many times; what is left of it."""
    client = Confluent(compacting.bootstrap)
    client.create_topic("latest", configs=CONFIGS | {"delete.retention.ms": "100"})
    state: dict[bytes | None, bytes | None] = {}
    for number in range(ROUNDS):
        records = [
            Record(None if (number + key) % 11 == 0 else b"%d-%d" % (number, key) * 3, b"key-%d" % (key % KEYS))
            for key in range(number, number + 12)
        ]
        client.produce("latest", records, codec=CODECS[number % len(CODECS)], idempotent=True)
        state.update((record.key, record.value) for record in records)
    client.close()
    compacting.compacted_to("latest", 12_000)
    return {key: value for key, value in state.items() if value is not None}


@pytest.mark.parametrize("driver", READERS, ids=[driver.name for driver in READERS])
def test_every_client_reads_the_latest_values(
    compacting: Compacting, expected: dict[bytes | None, bytes | None], driver: type[Driver]
) -> None:
    """Over gaps, emptied batches and tombstones; with the offsets that the records always had."""
    try:
        client = driver(compacting.bootstrap)
    except Unavailable as error:
        must_be_had(driver.name, error)
    left = compacting.records("latest")
    assert len(left) < ROUNDS * 12 / 2
    try:
        seen = client.consume("latest", len(left))
        assert client.offsets("latest")[1] == ROUNDS * 12
    finally:
        client.close()
    assert [(record.offset, record.key, record.value) for record in seen] == [
        record[:1] + record[2:4] for record in left
    ]
    latest = {record.key: record.value for record in seen}
    assert {key: value for key, value in latest.items() if value is not None} == expected


def test_a_producer_goes_on_after_its_batches_were_cleaned(compacting: Compacting) -> None:
    """Its sequence numbers are known, also after a restart that reads them from the log."""
    Confluent(compacting.bootstrap).create_topic("sequence", configs=CONFIGS)
    producer = Producer({"bootstrap.servers": compacting.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for round_ in range(6):
        for number in range(60):
            producer.produce("sequence", key=b"key-%d" % (number % 4), value=b"%d-%d" % (round_, number))
            producer.flush()
        compacting.compacted_to("sequence", 9_000)
        if round_ == 2:
            compacting.server.stop(signal.SIGKILL)
            for snapshot in (compacting.data / "sequence-0").glob("*.snapshot"):
                snapshot.unlink()
            compacting.server.start()
    left = compacting.records("sequence")
    assert {record.key: record.value for record in left} == {b"key-%d" % key: b"5-%d" % (56 + key) for key in range(4)}


def committed(bootstrap: str, topic: str) -> dict[bytes, bytes]:
    """What a reader of committed records folds a topic to."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    state: dict[bytes, bytes] = {}
    while True:
        message = consumer.poll(20)
        assert message is not None, "no end of the partition"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return state
        key, value = message.key(), message.value()
        assert isinstance(key, bytes) and isinstance(value, bytes)
        state[key] = value


def test_transactions_in_a_compacted_topic(compacting: Compacting) -> None:
    """Aborted records go, committed ones replace older ones, and readers of committed records see no difference."""
    Confluent(compacting.bootstrap).create_topic("decided", configs=CONFIGS | {"delete.retention.ms": "0"})
    producer = Producer({"bootstrap.servers": compacting.bootstrap, "transactional.id": "t"})
    producer.init_transactions(20)
    state: dict[bytes, bytes] = {}
    for number in range(150):
        producer.begin_transaction()
        written = {b"key-%d" % (number % 7): b"%d" % number, b"key-%d" % (number % 5): b"%d" % number}
        for key, value in written.items():
            producer.produce("decided", key=key, value=value)
        if number % 3:
            producer.commit_transaction(20)
            state |= written
        else:
            producer.abort_transaction(20)
    compacting.compacted_to("decided", 12_000)
    assert committed(compacting.bootstrap, "decided") == state
    compacting.server.stop(signal.SIGKILL)
    compacting.server.start()
    assert committed(compacting.bootstrap, "decided") == state
    compacting.compacted_to("__transaction_state", 20_000)


def test_committed_offsets_are_compacted(compacting: Compacting) -> None:
    """A group that commits all the time leaves its last offsets, which a restart finds."""
    Confluent(compacting.bootstrap).create_topic("read")
    settings = {"bootstrap.servers": compacting.bootstrap, "group.id": "busy"}
    consumer = Consumer(settings)
    for offset in range(2_000):
        consumer.commit(offsets=[TopicPartition("read", 0, offset)], asynchronous=False)
    consumer.close()
    compacting.compacted_to("__consumer_offsets", 45_000)
    compacting.server.stop(signal.SIGKILL)
    compacting.server.start()
    consumer = Consumer(settings)
    assert consumer.committed([TopicPartition("read", 0)], 20)[0].offset == 1_999
    consumer.close()


def cleaners(pid: int) -> list[int]:
    """The cleaner processes of a broker that is alive or was."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"levada.storage.compaction.process" in words and b"%d" % pid in words:
            found.append(int(path.parent.name))
    return found


def test_a_broker_killed_while_it_cleans(tmp_path: Path) -> None:
    """Again and again, with the cleaner in the middle of its work: no key loses its latest value, no process stays."""
    with BrokerProcess(tmp_path, SETTINGS | {"log.cleaner.io.max.bytes.per.second": 40_000}) as server:
        compacting = Compacting(server, tmp_path / "data")
        client = Confluent(server.bootstrap)
        client.create_topic("killed", configs=CONFIGS)
        folder = compacting.data / "killed-0"
        state: dict[bytes | None, bytes | None] = {}
        for number in range(5):
            client.alter_configs("killed", {"min.cleanable.dirty.ratio": "1"})  # not before all is written
            records = [Record(b"%d-%d" % (number, key) * 5, b"key-%d" % (key % 40)) for key in range(700)]
            for start in range(0, len(records), 50):
                client.produce("killed", records[start : start + 50], idempotent=True)
            state.update((record.key, record.value) for record in records)
            client.alter_configs("killed", {"min.cleanable.dirty.ratio": "0.01"})
            begun = f"{number}: nothing is being cleaned"
            until(lambda: bool(list(folder.glob("*.cleaned")) or list(folder.glob("*.swap"))), begun)
            time.sleep(0.05 * number)
            pid = server.pid
            server.stop(signal.SIGKILL)
            until(lambda pid=pid: not cleaners(pid), "the cleaner outlives its broker")  # type: ignore[misc]
            server.start()
            left = compacting.records("killed")
            assert {record.key: record.value for record in left} == state
        client.close()


def test_kafka_reads_cleaned_segments(compacting: Compacting, expected: dict[bytes | None, bytes | None]) -> None:
    """DumpLogSegments finds every batch valid, and nothing wrong with the indexes."""
    for topic in ("latest", "decided", "__consumer_offsets"):
        folder = compacting.data / f"{topic}-0"
        if not folder.exists():
            continue
        logs = sorted(folder.glob("*.log"))[:-1]
        output = dump_log_segments(logs, "--deep-iteration")
        assert output.count("isvalid: true") > 0
        assert "isvalid: false" not in output
        for complaint in ("Error", "WARN", "mismatch", "Exception"):
            assert complaint.lower() not in output.lower(), output[-2000:]
        if topic == "latest":
            gaps = [int(number) for number in re.findall(r"baseOffset: (\d+)", output)]
            assert gaps == sorted(set(gaps)) and gaps != list(range(len(gaps)))
        indexes = sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])
        checked = dump_log_segments(indexes, "--index-sanity-check")
        assert checked.count("passed sanity check") + checked.count("is empty") == len(indexes), checked

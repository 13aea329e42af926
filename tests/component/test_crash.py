"""A broker that is killed, stopped or out of file descriptors keeps what it acknowledged."""

import contextlib
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.client import NoLog
from tests.support.raw import Connection, batch, fetch, produce

from levada.errors import ErrorCode

TIMEOUT_S = 60.0
SMALL_SEGMENTS: dict[str, object] = {"log.segment.bytes": 200_000, "num.partitions": 3}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


class Writer:
    """An idempotent producer that numbers its records in each partition, and notes what was acknowledged."""

    def __init__(self, address: str, partitions: int) -> None:
        self.acknowledged: list[list[int]] = [[] for _ in range(partitions)]
        self.count = 0
        self.errors: list[KafkaError] = []
        self._next = [0] * partitions
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.size": 20_000,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 60_000,
            },
            logger=NoLog(),
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        value, partition = message.value(), message.partition()
        assert value is not None and partition is not None
        self.acknowledged[partition].append(int(value.split(b" ")[0]))
        self.count += 1

    def write(self) -> None:
        """A record to each partition."""
        for partition, number in enumerate(self._next):
            value = f"{number} ".ljust(500, "x")
            with contextlib.suppress(BufferError):
                self._producer.produce("orders", value, partition=partition, on_delivery=self._delivered)
                self._next[partition] += 1
        self._producer.poll(0)

    def write_until(self, count: int) -> None:
        """Write until that many have been acknowledged."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.count < count:
            assert time.monotonic() < deadline, f"{self.count} of {count} acknowledged, {self.errors}"
            if len(self._producer) < 3_000:
                self.write()
            else:
                self._producer.poll(0.01)

    def finish(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0


def stored(address: str, partition: int) -> list[int]:
    """The numbers in a partition, as a consumer reads them."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    try:
        place = TopicPartition("orders", partition, 0)
        low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        assert low == 0
        consumer.assign([place])
        numbers: list[int] = []
        while len(numbers) < high:
            messages = consumer.consume(min(5_000, high - len(numbers)), timeout=TIMEOUT_S)
            assert messages, f"{len(numbers)} of {high}"
            for message in messages:
                assert message.error() is None
                numbers.append(int((message.value() or b"").split(b" ")[0]))
        return numbers
    finally:
        consumer.close()


def create(address: str, name: str, partitions: int) -> None:
    with Connection(address) as one:
        topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
        response = one.call("create_topics", 7, {"topics": topics, "timeout": 60_000})
        assert response.topics[0].error_code == 0


@pytest.mark.parametrize(
    ("how", "fsync"),
    [
        pytest.param(signal.SIGKILL, "false", id="killed"),
        pytest.param(signal.SIGKILL, "true", id="killed-fsync", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "false", id="stopped", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "true", id="stopped-fsync", marks=pytest.mark.slow),
    ],
)
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, how: signal.Signals, fsync: str) -> None:
    """Killed at random moments under load, over segments that are small enough to roll between."""
    random = Random()
    with BrokerProcess(tmp_path, SMALL_SEGMENTS | {"levada.acks.wait.for.fsync": fsync}) as server:
        create(server.bootstrap, "orders", 3)
        writer = Writer(server.bootstrap, 3)
        for _ in range(4):
            writer.write_until(writer.count + random.randrange(100, 3_000))
            server.stop(how)
            server.start()
        writer.write_until(max(writer.count + 100, 3_000))  # enough for some segments
        writer.finish()
        assert writer.errors == []
        for partition in range(3):
            numbers = stored(server.bootstrap, partition)
            assert writer.acknowledged[partition] == sorted(writer.acknowledged[partition])
            assert numbers == list(range(len(numbers)))
            assert numbers == writer.acknowledged[partition], "all were sent again until acknowledged"
        assert len(list((tmp_path / "data" / "orders-0").glob("*.log"))) > 2
    assert "Traceback" not in server.log.read_text()


def test_a_clean_stop_needs_no_recovery(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as server:
        create(server.bootstrap, "orders", 3)
        with Connection(server.bootstrap) as one:
            for _ in range(10):
                assert produce(one, "orders", batch(b"x")).error_code == 0
        assert server.stop(signal.SIGTERM) == 0
        server.start()
        assert "unclean shutdown" not in server.log.read_text()
        with Connection(server.bootstrap) as one:
            assert fetch(one, "orders", 0).high_watermark == 10
        server.stop(signal.SIGKILL)
        server.start()
        assert "unclean shutdown" in server.log.read_text()
        with Connection(server.bootstrap) as one:
            assert fetch(one, "orders", 0).high_watermark == 10


def test_a_broker_that_must_stop_does_so_whatever_clients_do(tmp_path: Path) -> None:
    """One never reads, one waits in a long poll, one is in the middle of a frame."""
    with BrokerProcess(tmp_path) as server, contextlib.ExitStack() as clients:
        create(server.bootstrap, "orders", 1)
        greedy, patient, slow = (clients.enter_context(Connection(server.bootstrap)) for _ in range(3))
        for _ in range(20):
            assert produce(greedy, "orders", batch(b"x" * 500_000)).error_code == 0
        place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 << 20}
        fields = {"max_bytes": 50 << 20, "topics": [{"topic": "orders", "partitions": [place]}]}
        for _ in range(10):
            greedy.send("fetch", 12, fields)
        place["fetch_offset"] = 20
        patient.send("fetch", 12, fields | {"max_wait": 10 * 60_000, "min_bytes": 1})
        slow.socket.sendall(struct.pack(">i", 1_000_000) + bytes(1000))
        with Connection(server.bootstrap) as one:
            assert fetch(one, "orders", 20).error_code == 0
        assert server.stop(signal.SIGTERM) == 0  # within its timeout, which is shorter than the long poll
        server.start()
        assert "unclean shutdown" not in server.log.read_text()


def test_a_broker_whose_starter_is_gone_stops_in_order(tmp_path: Path) -> None:
    """`levada start | head -3`: no reader is left when it stops."""
    with BrokerProcess(tmp_path) as server:
        server.close_stdout()
        create(server.bootstrap, "orders", 1)
        assert server.stop(signal.SIGTERM) == 0
        server.start()
        assert "unclean shutdown" not in server.log.read_text()


@pytest.mark.slow
def test_two_thousand_partitions_after_a_kill(tmp_path: Path) -> None:
    """And few files open, however many there are."""
    with BrokerProcess(tmp_path, {"levada.open.files.max": 500}, ready_s=TIMEOUT_S) as server:
        for number in range(20):
            create(server.bootstrap, f"topic-{number}", 100)
        data = batch(b"x" * 100)
        with Connection(server.bootstrap) as one:
            for number in range(20):
                parts = [{"index": index, "records": data} for index in range(100)]
                topics = [{"name": f"topic-{number}", "partition_data": parts}]
                response = one.call("produce", 9, {"acks": -1, "timeout": 60_000, "topic_data": topics})
                results = response.responses[0].partition_responses
                assert {(part.error_code, part.base_offset) for part in results} == {(0, 0)}
        assert open_files(server) < 600
        server.stop(signal.SIGKILL)
        began = time.monotonic()
        server.start()
        seconds = time.monotonic() - began
        sys.stderr.write(f"\n2,000 partitions after kill -9: {seconds:.1f} s\n")
        with Connection(server.bootstrap) as one:
            for number in range(20):
                for index in range(0, 100, 10):
                    part = fetch(one, f"topic-{number}", 0, index)
                    assert (part.high_watermark, bytes(part.records)[61:]) == (1, data[61:])
        assert open_files(server) < 600


def open_files(server: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def test_few_files_are_enough(tmp_path: Path) -> None:
    """Logs keep within their share, and clients that take the rest cannot take the logs'."""
    with BrokerProcess(tmp_path, {"log.segment.bytes": 5_000}, limit=few_files) as server:
        create(server.bootstrap, "orders", 300)
        with Connection(server.bootstrap) as one, flood(server.bootstrap, 300) as refused:
            assert refused > 100
            for round_number in range(3):
                parts = [{"index": index, "records": batch(b"x" * 3_000)} for index in range(300)]
                topics = [{"name": "orders", "partition_data": parts}]
                response = one.call("produce", 9, {"acks": -1, "timeout": 60_000, "topic_data": topics})
                results = response.responses[0].partition_responses
                assert {(part.error_code, part.base_offset) for part in results} == {(0, round_number)}
                assert open_files(server) < 256
            for index in range(300):
                part = fetch(one, "orders", 2, index)
                assert (part.error_code, part.high_watermark) == (0, 3)
    assert "offline" not in server.log.read_text()


@contextlib.contextmanager
def flood(address: str, count: int) -> Iterator[int]:
    """Connect many times; how many of these were turned away."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as clients:
        refused = 0
        for _ in range(count):
            one = clients.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
            request = struct.pack(">hhih", 18, 0, 1, -1)
            try:
                one.sendall(struct.pack(">i", len(request)) + request)
                refused += one.recv(1) == b""
            except ConnectionError:
                refused += 1
        yield refused


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))


def test_a_file_that_may_not_grow_is_like_a_full_disk(tmp_path: Path) -> None:
    """The directory goes offline with Kafka's error code; the process lives and stops as told."""
    with BrokerProcess(tmp_path, limit=small_files) as server:
        create(server.bootstrap, "orders", 1)
        with Connection(server.bootstrap) as one:
            codes = [produce(one, "orders", batch(b"x" * 300_000)).error_code for _ in range(10)]
            assert one.call("metadata", 12, {"topics": []}).brokers
        assert codes == [0] * 6 + [ErrorCode.KAFKA_STORAGE_ERROR] * 4
        assert "log dir is offline" in server.log.read_text()

"""The broker under attack: a process of its own, watched for its memory, its log and a healthy client."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.badinput.golden import TOPIC, header
from tests.support.raw import Connection, fetch

from levada.wire import batches

READY_S = 30.0
PATIENCE_S = 5.0  # an offender is answered or disconnected long before
MEMORY_GROWTH_MAX = 256 << 20
HEALTHY = "healthy"
PROBE_ID = 0x7EADBEEF
PROBE = struct.pack(">i", 13) + header(18, 0, flexible=False, correlation_id=PROBE_ID)


class Broker:
    """A running broker."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
        self.process = process
        self.bootstrap = address
        host, _, port = address.rpartition(":")
        self.place = (host, int(port))
        self.log = log
        self.rounds = 0
        self.patient: Connection | None = None  # a healthy client that stays connected

    def prepare(self) -> uuid.UUID:
        """Make the topics; the id of the golden one."""
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (TOPIC, HEALTHY)]
        with Connection(self.bootstrap) as one:
            created = one.call("create_topics", 7, {"topics": topics, "timeout": 10_000})
            assert {topic.error_code for topic in created.topics} == {0}, created
            self.patient = Connection(self.bootstrap)
            self.check_health()
            self.memory_at_rest = self.memory()
            return uuid.UUID(
                bytes=next(topic.topic_id.bytes for topic in created.topics if topic.name == TOPIC)
            )

    def memory(self) -> int:
        """Anonymous memory of the process, in bytes: mapped log pages are not its own."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    def check_health(self) -> None:
        """The broker is up, its memory bounded, its log free of traces, and healthy clients notice nothing."""
        assert self.process.poll() is None, f"the broker ended: {self.tail()}"
        assert no_bug(self.log), self.tail()
        assert self.patient is not None
        self.rounds += 1
        with Connection(self.bootstrap) as new:
            for one in (self.patient, new):
                value = f"round {self.rounds} {id(one)}".encode()
                offset = produce(
                    one, HEALTHY, batches.encode([batches.Record(0, 1_700_000_000_000, None, value)])
                )
                part = fetch(one, HEALTHY, offset)
                assert part.error_code == 0
                assert value in bytes(part.records)

    def check_memory(self) -> None:
        """What attackers made the broker hold is bounded, also while they are there."""
        grown = self.memory() - self.memory_at_rest
        assert grown < MEMORY_GROWTH_MAX, f"memory grew by {grown >> 20} MiB"

    def tail(self) -> str:
        return self.log.read_text()[-4_000:]


def produce(one: Connection, topic: str, records: bytes | bytearray) -> int:
    """Store records; their base offset."""
    result = produce_result(one, topic, records)
    assert result.error_code == 0, result
    return int(result.base_offset)


def produce_result(one: Connection, topic: str, records: bytes | bytearray) -> Any:
    part = {"index": 0, "records": bytes(records)}
    fields = {"acks": 1, "timeout": 5_000, "topic_data": [{"name": topic, "partition_data": [part]}]}
    return one.call("produce", 9, fields).responses[0].partition_responses[0]


class Offender:
    """A client that sends what it should not, over as many connections as the broker makes it use."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._socket: socket.socket | None = None
        self.closed = self.kept = 0  # how often the broker hung up, or went on
        self.answers: list[bytes] = []

    def attack(self, frame: bytes) -> bool:
        """Send a frame and a valid request after it; whether the broker went on and answered the second one.

        `answers` then holds what it said to the first.
        """
        return self.attack_raw(struct.pack(">i", len(frame)) + frame)

    def attack_raw(self, data: bytes) -> bool:
        self.answers = []
        if self._socket is None:
            self._socket = self.connect()
        try:
            self._socket.sendall(data + PROBE)
            self._wait_for_probe()
        except (ConnectionError, EOFError):
            self._socket.close()
            self._socket = None
            self.closed += 1
            return False
        self.kept += 1
        return True

    def connect(self) -> socket.socket:
        return socket.create_connection(self._broker.place, timeout=PATIENCE_S)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _wait_for_probe(self) -> None:
        while True:
            (size,) = struct.unpack(">i", self._receive(4))
            frame = self._receive(size)
            if struct.unpack_from(">i", frame)[0] == PROBE_ID:
                return
            self.answers.append(frame)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        assert self._socket is not None
        while len(received) < size:
            piece = self._socket.recv(min(size - len(received), 1 << 20))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)


@contextmanager
def running(directory: Path) -> Iterator[Broker]:
    """A broker from start to a clean stop."""
    command = [sys.executable, "-m", "levada", "start", "--data", str(directory / "data"), "--port", "0"]
    log = directory / "broker.log"
    environment = os.environ | {
        "KAFKA_LEVADA_METRICS_LISTENER": "",
        "KAFKA_LOG_RETENTION_CHECK_INTERVAL_MS": "86400000",  # records of any times stay for the whole suite
    }
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        broker = Broker(process, _address(process, log), log)
        yield broker
        if broker.patient is not None:
            broker.patient.socket.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(READY_S)
    assert process.returncode == 0, broker.tail()
    assert no_bug(log), broker.tail()


def no_bug(log: Path) -> bool:
    """Whether the broker's log is free of traces and errors."""
    text = log.read_text()
    return "Traceback" not in text and "Z error  " not in text and "handler failed" not in text


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"127\.0\.0\.1:\d+", log.read_text()):
            return found[0]
        time.sleep(0.01)
    raise AssertionError(f"no broker: {log.read_text()[-2_000:]}")

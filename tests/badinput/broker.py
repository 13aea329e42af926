"""A broker process under attack: watches its memory and log, and checks it with a healthy client."""

import re
import socket
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.badinput.golden import TOPIC, header
from tests.support.broker import BrokerProcess
from tests.support.raw import Connection, fetch

from levada.wire import batches

TIMEOUT_S = 5.0  # the broker answers or disconnects an offender long before
MEMORY_GROWTH_MAX = 256 << 20
HEALTHY = "healthy"
PROBE_ID = 0x7EADBEEF
PROBE = struct.pack(">i", 13) + header(18, 0, flexible=False, correlation_id=PROBE_ID)


class Broker(BrokerProcess):
    """A broker process; at its end its log must be free of errors."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, settings)
        self.rounds = 0
        self.healthy: Connection | None = None  # a client that stays connected

    def __exit__(self, *why: object) -> None:
        if self.healthy is not None:
            self.healthy.socket.close()
        super().__exit__(*why)
        self.check_log()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def prepare(self) -> uuid.UUID:
        """Make the topics; the id of the golden one."""
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (TOPIC, HEALTHY)]
        with Connection(self.bootstrap) as one:
            created = one.call("create_topics", 7, {"topics": topics, "timeout": 10_000})
            assert {topic.error_code for topic in created.topics} == {0}, created
            self.healthy = Connection(self.bootstrap)
            self.check_health()
            self.memory_at_rest = self.memory()
            return uuid.UUID(bytes=next(topic.topic_id.bytes for topic in created.topics if topic.name == TOPIC))

    def memory(self) -> int:
        """Anonymous memory of the process, in bytes: mapped log pages are not its own."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    def check_health(self) -> None:
        """The broker is up, its memory bounded, its log free of traces, and healthy clients notice nothing."""
        assert self.is_running(), f"the broker ended: {self.log_tail()}"
        self.check_log()
        assert self.healthy is not None
        self.rounds += 1
        with Connection(self.bootstrap) as new:
            for one in (self.healthy, new):
                value = f"round {self.rounds} {id(one)}".encode()
                offset = produce(one, HEALTHY, batches.encode([batches.Record(0, 1_700_000_000_000, None, value)]))
                part = fetch(one, HEALTHY, offset)
                assert part.error_code == 0
                assert value in bytes(part.records)

    def check_memory(self) -> None:
        """What attackers made the broker hold is bounded, also while they are there."""
        grown = self.memory() - self.memory_at_rest
        assert grown < MEMORY_GROWTH_MAX, f"memory grew by {grown >> 20} MiB"

    def check_log(self) -> None:
        """The broker's log is free of traces and errors."""
        text = self.log.read_text()
        assert "Traceback" not in text and "Z error  " not in text and "handler failed" not in text, text[-4_000:]


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
        return socket.create_connection(self._broker.address, timeout=TIMEOUT_S)

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

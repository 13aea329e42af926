"""End-to-end latency of single messages at a steady rate: from the call of `send` to the bytes at the consumer.

One process sends and receives, so one clock times both ends. It sends by the schedule, independent of responses: a
broker that stalls is charged for every message that waited. Acknowledgements are read when the next message is
sent, so that they never delay the consumer. `select` rather than `epoll` because its timeout is finer than a
millisecond.
"""

import json
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass

from bench.generator import wire
from bench.generator.outcome import Meter, Outcome, run_module

ARRIVAL_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Latency:
    """The first `warm_up` messages are sent and not counted."""

    port: int = 0
    topic: str = ""
    pid: int = 0
    rate: float = 1_000.0
    messages: int = 8_000
    warm_up: int = 1_000
    value_bytes: int = 100


class Stream:
    """Whole frames out of a blocking socket."""

    __slots__ = ("data", "sock")

    def __init__(self, port: int) -> None:
        self.sock: socket.socket = wire.connect(port)
        self.data = b""

    def frames(self) -> list[bytes]:
        received = self.sock.recv(1 << 20)
        if not received:
            raise wire.BrokerError("the broker closed the connection")
        data = self.data + received
        at, found = 0, []
        while at + 4 <= len(data) and at + 4 + wire.I32.unpack_from(data, at)[0] <= len(data):
            end = at + 4 + wire.I32.unpack_from(data, at)[0]
            found.append(data[at + 4 : end])
            at = end
        self.data = data[at:]
        return found


class EndToEnd:
    """A paced producer and a consumer that waits at the end of the log."""

    def __init__(self, settings: Latency) -> None:
        self.settings = settings
        topic_id = wire.topic_id(settings.port, settings.topic)
        batch = wire.batch(1, settings.value_bytes)
        self.batch_bytes = len(batch)
        self.produce, _ = wire.produce(topic_id, 0, batch)
        self.fetch, _, self.offset_at = wire.fetch(topic_id, 1 << 20, 500)
        self.producer, self.consumer = Stream(settings.port), Stream(settings.port)
        self.sent: list[float] = []  # by offset
        self.latencies: list[float] = []  # by offset
        self.acknowledged = 0

    def send_fetch(self) -> None:
        wire.I64.pack_into(self.fetch, self.offset_at, len(self.latencies))
        self.consumer.sock.sendall(self.fetch)

    def take(self) -> None:
        for frame in self.consumer.frames():
            now = time.perf_counter()
            if error := wire.fetch_error(frame):
                raise wire.BrokerError(f"Fetch failed with error {error}")
            batches = max(0, wire.read_varint(frame, wire.FETCH_RECORDS_AT)[0] - 1) // self.batch_bytes
            first = len(self.latencies)
            self.latencies += [now - when for when in self.sent[first : first + batches]]
            self.send_fetch()

    def acknowledge(self) -> None:
        """Take what has come by now."""
        if not select.select([self.producer.sock], [], [], 0)[0]:
            return
        for frame in self.producer.frames():
            (error,) = wire.I16.unpack_from(frame, wire.PRODUCE_ERROR_AT)
            if error:
                raise wire.BrokerError(f"Produce failed with error {error}")
            self.acknowledged += 1

    def drive(self, messages: int) -> float:
        """Send so many more; seconds until the last has arrived."""
        started = time.perf_counter()
        first, last = len(self.sent), len(self.sent) + messages
        while self.acknowledged < last or len(self.latencies) < last:
            now = time.perf_counter()
            due = started + (len(self.sent) - first) / self.settings.rate if len(self.sent) < last else now + 0.01
            if now >= due:
                self.sent.append(time.perf_counter())
                self.producer.sock.sendall(self.produce)
                self.acknowledge()
            elif select.select([self.consumer.sock], [], [], due - now)[0]:
                self.take()
            elif len(self.sent) == last:
                self.acknowledge()
            if now - started > messages / self.settings.rate + ARRIVAL_TIMEOUT_S:
                raise wire.BrokerError(f"{last - len(self.latencies)} messages did not arrive")
        return time.perf_counter() - started

    def outcome(self) -> Outcome:
        self.send_fetch()
        self.drive(self.settings.warm_up)
        meter = Meter(self.settings.pid)
        seconds = self.drive(self.settings.messages)
        measured = self.latencies[self.settings.warm_up :]
        return meter.outcome(seconds, len(measured), len(measured) * self.batch_bytes, measured)


def run(settings: Latency) -> Outcome:
    """In a process of its own."""
    return run_module("bench.generator.latency", asdict(settings))


if __name__ == "__main__":
    print(EndToEnd(Latency(**json.loads(sys.argv[1]))).outcome().to_json())

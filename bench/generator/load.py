"""A raw load: producers, readers and tailers of one process, driven by one epoll loop without any client library."""

import json
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from bench.generator import wire
from bench.generator.channels import Channel, Load, Producer, Reader, Seeker, Tailer
from bench.generator.outcome import Meter, Outcome, run_module

DRAIN_TIMEOUT_S = 30.0


class Run:
    """Drives all connections of a load from one epoll loop."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.poller = select.epoll()
        topic_id = wire.topic_id(load.port, load.topic)
        parts = load.partitions
        self.producers = [Producer(load, n % parts, topic_id, self.poller) for n in range(load.producers)]
        self.readers = [Reader(load, n % parts, topic_id, self.poller) for n in range(load.readers)]
        self.readers += [Seeker(load, n % parts, topic_id, self.poller) for n in range(load.seekers)]
        self.tailers = [Tailer(load, n % parts, topic_id, self.poller) for n in range(load.tailers)]
        channels: list[Channel] = [*self.producers, *self.readers, *self.tailers]
        self.channels = {channel.sock.fileno(): channel for channel in channels}

    def drive(self) -> float:
        """Seconds from the first request to the last response."""
        started = time.perf_counter()
        deadline = started + self.load.seconds
        for channel in self.channels.values():
            channel.fill()
        while (now := time.perf_counter()) < deadline and not self.has_finished():
            if self.load.bytes_per_second:
                self.pace(now - started)
            self.poll(sending=True)
        while not self.has_drained():
            if time.perf_counter() > deadline + DRAIN_TIMEOUT_S:
                raise wire.BrokerError("responses are missing half a minute after the last request")
            self.poll(sending=False)
        return time.perf_counter() - started

    def poll(self, *, sending: bool) -> None:
        channels = self.channels
        for descriptor, event in self.poller.poll(0.001 if self.load.bytes_per_second else 0.1):
            channel = channels[descriptor]
            if event & select.EPOLLOUT:
                channel.resume()
            if event & ~select.EPOLLOUT:
                channel.receive()
            if sending or type(channel) is Tailer:
                channel.fill()

    def pace(self, elapsed: float) -> None:
        for producer in self.producers:
            producer.limit = int(elapsed * self.load.bytes_per_second / producer.batch_bytes / len(self.producers))
            producer.fill()

    def has_finished(self) -> bool:
        """Every producer has sent all that it may send; without that limit a load ends by its time."""
        limit = self.load.requests_max
        return bool(self.producers) and all(producer.issued >= limit for producer in self.producers)

    def has_drained(self) -> bool:
        if any(channel.in_flight for channel in (*self.producers, *self.readers)):
            return False
        return not self.tailers or _bytes(self.tailers) >= _bytes(self.producers)

    def outcome(self) -> Outcome:
        meter = Meter(self.load.pid)
        seconds = self.drive()
        counted: list[Channel] = [*(self.producers or self.readers)]
        latencies = (value for channel in counted for value in channel.latencies)
        requests = sum(channel.requests for channel in counted)
        outcome = meter.outcome(seconds, requests, _bytes(counted), latencies)
        outcome.tail_bytes = _bytes(self.tailers)
        return outcome


def _bytes(channels: Sequence[Channel]) -> int:
    return sum(channel.bytes for channel in channels)


def run(load: Load) -> Outcome:
    """In a process of its own."""
    return run_module("bench.generator.load", asdict(load))


if __name__ == "__main__":
    print(Run(Load(**json.loads(sys.argv[1]))).outcome().to_json())

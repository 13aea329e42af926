"""How long other clients wait while thousands of partitions are created, described, deleted and recovered.

One connection does the work. Another sends ApiVersions every two milliseconds; its longest response is the figure. A
busy host adds waits for a core to it. What the broker does itself is in every round, so the least of some rounds
counts. Each round has a broker of its own.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from bench.brokers import Broker, Levada
from bench.generator import wire
from bench.generator.wire import I16, I32, I64, string

ROUNDS = 3
PARTITIONS, TOPICS = 10_000, 1_000
INTERVAL_S = 0.002
TIMEOUT_S = 120.0
LATEST = -1
TITLES = {
    "create_partitions": "CreateTopics of one topic with 10,000 partitions",
    "metadata": "Metadata of it",
    "list_offsets": "ListOffsets of it",
    "delete_partitions": "DeleteTopics of it",
    "create_topics": "CreateTopics of 1,000 topics",
    "delete_topics": "DeleteTopics of them",
    "recovery": "recovery of 10,000 partitions after kill -9",
}


class Prober:
    """Sends small requests in a thread, and keeps the longest time of a response."""

    def __init__(self, port: int) -> None:
        self.longest_s = 0.0
        self._failure: Exception | None = None
        self._socket = wire.connect(port, TIMEOUT_S)
        self._frame = wire.request(wire.API_VERSIONS, 0, b"", flexible=False)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join()
        self._socket.close()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while True:
                sent = time.perf_counter()
                wire.call(self._socket, self._frame)
                self.longest_s = max(self.longest_s, time.perf_counter() - sent)
                if self._ending.wait(INTERVAL_S):
                    return
        except (wire.BrokerError, OSError) as problem:
            self._failure = problem


def create_topics(port: int, names: Sequence[str], partitions: int) -> None:
    """Create topics with one request."""
    topics = b"".join(string(name) + I32.pack(partitions) + I16.pack(1) + bytes(8) for name in names)
    _call(port, wire.CREATE_TOPICS, 4, I32.pack(len(names)) + topics + I32.pack(int(TIMEOUT_S * 1_000)) + b"\0")


def delete_topics(port: int, names: Sequence[str]) -> None:
    """Delete topics with one request."""
    topics = b"".join(string(name) for name in names)
    _call(port, wire.DELETE_TOPICS, 3, I32.pack(len(names)) + topics + I32.pack(int(TIMEOUT_S * 1_000)))


def _call(port: int, api_key: int, version: int, body: bytes) -> None:
    with wire.connect(port, TIMEOUT_S) as sock:
        reply = wire.call(sock, wire.request(api_key, version, body, flexible=False))
    name_bytes = I16.unpack_from(reply, 12)[0]
    error = I16.unpack_from(reply, 14 + name_bytes)[0]  # of the first topic; the others succeed or fail as it does
    if error:
        raise wire.BrokerError(f"API {api_key} failed: error {error}")


def _wait_until_led(port: int, topic: str, partitions: int) -> None:
    """Until the partitions at the start and the end of a topic are served: the logs are opened in about their order."""
    identity, deadline = wire.topic_id(port, topic), time.monotonic() + TIMEOUT_S
    with wire.connect(port, TIMEOUT_S) as sock:
        for index in (0, *range(max(0, partitions - 20), partitions)):
            while not wire.is_led(sock, identity, index):
                if time.monotonic() > deadline:
                    raise wire.BrokerError(f"{topic}-{index} is not served after {TIMEOUT_S:.0f} s")
                time.sleep(0.05)


def _describe(port: int) -> None:
    with wire.connect(port, TIMEOUT_S) as sock:
        wire.call(sock, wire.metadata("large"))


def _list_offsets(port: int, partitions: int) -> None:
    latest = b"".join(I32.pack(index) + I64.pack(LATEST) for index in range(partitions))
    body = I32.pack(-1) + I32.pack(1) + string("large") + I32.pack(partitions) + latest
    with wire.connect(port, TIMEOUT_S) as sock:
        wire.call(sock, wire.request(wire.LIST_OFFSETS, 1, body, flexible=False))


def measure_round(broker: Broker, partitions: int = PARTITIONS, topics: int = TOPICS) -> dict[str, tuple[float, float]]:
    """By the keys of TITLES: the longest response of others in milliseconds, and the seconds of the work."""
    found: dict[str, tuple[float, float]] = {}
    names = [f"many-{number}" for number in range(topics)]

    def during(key: str, work: Callable[[], object]) -> None:
        with Prober(broker.port) as prober:
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
        found[key] = prober.longest_s * 1_000, seconds

    def create() -> None:
        create_topics(broker.port, ["large"], partitions)
        _wait_until_led(broker.port, "large", partitions)

    broker.prepare()
    broker.start()
    during("create_topics", lambda: create_topics(broker.port, names, 1))
    during("delete_topics", lambda: delete_topics(broker.port, names))
    during("create_partitions", create)
    during("metadata", lambda: _describe(broker.port))
    during("list_offsets", lambda: _list_offsets(broker.port, partitions))
    if isinstance(broker, Levada):  # Kafka serves after the recovery
        broker.kill()
        broker.start()
        during("recovery", lambda: _wait_until_led(broker.port, "large", partitions))
    during("delete_partitions", lambda: delete_topics(broker.port, ["large"]))
    return found


def measure(kinds: Sequence[type[Broker]], root: Path, rounds: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """By broker and key: the least of the longest responses, and the median time; the error of a broker that fails."""
    found: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        taken = []
        for _ in range(rounds):
            broker = kind(root)
            try:
                taken.append(measure_round(broker))
            except (wire.BrokerError, OSError, subprocess.SubprocessError) as problem:
                found[kind.name] = {"error": str(problem)}
                break
            finally:
                broker.remove()
        else:
            found[kind.name] = {
                key: {
                    "longest_ms": min(each[key][0] for each in taken),
                    "seconds": median(each[key][1] for each in taken),
                    "rounds": [each[key][0] for each in taken],
                }
                for key in taken[0]
            }
    return found

"""The operations of a client driver.

A driver wraps one real client. The scenarios of `test_clients.py` speak only this vocabulary, so each of them
runs with every client that has the operations it needs. Errors come as Kafka's own names.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from levada.errors import ErrorCode

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST = -2
WAIT_S = 20.0  # no operation needs this long; one that does is a failure, not a slow machine

SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}


class ClientError(Exception):
    """The client reported an error; `name` is Kafka's name of it."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a client writes it, or as it read it back (then with offset and timestamp)."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int | None = None

    @property
    def content(self) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        return self.key, self.value, self.headers


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as a client describes it; old clients know no topic ids."""

    partitions: int
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class Config:
    """One setting with where it comes from."""

    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as a client describes it; brokers are (id, host, port)."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[tuple[int, str, int], ...]


class Driver(Protocol):
    """One client. `lacks` names the operations that the client itself does not have."""

    name: ClassVar[str]
    lacks: ClassVar[frozenset[str]]

    def __init__(self, bootstrap: str) -> None: ...
    def version(self) -> str: ...
    def close(self) -> None: ...

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: dict[str, str] | None = None,
    ) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def create_partitions(self, topic: str, total: int) -> None: ...
    def list_topics(self) -> set[str]: ...
    def describe_topic(self, topic: str) -> Topic: ...
    def describe_cluster(self) -> Cluster: ...
    def describe_configs(self, topic: str) -> dict[str, Config]: ...
    def alter_configs(self, topic: str, configs: dict[str, str]) -> None: ...
    def produce(
        self,
        topic: str,
        records: list[Record],
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Write and wait for the acknowledgements; the offsets, or nothing where the client does not tell."""
        ...

    def consume(self, topic: str, count: int, offset: int = EARLIEST, partition: int = 0) -> list[Record]:
        """Read exactly `count` records from `offset` on, without any reset policy."""
        ...

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Earliest offset and the one that the next record gets."""
        ...

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        """The first offset whose record is at or after the timestamp."""
        ...

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None: ...


class Create(Protocol):
    """The fixture that makes a topic ready to use."""

    def __call__(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> str: ...


def eventually(read: Callable[[], object], expected: object) -> None:
    """Kafka's brokers learn of a change a moment after the reply to it: read until they have."""
    deadline = time.monotonic() + WAIT_S
    seen: object = None
    while seen != expected and time.monotonic() < deadline:
        try:
            seen = read()
        except ClientError as error:
            seen = error
    assert seen == expected


def as_kafka_name(code: int) -> str:
    """Kafka's name of an error code that a client gave as a number."""
    return ErrorCode(code).name


def as_headers(pairs: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as clients give them (lists of pairs, or nothing) in the one form that tests compare."""
    return tuple((name, value) for name, value in pairs or ())

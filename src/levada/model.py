"""Small immutable values that all layers share."""

from enum import IntEnum
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)

NO_LEADER = NodeId(-1)
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


TopicPartitionKey = tuple[str, int]  # a TopicPartition, or the plain tuple that equals it: cheaper to create


class ConsumerRecord(NamedTuple):
    """A record with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Endpoint(NamedTuple):
    """The address of a listener."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{self.host}:{self.port}"


class KafkaPrincipal(NamedTuple):
    """The identity that a connection has been authenticated as."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


ANONYMOUS = KafkaPrincipal("User", "ANONYMOUS")  # of a connection without authentication


class Requester(NamedTuple):
    """The client that sent a request, for log lines."""

    client_id: str | None
    address: str
    principal: KafkaPrincipal

    def log_fields(self) -> dict[str, object]:
        """Return the fields of a log line."""
        return {"client_id": self.client_id or "", "address": self.address, "principal": str(self.principal)}


class TimestampType(IntEnum):
    """Whether the producer or the broker set a record's timestamp."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Codec(IntEnum):
    """The compression codec of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

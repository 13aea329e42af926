"""The nouns that every layer shares: small immutable values in Kafka's words."""

from enum import IntEnum
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)

NO_LEADER = NodeId(-1)
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """One log of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


TopicPartitionKey = tuple[str, int]  # a TopicPartition, or the plain tuple that equals it: cheaper to create


class ConsumerRecord(NamedTuple):
    """One message and where it stands."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Endpoint(NamedTuple):
    """Where a listener of a broker is reached."""

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


class TimestampType(IntEnum):
    """Who set a record's timestamp."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Codec(IntEnum):
    """How the records of a batch are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

"""Cluster metadata: the ApiVersions and Metadata messages, written and read by hand.

Importing kio's message classes is too slow for a command that only lists topics. So the messages that every client
needs are written and read here and in `data` with `struct` alone. Tests compare them with `wire.schema.messages`,
which serves all other APIs.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from levada.client.errors import error_code
from levada.client.reader import MessageReader
from levada.core.cluster.topic_names import OWN_PREFIX
from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import encode_array_length, encode_nullable_string

NO_TOPIC_ID = bytes(16)
FINALIZED_FEATURES = 2  # the tag of that field


class Api(NamedTuple):
    """An API and the versions of it that this client supports."""

    name: str
    key: int
    versions: range


API_VERSIONS = Api("api_versions", 18, range(3, 4))
METADATA = Api("metadata", 3, range(10, 14))  # 10 added topic ids: Kafka 2.8


class BrokerInfo(NamedTuple):
    """A broker of the cluster and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionInfo(NamedTuple):
    """A partition and its replicas."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: int


class TopicInfo(NamedTuple):
    """A topic; `partitions` is ordered by number."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    error: int

    def unknown_partition(self, partition: int) -> KafkaError:
        """The error for a partition that the topic does not have."""
        count = len(self.partitions)
        has = f"{count} partition" if count == 1 else f"{count} partitions"
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} has {has}, no partition {partition}")

    @property
    def is_hidden(self) -> bool:
        """Whether lists and patterns leave it out: internal topics, and those of Levada's tools."""
        return self.is_internal or self.name.startswith(OWN_PREFIX)


class ApiVersions(NamedTuple):
    """The versions that a broker supports by API key, and the levels of the cluster's finalized features."""

    apis: Mapping[int, range]
    features: Mapping[str, int]


class ClusterMetadata(NamedTuple):
    """A Metadata response."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerInfo]
    topics: Mapping[str, TopicInfo]


def write_api_versions() -> bytes:
    """The body of the first request on every connection."""
    return encode_nullable_string(b"levada", True) + encode_nullable_string(b"1", True) + b"\0"


def read_api_versions(body: memoryview) -> ApiVersions:
    """Versions by API key, and features by name."""
    reader = MessageReader(body)
    error = reader.int16()
    if error:
        raise KafkaError(error_code(error), "the broker does not support ApiVersions version 3")
    served: dict[int, range] = {}
    for _ in range(reader.count()):
        key, lowest, highest = reader.int16(), reader.int16(), reader.int16()
        reader.tags()
        served[key] = range(lowest, highest + 1)
    reader.int32()  # throttle time
    finalized = reader.tagged().get(FINALIZED_FEATURES)
    return ApiVersions(served, {} if finalized is None else _read_features(MessageReader(finalized)))


def _read_features(reader: MessageReader) -> dict[str, int]:
    features: dict[str, int] = {}
    for _ in range(reader.count()):
        name, level, _ = reader.string() or "", reader.int16(), reader.int16()
        reader.tags()
        features[name] = level
    return features


def write_metadata(version: int, topics: Iterable[str] | None, *, create: bool) -> bytes:
    """Request these topics, or all of them with None."""
    body = bytearray()
    if topics is None:
        body += b"\0"
    else:
        names = [topic.encode() for topic in topics]
        body += encode_array_length(len(names), True)
        for name in names:
            body += NO_TOPIC_ID + encode_nullable_string(name, True) + b"\0"
    body += b"\1" if create else b"\0"
    if version < 11:
        body += b"\0"  # operations on the cluster
    body += b"\0\0"  # operations on topics, tags
    return bytes(body)


def read_metadata(body: memoryview) -> ClusterMetadata:
    """Brokers and topics; the fields that differ between versions are at the end and not needed."""
    reader = MessageReader(body)
    reader.int32()  # throttle time
    brokers: dict[int, BrokerInfo] = {}
    for _ in range(reader.count()):
        broker = BrokerInfo(reader.int32(), reader.string() or "", reader.int32(), reader.string())
        reader.tags()
        brokers[broker.node_id] = broker
    cluster_id = reader.string()
    controller_id = reader.int32()
    topics: dict[str, TopicInfo] = {}
    for _ in range(reader.count()):
        topic = _read_topic(reader)
        topics[topic.name] = topic
    return ClusterMetadata(cluster_id, controller_id, brokers, topics)


def _read_topic(reader: MessageReader) -> TopicInfo:
    error = reader.int16()
    name = reader.string() or ""
    topic_id = bytes(reader.take(16))
    is_internal = reader.int8() != 0
    partitions = tuple(sorted(_read_partition(reader) for _ in range(reader.count())))
    reader.int32()  # operations
    reader.tags()
    return TopicInfo(name, None if topic_id == NO_TOPIC_ID else UUID(bytes=topic_id), is_internal, partitions, error)


def _read_partition(reader: MessageReader) -> PartitionInfo:
    error, index, leader, epoch = reader.int16(), reader.int32(), reader.int32(), reader.int32()
    partition = PartitionInfo(index, leader, epoch, reader.int32s(), reader.int32s(), reader.int32s(), error)
    reader.tags()
    return partition

"""Declares the records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's format.

A classic group is one record, a consumer group several: the group epoch, and for each member its metadata, its target
assignment (which has an epoch of its own) and its current assignment. A change writes only the records it changes.
"""

import uuid
from typing import Any, Final, NamedTuple

from levada.wire.internal.record_types import (
    COMPACT_BYTES,
    COMPACT_NULLABLE_STRING,
    COMPACT_STRING,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    FieldType,
    RecordType,
    Tag,
    compact_array,
    struct,
)


class ConsumerGroupMetadataKey(NamedTuple):
    """A consumer group."""

    group_id: str


class ConsumerGroupMetadataValue(NamedTuple):
    """The group epoch; the hash covers the metadata of its topics."""

    epoch: int
    metadata_hash: int = 0


class PartitionMetadataKey(NamedTuple):
    """A group. Brokers before 4.1 stored the metadata of its topics; newer ones delete this record."""

    group_id: str


class PartitionMetadata(NamedTuple):
    """A partition and the racks of its replicas."""

    partition: int
    racks: tuple[str, ...]


class TopicMetadata(NamedTuple):
    """A topic as of the group epoch."""

    topic_id: uuid.UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionMetadata, ...]


class PartitionMetadataValue(NamedTuple):
    """The topics of a group, as stored by brokers before 4.1."""

    topics: tuple[TopicMetadata, ...]


class MemberMetadataKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class ClassicProtocol(NamedTuple):
    """An assignment protocol of a classic member and its metadata."""

    name: str
    metadata: bytes


class ClassicMemberMetadata(NamedTuple):
    """The fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


class MemberMetadataValue(NamedTuple):
    """The metadata of a member."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


class TargetAssignmentMetadataKey(NamedTuple):
    """The group of a target assignment."""

    group_id: str


class TargetAssignmentMetadataValue(NamedTuple):
    """The group epoch for which the target assignment was computed, and when."""

    assignment_epoch: int
    assignment_timestamp: int = 0


class TargetAssignmentMemberKey(NamedTuple):
    """The member of a target assignment."""

    group_id: str
    member_id: str


class TargetTopicPartitions(NamedTuple):
    """Partitions of a topic."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]


class TargetAssignmentMemberValue(NamedTuple):
    """The target assignment of a member."""

    topic_partitions: tuple[TargetTopicPartitions, ...]


class CurrentMemberAssignmentKey(NamedTuple):
    """The member of a current assignment."""

    group_id: str
    member_id: str


class CurrentTopicPartitions(NamedTuple):
    """Partitions of a topic and the epochs in which they were assigned (none in records of old brokers)."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] = ()


class CurrentMemberAssignmentValue(NamedTuple):
    """The current assignment of a member, and the partitions it still has to revoke."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[CurrentTopicPartitions, ...]
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...]


class RegularExpressionKey(NamedTuple):
    """A regular expression that members of a group subscribe to."""

    group_id: str
    regular_expression: str


class RegularExpressionValue(NamedTuple):
    """The topics that match it, the metadata version and the time of the match."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


_GROUP = {"group_id": STRING}
_MEMBER = {"group_id": STRING, "member_id": STRING}

CONSUMER_GROUP_METADATA: Final = RecordType(
    3,
    ConsumerGroupMetadataKey,
    struct(ConsumerGroupMetadataKey, _GROUP),
    {
        0: struct(
            ConsumerGroupMetadataValue,
            {"epoch": INT32},
            flexible=True,
            tags={0: Tag("metadata_hash", INT64, 0)},
        )
    },
    write_version=0,
)

_PARTITION_METADATA = struct(
    PartitionMetadata, {"partition": INT32, "racks": compact_array(COMPACT_STRING)}, flexible=True
)
_TOPIC_METADATA = struct(
    TopicMetadata,
    {
        "topic_id": UUID,
        "topic_name": COMPACT_STRING,
        "num_partitions": INT32,
        "partition_metadata": compact_array(_PARTITION_METADATA),
    },
    flexible=True,
)
CONSUMER_GROUP_PARTITION_METADATA: Final = RecordType(
    4,
    PartitionMetadataKey,
    struct(PartitionMetadataKey, _GROUP),
    {0: struct(PartitionMetadataValue, {"topics": compact_array(_TOPIC_METADATA)}, flexible=True)},
    write_version=0,
)


def _nullable(content: FieldType) -> FieldType:
    """A nullable struct: a byte, -1 for null, precedes it."""

    def read(data: bytes, position: int) -> tuple[Any, int]:
        present, position = INT8.read(data, position)
        return content.read(data, position) if present >= 0 else (None, position)

    def write(target: bytearray, value: Any) -> None:
        INT8.write(target, -1 if value is None else 1)
        if value is not None:
            content.write(target, value)

    return FieldType(read, write)


_CLASSIC_PROTOCOL = struct(
    ClassicProtocol, {"name": COMPACT_STRING, "metadata": COMPACT_BYTES}, flexible=True
)
_CLASSIC_MEMBER_METADATA = struct(
    ClassicMemberMetadata,
    {"session_timeout_ms": INT32, "supported_protocols": compact_array(_CLASSIC_PROTOCOL)},
    flexible=True,
)
CONSUMER_GROUP_MEMBER_METADATA: Final = RecordType(
    5,
    MemberMetadataKey,
    struct(MemberMetadataKey, _MEMBER),
    {
        0: struct(
            MemberMetadataValue,
            {
                "instance_id": COMPACT_NULLABLE_STRING,
                "rack_id": COMPACT_NULLABLE_STRING,
                "client_id": COMPACT_STRING,
                "client_host": COMPACT_STRING,
                "subscribed_topic_names": compact_array(COMPACT_STRING),
                "subscribed_topic_regex": COMPACT_NULLABLE_STRING,
                "rebalance_timeout_ms": INT32,
                "server_assignor": COMPACT_NULLABLE_STRING,
            },
            flexible=True,
            tags={0: Tag("classic_member_metadata", _nullable(_CLASSIC_MEMBER_METADATA), None)},
        )
    },
    write_version=0,
)

CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: Final = RecordType(
    6,
    TargetAssignmentMetadataKey,
    struct(TargetAssignmentMetadataKey, _GROUP),
    {
        0: struct(
            TargetAssignmentMetadataValue,
            {"assignment_epoch": INT32},
            flexible=True,
            tags={0: Tag("assignment_timestamp", INT64, 0)},
        )
    },
    write_version=0,
)

_TARGET_PARTITIONS = struct(
    TargetTopicPartitions, {"topic_id": UUID, "partitions": compact_array(INT32)}, flexible=True
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: Final = RecordType(
    7,
    TargetAssignmentMemberKey,
    struct(TargetAssignmentMemberKey, _MEMBER),
    {
        0: struct(
            TargetAssignmentMemberValue,
            {"topic_partitions": compact_array(_TARGET_PARTITIONS)},
            flexible=True,
        )
    },
    write_version=0,
)

_CURRENT_PARTITIONS = struct(
    CurrentTopicPartitions,
    {"topic_id": UUID, "partitions": compact_array(INT32)},
    flexible=True,
    tags={0: Tag("assignment_epochs", compact_array(INT32), ())},
)
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: Final = RecordType(
    8,
    CurrentMemberAssignmentKey,
    struct(CurrentMemberAssignmentKey, _MEMBER),
    {
        0: struct(
            CurrentMemberAssignmentValue,
            {
                "member_epoch": INT32,
                "previous_member_epoch": INT32,
                "state": INT8,
                "assigned_partitions": compact_array(_CURRENT_PARTITIONS),
                "partitions_pending_revocation": compact_array(_CURRENT_PARTITIONS),
            },
            flexible=True,
        )
    },
    write_version=0,
)

CONSUMER_GROUP_REGULAR_EXPRESSION: Final = RecordType(
    16,
    RegularExpressionKey,
    struct(RegularExpressionKey, {"group_id": STRING, "regular_expression": STRING}),
    {
        0: struct(
            RegularExpressionValue,
            {"topics": compact_array(COMPACT_STRING), "version": INT64, "timestamp": INT64},
            flexible=True,
        )
    },
    write_version=0,
)

CONSUMER_GROUP_RECORD_TYPES: Final = (
    CONSUMER_GROUP_METADATA,
    CONSUMER_GROUP_PARTITION_METADATA,
    CONSUMER_GROUP_MEMBER_METADATA,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    CONSUMER_GROUP_REGULAR_EXPRESSION,
)

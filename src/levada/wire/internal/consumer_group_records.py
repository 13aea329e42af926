"""Declares the records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's format.

A classic group is one record, a consumer group several: the group epoch, and for each member its metadata, its target
assignment (which has an epoch of its own) and its current assignment. A change writes only the records it changes.
"""

import uuid
from functools import partial
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


_struct = partial(struct, flexible=True)


def _record_type(type_id: int, key_class: Any, value_class: Any, *tags: Tag, **fields: FieldType) -> RecordType:
    """A record type whose key consists of strings and whose value has version 0 only."""
    key = struct(key_class, dict.fromkeys(key_class._fields, STRING))
    return RecordType(
        type_id,
        key_class,
        key,
        {0: _struct(value_class, fields, tags=dict(enumerate(tags)))},
        write_version=0,
    )


_PARTITION_METADATA = _struct(PartitionMetadata, {"partition": INT32, "racks": compact_array(COMPACT_STRING)})
_TOPIC_METADATA = _struct(
    TopicMetadata,
    {
        "topic_id": UUID,
        "topic_name": COMPACT_STRING,
        "num_partitions": INT32,
        "partition_metadata": compact_array(_PARTITION_METADATA),
    },
)
_CLASSIC_PROTOCOL = _struct(ClassicProtocol, {"name": COMPACT_STRING, "metadata": COMPACT_BYTES})
_CLASSIC_MEMBER_METADATA = _struct(
    ClassicMemberMetadata,
    {"session_timeout_ms": INT32, "supported_protocols": compact_array(_CLASSIC_PROTOCOL)},
)
_TARGET_PARTITIONS = _struct(TargetTopicPartitions, {"topic_id": UUID, "partitions": compact_array(INT32)})
_CURRENT_PARTITIONS = _struct(
    CurrentTopicPartitions,
    {"topic_id": UUID, "partitions": compact_array(INT32)},
    tags={0: Tag("assignment_epochs", compact_array(INT32), ())},
)

CONSUMER_GROUP_RECORD_TYPES: Final = (
    _record_type(
        3,
        ConsumerGroupMetadataKey,
        ConsumerGroupMetadataValue,
        Tag("metadata_hash", INT64, 0),
        epoch=INT32,
    ),
    _record_type(4, PartitionMetadataKey, PartitionMetadataValue, topics=compact_array(_TOPIC_METADATA)),
    _record_type(
        5,
        MemberMetadataKey,
        MemberMetadataValue,
        Tag("classic_member_metadata", _nullable(_CLASSIC_MEMBER_METADATA), None),
        instance_id=COMPACT_NULLABLE_STRING,
        rack_id=COMPACT_NULLABLE_STRING,
        client_id=COMPACT_STRING,
        client_host=COMPACT_STRING,
        subscribed_topic_names=compact_array(COMPACT_STRING),
        subscribed_topic_regex=COMPACT_NULLABLE_STRING,
        rebalance_timeout_ms=INT32,
        server_assignor=COMPACT_NULLABLE_STRING,
    ),
    _record_type(
        6,
        TargetAssignmentMetadataKey,
        TargetAssignmentMetadataValue,
        Tag("assignment_timestamp", INT64, 0),
        assignment_epoch=INT32,
    ),
    _record_type(
        7,
        TargetAssignmentMemberKey,
        TargetAssignmentMemberValue,
        topic_partitions=compact_array(_TARGET_PARTITIONS),
    ),
    _record_type(
        8,
        CurrentMemberAssignmentKey,
        CurrentMemberAssignmentValue,
        member_epoch=INT32,
        previous_member_epoch=INT32,
        state=INT8,
        assigned_partitions=compact_array(_CURRENT_PARTITIONS),
        partitions_pending_revocation=compact_array(_CURRENT_PARTITIONS),
    ),
    _record_type(
        16,
        RegularExpressionKey,
        RegularExpressionValue,
        topics=compact_array(COMPACT_STRING),
        version=INT64,
        timestamp=INT64,
    ),
)

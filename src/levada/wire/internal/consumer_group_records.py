"""The records of a group of the consumer protocol (KIP-848) in `__consumer_offsets`, as Kafka writes them.

Where a classic group is one record, this one is many small ones: the group's epoch, what each member subscribes to,
what it shall have (the target, with an epoch of its own) and what it has now. A change writes only what it changes.
"""

import uuid
from typing import Any, Final, NamedTuple

from levada.wire.internal.layouts import (
    COMPACT_BYTES,
    COMPACT_NULLABLE_STRING,
    COMPACT_STRING,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    Kind,
    Tag,
    Type,
    compact_array,
    struct,
)


class GroupEpochKey(NamedTuple):
    """A group."""

    group_id: str


class GroupEpochValue(NamedTuple):
    """How often its members, subscriptions or topics have changed; the hash tells whether its topics have."""

    epoch: int
    metadata_hash: int = 0


class PartitionMetadataKey(NamedTuple):
    """A group; brokers before 4.1 kept what they knew of its topics under it, which a newer one takes back."""

    group_id: str


class RackedPartition(NamedTuple):
    """A partition and the racks of its replicas."""

    partition: int
    racks: tuple[str, ...]


class KnownTopic(NamedTuple):
    """A topic as it was when the group's epoch began."""

    topic_id: uuid.UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[RackedPartition, ...]


class PartitionMetadataValue(NamedTuple):
    """What old brokers knew of a group's topics."""

    topics: tuple[KnownTopic, ...]


class MemberKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class ClassicProtocol(NamedTuple):
    """A way to divide partitions that a member of the classic protocol knows, and its metadata for it."""

    name: str
    metadata: bytes


class ClassicMetadata(NamedTuple):
    """What only a member has that speaks the classic protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


class MemberMetadata(NamedTuple):
    """What a member said of itself."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMetadata | None = None


class TargetEpochKey(NamedTuple):
    """A group, for the epoch of its target assignment."""

    group_id: str


class TargetEpochValue(NamedTuple):
    """The group's epoch for which the targets were computed, and when."""

    assignment_epoch: int
    assignment_timestamp: int = 0


class TargetKey(NamedTuple):
    """A member, for its target."""

    group_id: str
    member_id: str


class TargetPartitions(NamedTuple):
    """Partitions of a topic."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]


class TargetValue(NamedTuple):
    """What a member shall have."""

    topic_partitions: tuple[TargetPartitions, ...]


class CurrentKey(NamedTuple):
    """A member, for what it has."""

    group_id: str
    member_id: str


class CurrentPartitions(NamedTuple):
    """Partitions of a topic, and the epochs in which the member got them (none in records of old brokers)."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] = ()


class CurrentValue(NamedTuple):
    """What a member has, and what it has been asked to give back."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[CurrentPartitions, ...]
    partitions_pending_revocation: tuple[CurrentPartitions, ...]


class RegexKey(NamedTuple):
    """A pattern that members of a group subscribe to."""

    group_id: str
    regular_expression: str


class RegexValue(NamedTuple):
    """The topics that matched it, at which revision of the metadata and when."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


_GROUP = {"group_id": STRING}
_MEMBER = {"group_id": STRING, "member_id": STRING}

GROUP_EPOCH: Final = Kind(
    3,
    GroupEpochKey,
    struct(GroupEpochKey, _GROUP),
    {0: struct(GroupEpochValue, {"epoch": INT32}, flexible=True, tags={0: Tag("metadata_hash", INT64, 0)})},
    written=0,
)

_RACKED_PARTITION = struct(
    RackedPartition, {"partition": INT32, "racks": compact_array(COMPACT_STRING)}, flexible=True
)
_KNOWN_TOPIC = struct(
    KnownTopic,
    {
        "topic_id": UUID,
        "topic_name": COMPACT_STRING,
        "num_partitions": INT32,
        "partition_metadata": compact_array(_RACKED_PARTITION),
    },
    flexible=True,
)
PARTITION_METADATA: Final = Kind(
    4,
    PartitionMetadataKey,
    struct(PartitionMetadataKey, _GROUP),
    {0: struct(PartitionMetadataValue, {"topics": compact_array(_KNOWN_TOPIC)}, flexible=True)},
    written=0,
)


def _nullable(content: Type) -> Type:
    """A struct behind a byte that says whether it is there."""

    def read(data: bytes, position: int) -> tuple[Any, int]:
        present, position = INT8.read(data, position)
        return content.read(data, position) if present >= 0 else (None, position)

    def write(target: bytearray, value: Any) -> None:
        INT8.write(target, -1 if value is None else 1)
        if value is not None:
            content.write(target, value)

    return Type(read, write)


_CLASSIC_PROTOCOL = struct(
    ClassicProtocol, {"name": COMPACT_STRING, "metadata": COMPACT_BYTES}, flexible=True
)
_CLASSIC_METADATA = struct(
    ClassicMetadata,
    {"session_timeout_ms": INT32, "supported_protocols": compact_array(_CLASSIC_PROTOCOL)},
    flexible=True,
)
MEMBER: Final = Kind(
    5,
    MemberKey,
    struct(MemberKey, _MEMBER),
    {
        0: struct(
            MemberMetadata,
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
            tags={0: Tag("classic_member_metadata", _nullable(_CLASSIC_METADATA), None)},
        )
    },
    written=0,
)

TARGET_EPOCH: Final = Kind(
    6,
    TargetEpochKey,
    struct(TargetEpochKey, _GROUP),
    {
        0: struct(
            TargetEpochValue,
            {"assignment_epoch": INT32},
            flexible=True,
            tags={0: Tag("assignment_timestamp", INT64, 0)},
        )
    },
    written=0,
)

_TARGET_PARTITIONS = struct(
    TargetPartitions, {"topic_id": UUID, "partitions": compact_array(INT32)}, flexible=True
)
TARGET: Final = Kind(
    7,
    TargetKey,
    struct(TargetKey, _MEMBER),
    {0: struct(TargetValue, {"topic_partitions": compact_array(_TARGET_PARTITIONS)}, flexible=True)},
    written=0,
)

_CURRENT_PARTITIONS = struct(
    CurrentPartitions,
    {"topic_id": UUID, "partitions": compact_array(INT32)},
    flexible=True,
    tags={0: Tag("assignment_epochs", compact_array(INT32), ())},
)
CURRENT: Final = Kind(
    8,
    CurrentKey,
    struct(CurrentKey, _MEMBER),
    {
        0: struct(
            CurrentValue,
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
    written=0,
)

REGEX: Final = Kind(
    16,
    RegexKey,
    struct(RegexKey, {"group_id": STRING, "regular_expression": STRING}),
    {
        0: struct(
            RegexValue,
            {"topics": compact_array(COMPACT_STRING), "version": INT64, "timestamp": INT64},
            flexible=True,
        )
    },
    written=0,
)

CONSUMER_KINDS: Final = (GROUP_EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX)

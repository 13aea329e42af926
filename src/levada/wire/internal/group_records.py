"""Declares the records of `__consumer_offsets` for committed offsets and classic groups, in Kafka's format.

Each committed offset is one record; a classic group is one record with all its members.
"""

from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from levada.wire.internal.record_types import (
    BYTES,
    COMPACT_BYTES,
    COMPACT_NULLABLE_STRING,
    COMPACT_STRING,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    FieldType,
    RecordFormat,
    RecordType,
    array,
    compact_array,
    struct,
)
from levada.wire.primitives import INT, SHORT
from levada.wire.schema.writers import LEGACY_STRINGS, NULLABLE_LEGACY_STRINGS

NO_EXPIRY: Final = -1
CACHED_BYTES_MAX: Final = 1_000  # of a member's subscription, client id and instance id


class OffsetCommitKey(NamedTuple):
    """The group and the partition of a committed offset."""

    group: str
    topic: str
    partition: int


class OffsetCommitValue(msgspec.Struct, frozen=True):
    """A committed offset. Only commits that set a retention time have an expire timestamp."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_EXPIRY


class GroupMetadataKey(NamedTuple):
    """A classic group."""

    group: str


class MemberMetadata(msgspec.Struct, frozen=True):
    """A member with its subscription and assignment, both opaque to the broker."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes = b""


class GroupMetadataValue(NamedTuple):
    """A generation of a stable or empty group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[MemberMetadata, ...]


_NO_EPOCH = {"leader_epoch": -1}
_OFFSET_0 = {"offset": INT64, "metadata": STRING, "commit_timestamp": INT64}
_OFFSET_1 = {**_OFFSET_0, "expire_timestamp": INT64}
_OFFSET_3 = {"offset": INT64, "leader_epoch": INT32, "metadata": STRING, "commit_timestamp": INT64}

OFFSET_COMMIT: Final = RecordType(
    1,
    OffsetCommitKey,
    struct(OffsetCommitKey, {"group": STRING, "topic": STRING, "partition": INT32}),
    {
        0: struct(OffsetCommitValue, _OFFSET_0, absent=_NO_EPOCH),
        1: struct(OffsetCommitValue, _OFFSET_1, absent=_NO_EPOCH),
        2: struct(OffsetCommitValue, _OFFSET_0, absent=_NO_EPOCH),
        3: struct(OffsetCommitValue, _OFFSET_3),
        4: struct(OffsetCommitValue, {**_OFFSET_3, "metadata": COMPACT_STRING}, flexible=True),
    },
    write_version=lambda value: 3 if value.expire_timestamp == NO_EXPIRY else 1,
)
LEGACY_OFFSET_COMMIT: Final = OFFSET_COMMIT._replace(id=0)  # keys of old brokers, in the same format

_OFFSETS: Final[RecordFormat[OffsetCommitKey]] = RecordFormat(OFFSET_COMMIT)
_VALUE = Struct(">hqihq")  # version 3 without metadata


def offset_record(
    group: str, topic: str, partition: int, value: OffsetCommitValue | None
) -> tuple[bytes, bytes | None]:
    """Encode an offset commit as `OFFSET_COMMIT` does; a commit without metadata takes a faster path."""
    if value is not None and not value.metadata and value.expire_timestamp == NO_EXPIRY:
        content = _VALUE.pack(3, value.offset, value.leader_epoch, 0, value.commit_timestamp)
        return _offset_key(group, topic, partition), content
    return _OFFSETS.encode(OffsetCommitKey(group, topic, partition), value)


@lru_cache(10_000)
def _offset_key(group: str, topic: str, partition: int) -> bytes:
    """Encode the key; it is the same in all commits of a group for a partition."""
    return _OFFSETS.encode(OffsetCommitKey(group, topic, partition), None)[0]


def _since(version: int, fields: dict[str, FieldType]) -> dict[str, FieldType]:
    """Select the fields of a version: v1 adds rebalance timeout, v2 state timestamp, v3 instance id; v4 is flexible."""
    since = {"group_instance_id": 3, "rebalance_timeout": 1, "current_state_timestamp": 2}
    return {name: field_type for name, field_type in fields.items() if version >= since.get(name, 0)}


def _member(version: int) -> FieldType:
    flexible = version >= 4
    text, blob = (COMPACT_STRING, COMPACT_BYTES) if flexible else (STRING, BYTES)
    fields = {
        "member_id": text,
        "group_instance_id": COMPACT_NULLABLE_STRING if flexible else NULLABLE_STRING,
        "client_id": text,
        "client_host": text,
        "rebalance_timeout": INT32,
        "session_timeout": INT32,
        "subscription": blob,
        "assignment": blob,
    }
    absent = {"group_instance_id": None, "rebalance_timeout": -1}
    return struct(MemberMetadata, _since(version, fields), flexible=flexible, absent=absent)


def _group(version: int) -> FieldType:
    flexible = version >= 4
    nullable_text = COMPACT_NULLABLE_STRING if flexible else NULLABLE_STRING
    fields = {
        "protocol_type": COMPACT_STRING if flexible else STRING,
        "generation": INT32,
        "protocol": nullable_text,
        "leader": nullable_text,
        "current_state_timestamp": INT64,
        "members": (compact_array if flexible else array)(_member(version)),
    }
    absent = {"current_state_timestamp": -1}
    return struct(GroupMetadataValue, _since(version, fields), flexible=flexible, absent=absent)


_GROUP_VERSION: Final = 3  # the version in which groups are written
GROUP_METADATA: Final = RecordType(
    2,
    GroupMetadataKey,
    struct(GroupMetadataKey, {"group": STRING}),
    {version: _group(version) for version in range(5)},
    write_version=_GROUP_VERSION,
)
_GROUP_START: Final = (
    SHORT.pack(GROUP_METADATA.id),
    SHORT.pack(_GROUP_VERSION),
)  # of the key and of the value
_TIME_AND_COUNT: Final = Struct(">qi")
_WRITTEN_MEMBER = _member(_GROUP_VERSION)


def group_record(group: str, value: GroupMetadataValue) -> tuple[bytes, bytes]:
    """Encode a group as `GROUP_METADATA` does; bytes of members that stay the same across generations are cached."""
    key_start, value_start = _GROUP_START
    parts = [
        value_start,
        LEGACY_STRINGS[value.protocol_type],
        INT.pack(value.generation),
        NULLABLE_LEGACY_STRINGS[value.protocol],
        NULLABLE_LEGACY_STRINGS[value.leader],
        _TIME_AND_COUNT.pack(value.current_state_timestamp, len(value.members)),
    ]
    for member in value.members:
        variable_bytes = len(member.subscription) + len(member.client_id) + len(member.group_instance_id or "")
        start = (_cached_member_start if variable_bytes <= CACHED_BYTES_MAX else _member_start)(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout,
            member.session_timeout,
            member.subscription,
        )
        parts += (start, INT.pack(len(member.assignment)), member.assignment)
    return key_start + LEGACY_STRINGS[group], b"".join(parts)


def _member_start(*fields: Any) -> bytes:
    """Encode a member up to its assignment."""
    target = bytearray()
    _WRITTEN_MEMBER.write(target, MemberMetadata(*fields))
    return bytes(target[: -INT.size])


# Entries outlive their members, so only small ones are cached.
_cached_member_start: Final = lru_cache(5_000)(_member_start)

"""Subscriptions and assignments of the classic protocol: Kafka's ConsumerProtocolSubscription and -Assignment.

Members of the protocol type `consumer` send these formats as metadata in JoinGroup and SyncGroup. The coordinator
decodes the subscribed topics, to tell which offsets are in use. In a consumer group with classic members it also
decodes the owned partitions, and encodes the assignments. Metadata that cannot be decoded is left alone: other clients
use formats of their own.
"""

from collections.abc import Mapping
from struct import error as StructError
from typing import Final, NamedTuple

from levada.wire.internal.record_types import (
    INT16,
    INT32,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    array,
    struct,
)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"  # the protocol type of consumers, whose metadata has these formats
_TOPICS = array(STRING)
_PARTITIONS = array(INT32)
_USER_DATA = NULLABLE_BYTES
VERSION_MAX = 3


class _TopicPartitions(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


_TOPIC_PARTITIONS = array(struct(_TopicPartitions, {"topic": STRING, "partitions": _PARTITIONS}))


class Subscription(NamedTuple):
    """A member's metadata in JoinGroup. Version 1 adds the owned partitions (KIP-429), version 3 the rack."""

    version: int
    topics: tuple[str, ...]
    owned: dict[str, frozenset[int]]
    rack_id: str | None


class Assignment(NamedTuple):
    """A member's assignment in SyncGroup, and the data that the assignor added."""

    partitions: dict[str, frozenset[int]]
    user_data: bytes


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None if it cannot be decoded."""
    try:
        version, position = INT16.read(subscription, 0)
        if version < 0:
            return None
        topics, _ = _TOPICS.read(subscription, position)
    except (IndexError, ValueError, StructError):
        return None
    return frozenset(topics)


def read_subscription(data: bytes) -> Subscription | None:
    """Decode a subscription; None if that fails."""
    try:
        version, position = INT16.read(data, 0)
        if version < 0:
            return None
        topics, position = _TOPICS.read(data, position)
        _, position = _USER_DATA.read(data, position)
        owned: tuple[_TopicPartitions, ...] = ()
        rack_id = None
        if version >= 1:
            owned, position = _TOPIC_PARTITIONS.read(data, position)
        if version >= 2:
            _, position = INT32.read(data, position)  # generation
        if version >= 3:
            rack_id, _ = NULLABLE_STRING.read(data, position)
    except (IndexError, ValueError, StructError):
        return None
    return Subscription(version, topics, _by_topic(owned), rack_id)


def read_assignment(data: bytes) -> Assignment | None:
    """Decode an assignment; None if that fails."""
    if not data:
        return Assignment({}, b"")
    try:
        version, position = INT16.read(data, 0)
        if version < 0:
            return None
        assigned, position = _TOPIC_PARTITIONS.read(data, position)
        user_data, _ = _USER_DATA.read(data, position)
    except (IndexError, ValueError, StructError):
        return None
    return Assignment(_by_topic(assigned), user_data or b"")


def _by_topic(found: tuple[_TopicPartitions, ...]) -> dict[str, frozenset[int]]:
    return {topic: frozenset(partitions) for topic, partitions in found if partitions}


def write_assignment(version: int, partitions: Mapping[str, frozenset[int]]) -> bytes:
    """Encode an assignment."""
    target = bytearray()
    INT16.write(target, min(version, VERSION_MAX))
    _TOPIC_PARTITIONS.write(
        target, [_TopicPartitions(topic, tuple(sorted(found))) for topic, found in sorted(partitions.items())]
    )
    _USER_DATA.write(target, None)
    return bytes(target)

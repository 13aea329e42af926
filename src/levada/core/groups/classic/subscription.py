"""What members of the classic protocol tell each other: the coordinator reads which topics they subscribe to.

In a group of the newer protocol it also reads what they have, and writes their assignments itself.

The metadata of the protocol type `consumer` is a version and a list of topics, with more behind it in newer
versions. Whatever cannot be read is left unread: it belongs to the members.
"""

from collections.abc import Mapping
from struct import error as StructError
from typing import NamedTuple

from levada.wire.internal.record_types import (
    INT16,
    INT32,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    array,
    struct,
)

_TOPICS = array(STRING)
_PARTITIONS = array(INT32)
_USER_DATA = NULLABLE_BYTES
NEWEST_VERSION = 3


class _TopicPartitions(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


_TOPIC_PARTITIONS = array(struct(_TopicPartitions, {"topic": STRING, "partitions": _PARTITIONS}))


class Subscription(NamedTuple):
    """What a member says when it joins: version 1 tells what it has, 3 its rack."""

    version: int
    topics: tuple[str, ...]
    owned: dict[str, frozenset[int]]
    rack_id: str | None


class Assignment(NamedTuple):
    """What a member was assigned, and what the assignor added for itself."""

    partitions: dict[str, frozenset[int]]
    user_data: bytes


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of a subscription, or None if it is of another make."""
    try:
        version, position = INT16.read(subscription, 0)
        if version < 0:
            return None
        topics, _ = _TOPICS.read(subscription, position)
    except (IndexError, ValueError, StructError):
        return None
    return frozenset(topics)


def read_subscription(data: bytes) -> Subscription | None:
    """All that a subscription says here, or None if it is of another make."""
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
            _, position = INT32.read(data, position)  # the generation in which it got them
        if version >= 3:
            rack_id, _ = NULLABLE_STRING.read(data, position)
    except (IndexError, ValueError, StructError):
        return None
    return Subscription(version, topics, _by_topic(owned), rack_id)


def read_assignment(data: bytes) -> Assignment | None:
    """An assignment, or None if it is of another make."""
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
    """An assignment as a member of the classic protocol reads it."""
    target = bytearray()
    INT16.write(target, min(version, NEWEST_VERSION))
    _TOPIC_PARTITIONS.write(
        target, [_TopicPartitions(topic, tuple(sorted(found))) for topic, found in sorted(partitions.items())]
    )
    _USER_DATA.write(target, None)
    return bytes(target)

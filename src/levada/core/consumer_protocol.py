"""What members of the classic protocol tell each other: the coordinator reads only which topics they subscribe to.

The metadata of the protocol type `consumer` is a version and a list of topics, with more behind it in newer
versions. Whatever cannot be read is left unread: it belongs to the members.
"""

from struct import error as StructError

from levada.wire.layouts import INT16, INT32, STRING, array

_TOPICS = array(STRING)
_PARTITIONS = array(INT32)


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


def assigned_partitions(assignment: bytes) -> dict[str, tuple[int, ...]] | None:
    """The partitions of an assignment by topic, or None if it is of another make."""
    if not assignment:
        return {}
    try:
        version, position = INT16.read(assignment, 0)
        if version < 0:
            return None
        count, position = INT32.read(assignment, position)
        if not 0 <= count <= len(assignment):
            return None
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(count):
            topic, position = STRING.read(assignment, position)
            found[topic], position = _PARTITIONS.read(assignment, position)
    except (IndexError, ValueError, StructError):
        return None
    return found

"""How much members make a broker hold: what they say and are assigned, and the ids of those to come.

Kafka bounds how many members a group has, not what they say: a few of them could fill the memory. Here a group knows
what it holds, a machine knows the sum of its groups, and whoever would make it too much is refused.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.core.groups.machine import Group, GroupsMachine
    from levada.wire.internal.consumer_group_records import (
        MemberMetadataValue,
        RegularExpressionValue,
    )

MEMBER_BYTES: Final = 1_000  # of one that says nothing: objects, deadlines, its part of the journal
NAME_BYTES: Final = 100  # an object for each name, beside its characters
NAME_BYTES_MAX: Final = 1_024  # of a group, a member or an instance: many of them fit into one batch
SHARE: Final = (
    8  # one group may hold an eighth of what all may: a leader is told everything that its members say
)


class Holding(Protocol):
    """A member, of whichever protocol."""

    @property
    def memory_bytes(self) -> int: ...


class Crowd(Protocol):
    """A group, of whichever protocol."""

    memory_bytes: int
    instances: dict[str, str]  # instance id to member id

    @property
    def id(self) -> str: ...

    @property
    def members(self) -> Mapping[str, Holding]: ...


def check_new_group(group_id: str) -> None:
    """INVALID_GROUP_ID if no group may be called so: ids are held beside what members say."""
    if len(group_id.encode()) > NAME_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"a group id of more than {NAME_BYTES_MAX} bytes")


def pending_member_bytes(member_id: str) -> int:
    """What the id of a member to come takes."""
    return MEMBER_BYTES // 2 + len(member_id)


def member_memory_bytes(member_id: str, metadata: "MemberMetadataValue") -> int:
    """What is held of a member of a consumer group."""
    classic = metadata.classic_member_metadata
    protocols = () if classic is None else classic.supported_protocols
    texts = (metadata.instance_id, metadata.rack_id, metadata.client_id, metadata.subscribed_topic_regex)
    return (
        MEMBER_BYTES
        + len(member_id)
        + sum(len(text) for text in texts if text is not None)
        + sum(NAME_BYTES + len(name) for name in metadata.subscribed_topic_names)
        + sum(NAME_BYTES + len(name) + len(blob) for name, blob in protocols)
    )


def regex_bytes(found: "RegularExpressionValue | None") -> int:
    """What the topics of a pattern take, whose names are those of the topics themselves."""
    return 0 if found is None else NAME_BYTES + 8 * len(found.topics)


def keep(machine: "GroupsMachine", group: "Group") -> None:
    """A group is now this one."""
    former = machine.groups.get(group.id)
    machine.memory_bytes += group.memory_bytes - (0 if former is None else former.memory_bytes)
    machine.groups[group.id] = group


def forget(machine: "GroupsMachine", group_id: str) -> None:
    """A group is gone, if there was one."""
    former = machine.groups.pop(group_id, None)
    if former is not None:
        machine.memory_bytes -= former.memory_bytes


def check_room(
    machine: "GroupsMachine", group: Crowd, member_id: str = "", instance_id: str | None = None
) -> None:
    """GROUP_MAX_SIZE_REACHED if there is no room for a group as it would be by the request of this member.

    A group that does not grow has its room, and so has a member that is in and says no more than before: others, or
    topics that a pattern finds, are not its doing.
    """
    former = machine.groups.get(group.id)
    grown = group.memory_bytes - (0 if former is None else former.memory_bytes)
    if grown <= 0:
        return
    said = 0 if former is None else _held_of(former, member_id, instance_id)
    if said >= _held_of(group, member_id, instance_id) > 0:
        return
    limit = machine.limits.members_bytes_max
    if group.memory_bytes > limit // SHARE:
        raise _too_much(f"the members of {group.id!r} would take {group.memory_bytes} bytes", limit // SHARE)
    held = machine.held()
    if held + grown > limit:
        raise _too_much(f"the members of all groups would take {held + grown} bytes", limit)


def _held_of(group: Crowd, member_id: str, instance_id: str | None) -> int:
    """What is held of a member, or of the static one in its place; 0 of one that is not in."""
    member = group.members.get(
        member_id if instance_id is None else group.instances.get(instance_id, member_id)
    )
    return 0 if member is None else member.memory_bytes


def _too_much(what: str, limit: int) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{what}; at most {limit}")

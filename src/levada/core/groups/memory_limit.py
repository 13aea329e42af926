"""Limits the memory that group metadata takes: subscriptions, assignments, names and pending member ids.

Kafka limits the number of members, but not the size of their metadata, so a few members could exhaust the memory.
Each group counts its bytes, each shard the sum of its groups, and a request that would exceed the limit fails with
GROUP_MAX_SIZE_REACHED.
"""

from typing import TYPE_CHECKING, Final

from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.core.groups.group import Group
    from levada.core.groups.machine import GroupsMachine
    from levada.wire.internal.consumer_group_records import MemberMetadataValue, RegularExpressionValue

MEMBER_BYTES: Final = 1_000  # of a member without metadata: objects, timers, journal records
NAME_BYTES: Final = 100  # the object of a name, without its characters
NAME_BYTES_MAX: Final = 1_024  # of a group id, member id or instance id: many of them fit into one batch
GROUP_SHARE: Final = 8  # one group may take an eighth of the limit: its leader receives all its metadata


def validate_group_id_size(group_id: str) -> None:
    """INVALID_GROUP_ID if the id of a new group is too long."""
    if len(group_id.encode()) > NAME_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"the group id has more than {NAME_BYTES_MAX} bytes")


def pending_member_bytes(member_id: str) -> int:
    """The memory of a pending member id."""
    return MEMBER_BYTES // 2 + len(member_id)


def consumer_member_bytes(member_id: str, metadata: "MemberMetadataValue") -> int:
    """The memory of a member of a consumer group."""
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


def regex_bytes(resolved: "RegularExpressionValue | None") -> int:
    """The memory of a resolved regular expression; the names of its topics are shared with the image."""
    return 0 if resolved is None else NAME_BYTES + 8 * len(resolved.topics)


def put_group(machine: "GroupsMachine", group: "Group") -> None:
    """Add or replace a group."""
    former = machine.groups.get(group.id)
    machine.memory_bytes += group.memory_bytes - (0 if former is None else former.memory_bytes)
    machine.groups[group.id] = group


def remove_group(machine: "GroupsMachine", group_id: str) -> None:
    """Remove a group, if there is one."""
    former = machine.groups.pop(group_id, None)
    if former is not None:
        machine.memory_bytes -= former.memory_bytes


def check_memory(machine: "GroupsMachine", group: "Group", member_id: str = "", instance_id: str | None = None) -> None:
    """GROUP_MAX_SIZE_REACHED if the group, as this member's request would change it, exceeds a limit.

    A group that does not grow is always allowed. So is a member whose own metadata does not grow: other members, or
    new topics that match a regular expression, are not in its control.
    """
    former = machine.groups.get(group.id)
    growth = group.memory_bytes - (0 if former is None else former.memory_bytes)
    if growth <= 0:
        return
    before = 0 if former is None else _member_bytes(former, member_id, instance_id)
    if before >= _member_bytes(group, member_id, instance_id) > 0:
        return
    limit = machine.limits.members_bytes_max
    if group.memory_bytes > limit // GROUP_SHARE:
        what = f"the members of group {group.id!r} would take {group.memory_bytes} bytes"
        raise _exceeded(what, limit // GROUP_SHARE)
    total = machine.total_memory_bytes()
    if total + growth > limit:
        raise _exceeded(f"the members of all groups would take {total + growth} bytes", limit)


def _member_bytes(group: "Group", member_id: str, instance_id: str | None) -> int:
    """The memory of a member, or of the static member that it replaces; 0 if there is none."""
    member = group.members.get(member_id if instance_id is None else group.static_members.get(instance_id, member_id))
    return 0 if member is None else member.memory_bytes


def _exceeded(what: str, limit: int) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{what}; the limit is {limit}")

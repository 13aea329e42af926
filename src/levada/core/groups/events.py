"""The events of a group shard. Each event knows its journal record, if it has one, and applies itself.

A new kind of group adds events of its own; an event needs no more than `record` and `apply`. Events carry ids and
values, never live objects; `GroupChanged` hands over a copy of a classic group that becomes the new state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.group import Timer
from levada.core.groups.memory_limit import put_group, remove_group
from levada.core.machine import JournalRecord, ResponseHandle
from levada.model import TopicPartitionKey
from levada.wire.control_records import Marker
from levada.wire.internal.consumer_group_records import CONSUMER_GROUP_RECORD_TYPES
from levada.wire.internal.group_records import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    GroupMetadataKey,
    OffsetCommitValue,
    group_record,
    offset_record,
)
from levada.wire.internal.record_types import RecordFormat

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine

FORMAT: Final[RecordFormat[Any]] = RecordFormat(
    LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, GROUP_METADATA, *CONSUMER_GROUP_RECORD_TYPES
)


class GroupEvent(Protocol):
    """A change of the state of a shard."""

    def record(self) -> JournalRecord | None:
        """The journal record of the event; None if the event is kept in memory only."""
        ...

    def apply(self, machine: "GroupsMachine") -> None:
        """Change the state. Cannot fail."""
        ...


class GroupChanged(msgspec.Struct, frozen=True):
    """A classic group has a new state; `journaled` if the state must survive a restart."""

    group: ClassicGroup
    journaled: bool = False

    def record(self) -> JournalRecord | None:
        return group_record(self.group.id, self.group.record()) if self.journaled else None

    def apply(self, machine: "GroupsMachine") -> None:
        put_group(machine, self.group)
        machine.remove_if_unused(self.group.id)


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A classic group is removed."""

    group_id: str

    def record(self) -> JournalRecord | None:
        return FORMAT.encode(GroupMetadataKey(self.group_id), None)

    def apply(self, machine: "GroupsMachine") -> None:
        remove_group(machine, self.group_id)


class VolatileEvent(msgspec.Struct, frozen=True):
    """An event that is kept in memory only."""

    def record(self) -> JournalRecord | None:
        return None


class JoinReceived(VolatileEvent, frozen=True):
    """A member of a classic group has rejoined; its JoinGroup awaits the other members."""

    group_id: str
    member_id: str
    handle: ResponseHandle

    def apply(self, machine: "GroupsMachine") -> None:
        group = machine.classic_group(self.group_id)
        if group is not None:
            group.pending_joins[self.member_id] = self.handle


class SyncReceived(VolatileEvent, frozen=True):
    """A member of a classic group has sent SyncGroup; with a handle, the request awaits the leader's assignment."""

    group_id: str
    member_id: str
    handle: ResponseHandle | None = None

    def apply(self, machine: "GroupsMachine") -> None:
        group = machine.classic_group(self.group_id)
        if group is not None:
            group.pending_sync_members.discard(self.member_id)
            if self.handle is not None:
                group.pending_syncs[self.member_id] = self.handle


class TimerScheduled(VolatileEvent, frozen=True):
    """A timer is started or moved."""

    timer: Timer
    at_ms: int

    def apply(self, machine: "GroupsMachine") -> None:
        machine.deadlines.set(self.timer, self.at_ms)


class TimersChanged(VolatileEvent, frozen=True):
    """Timers are started, moved, or cancelled (None)."""

    timers: Mapping[Timer, int | None]

    def apply(self, machine: "GroupsMachine") -> None:
        deadlines = machine.deadlines
        for timer, at_ms in self.timers.items():
            if at_ms is None:
                deadlines.cancel(timer)
            else:
                deadlines.set(timer, at_ms)


class OffsetPut(msgspec.Struct, frozen=True):
    """An offset is committed, by a producer if in a transaction, or removed (None)."""

    group_id: str
    topic_partition: TopicPartitionKey
    value: OffsetCommitValue | None
    producer_id: int = -1

    def record(self) -> JournalRecord | None:
        return offset_record(self.group_id, *self.topic_partition, self.value)

    def apply(self, machine: "GroupsMachine") -> None:
        group_id, value = self.group_id, self.value
        machine.offsets.put(group_id, self.topic_partition, value, self.producer_id)
        if value is None:
            machine.remove_if_unused(group_id)
        elif group_id not in machine.groups:
            machine.groups[group_id] = ClassicGroup(group_id)


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """A producer's transaction has ended in this shard; its record is the marker, in a control batch."""

    producer_id: int
    committed: bool
    coordinator_epoch: int

    def record(self) -> JournalRecord | None:
        return Marker(self.committed, self.coordinator_epoch).key_and_value()

    def apply(self, machine: "GroupsMachine") -> None:
        groups = list(machine.offsets.pending_groups(self.producer_id))
        machine.offsets.end_transaction(self.producer_id, self.committed)
        for group_id in groups:
            machine.remove_if_unused(group_id)

"""What happens to the groups of a shard. Each event knows its record, if it has one, and what it changes.

A machine with other kinds of groups adds events of its own: all that is asked of one is `record` and `apply`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from levada.core.groups.classic.draft import Timer
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.memory_limit import forget, keep
from levada.core.groups.offsets import Place
from levada.core.machine import JournalRecord
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
    """Something that happens in a shard."""

    def record(self) -> JournalRecord | None:
        """Its record in the journal; None if it lives in memory only."""
        ...

    def apply(self, machine: "GroupsMachine") -> None:
        """Let it happen. Cannot fail."""
        ...


class GroupChanged(msgspec.Struct, frozen=True):
    """A classic group is now this one; `saved` if that must survive."""

    group: ClassicGroup
    saved: bool = False

    def record(self) -> JournalRecord | None:
        return group_record(self.group.id, self.group.record()) if self.saved else None

    def apply(self, machine: "GroupsMachine") -> None:
        keep(machine, self.group)
        machine.forget_if_bare(self.group.id)


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A group is gone."""

    group_id: str

    def record(self) -> JournalRecord | None:
        return FORMAT.encode(GroupMetadataKey(self.group_id), None)

    def apply(self, machine: "GroupsMachine") -> None:
        forget(machine, self.group_id)


class TimerScheduled(msgspec.Struct, frozen=True):
    """A deadline is set."""

    timer: Timer
    at_ms: int

    def record(self) -> JournalRecord | None:
        return None

    def apply(self, machine: "GroupsMachine") -> None:
        machine.deadlines.set(self.timer, self.at_ms)


class TimersChanged(msgspec.Struct, frozen=True):
    """Deadlines are set, or ended with None."""

    timers: Mapping[Timer, int | None]

    def record(self) -> JournalRecord | None:
        return None

    def apply(self, machine: "GroupsMachine") -> None:
        deadlines = machine.deadlines
        for timer, at_ms in self.timers.items():
            if at_ms is None:
                deadlines.cancel(timer)
            else:
                deadlines.set(timer, at_ms)


class OffsetPut(msgspec.Struct, frozen=True):
    """An offset is committed, by a producer if in a transaction, or taken back with None."""

    group_id: str
    place: Place
    value: OffsetCommitValue | None
    producer_id: int = -1

    def record(self) -> JournalRecord | None:
        return offset_record(self.group_id, *self.place, self.value)

    def apply(self, machine: "GroupsMachine") -> None:
        group_id, value = self.group_id, self.value
        machine.offsets.put(group_id, self.place, value, self.producer_id)
        if value is None:
            machine.forget_if_bare(group_id)
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
        machine.offsets.end(self.producer_id, self.committed)
        for group_id in groups:
            machine.forget_if_bare(group_id)

"""What coordinators have done so far, for the metrics.

Events are counted as they happen, not when a journal is read again: a machine that replays applies them itself.
"""

from dataclasses import dataclass
from typing import Final

from levada.core.groups.consumer.draft import ConsumerRecord
from levada.core.groups.events import (
    GroupChanged,
    GroupEvent,
    JoinReceived,
    OffsetPut,
    SyncReceived,
    TimersChanged,
    TimerScheduled,
)
from levada.core.groups.machine import GroupsMachine
from levada.wire.internal.consumer_group_records import ConsumerGroupMetadataKey

# Nothing to count, and nearly all there is.
QUIET: Final[frozenset[type]] = frozenset((JoinReceived, SyncReceived, TimerScheduled, TimersChanged))


@dataclass(slots=True)
class CoordinatorFigures:
    """Counts since the start."""

    offsets_committed: int = 0
    classic_rebalances: int = 0  # new generations
    consumer_rebalances: int = 0  # new group epochs
    transactions_committed: int = 0
    transactions_aborted: int = 0  # those that timed out among them
    transactions_timed_out: int = 0


class CountedGroups(GroupsMachine):
    """A machine of groups that counts what happens to it."""

    __slots__ = ("figures",)
    figures: CoordinatorFigures

    def apply(self, event: GroupEvent) -> None:
        if isinstance(event, OffsetPut):
            self.figures.offsets_committed += event.value is not None
        elif type(event) in QUIET:
            pass
        elif isinstance(event, GroupChanged):
            former = self.classic_group(event.group.id)
            self.figures.classic_rebalances += event.group.generation > (former.generation if former else 0)
        elif isinstance(event, ConsumerRecord):
            is_epoch = isinstance(event.key, ConsumerGroupMetadataKey) and event.value is not None
            self.figures.consumer_rebalances += is_epoch
        event.apply(self)

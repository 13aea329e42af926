"""The model of committed offsets: every commit in the order in which the coordinator took it.

A coordinator that is there has exactly what the model has. One that was lost and has read its journal again may have
forgotten the newest operations, but none that anybody was told of, and none in part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from tests.sim.seeds import Invariant, Violation

from levada.core.groups.machine import GroupsMachine
from levada.model import TopicPartitionKey

Key = tuple[str, TopicPartitionKey]  # group and partition
Outcomes = Callable[[int], tuple[bool, ...]]  # how the transaction of a producer may have ended


class Taken(NamedTuple):
    """A commit, plain or in the transaction of a producer."""

    group: str
    offsets: tuple[tuple[TopicPartitionKey, int], ...]
    producer_id: int = -1


class Ended(NamedTuple):
    """A transaction came to its end."""

    producer_id: int
    committed: bool


class Removed(NamedTuple):
    """An offset was taken back, with whatever is pending for it."""

    key: Key


Operation = Taken | Ended | Removed


@dataclass
class Offsets:
    """Offsets of all groups; of each the place in the order of all commits."""

    plain: dict[Key, tuple[int, int]] = field(default_factory=dict)
    pending: dict[int, dict[Key, tuple[int, int]]] = field(default_factory=dict)
    order: int = 0

    def copy(self) -> "Offsets":
        pending = {producer: dict(found) for producer, found in self.pending.items()}
        return Offsets(dict(self.plain), pending, self.order)

    def apply(self, operation: Operation) -> None:
        self.order += 1
        match operation:
            case Taken(group, offsets, producer_id):
                target = self.plain if producer_id < 0 else self.pending.setdefault(producer_id, {})
                target.update({(group, topic_partition): (offset, self.order) for topic_partition, offset in offsets})
            case Ended(producer_id, committed):
                for key, commit in self.pending.pop(producer_id, {}).items():
                    if committed and self.plain.get(key, (0, 0))[1] < commit[1]:
                        self.plain[key] = commit
            case Removed(key):
                self.plain.pop(key, None)
                for producer in list(self.pending):
                    self.pending[producer].pop(key, None)
                    if not self.pending[producer]:
                        del self.pending[producer]

    def seen(self) -> tuple[dict[Key, int], dict[int, dict[Key, int]]]:
        """What can be compared."""
        return (
            {key: offset for key, (offset, _) in self.plain.items()},
            {producer: {key: offset for key, (offset, _) in found.items()} for producer, found in self.pending.items()},
        )


def offsets_of(machine: GroupsMachine) -> tuple[dict[Key, int], dict[int, dict[Key, int]]]:
    """What a coordinator has, in the same shape."""
    offsets = machine.offsets
    return (
        {
            (group, topic_partition): commit.value.offset
            for group, found in offsets._groups.items()
            for topic_partition, commit in found.items()
        },
        {
            producer: {
                (group, topic_partition): commit.value.offset
                for group, found in groups.items()
                for topic_partition, commit in found.items()
            }
            for producer, groups in offsets._pending.items()
        },
    )


class OffsetModel:
    """All operations since the beginning; of the newest nobody may have been told yet."""

    def __init__(self, outcomes: Outcomes, may_go: Callable[[Key], bool]) -> None:
        self.now = Offsets()
        self._outcomes = outcomes
        self._may_go = may_go  # whether an offset may have been removed by now
        self._acknowledged = Offsets()  # with everything that anybody was told of
        self._unacknowledged: list[Operation] = []
        self._count = 0  # of all operations

    def take(self, operation: Operation) -> int:
        """An operation happens now; where the history ends with it."""
        self.now.apply(operation)
        self._unacknowledged.append(operation)
        self._count += 1
        return self._count

    def take_back(self) -> None:
        """The last one was refused."""
        self._unacknowledged.pop()
        self._count -= 1
        self.now = self._acknowledged.copy()
        for operation in self._unacknowledged:
            self.now.apply(operation)

    @property
    def count(self) -> int:
        return self._count

    def keys(self, group: str) -> list[Key]:
        """Where a group has offsets, also pending ones."""
        keys = {*self.now.plain, *(key for found in self.now.pending.values() for key in found)}
        return sorted(key for key in keys if key[0] == group)

    def offset(self, key: Key) -> int:
        """The newest offset, also a pending one."""
        commits = [self.now.plain.get(key, (0, 0))]
        commits += [found[key] for found in self.now.pending.values() if key in found]
        return max(commits, key=lambda commit: commit[1])[0]

    def acknowledge(self, count: int) -> None:
        """Somebody was told of what happened up to there: it must not be lost."""
        while self._count - len(self._unacknowledged) < count and self._unacknowledged:
            self._acknowledged.apply(self._unacknowledged.pop(0))

    def observe(self, machine: GroupsMachine) -> None:
        """The coordinator has what was committed last, or what time and transactions made of it."""
        actual = offsets_of(machine)
        if actual == self.now.seen():
            return
        for operations in self._explanations(self.now, actual):
            for operation in operations:
                self.take(operation)
            return
        raise Violation(Invariant.COMMITTED_OFFSETS, f"offsets are {actual}, but should be {self.now.seen()}")

    def resume(self, machine: GroupsMachine) -> None:
        """The coordinator was lost and has read its journal: all that anybody was told of is there.

        The newest operations may be missing.
        """
        actual = offsets_of(machine)
        for kept in range(len(self._unacknowledged), -1, -1):
            state = self._acknowledged.copy()
            for operation in self._unacknowledged[:kept]:
                state.apply(operation)
            for operations in self._explanations(state, actual):
                self._count -= len(self._unacknowledged) - kept
                self.now, self._unacknowledged = state, self._unacknowledged[:kept]
                for operation in operations:
                    self.take(operation)
                return
        raise Violation(
            Invariant.COMMITTED_OFFSETS,
            f"after a restart offsets are {actual}, acknowledged was {self._acknowledged.seen()}",
        )

    def _explanations(
        self, state: Offsets, actual: tuple[dict[Key, int], dict[int, dict[Key, int]]]
    ) -> Iterator[list[Operation]]:
        """Ends of transactions and removals that lead from a state to what there is."""
        gone = [producer for producer in state.pending if producer not in actual[1]]
        choices = [[None, *self._outcomes(producer)] for producer in gone]
        for outcomes in product(*choices):
            trial = state.copy()
            operations: list[Operation] = [
                Ended(producer, committed)
                for producer, committed in zip(gone, outcomes, strict=True)
                if committed is not None
            ]
            for operation in operations:
                trial.apply(operation)
            keys = {*trial.plain, *(key for found in trial.pending.values() for key in found)}
            there = {*actual[0], *(key for found in actual[1].values() for key in found)}
            for key in sorted(keys - there):
                if self._may_go(key):
                    operations.append(Removed(key))
                    trial.apply(operations[-1])
            if trial.seen() == actual:
                yield operations

"""Plans moves of replicas, so that brokers have equally many, and equally many preferred leaders.

The plan moves few replicas: each move goes from a broker with more than its share to one with less. A move never puts
two replicas of a partition into one rack that were in two. Preferred leaders are balanced by the order of replicas,
which moves no data. Replicas on brokers that are leaving are moved first.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)  # a partition


def rebalance(
    assignments: Mapping[P, Sequence[int]],
    racks: Mapping[int, str | None],
    leaving: Collection[int] = (),
    *,
    moves_max: int,
    evacuate_only: bool = False,
) -> dict[P, tuple[int, ...]]:
    """Return the new replicas of the partitions that change, at most `moves_max` of them.

    `racks` are the brokers that take replicas. Brokers that are in neither argument keep what they have.
    """
    plan = _Plan(assignments, racks, moves_max)
    plan.evacuate(leaving)
    if not evacuate_only:
        plan.balance_replicas()
        plan.balance_leaders()
    return {partition: to for partition, to in plan.changed.items() if to != tuple(assignments[partition])}


class _Plan(Generic[P]):
    """The replicas while moves are planned."""

    def __init__(self, assignments: Mapping[P, Sequence[int]], racks: Mapping[int, str | None], moves_max: int) -> None:
        self._replicas = {partition: tuple(replicas) for partition, replicas in assignments.items()}
        self._racks = racks
        self._moves_max = moves_max
        self._held: dict[int, dict[P, None]] = {broker: {} for broker in racks}
        self._led = Counter(dict.fromkeys(racks, 0))
        self.changed: dict[P, tuple[int, ...]] = {}
        for partition, replicas in self._replicas.items():
            self._led[replicas[0]] += 1
            for broker in replicas:
                self._held.setdefault(broker, {})[partition] = None

    def evacuate(self, leaving: Collection[int]) -> None:
        """Move all replicas away from brokers."""
        for broker in sorted(leaving):
            for partition in list(self._held.get(broker, ())):
                takers = [taker for taker in self._racks if taker not in self._replicas[partition]]
                takers = [taker for taker in takers if taker not in leaving]
                if takers and self._may_change(partition):
                    best = min(takers, key=lambda taker: self._cost(partition, broker, taker))
                    self._move(partition, broker, best)

    def balance_replicas(self) -> None:
        """Move replicas from brokers that have more than others."""
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        by_load = sorted(self._racks, key=lambda broker: (len(self._held[broker]), broker))
        for source in reversed(by_load):
            for taker in by_load:
                if len(self._held[source]) - len(self._held[taker]) < 2:
                    break
                for partition in self._held[source]:
                    if self._fits(partition, source, taker):
                        self._move(partition, source, taker)
                        return True
        return False

    def _fits(self, partition: P, source: int, taker: int) -> bool:
        """Whether a move keeps replicas apart, and in as many racks."""
        replicas = self._replicas[partition]
        if taker in replicas or not self._may_change(partition):
            return False
        return self._in_rack_of(taker, replicas, source) <= self._in_rack_of(source, replicas, source)

    def balance_leaders(self) -> None:
        """Exchange preferred leaders with followers that are preferred leaders of fewer partitions."""
        while self._exchange_one():
            pass

    def _exchange_one(self) -> bool:
        by_led = sorted(self._racks, key=lambda broker: (self._led[broker], broker))
        for leader in reversed(by_led):
            for taker in by_led:
                if self._led[leader] - self._led[taker] < 2:
                    break
                for partition in self._held[taker]:
                    replicas = self._replicas[partition]
                    if replicas[0] == leader and self._may_change(partition):
                        others = [broker for broker in replicas[1:] if broker != taker]
                        self._set(partition, (taker, *others, leader))
                        return True
        return False

    def _may_change(self, partition: P) -> bool:
        return partition in self.changed or len(self.changed) < self._moves_max

    def _cost(self, partition: P, leaving: int, taker: int) -> tuple[int, int, int]:
        return self._in_rack_of(taker, self._replicas[partition], leaving), len(self._held[taker]), taker

    def _in_rack_of(self, broker: int, replicas: Sequence[int], without: int) -> int:
        """How many replicas are in the rack of a broker."""
        rack = self._racks.get(broker)
        return sum(self._racks.get(other) == rack for other in replicas if other != without and other in self._racks)

    def _move(self, partition: P, source: int, taker: int) -> None:
        replicas = self._replicas[partition]
        self._set(partition, tuple([taker if broker == source else broker for broker in replicas]))

    def _set(self, partition: P, replicas: tuple[int, ...]) -> None:
        former = self._replicas[partition]
        self._led[former[0]] -= 1
        self._led[replicas[0]] += 1
        for broker in former:
            del self._held[broker][partition]
        for broker in replicas:
            self._held[broker][partition] = None
        self._replicas[partition] = self.changed[partition] = replicas

"""Committed offsets of the groups of a shard, plain and in open transactions.

An offset committed in a transaction is pending until its marker: then it becomes the group's offset, or is gone.
Who asks for stable offsets meanwhile is told to ask again. Of a pending and a plain commit for the same partition the
one that was written later counts, as in Kafka, whichever transaction ends when.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from levada.errors import ErrorCode
from levada.wire.internal.group_records import NO_EXPIRY, OffsetCommitValue

Place = tuple[str, int]  # topic and partition


class CommitRequest(msgspec.Struct, frozen=True):
    """Offsets to commit, by a member or by a client that only keeps them here."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Sequence[tuple[Place, OffsetCommitValue]]
    producer_id: int = -1  # of the transaction that the commit is part of
    producer_epoch: int = -1
    api_version: int = 9  # from which on members of the consumer protocol may commit

    @property
    def is_transactional(self) -> bool:
        return self.producer_id >= 0


class FetchedOffset(NamedTuple):
    """A committed offset, none, or UNSTABLE_OFFSET_COMMIT while a transaction is open."""

    place: Place
    value: OffsetCommitValue | None
    error: ErrorCode = ErrorCode.NONE


class Committed(msgspec.Struct, frozen=True):
    """An offset and where in the order of all commits it was written."""

    value: OffsetCommitValue
    order: int


@dataclass(slots=True)
class Offsets:
    """The offsets of a shard. `put`, `end` and `forget` are the only mutators."""

    _groups: dict[str, dict[Place, Committed]] = field(default_factory=dict)
    # By producer id, then group: commits of transactions that have not ended.
    _pending: dict[int, dict[str, dict[Place, Committed]]] = field(default_factory=dict)
    _open: dict[str, set[int]] = field(default_factory=dict)  # by group: the producers with pending commits
    _order: int = 0

    def get(self, group: str, place: Place) -> OffsetCommitValue | None:
        """The committed offset of a partition."""
        committed = self._groups.get(group, {}).get(place)
        return None if committed is None else committed.value

    def of(self, group: str) -> Iterator[tuple[Place, OffsetCommitValue]]:
        """All committed offsets of a group."""
        return ((place, committed.value) for place, committed in self._groups.get(group, {}).items())

    def count(self, group: str) -> int:
        """How many offsets a group has committed."""
        return len(self._groups.get(group, ()))

    @property
    def total(self) -> int:
        """How many offsets all groups have committed."""
        return sum(map(len, self._groups.values()))

    def places(self, group: str) -> list[Place]:
        """The partitions with an offset of the group, also a pending one."""
        places = dict.fromkeys(self._groups.get(group, ()))
        for producer in self._open.get(group, ()):
            places |= dict.fromkeys(self._pending[producer][group])
        return list(places)

    def groups(self) -> Iterable[str]:
        """The groups that have offsets."""
        return self._groups.keys() | self._open.keys()

    def has(self, group: str) -> bool:
        """Whether a group has offsets, also pending ones."""
        return group in self._groups or group in self._open

    def is_pending(self, group: str, place: Place) -> bool:
        """Whether an open transaction has committed an offset of this partition."""
        return any(place in self._pending[producer][group] for producer in self._open.get(group, ()))

    def has_pending(self, group: str) -> bool:
        """Whether an open transaction has committed any offset of the group."""
        return group in self._open

    def pending_groups(self, producer_id: int) -> Iterable[str]:
        """The groups in which a producer's open transaction has commits."""
        return self._pending.get(producer_id, {}).keys()

    def expired(
        self,
        group: str,
        now_ms: int,
        retention_ms: int,
        kept_since: Callable[[str, OffsetCommitValue], int | None],
    ) -> list[Place]:
        """The offsets no longer kept: `kept_since` tells from when retention counts, None while an offset is in use.

        An offset with a time of its own goes then, as old clients asked for it.
        """
        found = []
        for place, value in self.of(group):
            if value.expire_timestamp != NO_EXPIRY:
                gone = value.expire_timestamp <= now_ms
            else:
                since_ms = kept_since(place[0], value)
                gone = since_ms is not None and since_ms + retention_ms <= now_ms
            if gone and not self.is_pending(group, place):
                found.append(place)
        return found

    # Changing.

    def put(self, group: str, place: Place, value: OffsetCommitValue | None, producer_id: int = -1) -> None:
        """A commit, plain or in a transaction; without a value the plain offset and what is pending are gone."""
        self._order += 1
        if value is None:
            self._remove(group, place)
        elif producer_id >= 0:
            self._pending.setdefault(producer_id, {}).setdefault(group, {})[place] = Committed(
                value, self._order
            )
            self._open.setdefault(group, set()).add(producer_id)
        else:
            offsets = self._groups.get(group)
            if offsets is None:
                offsets = self._groups[group] = {}
            offsets[place] = Committed(value, self._order)

    def end(self, producer_id: int, committed: bool) -> None:
        """A producer's transaction has ended: what it committed counts now, or never did."""
        for group, pending in self._pending.pop(producer_id, {}).items():
            self._forget_producer(group, producer_id)
            if not committed:
                continue
            offsets = self._groups.setdefault(group, {})
            for place, commit in pending.items():
                former = offsets.get(place)
                if former is None or former.order < commit.order:
                    offsets[place] = commit

    def _remove(self, group: str, place: Place) -> None:
        offsets = self._groups.get(group, {})
        offsets.pop(place, None)
        if not offsets:
            self._groups.pop(group, None)
        for producer in list(self._open.get(group, ())):
            pending = self._pending[producer][group]
            pending.pop(place, None)
            if not pending:
                del self._pending[producer][group]
                if not self._pending[producer]:
                    del self._pending[producer]
                self._forget_producer(group, producer)

    def _forget_producer(self, group: str, producer_id: int) -> None:
        producers = self._open[group]
        producers.discard(producer_id)
        if not producers:
            del self._open[group]

"""Committed offsets of the groups of a shard, plain and in open transactions.

An offset committed in a transaction is pending until its marker arrives; then it replaces the group's offset, or is
dropped. Until then, fetches of stable offsets fail with UNSTABLE_OFFSET_COMMIT. Of a pending and a plain commit of the
same partition the one that was written later wins, as in Kafka, regardless of when the transaction ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from levada.errors import ErrorCode
from levada.model import TopicPartitionKey
from levada.wire.internal.group_records import NO_EXPIRY, OffsetCommitValue


class CommitRequest(msgspec.Struct, frozen=True):
    """Offsets to commit, by a member or by a client that only stores offsets (no member id, generation -1)."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int  # or member epoch
    offsets: Sequence[tuple[TopicPartitionKey, OffsetCommitValue]]
    producer_id: int = -1  # of the transaction that the commit belongs to
    producer_epoch: int = -1
    api_version: int = 9  # members of consumer groups commit from version 9 on

    @property
    def is_transactional(self) -> bool:
        return self.producer_id >= 0


class FetchedOffset(NamedTuple):
    """A committed offset, none, or UNSTABLE_OFFSET_COMMIT while a transaction is open."""

    topic_partition: TopicPartitionKey
    value: OffsetCommitValue | None
    error: ErrorCode = ErrorCode.NONE


class Committed(msgspec.Struct, frozen=True):
    """An offset and its position in the order of all commits."""

    value: OffsetCommitValue
    order: int


@dataclass(slots=True)
class Offsets:
    """The offsets of a shard. `put` and `end_transaction` are the only mutators."""

    _groups: dict[str, dict[TopicPartitionKey, Committed]] = field(default_factory=dict)
    # By producer id, then group: commits of open transactions.
    _pending: dict[int, dict[str, dict[TopicPartitionKey, Committed]]] = field(default_factory=dict)
    _open: dict[str, set[int]] = field(default_factory=dict)  # by group: producers with pending commits
    _order: int = 0

    def get(self, group: str, topic_partition: TopicPartitionKey) -> OffsetCommitValue | None:
        """The committed offset of a partition."""
        committed = self._groups.get(group, {}).get(topic_partition)
        return None if committed is None else committed.value

    def of(self, group: str) -> Iterator[tuple[TopicPartitionKey, OffsetCommitValue]]:
        """All committed offsets of a group."""
        offsets = self._groups.get(group, {})
        return ((topic_partition, committed.value) for topic_partition, committed in offsets.items())

    def count(self, group: str) -> int:
        """The number of committed offsets of a group."""
        return len(self._groups.get(group, ()))

    @property
    def total(self) -> int:
        """The number of committed offsets of all groups."""
        return sum(map(len, self._groups.values()))

    def topic_partitions(self, group: str) -> list[TopicPartitionKey]:
        """The partitions with a committed or pending offset of the group."""
        found = dict.fromkeys(self._groups.get(group, ()))
        for producer in self._open.get(group, ()):
            found |= dict.fromkeys(self._pending[producer][group])
        return list(found)

    def groups(self) -> Iterable[str]:
        """The groups that have offsets, also pending ones."""
        return self._groups.keys() | self._open.keys()

    def has(self, group: str) -> bool:
        """Whether a group has offsets, also pending ones."""
        return group in self._groups or group in self._open

    def is_pending(self, group: str, topic_partition: TopicPartitionKey) -> bool:
        """Whether an open transaction has committed an offset of this partition."""
        return any(topic_partition in self._pending[producer][group] for producer in self._open.get(group, ()))

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
        retained_since_ms: Callable[[str, OffsetCommitValue], int | None],
    ) -> list[TopicPartitionKey]:
        """The offsets whose retention is over: `retained_since_ms` returns its start, None while in use.

        An offset with an expiry timestamp (of clients before OffsetCommit v5) expires then.
        """
        found = []
        for topic_partition, value in self.of(group):
            if value.expire_timestamp != NO_EXPIRY:
                expired = value.expire_timestamp <= now_ms
            else:
                since_ms = retained_since_ms(topic_partition[0], value)
                expired = since_ms is not None and since_ms + retention_ms <= now_ms
            if expired and not self.is_pending(group, topic_partition):
                found.append(topic_partition)
        return found

    # Changes.

    def put(
        self,
        group: str,
        topic_partition: TopicPartitionKey,
        value: OffsetCommitValue | None,
        producer_id: int = -1,
    ) -> None:
        """Store a commit, plain or in a transaction; None removes the plain and the pending offset."""
        self._order += 1
        if value is None:
            self._remove(group, topic_partition)
        elif producer_id >= 0:
            pending = self._pending.setdefault(producer_id, {}).setdefault(group, {})
            pending[topic_partition] = Committed(value, self._order)
            self._open.setdefault(group, set()).add(producer_id)
        else:
            offsets = self._groups.get(group)
            if offsets is None:
                offsets = self._groups[group] = {}
            offsets[topic_partition] = Committed(value, self._order)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Make the pending offsets of a producer's transaction the groups' offsets, or drop them."""
        for group, pending in self._pending.pop(producer_id, {}).items():
            self._remove_producer(group, producer_id)
            if not committed:
                continue
            offsets = self._groups.setdefault(group, {})
            for topic_partition, commit in pending.items():
                former = offsets.get(topic_partition)
                if former is None or former.order < commit.order:
                    offsets[topic_partition] = commit

    def _remove(self, group: str, topic_partition: TopicPartitionKey) -> None:
        offsets = self._groups.get(group, {})
        offsets.pop(topic_partition, None)
        if not offsets:
            self._groups.pop(group, None)
        for producer in list(self._open.get(group, ())):
            pending = self._pending[producer][group]
            pending.pop(topic_partition, None)
            if not pending:
                del self._pending[producer][group]
                if not self._pending[producer]:
                    del self._pending[producer]
                self._remove_producer(group, producer)

    def _remove_producer(self, group: str, producer_id: int) -> None:
        producers = self._open[group]
        producers.discard(producer_id)
        if not producers:
            del self._open[group]

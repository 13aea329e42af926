"""What every journaled machine has in common: groups and transactions are decided, journaled and replayed alike.

A machine is the state of one shard of a coordinator. Its deciding methods change nothing and return an `Outcome`, or
a `Passing` one: events and replies. The runtime (`levada.broker.coordinator.runtime`) journals the events that have a
record, applies all of them at once, and lets the replies go when the journal is committed. After a restart the machine
is rebuilt by `replay`, so whatever must survive has to be in a record; an event without one (a heartbeat) lives in
memory only.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from levada.wire.batches import BatchHeader

Ticket = Hashable  # stands for a request that waits; a machine keeps it as long as it owes the reply
JournalRecord = tuple[bytes, bytes | None]  # key, value; without a value it takes back what the key had


class Stamp(NamedTuple):
    """What the batch of an outcome carries besides its records: a transaction's batch or marker has a producer."""

    producer_id: int = -1
    producer_epoch: int = -1
    attributes: int = 0


PLAIN: Final = Stamp()


class Outcome(msgspec.Struct, frozen=True):
    """What a machine decided. A reply that is a KafkaError fails its request.

    Effects are what is to be done elsewhere once all of it is committed (markers of a transaction); the runtime hands
    them on, in order, and a machine that is loaded anew names again those that were not finished.
    """

    events: Sequence[Any] = ()
    replies: Sequence[tuple[Ticket, Any]] = ()
    stamp: Stamp = PLAIN
    effects: Sequence[Any] = ()
    divisible: bool = (
        False  # its events may go into several batches, since each of them is right without the others
    )


class Passing(msgspec.Struct, frozen=True):
    """What a machine decided that need not survive: none of the events has a record, so nobody asks them for one."""

    events: Sequence[Any]
    replies: Sequence[tuple[Ticket, Any]] = ()


class Machine(Protocol):
    """The state of one shard."""

    def encode(self, event: Any) -> JournalRecord | None:
        """The record of an event in Kafka's format, or None if it lives in memory only."""
        ...

    def apply(self, event: Any) -> None:
        """The only mutator; cannot fail."""
        ...

    def replay(self, key: bytes | None, value: bytes | None, batch: BatchHeader) -> None:
        """Apply a record of the journal; `batch` is the header of the batch that held it."""
        ...

    def loaded(self, now_ms: int) -> Outcome:
        """The whole journal is replayed: begin to wait for those who were there."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `expire` is to be called next, or None. Asked after every step: it must be cheap."""
        ...

    def expire(self, now_ms: int) -> Outcome:
        """Decide what the passing of time brings. May be called early."""
        ...


Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Deadlines(Generic[Key]):
    """Many deadlines of which few are reached, since heartbeats move them: setting one costs a dict entry.

    The heap holds each key once, at a time that is never later than its deadline.
    """

    _at: dict[Key, int] = field(default_factory=dict)  # the truth
    _heap: list[tuple[int, int, Key]] = field(default_factory=list)
    _queued: dict[Key, int] = field(default_factory=dict)  # when the heap has a key
    _count: int = 0  # keeps keys from being compared

    def set(self, key: Key, at_ms: int) -> None:
        """Begin or move a deadline."""
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: Key) -> None:
        """Forget a deadline, if there is one."""
        self._at.pop(key, None)

    def get(self, key: Key) -> int | None:
        """When a deadline is."""
        return self._at.get(key)

    def next_ms(self) -> int | None:
        """A time at which to look again: at or before the next deadline."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Key]:
        """The keys whose deadline has come, in the order of their deadlines; they stay until cancelled or moved."""
        found: list[tuple[int, Key]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # moved to the front since
            del self._queued[key]
            at_ms = self._at.get(key)
            if at_ms is None:
                continue
            if at_ms <= now_ms:
                found.append((at_ms, key))
            self._push(key, max(at_ms, now_ms + 1))
        return [key for _, key in sorted(found, key=lambda item: item[0])]

    def _push(self, key: Key, at_ms: int) -> None:
        self._count += 1
        self._queued[key] = at_ms
        heappush(self._heap, (at_ms, self._count, key))

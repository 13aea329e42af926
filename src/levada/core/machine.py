"""The state-machine pattern that group and transaction coordinators share: decide, journal, apply.

A state machine is the state of one coordinator shard. Its deciding methods change nothing: they return an `Outcome`
(or a `VolatileOutcome`) of events and responses. The runtime (`levada.broker.coordinator.runtime`) appends the records
of the events to the journal, applies all events at once, and sends the responses when the high watermark has passed
the records. After a restart `replay` rebuilds the state from the journal. So whatever must survive is in a record;
an event without a record (a renewed session) is kept in memory only.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from levada.wire.batches import BatchHeader

ResponseHandle = Hashable  # identifies a request that awaits its response; opaque to a state machine
JournalRecord = tuple[bytes, bytes | None]  # key and value; no value: a tombstone


class ProducerFields(NamedTuple):
    """Producer id, epoch and attributes of a record batch: those of a transaction, or of no producer."""

    producer_id: int = -1
    producer_epoch: int = -1
    attributes: int = 0


NO_PRODUCER: Final = ProducerFields()


class Outcome(msgspec.Struct, frozen=True):
    """The result of a decision: events to journal and apply, and responses to send once they are committed.

    A response that is a KafkaError fails its request. Effects are actions outside the shard (writing transaction
    markers) that start when the outcome is committed; a state machine that is loaded again repeats unfinished ones.
    """

    events: Sequence[Any] = ()
    responses: Sequence[tuple[ResponseHandle, Any]] = ()
    producer: ProducerFields = NO_PRODUCER
    effects: Sequence[Any] = ()
    atomic: bool = True  # False: the records may be split over several batches


class VolatileOutcome(msgspec.Struct, frozen=True):
    """The result of a decision whose events have no records: the runtime skips encoding and the journal."""

    events: Sequence[Any]
    responses: Sequence[tuple[ResponseHandle, Any]] = ()


AnyOutcome = Outcome | VolatileOutcome


class StateMachine(Protocol):
    """The state of one coordinator shard."""

    def encode(self, event: Any) -> JournalRecord | None:
        """The record of an event in Kafka's format; None if the event is kept in memory only."""
        ...

    def apply(self, event: Any) -> None:
        """Apply an event. The only method that changes the state; it cannot fail."""
        ...

    def replay(self, key: bytes | None, value: bytes | None, batch: BatchHeader) -> None:
        """Apply a record of the journal; `batch` is the header of its batch."""
        ...

    def on_loaded(self, now_ms: int) -> Outcome:
        """Decide what follows from the replayed state: start session timers, resume unfinished effects."""
        ...

    def next_deadline_ms(self) -> int | None:
        """The time of the next `expire`, or None. Called after every step, so it must be cheap."""
        ...

    def expire(self, now_ms: int) -> Outcome:
        """Decide on deadlines that have passed. May be called early."""
        ...


Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Deadlines(Generic[Key]):
    """Timers that are mostly moved before they expire, since heartbeats renew them: moving one costs a dict entry.

    The heap holds each key once, at a time that is never later than its deadline.
    """

    _at: dict[Key, int] = field(default_factory=dict)  # the deadlines
    _heap: list[tuple[int, int, Key]] = field(default_factory=list)
    _queued: dict[Key, int] = field(default_factory=dict)  # the time of each key in the heap
    _count: int = 0  # breaks ties in the heap, so that keys are never compared

    def set(self, key: Key, at_ms: int) -> None:
        """Start or move a deadline."""
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: Key) -> None:
        """Remove a deadline, if there is one."""
        self._at.pop(key, None)

    def get(self, key: Key) -> int | None:
        """The time of a deadline."""
        return self._at.get(key)

    def next_ms(self) -> int | None:
        """When to call `due` next: at or before the next deadline."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Key]:
        """The keys whose deadline has passed, earliest first; they stay until cancelled or moved."""
        found: list[tuple[int, Key]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # an entry of an earlier time replaced this one
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

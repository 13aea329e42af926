"""Histories of clients, and the anomalies of Jepsen's Kafka checker.

A history is made by processes that send, poll and position themselves; each does one thing at a time, so that the
order of its own events in the list is the order in which they happened. Ticks (of any clock that all processes
share) say what was before what between processes.

What the checker takes for granted:
- readers are read_committed, and what was acknowledged is neither deleted by retention nor compacted away;
- a value is sent once to a topic, and again only when the transaction that sent it before was aborted;
- producers are idempotent;
- at the end every partition was read from its start to its end (`caught_up`), or what nobody saw is not judged.

Allowed, and so not looked for: write cycles (G0), and skips across rebalances under subscribe.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Partition = tuple[str, int]
Place = tuple[Partition, int]  # a partition and an offset in it
Value = str


class Outcome(StrEnum):
    """How an operation ended. Unknown: it was asked for, and the answer never came."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Send(NamedTuple):
    """A record went out; the offset is there when it was acknowledged, whatever became of its transaction."""

    partition: Partition
    value: Value
    offset: int | None = None


class Seen(NamedTuple):
    """A record as a poll gave it."""

    partition: Partition
    offset: int
    value: Value


class Poll(NamedTuple):
    """Records came in, at this tick at the latest."""

    records: tuple[Seen, ...]
    tick: int = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """Sends and polls that stand or fall together.

    A transaction has the tick at which its end was asked for, one that never asked has failed. Without one, records
    may be seen as soon as they are sent, and each send stands for itself.
    """

    process: str
    steps: tuple[Send | Poll, ...]
    outcome: Outcome = Outcome.OK
    transactional: bool = False
    end_asked_tick: int = 0

    @property
    def sends(self) -> Iterator[Send]:
        return (step for step in self.steps if isinstance(step, Send))

    @property
    def polls(self) -> Iterator[Poll]:
        return (step for step in self.steps if isinstance(step, Poll))


@dataclass(frozen=True, slots=True)
class Positioned:
    """A process goes on from new places: it was given partitions, by a rebalance or by assign, or it sought.

    Under assign nothing may be skipped from then on; where it starts is known for `offsets`.
    """

    process: str
    assigned: bool = False
    offsets: Mapping[Partition, int] = field(default_factory=dict)


History = Sequence[Operation | Positioned]


class Kind(StrEnum):
    """What must not happen."""

    LOST_WRITE = "lost write"  # committed, never seen, though readers went past it
    UNSEEN = "unseen at the end"  # committed, never seen, and no reader got that far
    DUPLICATE = "duplicate"  # one value at two places of a topic
    INCONSISTENT_OFFSETS = "inconsistent offsets"  # two values at one place
    ABORTED_READ = "aborted read"  # G1a
    PRECOMMITTED_READ = "pre-committed read"  # seen before its transaction's end was asked for, or in it
    CIRCULAR_FLOW = "circular information flow"  # G1c: transactions that read from each other
    NONMONOTONIC_SEND = "non-monotonic send"
    NONMONOTONIC_POLL = "non-monotonic poll"
    SKIPPED = "skipped"  # under assign


class Anomaly(NamedTuple):
    """One of them, with what is needed to look for its cause."""

    kind: Kind
    partition: Partition | None
    detail: str


def anomalies(history: History, *, caught_up: bool = True) -> list[Anomaly]:
    """Everything in a history that must not be there; empty is good."""
    record = _Record(history)
    return [
        *_inconsistent_offsets(record),
        *_duplicates(record),
        *_unread_writes(record, caught_up),
        *_forbidden_reads(record),
        *_circular_flow(record),
        *_nonmonotonic_sends(record),
        *_poll_order(record),
    ]


class _Record:
    """A history, indexed once for all checks."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.operations = [event for event in history if isinstance(event, Operation)]
        self.seen: dict[Place, Value] = {}  # what polls gave, the first value of each place
        self.seen_values: dict[Partition, dict[Value, int]] = defaultdict(dict)
        self.written: dict[Place, int] = {}  # the operation whose send was acknowledged there
        self.unplaced: dict[tuple[Partition, Value], list[int]] = defaultdict(list)  # sends with no known offset
        for index, operation in enumerate(self.operations):
            for poll in operation.polls:
                for partition, offset, value in poll.records:
                    self.seen.setdefault((partition, offset), value)
                    self.seen_values[partition].setdefault(value, offset)
            for partition, value, place in operation.sends:
                if place is None:
                    self.unplaced[partition, value].append(index)
                else:
                    self.written.setdefault((partition, place), index)
        self.committed = [self._was_committed(operation) for operation in self.operations]

    def _was_committed(self, operation: Operation) -> bool:
        """An unknown transaction whose record was seen has been committed, and then all of it."""
        if operation.outcome is not Outcome.UNKNOWN or not operation.transactional:
            return operation.outcome is Outcome.OK
        return any(self.was_seen(send) for send in operation.sends)

    def was_seen(self, send: Send) -> bool:
        if send.offset is None:
            return send.value in self.seen_values[send.partition]
        return (send.partition, send.offset) in self.seen

    def writer(self, record: Seen) -> int | None:
        """The operation that wrote what a poll gave; an aborted one only if no other can have been it."""
        place = self.written.get((record.partition, record.offset))
        if place is not None:
            return place
        candidates = self.unplaced.get((record.partition, record.value), [])
        possible = [index for index in candidates if self.operations[index].outcome is not Outcome.FAILED]
        return next(iter(possible or candidates), None)


def _inconsistent_offsets(record: _Record) -> Iterator[Anomaly]:
    values: dict[Place, set[Value]] = defaultdict(set)
    for operation in record.operations:
        for partition, value, offset in operation.sends:
            if offset is not None:
                values[partition, offset].add(value)
        for poll in operation.polls:
            for partition, offset, value in poll.records:
                values[partition, offset].add(value)
    for (partition, offset), found in values.items():
        if len(found) > 1:
            detail = f"offset {offset} is {' and '.join(sorted(found))}"
            yield Anomaly(Kind.INCONSISTENT_OFFSETS, partition, detail)


def _duplicates(record: _Record) -> Iterator[Anomaly]:
    """One value at two places that readers saw or were promised."""
    places: dict[tuple[str, Value], set[Place]] = defaultdict(set)
    for (partition, offset), value in record.seen.items():
        places[partition[0], value].add((partition, offset))
    for operation, committed in zip(record.operations, record.committed, strict=True):
        for send in operation.sends if committed else ():
            if send.offset is not None:
                places[send.partition[0], send.value].add((send.partition, send.offset))
    for (topic, value), found in places.items():
        if len(found) > 1:
            where = ", ".join(f"{index}@{offset}" for (_, index), offset in sorted(found))
            yield Anomaly(Kind.DUPLICATE, (topic, min(found)[0][1]), f"{value} at {where}")


def _unread_writes(record: _Record, caught_up: bool) -> Iterator[Anomaly]:
    last_seen: dict[Partition, int] = {}
    for partition, offset in record.seen:
        last_seen[partition] = max(offset, last_seen.get(partition, -1))
    for operation, committed in zip(record.operations, record.committed, strict=True):
        for send in operation.sends if committed else ():
            if record.was_seen(send):
                continue
            detail = f"{send.value} of {operation.process} at {send.offset}"
            if send.offset is not None and last_seen.get(send.partition, -1) > send.offset:
                yield Anomaly(Kind.LOST_WRITE, send.partition, detail)
            elif caught_up:
                yield Anomaly(Kind.UNSEEN, send.partition, detail)


def _forbidden_reads(record: _Record) -> Iterator[Anomaly]:
    """What was aborted, and what was not yet committed."""
    for index, operation in enumerate(record.operations):
        for poll in operation.polls:
            for seen in poll.records:
                source = record.writer(seen)
                if source is None:
                    continue
                writer = record.operations[source]
                detail = f"{seen.value} at {seen.offset} of {writer.process}, read by {operation.process}"
                if writer.outcome is Outcome.FAILED:
                    yield Anomaly(Kind.ABORTED_READ, seen.partition, detail)
                elif writer.transactional and (source == index or poll.tick < writer.end_asked_tick):
                    yield Anomaly(Kind.PRECOMMITTED_READ, seen.partition, detail)


def _circular_flow(record: _Record) -> Iterator[Anomaly]:
    """Committed transactions that all read, directly or not, what the others wrote."""
    readers: dict[int, set[int]] = defaultdict(set)
    for index, operation in enumerate(record.operations):
        if not (operation.transactional and record.committed[index]):
            continue
        for poll in operation.polls:
            for seen in poll.records:
                source = record.writer(seen)
                if source is not None and source != index and record.operations[source].transactional:
                    readers[source].add(index)
    for circle in _circles(readers):
        names = " -> ".join(f"{record.operations[index].process}#{index}" for index in sorted(circle))
        yield Anomaly(Kind.CIRCULAR_FLOW, None, names)


def _circles(graph: Mapping[int, Iterable[int]]) -> Iterator[set[int]]:
    """The strongly connected components of more than one node (Tarjan, without recursion)."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in list(graph):
        if root in order:
            continue
        work = [(root, iter(graph.get(root, ())))]
        while work:
            node, following = work[-1]
            if node not in order:
                order[node] = lowest[node] = len(order)
                stack.append(node)
                on_stack.add(node)
            for other in following:
                if other not in order:
                    work.append((other, iter(graph.get(other, ()))))
                    break
                if other in on_stack:
                    lowest[node] = min(lowest[node], order[other])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == order[node]:
                    cut = stack.index(node)
                    component = set(stack[cut:])
                    del stack[cut:]
                    on_stack -= component
                    if len(component) > 1:
                        yield component


def _nonmonotonic_sends(record: _Record) -> Iterator[Anomaly]:
    """Acknowledged offsets of one process go up in the order in which it sent."""
    last: dict[tuple[str, Partition], int] = {}
    for operation in record.operations:
        for partition, value, offset in operation.sends:
            if offset is None:
                continue
            before = last.get((operation.process, partition), -1)
            if offset <= before:
                detail = f"{operation.process} sent {value} to {offset} after {before}"
                yield Anomaly(Kind.NONMONOTONIC_SEND, partition, detail)
            last[operation.process, partition] = offset


def _poll_order(record: _Record) -> Iterator[Anomaly]:
    """Polls of a process go up until it is positioned anew; under assign they leave nothing out."""
    existing = _offsets_to_be_seen(record)
    positions: dict[str, dict[Partition, int]] = defaultdict(dict)  # the next offset that a process expects
    assigned: dict[str, bool] = {}
    for event in record.history:
        if isinstance(event, Positioned):
            positions[event.process] = dict(event.offsets)
            assigned[event.process] = event.assigned
            continue
        mine = positions[event.process]
        for poll in event.polls:
            for partition, offset, value in poll.records:
                expected = mine.get(partition)
                if expected is not None and offset < expected:
                    detail = f"{event.process} got {value} at {offset}, expected {expected} or later"
                    yield Anomaly(Kind.NONMONOTONIC_POLL, partition, detail)
                elif expected is not None and assigned.get(event.process):
                    yield from _skips(event.process, partition, existing[partition], expected, offset)
                mine[partition] = offset + 1


def _offsets_to_be_seen(record: _Record) -> dict[Partition, list[int]]:
    """Offsets of each partition, in order, at which there is a committed record for all we know."""
    found: dict[Partition, set[int]] = defaultdict(set)
    for partition, offset in record.seen:
        found[partition].add(offset)
    for operation, committed in zip(record.operations, record.committed, strict=True):
        for send in operation.sends if committed else ():
            if send.offset is not None:
                found[send.partition].add(send.offset)
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def _skips(process: str, partition: Partition, existing: list[int], expected: int, offset: int) -> Iterator[Anomaly]:
    if offset == expected:
        return
    left, right = bisect_left(existing, expected), bisect_left(existing, offset)
    if right > left:
        detail = f"{process} got {offset} where {existing[left]} was next, {right - left} left out"
        yield Anomaly(Kind.SKIPPED, partition, detail)

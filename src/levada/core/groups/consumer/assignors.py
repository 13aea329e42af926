"""The server-side assignors of consumer groups: Kafka's `range` and `uniform`.

Both assign each partition of a subscribed topic to exactly one of its subscribers. `range` assigns contiguous
partitions, the same numbers in every topic, so that co-partitioned topics can be joined; it ignores the former
assignment. `uniform` balances the number of partitions and moves as few of them as possible.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple
from uuid import UUID

Partitions = Mapping[UUID, frozenset[int]]  # by topic id; no topic without partitions
Assignment = dict[str, Partitions]  # by member id; every member has an entry

NO_PARTITIONS: Final[Partitions] = {}


class Subscriber(NamedTuple):
    """The input of an assignor for one member."""

    topics: frozenset[UUID]
    assigned: Partitions  # the former target assignment
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
TopicSizes = Mapping[UUID, int]  # the number of partitions of each existing topic
Assignor = Callable[[Subscribers, TopicSizes], Assignment]


def assign_range(members: Subscribers, sizes: TopicSizes) -> Assignment:
    """Assign contiguous partitions of each topic; the first members get one more if there is a remainder."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    order = sorted(members, key=lambda member_id: _rank(member_id, members[member_id]))
    subscribers: dict[UUID, list[str]] = {}
    for member_id in order:
        for topic in members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    for topic, subscribed in subscribers.items():
        share, rest = divmod(sizes.get(topic, 0), len(subscribed))
        start = 0
        for position, member_id in enumerate(subscribed):
            end = start + share + (position < rest)
            if end > start:
                assigned[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _rank(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Static members are sorted first, by instance id, so that a new member id does not change the order."""
    return member.instance_id is None, member.instance_id or member_id


def assign_uniform(members: Subscribers, sizes: TopicSizes) -> Assignment:
    """Balance as far as subscriptions allow. A member keeps its partitions unless balance requires to move them."""
    if not members:
        return {}
    builder = _UniformBuilder(members, sizes)
    builder.keep_former_assignment()
    builder.assign_free_partitions()
    builder.balance()
    return builder.result()


class _UniformBuilder:
    """Builds a uniform assignment.

    Partitions of a topic are interchangeable, so possible moves form a graph of members and topics: a partition can
    move from a member that has one of a topic to any subscriber of the topic. A path of such moves from a member to
    one with at least two partitions less improves the balance; without such a path the balance is optimal.
    """

    def __init__(self, members: Subscribers, sizes: TopicSizes) -> None:
        self._members = members
        self._topics: dict[str, list[UUID]] = {}  # by member, sorted, only topics that exist
        self._subscribers: dict[UUID, list[str]] = {}
        self._sizes = sizes
        self._holdings: dict[UUID, dict[str, set[int]]] = {}  # by topic and member; no empty sets
        self._loads = dict.fromkeys(sorted(members), 0)
        for member_id in self._loads:
            topics = sorted(topic for topic in members[member_id].topics if sizes.get(topic, 0))
            self._topics[member_id] = topics
            for topic in topics:
                self._subscribers.setdefault(topic, []).append(member_id)

    def keep_former_assignment(self) -> None:
        """Keep the former assignment where it is valid, up to the quota of each member."""
        taken: dict[UUID, set[int]] = {topic: set() for topic in self._subscribers}
        quotas = self._quotas()
        for member_id in sorted(self._loads, key=lambda one: (-_size(self._members[one].assigned), one)):
            room = next(quotas)
            for partition, topic in self._former(member_id, taken):
                if room == 0:
                    break
                room -= 1
                taken[topic].add(partition)
                self._assign(topic, partition, member_id)

    def _quotas(self) -> Iterator[int]:
        """The quotas, largest former assignment first; unlimited if subscriptions differ."""
        total = sum(self._sizes[topic] for topic in self._subscribers)
        alike = all(len(subscribed) == len(self._loads) for subscribed in self._subscribers.values())
        share, rest = divmod(total, len(self._loads)) if alike else (total, 0)
        for position in range(len(self._loads)):
            yield share + (position < rest)

    def _former(self, member_id: str, taken: Mapping[UUID, set[int]]) -> list[tuple[int, UUID]]:
        """The partitions that a member may keep, by number, so that it loses some of many topics."""
        subscribed = self._topics[member_id]
        assigned = self._members[member_id].assigned
        return sorted(
            (partition, topic)
            for topic in subscribed
            for partition in assigned.get(topic, ())
            if partition < self._sizes[topic] and partition not in taken[topic]
        )

    def assign_free_partitions(self) -> None:
        """Assign each free partition to the subscriber with the fewest, topics with few subscribers first."""
        for topic in sorted(self._subscribers, key=lambda one: (len(self._subscribers[one]), one)):
            holders = self._holdings.get(topic, {})
            held: set[int] = set().union(*holders.values())
            heap = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic]]
            heapify(heap)
            for partition in range(self._sizes[topic]):
                if partition in held:
                    continue
                load, member_id = heap[0]
                self._assign(topic, partition, member_id)
                heapreplace(heap, (load + 1, member_id))

    def balance(self) -> None:
        """Move partitions along paths until no path improves the balance.

        Members that a search from the least loaded member reached without success are done: none of them has more than
        one partition more than that member, and a later search could not reach others from them.
        """
        heap = [(load, member_id) for member_id, load in self._loads.items()]
        heapify(heap)
        done: set[str] = set()
        while heap:
            load, member_id = heappop(heap)
            if member_id in done or load != self._loads[member_id]:
                continue
            source, path = self._search(member_id, done)
            if source is None:
                done.update(path)
                continue
            heappush(heap, (self._loads[source] - 1, source))
            self._move(source, path)
            heappush(heap, (load + 1, member_id))

    def _search(self, receiver: str, done: Iterable[str]) -> tuple[str | None, dict[str, tuple[str, UUID] | None]]:
        """The nearest member with at least two partitions more, and the path: each member's receiver and topic."""
        limit = self._loads[receiver] + 2
        path: dict[str, tuple[str, UUID] | None] = {receiver: None}
        topics: set[UUID] = set()
        queue = deque([receiver])
        while queue:
            member_id = queue.popleft()
            for topic in self._topics[member_id]:
                if topic in topics:
                    continue
                topics.add(topic)
                for holder in self._holdings.get(topic, ()):
                    if holder in path or holder in done:
                        continue
                    path[holder] = member_id, topic
                    if self._loads[holder] >= limit:
                        return holder, path
                    queue.append(holder)
        return None, path

    def _move(self, source: str, path: Mapping[str, tuple[str, UUID] | None]) -> None:
        sender = source
        while (step := path[sender]) is not None:
            receiver, topic = step
            held = self._holdings[topic][sender]
            partition = max(held)
            held.discard(partition)
            if not held:
                del self._holdings[topic][sender]
            self._loads[sender] -= 1
            self._assign(topic, partition, receiver)
            sender = receiver

    def _assign(self, topic: UUID, partition: int, member_id: str) -> None:
        self._holdings.setdefault(topic, {}).setdefault(member_id, set()).add(partition)
        self._loads[member_id] += 1

    def result(self) -> Assignment:
        """The assignment of each member."""
        assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in self._members}
        for topic in sorted(self._holdings):
            for member_id, partitions in self._holdings[topic].items():
                assigned[member_id][topic] = frozenset(partitions)
        return dict(assigned)


def _size(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}

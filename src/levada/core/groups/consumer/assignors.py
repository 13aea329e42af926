"""How the coordinator divides partitions among the members of a consumer group: Kafka's `range` and `uniform`.

Both give each partition of a subscribed topic to exactly one member that subscribes to it. `range` gives each member
neighbouring partitions, the same numbers in every topic, so that topics with the same keys can be joined; it does not
care who had what. `uniform` balances the number of partitions and moves as few of them as it can.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple
from uuid import UUID

Partitions = Mapping[UUID, frozenset[int]]  # by topic id; no topic without partitions
Assignment = dict[str, Partitions]  # by member id; every member has an entry

NOTHING: Final[Partitions] = {}


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    assigned: Partitions  # what it was assigned before
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
TopicSizes = Mapping[UUID, int]  # how many partitions the topics have; topics that are not here do not exist
Assignor = Callable[[Subscribers, TopicSizes], Assignment]


def assign_range(members: Subscribers, sizes: TopicSizes) -> Assignment:
    """Neighbouring partitions of each topic; the first members get one more where it does not come out even."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    order = sorted(members, key=lambda member_id: _rank(member_id, members[member_id]))
    subscribers: dict[UUID, list[str]] = {}
    for member_id in order:
        for topic in members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    for topic, takers in subscribers.items():
        share, rest = divmod(sizes.get(topic, 0), len(takers))
        start = 0
        for position, member_id in enumerate(takers):
            end = start + share + (position < rest)
            if end > start:
                assigned[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _rank(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Static members come first and keep their place whatever their member ids are."""
    return member.instance_id is None, member.instance_id or member_id


def assign_uniform(members: Subscribers, sizes: TopicSizes) -> Assignment:
    """As equal as subscriptions allow. A member keeps what it had, unless another must get it to be equal."""
    if not members:
        return {}
    division = _Division(members, sizes)
    division.keep_former()
    division.hand_out()
    division.balance()
    return division.result()


class _Division:
    """Partitions on their way to members.

    Partitions of a topic are alike here, so who may swap what is a graph of members and topics: a partition can move
    from a member that holds one of a topic to any member that subscribes to it. A chain of such moves from a member
    to one with at least two partitions less makes the division more equal; when there is no such chain, no division
    is more equal.
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

    def keep_former(self) -> None:
        """Begin with what members had, where it still fits; of members that are alike none keeps more than its part."""
        taken: dict[UUID, set[int]] = {topic: set() for topic in self._subscribers}
        most = self._most_kept()
        for member_id in sorted(self._loads, key=lambda one: (-_size(self._members[one].assigned), one)):
            room = next(most)
            for partition, topic in self._former(member_id, taken):
                if room == 0:
                    break
                room -= 1
                taken[topic].add(partition)
                self._give(topic, partition, member_id)

    def _most_kept(self) -> Iterator[int]:
        """How much the members may keep, those that had most first."""
        total = sum(self._sizes[topic] for topic in self._subscribers)
        alike = all(len(takers) == len(self._loads) for takers in self._subscribers.values())
        share, rest = divmod(total, len(self._loads)) if alike else (total, 0)
        for position in range(len(self._loads)):
            yield share + (position < rest)

    def _former(self, member_id: str, taken: Mapping[UUID, set[int]]) -> list[tuple[int, UUID]]:
        """What a member had and may keep, low numbers first, so that what it loses is of many topics."""
        subscribed = self._topics[member_id]
        assigned = self._members[member_id].assigned
        return sorted(
            (partition, topic)
            for topic in subscribed
            for partition in assigned.get(topic, ())
            if partition < self._sizes[topic] and partition not in taken[topic]
        )

    def hand_out(self) -> None:
        """Give each partition that nobody has to the member with the least, first those that few can take."""
        for topic in sorted(self._subscribers, key=lambda one: (len(self._subscribers[one]), one)):
            holders = self._holdings.get(topic, {})
            held: set[int] = set().union(*holders.values())
            heap = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic]]
            heapify(heap)
            for partition in range(self._sizes[topic]):
                if partition in held:
                    continue
                load, member_id = heap[0]
                self._give(topic, partition, member_id)
                heapreplace(heap, (load + 1, member_id))

    def balance(self) -> None:
        """Move partitions along chains until there is none that would make it more equal.

        Whatever a search from the least loaded member reached in vain is done: nothing there has more than one
        partition more than that member, and whatever could be reached from it later would have been reached now.
        """
        heap = [(load, member_id) for member_id, load in self._loads.items()]
        heapify(heap)
        done: set[str] = set()
        while heap:
            load, member_id = heappop(heap)
            if member_id in done or load != self._loads[member_id]:
                continue
            source, came_from = self._search(member_id, done)
            if source is None:
                done.update(came_from)
                continue
            heappush(heap, (self._loads[source] - 1, source))
            self._move_along(source, came_from)
            heappush(heap, (load + 1, member_id))

    def _search(
        self, taker: str, done: Iterable[str]
    ) -> tuple[str | None, dict[str, tuple[str, UUID] | None]]:
        """The nearest member with at least two more, and how each member found gives to the next one."""
        limit = self._loads[taker] + 2
        came_from: dict[str, tuple[str, UUID] | None] = {taker: None}
        topics: set[UUID] = set()
        queue = deque([taker])
        while queue:
            member_id = queue.popleft()
            for topic in self._topics[member_id]:
                if topic in topics:
                    continue
                topics.add(topic)
                for holder in self._holdings.get(topic, ()):
                    if holder in came_from or holder in done:
                        continue
                    came_from[holder] = member_id, topic
                    if self._loads[holder] >= limit:
                        return holder, came_from
                    queue.append(holder)
        return None, came_from

    def _move_along(self, source: str, came_from: Mapping[str, tuple[str, UUID] | None]) -> None:
        giver = source
        while (step := came_from[giver]) is not None:
            taker, topic = step
            held = self._holdings[topic][giver]
            partition = max(held)
            held.discard(partition)
            if not held:
                del self._holdings[topic][giver]
            self._loads[giver] -= 1
            self._give(topic, partition, taker)
            giver = taker

    def _give(self, topic: UUID, partition: int, member_id: str) -> None:
        self._holdings.setdefault(topic, {}).setdefault(member_id, set()).add(partition)
        self._loads[member_id] += 1

    def result(self) -> Assignment:
        """What each member has."""
        assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in self._members}
        for topic in sorted(self._holdings):
            for member_id, partitions in self._holdings[topic].items():
                assigned[member_id][topic] = frozenset(partitions)
        return dict(assigned)


def _size(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}

"""Loads on coordinators of groups: raw members that join, stay, leave and commit.

The members speak the classic protocol themselves. They learn of a rebalance from a heartbeat, as real
clients do, but heartbeat at once instead of every three seconds: a row shows the broker and not the interval.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.generator import coordinator_requests as coordination
from bench.generator import dialogue, wire
from bench.generator.coordinator_requests import NONE, REBALANCE_IN_PROGRESS
from bench.generator.dialogue import Dialogue
from bench.generator.outcome import Meter, Outcome, run_module

SESSION_MS, REBALANCE_MS = 60_000, 60_000
AGAIN_S = 0.005  # before a member asks again for something that is about to happen
SETTLE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """`commit` by members of groups of their own, or `rebalance` of one group."""

    port: int = 0
    topic: str = ""
    pid: int = 0
    action: str = "commit"
    group: str = "bench"
    connections: int = 1  # that commit, or members of the group
    depth: int = 1  # commits in flight on a connection
    partitions: int = 1  # in a commit
    seconds: float = 3.0
    rate: float = 0.0  # commits a second by schedule; 0: as fast as responses come
    times: int = 10  # that it rebalances


class Member:
    """One member of a classic group."""

    __slots__ = ("_dialogue", "_metadata", "_topic", "assigned", "generation", "group", "id", "leads")

    def __init__(self, connection: Dialogue, group: str, topic: str) -> None:
        self._dialogue = connection
        self._topic = topic
        self._metadata = coordination.subscription([topic])
        self.group = group
        self.id = ""
        self.generation = -1
        self.leads = False
        self.assigned = b""

    async def enter(self) -> None:
        """Join and sync until the member has its assignment of the current generation."""
        while True:
            joined = await self._join()
            assignments = {}
            self.generation, self.leads = joined.generation, joined.leader == self.id
            if self.leads:
                assignments = {member: self.due(member, position) for position, member in enumerate(joined.members)}
            frame = coordination.sync_group(self.group, self.id, self.generation, assignments)
            error, self.assigned = coordination.synced(await self._dialogue.request(frame))
            if error == NONE:
                if self.note(self.id) not in self.assigned:
                    raise wire.BrokerError(f"{self.id} was given what another or an older member was given")
                return
            if error != REBALANCE_IN_PROGRESS:
                raise wire.BrokerError(f"SyncGroup failed with error {error}")

    async def _join(self) -> coordination.Joined:
        while True:
            timeouts = (SESSION_MS, REBALANCE_MS)
            frame = coordination.join_group(self.group, self.id, *timeouts, self._metadata)
            joined = coordination.joined(await self._dialogue.request(frame))
            if joined.error == coordination.MEMBER_ID_REQUIRED:
                self.id = joined.member_id
            elif joined.error in coordination.NOT_NOW or joined.error == REBALANCE_IN_PROGRESS:
                await asyncio.sleep(AGAIN_S)
            elif joined.error:
                raise wire.BrokerError(f"JoinGroup failed with error {joined.error}")
            else:
                return joined

    def due(self, member_id: str, position: int) -> bytes:
        """What a leader assigns: one partition, and words by which the member knows that it is its own."""
        return coordination.assignment(self._topic, [position], self.note(member_id))

    def note(self, member_id: str) -> bytes:
        return f"{member_id} in {self.generation}".encode()

    async def heartbeat(self) -> int:
        frame = coordination.heartbeat(self.group, self.id, self.generation)
        return coordination.plain_error(await self._dialogue.request(frame))

    async def await_rebalance(self) -> None:
        """Heartbeats until a response announces the rebalance."""
        while (error := await self.heartbeat()) != REBALANCE_IN_PROGRESS:
            if error:
                raise wire.BrokerError(f"Heartbeat failed with error {error}")

    async def follow(self) -> None:
        """Joins the next generation once a heartbeat has announced it."""
        await self.await_rebalance()
        await self.enter()

    async def leave(self) -> None:
        response = await self._dialogue.request(coordination.leave_group(self.group, self.id))
        if error := coordination.plain_error(response):
            raise wire.BrokerError(f"LeaveGroup failed with error {error}")
        self.id, self.generation = "", -1


async def form(members: Sequence[Member]) -> None:
    """Have all of them in one generation."""
    first = members[0]
    await first.enter()
    if len(members) > 1:
        await asyncio.gather(*(_into_the_last(member, members) for member in members))


async def _into_the_last(member: Member, members: Sequence[Member]) -> None:
    deadline = time.perf_counter() + SETTLE_TIMEOUT_S
    if not member.id:
        await member.enter()
    while not is_stable(members):
        if time.perf_counter() > deadline:
            raise wire.BrokerError(f"{member.group} has no common generation after {SETTLE_TIMEOUT_S:.0f} s")
        error = await member.heartbeat()
        if error == REBALANCE_IN_PROGRESS:
            await member.enter()
        elif error:
            raise wire.BrokerError(f"Heartbeat failed with error {error}")
        else:
            await asyncio.sleep(AGAIN_S)


def is_stable(members: Sequence[Member]) -> bool:
    """Whether all are in the same generation, led by one of them."""
    generations = {member.generation for member in members}
    return generations != {-1} and len(generations) == 1 and sum(member.leads for member in members) == 1


async def rebalance(members: list[Member], joiner: Member) -> float:
    """Seconds from the first request of a member that joins or leaves until all members have their assignments."""
    started = time.perf_counter()
    if joiner in members:
        members.remove(joiner)
        await joiner.leave()
        await members[0].await_rebalance()
        entering = [members[0].enter(), *(member.follow() for member in members[1:])]
        await asyncio.gather(*entering)
    else:
        coming = asyncio.ensure_future(joiner.enter())
        await members[0].await_rebalance()
        entering = [members[0].enter(), *(member.follow() for member in members[1:])]
        await asyncio.gather(coming, *entering)
        members.append(joiner)
    seconds = time.perf_counter() - started
    if not is_stable(members):
        raise wire.BrokerError("after a rebalance the members are in different generations")
    return seconds


async def _rebalances(load: GroupLoad) -> Outcome:
    async with dialogue.many(load.port, load.connections) as connections:
        members = [Member(connection, load.group, load.topic) for connection in connections]
        await form(members)
        joiner = members[-1]
        meter, started = Meter(load.pid), time.perf_counter()
        taken = [await rebalance(members, joiner) for _ in range(load.times)]
        outcome = meter.outcome(time.perf_counter() - started, len(taken), 0, taken)
        await asyncio.gather(*(member.leave() for member in members))
    return outcome


@dataclass(slots=True)
class Committer:
    """A member that commits offsets, each greater than the one before."""

    connection: Dialogue
    member: Member
    load: GroupLoad
    offset: int = 0
    acknowledged: int = 0
    latencies: list[float] = field(default_factory=list)
    _frame: bytearray = field(default_factory=bytearray)
    _positions: list[int] = field(default_factory=list)

    async def begin(self) -> None:
        load, member = self.load, self.member
        await member.enter()
        self._frame, self._positions = coordination.offset_commit(
            member.group, member.id, member.generation, load.topic, load.partitions
        )

    async def commit(self) -> None:
        self.offset += 1
        offset, since = self.offset, time.perf_counter()
        for position in self._positions:
            wire.I64.pack_into(self._frame, position, offset)
        response = await self.connection.request(bytes(self._frame))
        if error := coordination.commit_error(response):
            raise wire.BrokerError(f"OffsetCommit failed with error {error}")
        self.latencies.append(time.perf_counter() - since)
        self.acknowledged = max(self.acknowledged, offset)

    async def commit_on(self, until: float) -> None:
        while time.perf_counter() < until:
            await self.commit()


async def commits(load: GroupLoad) -> tuple[Outcome, list[Committer]]:
    """Each connection is a member of a group of its own, so that groups are of several shards."""
    async with dialogue.many(load.port, load.connections) as connections:
        committers = [
            Committer(connection, Member(connection, f"{load.group}-{number}", load.topic), load)
            for number, connection in enumerate(connections)
        ]
        await asyncio.gather(*(committer.begin() for committer in committers))
        meter, started = Meter(load.pid), time.perf_counter()
        await asyncio.gather(*_committing(load, committers, started))
        seconds = time.perf_counter() - started
        latencies = [latency for committer in committers for latency in committer.latencies]
        outcome = meter.outcome(seconds, len(latencies), 0, latencies)
        await asyncio.gather(*(committer.member.leave() for committer in committers))
    return outcome, committers


def _committing(load: GroupLoad, committers: Sequence[Committer], started: float) -> list[Coroutine[Any, Any, None]]:
    if load.rate:
        return [_by_schedule(load, committers, started)]
    until = started + load.seconds
    return [each.commit_on(until) for each in committers for _ in range(load.depth)]


async def _by_schedule(load: GroupLoad, committers: Sequence[Committer], started: float) -> None:
    """Whatever the responses do, so that a broker that stalls is charged for every commit that waited.

    The loop's timers are no finer than a millisecond, and what they let go at once would wait for each other here. So
    it goes round until the next commit is due; an response is seen as soon as it comes.
    """
    under_way: set[asyncio.Task[None]] = set()
    for number in range(int(load.seconds * load.rate)):
        while time.perf_counter() < started + number / load.rate:
            await asyncio.sleep(0)
        task = asyncio.ensure_future(committers[number % len(committers)].commit())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)


ACTIONS: dict[str, Callable[[GroupLoad], Outcome]] = {
    "commit": lambda load: dialogue.run(commits(load))[0],
    "rebalance": lambda load: dialogue.run(_rebalances(load)),
}


def run(load: GroupLoad) -> Outcome:
    """In a process of its own, once there is a coordinator."""
    coordination.await_coordinator(load.port, load.group, coordination.GROUP)
    return run_module("bench.generator.groups", asdict(load))


if __name__ == "__main__":
    group_load = GroupLoad(**json.loads(sys.argv[1]))
    print(ACTIONS[group_load.action](group_load).to_json())

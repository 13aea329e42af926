"""Members that send heartbeats at their interval and rejoin when the group rebalances."""

import asyncio
import random
import time
from collections.abc import Sequence

from bench.generator import coordinator_requests as coordination
from bench.generator import wire
from bench.generator.dialogue import Dialogue
from bench.generator.groups import SETTLE_TIMEOUT_S, Member, is_stable

TOPIC = "load"
HEARTBEAT_S = 1.0


class Living:
    """The members of one group, each with a task of its own."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.heartbeats: list[float] = []  # how long each took
        self._tasks: dict[Member, asyncio.Task[None]] = {}

    async def begin(self) -> None:
        """All join at once, within the delay of a first rebalance."""
        await asyncio.gather(*(member.enter() for member in self.members))
        for member in self.members:
            self._live(member, HEARTBEAT_S * random.random())

    def _live(self, member: Member, delay: float) -> None:
        self._tasks[member] = asyncio.ensure_future(self._beat(member, delay))

    async def _beat(self, member: Member, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            delay = HEARTBEAT_S
            started = time.perf_counter()
            error = await member.heartbeat()
            self.heartbeats.append(time.perf_counter() - started)
            if error == coordination.REBALANCE_IN_PROGRESS:
                await member.enter()
            elif error:
                raise wire.BrokerError(f"Heartbeat failed with error {error}")

    async def leave(self) -> Member:
        """One goes; who it was."""
        member = self.members.pop()
        await self._stop(member)
        await member.leave()
        return member

    async def come(self, member: Member) -> None:
        """One more is there, and has its assignment."""
        self.members.append(member)
        await member.enter()
        self._live(member, HEARTBEAT_S)

    async def settle(self) -> None:
        """Until the members are all in one generation."""
        deadline = time.perf_counter() + SETTLE_TIMEOUT_S
        while not is_stable(self.members):
            failed = [task for task in self._tasks.values() if task.done()]
            if failed:
                await failed[0]
            if time.perf_counter() > deadline:
                raise wire.BrokerError(f"{self.members[0].group} has no common generation")
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stop; what went wrong in a member is raised."""
        for member in list(self._tasks):
            await self._stop(member)

    async def _stop(self, member: Member) -> None:
        task = self._tasks.pop(member)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass


def groups(connections: Sequence[Dialogue], size: int) -> list[Living]:
    """Not yet joined, each of so many members."""
    return [
        Living([Member(one, f"group-{first // size}", TOPIC) for one in connections[first : first + size]])
        for first in range(0, len(connections), size)
    ]

"""Many groups, a large group, many commits."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from bench.brokers import Broker
from bench.generator import coordinator_requests as coordination
from bench.generator import dialogue, wire
from bench.generator.groups import GroupLoad, Member, commits, is_stable, rebalance
from bench.machine import latencies_ms
from tests.load.conftest import SECONDS
from tests.load.figures import Report
from tests.load.living import TOPIC, Living, groups

GROUPS, GROUP_SIZE = 500, 4
LARGE_GROUP = 200
COMMITS_PER_S, COMMITTERS = 2_000, 50
CALM_S = min(10.0, SECONDS)


def prepare(broker: Broker, kind: int = coordination.GROUP) -> None:
    wire.create_topic(broker.port, TOPIC, 10)
    coordination.await_coordinator(broker.port, "any", kind)


async def timed(work: Iterable[Coroutine[Any, Any, None]]) -> float:
    """Seconds until all of it is done."""
    started = time.perf_counter()
    await asyncio.gather(*work)
    return time.perf_counter() - started


def test_500_groups_of_4_members(broker: Broker, report: Callable[[str], Report]) -> None:
    """All form, live, lose a member each and take it back; responses say only what happened."""
    prepare(broker)
    results = report(f"{GROUPS} groups of {GROUP_SIZE} members")

    async def lose_and_regain(group: Living) -> None:
        member = await group.leave()
        await group.settle()
        assert len(group.members) == GROUP_SIZE - 1
        await group.come(member)
        await group.settle()
        assert len({one.assigned for one in group.members}) == GROUP_SIZE

    async def live() -> None:
        async with dialogue.many(broker.port, GROUPS * GROUP_SIZE) as connections:
            every = groups(connections, GROUP_SIZE)
            formed = await timed(group.begin() for group in every)
            results.add("formed, the delay of 3 s included", formed, "s")
            assert all(is_stable(group.members) for group in every)
            await asyncio.sleep(CALM_S)
            calm = [taken for group in every for taken in group.heartbeats]
            results.add("heartbeats", len(calm) / CALM_S, "/s")
            results.add("p99 of a heartbeat", latencies_ms(calm)["p99_ms"], "ms")
            regained = await timed(lose_and_regain(group) for group in every)
            results.add("a member leaves and returns in each, all at once", regained, "s")
            results.add_memory(broker)
            await timed(group.end() for group in every)

    dialogue.run(live())


def test_a_group_of_200_members_rebalances(broker: Broker, report: Callable[[str], Report]) -> None:
    """Each time all are in the same generation with an assignment of their own."""
    prepare(broker)
    results = report(f"a group of {LARGE_GROUP} members")

    async def live() -> None:
        async with dialogue.many(broker.port, LARGE_GROUP) as connections:
            members = [Member(connection, "large", TOPIC) for connection in connections]
            formed = await timed(member.enter() for member in members)
            results.add("formed, the delay of 3 s included", formed, "s")
            assert is_stable(members)
            joiner, taken = members[-1], []
            for _ in range(6):
                taken.append(await rebalance(members, joiner))
                assert len({member.assigned for member in members}) == len(members)
            results.add("rebalances, the slowest of 6", max(taken), "s", 10.0)
            results.add_memory(broker)

    dialogue.run(live())


def test_2000_commits_a_second(broker: Broker, report: Callable[[str], Report]) -> None:
    """A later consumer gets what was acknowledged last."""
    prepare(broker)
    load = GroupLoad(
        port=broker.port,
        topic=TOPIC,
        pid=broker.pid,
        connections=COMMITTERS,
        partitions=4,
        rate=COMMITS_PER_S,
        seconds=min(15.0, SECONDS),
    )
    outcome, committers = dialogue.run(commits(load))
    for committer in committers:
        with wire.connect(broker.port) as sock:
            response = wire.call(sock, coordination.offset_fetch(committer.member.group, TOPIC, 4))
        assert coordination.fetched_offsets(response) == [committer.acknowledged] * 4
    results = report(f"{COMMITS_PER_S:,} commits a second")
    results.add("rate", outcome.requests / outcome.seconds, "/s", -0.98 * COMMITS_PER_S)
    results.add_outcome(outcome, p99_goal_ms=100.0)
    results.add_memory(broker)

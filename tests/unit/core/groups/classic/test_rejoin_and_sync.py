"""`rejoin` and `sync_follower` decide as drafts do, whatever the request.

Each request is decided both ways on copies of the same machine. Most say what a member said before, but for one field;
some come twice, from nobody, from the leader, for another generation or in another's name.
"""

from collections import Counter
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from tests.support.classic_groups import World

from levada.core.groups.classic import join as classic_join
from levada.core.groups.classic import requests as classic_requests
from levada.core.groups.classic.group import PREPARING_REBALANCE, Member
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import SyncRequest
from levada.core.groups.events import JoinReceived, SyncReceived
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import VolatileOutcome
from levada.errors import ErrorCode, KafkaError

STEPS = 250
SHORT = (JoinReceived, SyncReceived)
VOLATILE = {"join": (classic_join, "rejoin"), "sync": (classic_requests, "sync_follower")}
RANGE, BOTH, OTHER = (("range", b"t"),), (("range", b"t"), ("sticky", b"u")), (("other", b""),)
OTHERWISE: dict[str, list[Any]] = {  # what a JoinGroup may say that the member did not say before
    "instance_id": [None, "one", "two", "nobody"],
    "session_timeout_ms": [6_000, 12_000, 100],
    "rebalance_timeout_ms": [5_000, 90_000],
    "protocol_type": ["connect"],
    "protocols": [RANGE, BOTH, OTHER],
    "member_id": ["", "nobody"],
}


def rejoining(member: Member, new_member_id: str = "") -> JoinRequest:
    """What a member says that joins as it did before."""
    names = (member.id, member.instance_id, member.client_id, member.client_host)
    timeouts = (member.session_timeout_ms, member.rebalance_timeout_ms)
    return JoinRequest("g", *names, *timeouts, "consumer", member.protocols, new_member_id)


class Asking:
    """One group under requests at random."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = random = Random(seed)
        self.world = World(
            initial_rebalance_delay_ms=random.choice((0, 500)),
            max_size=random.choice((3, 100, 100, 100)),
            members_bytes_max=random.choice((128 << 20, 8 * 4_000)),
        )
        self.patch = patch
        self.went = Counter[str]()

    def run(self) -> None:
        world, random = self.world, self.random
        for step in range(STEPS):
            group = world.machine.classic_group("g")
            others = [*group.members.values()] if group is not None else []
            if group is not None and group.state is PREPARING_REBALANCE and random.random() < 0.7:
                others = [member for member in others if member.id not in group.pending_joins] or others
            member = random.choice(others) if others else None
            action = random.choices((self.join, self.sync, self.live_on), (50, 35, 15))[0]
            action(member, step)

    def join(self, member: Member | None, step: int) -> None:
        """A newcomer, or a member that says something else of one kind at most."""
        if member is None or self.random.random() < 0.1:
            instance_id = self.random.choice((None, None, "one", "two"))
            member = Member("", instance_id, "client", "/host", 10_000, 60_000, RANGE)
        request = rejoining(member, f"new-{step}")._replace(require_member_id=False)
        if self.random.random() < 0.3:
            name = self.random.choice(list(OTHERWISE))
            request = request._replace(**{name: self.random.choice(OTHERWISE[name])})
        self.both_ways("join", request, step)

    def sync(self, member: Member | None, step: int) -> None:
        if member is None:
            return
        group, random = self.world.group, self.random
        assignments = {one: bytes(random.choice((1, 1, 300))) for one in group.members}
        if member.id != group.leader or random.random() < 0.2:
            assignments = {}
        request = SyncRequest("g", member.id, member.instance_id, group.generation, None, None, assignments)
        if random.random() < 0.3:
            outcome: dict[str, Any] = {
                "instance_id": random.choice((None, "one", "nobody")),
                "generation": random.choice((0, group.generation - 1)),
                "protocol_type": random.choice(("consumer", "connect")),
                "protocol": random.choice(("range", "other")),
                "member_id": "nobody",
            }
            name = random.choice(list(outcome))
            request = request._replace(**{name: outcome[name]})
        self.both_ways("sync", request, step)

    def live_on(self, member: Member | None, _: int) -> None:
        if self.random.random() < 0.1:
            size = self.random.choice((2, 100, 100, 100))  # members may be more than may be now
            self.world.limits = self.world.limits._replace(max_size=size)
            self.world.restart()
        elif member is not None and self.random.random() < 0.4:
            self.world.heartbeat(member.id, self.world.group.generation, member.instance_id)
        elif member is not None and self.random.random() < 0.1:
            self.world.leave((member.id, member.instance_id))
        else:
            self.world.wait(self.random.choice((1, 20, 49, 51, 300, 9_000)))

    def both_ways(self, kind: str, request: Any, step: int) -> None:
        """Decide twice, compare, and go on with the first."""
        short, outcome = self.decided(kind, request)
        with self.patch.context() as patched:
            patched.setattr(*VOLATILE[kind], lambda *_: None)
            long, general_outcome = self.decided(kind, request)
        assert outcome == general_outcome, f"step {step}: {request}"
        assert short.groups == long.groups, f"step {step}: {request}"
        assert short.memory_bytes == long.memory_bytes
        assert self.order(short) == self.order(long)
        assert short.deadlines._at == long.deadlines._at
        group = self.world.machine.classic_group("g")
        before = deepcopy(group)
        self.world.submit(lambda machine, now_ms, handle: getattr(machine, kind)(request, now_ms, handle))
        assert group is self.world.machine.classic_group("g") or group == before, "a draft and its group share"

    def order(self, machine: GroupsMachine) -> list[str]:
        """Of members and of those who wait, which equal dicts may not share."""
        group = machine.classic_group("g")
        return [] if group is None else [*group.pending_joins, *group.pending_syncs, *group.members]

    def decided(self, kind: str, request: Any) -> tuple[GroupsMachine, Any]:
        """A copy of the machine as it is afterwards, and all that is told and written."""
        machine = deepcopy(self.world.machine)
        try:
            outcome = getattr(machine, kind)(request, self.world.now_ms, "handle")
        except KafkaError as error:
            assert machine.groups == self.world.machine.groups, "who is refused changes nothing"
            return machine, str(error)
        assert machine.groups == self.world.machine.groups, "deciding changes nothing"
        self.went[f"{kind} {'short' if isinstance(outcome.events[0], SHORT) else 'long'}"] += 1
        records = [machine.encode(event) for event in outcome.events]
        assert not isinstance(outcome, VolatileOutcome) or not any(records), "nobody would ask for these records"
        for event in outcome.events:
            machine.apply(event)
        responses = [(str(handle), str(reply)) for handle, reply in outcome.responses]
        return machine, (responses, [record for record in records if record is not None])


@pytest.mark.parametrize("some", range(10))
def test_both_ways_decide_the_same(some: int, monkeypatch: pytest.MonkeyPatch) -> None:
    went = Counter[str]()
    for seed in range(4 * some, 4 * some + 4):
        asking = Asking(seed, monkeypatch)
        asking.run()
        went += asking.went
    assert all(went[way] for way in ("join short", "join long", "sync short", "sync long")), went


def test_in_a_group_over_its_size_nobody_waits() -> None:
    world = World()
    leader, second, _ = world.stable(3)
    world.join(leader)
    world.machine.limits = world.limits._replace(max_size=1)
    assert world.error(world.join(second)) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_session_timeout_that_is_no_longer_allowed_is_left_to_who_refuses_it() -> None:
    world = World()
    leader, second, _ = world.stable(3)
    world.join(leader)
    member = world.group.members[second]
    request = rejoining(member)
    assert classic_join.rejoin(world.machine, world.group, request, 1) is not None
    world.machine.limits = world.limits._replace(max_session_timeout_ms=member.session_timeout_ms - 1)
    assert classic_join.rejoin(world.machine, world.group, request, 1) is None

"""Classic groups under random events: joins, leaves, expired sessions, late responses, restarts.

What must hold whatever happens: each partition of a generation has one owner at most (invariant 11), commits of a
generation that is over are refused (12), the journal gives the state back (13), and whoever asks is answered once.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from tests.support.classic_groups import World

from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.memory_limit import pending_member_bytes
from levada.errors import ErrorCode

PARTITIONS = 6
SEEDS = 60
STEPS = 250


@dataclass
class Client:
    """A client as it sees itself: its answers may come late, and it may believe in an old generation."""

    instance_id: str | None
    protocols: tuple[tuple[str, bytes], ...] = (("range", b"t"), ("sticky", b"t"))
    member_id: str = ""
    generation: int = -1
    waits_for: int | None = None  # its handle, while it waits
    leads: tuple[str, ...] = ()  # all members, if it was told to assign
    owned: frozenset[int] | None = None  # in `generation`


class Many:
    """One group and its clients."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.world = World(initial_rebalance_delay_ms=random.choice((0, 500)), max_size=random.choice((3, 100)))
        self.clients = [Client(None) for _ in range(3)] + [Client("one"), Client("two")]
        self.owners: dict[tuple[int, int], str] = {}  # (generation, partition) to the member that was given it
        self.offset = 0  # grows with every commit, so that an older one would be seen
        self.committed: int | None = None
        self.past: list[Client] = []  # clients as they were in generations before

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check()

    def step(self) -> None:
        actions: dict[Any, int] = {
            self.speak: 70,
            self.wait: 15,
            self.commit: 15,
            self.leave: 3,
            self.restart_client: 4,
            self.restart_broker: 2,
            self.change_subscription: 2,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()

    def speak(self) -> None:
        """A client does what comes next for it: hear an answer, join, ask for its assignment, heartbeat."""
        client = self.random.choice(self.clients)
        if client.waits_for is not None:
            self.on_response(client)
        elif client.generation < 0:
            client.waits_for = self.world.join(
                client.member_id,
                instance_id=client.instance_id,
                protocols=client.protocols,
                require_member_id=self.random.random() < 0.5,
            )
        elif client.owned is None:
            client.waits_for = self.world.sync(
                client.member_id, client.generation, self.assignments(client), instance_id=client.instance_id
            )
        else:
            self.obey(client, self.world.heartbeat(client.member_id, client.generation, client.instance_id))

    def assignments(self, client: Client) -> dict[str, bytes]:
        """The leader divides the partitions, differently each time."""
        if not client.leads:
            return {}
        shares: dict[str, bytes] = dict.fromkeys(client.leads, b"")
        for partition in range(PARTITIONS):
            shares[self.random.choice(client.leads)] += bytes([partition])
        return shares

    def on_response(self, client: Client) -> None:
        assert client.waits_for is not None
        if client.waits_for not in self.world.responses:
            return
        reply = self.world.responses[client.waits_for]
        client.waits_for = None
        if isinstance(reply, SyncResult):
            self.own(client, frozenset(reply.assignment))
        elif isinstance(reply, JoinResult) and reply.error is ErrorCode.NONE:
            client.member_id, client.generation, client.owned = reply.member_id, reply.generation, None
            self.past.append(replace(client))
            client.leads = tuple(member.id for member in reply.members) if not reply.skip_assignment else ()
        elif isinstance(reply, JoinResult):
            assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
            client.member_id = reply.member_id
        else:
            self.obey(client, reply.code)

    def own(self, client: Client, partitions: frozenset[int]) -> None:
        client.owned = partitions
        for partition in partitions:
            owner = self.owners.setdefault((client.generation, partition), client.member_id)
            if owner != client.member_id:
                successor = client.instance_id is not None and owner not in self.world.group.members
                assert successor, f"{partition} of generation {client.generation}: {owner}, {client.member_id}"

    def obey(self, client: Client, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            return
        assert error in {
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            ErrorCode.GROUP_ID_NOT_FOUND,
        }, error
        client.generation, client.owned, client.leads = -1, None, ()
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""

    def commit(self) -> None:
        """A client commits for the generation it believes in."""
        client = self.random.choice(self.clients)
        if self.past and self.random.random() < 0.3:
            client = self.random.choice(self.past)  # a zombie
        if client.generation < 0:
            return
        self.offset += 1
        before = self.world.machine.classic_group("g")
        error = self.world.commit(self.offset, client.member_id, client.generation, instance_id=client.instance_id)
        if error is ErrorCode.NONE:
            assert before is not None
            assert client.generation == before.generation
            assert client.member_id in before.members
            self.committed = self.offset
        else:
            self.obey(client, error)

    def leave(self) -> None:
        client = self.random.choice(self.clients)
        if client.member_id and client.instance_id is None:
            self.world.leave((client.member_id, None))
        self.forget(client)

    def restart_client(self) -> None:
        """Killed: a dynamic member comes back as somebody else, a static one under its name."""
        self.forget(self.random.choice(self.clients))

    def forget(self, client: Client) -> None:
        client.member_id, client.generation, client.owned, client.leads = "", -1, None, ()
        client.waits_for = None

    def change_subscription(self) -> None:
        client = self.random.choice(self.clients)
        name = self.random.choice((b"t", b"u"))
        client.protocols = (("range", name), ("sticky", name))

    def restart_broker(self) -> None:
        waiting = [client for client in self.clients if client.waits_for not in self.world.responses]
        self.world.restart()
        for client in waiting:
            client.waits_for = None  # its connection is gone; it asks again

    def wait(self) -> None:
        self.world.wait(self.random.choice((1, 300, 3_000, 9_000)))

    # What must hold

    def check(self) -> None:
        world = self.world
        assert world.committed() == self.committed
        group = world.machine.classic_group("g")
        replayed = world.replayed().classic_group("g")
        if group is None or replayed is None:
            assert group is None or group.state is not State.STABLE
            return
        self.check_shape(group)
        assert replayed.generation <= group.generation
        if group.state is State.STABLE:
            assert durable(group) == durable(replayed)
        elif group.state is State.EMPTY and group.generation:
            assert (replayed.generation, replayed.members) == (group.generation, {})

    def check_shape(self, group: ClassicGroup) -> None:
        assert group.static_members == {
            member.instance_id: member.id for member in group.members.values() if member.instance_id is not None
        }
        assert not group.pending_members & group.members.keys()
        held = [member.memory_bytes for member in group.members.values()] + [
            *map(pending_member_bytes, group.pending_members)
        ]
        assert self.world.machine.memory_bytes == group.memory_bytes == sum(held)
        assert (
            group.pending_sync_members
            <= group.members.keys()
            >= group.pending_joins.keys() | group.pending_syncs.keys()
        )
        assert (group.leader in group.members) if group.members else group.leader is None
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            assert group.members
            assert not group.pending_joins
        if group.state is not State.COMPLETING_REBALANCE:
            assert not group.pending_syncs
        if group.state is State.PREPARING_REBALANCE:
            assert not group.have_all_members_joined or group.initial_delay is not None, (
                "nobody is missing, yet it waits"
            )


def durable(group: ClassicGroup) -> Any:
    """What of a stable group is in the journal."""
    return group.id, group.record()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_group_invariants_hold(seed: int) -> None:
    Many(seed).run()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_settles_when_its_members_behave(seed: int) -> None:
    """Liveness: once nobody dies any more, everybody ends up in one stable generation with all partitions owned."""
    many = Many(seed)
    many.run()
    many.world.limits = many.world.limits._replace(max_size=100)
    many.world.machine.limits = many.world.limits
    for _ in range(4_000):
        many.speak()
        if many.random.random() < 0.02:
            many.world.wait(500)
    group = many.world.group
    assert group.state is State.STABLE
    assert {client.member_id for client in many.clients} == set(group.members)
    owned = sorted(partition for client in many.clients for partition in client.owned or ())
    assert owned == list(range(PARTITIONS))

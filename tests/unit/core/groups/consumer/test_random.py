"""Consumer groups under random events: members of both protocols, expired sessions, lost responses; topics
come, grow and go; the broker dies; the group changes its protocol back and forth.

What must hold whatever happens: a partition has one member at most (invariant 11), and what a member reads that the
group would still listen to is its own; epochs never go back; the journal gives the state back (13), also compacted;
and when the trouble ends, every member has its part, equal within one.
"""

import re
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.support.consumer_groups import ConsumerWorld, subscription

from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.classic.subscription import read_assignment, read_subscription, write_assignment
from levada.core.groups.consumer.draft import ConsumerLimits
from levada.core.groups.consumer.group import ConsumerGroup, GroupState
from levada.core.groups.consumer.requests import HeartbeatResult
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.memory_limit import regex_bytes
from levada.errors import ErrorCode, KafkaError

SEEDS = 100
SEEDS_QUICK = 30
STEPS = 300
Part = tuple[UUID, int]
START_OVER = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


@dataclass
class Consumer:
    """A client of the consumer protocol as it sees itself."""

    name: str
    instance_id: str | None = None
    topics: tuple[str, ...] = ("t", "u")
    regex: str = ""
    assignor: str | None = None
    member_id: str = ""
    epoch: int = 0
    reads: set[Part] = field(default_factory=set)
    shall: set[Part] = field(default_factory=set)  # what it was last told
    full: bool = True  # it says everything, since it cannot know what was heard
    lives: int = 0


@dataclass
class Classic:
    """A client of the classic protocol: eager ones give everything back before they join."""

    name: str
    eager: bool
    member_id: str = ""
    generation: int = -1
    reads: set[Part] = field(default_factory=set)
    waits_for: int | None = None
    leads: JoinResult | None = None
    synced: bool = False


class Many:
    """One group, its clients, its topics."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = ConsumerWorld(ConsumerLimits(downgrade=seed % 5 != 0))
        self.world.topic("t", 4)
        self.clients: list[Consumer | Classic] = [
            Consumer("a"),
            Consumer("b", assignor="range"),
            Consumer("c", topics=("t",)),
            Consumer("d", topics=(), regex="[tx].*"),
            Consumer("e", instance_id="one"),
        ]
        if seed % 3:
            self.clients += [Classic("k", eager=False), Classic("l", eager=True), Classic("m", eager=False)]
        self.former_epochs: dict[str, int] = {}
        self.group_epoch = 0
        self.calm = False

    # Steps.

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check()
        self.come_to_rest()

    def step(self) -> None:
        actions: dict[Any, int] = {
            self.speak: 80,
            self.wait: 10,
            self.leave: 3,
            self.die: 2,
            self.change_topics: 3,
            self.resubscribe: 2,
            self.restart_broker: 1,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()

    def speak(self) -> None:
        client = self.random.choice(self.clients)
        if isinstance(client, Consumer):
            self.beat(client)
        else:
            self.go_on(client)

    def wait(self) -> None:
        self.world.wait(self.random.choice((1, 1_000, 5_000, 20_000, 50_000)))

    def leave(self) -> None:
        client = self.random.choice(self.clients)
        if not client.member_id:
            return
        if isinstance(client, Classic):
            self.world.leave((client.member_id, None))
            self.forget(client)
        else:
            epoch = -2 if client.instance_id and self.random.random() < 0.7 else -1
            self.world.beat(client.member_id, epoch, instance_id=client.instance_id)
            self.forget(client)

    def die(self) -> None:
        """A process ends without a word; the next one knows nothing."""
        self.forget(self.random.choice(self.clients))

    def forget(self, client: Consumer | Classic) -> None:
        client.reads = set()
        client.member_id = ""
        if isinstance(client, Consumer):
            client.epoch, client.shall, client.full = 0, set(), True
        else:
            client.generation, client.waits_for, client.leads, client.synced = -1, None, None, False

    def change_topics(self) -> None:
        world, name = self.world, self.random.choice(("t", "u", "x1", "x2"))
        known = world.image.topics.get(name)
        if known is None:
            world.topic(name, self.random.randint(1, 6))
        elif self.random.random() < 0.5 and len(known.partitions) < 9:
            world.topic(name, len(known.partitions) + self.random.randint(1, 3))
        else:
            world.drop_topic(name)

    def resubscribe(self) -> None:
        client = self.random.choice(self.clients)
        if isinstance(client, Consumer):
            client.topics = tuple(self.random.sample(("t", "u", "x1"), self.random.randint(0, 3)))
            client.regex = self.random.choice(("", "", "x.*", "[tu]"))
            client.full = True

    def restart_broker(self) -> None:
        self.world.restart()
        for client in self.clients:
            if isinstance(client, Classic):
                client.waits_for = None
                client.leads = None

    # A client of the consumer protocol.

    def beat(self, client: Consumer) -> None:
        """Give back what is to be given back, at some time; say so; hear what to read."""
        if not client.member_id:
            client.lives += 1
            client.member_id = f"{client.name}{client.lives}"
        if self.calm or self.random.random() < 0.6:
            client.reads &= client.shall
        if client.reads <= client.shall and (self.calm or self.random.random() < 0.8):
            client.reads = set(client.shall)
        fields: dict[str, Any] = {"instance_id": client.instance_id}
        joins = client.epoch == 0
        if joins or client.full:
            fields |= {
                "rebalance_timeout_ms": 30_000,
                "topic_names": client.topics,
                "topic_regex": client.regex,
                "server_assignor": client.assignor,
            }
        if joins or client.full or self.calm or self.random.random() < 0.7:
            fields["owned"] = by_topic(client.reads)
        reply = self.world.responses[self.world.beat(client.member_id, client.epoch, **fields)]
        if not self.calm and self.random.random() < 0.1:
            client.full = True  # the answer is lost
            return
        if isinstance(reply, KafkaError):
            self.refused(client, reply)
            return
        assert isinstance(reply, HeartbeatResult)
        client.epoch, client.full = reply.member_epoch, False
        if reply.assignment is not None:
            client.shall = {(topic, one) for topic, found in reply.assignment.items() for one in found}

    def refused(self, client: Consumer, error: KafkaError) -> None:
        if error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            assert client.epoch == 0
            return
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            group = self.world.machine.groups.get("g")
            assert group is None or isinstance(group, ClassicGroup)
        else:
            assert error.code in START_OVER, error
        client.epoch, client.reads, client.shall, client.full = 0, set(), set(), True

    # A client of the classic protocol.

    def go_on(self, client: Classic) -> None:
        """Hear an answer, join, ask for the assignment, or heartbeat."""
        world = self.world
        if client.waits_for is not None:
            reply = world.responses.get(client.waits_for)
            if reply is not None:
                client.waits_for = None
                self.on_response(client, reply)
        elif client.generation < 0:
            if client.eager:
                client.reads = set()
            data = subscription("t", "u", owned=self.by_name(client.reads))
            client.synced = False
            client.waits_for = world.join(client.member_id, protocols=(("range", data),))
        elif not client.synced:
            assignments = self.assign(client.leads) if client.leads is not None else {}
            client.waits_for = world.sync(client.member_id, client.generation, assignments)
        elif (error := world.heartbeat(client.member_id, client.generation)) is not ErrorCode.NONE:
            self.start_over(client, error)

    def on_response(self, client: Classic, reply: Any) -> None:
        if isinstance(reply, KafkaError):
            self.start_over(client, reply.code)
        elif isinstance(reply, JoinResult):
            client.member_id, client.generation = reply.member_id, reply.generation
            client.leads = reply if reply.leader == reply.member_id else None
        else:
            assert isinstance(reply, SyncResult)
            assignment = read_assignment(reply.assignment)
            assert assignment is not None
            topics = self.world.image.topics
            assigned = {
                (topics[name].id, one)
                for name, found in assignment.partitions.items()
                if name in topics
                for one in found
            }
            revoked = client.reads - assigned
            client.synced = True
            client.reads = assigned
            if revoked and not client.eager:
                client.generation = -1  # a cooperative client joins again when it has given something back

    def start_over(self, client: Classic, code: ErrorCode) -> None:
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            client.generation, client.leads = -1, None
            return
        assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION), code
        self.forget(client)

    def assign(self, assigned: JoinResult) -> dict[str, bytes]:
        """What a leader hands out: nobody gets what another still has (the cooperative rule)."""
        topics = self.world.image.topics
        owned: dict[tuple[str, int], str] = {}
        for member in assigned.members:
            printed = read_subscription(member.metadata)
            assert printed is not None
            owned |= {(name, one): member.id for name, found in printed.owned.items() for one in found}
        given: dict[str, dict[str, set[int]]] = {member.id: {} for member in assigned.members}
        ids = sorted(given)
        for name in ("t", "u"):
            for one in range(len(topics[name].partitions)) if name in topics else ():
                taker = ids[one % len(ids)]
                if owned.get((name, one), taker) == taker:
                    given[taker].setdefault(name, set()).add(one)
        return {
            member_id: write_assignment(3, {name: frozenset(found) for name, found in partitions.items()})
            for member_id, partitions in given.items()
        }

    def by_name(self, reads: set[Part]) -> dict[str, frozenset[int]]:
        names = self.world.image.topic_names
        return {names[topic]: found for topic, found in by_topic(reads).items() if topic in names}

    # What must hold.

    def check(self) -> None:
        group = self.world.machine.groups.get("g")
        assert self.world.machine.memory_bytes == (0 if group is None else group.memory_bytes)
        look = not self.calm and self.random.random() < 0.03
        if not isinstance(group, ConsumerGroup):
            self.group_epoch, self.former_epochs = 0, {}
            if look:
                assert not isinstance(self.compacted().groups.get("g"), ConsumerGroup)
            return
        self.check_owners(group)
        self.check_readers(group)
        self.check_epochs(group)
        held = [member.memory_bytes for member in group.members.values()]
        assert group.memory_bytes == sum(held) + sum(map(regex_bytes, group.regexes.values()))
        if look:
            assert self.world.replayed().groups == self.world.machine.groups == self.compacted().groups

    def check_owners(self, group: ConsumerGroup) -> None:
        owners: dict[Part, str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.pending_revocation):
                for topic, found in owned.items():
                    assert found
                    for one, epoch in found.items():
                        assert (topic, one) not in owners, "two members have one partition"
                        assert epoch <= group.epoch
                        owners[topic, one] = member.id
        assert owners == {(topic, one): who for topic, all_of in group.owners.items() for one, who in all_of.items()}
        targets = [(topic, one) for target in group.targets.values() for topic, f in target.items() for one in f]
        assert len(targets) == len(set(targets)), "one partition is in two targets"
        assert group.targets.keys() <= group.members.keys()

    def check_readers(self, group: ConsumerGroup) -> None:
        """What a client reads whose next word the group would accept is the group's word too."""
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is None:
                continue
            if isinstance(client, Consumer) and client.epoch != member.epoch:
                continue  # its next word is refused, or tells what it reads
            for topic, one in client.reads:
                if topic not in self.world.image.topic_names:
                    continue  # nobody can read it
                assert member.assignment_epoch(topic, one) is not None, (client, member)

    def check_epochs(self, group: ConsumerGroup) -> None:
        assert group.epoch >= self.group_epoch and group.target_epoch <= group.epoch
        self.group_epoch = group.epoch
        for member in group.members.values():
            if member.epoch > 0:
                assert member.epoch >= self.former_epochs.get(member.id, 0), "an epoch went back"
                assert member.epoch <= group.target_epoch
                self.former_epochs[member.id] = member.epoch

    def compacted(self) -> GroupsMachine:
        """What comes back when only the newest record of each key is left."""
        whole = self.world.journal
        newest = {key: place for place, ((key, _), _) in enumerate(whole)}
        self.world.journal = [entry for place, entry in enumerate(whole) if newest[entry[0][0]] == place]
        machine = self.world.replayed()
        self.world.journal = whole
        return machine

    def come_to_rest(self) -> None:
        """No more trouble: everybody speaks in turn until all is as it should be."""
        self.calm = True
        self.settle()
        for name in ("t", "x1"):
            self.world.drop_topic(name)
            self.world.topic(name, 5)
        self.settle()

    def settle(self) -> None:
        for _ in range(25):
            for client in self.clients:
                for _ in range(3):
                    if isinstance(client, Consumer):
                        self.beat(client)
                    else:
                        self.go_on(client)
                    self.check()
            self.world.wait(3_000)
        group = self.world.machine.groups["g"]
        assert isinstance(group, ConsumerGroup), "members of the consumer protocol are here"
        assert group.state is GroupState.STABLE
        assert self.world.replayed().groups == self.world.machine.groups
        assert len(group.members) == len(self.clients)
        self.check_division(group)

    def check_division(self, group: ConsumerGroup) -> None:
        topics = self.world.image.topics
        reads: dict[str, set[Part]] = {}
        for client in self.clients:
            member = group.members[client.member_id]
            reads[member.id] = {(topic, one) for topic, found in member.assigned.items() for one in found}
            assert client.reads == reads[member.id]
            names = group.topics_of(member)
            assert all(self.world.image.topic_names[topic] in names for topic, _ in reads[member.id])
        wanted = {
            (topics[name].id, one)
            for name in topics
            if any(subscribes(client, name) for client in self.clients)
            for one in range(len(topics[name].partitions))
        }
        assert set().union(*reads.values()) == wanted


def subscribes(client: Consumer | Classic, name: str) -> bool:
    if isinstance(client, Classic):
        return name in ("t", "u")
    return name in client.topics or re.fullmatch(client.regex, name) is not None


def by_topic(reads: set[Part]) -> dict[UUID, frozenset[int]]:
    found: dict[UUID, set[int]] = {}
    for topic, one in reads:
        found.setdefault(topic, set()).add(one)
    return {topic: frozenset(ones) for topic, ones in found.items()}


@pytest.mark.parametrize(
    "seed",
    [
        *range(SEEDS_QUICK),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(SEEDS_QUICK, SEEDS)),
    ],
)
def test_groups_under_everything(seed: int) -> None:
    Many(seed).run()


def test_both_protocols_are_met_in_both_kinds_of_group() -> None:
    """The crowd above is no use if it never gets there."""
    met: set[Any] = set()
    for seed in range(1, 30):
        many = Many(seed)
        for _ in range(STEPS):
            many.step()
            group = many.world.machine.groups.get("g")
            if isinstance(group, ConsumerGroup):
                met |= {("consumer", member.is_classic, member.state) for member in group.members.values()}
            elif isinstance(group, ClassicGroup):
                met.add(("classic", group.state))
    assert {("classic", state) for state in State if state is not State.DEAD} <= met
    assert len(met) >= 8, met

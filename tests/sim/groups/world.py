"""The simulated world of groups and their offsets: members of both protocols, and the broker's own coordinators.

Time passes from event to event. The network loses, delays, reorders and repeats requests and loses answers; members
leave, die, stand still and come back; the disk tears writes and fails, the process is killed, restarted or stands
still, the power fails. A model of all commits and what members read and were told are looked at after every event.
When the trouble ends, every group must come to rest with all of its partitions read.
"""

from contextlib import closing
from itertools import count
from typing import Any
from uuid import UUID

from tests.sim.broker_world import HELD_HERE, image_of
from tests.sim.event_world import EventWorld, Give
from tests.sim.groups.checks import GroupChecks
from tests.sim.groups.consumer_members import ConsumerMember
from tests.sim.groups.members import ClassicMember, Flavour, Member
from tests.sim.groups.offset_clients import Keeper, OffsetClient, Operator, Reader, Transactor, Txn
from tests.sim.groups.offset_model import OffsetModel, Operation, Taken
from tests.sim.seeds import Invariant, Violation, replayable
from tests.support.clusters import topic_records

from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.transactions import TRANSACTIONS_TOPIC
from levada.core.cluster.changes import TopicRemoved
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest
from levada.errors import KafkaError
from levada.model import TopicPartitionKey
from levada.testing.sim_disk import Faults, SimDisk

TOPICS = {"orders": 3, "bills": 2, TRANSACTIONS_TOPIC: 1, OFFSETS_TOPIC: 1}
LOGS = [(TRANSACTIONS_TOPIC, 0), (OFFSETS_TOPIC, 0)]
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "7000",
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.session.timeout.ms": "12000",
    "group.consumer.heartbeat.interval.ms": "3000",
}
RETENTION_MS = 60_000
TROUBLE_MS = 80_000
REST_MS = 150_000  # by then every group must have come to rest
KINDS = ("eager", "cooperative", "consumer", "consumer", "migrating", "migrating")


class GroupWorld(EventWorld):
    """One broker, one group with members, one without."""

    group = "g"
    segment_bytes = (4_000, 12_000, 1 << 20)  # that hold what a group journals at once

    def __init__(self, seed: int, disk_type: type[SimDisk] = SimDisk) -> None:
        super().__init__(seed, disk_type, SETTINGS, image_of(TOPICS))
        self.kind = self.random.choice(KINDS)
        self.cooperative = self.kind == "cooperative" or self.random.random() < 0.5
        # An old client that comes back as the leader is not told so, and sees no topic come or go.
        self.knows_leader = self.random.random() < 0.7
        self.ids = count(1)
        self.offset_numbers = count(1)
        self.txns: dict[int, Txn] = {}
        self.commit_times: dict[int, int] = {}  # of each offset, which are all different
        self.checks = GroupChecks(self)
        self.model = OffsetModel(self.outcomes, self.checks.may_go)
        self.known: GroupsMachine | None = None  # the coordinator that the model was last compared with
        self.begin(LOGS)
        self.members: list[Member] = [self.new_member(number) for number in range(self.random.choice((2, 3, 4)))]
        self.others: list[OffsetClient] = [
            Keeper(self, "keeper"),
            Reader(self, "reader"),
            Operator(self, "operator"),
            Transactor(self, "transactor"),
        ]
        for other in self.others:
            other.soon(20_000)
        self.later(1_000, self.trouble)

    def outcomes(self, producer_id: int) -> tuple[bool, ...]:
        return self.txns[producer_id].outcomes

    def run(self) -> None:
        end_ms = self.clock.ms + TROUBLE_MS
        while self.clock.ms < end_ms:
            self.step()
        self.come_to_rest()

    # What the broker is asked.

    def submit(self, group: str, decide: Any, give: Give) -> None:
        self.broker.groups.shard(group).submit(decide).add_done_callback(give)

    def change(self, operations: list[Operation], group: str, decide: Any, give: Give) -> None:
        """Request a change of offsets; its response acknowledges all changes before it, too."""
        shard = self.broker.groups.shard(group)
        _ = shard.ready  # refused while it is loaded
        for operation in operations:
            self.model.take(operation)
        until = self.model.count

        def answered(result: Any) -> None:
            if not isinstance(result, KafkaError):
                self.model.acknowledge(until)
            give(result)

        try:
            shard.submit(decide).add_done_callback(answered)
        except KafkaError:
            for _ in operations:
                self.model.take_back()
            raise

    def submit_commit(self, request: CommitRequest, give: Give, member: str = "") -> None:
        offsets = tuple((topic_partition, value.offset) for topic_partition, value in request.offsets)
        self.commit_times.update({value.offset: value.commit_timestamp for _, value in request.offsets})
        taken = Taken(request.group_id, offsets, request.producer_id)
        self.change(
            [taken],
            request.group_id,
            lambda machine, now_ms, handle: machine.commit(request, now_ms, handle),
            give,
        )
        self.checks.commit_was_taken(request, member)

    def note_assignment(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int | None,
        topic_partitions: set[TopicPartitionKey],
    ) -> None:
        self.checks.assigned(group, member_id, instance_id, generation, topic_partitions)

    # Topics.

    def topic_partitions(self) -> set[TopicPartitionKey]:
        return {(name, one) for name in self.image.topics for one in self.parts(name) if name[0] != "_"}

    def parts(self, topic: str) -> range:
        return range(len(self.image.topics[topic].partitions))

    def by_id(self, topic_partitions: set[TopicPartitionKey]) -> dict[UUID, frozenset[int]]:
        found: dict[UUID, set[int]] = {}
        for topic, index in sorted(topic_partitions):  # sets of names differ from process to process
            if topic in self.image.topics:
                found.setdefault(self.image.topics[topic].id, set()).add(index)
        return {topic: frozenset(indexes) for topic, indexes in found.items()}

    def with_ids(self, topic_partitions: set[TopicPartitionKey]) -> set[tuple[UUID, int]]:
        return {(topic, one) for topic, found in self.by_id(topic_partitions).items() for one in found}

    def with_names(self, partitions: Any) -> set[TopicPartitionKey]:
        names = self.image.topic_names
        return {(names[topic], one) for topic, found in partitions.items() if topic in names for one in found}

    def change_topics(self) -> None:
        """A topic comes, grows or goes."""
        if self.kind == "migrating" or not self.knows_leader:
            return
        topics = self.image.topics
        if "extra" not in topics:
            changes = topic_records("extra", UUID(int=next(self.ids) + 1_000), (HELD_HERE,) * 2)
        elif self.random.random() < 0.5 and len(topics["bills"].partitions) < 4:
            bills = topics["bills"]
            changes = topic_records("bills", bills.id, (*bills.partitions, HELD_HERE))
        else:
            changes = [TopicRemoved("extra")]
        self.image = self.image.apply(changes)
        self.broker.follow(self.image)

    # Members.

    def new_member(self, number: int) -> Member:
        """A process of the application begins."""
        random = self.random
        instance_id = f"i{number}" if (number + len(self.kind)) % 3 == 0 else None
        topics = ("orders", "bills", "extra")
        kind = random.choice(("consumer", "classic")) if self.kind == "migrating" else self.kind
        arguments = (self, f"m{number}", self.group, instance_id)
        member: Member
        if kind == "consumer":
            regex = random.choice(("", "", "orders|b.*|ext.*")) if self.kind == "consumer" else ""
            assignor = random.choice((None, "range", "uniform"))
            member = ConsumerMember(*arguments, () if regex else topics, regex=regex, assignor=assignor)
        else:
            flavour = Flavour(self.cooperative, random.random() < 0.7, self.knows_leader)
            member = ClassicMember(*arguments, topics, flavour=flavour)
        member.soon(3_000)
        return member

    def replace(self, member: Member) -> None:
        """A process ends, and another begins in its place."""
        member.die()
        number = self.members.index(member)

        def begin() -> None:
            self.members[number] = self.new_member(number)

        self.later(self.random.choice((10, 2_000, 15_000)), begin)

    def trouble(self) -> None:
        """What goes wrong from time to time."""
        if self.calm:
            return
        self.later(self.random.randint(500, 9_000), self.trouble)
        actions = {
            self.pause_member: 4,
            self.kill_member: 4,
            self.leave: 3,
            self.arm_crash: 4,
            self.kill: 1,
            self.restart: 1,
            self.cut_off: 1,
            self.stand_still: 1,
            self.change_faults: 1,
            self.change_topics: 2,
            self.checkpoint: 2,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        self.note(action.__name__)
        action()

    def living(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def pause_member(self) -> None:
        for member in self.random.sample(self.living(), min(1, len(self.living()))):
            member.paused_until_ms = self.clock.ms + self.random.choice((2_000, 14_000, 40_000))

    def kill_member(self) -> None:
        for member in self.random.sample(self.living(), min(1, len(self.living()))):
            self.replace(member)

    def leave(self) -> None:
        for member in self.random.sample(self.living(), min(1, len(self.living()))):
            member.leave()
            self.replace(member)

    def cut_off(self) -> None:
        """The broker is unreachable for a while."""
        self.reachable_at_ms = self.clock.ms + self.random.choice((1_000, 8_000, 20_000))

    def stand_still(self) -> None:
        """The broker's process is stopped; its timers ring late."""
        self.clock.ms += self.random.choice((1_000, 5_000, 20_000))

    def forget_calls(self) -> None:
        super().forget_calls()
        self.known = None

    # What must hold.

    def settle(self) -> None:
        """Everything that was appended is written."""
        self.end_iteration()
        for partition in self.waiting_for_sync():
            self.to_sync.discard(partition)
            partition.log.flush()
            partition.synced()
        self.end_iteration()

    def look(self) -> None:
        """After every event."""
        shard = self.broker.groups.shard_of_partition(0)
        machine = None if shard is None else shard.machine
        if machine is None:
            self.known = None
            return
        if machine is self.known:
            self.model.observe(machine)
        else:
            self.known = machine
            self.model.resume(machine)
        self.checks.look(machine)

    def come_to_rest(self) -> None:
        """The trouble ends: every group becomes stable, and stays what its journal says."""
        self.calm = True
        self.disk.crash_at, self.disk.faults = None, Faults()
        self.crash(power_cut=self.fsyncs and self.random.random() < 0.5)
        self.reachable_at_ms = 0
        end_ms = self.clock.ms + REST_MS
        while not (self.known is not None and self.checks.at_rest(self.known)):
            self.step()
            if self.clock.ms > end_ms:
                raise Violation(Invariant.PROGRESS, f"no rest: {self.checks.unrest(self.known)}")
        self.checks.journal()
        self.all_go()

    def all_go(self) -> None:
        """Everybody leaves: what is kept no longer goes."""
        for other in self.others:
            other.idle = True
        for member in self.living():
            member.leave()
        end_ms = self.clock.ms + 2 * RETENTION_MS + 60_000
        while self.clock.ms < end_ms:
            self.step()
        if self.known is None or self.known.groups or self.model.now.plain or self.model.now.pending:
            raise Violation(Invariant.EXPIRY, f"kept too long: {self.known and self.known.groups}, {self.model.now}")
        self.checks.journal()


def simulate(seed: int, disk_type: type[SimDisk] = SimDisk) -> GroupWorld:
    """Run one seed; a failure says how to replay it."""
    world = GroupWorld(seed, disk_type)
    with closing(world), replayable(world, seed, "groups/test_groups.py"):
        world.run()
    return world

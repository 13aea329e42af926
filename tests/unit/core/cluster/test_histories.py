"""Any history of commands, of brokers that stop and return, and of duties that are interrupted after any change."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from levada.core.cluster import metadata_records as records
from levada.core.cluster.changes import (
    BrokerConfigsChanged,
    BrokerImage,
    BrokerLeaseChanged,
    BrokerUnchanged,
    Change,
    ControllerUnchanged,
    PartitionChanged,
    TopicUnchanged,
)
from levada.core.cluster.controller import Command, CreatePartitions, CreateTopic, DeleteTopic, decide
from levada.core.cluster.duties import DutySettings, duties
from levada.core.cluster.election import BrokerStates, ElectLeader, certain_members
from levada.core.cluster.image import DRAIN, ClusterImage, PartitionImage
from levada.core.cluster.isr import AlterPartition, ReplicasOffline
from levada.core.cluster.reassignment import ReassignPartition, target_of
from levada.core.cluster.registration import (
    BrokerRecovered,
    RegisterBroker,
    ShutDownBroker,
    UnregisterBroker,
    next_epoch,
)
from levada.core.cluster.topics import Creator
from levada.errors import ErrorCode, KafkaError
from levada.model import NO_LEADER, TopicPartition

BROKERS = (1, 2, 3, 4)
RACKS = {1: "a", 2: "b", 3: "a", 4: "b"}
ROUNDS_MAX = 20
CHECKS = (BrokerUnchanged, TopicUnchanged, ControllerUnchanged)

brokers = st.sampled_from(BROKERS)
subsets = st.lists(brokers, min_size=1, max_size=4, unique=True)
numbers = st.integers(0, 1_000)
parts = st.none() | st.integers(0, 9)  # changes that are committed before a broker is killed
Key = tuple[UUID, int]  # a partition


@dataclass
class Data:
    """The replicas of a partition that have all committed messages."""

    holders: set[int] = field(default_factory=set)
    appended: int = 0


class Histories(RuleBasedStateMachine):
    """A cluster whose brokers are processes: here are their epochs, and what their logs have."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()
        self.table: dict[str, bytes] = {}
        self.leaders: dict[tuple[UUID, int, int], tuple[int, int]] = {}
        self.data: dict[Key, Data] = {}
        self.topic_ids = count(1)
        self.former: list[tuple[AlterPartition, int]] = []  # requests that may arrive late, and what was appended
        self.examined = ClusterImage()
        self.duty_settings = DutySettings(reassignments_max=2)
        self.unclean_command = False
        self.keeps_leaders = False  # of the changes that are committed now
        for broker in BROKERS:
            self.start(broker, 0, unclean=False, recovering=False)
        self.create_topic("kept", 2, 3, unclean=False)

    # Commits.

    def commit(self, changes: list[Change]) -> None:
        before = self.image
        self.image = before.apply(changes)
        for change in changes:
            if isinstance(change, CHECKS):
                continue
            if isinstance(change, BrokerLeaseChanged):
                continue
            key, value = records.encode(change)
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value
            if isinstance(change, PartitionChanged) and change.topic_id in before.topic_names:
                self.check_change(before, change)
        for topic in self.image.topics.values():
            for index, state in enumerate(topic.partitions):
                self.data.setdefault((topic.id, index), Data(set(state.isr)))

    def check_change(self, before: ClusterImage, change: PartitionChanged) -> None:
        partitions = before.topics[before.topic_names[change.topic_id]].partitions
        if change.index >= len(partitions):
            return
        old, new = partitions[change.index], change.partition
        assert new.partition_epoch > old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        elected = (new.leader, new.leader_broker_epoch) != (old.leader, old.leader_broker_epoch)
        assert not elected or new.leader_epoch > old.leader_epoch
        if old.adding_replicas and new.replicas == target_of(old) and not new.is_reassigning:
            assert set(old.adding_replicas) <= set(new.isr), "completed too early"
        if elected and new.leader != NO_LEADER:
            self.check_election(before, change, old)

    def check_election(self, before: ClusterImage, change: PartitionChanged, old: PartitionImage) -> None:
        data, leader = self.data[change.topic_id, change.index], change.partition.leader
        steady = BrokerStates.of(before).steady.get(old.leader) == old.leader_broker_epoch
        if self.keeps_leaders and steady and old.leader in change.partition.replicas:
            assert before.is_draining(old.leader), "the former leader was in sync"
        configs = before.topics[change.topic].configs
        if leader not in old.isr:
            assert self.unclean_command or configs.get("unclean.leader.election.enable") == "true"
            data.holders = {leader}
        elif leader not in data.holders:
            assert not data.holders & set(old.isr) or self.unclean_command or configs, "committed messages are lost"
            data.holders = {leader}

    def submit(self, command: Command, changes_max: int | None = None) -> ErrorCode | None:
        """Execute a command, or only the beginning of it: then its broker is killed."""
        try:
            changes = decide(self.image, command, Creator(1, self.image.last_epoch(1)))
        except KafkaError as error:
            return error.code
        if changes_max is None or changes_max >= len(changes):
            self.commit(changes)
        else:
            self.commit([*changes[:changes_max], BrokerLeaseChanged(1, None)])
        return None

    # Brokers.

    def start(self, broker: int, random_bits: int, *, unclean: bool, recovering: bool) -> None:
        epoch = next_epoch(self.image, broker, random_bits)
        lost = unclean or broker not in self.image.registered  # another data directory, for all that is known
        self.commit([BrokerLeaseChanged(broker, epoch)])
        image = BrokerImage(broker, (), RACKS[broker], epoch, recovering=recovering)
        assert self.submit(RegisterBroker(image, unclean)) is None
        assert self.image.brokers[broker].epoch == epoch
        if lost:
            for data in self.data.values():
                data.holders.discard(broker)

    @rule(broker=brokers, random_bits=numbers, unclean=st.booleans(), recovering=st.booleans(), noticed=st.booleans())
    def restart(self, broker: int, random_bits: int, unclean: bool, recovering: bool, noticed: bool) -> None:
        self.start(broker, random_bits, unclean=unclean, recovering=recovering)
        if noticed:
            self.all_duties(balance=False, auto=False)

    @rule(stopped=subsets, noticed=st.booleans())
    def stop(self, stopped: list[int], noticed: bool) -> None:
        self.commit([BrokerLeaseChanged(broker, None) for broker in stopped])
        if noticed:
            self.all_duties(balance=False, auto=False)

    @rule(unclean=st.lists(st.booleans(), min_size=4, max_size=4), recovering=st.booleans())
    def restart_all(self, unclean: list[bool], recovering: bool) -> None:
        self.commit([BrokerLeaseChanged(broker, None) for broker in BROKERS])
        for broker, is_unclean in zip(BROKERS, unclean, strict=True):
            self.start(broker, 0, unclean=is_unclean, recovering=recovering)

    @rule(broker=brokers)
    def recovered(self, broker: int) -> None:
        self.submit(BrokerRecovered(broker, self.image.last_epoch(broker)))

    @rule(broker=brokers)
    def shut_down(self, broker: int) -> None:
        self.submit(ShutDownBroker(broker, self.image.last_epoch(broker)))

    @rule(broker=brokers)
    def unregister(self, broker: int) -> None:
        if self.submit(UnregisterBroker(broker)) is None:
            for data in self.data.values():
                data.holders.discard(broker)

    @rule(broker=brokers, drain=st.booleans())
    def drain(self, broker: int, drain: bool) -> None:
        self.commit([BrokerConfigsChanged(str(broker), {DRAIN: "true"} if drain else {})])

    @rule(broker=brokers)
    def replicas_fail(self, broker: int) -> None:
        failed = {topic.id: list(range(0, len(topic.partitions), 2)) for topic in self.image.topics.values()}
        self.submit(ReplicasOffline(broker, self.image.last_epoch(broker), failed))

    # Topics.

    @rule(
        name=st.sampled_from("ab"),
        partitions=st.integers(1, 3),
        factor=st.integers(1, 3),
        unclean=st.booleans(),
        some=parts,
    )
    def create_topic(self, name: str, partitions: int, factor: int, unclean: bool, some: int | None = None) -> None:
        configs = {"unclean.leader.election.enable": "true"} if unclean else {}
        self.submit(CreateTopic(name, UUID(int=next(self.topic_ids)), partitions, factor, configs=configs), some)

    @rule(name=st.sampled_from("ab"), added=st.integers(1, 2), some=parts)
    def create_partitions(self, name: str, added: int, some: int | None) -> None:
        topic = self.image.topics.get(name)
        if topic is not None and len(topic.partitions) < 5:
            self.submit(CreatePartitions(name, len(topic.partitions) + added), some)

    @rule(name=st.sampled_from("ab"))
    def delete_topic(self, name: str) -> None:
        self.submit(DeleteTopic(name))

    # Partitions.

    def partition(self, number: int) -> tuple[TopicPartition, UUID, PartitionImage] | None:
        found = [
            (TopicPartition(topic.name, index), topic.id, state)
            for topic in self.image.topics.values()
            for index, state in enumerate(topic.partitions)
        ]
        return found[number % len(found)] if found else None

    @rule(number=numbers)
    def append(self, number: int) -> None:
        """A message is committed once all members of the ISR have it: they must be alive."""
        found = self.partition(number)
        if found is None:
            return
        name, topic_id, state = found
        alive = {broker.id: broker.epoch for broker in self.image.brokers.values()}
        if state.leader != NO_LEADER and all(alive.get(member) == state.isr_epoch(member) for member in state.isr):
            data = self.data[topic_id, name.partition]
            data.holders &= set(state.isr)
            data.appended += 1

    @rule(number=numbers, members=subsets)
    def alter_isr_twice(self, number: int, members: list[int]) -> None:
        """Members leave after they have joined, and the first request arrives once more."""
        self.alter_isr(number, members, keeps=True)
        self.alter_isr(number, [], keeps=False)
        self.append(number)
        if self.former:
            self.alter(*self.former[-2:][0])

    @rule(number=numbers, members=subsets, keeps=st.booleans())
    def alter_isr(self, number: int, members: list[int], keeps: bool) -> None:
        """The leader removes members, or adds replicas that have caught up."""
        found = self.partition(number)
        if found is None or found[2].leader == NO_LEADER:
            return
        name, topic_id, state = found
        wanted = {state.leader, *members} & set(state.replicas) | ({*state.isr} if keeps else set())
        isr = {member: self.image.last_epoch(member) for member in wanted}
        isr[state.leader] = state.leader_broker_epoch
        request = AlterPartition(
            state.leader,
            state.leader_broker_epoch,
            topic_id,
            name.partition,
            state.leader_epoch,
            state.partition_epoch,
            isr,
        )
        self.former.append((request, self.data[topic_id, name.partition].appended))
        self.alter(*self.former[-1])

    @precondition(lambda self: self.former)
    @rule(number=numbers)
    def alter_isr_late(self, number: int) -> None:
        self.alter(*self.former[number % len(self.former)])

    def alter(self, request: AlterPartition, appended: int) -> None:
        """Replicas that had caught up when the leader asked have all messages, if none was appended since."""
        if self.submit(request) is None:
            data = self.data[request.topic_id, request.partition]
            if request.broker in data.holders and appended == data.appended:
                same = {member for member, epoch in request.isr.items() if epoch == self.image.last_epoch(member)}
                data.holders |= same

    @rule(number=numbers, unclean=st.booleans())
    def elect_leader(self, number: int, unclean: bool) -> None:
        found = self.partition(number)
        if found is not None:
            self.unclean_command = unclean
            self.submit(ElectLeader(found[0], unclean))
            self.unclean_command = False

    @rule(number=numbers, replicas=st.none() | subsets)
    def reassign(self, number: int, replicas: list[int] | None) -> None:
        found = self.partition(number)
        if found is not None:
            self.submit(ReassignPartition(found[0], replicas))

    # Duties.

    @rule(some=st.integers(0, 6), balance=st.booleans())
    def some_duties(self, some: int, balance: bool) -> None:
        self.commit(duties(self.image, self.duty_settings, balance_leaders=balance)[:some])

    @rule(balance=st.booleans(), auto=st.booleans())
    def all_duties(self, balance: bool, auto: bool) -> None:
        """They reach a fixed point, also when only what has changed is examined."""
        chosen = DutySettings(reassignments_max=2, auto_rebalance=auto)
        for _ in range(ROUNDS_MAX):
            assert duties(self.image, chosen, self.examined) == duties(self.image, chosen)
            changes = duties(self.image, chosen, balance_leaders=balance)
            self.examined = self.image
            if not changes:
                break
            self.keeps_leaders = not balance
            self.commit(changes)
            self.keeps_leaders = False
        else:
            raise AssertionError(f"no fixed point after {ROUNDS_MAX} rounds: {changes}")
        self.check_settled()

    def check_settled(self) -> None:
        states = BrokerStates.of(self.image)
        for topic in self.image.topics.values():
            for state in topic.partitions:
                in_sync = [member for member in state.isr if states.epochs.get(member) == state.isr_epoch(member)]
                assert bool(in_sync) == (state.leader != NO_LEADER)
                if state.leader != NO_LEADER:
                    assert state.leader in in_sync and in_sync == list(state.isr)
                    assert not state.is_reassigning or not can_complete(state)
                else:
                    waits = [member for member in state.isr if member in states.epochs]
                    assert len(state.isr) > 1 or not waits
                    assert all(member in states.recovering for member in waits)
        assert self.image.detached == {}

    # Invariants.

    @invariant()
    def partitions_are_consistent(self) -> None:
        for topic in self.image.topics.values():
            for index, state in enumerate(topic.partitions):
                assert state.isr and set(state.isr) <= set(state.replicas)
                assert len(set(state.replicas)) == len(state.replicas) == len(state.directories)
                assert len(state.isr) == len(state.isr_epochs)
                assert state.leader == NO_LEADER or state.leader in state.isr
                assert {*state.adding_replicas, *state.removing_replicas} <= set(state.replicas)
                assert not set(state.adding_replicas) & set(state.removing_replicas)
                certain = certain_members(state, BrokerStates.of(self.image))
                assert set(certain) <= self.data[topic.id, index].holders
                leader = state.leader, state.leader_broker_epoch
                known = self.leaders.setdefault((topic.id, index, state.leader_epoch), leader)
                assert known == leader, "two leaders in one epoch"

    @invariant()
    def replay_rebuilds_the_image(self) -> None:
        decoded: list[Any] = [records.decode(key, value) for key, value in self.table.items()]
        leases = [BrokerLeaseChanged(broker, epoch) for broker, epoch in self.image.leases.items()]
        assert ClusterImage().apply(decoded + leases, self.image.revision) == self.image


def can_complete(state: PartitionImage) -> bool:
    return set(state.adding_replicas) <= set(state.isr) and not set(state.isr) <= set(state.removing_replicas)


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])

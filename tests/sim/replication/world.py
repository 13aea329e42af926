"""Three replicas of one partition over a network that delays, brokers that crash, and images that lag.

The partitions, their logs and the leader's view of its replicas are the real ones. The store with its compare-and-set,
the controller's elections, the connections and the clock are the world's.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from tests.sim.seeds import Invariant, Violation, replayable

from levada.broker.partition.follower import append_received
from levada.broker.partition.partition import Partition, PartitionContext
from levada.broker.partition.transactions import load_producers
from levada.broker.replication.replication import truncation_offset
from levada.config.topic import TopicConfig, TopicDefaults
from levada.core.partition.fetch_sessions import FetchPartition
from levada.core.partition.replica import IsrChange, LeaderReplicas, LiveBrokers
from levada.errors import KafkaError
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.testing.sim_disk import SimDisk
from levada.wire.batches import Record, decode, encode, iterate_headers

IDS = (1, 2, 3)
LAG_MAX_MS = 1_000
STEPS = 300
TOPIC = b"t" * 16


@dataclass(frozen=True)
class State:
    """The record of the partition in the store."""

    isr: dict[int, int]  # with broker epochs
    leader: int = -1
    leader_epoch: int = 0
    partition_epoch: int = 0


@dataclass
class Image:
    """What a broker knows: a state, and the brokers that were alive then."""

    state: State
    epochs: dict[int, int]


@dataclass
class Node:
    """One broker."""

    id: int
    disk: SimDisk
    epoch: int = 0
    image: Image | None = None
    partition: Partition | None = None
    live: LiveBrokers = field(default_factory=LiveBrokers)
    unclean: bool = False  # its last restart may have lost the end of its log


@dataclass
class Fetch:
    """A fetch on its way to the leader, or back with what the leader read."""

    follower: int
    broker_epoch: int
    leader: int
    leader_incarnation: int
    leader_epoch: int
    wanted: FetchPartition
    records: bytes = b""
    high_watermark: int = -1
    diverging: tuple[int, int] | None = None
    is_answered: bool = False


class World:
    """Everything, driven by one source of randomness."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.now_ms = 0
        self.next_epoch = 1
        self.next_value = 0
        self.nodes = {node_id: Node(node_id, SimDisk(Random(seed * 10 + node_id))) for node_id in IDS}
        self.disk = self.nodes[1].disk
        self.epochs: dict[int, int] = {}  # of the brokers that are alive, as the store knows
        self.network: deque[Fetch] = deque()
        self.pending: list[tuple[int, int, int, int]] = []  # node, leader epoch, offset, value
        self.acknowledged: dict[int, int] = {}  # offset -> value
        self.committed: dict[int, int] = {}  # of every record that was below a high watermark
        for node in self.nodes.values():
            self.start(node)
        self.state = State(dict(self.epochs))
        self.elect()

    # Brokers.

    def start(self, node: Node) -> None:
        config = TopicConfig.build(TopicDefaults(), {"segment.bytes": "400", "index.interval.bytes": "100"})
        log = Log.open(f"data/{node.id}", config, node.disk, now_ms=0, clean=False, recovery_point=0)
        context = PartitionContext(FlushQueue(lambda _: None), lambda _: None, self._failed)
        high_watermark = log.log_start_offset
        node.partition = Partition("t", UUID(bytes=TOPIC), 0, -1, log, context, None, high_watermark)
        node.epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        node.image, node.live = None, LiveBrokers()
        self.epochs[node.id] = node.epoch

    def _failed(self, partition: Partition, error: Exception) -> None:
        raise error

    def crash(self, node: Node, power: bool) -> None:
        if power:
            node.disk.cut_power()
        else:
            node.disk.kill()
        node.unclean = power
        node.partition = None
        self.epochs.pop(node.id, None)
        self.network = deque(one for one in self.network if node.id not in (one.follower, one.leader))

    def in_sync(self) -> list[int]:
        return [member for member, epoch in self.state.isr.items() if self.epochs.get(member) == epoch]

    # The controller.

    def elect(self) -> None:
        """Members in sync remove the others; without any, one that restarted and has everything is elected alone."""
        state, in_sync = self.state, self.in_sync()
        isr = {member: state.isr[member] for member in in_sync}
        if not in_sync:
            ready = [one for one in state.isr if one in self.epochs and not self.nodes[one].unclean]
            if not ready:
                return
            best = self.random.choice(ready)
            isr = {best: self.epochs[best]}
        leader = state.leader if state.leader in isr else self.random.choice(sorted(isr))
        moved = leader != state.leader or state.isr.get(leader) != isr[leader]
        if moved or isr != state.isr or self.random.random() < 0.05:
            self.state = State(isr, leader, state.leader_epoch + 1, state.partition_epoch + 1)
            self.note(f"elected {self.state}")

    def alter(self, node: Node, change: IsrChange) -> bool:
        """Compare-and-set of an ISR change."""
        state = self.state
        added = [member for member in change.isr if state.isr.get(member) != change.isr[member]]
        if (change.leader_epoch, change.partition_epoch) != (state.leader_epoch, state.partition_epoch):
            return False
        if self.epochs.get(node.id) != node.epoch or any(self.epochs.get(one) != change.isr[one] for one in added):
            return False
        for member in added:
            self.nodes[member].unclean = False
        self.state = replace(state, isr=dict(change.isr), partition_epoch=state.partition_epoch + 1)
        self.note(f"ISR {self.state.isr}")
        return True

    # What a broker does.

    def learn(self, node: Node) -> None:
        """The newest image reaches a broker."""
        partition, state = node.partition, self.state
        assert partition is not None
        node.image = Image(state, dict(self.epochs))
        node.live.epochs = dict(self.epochs)
        leads = state.leader == node.id and state.isr.get(node.id) == node.epoch
        if state.leader_epoch > partition.leader_epoch:
            if leads:
                end, watermark = partition.log.log_end_offset, partition.high_watermark
                replicas = LeaderReplicas(node.id, state.leader_epoch, end, watermark, node.live, LAG_MAX_MS)
                replicas.update(IDS, state.isr, state.partition_epoch, self.now_ms)
                partition.lead(state.leader_epoch, replicas)
                partition.replicas_changed()
                self.check_leader(partition)
            else:
                partition.follow(state.leader_epoch)
        elif leads and partition.replicas is not None:
            partition.replicas.update(IDS, state.isr, state.partition_epoch, self.now_ms)
            partition.replicas_changed()

    def produce(self, node: Node) -> None:
        partition = node.partition
        if partition is None or not partition.is_leader:
            return
        self.next_value += 1
        batch = encode([Record(0, 0, None, b"%d" % self.next_value)])
        offset = partition.append(memoryview(batch), 0, len(batch), 0)
        self.pending.append((node.id, partition.leader_epoch, offset, self.next_value))
        partition._context.flush_queue.began = self.now_ms / 1000
        partition.publish_queued()

    def fetch(self, node: Node) -> None:
        partition, image = node.partition, node.image
        if partition is None or image is None or partition.is_leader or image.state.leader in (-1, node.id):
            return
        if any(one.follower == node.id for one in self.network):
            return
        log, leader = partition.log, self.nodes[image.state.leader]
        if leader.partition is None:
            return
        last_epoch = log.leader_epochs.entries[-1][0] if log.leader_epochs.entries else -1
        wanted = FetchPartition(TOPIC, 0, log.log_end_offset, 500, 0, partition.leader_epoch, last_epoch)
        self.network.append(Fetch(node.id, node.epoch, leader.id, leader.epoch, partition.leader_epoch, wanted))

    def serve(self, one: Fetch) -> bool:
        """The leader reads for a follower; False if it refuses."""
        partition = self.nodes[one.leader].partition
        assert partition is not None
        try:
            partition.check_leader_epoch(one.wanted.current_leader_epoch)
            if partition.replicas is None:
                return False
            partition.replicas.check(one.follower, one.broker_epoch)
            if one.wanted.last_fetched_epoch >= 0:
                one.diverging = partition.diverging_epoch(one.wanted)
            if one.diverging is None:
                piece = partition.read_to_end(one.wanted.fetch_offset, one.wanted.max_bytes, True)
                one.records = b"".join(bytes(view) for view in piece.views)
                fetched = (one.follower, one.broker_epoch, one.wanted.fetch_offset, 0, self.now_ms)
                if partition.replicas.fetched(*fetched):
                    partition.replicas_changed()
            one.high_watermark = partition.high_watermark
        except KafkaError:
            return False
        one.is_answered = True
        return True

    def receive(self, one: Fetch) -> None:
        partition = self.nodes[one.follower].partition
        assert partition is not None
        if partition.is_leader or partition.leader_epoch != one.leader_epoch:
            return  # the fetcher has begun anew for another epoch
        if one.diverging is not None:
            offset = truncation_offset(partition, *one.diverging)
            if offset >= partition.log.log_end_offset:
                partition.log.forget_empty_epochs()
            else:
                self.note(f"{one.follower} truncates to {offset}")
                partition.log.truncate_to(offset)
                partition.truncated(load_producers(partition.log))
            return
        append_received(partition, memoryview(one.records), 0, lambda _: False)
        partition.advance_follower(one.high_watermark, 0)

    def deliver(self) -> None:
        one = self.network.popleft()
        if not one.is_answered:
            if self.serve(one):
                self.network.append(one)
        else:
            self.receive(one)

    def change_isr(self, node: Node) -> None:
        partition = node.partition
        if partition is None or partition.replicas is None:
            return
        change = partition.replicas.pending or partition.replicas.propose_isr(self.now_ms)
        if change is None:
            return
        is_committed = self.alter(node, change)
        if self.random.random() < 0.3:
            return  # the result is lost: it stays pending, and is submitted again
        self.learn(node)
        if not is_committed and partition.replicas is not None:
            partition.replicas.refused(change)

    # What must hold.

    def values(self, partition: Partition) -> dict[int, int]:
        found: dict[int, int] = {}
        offset, end = partition.log.log_start_offset, partition.log.log_end_offset
        while offset < end:
            data = memoryview(b"".join(bytes(v) for v in partition.log.read(offset, 1 << 20, end, True).views))
            for position, header in iterate_headers(data):
                for record in decode(data[position : position + header.size]):
                    found[record.offset] = int(record.value or b"-1")
                offset = header.last_offset + 1
        return found

    def check_leader(self, partition: Partition) -> None:
        values = self.values(partition)
        for offset, value in self.acknowledged.items():
            if values.get(offset) != value:
                raise Violation(Invariant.REPLICATION, f"acknowledged {value} at {offset}; the new leader has {values}")

    def check(self) -> None:
        for node in self.nodes.values():
            if node.partition is None:
                continue
            high_watermark = node.partition.high_watermark
            for offset, value in self.values(node.partition).items():
                if offset < high_watermark and self.committed.setdefault(offset, value) != value:
                    raise Violation(
                        Invariant.COMMITTED_RECORDS, f"{node.id} has {value} at {offset}, not {self.committed[offset]}"
                    )
        for pending in list(self.pending):
            node_id, epoch, offset, value = pending
            partition = self.nodes[node_id].partition
            if partition is None or partition.leader_epoch != epoch:
                self.pending.remove(pending)
            elif partition.high_watermark > offset:
                self.pending.remove(pending)
                self.acknowledged[offset] = value

    def note(self, what: str) -> None:
        self.trace.append(what)

    # Steps.

    def step(self) -> None:
        random = self.random
        node = self.nodes[random.choice(IDS)]
        action = random.random()
        if action < 0.02 and node.partition is not None:
            power = random.random() < 0.5 and len([one for one in self.in_sync() if one != node.id]) > 0
            self.note(f"{node.id} crashes, power {power}")
            self.crash(node, power)
        elif action < 0.15 and node.partition is None:
            self.note(f"{node.id} starts")
            self.start(node)
        elif action < 0.25:
            self.elect()
        elif action < 0.40 and node.partition is not None:
            self.learn(node)
        elif action < 0.55:
            self.produce(node)
        elif action < 0.62:
            self.change_isr(node)
        elif action < 0.66:
            self.now_ms += random.choice((10, 100, 2_000))
        elif self.network and action < 0.85:
            self.deliver()
        else:
            self.fetch(node)
        self.check()

    def heal(self) -> None:
        """Everything works again: the replicas have the same log, and all are in sync."""
        for node in self.nodes.values():
            if node.partition is None:
                self.start(node)
        for _ in range(100):
            self.elect()
            for node in self.nodes.values():
                self.learn(node)
                self.change_isr(node)
                self.fetch(node)
            while self.network:
                self.deliver()
            self.now_ms += 10
            self.check()
        logs = [self.values(node.partition) for node in self.nodes.values() if node.partition is not None]
        if set(self.state.isr) != set(IDS) or logs != [logs[0]] * len(IDS):
            raise Violation(Invariant.PROGRESS, f"{self.state}, logs {logs}")


def simulate(seed: int) -> World:
    """One history."""
    world = World(seed)
    with replayable(world, seed, "replication"):
        for _ in range(STEPS):
            world.step()
        world.heal()
    return world

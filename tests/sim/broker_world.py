"""What the worlds of coordinators share: the broker's own coordinators, journals and partitions over a simulated disk.

The disk tears writes and fails, the process is killed and the power cut at any call; a broker that comes back reads
what the disk has kept. Only the network and the loop are not the broker's own. All chance comes from one seed.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, cast
from uuid import UUID

from tests.support.clusters import topic_records

from levada.broker.broker import Broker
from levada.broker.coordinator.groups import group_coordinators
from levada.broker.coordinator.runtime import CoordinatorMetrics
from levada.broker.coordinator.transactions import transaction_coordinators
from levada.broker.partition.partition import Partition, PartitionContext
from levada.broker.producer_ids import ProducerIds
from levada.config.broker import BrokerConfig
from levada.config.topic import TopicConfig
from levada.core.cluster.controller import AllocateProducerIds
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.model import TopicPartitionKey
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.testing.sim_disk import Faults, SimDisk

DATA = "/data"
STEPS_UNTIL_CRASH_MAX = 60
HELD_HERE = PartitionImage((1,), (1,), 1)


class Clock:
    """The time of the world."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@dataclass(order=True)
class Timer:
    """What `call_later` gives."""

    at_ms: int
    number: int
    action: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class SimTasks:
    """What a broker has started; it is carried out when the world says so."""

    def __init__(self) -> None:
        self.waiting: list[Coroutine[Any, Any, None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.waiting.append(work)

    def run(self, number: int) -> None:
        """Carry one out, to its end."""
        work = self.waiting.pop(number)
        while True:
            try:
                work.send(None)
            except StopIteration:
                return

    def close(self) -> None:
        for work in self.waiting:
            work.close()


def image_of(topics: Mapping[str, int]) -> ClusterImage:
    """A cluster of one broker with these topics."""
    return ClusterImage().apply(
        change
        for number, (name, partitions) in enumerate(topics.items(), start=1)
        for change in topic_records(name, UUID(int=number), (HELD_HERE,) * partitions)
    )


class SimBroker:
    """As much of a broker as coordinators need."""

    def __init__(self, config: BrokerConfig, clock: Clock, image: ClusterImage) -> None:
        self.config = config
        self.clock = clock
        self.image = image
        self.tasks = SimTasks()
        self.image_listeners: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.partition_listeners: list[Callable[[Partition], None]] = []
        self.partitions: dict[TopicPartitionKey, Partition] = {}
        self.timers: list[Timer] = []
        self.coordinator_metrics = CoordinatorMetrics()
        self.producer_ids = ProducerIds(self._allocate)
        self._numbers = count()
        itself = cast(Broker, self)
        self.groups = group_coordinators(itself)
        self.transactions = transaction_coordinators(itself)

    def current_config(self) -> BrokerConfig:
        return self.config

    async def _allocate(self, command: AllocateProducerIds) -> ClusterImage:
        raise AssertionError("clients of the world have producer ids of their own")

    def is_opening(self, topic: str, index: int) -> bool:
        return False

    def partition(self, topic: str, index: int) -> Partition:
        return self.partitions[topic, index]

    def call_later(self, seconds: float, action: Callable[..., object], *arguments: Any) -> Timer:
        at_ms = self.clock.ms + round(seconds * 1000)
        timer = Timer(at_ms, next(self._numbers), lambda: action(*arguments))
        heappush(self.timers, timer)
        return timer

    def ring(self) -> None:
        """What is due by now happens."""
        while self.timers and self.timers[0].at_ms <= self.clock.ms:
            timer = heappop(self.timers)
            if not timer.cancelled:
                timer.action()

    def follow(self, image: ClusterImage) -> None:
        """The cluster has changed."""
        former, self.image = self.image, image
        for listener in self.image_listeners:
            listener(former, image)


class BrokerWorld:
    """One broker on one disk. Subclasses say what happens to it."""

    segment_bytes = (700, 2_000, 1 << 20)

    def __init__(self, seed: int, disk_type: type[SimDisk], settings: Mapping[str, str], image: ClusterImage) -> None:
        self.random = random = Random(seed)
        self.disk = disk_type(Random(random.random()))
        self.clock = Clock()
        # Whether acknowledgements wait for the disk; only then may the power fail.
        self.fsyncs = random.random() < 0.5
        self.config = BrokerConfig.load(dict(settings))[0]
        overrides = {
            "segment.bytes": str(random.choice(self.segment_bytes)),
            "index.interval.bytes": str(random.choice((0, 300))),
            "levada.acks.wait.for.fsync": "true" if self.fsyncs else "false",
        }
        self.topic_config = TopicConfig.build(self.config.topic_defaults, overrides)
        self.image = image
        self.logs: list[TopicPartitionKey] = []  # the partitions that are there
        self.recovery_points: dict[TopicPartitionKey, int] = {}
        self.trace: list[str] = []
        self.failed = False
        self.to_sync: set[Partition] = set()

    def begin(self, logs: list[TopicPartitionKey]) -> None:
        """The first start, on an empty disk."""
        self.logs = logs
        self.disk.mkdir(DATA)
        self.disk.fsync_dir("/")
        self.open(clean=False)

    def note(self, line: str) -> None:
        self.trace.append(f"{self.disk.steps}: {line}")

    # The broker.

    def open(self, clean: bool) -> None:
        self.failed = False
        self.to_sync.clear()
        self.flush_queue = FlushQueue(lambda _: None)
        self.broker = SimBroker(self.config, self.clock, self.image)
        context = PartitionContext(self.flush_queue, self.sync_soon, self.fail)
        for topic, index in self.logs:
            log = Log.open(
                f"{DATA}/{topic}-{index}",
                self.topic_config,
                self.disk,
                now_ms=self.clock.ms,
                clean=clean,
                recovery_point=self.recovery_points.get((topic, index), 0),
            )
            self.broker.partitions[topic, index] = Partition(topic, UUID(int=1), index, 0, log, context)
        self.broker.follow(self.image)
        self.end_iteration()

    def sync_soon(self, partition: Partition) -> None:
        self.to_sync.add(partition)

    def fail(self, partition: Partition, error: OSError | CorruptBatchError) -> None:
        """A broken disk takes all of its partitions."""
        self.failed = True
        for one in self.broker.partitions.values():
            one.go_offline()

    def end_iteration(self) -> None:
        self.flush_queue.flush()

    def waiting_for_sync(self) -> list[Partition]:
        return sorted(self.to_sync, key=lambda one: (one.topic, one.index))

    def sync(self) -> None:
        """What the thread of the group commit does."""
        waiting = self.waiting_for_sync()
        self.random.shuffle(waiting)
        for partition in waiting:
            if self.random.random() < 0.5 and not partition.offline:
                self.to_sync.discard(partition)
                try:
                    partition.log.flush()
                except OSError as error:
                    self.fail(partition, error)
                    return
                partition.synced()
        self.end_iteration()

    # What can happen to it.

    def crash(self, power_cut: bool) -> None:
        self.note(f"crash, power_cut={power_cut}")
        self.disk.crash_at = None
        if power_cut:
            self.disk.cut_power()
        elif self.failed:
            self.disk.remount()  # the operator has mended the disk
        else:
            self.disk.kill()
        faults, self.disk.faults = self.disk.faults, Faults()
        self.forget_calls()
        self.open(clean=False)
        self.disk.faults = faults

    def may_cut_power(self) -> bool:
        return self.fsyncs and self.random.random() < 0.6

    def arm_crash(self) -> None:
        if self.disk.crash_at is None:
            self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_UNTIL_CRASH_MAX)

    def kill(self) -> None:
        self.crash(power_cut=False)

    def restart(self) -> None:
        """A clean stop and start."""
        self.disk.crash_at, self.disk.faults = None, Faults()
        self.end_iteration()
        self.broker.groups.close()
        self.broker.transactions.close()
        for topic_partition, partition in self.broker.partitions.items():
            partition.log.flush()
            partition.close()
            self.recovery_points[topic_partition] = partition.log.log_end_offset
        self.forget_calls()
        self.disk.kill()
        self.open(clean=True)

    def forget_calls(self) -> None:
        """The process is gone, and with it whatever it was about to do."""
        self.broker.tasks.close()

    def close(self) -> None:
        """The world ends."""
        self.broker.tasks.close()

    def checkpoint(self) -> None:
        for topic_partition, partition in self.broker.partitions.items():
            if not partition.offline:
                self.recovery_points[topic_partition] = partition.log.recovery_point

    def change_faults(self) -> None:
        chance = self.random.random
        self.disk.faults = Faults(short_write=0.2) if chance() < 0.5 else Faults()
        if chance() < 0.3:
            self.disk.faults = Faults(write_error=0.02, short_write=0.1, fsync_error=0.1 if self.fsyncs else 0.0)

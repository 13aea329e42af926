"""The coordinator runtime: one shard for each partition of an internal topic that this broker leads.

Group coordinators (`__consumer_offsets`) and transaction coordinators (`__transaction_state`) share it. A key (group
id, transactional id) belongs to the partition of its hash, as in Kafka. A handler submits a decision to the shard of
its key and returns the `DelayedResult`:

    shard = context.broker.groups.shard(request.group_id)          # raises NOT_COORDINATOR, ..._LOAD_IN_PROGRESS
    return shard.submit(lambda machine, now_ms, handle: machine.heartbeat(..., handle), _heartbeat_response)

The shard appends the records of the decision in one batch, applies its events, and completes the response once all
that was applied by then is committed: no client learns of a state that may be lost. A response that is not committed
within offsets.commit.timeout.ms fails with COORDINATOR_NOT_AVAILABLE.

A shard loads by replaying its partition in time slices; meanwhile requests fail with COORDINATOR_LOAD_IN_PROGRESS.
When an append fails, or the partition goes offline, the shard unloads: pending responses fail with NOT_COORDINATOR, and
the shard loads again. If the journal cannot be read, the shard logs the cause and fails with NOT_COORDINATOR.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from levada.broker.controller import new_topic_id
from levada.broker.coordinator.shard import CoordinatorShard
from levada.broker.partition.partition import Partition
from levada.core.cluster.controller import CreateTopic
from levada.core.cluster.image import ClusterImage
from levada.core.machine import StateMachine
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.broker.broker import Broker

M = TypeVar("M", bound=StateMachine)
CREATION_WAIT_S: Final = 10.0  # for the creation of the internal topic by another request


@dataclass(slots=True)
class CoordinatorMetrics:
    """Counters since the start of the broker; replayed events are not counted."""

    offsets_committed: int = 0
    classic_rebalances: int = 0  # new generations
    consumer_rebalances: int = 0  # new group epochs
    transactions_committed: int = 0
    transactions_aborted: int = 0  # including those that timed out
    transactions_timed_out: int = 0


class InternalTopic(NamedTuple):
    """The topic of the journals, created on first use."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class CoordinatorRuntime(Generic[M]):
    """The shards of one internal topic on this broker."""

    def __init__(
        self,
        broker: "Broker",
        topic: InternalTopic,
        new_machine: Callable[[], M],
        on_loaded: Callable[[CoordinatorShard[M]], None] | None = None,
        run_effect: Callable[[CoordinatorShard[M], Any], None] | None = None,
    ) -> None:
        self.topic = topic
        self._broker = broker
        self._new_machine = new_machine
        self._on_loaded = on_loaded  # called with each shard that was loaded
        self._run_effect = run_effect  # runs the effects of committed outcomes
        self._partitions = topic.partitions  # of the configuration, until the topic exists
        self._shards: dict[int, CoordinatorShard[M]] = {}
        self._creation = asyncio.Lock()  # held until the logs of the new topic are open
        broker.image_listeners.append(self._on_image)
        broker.leadership_listeners.append(self._on_leadership)

    def shard(self, key: str) -> CoordinatorShard[M]:
        """The shard of a group id or transactional id. NOT_COORDINATOR if this broker does not lead its partition."""
        index = partition_for(key, self._partitions)
        shard = self._shards.get(index)
        if shard is None:
            if self.exists and self._broker.is_opening(self.topic.name, index):
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the log of the coordinator is being opened")
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker is not the coordinator of {key!r}")
        return shard

    def __iter__(self) -> Iterator[CoordinatorShard[M]]:
        """All shards of this broker, also those that are loading."""
        return iter(self._shards.values())

    def shard_of_partition(self, index: int) -> CoordinatorShard[M] | None:
        """The shard of a partition, if this broker leads it."""
        return self._shards.get(index)

    def partition_for(self, key: str) -> int:
        """The partition of a key."""
        return partition_for(key, self._partitions)

    @property
    def exists(self) -> bool:
        """Whether the internal topic exists."""
        return self.topic.name in self._broker.image.topics

    @property
    def is_created(self) -> bool:
        """Whether the internal topic exists, and is not being created."""
        return self.exists and not self._creation.locked()

    @property
    def is_opening(self) -> bool:
        """Whether the log of a shard is not open yet: the shards of this broker are not complete."""
        topic = self._broker.image.topics.get(self.topic.name)
        count = 0 if topic is None else len(topic.partitions)
        return len(self._shards) < count and any(
            self._broker.is_opening(self.topic.name, index) for index in range(count)
        )

    async def create_topic(self) -> None:
        """Create the internal topic and open its logs, unless it exists. COORDINATOR_NOT_AVAILABLE if that fails."""
        if self.is_created:
            return
        try:
            await asyncio.wait_for(self._creation.acquire(), CREATION_WAIT_S)
        except TimeoutError:
            raise self._not_created("it takes long") from None
        try:
            if not self.exists:
                await self._create_topic()
        finally:
            self._creation.release()

    async def _create_topic(self) -> None:
        name, partitions, factor, configs = self.topic
        command = CreateTopic(name, new_topic_id(), partitions, factor, configs=configs)
        try:
            self._broker.log_dirs.check_usable()
            await self._broker.controller.submit(command)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise self._not_created(str(error)) from None

    def _not_created(self, why: str) -> KafkaError:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic.name} cannot be created: {why}")

    def close(self) -> None:
        """Close all shards."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _on_image(self, former: ClusterImage, image: ClusterImage) -> None:
        """Close the shards of partitions that are not here any more; leadership opens them."""
        topic = image.topics.get(self.topic.name)
        if topic is not None:
            self._partitions = len(topic.partitions)
        for index, shard in list(self._shards.items()):
            if self._broker.partitions.get((self.topic.name, index)) is not shard.partition:
                self._close(index)

    def _on_leadership(self, partition: Partition) -> None:
        """Open the shard of a partition that is led in a new epoch; one of an earlier epoch has ended."""
        if partition.topic != self.topic.name:
            return
        self._close(partition.index)
        if partition.is_leader:
            self._shards[partition.index] = CoordinatorShard(
                self._broker, partition, self._new_machine, self._on_loaded, self._run_effect
            )

    def _close(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()


@lru_cache(1_000)
def partition_for(key: str, partitions: int) -> int:
    """The partition of a key, as Kafka's partitionFor."""
    return java_abs(java_hash(key)) % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, as a signed 32-bit integer."""
    number = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        number = (31 * number + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def java_abs(number: int) -> int:
    """Kafka's Utils.abs: the smallest integer becomes 0."""
    return 0 if number == -(1 << 31) else abs(number)

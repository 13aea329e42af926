"""The runtime of coordinators: journaled machines, one for each partition of an internal topic that this broker leads.

Groups (`__consumer_offsets`) and transactions (`__transaction_state`) share it. A key (group id, transactional id)
belongs to the shard of the partition that its hash names, as in Kafka. A handler finds the shard and submits a
decision; what it gets is a `DelayedResult` to return or to await:

    shard = call.broker.groups.shard(request.group_id)             # raises NOT_COORDINATOR, ..._LOAD_IN_PROGRESS
    return shard.submit(lambda machine, now_ms, handle: machine.heartbeat(..., handle), answer=_heartbeat_response)

`submit` asks the machine to decide, journals the events that have records in one batch, applies all of them, and
lets every reply go once everything the machine had applied by then is committed: nobody hears of what may be lost.
The machine may keep the handle and reply to it in a later outcome (a JoinGroup waits for the other members).

A reply that the journal keeps waiting for longer than offsets.commit.timeout.ms becomes COORDINATOR_NOT_AVAILABLE.

A shard is loaded by replaying its partition, in slices, so that the loop stays free; meanwhile its keys are answered
COORDINATOR_LOAD_IN_PROGRESS. When an append or a commit fails, or the partition is gone, the machine is dropped,
whoever waits is told NOT_COORDINATOR, and the shard is loaded again from what the journal holds. One whose journal
cannot be read says why in the log and answers NOT_COORDINATOR.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from levada.broker.controller import new_topic_id
from levada.broker.coordinator.shard import Shard
from levada.core.cluster.controller import CreateTopic
from levada.core.cluster.image import ClusterImage
from levada.core.machine import StateMachine
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.broker.broker import Broker

M = TypeVar("M", bound=StateMachine)


class InternalTopic(NamedTuple):
    """The topic that holds the journals, and how it is made on first use."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class Coordinators(Generic[M]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        broker: "Broker",
        topic: InternalTopic,
        new_machine: Callable[[], M],
        on_loaded: Callable[[Shard[M]], None] | None = None,
        perform: Callable[[Shard[M], Any], None] | None = None,
    ) -> None:
        self.topic = topic
        self._broker = broker
        self._new_machine = new_machine
        self._on_loaded = on_loaded  # told of each shard that begins to serve
        self._perform = perform  # carries out the effects of decisions
        self._partitions = topic.partitions  # of the topic, once there is one
        self._shards: dict[int, Shard[M]] = {}
        broker.image_listeners.append(self._follow)

    def shard(self, key: str) -> Shard[M]:
        """The shard that a group id or transactional id belongs to; NOT_COORDINATOR if it is not here."""
        shard = self._shards.get(partition_of(key, self._partitions))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker is not the coordinator of {key!r}")
        return shard

    def __iter__(self) -> Iterator[Shard[M]]:
        """Every shard of this broker, also those still loading."""
        return iter(self._shards.values())

    def at(self, index: int) -> Shard[M] | None:
        """The shard of a partition, if it is led here."""
        return self._shards.get(index)

    def index(self, key: str) -> int:
        """The partition that a key belongs to."""
        return partition_of(key, self._partitions)

    @property
    def exists(self) -> bool:
        """Whether the internal topic has been made."""
        return self.topic.name in self._broker.image.topics

    async def create_topic(self) -> None:
        """Make the internal topic if it is not there; KafkaError COORDINATOR_NOT_AVAILABLE if that fails."""
        if self.exists:
            return
        name, partitions, factor, configs = self.topic
        command = CreateTopic(name, new_topic_id(), partitions, factor, configs=configs)
        try:
            await self._broker.controller.submit(command)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} cannot be made: {error}"
                ) from None

    def close(self) -> None:
        """Answer who waits, and decide nothing more."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _follow(self, former: ClusterImage, image: ClusterImage) -> None:
        """Have a shard for each partition of the topic that is open here, and for no other."""
        topic = image.topics.get(self.topic.name)
        if topic is not None:
            self._partitions = len(topic.partitions)
        open_here = {}
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._broker.partitions.get((self.topic.name, index))
            if partition is not None:
                open_here[index] = partition
        for index, shard in list(self._shards.items()):
            if open_here.get(index) is not shard.partition:
                del self._shards[index]
                shard.close()
        for index, partition in open_here.items():
            if index not in self._shards:
                self._shards[index] = Shard(
                    self._broker, partition, self._new_machine, self._on_loaded, self._perform
                )


@lru_cache(1_000)
def partition_of(key: str, partitions: int) -> int:
    """The partition that a key belongs to, of so many."""
    return java_abs(java_hash(key)) % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, as a signed 32-bit number."""
    number = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        number = (31 * number + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def java_abs(number: int) -> int:
    """Kafka's abs: the smallest int, which has no positive twin, becomes 0."""
    return 0 if number == -(1 << 31) else abs(number)

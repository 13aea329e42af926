"""Several brokers on threads of the test process that share one metadata store."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.broker import BrokerThread
from tests.support.waiting import until

from levada.broker.partition.partition import Partition
from levada.core.cluster.controller import CreateTopic
from levada.core.cluster.image import Change, ClusterImage, PartitionImage, TopicChanged


class Cluster:
    """Brokers 1 to n; a test elects leaders itself."""

    def __init__(self, folder: Path, count: int, settings: Mapping[str, object]) -> None:
        self._folder = folder
        self._settings = {"replica.lag.time.max.ms": 1500, "replica.fetch.wait.max.ms": 200} | dict(settings)
        self.brokers: dict[int, BrokerThread] = {}
        for node_id in range(1, count + 1):
            self.start(node_id)
        ids = set(self.brokers)
        until(lambda: all(set(one.broker.image.brokers) == ids for one in self.brokers.values()), "no cluster")

    def start(self, node_id: int) -> BrokerThread:
        own = {"node.id": node_id, "broker.rack": f"rack-{node_id}"}
        settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in (self._settings | own).items()}
        broker = BrokerThread(self._folder / str(node_id), **settings)
        broker.start()
        self.brokers[node_id] = broker
        return broker

    def stop(self, node_id: int) -> None:
        self.brokers.pop(node_id).stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def create(self, topic: str, *replicas: int, partitions: int = 1, **configs: object) -> None:
        """Create a topic whose partitions all have these replicas, the leader first."""
        command = CreateTopic(
            topic,
            uuid4(),
            assignments=[replicas] * partitions,
            configs={name.replace("_", "."): str(value) for name, value in configs.items()},
        )
        first = self.brokers[replicas[0]]
        first.wait(first.broker.controller.submit(command))
        for node_id in replicas:
            until(partial(self.is_ready, topic, node_id), f"{topic} is not open on {node_id}")

    def is_ready(self, topic: str, node_id: int) -> bool:
        partition = self.brokers[node_id].broker.partitions.get((topic, 0))
        return partition is not None and partition.leader_epoch >= 0

    def alter(self, topic: str, decide: Callable[[PartitionImage], PartitionImage], index: int = 0) -> None:
        """Write a new state of a partition, as the controller would."""
        one = next(iter(self.brokers.values()))

        def decided(image: ClusterImage) -> list[Change]:
            known = image.topics[topic]
            state = decide(known.partitions[index])
            partitions = (*known.partitions[:index], state, *known.partitions[index + 1 :])
            return [TopicChanged(replace(known, partitions=partitions))]

        one.wait(one.broker.controller._execute(decided))

    def elect(self, topic: str, leader: int, isr: tuple[int, ...], index: int = 0) -> None:
        """Make a broker the leader, and wait until it knows."""

        def elected(state: PartitionImage) -> PartitionImage:
            return replace(
                state,
                leader=leader,
                isr=isr,
                isr_epochs=(),
                leader_epoch=state.leader_epoch + 1,
                partition_epoch=state.partition_epoch + 1,
            )

        self.alter(topic, elected, index)
        if leader in self.brokers:
            until(lambda: self.partition(topic, leader, index).is_leader, "it does not lead")

    def partition(self, topic: str, node_id: int, index: int = 0) -> Partition:
        return self.brokers[node_id].broker.partitions[topic, index]

    def state(self, topic: str, index: int = 0) -> PartitionImage:
        one = next(iter(self.brokers.values()))
        return one.broker.image.topics[topic].partitions[index]

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.stop()


@contextmanager
def cluster(tmp_path: Path, count: int = 3, **settings: object) -> Iterator[Cluster]:
    shared = {"levada.metadata.file": str(tmp_path / "metadata.db")}
    brokers = Cluster(tmp_path, count, shared | {name.replace("_", "."): value for name, value in settings.items()})
    try:
        yield brokers
    finally:
        brokers.close()

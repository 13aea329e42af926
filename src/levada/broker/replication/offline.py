"""Reports the replicas whose logs have failed here, so that they leave their ISRs and other brokers lead.

They are reported again in each broker epoch: a broker that registers again counts as having all of its logs.
"""

import asyncio
from typing import TYPE_CHECKING, Final
from uuid import UUID

from levada.core.cluster.isr import ReplicasOffline
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

RETRY_S: Final = 1.0


class OfflineReplicas:
    """The failed replicas of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._failed: dict[UUID, set[int]] = {}  # since the start, by topic id
        self._reported_in = -1  # the broker epoch in which all of them are reported
        self._running = False

    def report(self, name: TopicPartition, topic_id: UUID) -> None:
        """A log has failed. The only replica of a partition has nobody to replace it."""
        topic = self._broker.image.topics.get(name.topic)
        if topic is None or topic.id != topic_id or len(topic.partitions[name.partition].replicas) == 1:
            return
        self._failed.setdefault(topic_id, set()).add(name.partition)
        self._reported_in = -1
        self.report_all()

    def repaired(self, name: TopicPartition, topic_id: UUID) -> None:
        """A log is in use again."""
        self._failed.get(topic_id, set()).discard(name.partition)

    def report_all(self) -> None:
        """Report what this broker epoch has not reported."""
        epoch = self._broker.replication.broker_epoch
        if self._failed and not self._running and epoch not in (-1, self._reported_in):
            self._running = True
            self._broker.tasks.start("offline-replicas", self._report())

    async def _report(self) -> None:
        broker = self._broker
        try:
            while (epoch := broker.replication.broker_epoch) not in (-1, self._reported_in):
                await asyncio.sleep(0)  # the other replicas of a log dir fail in the same iteration
                self._reported_in = epoch
                partitions = {topic_id: sorted(indexes) for topic_id, indexes in self._failed.items()}
                try:
                    await broker.controller.submit(ReplicasOffline(broker.node_id, epoch, partitions))
                except KafkaError as error:
                    log.error("failed replicas cannot be reported", error=str(error))
                    self._reported_in = -1
                    await asyncio.sleep(RETRY_S)
        finally:
            self._running = False

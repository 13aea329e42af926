"""Commits the ISR changes of the partitions that this broker leads.

A leader changes its ISR itself, by compare-and-set on the record of its partition. The result of a commit that timed
out is unknown: the change stays pending and is submitted again, until it is in the image or refused.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from levada.broker.partition.partition import Partition
from levada.core.cluster.isr import AlterPartition
from levada.core.partition.replica import IsrChange
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

CHANGES_PER_COMMIT: Final = 500
RETRY_S: Final = 0.2  # after a commit whose result is unknown
REFUSED_S: Final = 1.0  # after a refusal, until the next change of the same partition
TIMER_PRECISION_S: Final = 0.01
UNKNOWN_RESULT: Final = frozenset(
    (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)
)


class IsrChanges:
    """The ISR changes that are to be committed."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._changes: dict[Partition, IsrChange] = {}
        self._refused_until: dict[Partition, float] = {}
        self._running = False
        self.shrinks = self.expands = self.failed = 0

    def check(self, partition: Partition, now: float) -> None:
        """Begin to commit the change that the ISR of a partition needs, if it needs one."""
        replicas = partition.replicas
        if replicas is None or self._refused_until.get(partition, now) > now:
            return
        change = replicas.propose_isr(int(now * 1000))
        if change is None:
            return
        self._changes[partition] = change
        if not self._running:
            self._running = True
            self._broker.tasks.start("alter-partition", self._commit_all())

    def _check_again(self, partition: Partition) -> None:
        self.check(partition, self._broker.clock.monotonic())

    def forget(self, partition: Partition) -> None:
        """The partition is deleted."""
        self._changes.pop(partition, None)
        self._refused_until.pop(partition, None)

    async def _commit_all(self) -> None:
        try:
            while self._changes:
                some = list(self._changes.items())[:CHANGES_PER_COMMIT]
                for partition, _ in some:
                    del self._changes[partition]
                if pending := [(one, change) for one, change in some if _is_pending(one, change)]:
                    await self._commit(pending)
        finally:
            self._running = False

    async def _commit(self, changes: list[tuple[Partition, IsrChange]]) -> None:
        errors: list[KafkaError | None]
        try:
            errors = await self._broker.alter_partitions([self._command(*one) for one in changes])
        except KafkaError as failure:
            errors = [failure] * len(changes)
        now, is_unknown = self._broker.clock.monotonic(), False
        for (partition, change), error in zip(changes, errors, strict=True):
            if error is None:
                self._committed(partition, change)
            elif error.code in UNKNOWN_RESULT:
                is_unknown = True
                self._changes.setdefault(partition, change)
            else:
                self._refused(partition, change, error, now)
        if is_unknown:
            await asyncio.sleep(RETRY_S)

    def _command(self, partition: Partition, change: IsrChange) -> AlterPartition:
        broker = self._broker
        return AlterPartition(
            broker.node_id,
            broker.replication.broker_epoch,
            partition.topic_id,
            partition.index,
            change.leader_epoch,
            change.partition_epoch,
            change.isr,
        )

    def _committed(self, partition: Partition, change: IsrChange) -> None:
        log.info(
            "ISR changed",
            partition=f"{partition.topic}-{partition.index}",
            isr=",".join(map(str, change.isr)),
            leader_epoch=change.leader_epoch,
        )

    def _refused(self, partition: Partition, change: IsrChange, error: KafkaError, now: float) -> None:
        self.failed += 1
        self._refused_until[partition] = now + REFUSED_S
        if partition.replicas is not None:
            partition.replicas.refused(change)
            self._broker.call_later(REFUSED_S + TIMER_PRECISION_S, self._check_again, partition)
        log.info("ISR change refused", partition=f"{partition.topic}-{partition.index}", why=str(error))


def _is_pending(partition: Partition, change: IsrChange) -> bool:
    """Whether a change is still that of this leader epoch, and not in the image."""
    return partition.replicas is not None and partition.replicas.pending is change

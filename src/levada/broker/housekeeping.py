"""Runs the periodic tasks of a broker: retention, checkpoints, flush.ms and expiration of producer ids.

Each task processes a few partitions per loop iteration, so that it does not delay requests.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.logs import EventLog

log = EventLog(__name__)

PARTITIONS_PER_ITERATION: Final = 20
FLUSH_CHECK_S: Final = 0.5
PRODUCER_EXPIRATION_CHECK_S: Final = 600.0
INTERVAL_S_MAX: Final = 24 * 3600.0


class Housekeeping:
    """The periodic tasks of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def start(self) -> None:
        """Start all tasks."""
        config, tasks = self._broker.config, self._broker.tasks
        tasks.every("retention", _seconds(config.log_retention_check_interval_ms), self.apply_retention)
        tasks.every("checkpoint", _seconds(config.log_flush_offset_checkpoint_interval_ms), self.checkpoint)
        interval_ms = config.replication.replica_high_watermark_checkpoint_interval_ms
        tasks.every("high-watermarks", _seconds(interval_ms), self.checkpoint_high_watermarks)
        tasks.every("flush", FLUSH_CHECK_S, self.flush_due)
        tasks.every("producers", PRODUCER_EXPIRATION_CHECK_S, self.expire_producers)

    async def apply_retention(self) -> None:
        """Delete segments by retention.ms and retention.bytes."""
        now_ms = self._broker.clock.now_ms()
        await self._each(lambda partition: self._broker.log_dirs.apply_retention(partition, now_ms))

    async def flush_due(self) -> None:
        """Flush the logs that have unflushed batches since flush.ms."""
        now_ms = self._broker.clock.now_ms()
        await self._each(lambda partition: partition.flush_if_due(now_ms))

    async def checkpoint(self) -> None:
        """Checkpoint recovery points and log start offsets."""
        self._broker.log_dirs.checkpoints.write_soon()

    async def checkpoint_high_watermarks(self) -> None:
        """Checkpoint the high watermarks of partitions with several replicas."""
        if any(partition.is_replicated for partition in self._broker.partitions.values()):
            await self._broker.log_dirs.checkpoints.write_high_watermarks_soon()

    async def expire_producers(self) -> None:
        """Remove the state of producers that have been idle for producer.id.expiration.ms."""
        now_ms = self._broker.clock.now_ms()
        expiration_ms = self._broker.current_config().producer_id_expiration_ms
        await self._each(lambda partition: partition.producers.expire(now_ms, expiration_ms))

    async def _each(self, action: Callable[[Partition], object]) -> None:
        for number, partition in enumerate(list(self._broker.partitions.values())):
            if not (partition.offline or partition.truncating):
                try:
                    action(partition)
                except Exception as error:  # a failure of one partition must not affect the others
                    name = f"{partition.topic}-{partition.index}"
                    log.error("housekeeping of a partition failed", partition=name, exc_info=error)
            if number % PARTITIONS_PER_ITERATION == 0:
                await asyncio.sleep(0)


def _seconds(milliseconds: int) -> float:
    return min(max(milliseconds / 1000, 0.001), INTERVAL_S_MAX)

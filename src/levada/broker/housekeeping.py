"""What a broker does now and then: retention, ageing segments, checkpoints, forgetting idle producers.

Each round looks at a few partitions at a time and lets the loop go on between, so that no client notices.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.logs import EventLog

log = EventLog(__name__)

PARTITIONS_A_STEP: Final = 20
FLUSH_LOOK_SECONDS: Final = 0.5
PRODUCERS_LOOK_SECONDS: Final = 600.0
LONGEST_SECONDS: Final = 24 * 3600.0


class Housekeeping:
    """The background work of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def start(self) -> None:
        """Begin all rounds."""
        config, tasks = self._broker.config, self._broker.tasks
        tasks.every("retention", _seconds(config.log_retention_check_interval_ms), self.apply_retention)
        tasks.every("checkpoint", _seconds(config.log_flush_offset_checkpoint_interval_ms), self.checkpoint)
        tasks.every("flush", FLUSH_LOOK_SECONDS, self.flush_old)
        tasks.every("producers", PRODUCERS_LOOK_SECONDS, self.expire_producers)

    async def apply_retention(self) -> None:
        """Give up segments that are too old or too many (R19)."""
        now_ms = self._broker.clock.now_ms()
        await self._each(lambda partition: self._broker.log_dirs.apply_retention(partition, now_ms))

    async def flush_old(self) -> None:
        """Have data synced that has waited for flush.ms."""
        now_ms = self._broker.clock.now_ms()
        await self._each(lambda partition: partition.flush_if_due(now_ms))

    async def checkpoint(self) -> None:
        """Write down up to where each log is known to be on disk."""
        self._broker.log_dirs.checkpoint(self._broker.partitions.values())

    async def expire_producers(self) -> None:
        """Forget producers that have been silent for producer.id.expiration.ms."""
        now_ms = self._broker.clock.now_ms()
        expiration_ms = self._broker.current_config().producer_id_expiration_ms
        await self._each(lambda partition: partition.producers.expire(now_ms, expiration_ms))

    async def _each(self, action: Callable[[Partition], object]) -> None:
        for number, partition in enumerate(list(self._broker.partitions.values())):
            if not partition.offline:
                try:
                    action(partition)
                except Exception as error:  # one that is damaged must not keep the others waiting
                    name = f"{partition.topic}-{partition.index}"
                    log.error("housekeeping of a partition failed", partition=name, exc_info=error)
            if number % PARTITIONS_A_STEP == 0:
                await asyncio.sleep(0)


def _seconds(milliseconds: int) -> float:
    return min(max(milliseconds / 1000, 0.001), LONGEST_SECONDS)

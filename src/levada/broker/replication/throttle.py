"""Throttles the replication of partitions that are catching up (leader. and follower.replication.throttled.rate).

A partition is throttled where its topic names it and this broker, or `*`. Replicas in sync are never throttled by their
leader: they hold back the high watermark.
"""

from typing import Final

from levada.broker.partition.partition import Partition
from levada.config.settings import LONG_MAX, Strings

ALL: Final = "*"


class ReplicationThrottle:
    """A token bucket with the tokens of one second; it may be overdrawn by one response."""

    __slots__ = ("_balance", "_filled", "rate", "throttled_bytes")

    def __init__(self) -> None:
        self.rate = LONG_MAX  # bytes a second
        self.throttled_bytes = 0  # of throttled replicas, since the start
        self._balance = 0.0
        self._filled = 0.0

    def is_exceeded(self, now: float) -> bool:
        """Whether throttled replicas must wait."""
        if self.rate == LONG_MAX:
            return False
        self._balance = min(float(self.rate), self._balance + self.rate * (now - self._filled))
        self._filled = now
        return self._balance <= 0

    def record(self, size: int) -> None:
        """Take tokens for the bytes of a throttled replica."""
        self.throttled_bytes += size
        self._balance -= size


def names_replica(replicas: Strings, partition: Partition, broker: int) -> bool:
    """Whether a topic's list of throttled replicas contains the one of a broker."""
    return bool(replicas) and (ALL in replicas or f"{partition.index}:{broker}" in replicas)

"""The client's retry policy: which failures are retriable, how long to back off, and when to give up.

Failures of the network are always retriable. Of Kafka's errors each kind of request has its own set, made of the sets
below. The backoff is exponential, from `retry_backoff_ms` of the client to one second, as in Kafka (KIP-580).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from levada.client.errors import FAILURES, BrokerNotResponding, Failure
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client

T = TypeVar("T")
Codes = frozenset[ErrorCode]

BACKOFF_S_MAX = 1.0
TRANSACTION_END_S = 0.005  # a coordinator ends a transaction in about this time

# The topic does not exist, or a broker has not learned of it yet.
UNKNOWN_TOPIC: Codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# Kafka's InvalidMetadataException: refresh the topic's metadata before the next attempt.
STALE_METADATA: Codes = UNKNOWN_TOPIC | {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LISTENER_NOT_FOUND,
}
# Fetch and ListOffsets.
PARTITION_RETRIABLE: Codes = STALE_METADATA | {ErrorCode.OFFSET_NOT_AVAILABLE}
# The coordinator is being created, has moved, or replays its journal: look it up again.
STALE_COORDINATOR: Codes = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
# A transaction is ending, or is open and holds back the offsets that are fetched.
COORDINATOR_RETRIABLE: Codes = STALE_COORDINATOR | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}
# The broker did not append the batch, or may have: an idempotent producer sends the same batch again.
PRODUCE_RETRIABLE: Codes = STALE_METADATA | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}
# A broker restarts, a leader or a coordinator moves: over in seconds. A topic that does not exist is not among them.
CLUSTER_RETRIABLE: Codes = (
    (PARTITION_RETRIABLE - UNKNOWN_TOPIC)
    | STALE_COORDINATOR
    | {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT}
)


class RetryPolicy(NamedTuple):
    """Which of Kafka's errors are retriable, and until when."""

    codes: Codes
    timeout_ms: int
    bootstrap_timeout_ms: int | None = None  # while no broker has ever responded: the address may be wrong


class Retries:
    """Consecutive failures of one operation."""

    __slots__ = ("_backoff_s", "_policy", "count", "since")

    def __init__(self, client: "Client", policy: RetryPolicy) -> None:
        self._policy = policy
        self._backoff_s = client.retry_backoff_s
        self.count = 0
        self.since: float | None = None  # the deadline counts from here

    def reset(self) -> None:
        """The operation has succeeded."""
        self.count, self.since = 0, None

    def pause_s(self, failure: Failure, now: float, *, has_responded: bool = True) -> float | None:
        """Seconds until the next attempt; None if the failure is final or the deadline has passed."""
        codes, timeout_ms, bootstrap_timeout_ms = self._policy
        if not is_retriable(failure, codes):
            return None
        if not has_responded and bootstrap_timeout_ms is not None:
            timeout_ms = bootstrap_timeout_ms
        if self.since is None:
            self.since = now
        left_s = self.since + timeout_ms / 1000 - now
        if left_s <= 0:
            return None
        self.count += 1
        return min(backoff_s(self._backoff_s, self.count, failure), left_s)


async def retry(client: "Client", attempt: Callable[[], Awaitable[T]], policy: RetryPolicy) -> T:
    """Repeat `attempt` until it succeeds, so it must be safe to repeat; raises its last failure."""
    loop = asyncio.get_running_loop()
    retries = Retries(client, policy)
    retries.since = loop.time()
    while True:
        try:
            result = await attempt()
        except FAILURES as failure:
            if isinstance(failure, KafkaError | BrokerNotResponding):
                client.has_responded = True
            pause_s = retries.pause_s(failure, loop.time(), has_responded=client.has_responded)
            if pause_s is None or client.closed:
                raise
        else:
            client.has_responded = True
            return result
        await asyncio.sleep(pause_s)


def is_retriable(failure: Failure, codes: Codes) -> bool:
    """Whether another attempt may succeed."""
    return not isinstance(failure, KafkaError) or failure.code in codes


def backoff_s(initial_s: float, count: int, failure: Failure | None = None) -> float:
    """The pause after this many failures in a row."""
    if isinstance(failure, KafkaError) and failure.code is ErrorCode.CONCURRENT_TRANSACTIONS:
        return TRANSACTION_END_S
    doublings = min(max(count - 1, 0), 10)
    return min(initial_s * (1 << doublings), BACKOFF_S_MAX)

"""Verifies with the transaction coordinator that a transaction may be opened in a partition (KIP-890).

Clients of transaction version 1 have added the partition themselves, which is verified; for clients of version 2 it is
added now. While the coordinator still completes the producer's previous transaction the verification is retried, within
`add.partitions.to.txn.retry.backoff.max.ms`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from levada.broker.partition.partition import Partition
from levada.core.machine import Outcome, ResponseHandle
from levada.core.transactions.machine import TransactionsMachine
from levada.core.transactions.state import TRANSACTION_VERSION_2, ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.broker.broker import Broker

Verified = Callable[[list[ErrorCode]], None]

VERSION_2_FROM = 12  # of Produce: the broker adds the partition
ABORTABLE_FROM = 11  # of Produce: clients know TRANSACTION_ABORTABLE
RETRIABLE = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def produce_error(error: ErrorCode, version: int) -> ErrorCode:
    """A coordinator's error as clients of that version of Produce know it."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if error in RETRIABLE or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < VERSION_2_FROM):
        return ErrorCode.NOT_ENOUGH_REPLICAS  # which every client retries
    return error


class Verification:
    """One verification for one or more partitions; `verified` gets an error code for each, in order.

    By then the verification guard of each partition is verified, or has the error.
    """

    __slots__ = (
        "_broker",
        "_deadline_ms",
        "_guards",
        "_map_error",
        "_producer",
        "_topic_partitions",
        "_transactional_id",
        "_verified",
        "_version",
    )

    def __init__(
        self,
        broker: "Broker",
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[Partition],
        version: int,
        map_error: Callable[[ErrorCode], ErrorCode],
        verified: Verified,
    ) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._producer = producer
        self._topic_partitions = [(partition.topic, partition.index) for partition in partitions]
        self._guards = [partition.transactions.guard(*producer) for partition in partitions]
        self._version = version  # of the transaction protocol, 1 or 2
        self._map_error = map_error  # to what the client knows
        self._verified = verified
        self._deadline_ms = (
            broker.clock.now_ms() + broker.config.transactions.add_partitions_to_txn_retry_backoff_max_ms
        )

    def start(self) -> None:
        """Submit the verification to the coordinator; it may complete at once."""
        if (
            self._version < TRANSACTION_VERSION_2
            and not self._broker.current_config().transactions.transaction_partition_verification_enable
        ):
            self._finish([ErrorCode.NONE] * len(self._topic_partitions))
            return
        try:
            shard = self._broker.transactions.shard(self._transactional_id)
            shard.submit(self._decide).add_done_callback(self._complete)
        except KafkaError as error:
            self._complete(error)

    def _decide(self, machine: TransactionsMachine, now_ms: int, handle: ResponseHandle) -> Outcome:
        if self._version >= TRANSACTION_VERSION_2:
            return machine.add(
                self._transactional_id, self._producer, self._topic_partitions, self._version, now_ms, handle
            )
        errors = machine.verify(self._transactional_id, self._producer, self._topic_partitions)
        return Outcome(responses=[(handle, errors)])

    def _complete(self, result: Any) -> None:
        if not isinstance(result, Exception):
            self._finish(result or [ErrorCode.NONE] * len(self._topic_partitions))
            return
        if not isinstance(result, KafkaError):
            raise result
        config, clock = self._broker.config.transactions, self._broker.clock
        if result.code is ErrorCode.CONCURRENT_TRANSACTIONS and clock.now_ms() < self._deadline_ms:
            self._broker.call_later(config.add_partitions_to_txn_retry_backoff_ms / 1000, self.start)
            return
        self._finish([result.code] * len(self._topic_partitions))

    def _finish(self, errors: list[ErrorCode]) -> None:
        mapped = [self._map_error(error) for error in errors]
        for guard, error in zip(self._guards, mapped, strict=True):
            if error is ErrorCode.NONE:
                guard.verified = True
            else:
                guard.error = error
        self._verified(mapped)

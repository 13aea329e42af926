"""Asking the coordinator before a transaction is opened in a partition (KIP-890).

Clients of version 1 have added the partition themselves, which is verified; for those of version 2 it is added now.
While the transaction before is being ended the question waits a little, since its client has to wait anyway.
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

Answered = Callable[[list[ErrorCode]], None]
Told = Callable[[ErrorCode], ErrorCode]  # a coordinator's error as the client that asked knows it


class Question:
    """One question for one or more partitions; `answered` hears an error code for each, in order.

    By then the permission to open the transaction is granted or refused in each of them.
    """

    __slots__ = (
        "_answered",
        "_broker",
        "_client",
        "_permissions",
        "_places",
        "_told",
        "_transactional_id",
        "_until_ms",
        "_version",
    )

    def __init__(
        self,
        broker: "Broker",
        transactional_id: str,
        client: ProducerIdAndEpoch,
        partitions: Sequence[Partition],
        version: int,
        told: Told,
        answered: Answered,
    ) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._client = client
        self._places = [(partition.topic, partition.index) for partition in partitions]
        self._permissions = [partition.transactions.ask(*client) for partition in partitions]
        self._version = version
        self._told = told
        self._answered = answered
        self._until_ms = (
            broker.clock.now_ms() + broker.config.transactions.add_partitions_to_txn_retry_backoff_max_ms
        )

    def ask(self) -> None:
        """Ask; the answer may come at once."""
        if (
            self._version < TRANSACTION_VERSION_2
            and not self._broker.current_config().transactions.transaction_partition_verification_enable
        ):
            self._answer([ErrorCode.NONE] * len(self._places))
            return
        try:
            shard = self._broker.transactions.shard(self._transactional_id)
            shard.submit(self._decide).add_done_callback(self._hear)
        except KafkaError as error:
            self._hear(error)

    def _decide(self, machine: TransactionsMachine, now_ms: int, handle: ResponseHandle) -> Outcome:
        if self._version >= TRANSACTION_VERSION_2:
            return machine.add(
                self._transactional_id, self._client, self._places, self._version, now_ms, handle
            )
        errors = machine.verify(self._transactional_id, self._client, self._places)
        return Outcome(responses=[(handle, errors)])

    def _hear(self, result: Any) -> None:
        if not isinstance(result, Exception):
            self._answer(result or [ErrorCode.NONE] * len(self._places))
            return
        if not isinstance(result, KafkaError):
            raise result
        config = self._broker.config.transactions
        if result.code is ErrorCode.CONCURRENT_TRANSACTIONS and self._broker.clock.now_ms() < self._until_ms:
            self._broker.call_later(config.add_partitions_to_txn_retry_backoff_ms / 1000, self.ask)
            return
        self._answer([result.code] * len(self._places))

    def _answer(self, errors: list[ErrorCode]) -> None:
        told = [self._told(error) for error in errors]
        for permission, error in zip(self._permissions, told, strict=True):
            if error is ErrorCode.NONE:
                permission.granted = True
            else:
                permission.refused = error
        self._answered(told)

"""A Produce of a transaction that must wait for the coordinator: parked with a copy of its bytes (KIP-890).

While it is parked its connection is not read from, as in Kafka: whatever its producer sent after it stays behind it.
A Produce whose transactions are open in all its partitions never comes here to wait.
"""

from collections.abc import Sequence
from typing import Protocol

from levada.broker.broker import Broker
from levada.broker.partitions import Partition
from levada.broker.verification import Question
from levada.core.transaction_state import Identity
from levada.errors import ErrorCode, KafkaError
from levada.net.listener import Connection
from levada.wire.batches import HEADER_BYTES, read_header

VERSION_2_FROM = 12  # of Produce: the partition is added by the broker
ABORTABLE_FROM = 11  # that know TRANSACTION_ABORTABLE
NOT_NOW = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)

Part = tuple[bytes, int, int, int]


class Produce(Protocol):
    """The handler, to be called again."""

    def __call__(
        self,
        broker: Broker,
        connection: Connection,
        view: memoryview,
        position: int,
        stop: int,
        version: int,
        correlation_id: int,
        may_wait: bool,
    ) -> None: ...


class Parked:
    """One Produce that waits."""

    __slots__ = (
        "_answered",
        "_broker",
        "_client",
        "_connection",
        "_correlation_id",
        "_frame",
        "_partitions",
        "_produce",
        "_version",
    )

    def __init__(
        self, broker: Broker, connection: Connection, version: int, correlation_id: int, produce: Produce
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._produce = produce
        self._frame: bytearray | None = None
        self._answered = False
        self._client = Identity(-1, -1)
        self._partitions: list[Partition] = []

    def waits(
        self, transactional_id: str, view: memoryview, position: int, stop: int, parts: Sequence[Part]
    ) -> bool:
        """Whether the Produce has to wait; if it does, it is carried out later from a copy of view[position:stop]."""
        self._look(view, parts)
        if not self._partitions:
            return False
        version = 2 if self._version >= VERSION_2_FROM else 1
        Question(self._broker, transactional_id, self._client, self._partitions, version, self._hear).ask()
        if self._answered:
            return False
        self._frame = bytearray(view[position:stop])
        self._connection.delayed = True
        return True

    def _look(self, view: memoryview, parts: Sequence[Part]) -> None:
        """Find the partitions in which the transaction is not open and the coordinator has not been asked."""
        for topic, index, start, end in parts:
            if end - start < HEADER_BYTES:
                continue
            header = read_header(view, start)
            client = Identity(header.producer_id, header.producer_epoch)
            if not header.is_transactional or (self._partitions and client != self._client):
                continue
            try:
                partition = self._broker.route(topic, index, self._version)
            except KafkaError:
                continue
            if not partition.transactions.may_write(*client):
                self._client = client
                self._partitions.append(partition)

    def _hear(self, errors: list[ErrorCode]) -> None:
        self._answered = True
        for partition, error in zip(self._partitions, errors, strict=True):
            if error is not ErrorCode.NONE:
                partition.transactions.refuse(self._client.producer_id, told(error, self._version))
        if self._frame is None:
            return
        self._connection.delayed = False
        if not self._connection.closed:
            frame = memoryview(self._frame)
            self._produce(
                self._broker,
                self._connection,
                frame,
                0,
                len(frame),
                self._version,
                self._correlation_id,
                False,
            )
            self._connection.wake()


def told(error: ErrorCode, version: int) -> ErrorCode:
    """A coordinator's error as a client of that version of Produce knows it."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if error in NOT_NOW or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < VERSION_2_FROM):
        return ErrorCode.NOT_ENOUGH_REPLICAS  # which every client takes for a reason to try again
    return error

"""A Produce of a transaction that must wait for the coordinator: parked with a copy of its bytes (KIP-890).

While it is parked nothing else of its connection is begun, as in Kafka: whatever its producer sent after it stays
behind it, in the socket but for one receive.
A Produce whose transactions are open in all its partitions never comes here to wait.
"""

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final, Protocol

from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.broker.partition.verification import Question
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.net.connection import Connection
from levada.wire.batches import HEADER_BYTES, TRANSACTIONAL_BIT
from levada.wire.fast.produce import ProduceRequest

log = EventLog(__name__)

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

_unpack_producer: Final = Struct(">21xh20xqh").unpack_from  # attributes, producer id, epoch


class Append(Protocol):
    """`levada.api.produce.append`."""

    def __call__(
        self,
        broker: Broker,
        connection: Connection,
        view: memoryview,
        request: ProduceRequest,
        version: int,
        correlation_id: int,
        verified: bool,
    ) -> None: ...


def unopened(
    broker: Broker, view: memoryview, parts: Sequence[Part], version: int
) -> list[tuple[Partition, ProducerIdAndEpoch]]:
    """The partitions of a Produce in which a transaction is not open, and may not be opened yet; with its producer."""
    found = []
    for topic, index, start, end in parts:
        if end - start < HEADER_BYTES:
            continue
        attributes, producer_id, epoch = _unpack_producer(view, start)
        if not attributes & TRANSACTIONAL_BIT:
            continue
        try:
            partition = broker.route(topic, index, version)
        except KafkaError:
            continue
        if not partition.transactions.may_write(producer_id, epoch):
            found.append((partition, ProducerIdAndEpoch(producer_id, epoch)))
    return found


class Parked:
    """One Produce that waits."""

    __slots__ = (
        "_answered",
        "_append",
        "_batches",
        "_broker",
        "_connection",
        "_correlation_id",
        "_request",
        "_version",
    )

    def __init__(
        self, broker: Broker, connection: Connection, version: int, correlation_id: int, append: Append
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._append = append
        self._batches = bytearray()
        self._request: ProduceRequest | None = None
        self._answered = False

    def waits(
        self,
        transactional_id: str,
        places: Sequence[tuple[Partition, ProducerIdAndEpoch]],
        view: memoryview,
        request: ProduceRequest,
    ) -> bool:
        """Ask for these; whether the Produce has to wait, to be appended from a copy of its batches."""
        client = places[0][1]  # a request is of one producer
        partitions = [partition for partition, writer in places if writer == client]
        version = 2 if self._version >= VERSION_2_FROM else 1
        told = partial(told_to, version=self._version)
        Question(self._broker, transactional_id, client, partitions, version, told, self._hear).ask()
        if self._answered:
            return False
        self._batches, parts = bytearray(), []
        for topic, index, start, end in request.parts:
            at = len(self._batches)
            self._batches += view[start:end]
            parts.append((topic, index, at, len(self._batches)))
        self._request = request._replace(parts=parts)
        self._connection.muted = True
        return True

    def _hear(self, errors: list[ErrorCode]) -> None:
        self._answered = True
        if self._request is None:
            return
        connection = self._connection
        connection.muted = False
        if connection.closed:
            return
        view, version = memoryview(self._batches), self._version
        try:
            self._append(
                self._broker, connection, view, self._request, version, self._correlation_id, verified=True
            )
        except Exception as error:  # a bug costs this client its connection, not the coordinator its journal
            log.error("a Produce that waited failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)
        connection.wake()


def told_to(error: ErrorCode, version: int) -> ErrorCode:
    """A coordinator's error as a client of that version of Produce knows it."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if error in NOT_NOW or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < VERSION_2_FROM):
        return ErrorCode.NOT_ENOUGH_REPLICAS  # which every client takes for a reason to try again
    return error

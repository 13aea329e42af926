"""A transactional Produce that waits for its verification by the transaction coordinator (KIP-890).

It keeps a copy of its batches. Its connection is muted meanwhile, as in Kafka: the producer's next requests stay behind
it. A Produce whose transaction is open in all its partitions needs no verification.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.broker.partition.verification import VERSION_2_FROM, Verification, produce_error
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.net.connection import Connection
from levada.wire.batches import HEADER_BYTES, TRANSACTIONAL_BIT
from levada.wire.fast.produce import ProduceRequest

log = EventLog(__name__)

Append = Callable[[memoryview, ProduceRequest], None]

_unpack_producer: Final = Struct(">21xh20xqh").unpack_from  # attributes, producer id, epoch


def await_verification(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    version: int,
    append: Append,
) -> bool:
    """Verify the transaction where it is not open; True if that takes time, and `append` follows later."""
    unverified = _unverified(broker, view, request, version)
    if not unverified:
        return False
    producer = unverified[0][1]  # a request is of one producer
    partitions = [partition for partition, writer in unverified if writer == producer]
    transaction_version = 2 if version >= VERSION_2_FROM else 1
    waiting = _UnverifiedProduce(connection, append)
    Verification(
        broker,
        request.transactional_id or "",
        producer,
        partitions,
        transaction_version,
        partial(produce_error, version=version),
        waiting.verified,
    ).start()
    return waiting.hold(view, request)


def _unverified(
    broker: Broker, view: memoryview, request: ProduceRequest, version: int
) -> list[tuple[Partition, ProducerIdAndEpoch]]:
    """The partitions in which the transaction is neither open nor verified, with the producer of the batch."""
    found = []
    for topic, index, start, end in request.partitions:
        if end - start < HEADER_BYTES:
            continue
        attributes, producer_id, epoch = _unpack_producer(view, start)
        if not attributes & TRANSACTIONAL_BIT:
            continue
        try:
            partition = broker.route(topic, index, version)
        except KafkaError:
            continue
        if not partition.transactions.is_verified(producer_id, epoch):
            found.append((partition, ProducerIdAndEpoch(producer_id, epoch)))
    return found


class _UnverifiedProduce:
    """The copy of one Produce."""

    __slots__ = ("_append", "_batches", "_connection", "_done", "_request")

    def __init__(self, connection: Connection, append: Append) -> None:
        self._connection = connection
        self._append = append
        self._batches = bytearray()
        self._request: ProduceRequest | None = None
        self._done = False

    def hold(self, view: memoryview, request: ProduceRequest) -> bool:
        """Copy the batches and mute the connection, unless the verification is done already."""
        if self._done:
            return False
        parts = []
        for topic, index, start, end in request.partitions:
            at = len(self._batches)
            self._batches += view[start:end]
            parts.append((topic, index, at, len(self._batches)))
        self._request = request._replace(partitions=parts)
        self._connection.muted = True
        return True

    def verified(self, errors: list[ErrorCode]) -> None:
        """Append the copy; the partitions' verification guards have the errors."""
        self._done = True
        if self._request is None:
            return
        connection = self._connection
        connection.muted = False
        if connection.closed:
            return
        try:
            self._append(memoryview(self._batches), self._request)
        except Exception as error:  # a bug costs this client its connection, not the coordinator its journal
            log.error("a verified Produce failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)
        connection.wake()

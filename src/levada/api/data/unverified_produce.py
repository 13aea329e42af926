"""A transactional Produce that waits for its verification by the transaction coordinator (KIP-890).

A Produce whose transaction is open in all its partitions needs no verification.
"""

from functools import partial
from struct import Struct
from typing import Final

from levada.api.data.parked_produce import Append, ParkedProduce
from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.broker.partition.verification import VERSION_2_FROM, Verification, produce_error
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection
from levada.wire.batches import HEADER_BYTES, TRANSACTIONAL_BIT
from levada.wire.fast.produce import ProduceRequest

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
    unverified_produce = _UnverifiedProduce()
    Verification(
        broker,
        request.transactional_id or "",
        producer,
        partitions,
        transaction_version,
        partial(produce_error, version=version),
        unverified_produce.verified,
    ).start()
    return unverified_produce.park(broker, connection, view, request, append)


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
    """A Produce that is parked unless its verification is done at once."""

    __slots__ = ("_done", "_parked")

    def __init__(self) -> None:
        self._parked: ParkedProduce | None = None
        self._done = False

    def park(
        self, broker: Broker, connection: Connection, view: memoryview, request: ProduceRequest, append: Append
    ) -> bool:
        """Park the Produce; False if the verification is done already."""
        if not self._done:
            self._parked = ParkedProduce(broker, connection, view, request, append)
        return not self._done

    def verified(self, errors: list[ErrorCode]) -> None:
        """Append the batches; the partitions' verification guards have the errors."""
        self._done = True
        if self._parked is not None:
            self._parked.resume()

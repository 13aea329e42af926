"""A Produce that waits, with a copy of its batches, before they are appended.

Its connection is muted meanwhile, as in Kafka: the producer's next requests stay behind it. The copy counts as a
receive buffer (`levada.receive.buffers.bytes.max`).
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from levada.broker.broker import Broker
from levada.logs import EventLog
from levada.net.connection import Connection
from levada.wire.fast.produce import ProduceRequest
from levada.wire.schema import messages

log = EventLog(__name__)

PRODUCE: Final = messages.api_key("produce")
ACKS_NONE: Final = 0

Append: TypeAlias = Callable[..., None]  # with the batches, the request, and when it began
Prepare: TypeAlias = Callable[[], tuple[memoryview, ProduceRequest]]


class ParkedProduce:
    """The copy of one Produce."""

    __slots__ = ("_append", "_began", "_connection", "_reserved_bytes", "request", "view")

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        view: memoryview,
        request: ProduceRequest,
        append: Append,
        began: float | None = None,
    ) -> None:
        """Copy the batches and mute the connection. `began` is given if it was parked before."""
        self._began = broker.request_metrics.delay(PRODUCE) if began is None else began
        self._append = append
        self._connection = connection
        batches = bytearray()
        parts = []
        for topic, index, start, end in request.partitions:
            at = len(batches)
            batches += view[start:end]
            parts.append((topic, index, at, len(batches)))
        self.view = memoryview(batches)
        self._reserved_bytes = len(batches)
        connection.buffer_pool.reserve(self._reserved_bytes)
        self.request = request._replace(partitions=parts)
        connection.muted = True

    def resume(self, prepare: Prepare | None = None) -> None:
        """Append the batches, or those that `prepare` returns; then dispatch the connection's next requests."""
        connection = self._connection
        connection.muted = False
        connection.buffer_pool.reserve(-self._reserved_bytes)
        if connection.closed and self.request.acks != ACKS_NONE:
            return  # without acks the client may close before its batches are appended
        try:
            view, request = (self.view, self.request) if prepare is None else prepare()
            self._append(view, request, began=self._began)
        except Exception as error:  # a bug costs this client its connection, not the coordinator its journal
            log.error("a parked Produce failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)
        connection.wake()

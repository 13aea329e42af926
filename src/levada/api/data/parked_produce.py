"""A Produce that waits, with a copy of its batches, before they are appended.

Its connection is muted meanwhile, as in Kafka: the producer's next requests stay behind it.
"""

from collections.abc import Callable
from typing import TypeAlias

from levada.logs import EventLog
from levada.net.connection import Connection
from levada.wire.fast.produce import ProduceRequest

log = EventLog(__name__)

Append: TypeAlias = Callable[[memoryview, ProduceRequest], None]
Prepare: TypeAlias = Callable[[], tuple[memoryview, ProduceRequest]]


class ParkedProduce:
    """The copy of one Produce."""

    __slots__ = ("_append", "_connection", "request", "view")

    def __init__(self, connection: Connection, view: memoryview, request: ProduceRequest, append: Append) -> None:
        """Copy the batches and mute the connection."""
        self._append = append
        self._connection = connection
        batches = bytearray()
        parts = []
        for topic, index, start, end in request.partitions:
            at = len(batches)
            batches += view[start:end]
            parts.append((topic, index, at, len(batches)))
        self.view = memoryview(batches)
        self.request = request._replace(partitions=parts)
        connection.muted = True

    def resume(self, prepare: Prepare | None = None) -> None:
        """Append the batches, or those that `prepare` returns; then dispatch the connection's next requests."""
        connection = self._connection
        connection.muted = False
        if connection.closed:
            return
        try:
            self._append(*(prepare() if prepare is not None else (self.view, self.request)))
        except Exception as error:  # a bug costs this client its connection, not the coordinator its journal
            log.error("a parked Produce failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)
        connection.wake()

"""A Produce that waits, with a copy of its batches, before they are appended.

Its connection is muted meanwhile, as in Kafka: the producer's next requests stay behind it. The copy counts as a
receive buffer (`levada.receive.buffers.bytes.max`). A Produce for many partitions is parked too, and appended in
slices.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from levada.broker.broker import Broker
from levada.logs import EventLog
from levada.net.connection import Connection
from levada.wire.fast.produce import ProduceRequest
from levada.wire.schema import messages

log = EventLog(__name__)

PRODUCE: Final = messages.api_key("produce")
ACKS_NONE: Final = 0
PARTITIONS_PER_ITERATION: Final = 500  # of a Produce for more

Append: TypeAlias = Callable[..., None]  # with the batches, the request, and when it began
Prepare: TypeAlias = Callable[[], tuple[memoryview, ProduceRequest]]


class ParkedProduce:
    """The copy of one Produce."""

    __slots__ = (
        "_append",
        "_began",
        "_broker",
        "_connection",
        "_released",
        "_reserved_bytes",
        "following",
        "request",
        "view",
    )

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
        self._broker = broker
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
        self.following = parts[:0]  # the partitions of the next slices
        self._released = False
        connection.muted = True

    def resume(self, prepare: Prepare | None = None) -> None:
        """Append the batches, or those that `prepare` returns; then dispatch the connection's next requests."""
        self._release()
        self._attempt(lambda: self._append(*(prepare or self._received)(), began=self._began))
        self._connection.wake()

    def resume_in_slices(self) -> None:
        """Append the batches in the next loop iterations."""
        self.following = self.request.partitions
        self._broker.tasks.start("produce-slices", self._append_slices())

    async def _append_slices(self) -> None:
        parts, appended = self.request.partitions, 0
        async with self._broker.large_requests:
            while self.following:
                await asyncio.sleep(0)
                part = self.request._replace(partitions=parts[appended : appended + PARTITIONS_PER_ITERATION])
                appended += PARTITIONS_PER_ITERATION
                self.following = parts[appended:]
                if not self.following:
                    self._release()
                self._attempt(partial(self._append, self.view, part, began=self._began, slices=self))
        self._release()
        self._connection.wake()

    def end_slices(self) -> "list[tuple[bytes, int, int, int]]":
        """The partitions of the next slices, which the caller parks again."""
        following, self.following = self.following, []
        self._release()
        return following

    def _received(self) -> tuple[memoryview, ProduceRequest]:
        return self.view, self.request

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._connection.muted = False
            self._connection.buffer_pool.reserve(-self._reserved_bytes)

    def _attempt(self, append: Callable[[], None]) -> None:
        connection = self._connection
        if connection.closed and self.request.acks != ACKS_NONE:
            self.following = []
            return  # without acks the client may close before its batches are appended
        try:
            append()
        except Exception as error:  # a bug costs this client its connection, not the coordinator its journal
            self.following = []
            log.error("a parked Produce failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)

"""A Fetch of many partitions: they are read in slices, one slice per loop iteration, and so again after a wait."""

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from levada.broker.broker import Broker
from levada.broker.purgatory import DelayedResponse
from levada.net.connection import Connection

if TYPE_CHECKING:
    from levada.api.data.fetch import FetchRead

PARTITIONS_PER_ITERATION: Final = 500


class LargeFetch(DelayedResponse):
    """The response, which is pending while partitions are read, and while there is less than min.bytes."""

    __slots__ = ("_broker", "_missing_bytes", "_read")
    connection: Connection

    def __init__(self, broker: Broker, connection: Connection, read: "FetchRead") -> None:
        super().__init__(connection)
        self._broker = broker
        self._read = read
        self._missing_bytes = 0

    def begin(self) -> None:
        """Read all partitions; then respond, or wait for the request's min.bytes."""
        self._read.delay()
        self.connection.respond(self)
        self._broker.tasks.start("fetch-slices", self._respond_or_wait())

    async def _respond_or_wait(self) -> None:
        read = self._read
        async with self._broker.large_requests:
            await self._read_in_slices()
            if self.connection.closed:
                return
            self._missing_bytes = read.missing_bytes
            if not read.cold and self._missing_bytes <= 0:
                await self._respond()
                return
        if read.cold:
            self._broker.read_ahead(list(read.cold), self._read_again)
        else:
            self.watch(read.watched(), read.max_wait_ms, self._broker.call_later)

    async def _read_in_slices(self) -> None:
        partitions = iter(self._read.partitions)
        while not self.connection.closed and (some := list(islice(partitions, PARTITIONS_PER_ITERATION))):
            await asyncio.sleep(0)
            self._read.read(some)

    def try_complete(self, published_bytes: int) -> None:
        self._missing_bytes -= published_bytes
        if self._missing_bytes <= 0 or published_bytes == 0:
            self.expire()

    def expire(self) -> None:
        self.cancel()
        self._read_again()

    def _read_again(self) -> None:
        self._broker.tasks.start("fetch-slices", self._read_again_in_slices())

    async def _read_again_in_slices(self) -> None:
        self._read.reset()
        async with self._broker.large_requests:
            await self._read_in_slices()
            await self._respond()

    async def _respond(self) -> None:
        if not self.connection.closed:
            await asyncio.sleep(0)
            self._read.complete()
            self.complete(self._read.encode())

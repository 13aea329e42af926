"""Request-response connections: members of groups and transactional producers wait for each response.

One uvloop drives thousands of them; a request costs the generator some twenty microseconds, less than any broker
spends on it. Responses come in the order of requests, so a connection may have several in flight.
"""

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import uvloop

from bench.generator.wire import I32, BrokerError

T = TypeVar("T")


class Dialogue(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_pending", "_received", "_transport", "lost")

    def __init__(self) -> None:
        self._pending: deque[asyncio.Future[bytes]] = deque()
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, port: int) -> "Dialogue":
        _, dialogue = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return dialogue

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class

    def request(self, frame: bytes | bytearray) -> "asyncio.Future[bytes]":
        """Sends a request; the future is its response without the length field."""
        assert self._transport is not None
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending.append(response)
        self._transport.write(frame)
        return response

    def data_received(self, data: bytes) -> None:
        data = self._received + data if self._received else data
        at, end = 0, len(data)
        while at + 4 <= end:
            (size,) = I32.unpack_from(data, at)
            if at + 4 + size > end:
                break
            response = self._pending.popleft()
            if not response.done():
                response.set_result(data[at + 4 : at + 4 + size])
            at += 4 + size
        self._received = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)
        for response in self._pending:
            if not response.done():
                response.set_exception(BrokerError(f"the broker closed the connection: {error}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@asynccontextmanager
async def many(port: int, count: int) -> AsyncIterator[list[Dialogue]]:
    """So many connections, opened some at a time, since a listener's backlog is short; closed in the end."""
    opened: list[Dialogue] = []
    try:
        while len(opened) < count:
            some = (Dialogue.open(port) for _ in range(min(100, count - len(opened))))
            opened += await asyncio.gather(*some)
        yield opened
    finally:
        for dialogue in opened:
            dialogue.close()
        await asyncio.gather(*(dialogue.lost for dialogue in opened))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a load to its end; the generator's own garbage is not collected meanwhile."""
    gc.disable()
    try:
        return uvloop.run(work)
    finally:
        gc.enable()

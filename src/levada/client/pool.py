"""Connections by address: each is opened when it is first needed, once, and again after it was lost."""

import asyncio

from levada.client.connection import Address, Connection
from levada.client.errors import ConnectionFailed


class Pool:
    """At most one connection to each address.

    A broker answers the requests of a connection in order, so whoever keeps a long poll open has a pool of its own:
    nothing else shall wait behind it.
    """

    def __init__(self, client_id: str, *, connect_timeout_s: float, response_bytes_max: int) -> None:
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._response_bytes_max = response_bytes_max
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self.closed = False

    def any_open(self) -> Connection | None:
        """A connection that is open, if there is one."""
        return next((one for one in self._connections.values() if not one.closed), None)

    async def get(self, address: Address) -> Connection:
        """The connection to an address."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self.closed:
            raise ConnectionFailed("the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.create_task(self._open(address), name=f"connect to {address}")
            opening.add_done_callback(_look_at)  # who asked for it may be gone
            self._opening[address] = opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close every connection after what was written has left."""
        self.closed = True
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.finish() for connection in self._connections.values()))
        self._connections.clear()

    async def _open(self, address: Address) -> Connection:
        try:
            connection = await Connection.open(
                address,
                self._client_id,
                timeout_s=self._connect_timeout_s,
                response_bytes_max=self._response_bytes_max,
            )
            self._connections[address] = connection
            return connection
        finally:
            del self._opening[address]


def _look_at(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()

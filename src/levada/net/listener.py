"""A listener: binds an address, accepts connections within the broker's limits, and closes them when it stops."""

import asyncio
import socket
from collections import Counter

from levada.net.buffer_pool import BufferPool, MemoryLimit
from levada.net.connection import Connection, Dispatch, RequestLimits
from levada.net.flush import FlushQueue
from levada.net.idle_reaper import IdleReaper

STOP_SECONDS = 1.0  # for clients to read their last responses when the broker stops


class ConnectionLimits:
    """Counts the connections of all listeners (`max.connections`, `max.connections.per.ip`)."""

    __slots__ = ("_per_ip", "_per_ip_max", "_total", "_total_max")

    def __init__(self, total_max: int, per_ip_max: int) -> None:
        self._total_max = total_max
        self._per_ip_max = per_ip_max
        self._total = 0
        self._per_ip: Counter[str] = Counter()

    def accept(self, host: str) -> str | None:
        """Count a connection; or the limit that rejects it."""
        if self._total >= self._total_max:
            return f"max.connections={self._total_max} is reached"
        if self._per_ip[host] >= self._per_ip_max:
            return f"max.connections.per.ip={self._per_ip_max} is reached"
        self._total += 1
        self._per_ip[host] += 1
        return None

    def remove(self, host: str) -> None:
        """An accepted connection is closed."""
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]


class Listener:
    """One address that clients connect to."""

    def __init__(
        self,
        name: str,
        dispatch: Dispatch,
        flush_queue: FlushQueue,
        buffer_pool: BufferPool,
        limits: RequestLimits,
        connection_limits: ConnectionLimits,
    ) -> None:
        self.name = name
        self.dispatch = dispatch
        self.flush_queue = flush_queue
        self.buffer_pool = buffer_pool
        self.limits = limits
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self._connection_limits = connection_limits
        self._socket: socket.socket | None = None
        self._backlog = 0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._idle_reaper = IdleReaper(self.connections, limits.idle_ms_max, self._loop)
        self.memory_limit = MemoryLimit(buffer_pool, self._loop)
        self._drained = asyncio.Event()  # when stopping: the last connection is closed

    def bind(self, host: str, port: int, backlog: int) -> int:
        """Bind the address, so that it can be advertised before connections are accepted; port 0 takes a free one.

        `backlog` connections may wait to be accepted.
        """
        self._backlog = backlog
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=backlog)
        except OSError as error:
            why = str(error.strerror).partition(" (while")[0]
            raise OSError(f"cannot listen on {host}:{port}: {why}") from error
        # Accepted sockets inherit it; asyncio's own loop sets it only for sockets that name their protocol.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Accept connections."""
        assert self._socket is not None
        self._server = await self._loop.create_server(
            lambda: Connection(self), sock=self._socket, backlog=self._backlog
        )
        self._idle_reaper.start()

    async def stop(self) -> None:
        """Accept no more, and close all connections; those that do not read their last responses are aborted."""
        self.memory_limit.stop()
        self._idle_reaper.stop()
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        if self.connections:
            for connection in self.connections:
                connection.transport.close()
            timer = self._loop.call_later(STOP_SECONDS, self._abort)
            await self._drained.wait()
            timer.cancel()
        if self._server is not None:
            await self._server.wait_closed()

    def _abort(self) -> None:
        for connection in list(self.connections):
            connection.close("the broker stops")

    def accept(self, connection: Connection) -> None:
        """Count a new connection, or close it if a limit is reached."""
        host, port, *_ = connection.transport.get_extra_info("peername") or ("", 0)
        connection.host = str(host)
        connection.peer = f"{host}:{port}"
        reached = self._connection_limits.accept(connection.host)
        if reached:
            connection.close(reached)
        else:
            self.connections_total += 1
            self.connections.add(connection)

    def remove(self, connection: Connection) -> None:
        """A connection is closed."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._connection_limits.remove(connection.host)
            if not self.connections:
                self._drained.set()

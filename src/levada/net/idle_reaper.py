"""Closes idle connections and detects dead peers.

The event loop notices that a peer has closed its end only on connections that it reads from. It does not read from a
connection that has the maximum of requests in flight, and a long poll may last for days: the reaper asks the kernel
for the TCP state of such connections.
"""

import asyncio
import socket
import sys
from collections.abc import Iterable
from typing import Final, Protocol

CHECK_SECONDS_MIN: Final = 0.05
CHECK_SECONDS_MAX: Final = 60.0
# Other systems number TCP's states differently; there a dead peer is noticed when a response is sent to it.
HAS_TCP_INFO: Final = sys.platform == "linux"
ESTABLISHED: Final = 1  # of TCP's states, the first byte of TCP_INFO


class ClientConnection(Protocol):
    """A connection as the reaper sees it."""

    active: bool
    idle_since: float
    transport: asyncio.Transport

    @property
    def is_waiting(self) -> bool:
        """Whether a response is pending, or the connection is muted."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the loop reads from it."""
        ...

    def close(self, reason: str) -> None: ...


class IdleReaper:
    """Closes the idle and dead connections of one listener (`connections.max.idle.ms`)."""

    __slots__ = ("_connections", "_loop", "_seconds_max", "_timer")

    def __init__(
        self, connections: Iterable[ClientConnection], idle_ms_max: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._connections = connections
        self._seconds_max = idle_ms_max / 1000 if idle_ms_max >= 0 else float("inf")
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now and at intervals, until stopped."""
        interval_s = min(max(self._seconds_max / 10, CHECK_SECONDS_MIN), CHECK_SECONDS_MAX)
        self._timer = self._loop.call_later(interval_s, self.start)
        self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """A connection that waits for a response is not idle; one that does not read its responses is.

        A receive only sets `active`, since receives are many; the time is taken here. So a connection may be closed
        two intervals late.
        """
        now = self._loop.time()
        for connection in list(self._connections):
            if connection.active or connection.is_waiting:
                connection.active, connection.idle_since = False, now
            if now - connection.idle_since > self._seconds_max:
                connection.close("idle for longer than connections.max.idle.ms")
            elif not connection.is_read and _is_dead(connection.transport):
                connection.close("the peer has closed the connection")


def _is_dead(transport: asyncio.Transport) -> bool:
    """Whether the kernel knows that the peer has closed or reset the connection."""
    if not HAS_TCP_INFO or transport.is_closing():
        return False
    sock = transport.get_extra_info("socket")
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED)

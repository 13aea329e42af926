"""Clients that say nothing: who is closed for it, and who has gone without anybody noticing.

The loop tells that a client has closed its end when it reads from it. From one that has asked as much as it may it does
not read, and the answer that it waits for may be days away by its own wish: the kernel is asked about such ones.
"""

import asyncio
import socket
import sys
from collections.abc import Iterable
from typing import Final, Protocol

LOOK_SECONDS_MIN: Final = 0.05
LOOK_SECONDS_MAX: Final = 60.0
# Elsewhere states have other numbers, and who has gone is noticed when it is answered.
KERNEL_TELLS: Final = sys.platform == "linux"
ESTABLISHED: Final = 1  # of TCP's states, the first byte of TCP_INFO


class Client(Protocol):
    """A connection."""

    heard: bool
    silent_since: float
    transport: asyncio.Transport

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is owed that is not known yet, or not given on purpose."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the loop reads from it."""
        ...

    def close(self, reason: str) -> None: ...


class Silence:
    """Looks after the clients of a listener."""

    __slots__ = ("_clients", "_loop", "_seconds_max", "_timer")

    def __init__(self, clients: Iterable[Client], idle_ms_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._clients = clients
        self._seconds_max = idle_ms_max / 1000 if idle_ms_max >= 0 else float("inf")
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look now and then until stopped."""
        again_s = min(max(self._seconds_max / 10, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
        self._timer = self._loop.call_later(again_s, self.watch)
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """A client that waits for an answer is not idle, one that does not take its answers is.

        Whoever is heard of only says so, since that is at each receive: when is known as exactly as is looked, so that
        a client may be closed two looks late.
        """
        now = self._loop.time()
        for client in list(self._clients):
            if client.heard or client.is_waiting:
                client.heard, client.silent_since = False, now
            if now - client.silent_since > self._seconds_max:
                client.close("idle for longer than connections.max.idle.ms")
            elif not client.is_read and _has_gone(client.transport):
                client.close("the client has gone")


def _has_gone(transport: asyncio.Transport) -> bool:
    """Whether the other end is closed, by what the kernel knows."""
    if not KERNEL_TELLS or transport.is_closing():
        return False
    sock = transport.get_extra_info("socket")
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED)

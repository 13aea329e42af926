"""Answers that must wait, each a small object in its connection's outbox: no task, no future, no queue.

A long poll waits for bytes to be published in any of its partitions or for its timer, whichever is first. A Produce
waits for the high watermark to pass its last record.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from levada.wire.connection import Reply


class Client(Protocol):
    """The connection that an answer goes to."""

    def wake(self) -> None:
        """Look at the outbox at the end of the turn."""
        ...


class Watched(Protocol):
    """What a waiter waits for (a partition): it calls `news` on each of its waiters when something happens."""

    waiters: "set[Waiter]"


class Waiter(Protocol):
    """Who waits at a partition."""

    def news(self, published_bytes: int) -> None:
        """The high watermark has moved over that many bytes, or the partition is gone or broken."""
        ...


class Answer:
    """A place in the outbox that is filled once, by whoever holds it."""

    __slots__ = ("_client", "_reply")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reply: Reply | None = None

    def give(self, reply: Reply) -> None:
        """Fill the place."""
        self._reply = reply
        self._client.wake()

    def collect(self) -> Reply | None:
        return self._reply

    def give_up(self) -> None:
        """Nothing to stop: what was begun (a topic being created) is finished without its client."""


class LongPoll:
    """A Fetch that found less than it asked for."""

    __slots__ = ("_client", "_finish", "_missing_bytes", "_partitions", "_ready", "_timer")

    def __init__(
        self,
        client: Client,
        partitions: Sequence[Watched],
        missing_bytes: int,
        finish: Callable[[], Reply],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        max_wait_ms: int,
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._finish = finish
        self._ready = False
        self._timer = call_later(max_wait_ms / 1000, self._end)
        for partition in partitions:
            partition.waiters.add(self)

    def news(self, published_bytes: int) -> None:
        self._missing_bytes -= published_bytes
        if self._missing_bytes <= 0 or published_bytes == 0:
            self._end()

    def collect(self) -> Reply | None:
        """Read only now: by the end of the turn all of its partitions have been written."""
        return self._finish() if self._ready else None

    def give_up(self) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.discard(self)

    def _end(self) -> None:
        self.give_up()
        self._ready = True
        self._client.wake()

"""Answers that must wait, each a small object in its connection's outbox: no task, no future, no queue.

A long poll waits for bytes to be published in any of its partitions or for its timer, whichever is first. A Produce
waits for the high watermark to pass its last record. A coordinator gives its responses when its journal is committed.
"""

import asyncio
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, Protocol

from levada.errors import KafkaError
from levada.wire.frames import Reply


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


class Promise(Hashable, Protocol):
    """Who is told how a decision of a coordinator came out: a response, or an exception."""

    def give(self, result: Any) -> None: ...


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


class Deferred:
    """A response that a handler promises: given once, by whoever holds it, as a response or as an exception.

    A handler may return it, or `await` it where it has more to do afterwards.
    """

    __slots__ = ("_convert", "_result", "_then")

    _PENDING = object()

    def __init__(self, convert: Callable[[Any], Any] | None = None) -> None:
        self._convert = convert  # from what is given to what is heard
        self._result: Any = self._PENDING
        self._then: Callable[[Any], None] | None = None

    @property
    def done(self) -> bool:
        return self._result is not self._PENDING

    def give(self, result: Any) -> None:
        """Answer; an exception says that it failed. A second answer is not heard."""
        if self.done:
            return
        if self._convert is not None and not isinstance(result, Exception):
            try:
                result = self._convert(result)
            except Exception as error:  # noqa: BLE001 (a bug of this answer, told by whoever hears it)
                result = error
        elif isinstance(result, KafkaError):
            result = result.kept()
        self._result = result
        if self._then is not None:
            self._then(result)

    def then(self, hear: Callable[[Any], None]) -> None:
        """Have `hear` called with the response or the exception, at once if it is known; once at most."""
        assert self._then is None, "somebody listens already"
        self._then = hear
        if self.done:
            hear(self._result)

    def __await__(self) -> Generator[Any, None, Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def hear(result: Any) -> None:
            if future.cancelled():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.then(hear)
        return future.__await__()


def together(parts: Sequence[Deferred], convert: Callable[[list[Any]], Any]) -> Deferred:
    """One response from many; a part that failed comes as its exception."""
    whole = Deferred(convert)
    if len(parts) == 1:
        parts[0].then(lambda result: whole.give([result]))
        return whole
    results: list[Any] = [None] * len(parts)
    missing = len(parts)

    def listen(position: int) -> Callable[[Any], None]:
        def hear(result: Any) -> None:
            nonlocal missing
            results[position] = result
            missing -= 1
            if not missing:
                whole.give(results)

        return hear

    for position, part in enumerate(parts):
        part.then(listen(position))
    if not parts:
        whole.give(results)
    return whole


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

"""Delayed responses: each is a small object in its connection's outbox; no task, no future, no queue.

Kafka calls the place of such requests the purgatory. A Fetch that found too little waits for bytes to be published in
its partitions, a Produce waits for the high watermark to pass its records, and a group request waits until its
coordinator completes it. Partitions and coordinators refer to what waits for them: nothing is searched or polled.
"""

import asyncio
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, Protocol

from levada.errors import KafkaError
from levada.wire.frames import Response

CallLater = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
PENDING = object()  # the result of a response that is not complete


class Client(Protocol):
    """The connection that a response is sent to."""

    def wake(self) -> None:
        """Collect from the outbox in the next flush."""
        ...


class Watcher(Protocol):
    """An object that waits for a partition."""

    def try_complete(self, published_bytes: int) -> None:
        """The high watermark has advanced over so many bytes; 0 if the partition is offline or deleted."""
        ...


class Watched(Protocol):
    """What a response waits for (a partition): it calls `try_complete` on each of its watchers."""

    watchers: set[Watcher]


class Completable(Hashable, Protocol):
    """What a coordinator completes with its result: a response, or an exception."""

    def complete(self, result: Any) -> None: ...


class DelayedResponse:
    """A response that is completed once: by `complete`, or, where it watches partitions, by them or by its timer."""

    __slots__ = ("_timer", "_watched", "connection", "result")
    _watched: Iterable[Watched]  # set with the timer
    connection: Client

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.result: Any = PENDING
        self._timer: asyncio.TimerHandle | None = None

    def complete(self, result: Any) -> None:
        """Set the result; the response is sent in the next flush."""
        self.result = result
        self.connection.wake()

    def collect(self) -> Response | None:
        return None if self.result is PENDING else self.encode(self.result)

    def encode(self, result: Any) -> Response:
        """The frame of a result; it is encoded only when it can be sent."""
        response: Response = result
        return response

    def watch(self, partitions: Iterable[Watched], timeout_ms: int, call_later: CallLater) -> None:
        """Wait for `try_complete` of these partitions, and at most `timeout_ms`."""
        self._watched = partitions
        self._timer = call_later(timeout_ms / 1000, self.expire)
        for partition in partitions:
            partition.watchers.add(self)

    def try_complete(self, published_bytes: int) -> None:
        """A watched partition has advanced or failed: collect again in the next flush."""
        self.connection.wake()

    def expire(self) -> None:
        """The timeout has passed: complete with what is available."""
        self.cancel()
        self.complete(None)

    def cancel(self) -> None:
        """Stop watching. What a coordinator has begun is finished without its client."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for partition in self._watched:
                partition.watchers.discard(self)


class DelayedFetch(DelayedResponse):
    """A Fetch that found fewer than its min.bytes; it is read again when the wait is over."""

    __slots__ = ("_missing_bytes", "_read")

    def __init__(self, connection: Client, missing_bytes: int, read: Callable[[], Response]) -> None:
        super().__init__(connection)
        self._missing_bytes = missing_bytes
        self._read = read

    def try_complete(self, published_bytes: int) -> None:
        self._missing_bytes -= published_bytes
        if self._missing_bytes <= 0 or published_bytes == 0:
            self.expire()

    def encode(self, result: Any) -> Response:
        """Read only now: by the flush all of its partitions have been written."""
        return self._read()


class DelayedResult:
    """A result that a coordinator completes once, with a value or an exception.

    A handler may return it, combine several with `gather`, or `await` it where it has more to do afterwards.
    """

    __slots__ = ("_callback", "_convert", "_result")

    def __init__(self, convert: Callable[[Any], Any] | None = None) -> None:
        self._convert = convert  # from what the coordinator gives to what the callback gets
        self._result: Any = PENDING
        self._callback: Callable[[Any], None] | None = None

    @property
    def done(self) -> bool:
        return self._result is not PENDING

    def complete(self, result: Any) -> None:
        """Set the result; an exception means failure. A second result is ignored."""
        if self.done:
            return
        if self._convert is not None and not isinstance(result, Exception):
            try:
                result = self._convert(result)
            except Exception as error:  # noqa: BLE001 (a bug, which the callback gets as the result)
                result = error
        elif isinstance(result, KafkaError):
            result = result.without_traceback()
        self._result = result
        if self._callback is not None:
            self._callback(result)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have `callback` called once with the value or the exception, at once if it is there."""
        assert self._callback is None, "a result has one callback"
        self._callback = callback
        if self.done:
            callback(self._result)

    def __await__(self) -> Generator[Any, None, Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def resolve(result: Any) -> None:
            if future.cancelled():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.add_done_callback(resolve)
        return future.__await__()

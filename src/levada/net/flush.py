"""Batches the work of one loop iteration: appends are written and responses sent together, at its end.

One iteration of the event loop reads many requests from many connections. Their appends are queued; the flush then
writes once per partition, completes what waits for the written records, and sends once per connection.
"""

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from levada.logs import EventLog

log = EventLog(__name__)
CallSoon = Callable[[Callable[[], None]], object]


class Publisher(Protocol):
    """Something with queued appends (a partition)."""

    def publish(self) -> None:
        """Write them and notify watchers. A disk that fails is handled, not raised."""
        ...

    def crashed(self, error: Exception) -> None:
        """`publish` raised `error`, which is a bug: stop serving this one."""
        ...


class Sender(Protocol):
    """Something with responses to send (a connection)."""

    def send(self) -> None:
        """Send those that are complete."""
        ...

    def crashed(self, error: Exception) -> None:
        """`send` raised `error`, which is a bug: stop serving this one."""
        ...


class FlushQueue:
    """What the flush at the end of this loop iteration writes and sends."""

    __slots__ = ("_after_flush", "_call_soon", "_clock", "_publishers", "_scheduled", "_senders", "began")

    def __init__(self, call_soon: CallSoon, clock: Callable[[], float] = monotonic) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self.began = 0.0  # when this loop iteration had its first request to flush for
        self._publishers: list[Publisher] = []
        self._senders: list[Sender] = []
        self._after_flush: list[Callable[[float], None]] = []
        self._scheduled = False

    def after_flush(self, action: Callable[[float], None]) -> None:
        """Call `action` with the time after every flush, when received bytes are no longer needed."""
        self._after_flush.append(action)

    def add_publisher(self, publisher: Publisher) -> None:
        """Publish in the next flush; the caller adds itself once per flush."""
        self._publishers.append(publisher)
        if not self._scheduled:
            self._schedule()

    def add_sender(self, sender: Sender) -> None:
        """Send in the next flush; the caller adds itself once per flush."""
        self._senders.append(sender)
        if not self._scheduled:
            self._schedule()

    def ensure_scheduled(self) -> None:
        """Flush in this iteration even if nothing is queued: a response was sent without it."""
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self.began = self._clock()
        self._call_soon(self.flush)

    def flush(self) -> None:
        """Write, then send, until nothing is left. A bug in one publisher or sender does not affect the others."""
        while self._publishers or self._senders:  # publishing completes responses, sending may resume held requests
            publishers, self._publishers = self._publishers, []
            for publisher in publishers:
                try:
                    publisher.publish()
                except Exception as error:  # noqa: BLE001 (logged with its trace)
                    _crashed(publisher, error)
            senders, self._senders = self._senders, []
            for sender in senders:
                try:
                    sender.send()
                except Exception as error:  # noqa: BLE001 (logged with its trace)
                    _crashed(sender, error)
        self._scheduled = False
        now = self._clock()
        for action in self._after_flush:
            action(now)


def _crashed(component: Publisher | Sender, error: Exception) -> None:
    log.error("a flush failed", component=type(component).__name__, exc_info=error)
    component.crashed(error)

"""The end of a loop turn: where everything gathered during it happens at once.

One turn of the event loop reads many requests from many connections. Their appends are queued, and at its end each
partition gets one write, each waiter one look, each connection one send. That grouping is most of the difference
between 19 and 6 microseconds a request.
"""

from collections.abc import Callable
from typing import Protocol

from levada.logs import EventLog

log = EventLog(__name__)


class Publisher(Protocol):
    """Something with queued appends (a partition)."""

    def publish(self) -> None:
        """Write them, and wake who waits for them. A failed disk is an answer, not an exception."""
        ...

    def crashed(self, error: Exception) -> None:
        """`publish` has a bug: give this one up."""
        ...


class Sender(Protocol):
    """Something with answers to send (a connection)."""

    def send(self) -> None:
        """Send those that are ready."""
        ...

    def crashed(self, error: Exception) -> None:
        """`send` has a bug: give this one up."""
        ...


class Turn:
    """What this loop turn has gathered."""

    __slots__ = ("_call_soon", "_on_end", "_publishers", "_scheduled", "_senders")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._publishers: list[Publisher] = []
        self._senders: list[Sender] = []
        self._on_end: list[Callable[[], None]] = []
        self._scheduled = False

    def on_end(self, action: Callable[[], None]) -> None:
        """Call `action` at the end of every turn, when received bytes are no longer needed."""
        self._on_end.append(action)

    def add_publisher(self, publisher: Publisher) -> None:
        """Publish at the end of the turn; the caller adds itself once a turn."""
        self._publishers.append(publisher)
        if not self._scheduled:
            self._schedule()

    def add_sender(self, sender: Sender) -> None:
        """Send at the end of the turn; the caller adds itself once a turn."""
        self._senders.append(sender)
        if not self._scheduled:
            self._schedule()

    def has_begun(self) -> None:
        """Something happened that was carried out at once: the turn ends nevertheless."""
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._call_soon(self.end)

    def end(self) -> None:
        """Write, wake, send. Publishing may make connections ready; sending may bring appends of held requests.

        A bug that shows in one of them must not keep the others from their turn, this time and ever after.
        """
        while self._publishers or self._senders:
            publishers, self._publishers = self._publishers, []
            for publisher in publishers:
                try:
                    publisher.publish()
                except Exception as error:  # noqa: BLE001 (told with its trace)
                    _crashed(publisher, error)
            senders, self._senders = self._senders, []
            for sender in senders:
                try:
                    sender.send()
                except Exception as error:  # noqa: BLE001 (told with its trace)
                    _crashed(sender, error)
        self._scheduled = False
        for action in self._on_end:
            action()


def _crashed(who: Publisher | Sender, error: Exception) -> None:
    log.error("the end of a turn failed", who=type(who).__name__, exc_info=error)
    who.crashed(error)

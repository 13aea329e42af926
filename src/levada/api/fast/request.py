"""The base class of fast-path requests to a group coordinator."""

from abc import abstractmethod
from typing import Any

from levada.broker.broker import Broker
from levada.broker.metrics.requests import RequestMetrics
from levada.broker.purgatory import PENDING, DelayedResponse
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import AnyOutcome, ResponseHandle
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.net.connection import Connection

log = EventLog(__name__)


class FastPathRequest(DelayedResponse):
    """A decoded request and its response. What the coordinator rejects is left to the general path.

    The coordinator has changed nothing then, and the general path submits the request again and reports the error.
    """

    __slots__ = ("_began", "_correlation_id", "_metrics", "_templates", "_version", "generation", "request")
    api_key: int
    connection: Connection
    _metrics: RequestMetrics

    def __init__(
        self,
        templates: Any,
        connection: Connection,
        correlation_id: int,
        version: int,
        request: Any,
        generation: int,
    ) -> None:
        super().__init__(connection)
        self._templates = templates  # of responses, which belong to the broker's fast path
        self._correlation_id = correlation_id
        self._version = version
        self.request = request  # without its generation, where that is decoded apart
        self.generation = generation
        self._began = 0.0  # until it is known to wait

    def submit(self, broker: Broker) -> bool:
        """Have the coordinator decide; False if it rejects the request."""
        outbox, self._metrics = self.connection.outbox, broker.request_metrics
        outbox.add(self)  # first, since the coordinator may complete it at once; its size is counted then
        try:
            broker.groups.shard(self.request.group_id).execute(self.decide, self)
        except KafkaError:
            outbox.remove_last()
            return False
        if self.result is PENDING:
            self._wait()
        return True

    def _wait(self) -> None:
        """The coordinator completes it later."""
        self._began = self._metrics.delay(self.api_key)

    def complete(self, result: Any) -> None:
        """Send the response at once where nothing else is to be sent; otherwise count what it holds until the flush."""
        connection = self.connection
        if self._began:
            self._metrics.complete(self.api_key, self._began)
        if isinstance(result, KafkaError):
            self._metrics.error(self.api_key, result.code)
        if connection.can_send_now:
            self.result = None
            try:
                connection.send_now(self.encode(result))
            except Exception as error:  # as in a flush: the coordinator goes on
                log.error("a response cannot be written", peer=connection.peer, exc_info=error)
                connection.crashed(error)
            return
        self.result = result
        connection.outbox.count(self.size(result))
        connection.wake()

    def size(self, result: Any) -> int:
        """About how many bytes of memory a result holds until it is sent."""
        return 0

    @abstractmethod
    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> AnyOutcome:
        """The coordinator's decision on this request."""

    @abstractmethod
    def encode(self, result: Any) -> bytes:
        """The frame of a result, or of the error that it is."""

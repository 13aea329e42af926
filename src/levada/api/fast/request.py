"""What members of groups say over and over, from its frame to the coordinator and back, in as few steps as can be.

Whatever the coordinator refuses is left to the general way, which asks once more and tells why: it has changed nothing.
"""

from abc import ABC, abstractmethod
from typing import Any

from levada.broker.broker import Broker
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import Outcome, ResponseHandle, VolatileOutcome
from levada.errors import KafkaError
from levada.logs import EventLog
from levada.net.listener import Connection

log = EventLog(__name__)

_PENDING = object()


class Said(ABC):
    """A request, in its connection's outbox until the coordinator has answered and the answer can leave."""

    __slots__ = ("_connection", "_correlation_id", "_result", "_version", "generation", "request")

    def __init__(
        self, connection: Connection, correlation_id: int, version: int, request: Any, generation: int
    ) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._version = version
        self._result: Any = _PENDING
        self.request = request  # but for its generation, if that is read apart
        self.generation = generation

    def ask(self, broker: Broker) -> bool:
        """Have the coordinator decide; False if it refuses."""
        places = self._connection.outbox.places
        places.append(self)  # before the coordinator is asked, since it may answer at once; of no size yet
        try:
            broker.groups.shard(self.request.group_id).ask(self.decide, self)
        except KafkaError:
            places.pop()
            return False
        return True

    def give(self, result: Any) -> None:
        """The coordinator has answered. What has to wait behind another answer counts as what it holds."""
        connection = self._connection
        if connection.owes_one:
            try:
                connection.tell(self.written(result, self._version, self._correlation_id))
            except Exception as error:  # as at the end of a turn: the coordinator goes on
                log.error("an answer failed", peer=connection.peer, exc_info=error)
                connection.crashed(error)
            return
        self._result = result
        connection.outbox.queued_bytes += self.size(result)
        connection.wake()

    def collect(self) -> bytes | None:
        """Written only now: what a member is assigned may be large, and asked for many times at once."""
        if self._result is _PENDING:
            return None
        return self.written(self._result, self._version, self._correlation_id)

    def give_up(self) -> None:  # noqa: B027 (all of them do)
        """Nothing to stop: the coordinator goes on without this client."""

    def size(self, result: Any) -> int:
        """How many bytes of others an answer holds, about."""
        return 0

    @abstractmethod
    def decide(
        self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle
    ) -> Outcome | VolatileOutcome:
        """What the coordinator is asked."""

    @abstractmethod
    def written(self, result: Any, version: int, correlation_id: int) -> bytes:
        """The frame that tells the member what the coordinator has answered."""

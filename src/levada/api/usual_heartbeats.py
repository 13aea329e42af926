"""Heartbeats, which every member sends every few seconds and as fast as it can while it waits for a rebalance.

But for its generation a member says the same bytes every time, so they are read once; and all answers of a kind differ
by their correlation id only. Whatever is refused, or is no heartbeat at all, is left to `levada.api.groups`: the
coordinator has changed nothing then.
"""

from functools import lru_cache
from struct import error as StructError
from typing import Any, Final, NamedTuple

from levada.api.failures import error_response
from levada.api.registry import takes_frames
from levada.broker.broker import Broker
from levada.broker.waiting import Answer
from levada.core.groups import GroupsMachine
from levada.core.machines import Outcome, Ticket
from levada.errors import ErrorCode, KafkaError
from levada.net.listener import Connection
from levada.wire import messages
from levada.wire.primitives import INT, SHORT

HEARTBEAT: Final = messages.api_key("heartbeat")
BODY_BYTES_MAX: Final = 1_000  # of those that are kept
KNOWN_MAX: Final = 5_000  # members
FLEXIBLE_FROM: Final = 4

_ID_AT = 4  # in an answer, behind its size
_NO_GENERATION = bytes(INT.size)


class Who(NamedTuple):
    """The member that is alive."""

    group_id: str
    member_id: str
    instance_id: str | None


@takes_frames("heartbeat", versions=range(5))
def usual_heartbeat(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> bool:
    """A member says it is alive; False if it may not say so."""
    found = read(bytes(view[position:stop]), version)
    if found is None:
        return False
    who, generation = found
    heartbeat = UsualHeartbeat(connection, correlation_id, version, who, generation)
    try:
        broker.groups.shard(who.group_id).ask(heartbeat.decide, heartbeat)
    except KafkaError:
        return False
    connection.reply(heartbeat)
    return True


class UsualHeartbeat(Answer):
    """A heartbeat in its connection's outbox."""

    __slots__ = ("_correlation_id", "_generation", "_version", "_who")

    def __init__(
        self, client: Connection, correlation_id: int, version: int, who: Who, generation: int
    ) -> None:
        super().__init__(client)
        self._correlation_id = correlation_id
        self._version = version
        self._who = who
        self._generation = generation

    def decide(self, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
        """What the coordinator is asked."""
        return machine.heartbeat(*self._who, self._generation, now_ms, ticket)

    def give(self, result: Any) -> None:
        """Nothing, or why the member must do something else."""
        code = result.code if isinstance(result, KafkaError) else ErrorCode.NONE
        answer = bytearray(_answer(self._version, code))
        INT.pack_into(answer, _ID_AT, self._correlation_id)
        super().give(bytes(answer))


def read(body: bytes, version: int) -> tuple[Who, int] | None:
    """Who says so and of which generation, of a request behind its client id; None if it is not usual."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        # The length of the group's id is a short, or a byte behind the header's tagged fields.
        at = 1 + body[1] if version >= FLEXIBLE_FROM else SHORT.size + SHORT.unpack_from(body)[0]
        (generation,) = INT.unpack_from(body, at)
        return _who(body[:at], body[at + INT.size :], version), generation
    except (KafkaError, IndexError, StructError):
        return None


@lru_cache(KNOWN_MAX)
def _who(before: bytes, after: bytes, version: int) -> Who:
    """Who says this around the generation. KafkaError if it is no heartbeat, or there is more in it."""
    tags = int(version >= FLEXIBLE_FROM)
    request = messages.read_request(HEARTBEAT, version, before + _NO_GENERATION + after, tags)
    id_bytes = request.group_id.encode()
    if any(before[:tags]) or not id_bytes or before[2:] != id_bytes:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "not what members send")
    return Who(request.group_id, request.member_id, request.group_instance_id)


@lru_cache(100)
def _answer(version: int, code: ErrorCode) -> bytes:
    """The whole frame but its correlation id."""
    response = error_response(HEARTBEAT, None, KafkaError(code))
    return messages.write_response_frame(HEARTBEAT, version, 0, response)

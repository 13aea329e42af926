"""What members of groups say over and over: that they are alive, that they join again, that they ask for their part.

A member heartbeats every few seconds, and when its group rebalances all members say all three at once. But for its
generation a member says the same bytes every time, so they are read once. Whatever is refused, is said by a leader or
for the first time is left to `levada.api.groups`: the coordinator has changed nothing then.
"""

from functools import lru_cache
from struct import error as StructError
from typing import Any, Final, NamedTuple

from levada.api.failures import error_response
from levada.api.groups import joined, joining, synced, syncing
from levada.api.registry import takes_frames
from levada.broker.broker import Broker
from levada.core.classic_group import ClassicGroup
from levada.core.group_requests import JoinRequest, SyncRequest
from levada.core.groups import GroupsMachine
from levada.core.machines import Outcome, Ticket
from levada.errors import ErrorCode, KafkaError
from levada.net.listener import Connection
from levada.wire import messages
from levada.wire.primitives import INT, SHORT
from levada.wire.versions import APIS

JOIN_GROUP: Final = messages.api_key("join_group")
SYNC_GROUP: Final = messages.api_key("sync_group")
HEARTBEAT: Final = messages.api_key("heartbeat")
BODY_BYTES_MAX: Final = 1_000  # of those that are kept
KNOWN_MAX: Final = 5_000  # members
PROTOCOLS_MAX: Final = 8  # of one member; each takes more memory than bytes
CROWD: Final = 1_000  # members of a group: what takes so long waits for its turn

_NO_GENERATION = bytes(INT.size)
_PENDING = object()


class Said:
    """A request of a member, in its connection's outbox until the coordinator answers and the answer can leave."""

    __slots__ = ("_connection", "_correlation_id", "_result", "_version")

    def __init__(self, connection: Connection, correlation_id: int, version: int) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._version = version
        self._result: Any = _PENDING

    def ask(self, broker: Broker, group_id: str) -> bool:
        """Have the coordinator decide; False if it refuses."""
        try:
            broker.groups.shard(group_id).ask(self.decide, self)
        except KafkaError:
            return False
        self._connection.outbox.add(self)  # nothing to send before `give` wakes the connection
        return True

    def give(self, result: Any) -> None:
        """The coordinator has answered."""
        self._result = result
        self._connection.wake()

    def collect(self) -> bytes | None:
        """Written only now: what a member is assigned may be large, and asked for many times at once."""
        return None if self._result is _PENDING else self.written(self._result)

    def give_up(self) -> None:
        """Nothing to stop: the coordinator goes on without this client."""

    def decide(self, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
        """What the coordinator is asked."""
        raise NotImplementedError

    def written(self, result: Any) -> bytes:
        """The frame that tells the member what the coordinator has answered."""
        raise NotImplementedError


# Heartbeats.


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
    found = read_heartbeat(bytes(view[position:stop]), version)
    if found is None:
        return False
    who, generation = found
    return UsualHeartbeat(connection, correlation_id, version, who, generation).ask(broker, who.group_id)


class UsualHeartbeat(Said):
    """Somebody is alive."""

    __slots__ = ("_generation", "_who")

    def __init__(
        self, client: Connection, correlation_id: int, version: int, who: Who, generation: int
    ) -> None:
        super().__init__(client, correlation_id, version)
        self._who = who
        self._generation = generation

    def decide(self, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
        return machine.heartbeat(*self._who, self._generation, now_ms, ticket)

    def written(self, result: Any) -> bytes:
        """Nothing, or why the member must do something else."""
        code = result.code if isinstance(result, KafkaError) else ErrorCode.NONE
        before, behind = _heartbeat_answer(self._version, code)
        return before + INT.pack(self._correlation_id) + behind


def read_heartbeat(body: bytes, version: int) -> tuple[Who, int] | None:
    """Who says so and of which generation, of a request behind its client id; None if it is not usual."""
    parts = _around_generation(HEARTBEAT, body, version)
    if parts is None:
        return None
    before, generation, after = parts
    try:
        return _who(before, after, version), generation
    except KafkaError:
        return None


@lru_cache(KNOWN_MAX)
def _who(before: bytes, after: bytes, version: int) -> Who:
    """Who says this around the generation. KafkaError if it is no heartbeat, or there is more in it."""
    request = _read_around(HEARTBEAT, before, after, version)
    return Who(request.group_id, request.member_id, request.group_instance_id)


@lru_cache(100)
def _heartbeat_answer(version: int, code: ErrorCode) -> tuple[bytes, bytes]:
    """The frame before and behind its correlation id."""
    response = error_response(HEARTBEAT, None, KafkaError(code))
    frame = messages.write_response_frame(HEARTBEAT, version, 0, response)
    return frame[: INT.size], frame[2 * INT.size :]


# Joining again.


@takes_frames("join_group", versions=range(10))
def usual_join(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> bool:
    """A member joins the next generation; False if it is new, or may not."""
    request = read_join(bytes(view[position:stop]), version)
    if request is None:
        return False
    return UsualJoin(connection, correlation_id, version, request).ask(broker, request.group_id)


class UsualJoin(Said):
    """Somebody joins again."""

    __slots__ = ("_request",)

    def __init__(self, client: Connection, correlation_id: int, version: int, request: JoinRequest) -> None:
        super().__init__(client, correlation_id, version)
        self._request = request

    def decide(self, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
        request = self._request
        group = machine.classic(request.group_id)
        if group is None or request.member_id not in group.members or _is_slow(group, request.member_id):
            raise _not_usual()
        return machine.join(request, now_ms, ticket)

    def written(self, result: Any) -> bytes:
        """The generation, or why there is none."""
        refused = isinstance(result, KafkaError)
        response = error_response(JOIN_GROUP, self._request, result) if refused else joined(result)
        return messages.write_response_frame(JOIN_GROUP, self._version, self._correlation_id, response)


def read_join(body: bytes, version: int) -> JoinRequest | None:
    """What a member says that has an id of its own; None if it is not usual."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        return _join(body, version)
    except KafkaError:
        return None


@lru_cache(KNOWN_MAX)
def _join(body: bytes, version: int) -> JoinRequest:
    tags = _tags(JOIN_GROUP, version)
    request = messages.read_request(JOIN_GROUP, version, body, tags)
    is_known = request.member_id and request.group_instance_id is None
    if any(body[:tags]) or not is_known or len(request.protocols) > PROTOCOLS_MAX:
        raise _not_usual()
    return joining(request, version)


# Asking for one's part.


@takes_frames("sync_group", versions=range(6))
def usual_sync(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> bool:
    """A member that does not lead asks for its part; False if it is another."""
    request = read_sync(bytes(view[position:stop]), version)
    if request is None:
        return False
    return UsualSync(connection, correlation_id, version, request).ask(broker, request.group_id)


class UsualSync(Said):
    """Somebody waits for the leader."""

    __slots__ = ("_request",)

    def __init__(self, client: Connection, correlation_id: int, version: int, request: SyncRequest) -> None:
        super().__init__(client, correlation_id, version)
        self._request = request

    def decide(self, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
        request = self._request
        group = machine.classic(request.group_id)
        if group is None or _is_slow(group, request.member_id):
            raise _not_usual()
        return machine.sync(request, now_ms, ticket)

    def written(self, result: Any) -> bytes:
        """Its part, or why there is none."""
        refused = isinstance(result, KafkaError)
        response = error_response(SYNC_GROUP, None, result) if refused else synced(result)
        return messages.write_response_frame(SYNC_GROUP, self._version, self._correlation_id, response)


def read_sync(body: bytes, version: int) -> SyncRequest | None:
    """What a member says that brings no assignments; None if it is not usual."""
    parts = _around_generation(SYNC_GROUP, body, version)
    if parts is None:
        return None
    before, generation, after = parts
    try:
        group_id, member_id, instance_id, _, protocol_type, protocol, nothing = _sync(before, after, version)
    except KafkaError:
        return None
    return SyncRequest(group_id, member_id, instance_id, generation, protocol_type, protocol, nothing)


@lru_cache(KNOWN_MAX)
def _sync(before: bytes, after: bytes, version: int) -> SyncRequest:
    request = _read_around(SYNC_GROUP, before, after, version)
    if request.assignments:
        raise _not_usual()
    return syncing(request, version)


# Bytes.


def _tags(api_key: int, version: int) -> int:
    """How many bytes are between the client id and the body: those of the header's tagged fields, of which are none."""
    return int(version >= APIS[api_key].flexible)


def _around_generation(api_key: int, body: bytes, version: int) -> tuple[bytes, int, bytes] | None:
    """A request that begins with a group's id and a generation: what is before, which one, what is behind."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        # The length of the group's id is a short, or a byte behind the header's tagged fields.
        at = 1 + body[1] if _tags(api_key, version) else SHORT.size + SHORT.unpack_from(body)[0]
        (generation,) = INT.unpack_from(body, at)
    except (IndexError, StructError):
        return None
    return body[:at], generation, body[at + INT.size :]


def _read_around(api_key: int, before: bytes, after: bytes, version: int) -> Any:
    """The request around a generation. KafkaError if it is none, or there is more in it."""
    tags = _tags(api_key, version)
    request = messages.read_request(api_key, version, before + _NO_GENERATION + after, tags)
    id_bytes = request.group_id.encode()
    if any(before[:tags]) or not id_bytes or before[2:] != id_bytes:
        raise _not_usual()
    return request


def _is_slow(group: ClassicGroup, member_id: str) -> bool:
    """Whether an answer takes long: a leader is told all that members say, and a crowd is much to look at."""
    return group.leader == member_id or len(group.members) > CROWD


def _not_usual() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "not what members say over and over")

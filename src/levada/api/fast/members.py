"""What members of groups say over and over: that they are alive, that they join again, that they ask for their part.

A member heartbeats every few seconds, and when its group rebalances all members say all three at once. But for its
generation a member says the same bytes every time, so they are read once. Whatever is refused, brings assignments,
is said for the first time or by the last one missing is left to `levada.api.groups`: the coordinator has changed
nothing then, and what takes long in a large group waits for its turn.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from struct import error as StructError
from typing import Any, Final, NamedTuple, NoReturn

from levada.api.error_responses import error_response
from levada.api.fast.request import FastPathRequest
from levada.api.groups import joined, joining, synced, syncing
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import NO_GENERATION
from levada.core.groups.classic.join import JoinRequest, rejoin
from levada.core.groups.classic.requests import SyncRequest, sync_follower
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import Outcome, ResponseHandle, VolatileOutcome
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection
from levada.wire.primitives import INT, SHORT
from levada.wire.schema import messages
from levada.wire.schema.messages import SIZE_AND_ID
from levada.wire.schema.versions import APIS
from levada.wire.schema.writers import COMPACT_STRINGS, LEGACY_STRINGS, UVARINTS

JOIN_GROUP: Final = messages.api_key("join_group")
SYNC_GROUP: Final = messages.api_key("sync_group")
HEARTBEAT: Final = messages.api_key("heartbeat")
BODY_BYTES_MAX: Final = 1_000  # of those that are kept
KNOWN_MAX: Final = 5_000  # members
SAID_MAX: Final = 4 * KNOWN_MAX
PROTOCOLS_MAX: Final = 8  # of one member; each takes more memory than bytes

NOT_USUAL: Final = (KafkaError, IndexError, StructError)

_ANY_GENERATION = bytes(INT.size)


def take(
    name: str, versions: range, read: Callable[[bytes, int], Any], kind: Callable[..., FastPathRequest]
) -> Callable[[], FastPath]:
    """Take requests of an API whose bytes `read` knows; the others, and what is refused, go the general way."""

    def usual(
        broker: Broker,
        connection: Connection,
        view: memoryview,
        position: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        if stop - position > BODY_BYTES_MAX:
            return False
        said = read(bytes(view[position:stop]), version)
        return said is not None and kind(connection, correlation_id, version, *said).submit(broker)

    return fast_path(name, versions)(lambda: usual)


# Heartbeats.


class Beat(NamedTuple):
    """The member that is alive."""

    group_id: str
    member_id: str
    instance_id: str | None


class UsualHeartbeat(FastPathRequest):
    """Somebody is alive."""

    __slots__ = ()

    def decide(
        self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle
    ) -> Outcome | VolatileOutcome:
        group_id, member_id, instance_id = self.request
        return machine.heartbeat(group_id, member_id, instance_id, self.generation, now_ms, handle)

    def encode(self, result: Any) -> bytes:
        """Nothing, or why the member must do something else."""
        code = result.code if isinstance(result, KafkaError) else ErrorCode.NONE
        before, behind = _heartbeat_answer(self._version, code)
        return before + INT.pack(self._correlation_id) + behind


def read_heartbeat(body: bytes, version: int) -> tuple[Beat, int] | None:
    """Who is alive in which generation, by a request behind its client id; None if it is not usual."""
    try:
        before, generation, after = _around_generation(HEARTBEAT, body, version)
        return _beat(before, after, version), generation
    except NOT_USUAL:
        return None


@lru_cache(KNOWN_MAX)
def _beat(before: bytes, after: bytes, version: int) -> Beat:
    """What is said around the generation. KafkaError if it is no heartbeat, or there is more in it."""
    request = _read_around(HEARTBEAT, before, after, version)
    return Beat(request.group_id, request.member_id, request.group_instance_id)


@lru_cache(100)
def _heartbeat_answer(version: int, code: ErrorCode) -> tuple[bytes, bytes]:
    """The frame before and behind its correlation id."""
    response = error_response(HEARTBEAT, None, KafkaError(code))
    frame = messages.write_response_frame(HEARTBEAT, version, 0, response)
    return frame[: INT.size], frame[2 * INT.size :]


# Joining again.


class UsualJoin(FastPathRequest):
    """Somebody joins again, and others are missing."""

    __slots__ = ()

    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> VolatileOutcome:
        group = machine.classic_group(self.request.group_id)
        return (group and rejoin(machine, group, self.request, handle)) or _not_usual()

    def size(self, result: Any) -> int:
        """A leader is told all that members say."""
        if isinstance(result, KafkaError) or not result.members:
            return 0
        return sum([len(member.id) + len(member.metadata) for member in result.members])

    def encode(self, result: Any) -> bytes:
        """The generation, or why there is none."""
        if isinstance(result, KafkaError):
            response = error_response(JOIN_GROUP, self.request, result)
        elif result.members or result.error or result.skip_assignment:
            response = joined(result)
        else:
            what = (result.generation, result.protocol_type, result.protocol, result.leader)
            before, text, behind = _join_answer(self._version, *what)
            return _frame(self._correlation_id, before, text[result.member_id], behind)
        return messages.write_response_frame(JOIN_GROUP, self._version, self._correlation_id, response)


@lru_cache(100)
def _join_answer(
    version: int, generation: int, protocol_type: str | None, protocol: str | None, leader: str
) -> tuple[bytes, Mapping[str, bytes], bytes]:
    """What all who follow are told, before and behind the member's own id, and how that is written.

    There are no members behind it: their number, 0, is one byte or four.
    """
    response = joined(JoinResult(generation, protocol_type, protocol, leader, ""))
    frame = messages.write_response_frame(JOIN_GROUP, version, 0, response)
    if _tags(JOIN_GROUP, version):
        return frame[SIZE_AND_ID.size : -3], COMPACT_STRINGS, frame[-2:]
    return frame[SIZE_AND_ID.size : -6], LEGACY_STRINGS, frame[-4:]


def read_join(body: bytes, version: int) -> tuple[JoinRequest, int] | None:
    """What a member says again that has an id of its own, whatever its generation; None if it is not usual."""
    try:
        request = _join(body, version) if _was_said(hash(body)) else None
    except NOT_USUAL:
        return None
    return request and (request, NO_GENERATION)


@lru_cache(KNOWN_MAX)
def _join(body: bytes, version: int) -> JoinRequest | None:
    tags = _tags(JOIN_GROUP, version)
    request = messages.read_request(JOIN_GROUP, version, body, tags)
    is_known = request.member_id and request.group_instance_id is None
    if any(body[:tags]) or not is_known or len(request.protocols) > PROTOCOLS_MAX:
        return None
    return joining(request, version)


# Asking for one's part.


class UsualSync(FastPathRequest):
    """Somebody waits for the leader, or comes after it."""

    __slots__ = ()

    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> VolatileOutcome:
        group = machine.classic_group(self.request.group_id)
        said = self.request, self.generation
        return (group and sync_follower(machine, group, *said, now_ms, handle)) or _not_usual()

    def size(self, result: Any) -> int:
        """That of the part, which may be of a generation that is long over when it leaves."""
        return 0 if isinstance(result, KafkaError) else len(result.assignment)

    def encode(self, result: Any) -> bytes:
        """Its part, or why there is none."""
        if isinstance(result, KafkaError):
            response = error_response(SYNC_GROUP, None, result)
            return messages.write_response_frame(SYNC_GROUP, self._version, self._correlation_id, response)
        assignment = result.assignment
        before, behind = _sync_answer(self._version, result.protocol_type, result.protocol)
        size = len(assignment)
        length = UVARINTS[size + 1] if behind else INT.pack(size)
        return _frame(self._correlation_id, before, length, assignment, behind)


@lru_cache(100)
def _sync_answer(version: int, protocol_type: str | None, protocol: str | None) -> tuple[bytes, bytes]:
    """What all members are told, before and behind their assignment."""
    frame = messages.write_response_frame(
        SYNC_GROUP, version, 0, synced(SyncResult(protocol_type, protocol, b""))
    )
    if _tags(SYNC_GROUP, version):
        return frame[SIZE_AND_ID.size : -2], frame[-1:]
    return frame[SIZE_AND_ID.size : -INT.size], b""


def read_sync(body: bytes, version: int) -> tuple[SyncRequest, int] | None:
    """What a member says again that brings no assignments, and in which generation; None if it is not usual."""
    try:
        before, generation, after = _around_generation(SYNC_GROUP, body, version)
        request = _sync(before, after, version) if _was_said(hash(after)) else None
    except NOT_USUAL:
        return None
    return request and (request, generation)


@lru_cache(KNOWN_MAX)
def _sync(before: bytes, after: bytes, version: int) -> SyncRequest | None:
    request = _read_around(SYNC_GROUP, before, after, version)
    return None if request.assignments else syncing(request, version)


take("heartbeat", range(5), read_heartbeat, UsualHeartbeat)
take("join_group", range(10), read_join, UsualJoin)
take("sync_group", range(6), read_sync, UsualSync)


def _was_said(said: int) -> bool:
    """Whether what has this hash was said before. If not, it is mostly of somebody new, and not usual.

    So it is read where it is decided, and not here too.
    """
    if said in _said:
        return True
    if len(_said) >= SAID_MAX:
        _said.clear()  # whoever says it again is taken for new once
    _said.add(said)
    return False


_said: set[int] = set()


# Bytes.


def _frame(correlation_id: int, *parts: bytes) -> bytes:
    """An answer from its parts."""
    body = b"".join(parts)
    return SIZE_AND_ID.pack(INT.size + len(body), correlation_id) + body


@cache
def _tags(api_key: int, version: int) -> int:
    """How many bytes are between the client id and the body: those of the header's tagged fields, of which are none."""
    return int(version >= APIS[api_key].flexible)


def _around_generation(api_key: int, body: bytes, version: int) -> tuple[bytes, int, bytes]:
    """A request that begins with a group's id and a generation: what is before, which one, what is behind."""
    # The length of the group's id is a short, or a byte behind the header's tagged fields.
    at = 1 + body[1] if _tags(api_key, version) else SHORT.size + SHORT.unpack_from(body)[0]
    (generation,) = INT.unpack_from(body, at)
    return body[:at], generation, body[at + INT.size :]


def _read_around(api_key: int, before: bytes, after: bytes, version: int) -> Any:
    """The request around a generation. KafkaError if it is none, or there is more in it."""
    tags = _tags(api_key, version)
    request = messages.read_request(api_key, version, before + _ANY_GENERATION + after, tags)
    id_bytes = request.group_id.encode()
    if any(before[:tags]) or not id_bytes or before[2:] != id_bytes:
        _not_usual()
    return request


def _not_usual() -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_REQUEST, "not what members say over and over")

"""The fast paths of Heartbeat, JoinGroup of members that rejoin, and SyncGroup of followers.

A member heartbeats every few seconds, and when its group rebalances all members send all three at once. Except for the
generation a member sends the same bytes every time, so they are decoded once. A request that is rejected, carries
assignments, is sent for the first time or is the last one that its group waits for is left to
`levada.api.coordinator.groups`: the coordinator has changed nothing then, and the scheduler limits what takes long in a
large group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from struct import error as StructError
from typing import Any, Final, NamedTuple, NoReturn

from levada.api.coordinator.groups import join_response, sync_response, to_join_request, to_sync_request
from levada.api.error_responses import error_response
from levada.api.fast.request import FastPathRequest
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import NO_GENERATION
from levada.core.groups.classic.join import JoinRequest, rejoin
from levada.core.groups.classic.requests import SyncRequest, sync_follower
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import AnyOutcome, ResponseHandle, VolatileOutcome
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection
from levada.wire.fast.prefix_cache import PrefixCache
from levada.wire.primitives import INT, SHORT
from levada.wire.schema import messages
from levada.wire.schema.compiler import Memo
from levada.wire.schema.messages import SIZE_AND_ID
from levada.wire.schema.versions import APIS
from levada.wire.schema.writers import COMPACT_STRINGS, LEGACY_STRINGS, UVARINTS

JOIN_GROUP: Final = messages.api_key("join_group")
SYNC_GROUP: Final = messages.api_key("sync_group")
HEARTBEAT: Final = messages.api_key("heartbeat")
CACHED_REQUESTS_MAX: Final = 5_000  # members
CACHED_BYTES_MAX: Final = 1_000
TEMPLATES_MAX: Final = 100
PROTOCOLS_MAX: Final = 8  # of one member; decoded, each takes more memory than its bytes

NOT_DECODED: Final = (KafkaError, IndexError, StructError)

_ANY_GENERATION = bytes(INT.size)
_MISSING: Final[Any] = object()
_join = b"".join


class GroupFastPath(ABC):
    """The fast path of one group API: a cache of decoded requests and one of response templates, per broker."""

    request_class: type[FastPathRequest]

    def __init__(self) -> None:
        self.requests: PrefixCache[Any] = PrefixCache(CACHED_REQUESTS_MAX, CACHED_BYTES_MAX)
        self.templates = Memo(lambda fields: self.template(*fields), TEMPLATES_MAX)

    def take(
        self,
        broker: Broker,
        connection: Connection,
        view: memoryview,
        position: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Submit the request to the coordinator; False leaves it to the general path."""
        if stop - position > CACHED_BYTES_MAX:
            return False
        try:
            decoded = self.decode(bytes(view[position:stop]), version)
        except NOT_DECODED:
            return False
        if decoded is None:
            return False
        return self.request_class(self.templates, connection, correlation_id, version, *decoded).submit(broker)

    @abstractmethod
    def decode(self, body: bytes, version: int) -> tuple[Any, int] | None:
        """The request after its client id, without its generation, and the generation; None for the general path."""

    @abstractmethod
    def template(self, *fields: Any) -> Any:
        """The parts of a response that are the same for all members."""


class Heartbeat(NamedTuple):
    """The member that sends the heartbeat."""

    group_id: str
    member_id: str
    instance_id: str | None


class FastHeartbeat(FastPathRequest):
    """A Heartbeat."""

    __slots__ = ()
    api_key = HEARTBEAT

    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> AnyOutcome:
        group_id, member_id, instance_id = self.request
        return machine.heartbeat(group_id, member_id, instance_id, self.generation, now_ms, handle)

    def encode(self, result: Any) -> bytes:
        code = result.code if isinstance(result, KafkaError) else ErrorCode.NONE
        size, rest = self._templates[self._version, code]
        return _join((size, INT.pack(self._correlation_id), rest))


class HeartbeatFastPath(GroupFastPath):
    """Takes every well-formed Heartbeat."""

    request_class = FastHeartbeat

    def decode(self, body: bytes, version: int) -> tuple[Heartbeat, int]:
        before, generation, after = _split_generation(HEARTBEAT, body, version)
        key = version, before, after
        member = self.requests.get(key)
        if member is None:
            request = _decode_around(HEARTBEAT, before, after, version)
            member = Heartbeat(request.group_id, request.member_id, request.group_instance_id)
            self.requests.store(key, member)
        return member, generation

    def template(self, version: int, code: ErrorCode) -> tuple[bytes, bytes]:
        """The frame before and after its correlation id."""
        response = error_response(HEARTBEAT, None, KafkaError(code))
        frame = messages.write_response_frame(HEARTBEAT, version, 0, response)
        return frame[: INT.size], frame[2 * INT.size :]


class FastJoin(FastPathRequest):
    """A JoinGroup of a member that rejoins while others are missing."""

    __slots__ = ()
    api_key = JOIN_GROUP

    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> VolatileOutcome:
        group = machine.classic_group(self.request.group_id)
        return (group and rejoin(machine, group, self.request, handle)) or _not_taken()

    def size(self, result: Any) -> int:
        """The leader's response carries the metadata of all members."""
        if isinstance(result, KafkaError) or not result.members:
            return 0
        return sum([len(member.id) + len(member.metadata) for member in result.members])

    def encode(self, result: Any) -> bytes:
        if isinstance(result, KafkaError):
            response = error_response(JOIN_GROUP, self.request, result)
        elif result.members or result.error or result.skip_assignment:
            response = join_response(result)
        else:
            fields = (self._version, result.generation, result.protocol_type, result.protocol, result.leader)
            before, strings, after = self._templates[fields]
            return _frame(self._correlation_id, before, strings[result.member_id], after)
        return messages.write_response_frame(JOIN_GROUP, self._version, self._correlation_id, response)


class JoinFastPath(GroupFastPath):
    """Takes JoinGroups of dynamic members that have a member id, from the second time on."""

    request_class = FastJoin

    def decode(self, body: bytes, version: int) -> tuple[JoinRequest, int] | None:
        key = version, body
        request = self.requests.get(key, _MISSING)
        if request is _MISSING:
            if not self.requests.is_repeated(key):
                return None
            request = self.requests.store(key, _decode_join(body, version))
        return request and (request, NO_GENERATION)

    def template(
        self, version: int, generation: int, protocol_type: str | None, protocol: str | None, leader: str
    ) -> tuple[bytes, Memo, bytes]:
        """A follower's response before and after its member id, and how the member id is encoded.

        It has no members: their number, 0, is one byte or four.
        """
        response = join_response(JoinResult(generation, protocol_type, protocol, leader, ""))
        frame = messages.write_response_frame(JOIN_GROUP, version, 0, response)
        if _header_tags(JOIN_GROUP, version):
            return frame[SIZE_AND_ID.size : -3], COMPACT_STRINGS, frame[-2:]
        return frame[SIZE_AND_ID.size : -6], LEGACY_STRINGS, frame[-4:]


def _decode_join(body: bytes, version: int) -> JoinRequest | None:
    """The request; None for new and static members, which the general path handles."""
    tags = _header_tags(JOIN_GROUP, version)
    request = messages.read_request(JOIN_GROUP, version, body, tags)
    rejoins = request.member_id and request.group_instance_id is None
    if any(body[:tags]) or not rejoins or len(request.protocols) > PROTOCOLS_MAX:
        return None
    return to_join_request(request, version)


class FastSync(FastPathRequest):
    """A SyncGroup of a follower."""

    __slots__ = ()
    api_key = SYNC_GROUP

    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> VolatileOutcome:
        group = machine.classic_group(self.request.group_id)
        request = self.request, self.generation
        return (group and sync_follower(machine, group, *request, now_ms, handle)) or _not_taken()

    def size(self, result: Any) -> int:
        """The assignment may be of a generation that is long over when it is sent."""
        return 0 if isinstance(result, KafkaError) else len(result.assignment)

    def encode(self, result: Any) -> bytes:
        if isinstance(result, KafkaError):
            response = error_response(SYNC_GROUP, None, result)
            return messages.write_response_frame(SYNC_GROUP, self._version, self._correlation_id, response)
        assignment = result.assignment
        before, after = self._templates[self._version, result.protocol_type, result.protocol]
        size = len(assignment)
        length = UVARINTS[size + 1] if after else INT.pack(size)
        return _frame(self._correlation_id, before, length, assignment, after)


class SyncFastPath(GroupFastPath):
    """Takes SyncGroups without assignments, from the second time on."""

    request_class = FastSync

    def decode(self, body: bytes, version: int) -> tuple[SyncRequest, int] | None:
        before, generation, after = _split_generation(SYNC_GROUP, body, version)
        key = version, before, after
        request = self.requests.get(key, _MISSING)
        if request is _MISSING:
            if not self.requests.is_repeated(key):
                return None
            decoded = _decode_around(SYNC_GROUP, before, after, version)
            request = self.requests.store(key, None if decoded.assignments else to_sync_request(decoded, version))
        return request and (request, generation)

    def template(self, version: int, protocol_type: str | None, protocol: str | None) -> tuple[bytes, bytes]:
        """The response before and after the assignment."""
        response = sync_response(SyncResult(protocol_type, protocol, b""))
        frame = messages.write_response_frame(SYNC_GROUP, version, 0, response)
        if _header_tags(SYNC_GROUP, version):
            return frame[SIZE_AND_ID.size : -2], frame[-1:]
        return frame[SIZE_AND_ID.size : -INT.size], b""


def _declare(name: str, versions: range, path_class: Callable[[], GroupFastPath]) -> None:
    def make() -> FastPath:
        return path_class().take

    fast_path(name, versions)(make)


_declare("heartbeat", range(5), HeartbeatFastPath)
_declare("join_group", range(10), JoinFastPath)
_declare("sync_group", range(6), SyncFastPath)


def _frame(correlation_id: int, *parts: bytes) -> bytes:
    """A response frame from its parts."""
    body = _join(parts)
    return SIZE_AND_ID.pack(INT.size + len(body), correlation_id) + body


@cache
def _header_tags(api_key: int, version: int) -> int:
    """The size of the empty tagged fields between the client id and the body: 1 in flexible versions, else 0."""
    return int(version >= APIS[api_key].flexible)


def _split_generation(api_key: int, body: bytes, version: int) -> tuple[bytes, int, bytes]:
    """Split a request that begins with a group id and a generation: the bytes before it, itself, those after it."""
    # The length of the group id is a short, or a byte after the header's tagged fields.
    at = 1 + body[1] if _header_tags(api_key, version) else SHORT.size + SHORT.unpack_from(body)[0]
    (generation,) = INT.unpack_from(body, at)
    return body[:at], generation, body[at + INT.size :]


def _decode_around(api_key: int, before: bytes, after: bytes, version: int) -> Any:
    """Decode the request around a generation. Raise KafkaError if `before` is not just the group id."""
    tags = _header_tags(api_key, version)
    request = messages.read_request(api_key, version, before + _ANY_GENERATION + after, tags)
    group_id = request.group_id.encode()
    if any(before[:tags]) or not group_id or before[2:] != group_id:
        _not_taken()
    return request


def _not_taken() -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_REQUEST, "left to the general path")

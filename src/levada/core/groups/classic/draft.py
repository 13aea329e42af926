"""How a classic group moves from one generation to the next, worked out on a copy.

A `Draft` holds the copy, the responses that become due on the way and the timers to set.
`levada.core.groups.classic.requests` decides on requests with it; what it gathered becomes one outcome, or nothing if
the request is refused halfway.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from levada.core.groups.classic.group import (
    COMPLETING,
    EMPTY,
    NO_GENERATION,
    PREPARING,
    STABLE,
    ClassicGroup,
    InitialDelay,
    Member,
    State,
)
from levada.core.groups.memory_limit import pending_member_bytes
from levada.core.machine import ResponseHandle
from levada.errors import ErrorCode, KafkaError

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = (
    300_000  # a new member cannot heartbeat while it waits for its first generation
)
MOMENT_MS: Final = (
    50  # that a session may end late, never early: who is heard of again at once need not move it
)


class GroupLimits(NamedTuple):
    """What groups may ask for, by Kafka's settings."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = (1 << 31) - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    members_bytes_max: int = 128 << 20


class TimerKind(IntEnum):
    """What a deadline is for."""

    MEMBER = 0  # a member's session, or the time a new one has to join
    JOIN = 1  # members that have not joined by then are left behind
    SYNC = 2  # members that have not asked for their assignment by then are removed
    RETENTION = 3  # offsets that are kept no longer are looked for
    REVOKE = 4  # a member of the consumer protocol that has not given partitions back by then is removed
    MEMBER_JOIN = 5  # so is a member of the classic protocol in such a group that has not joined again
    MEMBER_SYNC = 6  # or has not asked for its assignment

    __hash__ = int.__hash__  # an enum's own is slow, and deadlines are found by it


class Timer(NamedTuple):
    """A deadline of a group, or of one of its members."""

    group: str
    kind: TimerKind
    member: str = ""


@lru_cache(10_000)
def session(group_id: str, member_id: str) -> Timer:
    """By when a member must be heard of; the same deadline is moved at each of its heartbeats and commits."""
    return Timer(group_id, TimerKind.MEMBER, member_id)


class JoinedMember(msgspec.Struct, frozen=True):
    """A member as the leader is told of it."""

    id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True):
    """The generation a member is in."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()  # the leader is told all
    skip_assignment: bool = False
    error: ErrorCode = ErrorCode.NONE

    @classmethod
    def id_required(cls, member_id: str) -> "JoinResult":
        """Join again with this id."""
        return cls(NO_GENERATION, None, None, "", member_id, error=ErrorCode.MEMBER_ID_REQUIRED)


class SyncResult(msgspec.Struct, frozen=True):
    """What a member is assigned."""

    protocol_type: str | None
    protocol: str | None
    assignment: bytes


class Draft:
    """A group as it would be after a decision."""

    __slots__ = ("_limits", "group", "now_ms", "responses", "saved", "timers")

    def __init__(self, group: ClassicGroup, limits: GroupLimits, now_ms: int) -> None:
        self.group = group.copy()
        self.now_ms = now_ms
        self.responses: list[tuple[ResponseHandle, Any]] = []
        self.timers: dict[Timer, int | None] = {}  # when, or None to end it
        self.saved = False  # whether the group must be journaled
        self._limits = limits

    # Members.

    def expect(self, member_id: str, timeout_ms: int) -> None:
        """A member has that long to be heard of again."""
        self.timers[session(self.group.id, member_id)] = self.now_ms + timeout_ms

    def stay(self, member: Member) -> None:
        """A member was heard of: its session begins anew."""
        self.expect(member.id, member.session_timeout_ms + MOMENT_MS)

    def add(self, member: Member, protocol_type: str, handle: ResponseHandle) -> None:
        """A new member joins; its JoinGroup waits, and the group prepares a new generation."""
        group = self.group
        group.joins[member.id] = handle
        if not group.members:
            group.protocol_type = protocol_type
        self.update(member)
        self.forget_pending(member.id)
        if member.instance_id is not None:
            group.instances[member.instance_id] = member.id
        if group.leader is None:
            group.leader = member.id
        if group.initial_delay is not None and group.generation == 0:
            group.initial_delay = group.initial_delay._replace(more_came=True)
        self.expect(member.id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.prepare()

    def update(self, member: Member) -> Member:
        """Keep a new or changed member."""
        group = self.group
        former = group.members.get(member.id)
        if former is None:
            group.memory_bytes += member.memory_bytes
        elif former.protocols is not member.protocols:
            group.memory_bytes += member.memory_bytes - former.memory_bytes
        else:
            group.memory_bytes += len(member.assignment) - len(former.assignment)
        group.members[member.id] = member
        return member

    def await_pending(self, member_id: str, timeout_ms: int) -> None:
        """A client is given this id, to join with it."""
        self.group.pending |= {member_id}
        self.group.memory_bytes += pending_member_bytes(member_id)
        self.expect(member_id, timeout_ms)

    def forget_pending(self, member_id: str) -> None:
        """It has joined with it, or never will."""
        if member_id in self.group.pending:
            self.group.pending -= {member_id}
            self.group.memory_bytes -= pending_member_bytes(member_id)

    def remove(self, member_id: str) -> None:
        """Take a member out; a JoinGroup that waits is told, so that a living member starts over."""
        group = self.group
        member = group.members.pop(member_id)
        group.memory_bytes -= member.memory_bytes
        self.timers[session(group.id, member_id)] = None
        error = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the member was removed from the group")
        for waiting in (group.joins, group.syncs):
            handle = waiting.pop(member_id, None)
            if handle is not None:
                self.responses.append((handle, error))
        if member.instance_id is not None and group.instances.get(member.instance_id) == member_id:
            del group.instances[member.instance_id]
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)
        group.unsynced.discard(member_id)

    def remove_and_go_on(self, member_id: str) -> None:
        """Take a member out, and let the others go on without it."""
        self.remove(member_id)
        if self.group.state is PREPARING:
            self.complete_if_all_joined()
        else:
            self.prepare()

    # Generations.

    def turn(self, state: State) -> None:
        self.group.state = state
        self.group.state_since_ms = self.now_ms

    def prepare(self) -> None:
        """Begin a new generation: everybody must join again. Does nothing while one is being prepared."""
        group = self.group
        if group.state is PREPARING:
            return
        if group.state is COMPLETING:
            self._cancel_syncs()
        if group.state is EMPTY:
            delay_ms = self._limits.initial_rebalance_delay_ms
            group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        else:
            group.initial_delay = None
            delay_ms = group.rebalance_timeout_ms
        self.turn(PREPARING)
        self.timers[Timer(group.id, TimerKind.SYNC)] = None
        self._wait_for_joins(delay_ms)
        self.complete_if_all_joined()

    def _cancel_syncs(self) -> None:
        error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")
        members, syncs = self.group.members, self.group.syncs
        for member_id, handle in syncs.items():
            self.responses.append((handle, error))
            self.stay(members[member_id])
        syncs.clear()
        for member in list(members.values()):
            self.update(member.given(b""))

    def _wait_for_joins(self, delay_ms: int) -> None:
        self.timers[Timer(self.group.id, TimerKind.JOIN)] = self.now_ms + delay_ms

    def complete_if_all_joined(self) -> None:
        """Go on as soon as nobody is missing; a first generation waits its delay for more."""
        delay = self.group.initial_delay
        if self.group.all_joined and (delay is None or delay.step_ms == 0):
            self.complete()

    def join_deadline(self) -> None:
        """The time to join is over, unless a first generation still grows."""
        group = self.group
        delay = group.initial_delay
        if delay is not None and delay.more_came and delay.remaining_ms:
            step_ms = min(self._limits.initial_rebalance_delay_ms, delay.remaining_ms)
            remaining_ms = max(delay.remaining_ms - step_ms, 0)
            group.initial_delay = InitialDelay(step_ms, remaining_ms)
            self._wait_for_joins(step_ms)
        else:
            self.complete()

    def complete(self) -> None:
        """Leave behind who has not joined, and begin the generation. A static member keeps its place."""
        group = self.group
        group.initial_delay = None
        if len(group.joins) < len(group.members):
            for member in list(group.members.values()):
                if member.id not in group.joins and member.instance_id is None:
                    self.remove(member.id)
        if group.members and not group.joins:
            self._wait_for_joins(group.rebalance_timeout_ms)
            return
        self.timers[Timer(group.id, TimerKind.JOIN)] = None
        group.generation += 1
        if not group.members:
            group.protocol, group.leader, group.unsynced = None, None, set()
            group.topics = frozenset()
            self.turn(EMPTY)
            self.saved = True
            return
        if group.leader not in group.joins:
            group.leader = next(member_id for member_id in group.members if member_id in group.joins)
        group.protocol = group.select_protocol()
        group.topics = group.subscribed(group.protocol)
        group.unsynced = set(group.members)
        self.turn(COMPLETING)
        self.timers[Timer(group.id, TimerKind.SYNC)] = self.now_ms + group.rebalance_timeout_ms
        until_ms = self.now_ms + MOMENT_MS
        for member in list(group.members.values()):
            if member.is_new:
                self.update(replace(member, is_new=False))
            self.timers[session(group.id, member.id)] = until_ms + member.session_timeout_ms
        self.responses += [(handle, self.joined(member_id)) for member_id, handle in group.joins.items()]
        group.joins.clear()

    def joined(self, member_id: str) -> JoinResult:
        """The current generation, as a member is told of it."""
        group = self.group
        members: tuple[JoinedMember, ...] = ()
        if member_id == group.leader:
            members = tuple(
                JoinedMember(member.id, member.instance_id, member.metadata(group.protocol))
                for member in group.members.values()
            )
        return JoinResult(
            group.generation, group.protocol_type, group.protocol, group.leader or "", member_id, members
        )

    def assign(self, assignments: dict[str, bytes]) -> None:
        """The leader's assignment is there: the generation is stable, and whoever waits is told its part."""
        group = self.group
        self.turn(STABLE)
        self.saved = True
        for member in list(group.members.values()):
            kept = self.update(member.given(assignments.get(member.id, b"")))
            handle = group.syncs.get(member.id)
            if handle is not None:
                self.stay(kept)
                self.responses.append((handle, self.assigned(kept)))
        group.syncs.clear()

    def assigned(self, member: Member) -> SyncResult:
        """What a member is assigned."""
        return SyncResult(self.group.protocol_type, self.group.protocol, member.assignment)

    def synced(self, member_id: str) -> None:
        """A member has asked for its assignment; when all have, nobody is waited for."""
        group = self.group
        group.unsynced.discard(member_id)
        if not group.unsynced:
            self.timers[Timer(group.id, TimerKind.SYNC)] = None

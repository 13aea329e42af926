"""How a classic group rebalances, worked out on a copy.

A `Draft` holds the copy, the responses to send and the timers to change. The request modules (`.join`, `.requests`)
decide with it; a complete draft becomes one outcome, and a request that fails halfway leaves the group unchanged.
"""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from levada.core.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    NO_GENERATION,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    InitialDelay,
    Member,
    State,
)
from levada.core.groups.events import GroupChanged, TimersChanged
from levada.core.groups.group import GroupLimits, Timer, TimerKind, session_timer
from levada.core.groups.memory_limit import pending_member_bytes
from levada.core.machine import Outcome, ResponseHandle
from levada.errors import ErrorCode, KafkaError

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000  # a new member cannot heartbeat before its first generation


class JoinedMember(msgspec.Struct, frozen=True):
    """A member in the leader's JoinGroup response."""

    id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True):
    """The result of JoinGroup: the generation of a member."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()  # only in the leader's result
    skip_assignment: bool = False
    error: ErrorCode = ErrorCode.NONE

    @classmethod
    def member_id_required(cls, member_id: str) -> "JoinResult":
        """The client has to join again with this member id (KIP-394)."""
        return cls(NO_GENERATION, None, None, "", member_id, error=ErrorCode.MEMBER_ID_REQUIRED)


class SyncResult(msgspec.Struct, frozen=True):
    """The result of SyncGroup: the assignment of a member."""

    protocol_type: str | None
    protocol: str | None
    assignment: bytes


class Draft:
    """A copy of a classic group with the changes of a decision."""

    __slots__ = ("_limits", "group", "journaled", "now_ms", "responses", "timers")

    def __init__(self, group: ClassicGroup, limits: GroupLimits, now_ms: int) -> None:
        self.group = group.copy()
        self.now_ms = now_ms
        self.responses: list[tuple[ResponseHandle, Any]] = []
        self.timers: dict[Timer, int | None] = {}  # time, or None to cancel
        self.journaled = False  # whether the group must be written to the journal
        self._limits = limits

    def outcome(self) -> Outcome:
        events = [GroupChanged(self.group, self.journaled), TimersChanged(self.timers)]
        return Outcome(events, self.responses)

    # Members.

    def start_session(self, member_id: str, timeout_ms: int) -> None:
        self.timers[session_timer(self.group.id, member_id)] = self.now_ms + timeout_ms

    def renew_session(self, member: Member) -> None:
        self.start_session(member.id, member.session_timeout_ms)

    def add_member(self, member: Member, protocol_type: str, handle: ResponseHandle) -> None:
        """Add a new member, whose JoinGroup is pending, and start a rebalance."""
        group = self.group
        group.pending_joins[member.id] = handle
        if not group.members:
            group.protocol_type = protocol_type
        self.put_member(member)
        self.remove_pending_member(member.id)
        if member.instance_id is not None:
            group.static_members[member.instance_id] = member.id
        if group.leader is None:
            group.leader = member.id
        if group.initial_delay is not None and group.generation == 0:
            group.initial_delay = group.initial_delay._replace(new_member_joined=True)
        self.start_session(member.id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.prepare_rebalance()

    def put_member(self, member: Member) -> Member:
        """Add or replace a member."""
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

    def add_pending_member(self, member_id: str, timeout_ms: int) -> None:
        """Reserve a member id for a client that has to join with it (KIP-394)."""
        self.group.pending_members |= {member_id}
        self.group.memory_bytes += pending_member_bytes(member_id)
        self.start_session(member_id, timeout_ms)

    def remove_pending_member(self, member_id: str) -> None:
        if member_id in self.group.pending_members:
            self.group.pending_members -= {member_id}
            self.group.memory_bytes -= pending_member_bytes(member_id)

    def remove_member(self, member_id: str) -> None:
        """Remove a member; its pending requests fail, so that a live client joins as a new member."""
        group = self.group
        member = group.members.pop(member_id)
        group.memory_bytes -= member.memory_bytes
        self.timers[session_timer(group.id, member_id)] = None
        error = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the member was removed from the group")
        self.fail_pending(member_id, error)
        if member.instance_id is not None and group.static_members.get(member.instance_id) == member_id:
            del group.static_members[member.instance_id]
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)
        group.pending_sync_members.discard(member_id)

    def fail_pending(self, member_id: str, error: KafkaError) -> None:
        """Fail the pending JoinGroup and SyncGroup of a member."""
        for pending in (self.group.pending_joins, self.group.pending_syncs):
            handle = pending.pop(member_id, None)
            if handle is not None:
                self.responses.append((handle, error))

    def remove_and_rebalance(self, member_id: str) -> None:
        """Remove a member, and rebalance the others."""
        self.remove_member(member_id)
        if self.group.state is PREPARING_REBALANCE:
            self.maybe_complete_join()
        else:
            self.prepare_rebalance()

    # Generations.

    def transition_to(self, state: State) -> None:
        self.group.state = state
        self.group.state_since_ms = self.now_ms

    def prepare_rebalance(self) -> None:
        """Start a rebalance: all members must rejoin. Does nothing while one is being prepared."""
        group = self.group
        if group.state is PREPARING_REBALANCE:
            return
        if group.state is COMPLETING_REBALANCE:
            self._cancel_syncs()
        if group.state is EMPTY:
            delay_ms = self._limits.initial_rebalance_delay_ms
            group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        else:
            group.initial_delay = None
            delay_ms = group.rebalance_timeout_ms
        self.transition_to(PREPARING_REBALANCE)
        self.timers[Timer(group.id, TimerKind.SYNC)] = None
        self._start_join_timer(delay_ms)
        self.maybe_complete_join()

    def _cancel_syncs(self) -> None:
        error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing")
        members, syncs = self.group.members, self.group.pending_syncs
        for member_id, handle in syncs.items():
            self.responses.append((handle, error))
            self.renew_session(members[member_id])
        syncs.clear()
        for member in list(members.values()):
            self.put_member(member.with_assignment(b""))

    def _start_join_timer(self, delay_ms: int) -> None:
        self.timers[Timer(self.group.id, TimerKind.JOIN)] = self.now_ms + delay_ms

    def maybe_complete_join(self) -> None:
        """Complete the join phase once all members have joined; a first generation waits for its initial delay."""
        delay = self.group.initial_delay
        if self.group.have_all_members_joined and (delay is None or delay.step_ms == 0):
            self.complete_join()

    def on_join_timeout(self) -> None:
        """Complete the join phase, or extend the initial delay if new members joined."""
        group = self.group
        delay = group.initial_delay
        if delay is not None and delay.new_member_joined and delay.remaining_ms:
            step_ms = min(self._limits.initial_rebalance_delay_ms, delay.remaining_ms)
            group.initial_delay = InitialDelay(step_ms, max(delay.remaining_ms - step_ms, 0))
            self._start_join_timer(step_ms)
        else:
            self.complete_join()

    def complete_join(self) -> None:
        """Remove members that have not rejoined, except static ones, and begin the generation."""
        group = self.group
        group.initial_delay = None
        if len(group.pending_joins) < len(group.members):
            for member in list(group.members.values()):
                if member.id not in group.pending_joins and member.instance_id is None:
                    self.remove_member(member.id)
        if group.members and not group.pending_joins:
            self._start_join_timer(group.rebalance_timeout_ms)
            return
        self.timers[Timer(group.id, TimerKind.JOIN)] = None
        group.generation += 1
        if not group.members:
            group.protocol, group.leader, group.pending_sync_members = None, None, set()
            group.topics = frozenset()
            self.transition_to(EMPTY)
            self.journaled = True
            return
        self._begin_generation()

    def _begin_generation(self) -> None:
        group = self.group
        if group.leader not in group.pending_joins:
            group.leader = next(member_id for member_id in group.members if member_id in group.pending_joins)
        group.protocol = group.select_protocol()
        group.topics = group.compute_topics(group.protocol)
        group.pending_sync_members = set(group.members)
        self.transition_to(COMPLETING_REBALANCE)
        self.timers[Timer(group.id, TimerKind.SYNC)] = self.now_ms + group.rebalance_timeout_ms
        for member in list(group.members.values()):
            if member.is_new:
                self.put_member(replace(member, is_new=False))
            self.renew_session(member)
        self.responses += [(handle, self.join_result(member_id)) for member_id, handle in group.pending_joins.items()]
        group.pending_joins.clear()

    def join_result(self, member_id: str) -> JoinResult:
        """The current generation as the JoinGroup result of a member."""
        group = self.group
        members: tuple[JoinedMember, ...] = ()
        if member_id == group.leader:
            members = tuple(
                JoinedMember(member.id, member.instance_id, member.metadata(group.protocol))
                for member in group.members.values()
            )
        return JoinResult(group.generation, group.protocol_type, group.protocol, group.leader or "", member_id, members)

    def set_assignments(self, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignment, complete pending SyncGroups and make the generation stable."""
        group = self.group
        self.transition_to(STABLE)
        self.journaled = True
        for member in list(group.members.values()):
            assigned = self.put_member(member.with_assignment(assignments.get(member.id, b"")))
            handle = group.pending_syncs.get(member.id)
            if handle is not None:
                self.renew_session(assigned)
                self.responses.append((handle, self.sync_result(assigned)))
        group.pending_syncs.clear()

    def sync_result(self, member: Member) -> SyncResult:
        return SyncResult(self.group.protocol_type, self.group.protocol, member.assignment)

    def sync_received(self, member_id: str) -> None:
        """Note the SyncGroup of a member; with the last one the sync timer ends."""
        group = self.group
        group.pending_sync_members.discard(member_id)
        if not group.pending_sync_members:
            self.timers[Timer(group.id, TimerKind.SYNC)] = None

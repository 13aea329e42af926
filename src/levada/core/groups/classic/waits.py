"""The steps that most members take: they are alive, and in a rebalance they join again, wait and ask for their part.

Of the 150 requests with which 50 members rebalance all but a handful change no more than who waits. So nobody copies
the group for them: each is an event that changes one entry. Whatever might bring about more, or is refused, is left to
`levada.core.groups.classic.requests`, which would decide the same.
"""

from typing import TYPE_CHECKING

import msgspec

from levada.core.groups.classic.draft import MOMENT_MS, SyncResult, Timer, TimerKind, session
from levada.core.groups.classic.group import COMPLETING, PREPARING, STABLE, ClassicGroup, Member
from levada.core.groups.classic.requests import JoinRequest, SyncRequest
from levada.core.groups.events import GroupEvent, TimersChanged, TimerScheduled
from levada.core.machine import JournalRecord, ResponseHandle, VolatileOutcome

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine


class JoinReceived(msgspec.Struct, frozen=True):
    """A member has joined again, and others are missing."""

    group: ClassicGroup
    member_id: str
    handle: ResponseHandle

    def record(self) -> JournalRecord | None:
        return None

    def apply(self, _: "GroupsMachine") -> None:
        self.group.joins[self.member_id] = self.handle


class SyncReceived(msgspec.Struct, frozen=True):
    """A member has asked for its assignment; with a handle, it waits for the leader."""

    group: ClassicGroup
    member_id: str
    handle: ResponseHandle | None = None

    def record(self) -> JournalRecord | None:
        return None

    def apply(self, _: "GroupsMachine") -> None:
        self.group.unsynced.discard(self.member_id)
        if self.handle is not None:
            self.group.syncs[self.member_id] = self.handle


def heard(machine: "GroupsMachine", group_id: str, member: Member, now_ms: int) -> list[GroupEvent]:
    """A member's session begins anew; of one that is heard of many times a moment, once a moment."""
    timer, until_ms = session(group_id, member.id), now_ms + member.session_timeout_ms
    if until_ms <= (machine.deadlines.get(timer) or 0) <= until_ms + MOMENT_MS:
        return []
    return [TimerScheduled(timer, until_ms + MOMENT_MS)]


def join(
    machine: "GroupsMachine", group: ClassicGroup, request: JoinRequest, handle: ResponseHandle
) -> VolatileOutcome | None:
    """A member that says what it said before, while others are missing; None if it is anything else."""
    member, joined, limits = group.members.get(request.member_id), group.joins, machine.limits
    if (
        member is None
        or group.state is not PREPARING
        or not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms
        or member.is_restored
        or member.id in joined
        or request.protocols != member.protocols
        or request.session_timeout_ms != member.session_timeout_ms
        or request.rebalance_timeout_ms != member.rebalance_timeout_ms
        or request.instance_id != member.instance_id
        or request.protocol_type != group.protocol_type
        or len(joined) >= limits.max_size
        or (len(joined) + 1 == len(group.members) and not group.pending)
    ):
        return None
    return VolatileOutcome([JoinReceived(group, member.id, handle)])


def sync(
    machine: "GroupsMachine",
    group: ClassicGroup,
    request: SyncRequest,
    generation: int,
    now_ms: int,
    handle: ResponseHandle,
) -> VolatileOutcome | None:
    """A member that follows, or is told its assignment once more; None if it is anything else."""
    member = group.members.get(request.member_id)
    if (
        member is None
        or generation != group.generation
        or request.instance_id != member.instance_id
        or (request.protocol_type or group.protocol_type) != group.protocol_type
        or (request.protocol or group.protocol) != group.protocol
    ):
        return None
    if group.state is COMPLETING and member.id != group.leader and member.id not in group.syncs:
        return VolatileOutcome([SyncReceived(group, member.id, handle)])
    if group.state is STABLE:
        events: list[GroupEvent] = [SyncReceived(group, member.id), *heard(machine, group.id, member, now_ms)]
        if len(group.unsynced) < 2 and group.unsynced <= {member.id}:
            events.append(TimersChanged({Timer(group.id, TimerKind.SYNC): None}))
        reply = SyncResult(group.protocol_type, group.protocol, member.assignment)
        return VolatileOutcome(events, [(handle, reply)])
    return None

"""A shard of groups without a broker: decisions are carried out at once, replies kept, the journal a list."""

import itertools
from collections.abc import Callable
from typing import Any

from levada.core.groups.classic.draft import GroupLimits, JoinReply
from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.classic.requests import JoinRequest, LeavingMember, SyncRequest
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest
from levada.core.machine import JournalRecord, Outcome, Passing, Stamp
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader
from levada.wire.internal.group_records import OffsetCommitValue

RANGE = (("range", b"topics"),)


def header(stamp: Stamp) -> BatchHeader:
    """As the journal would give it back."""
    return BatchHeader(
        0, 0, 0, 2, 0, stamp.attributes, 0, 0, 0, stamp.producer_id, stamp.producer_epoch, -1, 1
    )


class World:
    """One machine, the time, and all that was said."""

    def __init__(self, **limits: Any) -> None:
        self.limits = GroupLimits(**{"initial_rebalance_delay_ms": 0, **limits})
        self.machine = GroupsMachine(self.limits)
        self.journal: list[tuple[JournalRecord, Stamp]] = []
        self.replies: dict[int, Any] = {}
        self.now_ms = 1_000_000
        self._tickets = itertools.count(1)
        self._ids = itertools.count(1)
        self._carry_out(self.machine.loaded(self.now_ms))

    def submit(self, decide: Callable[[GroupsMachine, int, int], Outcome | Passing]) -> int:
        """The ticket under which the reply will be found; a refusal is a reply, too."""
        ticket = next(self._tickets)
        try:
            outcome = decide(self.machine, self.now_ms, ticket)
        except KafkaError as error:
            self.replies[ticket] = error
        else:
            self._carry_out(outcome)
        return ticket

    def _carry_out(self, outcome: Outcome | Passing) -> None:
        for event in outcome.events:
            record = self.machine.encode(event)
            if record is not None:
                assert isinstance(outcome, Outcome), "nobody would have asked for its record"
                self.journal.append((record, outcome.stamp))
        for event in outcome.events:
            self.machine.apply(event)
        for ticket, reply in outcome.replies:
            assert ticket not in self.replies, "answered twice"
            assert isinstance(ticket, int)
            self.replies[ticket] = reply

    def wait(self, ms: int) -> None:
        """Let time pass, and what is due happen when it is due."""
        end_ms = self.now_ms + ms
        while (due_ms := self.machine.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._carry_out(self.machine.expire(self.now_ms))
        self.now_ms = end_ms

    def replayed(self) -> GroupsMachine:
        """The machine that the journal gives back."""
        machine = GroupsMachine(self.limits)
        for (key, value), stamp in self.journal:
            machine.replay(key, value, header(stamp))
        return machine

    def restart(self) -> None:
        """The broker is killed and starts again: nobody who waited is answered."""
        self.machine = self.replayed()
        self._carry_out(self.machine.loaded(self.now_ms))

    # Requests, with what they need at least.

    def join(self, member_id: str = "", group: str = "g", **more: Any) -> int:
        fields = {
            "instance_id": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "new_member_id": f"new-{next(self._ids)}",
            "must_know_id": False,
            **more,
        }
        request = JoinRequest(group, member_id, **fields)
        return self.submit(lambda machine, now_ms, ticket: machine.join(request, now_ms, ticket))

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> int:
        fields = {"instance_id": None, "protocol_type": None, "protocol": None, "group_id": "g", **more}
        request = SyncRequest(
            member_id=member_id, generation=generation, assignments=assignments or {}, **fields
        )
        return self.submit(lambda machine, now_ms, ticket: machine.sync(request, now_ms, ticket))

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        ticket = self.submit(
            lambda machine, now_ms, ticket: machine.heartbeat(
                "g", member_id, instance_id, generation, now_ms, ticket
            )
        )
        return self.error(ticket)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        leaving = [LeavingMember(*member) for member in members]
        ticket = self.submit(lambda machine, now_ms, ticket: machine.leave(group, leaving, now_ms, ticket))
        errors: list[ErrorCode] = self.replies[ticket]
        return errors

    def commit(
        self, offset: int, member_id: str = "", generation: int = -1, place: Any = ("t", 0), **more: Any
    ) -> ErrorCode:
        fields = {"group_id": "g", "instance_id": None, "metadata": "", **more}
        value = OffsetCommitValue(
            offset, -1, fields.pop("metadata"), self.now_ms, fields.pop("expire_ms", -1)
        )
        request = CommitRequest(
            member_id=member_id, generation=generation, offsets=[(place, value)], **fields
        )
        ticket = self.submit(lambda machine, now_ms, ticket: machine.commit(request, now_ms, ticket))
        reply = self.replies[ticket]
        return reply.code if isinstance(reply, KafkaError) else reply[0]

    def committed(self, place: Any = ("t", 0), group: str = "g") -> int | None:
        value = self.machine.offsets.get(group, place)
        return None if value is None else value.offset

    # What was answered.

    def error(self, ticket: int) -> ErrorCode:
        reply = self.replies[ticket]
        if isinstance(reply, KafkaError):
            return reply.code
        return reply.error if isinstance(reply, JoinReply) else ErrorCode.NONE

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply), reply
        return reply

    @property
    def group(self) -> ClassicGroup:
        group = self.machine.classic("g")
        assert group is not None
        return group

    def is_in(self, state: State) -> bool:
        return self.group.state is state

    # Whole scenes.

    def stable(self, count: int = 1, **more: Any) -> list[str]:
        """A group of so many members, in a generation with assignments."""
        tickets = [self.join(**more) for _ in range(count)]
        while not all(ticket in self.replies for ticket in tickets):
            tickets = [
                self.join(self.joined(ticket).member_id, **more) if ticket in self.replies else ticket
                for ticket in tickets
            ]
        ids = [self.joined(ticket).member_id for ticket in tickets]
        generation = self.group.generation
        leader = self.group.leader
        assert leader is not None
        for member_id in sorted(ids, key=lambda one: one == leader):
            assignments = {one: one.encode() for one in ids} if member_id == leader else {}
            self.sync(member_id, generation, assignments)
        return ids

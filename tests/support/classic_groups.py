"""A group shard without a broker: outcomes are applied at once, responses collected, the journal is a list."""

import itertools
from collections.abc import Callable
from typing import Any

from levada.core.groups.classic.draft import JoinResult
from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import LeavingMember, SyncRequest
from levada.core.groups.group import GroupLimits
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest
from levada.core.machine import AnyOutcome, JournalRecord, Outcome, ProducerFields
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader
from levada.wire.internal.group_records import OffsetCommitValue

RANGE = (("range", b"topics"),)


def header(producer: ProducerFields) -> BatchHeader:
    """The batch header that a replay would read."""
    return BatchHeader(
        0, 0, 0, 2, 0, producer.attributes, 0, 0, 0, producer.producer_id, producer.producer_epoch, -1, 1
    )


class World:
    """One state machine, its time, its journal and its responses."""

    def __init__(self, **limits: Any) -> None:
        self.limits = GroupLimits(**{"initial_rebalance_delay_ms": 0, **limits})
        self.machine = GroupsMachine(self.limits)
        self.journal: list[tuple[JournalRecord, ProducerFields]] = []
        self.responses: dict[int, Any] = {}
        self.now_ms = 1_000_000
        self._handles = itertools.count(1)
        self._ids = itertools.count(1)
        self._apply_outcome(self.machine.on_loaded(self.now_ms))

    def submit(self, decide: Callable[[GroupsMachine, int, int], AnyOutcome]) -> int:
        """Decide and apply; the handle of the response, which may be an error."""
        handle = next(self._handles)
        try:
            outcome = decide(self.machine, self.now_ms, handle)
        except KafkaError as error:
            self.responses[handle] = error
        else:
            self._apply_outcome(outcome)
        return handle

    def _apply_outcome(self, outcome: AnyOutcome) -> None:
        for event in outcome.events:
            record = self.machine.encode(event)
            if record is not None:
                assert isinstance(outcome, Outcome), "a volatile outcome has an event with a record"
                self.journal.append((record, outcome.producer))
        for event in outcome.events:
            self.machine.apply(event)
        for handle, result in outcome.responses:
            assert handle not in self.responses, "a second response"
            assert isinstance(handle, int)
            self.responses[handle] = result

    def wait(self, ms: int) -> None:
        """Advance the time, and expire timers when they are due."""
        end_ms = self.now_ms + ms
        while (due_ms := self.machine.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._apply_outcome(self.machine.expire(self.now_ms))
        self.now_ms = end_ms

    def replayed(self) -> GroupsMachine:
        """The state machine that the journal restores."""
        machine = GroupsMachine(self.limits)
        for (key, value), producer in self.journal:
            machine.replay(key, value, header(producer))
        return machine

    def restart(self) -> None:
        """Crash and restart: pending responses are lost."""
        self.machine = self.replayed()
        self._apply_outcome(self.machine.on_loaded(self.now_ms))

    # Requests, with defaults.

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
            "require_member_id": False,
            **more,
        }
        request = JoinRequest(group, member_id, **fields)
        return self.submit(lambda machine, now_ms, handle: machine.join(request, now_ms, handle))

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any) -> int:
        fields = {"instance_id": None, "protocol_type": None, "protocol": None, "group_id": "g", **more}
        request = SyncRequest(member_id=member_id, generation=generation, assignments=assignments or {}, **fields)
        return self.submit(lambda machine, now_ms, handle: machine.sync(request, now_ms, handle))

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        handle = self.submit(
            lambda machine, now_ms, handle: machine.heartbeat("g", member_id, instance_id, generation, now_ms, handle)
        )
        return self.error(handle)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        leaving = [LeavingMember(*member) for member in members]
        handle = self.submit(lambda machine, now_ms, handle: machine.leave(group, leaving, now_ms, handle))
        errors: list[ErrorCode] = self.responses[handle]
        return errors

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        topic_partition: Any = ("t", 0),
        **more: Any,
    ) -> ErrorCode:
        fields = {"group_id": "g", "instance_id": None, "metadata": "", **more}
        value = OffsetCommitValue(offset, -1, fields.pop("metadata"), self.now_ms, fields.pop("expire_ms", -1))
        request = CommitRequest(
            member_id=member_id, generation=generation, offsets=[(topic_partition, value)], **fields
        )
        handle = self.submit(lambda machine, now_ms, handle: machine.commit(request, now_ms, handle))
        result = self.responses[handle]
        return result.code if isinstance(result, KafkaError) else result[0]

    def committed(self, topic_partition: Any = ("t", 0), group: str = "g") -> int | None:
        value = self.machine.offsets.get(group, topic_partition)
        return None if value is None else value.offset

    # Responses.

    def error(self, handle: int) -> ErrorCode:
        result = self.responses[handle]
        if isinstance(result, KafkaError):
            return result.code
        return result.error if isinstance(result, JoinResult) else ErrorCode.NONE

    def joined(self, handle: int) -> JoinResult:
        result = self.responses[handle]
        assert isinstance(result, JoinResult), result
        return result

    @property
    def group(self) -> ClassicGroup:
        group = self.machine.classic_group("g")
        assert group is not None
        return group

    def is_in(self, state: State) -> bool:
        return self.group.state is state

    # Scenarios.

    def stable(self, count: int = 1, **more: Any) -> list[str]:
        """Create a stable group of so many members."""
        handles = [self.join(**more) for _ in range(count)]
        while not all(handle in self.responses for handle in handles):
            handles = [
                self.join(self.joined(handle).member_id, **more) if handle in self.responses else handle
                for handle in handles
            ]
        ids = [self.joined(handle).member_id for handle in handles]
        generation = self.group.generation
        leader = self.group.leader
        assert leader is not None
        for member_id in sorted(ids, key=lambda one: one == leader):
            assignments = {one: one.encode() for one in ids} if member_id == leader else {}
            self.sync(member_id, generation, assignments)
        return ids

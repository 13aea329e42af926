"""Simulated members of the consumer protocol (KIP-848): they report what they own, and get assignments."""

from typing import Any

from tests.sim.groups.members import REBALANCE_MS, START_OVER, Member
from tests.sim.seeds import Invariant, Violation

from levada.core.groups.consumer import requests as consumer_requests
from levada.core.groups.consumer.group import ConsumerGroup
from levada.core.groups.consumer.requests import HeartbeatRequest, HeartbeatResult
from levada.core.groups.group import Group
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey

LEFT, AWAY = -1, -2


class ConsumerMember(Member):
    """A client of the consumer protocol."""

    def __init__(self, *arguments: Any, regex: str = "", assignor: str | None = None) -> None:
        super().__init__(*arguments)
        self.regex = regex
        self.assignor = assignor
        self.member_id = f"{self.name}-{next(self.world.ids)}"
        self.generation = 0
        self.shall: set[TopicPartitionKey] = set()  # what it was last told
        self.full = True  # it says everything, since it cannot know what was heard
        self.reported: set[TopicPartitionKey] | None = None  # what it last said that it reads

    @property
    def settled(self) -> bool:
        return self.alive and self.generation > 0 and self.reads == self.shall == self.reported

    def go_on(self) -> None:
        if self.reads == self.shall and self.reads and self.world.random.random() < 0.35:
            self.commit()
        else:
            self.beat()

    def is_member(self, group: Group) -> bool:
        if not isinstance(group, ConsumerGroup):
            return False
        member = group.members.get(self.member_id)
        if member is None or self.generation <= 0 or member.is_classic:
            return False
        if self.generation == member.epoch:
            return True
        assigned = {(topic, one) for topic, found in member.assigned.items() for one in found}
        return self.generation == member.previous_epoch and self.world.with_ids(self.reads) <= assigned

    def beat(self) -> None:
        """Give up what is to be given up, at some time; say so; hear what to read."""
        world = self.world
        if world.calm or world.random.random() < 0.6:
            self.reads &= self.shall
            if self.reads <= self.shall and (world.calm or world.random.random() < 0.8):
                self.reads = set(self.shall)
        joins = self.generation == 0
        full = joins or self.full
        owned = set(self.reads) if full or self.reads != self.reported else None
        request = HeartbeatRequest(
            self.group,
            self.member_id,
            self.generation,
            self.instance_id,
            None,
            REBALANCE_MS if full else -1,
            self.topics if full else None,
            self.regex if full else None,
            self.assignor if full else None,
            None if owned is None else world.by_id(owned),
            self.name,
            "/h",
        )
        if owned is not None:
            self.reported = owned
        self.ask(
            f"{'join' if joins else 'beat'}, reads {None if owned is None else sorted(owned)}",
            lambda give: world.submit(
                self.group, lambda machine, *rest: consumer_requests.heartbeat(machine, request, *rest), give
            ),
            lambda result: self.on_response(result, joins),
            given=lambda result: self.given(request.member_id, result),
            in_order=True,
        )

    def given(self, member_id: str, result: Any) -> None:
        if isinstance(result, HeartbeatResult) and result.assignment is not None:
            topic_partitions = self.world.with_names(result.assignment)
            self.world.note_assignment(self.group, member_id, self.instance_id, None, topic_partitions)

    def on_response(self, result: Any, joined: bool) -> None:
        if isinstance(result, KafkaError):
            self.full = True
            self.refused(result.code)
            return
        assert isinstance(result, HeartbeatResult)
        if result.member_epoch < self.generation and not joined:
            raise Violation(Invariant.MEMBER_EPOCH, f"{self} was taken back to epoch {result.member_epoch}")
        self.generation, self.full = result.member_epoch, False
        if result.assignment is not None:
            self.shall = self.world.with_names(result.assignment)
        moves = self.shall != self.reads
        self.soon(300 if moves else 4_000)

    def missed(self) -> None:
        self.full = True

    def start_over(self, code: ErrorCode) -> None:
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            if self.generation:
                raise Violation(Invariant.VALID_REQUESTS, f"{self} was refused with {code!r}")
            return
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.world.replace(self)
            return
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            return  # the next heartbeat brings the epoch
        if code not in START_OVER:
            raise Violation(Invariant.VALID_REQUESTS, f"{self} was refused with {code!r}")
        self.generation, self.reads, self.shall, self.full = 0, set(), set(), True

    def leave(self) -> None:
        epoch = LEFT
        if self.instance_id is not None and self.world.random.random() < 0.7:
            epoch = AWAY
        request = HeartbeatRequest(
            self.group, self.member_id, epoch, self.instance_id, None, -1, None, None, None, None, "", ""
        )
        self.die()
        self.world.send(
            f"{self}: leave {epoch}",
            lambda give: self.world.submit(
                self.group, lambda machine, *rest: consumer_requests.heartbeat(machine, request, *rest), give
            ),
        )

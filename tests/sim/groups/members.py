"""Simulated members of groups; to the coordinator they look like real clients.

A member sends one request at a time and asks again when no answer comes. What it reads is what it was told and has not
given up. It may be killed, leave, or stand still and go on later in a generation that is long over.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.sim.seeds import Invariant, Violation
from tests.support.consumer_groups import subscription

from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.classic.join import JoinRequest
from levada.core.groups.classic.requests import LeavingMember, SyncRequest
from levada.core.groups.classic.subscription import read_assignment, read_subscription, write_assignment
from levada.core.groups.consumer.group import ConsumerGroup
from levada.core.groups.group import Group
from levada.core.groups.offsets import CommitRequest
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.internal.group_records import OffsetCommitValue

if TYPE_CHECKING:
    from tests.sim.groups.world import GroupWorld

SESSION_MS = 10_000
REBALANCE_MS = 12_000
TIMEOUT_MS = 3_000
JOIN_TIMEOUT_MS = REBALANCE_MS + 5_000
AGAIN = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    )
)
START_OVER = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
    )
)


class Member:
    """What members of both protocols have in common."""

    def __init__(
        self, world: "GroupWorld", name: str, group: str, instance_id: str | None, topics: tuple[str, ...]
    ) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.instance_id = instance_id
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.reads: set[TopicPartitionKey] = set()
        self.alive = True
        self.paused_until_ms = 0
        self.waiting: object | None = None  # stands for the request it waits for

    def __repr__(self) -> str:
        return f"{self.name}/{self.member_id}@{self.generation}"

    # What is asked of each kind.

    def go_on(self) -> None:
        raise NotImplementedError

    def start_over(self, code: ErrorCode) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def is_member(self, group: Group) -> bool:
        """Whether the group would listen to it as it is."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        raise NotImplementedError

    # Time.

    def wake(self) -> None:
        """Do what comes next, unless it waits for something."""
        world = self.world
        if not self.alive or self.waiting is not None:
            return
        if self.paused_until_ms > world.clock.ms:
            world.later(self.paused_until_ms - world.clock.ms, self.wake)
            return
        self.go_on()

    def soon(self, at_most_ms: int = 40) -> None:
        self.world.later(self.world.random.randint(1, at_most_ms), self.wake)

    def ask(
        self,
        what: str,
        submit: Any,
        on_response: Any,
        timeout_ms: int = TIMEOUT_MS,
        given: Any = None,
        in_order: bool = False,
    ) -> None:
        """Send a request; `hear` is called with the answer, `given` when the coordinator lets it go."""
        token = self.waiting = object()

        def answered(result: Any) -> None:
            if self.paused_until_ms > self.world.clock.ms:
                self.world.later(self.paused_until_ms - self.world.clock.ms, lambda: answered(result))
            elif self.alive and self.waiting is token:
                self.waiting = None
                self.world.note(f"{self}: {what} -> {result}")
                on_response(result)

        def gave_up() -> None:
            if self.waiting is token:
                self.waiting = None
                self.missed()
                self.wake()

        self.world.send(f"{self}: {what}", submit, answered, given, in_order=in_order)
        self.world.later(timeout_ms, gave_up)

    def missed(self) -> None:
        """No answer came."""

    # Offsets.

    def commit(self) -> None:
        """Commit an offset of one or two partitions that it reads."""
        world = self.world
        topic_partitions = world.random.sample(sorted(self.reads), min(len(self.reads), world.random.choice((1, 1, 2))))
        request = self.commit_request(topic_partitions)
        self.ask(
            f"commit {[(topic_partition, value.offset) for topic_partition, value in request.offsets]}",
            lambda give: world.submit_commit(request, give, member=self.member_id),
            self.committed,
        )

    def commit_request(self, topic_partitions: list[TopicPartitionKey], *producer: int) -> CommitRequest:
        world = self.world
        offsets = [
            (topic_partition, OffsetCommitValue(next(world.offset_numbers), -1, "", world.clock.ms))
            for topic_partition in topic_partitions
        ]
        return CommitRequest(self.group, self.member_id, self.instance_id, self.generation, offsets, *producer)

    def committed(self, result: Any) -> None:
        if isinstance(result, KafkaError):
            self.refused(result.code)
        else:
            self.soon(2_000)

    def refused(self, code: ErrorCode) -> None:
        if code in AGAIN:
            self.soon(700)
            return
        self.start_over(code)
        self.soon()

    def die(self) -> None:
        self.alive = False
        self.reads = set()


@dataclass
class Flavour:
    """What a client of the classic protocol is like."""

    cooperative: bool = False
    knows_id_first: bool = True
    may_skip_assignment: bool = True

    @property
    def assignor(self) -> str:
        return "cooperative-sticky" if self.cooperative else "range"


class ClassicMember(Member):
    """A client of the classic protocol; eager ones give everything up before they join."""

    def __init__(self, *arguments: Any, flavour: Flavour) -> None:
        super().__init__(*arguments)
        self.flavour = flavour
        self.joined = False
        self.synced = False
        self.leads: JoinResult | None = None
        self.is_leader = False
        self.topics_seen: object = None  # what the leader knew when it assigned
        self.claimed: set[TopicPartitionKey] = set()  # what it said it has when it joined

    @property
    def settled(self) -> bool:
        return self.alive and self.joined and self.synced

    def go_on(self) -> None:
        if self.settled and self.is_leader and self.topics_seen is not self.world.image.topics:
            self.joined = False
        if not self.joined:
            self.join()
        elif not self.synced:
            self.sync()
        elif self.reads and self.world.random.random() < 0.4:
            self.commit()
        else:
            self.beat()

    def is_member(self, group: Group) -> bool:
        if isinstance(group, ConsumerGroup):
            member = group.members.get(self.member_id)
            return member is not None and member.is_classic and member.epoch == self.generation
        assert isinstance(group, ClassicGroup)
        return self.member_id in group.members and self.generation == group.generation

    def join(self) -> None:
        world, flavour = self.world, self.flavour
        if not flavour.cooperative:
            self.reads = set()
        self.synced = False
        self.topics_seen = world.image.topics
        self.claimed = self.reads
        owned: dict[str, frozenset[int]] = {}
        for topic, index in sorted(self.reads):  # the order is in what it says, and must be that of a replay
            owned[topic] = owned.get(topic, frozenset()) | {index}
        protocols = ((flavour.assignor, subscription(*self.topics, owned=owned)),)
        member_id = self.member_id

        def submit(give: Any) -> None:
            request = JoinRequest(
                self.group,
                member_id,
                self.instance_id,
                self.name,
                "/h",
                SESSION_MS,
                REBALANCE_MS,
                "consumer",
                protocols,
                new_member_id=f"{self.name}-{next(world.ids)}",
                require_member_id=flavour.knows_id_first,
                may_skip_assignment=flavour.may_skip_assignment,
            )
            world.submit(self.group, lambda machine, *rest: machine.join(request, *rest), give)

        self.ask(f"join, owns {sorted(self.reads)}", submit, self.on_join, JOIN_TIMEOUT_MS)

    def on_join(self, result: Any) -> None:
        if isinstance(result, KafkaError):
            self.refused(result.code)
            return
        assert isinstance(result, JoinResult)
        self.member_id = result.member_id
        if result.error is ErrorCode.NONE:
            if result.generation > self.generation + 1:
                self.reads = set()  # it missed a generation, in which others may have got what it reads
            self.generation, self.joined = result.generation, True
            self.is_leader = result.leader == result.member_id
            self.leads = result if self.is_leader and not result.skip_assignment else None
            if result.skip_assignment:
                self.topics_seen = None
        self.soon()

    def sync(self) -> None:
        group, generation, member_id = self.group, self.generation, self.member_id
        request = SyncRequest(
            group, member_id, self.instance_id, generation, "consumer", self.flavour.assignor, self.assign()
        )

        def given(result: Any) -> None:
            if isinstance(result, SyncResult):
                self.world.note_assignment(group, member_id, self.instance_id, generation, topic_partitions_of(result))

        self.ask(
            f"sync {sorted(request.assignments)}",
            lambda give: self.world.submit(group, lambda machine, *rest: machine.sync(request, *rest), give),
            self.on_sync,
            given=given,
        )

    def assign(self) -> dict[str, bytes]:
        """The leader divides the partitions of all members."""
        if self.leads is None:
            return {}
        claims = {}
        for member in self.leads.members:
            subscription = read_subscription(member.metadata)
            assert subscription is not None
            claims[member.id] = {(topic, one) for topic, found in subscription.owned.items() for one in found}
        topics = self.world.image.topics
        topic_partitions = [(name, one) for name in self.topics if name in topics for one in self.world.parts(name)]
        return divide(topic_partitions, claims, self.flavour.cooperative)

    def on_sync(self, result: Any) -> None:
        if isinstance(result, KafkaError):
            self.refused(result.code)
            return
        topic_partitions = topic_partitions_of(result)
        revoked = self.claimed - topic_partitions
        self.reads, self.synced = topic_partitions, True
        if revoked and self.flavour.cooperative:
            self.joined = False  # others wait for what it has given up
        self.soon(60 if revoked else 2_000)

    def beat(self) -> None:
        identity = (self.group, self.member_id, self.instance_id, self.generation)

        def on_response(result: Any) -> None:
            if isinstance(result, KafkaError):
                self.refused(result.code)
            else:
                self.soon(3_000)

        self.ask(
            "heartbeat",
            lambda give: self.world.submit(
                self.group, lambda machine, *rest: machine.heartbeat(*identity, *rest), give
            ),
            on_response,
        )

    def start_over(self, code: ErrorCode) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.world.replace(self)
            return
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.joined = False
            return
        if code not in START_OVER:
            raise Violation(Invariant.VALID_REQUESTS, f"{self} was refused with {code!r}")
        self.joined, self.reads, self.generation = False, set(), -1
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.member_id = ""

    def leave(self) -> None:
        """Static members go without a word."""
        leaving, group = [LeavingMember(self.member_id)], self.group
        self.die()
        if self.instance_id is None and self.member_id:
            self.world.send(
                f"{self}: leave",
                lambda give: self.world.submit(
                    group, lambda machine, *rest: machine.leave(group, leaving, *rest), give
                ),
            )


def topic_partitions_of(reply: SyncResult) -> set[TopicPartitionKey]:
    assignment = read_assignment(reply.assignment)
    assert assignment is not None
    return {(topic, one) for topic, found in assignment.partitions.items() for one in found}


def divide(
    topic_partitions: list[TopicPartitionKey], claims: dict[str, set[TopicPartitionKey]], cooperative: bool
) -> dict[str, bytes]:
    """Equal parts; cooperative members keep what they have, and get what others have only when it is free."""
    shares: dict[str, set[TopicPartitionKey]] = {member: set() for member in claims}
    left = []
    for topic_partition in topic_partitions:
        keeper = next((member for member in claims if topic_partition in claims[member]), None)
        if cooperative and keeper is not None and len(shares[keeper]) * len(claims) < len(topic_partitions):
            shares[keeper].add(topic_partition)
        else:
            left.append(topic_partition)
    for topic_partition in left:
        shares[min(shares, key=lambda member: len(shares[member]))].add(topic_partition)
    if cooperative:
        for member, share in shares.items():
            share -= {
                topic_partition for other, claimed in claims.items() if other != member for topic_partition in claimed
            }
    return {member: write_assignment(3, _by_topic(share)) for member, share in shares.items()}


def _by_topic(topic_partitions: set[TopicPartitionKey]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for topic, index in sorted(topic_partitions):
        found.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}

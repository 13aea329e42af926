"""A group of the classic protocol: who its members are, which generation they are in, and who waits for what.

The members themselves divide the partitions: one of them, the leader, is told all subscriptions and hands in the
assignment, which the group passes on unread. A generation begins when every member has joined (or the rebalance
timeout cut off those who did not) and is stable once the leader's assignment is there:

    EMPTY -> PREPARING (members join) -> COMPLETING (the leader assigns) -> STABLE -> PREPARING -> ...

A group is changed by copying it (`levada.core.groups.classic.draft`), so a decision that is not carried out leaves no
trace; who only waits is put among those who wait (`levada.core.groups.classic.waits`). What is journaled of it is a
stable generation with its assignments, or that it is empty; a group read back from there begins with that generation,
and members that had joined since join again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from levada.core.groups.classic.subscription import subscribed_topics
from levada.core.groups.memory_limit import MEMBER_BYTES, NAME_BYTES
from levada.core.machine import ResponseHandle
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.group_records import GroupMetadataValue, MemberMetadata, OffsetCommitValue

CONSUMER_PROTOCOL: Final = "consumer"  # the protocol type whose subscriptions can be read here
NO_GENERATION: Final = -1
UNKNOWN_MEMBER: Final = ""

Protocols = tuple[tuple[str, bytes], ...]  # name and metadata, the preferred first


class State(StrEnum):
    """Where a group is, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, _ = State  # members of an enum are slow to look up in it


class Member(msgspec.Struct, frozen=True):
    """A member as the group knows it."""

    id: str
    instance_id: str | None  # a static member keeps its place while it restarts
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False  # until its first generation begins
    is_restored: bool = False  # from the journal, which has one of its protocols, and has not joined again

    @property
    def memory_bytes(self) -> int:
        """What is held of it."""
        said = sum([NAME_BYTES + len(name) + len(metadata) for name, metadata in self.protocols])
        names = len(self.id) + len(self.instance_id or "") + len(self.client_id)
        return MEMBER_BYTES + names + said + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """What it said for a protocol."""
        return _said_for(protocol, self.protocols)

    def given(self, assignment: bytes) -> "Member":
        """The same with an assignment."""
        return replace(self, assignment=assignment)


def _said_for(protocol: str | None, protocols: Protocols) -> bytes:
    """Of one that is named twice, the first."""
    for name, metadata in protocols:
        if name == protocol:
            return metadata
    return b""


class InitialDelay(NamedTuple):
    """A group's first generation waits for more members, as long as they keep coming."""

    step_ms: int
    remaining_ms: int
    more_came: bool = False


@dataclass(slots=True)
class ClassicGroup:
    """A classic group. Only events change it: `levada.core.groups.classic.draft` and `.waits` make them."""

    kind: ClassVar[str] = "classic"

    id: str
    state: State = EMPTY
    state_since_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(
        default_factory=dict
    )  # exactly the static members: instance id to member id
    joins: dict[str, ResponseHandle] = field(
        default_factory=dict
    )  # of members: JoinGroups that wait for the generation
    syncs: dict[str, ResponseHandle] = field(
        default_factory=dict
    )  # of members: SyncGroups that wait for the assignment
    pending: frozenset[str] = frozenset()  # ids given to members that have not joined with them yet
    unsynced: set[str] = field(
        default_factory=set
    )  # members of this generation that have not asked for their assignment
    initial_delay: InitialDelay | None = None  # only while the first generation is prepared
    topics: frozenset[str] | None = None  # what the members subscribe to, if it can be told
    memory_bytes: int = field(default=0, compare=False)  # of all members, and of the ids of those to come

    def copy(self) -> "ClassicGroup":
        """The same, to be changed."""
        return ClassicGroup(
            self.id,
            self.state,
            self.state_since_ms,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            dict(self.members),
            dict(self.instances),
            dict(self.joins),
            dict(self.syncs),
            self.pending,
            set(self.unsynced),
            self.initial_delay,
            self.topics,
            self.memory_bytes,
        )

    # What others may ask.

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_bare(self) -> bool:
        """Whether there is nothing to it but offsets: it never had members and nobody is about to join."""
        return self.protocol_type is None and not self.members and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long members have to join: the longest that any of them asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        return not self.pending and len(self.joins) == len(self.members)

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member of that id; UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another has taken its place."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id}")
            if current != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"another member has taken instance id {instance_id}"
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member of {self.id!r}")
        return member

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> Member | None:
        """Who commits offsets: a member of this generation, or None for a client that only keeps offsets here."""
        if generation == self.generation and instance_id is None and self.state is not COMPLETING:
            usual = self.members.get(member_id)
            if usual is not None:
                return usual
        if generation < 0 and self.is_empty:
            return None
        if generation < 0 and not member_id and instance_id is None:
            if transactional:
                return None
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "only members may commit offsets of a group in use")
        member = self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise self.illegal(generation)
        if self.state is COMPLETING and not transactional:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group has no assignment yet")
        return member

    def illegal(self, generation: int) -> KafkaError:
        """The error for another generation than this one."""
        return KafkaError(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation}, but {self.id!r} is in {self.generation}"
        )

    def supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether a member with these protocols fits the members there are."""
        if not self.members:
            return bool(protocol_type and names)
        said = {member.protocols for member in self.members.values()}
        common = set.intersection(*({name for name, _ in protocols} for protocols in said))
        return protocol_type == self.protocol_type and not common.isdisjoint(names)

    def select_protocol(self) -> str:
        """The protocol that every member knows and most members prefer."""
        ballots = [([name for name, _ in protocols], count) for protocols, count in self._said().items()]
        common = set.intersection(*(set(names) for names, _ in ballots))
        votes: Counter[str] = Counter()
        for names, count in ballots:
            votes[next(name for name in names if name in common)] += count
        return max(votes, key=votes.__getitem__)

    def subscribed(self, protocol: str | None) -> frozenset[str] | None:
        """The topics that members subscribe to; None if that cannot be told."""
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL or protocol is None:
            return None
        topics: set[str] = set()
        for subscription in {_said_for(protocol, protocols) for protocols in self._said()}:
            found = subscribed_topics(subscription)
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    def _said(self) -> Mapping[Protocols, int]:
        """What members say, of which there are some, and how many: nearly always all the same, and seen sooner so."""
        said = [member.protocols for member in self.members.values()]
        return {said[0]: len(said)} if said.count(said[0]) == len(said) else Counter(said)

    def subscribes_to(self, topic: str) -> bool:
        """Whether members read a topic, so that its offsets may not be deleted; unknown counts as yes."""
        return not self.is_empty and (self.topics is None or topic in self.topics)

    def kept_since(self, topic: str, value: OffsetCommitValue) -> int | None:
        """From when on the retention of an offset counts; None while it is in use."""
        if self.protocol_type is None:
            return value.commit_timestamp
        if self.is_empty:
            since = self.state_since_ms
            return value.commit_timestamp if since is None else max(since, value.commit_timestamp)
        known = self.state is STABLE and self.topics is not None
        return value.commit_timestamp if known and not self.subscribes_to(topic) else None

    # The journal.

    def record(self) -> GroupMetadataValue:
        """What survives: this generation and its members."""
        members = tuple(
            MemberMetadata(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol),
                member.assignment,
            )
            for member in self.members.values()
        )
        since_ms = -1 if self.state_since_ms is None else self.state_since_ms
        return GroupMetadataValue(
            self.protocol_type or "", self.generation, self.protocol, self.leader, since_ms, members
        )


def restored(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """The group that a record tells of."""
    members: Mapping[str, Member] = {
        member.member_id: Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout,
            member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout,
            ((value.protocol or "", member.subscription),),
            member.assignment,
            is_restored=True,
        )
        for member in value.members
    }
    since_ms = None if value.current_state_timestamp < 0 else value.current_state_timestamp
    group = ClassicGroup(
        group_id,
        STABLE if members else EMPTY,
        since_ms,
        value.generation,
        value.protocol_type or None,
        value.protocol,
        value.leader,
        dict(members),
        {member.instance_id: member.id for member in members.values() if member.instance_id is not None},
    )
    group.topics = group.subscribed(group.protocol)
    group.memory_bytes = sum(member.memory_bytes for member in members.values())
    return group

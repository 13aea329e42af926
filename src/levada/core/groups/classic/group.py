"""A group of the classic protocol: its members, its generation, and the requests that await a rebalance.

The members divide the partitions themselves: one of them, the leader, receives all subscriptions and sends the
assignment, which the coordinator distributes without decoding it. A generation begins when all members have joined (or
the rebalance timeout has removed the missing ones) and is stable once the leader's assignment has arrived:

    Empty -> PreparingRebalance (members join) -> CompletingRebalance (the leader assigns) -> Stable -> ...

A decision works on a copy of the group (`levada.core.groups.classic.draft`), so a decision that fails leaves no trace;
requests that only start to wait are single events (`JoinReceived`, `SyncReceived`). The journal holds stable
generations with their assignments, and that a group is empty. A restored group continues with that generation; members
that joined later join again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from levada.core.cluster.image import ClusterImage
from levada.core.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from levada.core.groups.memory_limit import MEMBER_BYTES, NAME_BYTES
from levada.core.groups.offsets import CommitRequest
from levada.core.machine import ResponseHandle
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.group_records import GroupMetadataValue, MemberMetadata, OffsetCommitValue

NO_GENERATION: Final = -1
UNKNOWN_MEMBER: Final = ""

Protocols = tuple[tuple[str, bytes], ...]  # name and metadata, the preferred protocol first


class State(StrEnum):
    """The states of Kafka's ClassicGroupState."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE, _ = State  # faster than attributes of the enum


class Member(msgspec.Struct, frozen=True):
    """A member of a classic group."""

    id: str
    instance_id: str | None  # of a static member, which keeps its assignment while it restarts
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False  # until its first generation begins
    is_restored: bool = False  # from the journal, which has one of its protocols, and not rejoined since

    @property
    def memory_bytes(self) -> int:
        metadata = sum([NAME_BYTES + len(name) + len(metadata) for name, metadata in self.protocols])
        names = len(self.id) + len(self.instance_id or "") + len(self.client_id)
        return MEMBER_BYTES + names + metadata + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata of a protocol."""
        return _metadata_of(protocol, self.protocols)

    def with_assignment(self, assignment: bytes) -> "Member":
        return replace(self, assignment=assignment)


def _metadata_of(protocol: str | None, protocols: Protocols) -> bytes:
    """The first entry counts if a protocol is listed twice."""
    for name, metadata in protocols:
        if name == protocol:
            return metadata
    return b""


class InitialDelay(NamedTuple):
    """The first generation of a group waits group.initial.rebalance.delay.ms as long as new members keep joining."""

    step_ms: int
    remaining_ms: int
    new_member_joined: bool = False


@dataclass(slots=True)
class ClassicGroup:
    """A classic group, see `Group`. Only events change it."""

    kind: ClassVar[str] = "classic"

    id: str
    state: State = EMPTY
    state_since_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id to member id
    pending_joins: dict[str, ResponseHandle] = field(default_factory=dict)  # by member: JoinGroup requests
    pending_syncs: dict[str, ResponseHandle] = field(default_factory=dict)  # by member: SyncGroup requests
    pending_members: frozenset[str] = frozenset()  # ids given to clients that have not joined with them
    pending_sync_members: set[str] = field(default_factory=set)  # of this generation, without a SyncGroup yet
    initial_delay: InitialDelay | None = None  # only while the first generation is prepared
    topics: frozenset[str] | None = None  # that members subscribe to; None if unknown
    memory_bytes: int = field(default=0, compare=False)  # of all members and pending member ids

    def copy(self) -> "ClassicGroup":
        return ClassicGroup(
            self.id,
            self.state,
            self.state_since_ms,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            dict(self.members),
            dict(self.static_members),
            dict(self.pending_joins),
            dict(self.pending_syncs),
            self.pending_members,
            set(self.pending_sync_members),
            self.initial_delay,
            self.topics,
            self.memory_bytes,
        )

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_simple(self) -> bool:
        return self.protocol_type is None and not self.members and not self.pending_members

    @property
    def has_pending_members(self) -> bool:
        return bool(self.pending_members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def have_all_members_joined(self) -> bool:
        return not self.pending_members and len(self.pending_joins) == len(self.members)

    def validate_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member of that id. UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if a newer member has the instance id."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id}")
            if current != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"another member has instance id {instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of {self.id!r}")
        return member

    def illegal_generation(self, generation: int) -> KafkaError:
        return KafkaError(
            ErrorCode.ILLEGAL_GENERATION, f"generation {generation}, but {self.id!r} is in {self.generation}"
        )

    # Offsets.

    def validate_offset_commit(self, request: CommitRequest, image: Callable[[], ClusterImage]) -> int | None:
        """A commit is allowed for members of the current generation, and for other clients while the group is empty."""
        generation, member_id, state = request.generation, request.member_id, self.state
        if generation == self.generation and request.instance_id is None and state is not COMPLETING_REBALANCE:
            member = self.members.get(member_id)
            if member is not None:
                return member.session_timeout_ms
        if generation < 0 and self.is_empty:
            return None
        if generation < 0 and not member_id and request.instance_id is None:
            if request.is_transactional:
                return None
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "only members may commit offsets of a group with members")
        member = self.validate_member(member_id, request.instance_id)
        if generation != self.generation:
            raise self.illegal_generation(generation)
        if state is COMPLETING_REBALANCE:
            if not request.is_transactional:
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group has no assignment yet")
            return None
        return member.session_timeout_ms

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Any client may fetch the offsets of a classic group."""

    def validate_offset_delete(self) -> None:
        """NON_EMPTY_GROUP if the topics of the members are unknown."""
        if not self.is_empty and self.topics is None:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {self.id!r} has members, and their topics are unknown")

    def subscribes_to(self, topic: str) -> bool:
        """Whether members subscribe to a topic; True if that is unknown."""
        return not self.is_empty and (self.topics is None or topic in self.topics)

    def retained_since_ms(self, topic: str, value: OffsetCommitValue) -> int | None:
        if self.protocol_type is None:
            return value.commit_timestamp
        if self.is_empty:
            since = self.state_since_ms
            return value.commit_timestamp if since is None else max(since, value.commit_timestamp)
        known = self.state is STABLE and self.topics is not None
        return value.commit_timestamp if known and not self.subscribes_to(topic) else None

    # Protocols and subscriptions.

    def supports_protocols(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether a member with these protocols has one in common with all members."""
        if not self.members:
            return bool(protocol_type and names)
        lists = {member.protocols for member in self.members.values()}
        common = set.intersection(*({name for name, _ in protocols} for protocols in lists))
        return protocol_type == self.protocol_type and not common.isdisjoint(names)

    def select_protocol(self) -> str:
        """The protocol that all members support and most members prefer."""
        ballots = [([name for name, _ in protocols], count) for protocols, count in self._protocol_counts()]
        common = set.intersection(*(set(names) for names, _ in ballots))
        votes: Counter[str] = Counter()
        for names, count in ballots:
            votes[next(name for name in names if name in common)] += count
        return max(votes, key=votes.__getitem__)

    def compute_topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics that members subscribe to; None if their metadata cannot be decoded."""
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or protocol is None:
            return None
        topics: set[str] = set()
        for metadata in {_metadata_of(protocol, protocols) for protocols, _ in self._protocol_counts()}:
            found = subscribed_topics(metadata)
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    def _protocol_counts(self) -> Sequence[tuple[Protocols, int]]:
        """The different protocol lists of the members and how many members have each; mostly all are equal."""
        lists = [member.protocols for member in self.members.values()]
        if lists.count(lists[0]) == len(lists):
            return [(lists[0], len(lists))]
        return list(Counter(lists).items())

    # The journal.

    def record(self) -> GroupMetadataValue:
        """The current generation and its members as a record."""
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
    """The group of a record."""
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
    group.topics = group.compute_topics(group.protocol)
    group.memory_bytes = sum(member.memory_bytes for member in members.values())
    return group

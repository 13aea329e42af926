"""What a consumer group answers its members: the rules of ConsumerGroupHeartbeat (KIP-848).

One request does everything: it joins (epoch 0), stays, says what the member subscribes to and reads, and leaves (-1,
or -2 for a static member that will be back). The answer tells the member its epoch and, when it changed, what it may
read. Most heartbeats say nothing new; those are answered without working anything out.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from levada.core.groups.classic.draft import Timer, TimerKind
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.consumer.draft import ConsumerDraft, ConsumerLimits
from levada.core.groups.consumer.group import Committer, ConsumerGroup, Topics, plain
from levada.core.groups.consumer.member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEFT_EPOCH,
    ConsumerMember,
    MemberState,
    Owned,
)
from levada.core.groups.events import GroupEvent, GroupRemoved, TimerScheduled
from levada.core.groups.memory_limit import check_room
from levada.core.groups.migration.conversion import downgrade, may_downgrade, upgrade
from levada.core.machine import Outcome, ResponseHandle
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.consumer_group_records import MemberMetadataValue

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine
    from levada.core.groups.offsets import CommitRequest

UNCHANGED = -1  # a rebalance timeout that is what it was


class HeartbeatRequest(NamedTuple):
    """A member is alive; whatever is None is what it was."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...] | None
    topic_regex: str | None
    server_assignor: str | None
    owned: Partitions | None  # what it reads
    client_id: str
    client_host: str

    @property
    def joins(self) -> bool:
        return self.member_epoch == JOINING_EPOCH

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, as it does when it is not sure of what was heard."""
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )

    def metadata(self, former: MemberMetadataValue) -> MemberMetadataValue:
        """What the member says of itself, where it says nothing what it said before."""
        names = former.subscribed_topic_names
        timeout_ms = self.rebalance_timeout_ms
        return MemberMetadataValue(
            former.instance_id if self.instance_id is None else self.instance_id,
            former.rack_id if self.rack_id is None else self.rack_id,
            self.client_id,
            self.client_host,
            names if self.topic_names is None else tuple(sorted(set(self.topic_names))),
            former.subscribed_topic_regex if self.topic_regex is None else self.topic_regex,
            former.rebalance_timeout_ms if timeout_ms == UNCHANGED else timeout_ms,
            former.server_assignor if self.server_assignor is None else self.server_assignor,
        )


class HeartbeatResult(NamedTuple):
    """Where the member is, and what it may read if that changed or it may not know."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


def check(request: HeartbeatRequest, limits: ConsumerLimits) -> None:
    """What is wrong with a request whatever the group. INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if not request.member_id and not request.joins:
        raise _invalid("MemberId can't be empty.")
    if request.joins:
        if request.rebalance_timeout_ms == UNCHANGED:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.topic_names is None and request.topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif request.member_epoch == AWAY_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < AWAY_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in limits.assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(limits.assignors)}.",
        )


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


def heartbeat(
    machine: "GroupsMachine", request: HeartbeatRequest, now_ms: int, handle: ResponseHandle
) -> Outcome:
    """ConsumerGroupHeartbeat."""
    check(request, machine.consumer_limits)
    if request.member_epoch in (LEFT_EPOCH, AWAY_EPOCH):
        return _leave(machine, request, now_ms, handle)
    quiet = _nothing_new(machine, request)
    if quiet is not None:
        timer = Timer(request.group_id, TimerKind.MEMBER, request.member_id)
        at_ms = now_ms + machine.limits_of(request.group_id).session_timeout_ms
        return Outcome([TimerScheduled(timer, at_ms)], [(handle, quiet)])
    draft = _opened(machine, request, now_ms)
    reply = _beat(draft, request)
    check_room(machine, draft.group, request.member_id, request.instance_id)
    draft.responses.append((handle, reply))
    return draft.outcome()


def _nothing_new(machine: "GroupsMachine", request: HeartbeatRequest) -> HeartbeatResult | None:
    """The answer to a member that has all it shall have and says what it said before."""
    group = machine.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup) or group.seen is not machine.image().topics:
        return None
    member = group.members.get(request.member_id)
    if (
        member is None
        or request.member_epoch != member.epoch
        or group.epoch != group.target_epoch
        or not member.is_at(group.target_epoch)
        or request.metadata(member.metadata) != member.metadata
    ):
        return None
    return _reply(machine.limits_of(group.id), member, tell=request.is_full)


def _reply(limits: ConsumerLimits, member: ConsumerMember, *, tell: bool) -> HeartbeatResult:
    return HeartbeatResult(
        member.id, member.epoch, limits.heartbeat_interval_ms, plain(member.assigned) if tell else None
    )


def _opened(machine: "GroupsMachine", request: HeartbeatRequest, now_ms: int) -> ConsumerDraft:
    """The group, to be changed. A new member makes it, also from a classic one. GROUP_ID_NOT_FOUND."""
    group = machine.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return machine.consumer_draft(group, now_ms)
    if not request.joins:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id!r}")
    draft = machine.consumer_draft(ConsumerGroup(request.group_id), now_ms)
    if isinstance(group, ClassicGroup):
        if group.members:
            upgrade(draft, group)
        elif not group.is_bare:
            draft.events.append(GroupRemoved(group.id))
    return draft


def _beat(draft: ConsumerDraft, request: HeartbeatRequest) -> HeartbeatResult:
    group = draft.group
    if len(group.members) >= draft.limits.max_size and request.member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.id!r} has {draft.limits.max_size} members"
        )
    former = _member(draft, request)
    stale = draft.look_at_topics()
    if subscribe(draft, request.member_id, former, request.metadata(former.metadata)) or stale:
        draft.bump()
    draft.assign()
    member = draft.reconcile(request.member_id, request.owned)
    draft.wait(TimerKind.MEMBER, member.id, draft.limits.session_timeout_ms)
    tell = request.joins or request.is_full or plain(member.assigned) != plain(former.assigned)
    return _reply(draft.limits, member, tell=tell)


def subscribe(
    draft: ConsumerDraft, member_id: str, former: ConsumerMember, metadata: MemberMetadataValue
) -> bool:
    """Keep what a member says of itself; True if the group needs a new epoch for it."""
    group = draft.group
    if metadata == former.metadata and member_id in group.members:
        return group.epoch == 0
    draft.put_metadata(member_id, metadata)
    if former.is_classic and metadata.classic_member_metadata is None:
        draft.wait(TimerKind.MEMBER_JOIN, member_id, None)
        draft.wait(TimerKind.MEMBER_SYNC, member_id, None)
    regex = metadata.subscribed_topic_regex or ""
    if regex:
        draft.resolve(regex)
    if regex != former.regex:
        draft.drop_unused_regexes()
    return (
        group.epoch == 0
        or regex != former.regex
        or metadata.subscribed_topic_names != former.metadata.subscribed_topic_names
    )


def _member(draft: ConsumerDraft, request: HeartbeatRequest) -> ConsumerMember:
    """The member that sends this, new or as it was. UNKNOWN_MEMBER_ID, or an error that it is another's."""
    group = draft.group
    if request.instance_id is not None:
        member = _static_member(draft, request, request.instance_id)
    elif request.joins and request.member_id not in group.members:
        return ConsumerMember(request.member_id)
    else:
        member = group.member(request.member_id)
    _check_epoch(member, request)
    return member


def _static_member(draft: ConsumerDraft, request: HeartbeatRequest, instance_id: str) -> ConsumerMember:
    group = draft.group
    if not request.joins:
        return group.static_member(instance_id, request.member_id)
    if instance_id not in group.instances:
        return group.members.get(request.member_id) or ConsumerMember(request.member_id)
    member = group.static_member(instance_id)
    if member.epoch != AWAY_EPOCH and not member.is_classic:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID, f"member {member.id!r} still has instance id {instance_id!r}"
        )
    return draft.replace_static(member, request.member_id)


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """A member in another epoch starts over, unless it does so already or only missed the answer that took it here."""
    if member.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is not known: it must rejoin")
    epoch = request.member_epoch
    missed = request.joins or (epoch == member.previous_epoch and _is_part(request.owned, member.assigned))
    if epoch > member.epoch or (epoch < member.epoch and not missed):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member epoch {epoch}, but the member is in {member.epoch}: "
            "it must give up its partitions and rejoin",
        )


def _is_part(owned: Partitions | None, assigned: Owned) -> bool:
    return owned is not None and all(
        topic in assigned and partitions <= assigned[topic].keys() for topic, partitions in owned.items()
    )


def check_commit(topics: Topics, group: ConsumerGroup, request: "CommitRequest") -> None:
    """Whether a member, or somebody else while there is none, may commit these offsets."""
    group.check_commit(
        Committer(request.member_id, request.instance_id, request.generation),
        [(topics[name].id, index) for (name, index), _ in request.offsets if name in topics],
        version=request.api_version,
        transactional=request.is_transactional,
    )


# Leaving.


def _leave(
    machine: "GroupsMachine", request: HeartbeatRequest, now_ms: int, handle: ResponseHandle
) -> Outcome:
    group = machine.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id!r}")
    member = group.find(request.member_id, request.instance_id)
    draft = machine.consumer_draft(group, now_ms)
    if request.member_epoch == AWAY_EPOCH:
        draft.put_current(replace(member, epoch=AWAY_EPOCH, revoking={}))
        draft.wait(TimerKind.REVOKE, member.id, None)
    else:
        fence(machine, draft, [member.id])
    draft.responses.append((handle, HeartbeatResult(request.member_id, request.member_epoch, 0)))
    return draft.outcome()


def fence(machine: "GroupsMachine", draft: ConsumerDraft, member_ids: Collection[str]) -> None:
    """Members are gone. If only members of the classic protocol are left, the group goes back to it."""
    if not member_ids:
        return
    if may_downgrade(draft, member_ids):
        downgrade(machine.limits, draft, leaving=member_ids)
        return
    for member_id in member_ids:
        draft.remove(member_id)
    draft.drop_unused_regexes()
    draft.bump()


def expire(machine: "GroupsMachine", group_id: str, timers: Sequence[Timer], now_ms: int) -> Outcome:
    """Deadlines of a group have come: whoever was waited for is gone."""
    group = machine.groups[group_id]
    assert isinstance(group, ConsumerGroup)
    draft = machine.consumer_draft(group, now_ms)
    draft.timers.update(dict.fromkeys(timers))
    fence(machine, draft, {timer.member: None for timer in timers if timer.member in group.members})
    return draft.outcome()


def await_members(draft: ConsumerDraft) -> Sequence[GroupEvent]:
    """The journal is read: whoever was a member has its time to be heard of."""
    for member in draft.group.members.values():
        classic = member.metadata.classic_member_metadata
        session_ms = draft.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        draft.wait(TimerKind.MEMBER, member.id, session_ms)
        if classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            draft.wait(TimerKind.REVOKE, member.id, member.metadata.rebalance_timeout_ms)
    return draft.outcome().events

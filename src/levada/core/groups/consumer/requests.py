"""ConsumerGroupHeartbeat (KIP-848) and timers of a consumer group.

One request does everything: a member joins (epoch 0), renews its session, changes its subscription, reports its owned
partitions, and leaves (epoch -1, or -2 for a static member that will return). The response has the member epoch and,
if it changed, the assignment. Most heartbeats change nothing and are decided without a copy of the group.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.consumer.draft import ConsumerDraft, ConsumerLimits, ConsumerRecord
from levada.core.groups.consumer.group import ConsumerGroup, without_epochs
from levada.core.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    MemberState,
    PartitionEpochs,
)
from levada.core.groups.events import GroupEvent, GroupRemoved, TimerScheduled
from levada.core.groups.group import Timer, TimerKind, session_timer
from levada.core.groups.memory_limit import check_memory
from levada.core.groups.migration.conversion import downgrade, may_downgrade, upgrade
from levada.core.machine import Outcome, ResponseHandle
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.consumer_group_records import MemberMetadataValue

if TYPE_CHECKING:
    from levada.core.groups.machine import GroupsMachine

UNCHANGED = -1  # a rebalance timeout that did not change


class HeartbeatRequest(NamedTuple):
    """A ConsumerGroupHeartbeat request; None stands for unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...] | None
    topic_regex: str | None
    server_assignor: str | None
    owned: Partitions | None
    client_id: str
    client_host: str

    @property
    def joins(self) -> bool:
        return self.member_epoch == JOIN_EPOCH

    @property
    def is_full(self) -> bool:
        """Whether all fields are set, as after a lost response; the response then has the assignment."""
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )

    def metadata(self, former: MemberMetadataValue) -> MemberMetadataValue:
        """The member's metadata; unchanged fields come from the former metadata."""
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
    """The member epoch, and the assignment if it changed or the member may not know it."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


def _validate(request: HeartbeatRequest, limits: ConsumerLimits) -> None:
    """Validate what does not depend on the group. INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
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
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in limits.assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(limits.assignors)}.",
        )


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


def heartbeat(machine: "GroupsMachine", request: HeartbeatRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
    """ConsumerGroupHeartbeat."""
    _validate(request, machine.consumer_limits)
    if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return _leave(machine, request, now_ms, handle)
    unchanged = _unchanged(machine, request)
    if unchanged is not None:
        at_ms = now_ms + machine.limits_of(request.group_id).session_timeout_ms
        timer = session_timer(request.group_id, request.member_id)
        return Outcome([TimerScheduled(timer, at_ms)], [(handle, unchanged)])
    draft = _open_draft(machine, request, now_ms)
    result = _heartbeat(draft, request)
    check_memory(machine, draft.group, request.member_id, request.instance_id)
    draft.responses.append((handle, result))
    return draft.outcome()


def _unchanged(machine: "GroupsMachine", request: HeartbeatRequest) -> HeartbeatResult | None:
    """The result for a member that has its target assignment and changes nothing; None for any other."""
    group = machine.consumer_group(request.group_id)
    if group is None or group.evaluated_topics is not machine.image().topics:
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
    return _result(machine.limits_of(group.id), member, with_assignment=request.is_full)


def _result(limits: ConsumerLimits, member: ConsumerMember, *, with_assignment: bool) -> HeartbeatResult:
    return HeartbeatResult(
        member.id,
        member.epoch,
        limits.heartbeat_interval_ms,
        without_epochs(member.assigned) if with_assignment else None,
    )


def _open_draft(machine: "GroupsMachine", request: HeartbeatRequest, now_ms: int) -> ConsumerDraft:
    """A draft of the group. A joining member creates it, or upgrades a classic group. GROUP_ID_NOT_FOUND."""
    group = machine.consumer_group(request.group_id)
    if group is not None:
        return machine.consumer_draft(group, now_ms)
    if not request.joins:
        raise _not_found(request.group_id)
    draft = machine.consumer_draft(ConsumerGroup(request.group_id), now_ms)
    classic = machine.classic_group(request.group_id)
    if classic is not None:
        if classic.members:
            upgrade(draft, classic)
        elif not classic.is_simple:
            draft.events.append(GroupRemoved(classic.id))
    return draft


def _not_found(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"consumer group {group_id!r} does not exist")


def _heartbeat(draft: ConsumerDraft, request: HeartbeatRequest) -> HeartbeatResult:
    group = draft.group
    if len(group.members) >= draft.limits.max_size and request.member_id not in group.members:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.id!r} has {draft.limits.max_size} members")
    former = _member(draft, request)
    topics_changed = draft.refresh_topics()
    if subscribe(draft, request.member_id, former, request.metadata(former.metadata)) or topics_changed:
        draft.bump_epoch()
    draft.update_target_assignment()
    member = draft.reconcile(request.member_id, request.owned)
    draft.schedule(TimerKind.SESSION, member.id, draft.limits.session_timeout_ms)
    with_assignment = (
        request.joins or request.is_full or without_epochs(member.assigned) != without_epochs(former.assigned)
    )
    return _result(draft.limits, member, with_assignment=with_assignment)


def subscribe(draft: ConsumerDraft, member_id: str, former: ConsumerMember, metadata: MemberMetadataValue) -> bool:
    """Update the metadata of a member; True if the group needs a new epoch."""
    group = draft.group
    if metadata == former.metadata and member_id in group.members:
        return group.epoch == 0
    draft.put_metadata(member_id, metadata)
    if former.is_classic and metadata.classic_member_metadata is None:
        draft.schedule(TimerKind.MEMBER_JOIN, member_id, None)
        draft.schedule(TimerKind.MEMBER_SYNC, member_id, None)
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
    """The member of a request, new or existing. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH."""
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
    if instance_id not in group.static_members:
        return group.members.get(request.member_id) or ConsumerMember(request.member_id)
    member = group.static_member(instance_id)
    if member.epoch != LEAVE_STATIC_EPOCH and not member.is_classic:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID, f"member {member.id!r} still has instance id {instance_id!r}"
        )
    return draft.replace_static(member, request.member_id)


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """FENCED_MEMBER_EPOCH for another epoch, unless the member rejoins or missed the last response."""
    if member.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is not known: it must rejoin")
    epoch = request.member_epoch
    is_retry = request.joins or (epoch == member.previous_epoch and _is_subset(request.owned, member.assigned))
    if epoch > member.epoch or (epoch < member.epoch and not is_retry):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member epoch {epoch}, but the member is in {member.epoch}: it must give up its partitions and rejoin",
        )


def _is_subset(owned: Partitions | None, assigned: PartitionEpochs) -> bool:
    return owned is not None and all(
        topic in assigned and partitions <= assigned[topic].keys() for topic, partitions in owned.items()
    )


# Members that leave.


def _leave(machine: "GroupsMachine", request: HeartbeatRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
    group = machine.consumer_group(request.group_id)
    if group is None:
        raise _not_found(request.group_id)
    member = group.find(request.member_id, request.instance_id)
    draft = machine.consumer_draft(group, now_ms)
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        draft.put_current(replace(member, epoch=LEAVE_STATIC_EPOCH, pending_revocation={}))
        draft.schedule(TimerKind.REVOKE, member.id, None)
    else:
        remove_members(machine, draft, [member.id])
    draft.responses.append((handle, HeartbeatResult(request.member_id, request.member_epoch, 0)))
    return draft.outcome()


def remove_members(machine: "GroupsMachine", draft: ConsumerDraft, member_ids: Collection[str]) -> None:
    """Remove members. If only classic members are left, the group is downgraded."""
    if not member_ids:
        return
    if may_downgrade(draft, member_ids):
        downgrade(machine.limits, draft, leaving=member_ids)
        return
    for member_id in member_ids:
        draft.remove(member_id)
    draft.drop_unused_regexes()
    draft.bump_epoch()


def tombstones(group: ConsumerGroup) -> list[GroupEvent]:
    """The events that remove a group."""
    return [ConsumerRecord(key, value) for key, value in group.tombstones()]


def expire(machine: "GroupsMachine", group: ConsumerGroup, timers: Sequence[Timer], now_ms: int) -> Outcome:
    """Remove the members whose timers have expired."""
    draft = machine.consumer_draft(group, now_ms)
    draft.timers.update(dict.fromkeys(timers))
    remove_members(machine, draft, {timer.member: None for timer in timers if timer.member in group.members})
    return draft.outcome()


def on_loaded(machine: "GroupsMachine", group: ConsumerGroup, now_ms: int) -> Sequence[GroupEvent]:
    """Start the session and revocation timers of all members."""
    draft = machine.consumer_draft(group, now_ms)
    for member in group.members.values():
        classic = member.metadata.classic_member_metadata
        session_ms = draft.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        draft.schedule(TimerKind.SESSION, member.id, session_ms)
        if classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            draft.schedule(TimerKind.REVOKE, member.id, member.metadata.rebalance_timeout_ms)
    return draft.outcome().events

"""The machine behind a partition of `__consumer_offsets`: its groups, their committed offsets, their deadlines.

Deciding methods take the request, the time and the handle of who waits, change nothing and return an outcome, or raise
what the client is told. A group is found by its id and is of the classic or of the consumer protocol; members of the
one may be in a group of the other. Offsets ask a group mostly what every kind can answer (`Group`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import methodcaller
from typing import ClassVar, Final, Protocol

from msgspec.structs import replace

from levada.core.cluster.image import ClusterImage
from levada.core.groups.classic import requests as group_requests
from levada.core.groups.classic import waits as group_waits
from levada.core.groups.classic.draft import Draft, GroupLimits, Timer, TimerKind
from levada.core.groups.classic.group import PREPARING, STABLE, UNKNOWN_MEMBER, ClassicGroup, restored
from levada.core.groups.classic.requests import JoinRequest, LeavingMember, SyncRequest
from levada.core.groups.consumer import requests as consumer_requests
from levada.core.groups.consumer.draft import ConsumerDraft, ConsumerLimits, ConsumerRecord
from levada.core.groups.consumer.group import ANYBODY, ConsumerGroup, Reader
from levada.core.groups.events import (
    FORMAT,
    GroupChanged,
    GroupEvent,
    GroupRemoved,
    OffsetPut,
    TimersChanged,
    TimerScheduled,
    TransactionEnded,
)
from levada.core.groups.memory_limit import Crowd, check_new_group, check_room, forget, keep
from levada.core.groups.migration import classic_members
from levada.core.groups.offsets import CommitRequest, FetchedOffset, Offsets, Place
from levada.core.machine import Deadlines, Outcome, ProducerFields, ResponseHandle, VolatileOutcome
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.wire.batches import TRANSACTIONAL_BIT, BatchHeader
from levada.wire.control_records import MARKER_ATTRIBUTES, read_marker
from levada.wire.internal.group_records import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue

log = EventLog(__name__)

REMOVALS_PER_CHECK_MAX: Final = 5_000  # offsets removed at once; the rest goes a moment later
NEXT_CHECK_MS: Final = 1_000
EXPIRIES_MAX: Final = 100  # at once, so that the loop stays free
RETENTION: Final = Timer("", TimerKind.RETENTION)
HEARING: Final = (STABLE, PREPARING)  # a commit of a member says that it is alive
NONE: Final = ErrorCode.NONE  # members of enums are slow to look up
REBALANCES: Final = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")  # told, never raised


class Group(Crowd, Protocol):
    """What every kind of group answers."""

    kind: ClassVar[str]

    @property
    def state(self) -> StrEnum: ...

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def is_empty(self) -> bool: ...

    def subscribes_to(self, topic: str) -> bool: ...

    def kept_since(self, topic: str, value: OffsetCommitValue) -> int | None: ...


@dataclass(slots=True)
class GroupsMachine:
    """The state of one shard."""

    limits: GroupLimits = field(default_factory=GroupLimits)
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=Offsets)
    deadlines: Deadlines[Timer] = field(default_factory=Deadlines)
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    image: Callable[[], ClusterImage] = ClusterImage  # the topics, which consumer groups divide
    held: Callable[[], int] = int  # what members make all machines of the broker hold, in bytes
    memory_bytes: int = field(default=0, compare=False)  # and this one

    # The classic protocol.

    def classic(self, group_id: str) -> ClassicGroup | None:
        """The classic group of that id, if there is one."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def join(self, request: JoinRequest, now_ms: int, handle: ResponseHandle) -> Outcome | VolatileOutcome:
        """JoinGroup. The first member makes the group."""
        group_requests.check_join(request, self.limits)
        group = self.groups.get(request.group_id)
        former: list[GroupEvent] = []
        if isinstance(group, ConsumerGroup):
            if group.members:
                return classic_members.join(self, group, request, now_ms, handle)
            former = [ConsumerRecord(key, value) for key, value in group.tombstones()]
            group = None
        if not isinstance(group, ClassicGroup):
            if request.member_id != UNKNOWN_MEMBER:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id!r}")
            check_new_group(request.group_id)
            group = ClassicGroup(request.group_id)
        if waits := group_waits.join(self, group, request, handle):
            return waits
        draft = Draft(group, self.limits, now_ms)
        group_requests.join(draft, request, handle, self.limits)
        if not group_requests.comes_back(group, request):
            check_room(self, draft.group, request.member_id, request.instance_id)
        outcome = _outcome(draft)
        return replace(outcome, events=[*former, *outcome.events]) if former else outcome

    def sync(self, request: SyncRequest, now_ms: int, handle: ResponseHandle) -> Outcome | VolatileOutcome:
        """SyncGroup."""
        group = self._member_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return classic_members.sync(self, group, request, now_ms, handle)
        if waits := group_waits.sync(self, group, request, request.generation, now_ms, handle):
            return waits
        draft = Draft(group, self.limits, now_ms)
        group_requests.sync(draft, request, handle)
        check_room(self, draft.group)
        return _outcome(draft)

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        handle: ResponseHandle,
    ) -> Outcome | VolatileOutcome:
        """Heartbeat: the session begins anew, and the member is told when it must join again."""
        group = self._member_group(group_id)
        if isinstance(group, ConsumerGroup):
            return classic_members.heartbeat(self, group, member_id, instance_id, generation, now_ms, handle)
        member = group.check_member(member_id, instance_id)
        if generation != group.generation:
            raise group.illegal(generation)
        reply = None
        if group.state is PREPARING:
            reply = REBALANCES
        return VolatileOutcome(group_waits.heard(self, group_id, member, now_ms), [(handle, reply)])

    def leave(
        self, group_id: str, leaving: Sequence[LeavingMember], now_ms: int, handle: ResponseHandle
    ) -> Outcome:
        """LeaveGroup; the reply is an error code for each who leaves."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return classic_members.leave(self, group, leaving, now_ms, handle)
        if not isinstance(group, ClassicGroup):
            return Outcome(responses=[(handle, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving))])
        draft = Draft(group, self.limits, now_ms)
        errors = group_requests.leave(draft, leaving)
        draft.responses.append((handle, errors))
        return _outcome(draft)

    def _member_group(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        group = self.groups.get(group_id)
        if isinstance(group, (ClassicGroup, ConsumerGroup)):  # a union would be slow
            return group
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")

    def consumer_draft(self, group: ConsumerGroup, now_ms: int) -> ConsumerDraft:
        """A consumer group, to be changed."""
        return ConsumerDraft(group, self.limits_of(group.id), self.image(), now_ms)

    def limits_of(self, group_id: str) -> ConsumerLimits:
        """What holds for a consumer group: what was set for it before what holds for all."""
        own = self.image().group_configs.get(group_id)
        return self.consumer_limits if own is None else self.consumer_limits.with_own(own)

    # Offsets.

    def commit(self, request: CommitRequest, now_ms: int, handle: ResponseHandle) -> Outcome:
        """OffsetCommit and TxnOffsetCommit; the reply is an error code for each offset."""
        events: list[GroupEvent] = self._committer(request, now_ms)
        errors = []
        group_id, producer_id = request.group_id, request.producer_id
        for place, value in request.offsets:
            if value.metadata and len(value.metadata) > self.limits.offset_metadata_max_bytes:
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(NONE)
            events.append(OffsetPut(group_id, place, value, producer_id))
        if producer_id < 0:
            return Outcome(events, [(handle, errors)])
        producer = ProducerFields(producer_id, request.producer_epoch, TRANSACTIONAL_BIT)
        return Outcome(events, [(handle, errors)], producer)

    def _committer(self, request: CommitRequest, now_ms: int) -> list[GroupEvent]:
        """Check who commits; a member's session begins anew."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            member = group.check_commit(
                request.member_id,
                request.instance_id,
                request.generation,
                transactional=request.is_transactional,
            )
            if member is None or group.state not in HEARING:
                return []
            return group_waits.heard(self, group.id, member, now_ms)
        if isinstance(group, ConsumerGroup):
            consumer_requests.check_commit(self.image().topics, group, request)
        elif request.generation >= 0:
            gone = ErrorCode.ILLEGAL_GENERATION if request.is_transactional else ErrorCode.GROUP_ID_NOT_FOUND
            raise KafkaError(gone, f"there is no group {request.group_id!r}")
        elif group is None:
            check_new_group(request.group_id)
        return []

    def fetch(
        self, group_id: str, places: Iterable[Place] | None, *, stable: bool, reader: Reader = ANYBODY
    ) -> list[FetchedOffset]:
        """OffsetFetch: committed offsets of these partitions, or of all; `stable` waits for open transactions."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(reader)
        found = []
        for place in [place for place, _ in self.offsets.of(group_id)] if places is None else places:
            if stable and self.offsets.is_pending(group_id, place):
                found.append(FetchedOffset(place, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                found.append(FetchedOffset(place, self.offsets.get(group_id, place)))
        return found

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int,
        handle: ResponseHandle,
    ) -> Outcome:
        """A marker for this shard: what the producer committed counts, or is gone."""
        event = TransactionEnded(producer_id, committed, coordinator_epoch)
        return Outcome(
            [event], [(handle, None)], ProducerFields(producer_id, producer_epoch, MARKER_ATTRIBUTES)
        )

    def delete_offsets(self, group_id: str, places: Sequence[Place], handle: ResponseHandle) -> Outcome:
        """OffsetDelete; the reply is an error code for each partition."""
        group = self._existing(group_id)
        if isinstance(group, ClassicGroup) and not group.is_empty and group.topics is None:
            raise KafkaError(
                ErrorCode.NON_EMPTY_GROUP, f"{group_id!r} has members, and their topics are unknown"
            )
        errors, events = [], []
        for place in places:
            subscribed = group.subscribes_to(place[0])
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE)
            if not subscribed and self.offsets.get(group_id, place) is not None:
                events.append(OffsetPut(group_id, place, None))
        return Outcome(events, [(handle, errors)], atomic=False)

    def delete_group(self, group_id: str) -> list[GroupEvent]:
        """DeleteGroups for one group: with all its offsets, if nobody is in it."""
        group = self._existing(group_id)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{group_id!r} has members")
        return [*self._without_offsets(group_id), *_removal(group)]

    def _existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        return group

    def _without_offsets(self, group_id: str) -> list[GroupEvent]:
        return [OffsetPut(group_id, place, None) for place in self.offsets.places(group_id)]

    def topics_gone(self, is_gone: Callable[[str], bool], handle: ResponseHandle) -> Outcome:
        """Topics were deleted: nobody will ask for their offsets, and a new topic of the name starts anew."""
        events = [
            OffsetPut(group_id, place, None)
            for group_id in list(self.offsets.groups())
            for place in self.offsets.places(group_id)
            if is_gone(place[0])
        ]
        return Outcome(events, [(handle, None)], atomic=False)

    # Time.

    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_ms()

    def on_loaded(self, now_ms: int) -> Outcome:
        """Whoever was a member has a session's time to be heard of.

        A group over its size rebalances, and one whose rebalance had not found a leader.
        """
        events: list[GroupEvent] = [self._next_check(now_ms)]
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                events += consumer_requests.await_members(self.consumer_draft(group, now_ms))
            if isinstance(group, ClassicGroup) and group.members:
                draft = Draft(group, self.limits, now_ms)
                for member in group.members.values():
                    draft.stay(member)
                if len(group.members) > self.limits.max_size or group.leader is None:
                    draft.prepare()
                events += _outcome(draft).events
        return Outcome(events, atomic=False)

    def expire(self, now_ms: int) -> Outcome:
        """What is due; where it is much, the rest stays due and comes a moment later."""
        events: list[GroupEvent] = []
        drafts: dict[str, Draft] = {}
        lapsed: dict[str, list[Timer]] = {}  # of consumer groups
        for timer in self.deadlines.due(now_ms)[:EXPIRIES_MAX]:
            group = self.groups.get(timer.group)
            if timer == RETENTION:
                events += self._remove_expired(now_ms)
            elif isinstance(group, ClassicGroup):
                draft = drafts.setdefault(timer.group, Draft(group, self.limits, now_ms))
                group_requests.expire(draft, timer)
            elif isinstance(group, ConsumerGroup):
                lapsed.setdefault(timer.group, []).append(timer)
            else:
                events.append(TimersChanged({timer: None}))
        outcomes = [_outcome(draft) for draft in drafts.values()]
        outcomes += [consumer_requests.expire(self, *one, now_ms) for one in lapsed.items()]
        responses = [reply for outcome in outcomes for reply in outcome.responses]
        events += [event for outcome in outcomes for event in outcome.events]
        return Outcome(events, responses, atomic=False)

    def _next_check(self, now_ms: int) -> TimerScheduled:
        return TimerScheduled(RETENTION, now_ms + self.limits.offsets_retention_check_interval_ms)

    def _remove_expired(self, now_ms: int) -> list[GroupEvent]:
        """Take back offsets that are kept no longer, and groups that have neither members nor offsets."""
        events: list[GroupEvent] = []
        for group in self.groups.values():
            if len(events) >= REMOVALS_PER_CHECK_MAX:
                return [*events, TimerScheduled(RETENTION, now_ms + NEXT_CHECK_MS)]
            gone = self.offsets.expired(group.id, now_ms, self.limits.offsets_retention_ms, group.kept_since)
            events += [OffsetPut(group.id, place, None) for place in gone]
            if (
                group.is_empty
                and not (isinstance(group, ClassicGroup) and group.pending)
                and len(gone) == self.offsets.count(group.id)
                and not self.offsets.has_pending(group.id)
            ):
                events += _removal(group)
        return [*events, self._next_check(now_ms)]

    # Applying.

    encode = staticmethod(methodcaller("record"))  # of any event, by no function of Python's

    def apply(self, event: GroupEvent) -> None:
        event.apply(self)

    def forget_if_bare(self, group_id: str) -> None:
        """A group that was only its offsets, or ids of members to come, ends with them; others stay until removed."""
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup) and group.is_bare and not self.offsets.has(group_id):
            del self.groups[group_id]

    def replay(self, key: bytes | None, value: bytes | None, batch: BatchHeader) -> None:
        if batch.is_control:
            marker = read_marker(key, value)
            if marker is not None:
                TransactionEnded(batch.producer_id, *marker).apply(self)
            return
        found = FORMAT.decode(key or b"", value)
        if found is None:
            log.warning("a record of an unknown kind is left out", key=(key or b"")[:16].hex())
            return
        name, content = found
        if isinstance(name, OffsetCommitKey):
            producer_id = batch.producer_id if batch.is_transactional else -1
            OffsetPut(name.group, (name.topic, name.partition), content, producer_id).apply(self)
        elif isinstance(name, GroupMetadataKey):
            self._replay_group(name.group, restored(name.group, content) if content is not None else None)
        else:
            ConsumerRecord(name, content).apply(self)

    def _replay_group(self, group_id: str, group: ClassicGroup | None) -> None:
        if group is not None:
            keep(self, group)
        elif isinstance(self.groups.get(group_id), ConsumerGroup):
            return
        elif self.offsets.has(group_id):
            keep(self, ClassicGroup(group_id))
        else:
            forget(self, group_id)


def _removal(group: Group) -> list[GroupEvent]:
    if isinstance(group, ConsumerGroup):
        return [ConsumerRecord(key, value) for key, value in group.tombstones()]
    return [GroupRemoved(group.id)]


def _outcome(draft: Draft) -> Outcome:
    return Outcome([GroupChanged(draft.group, draft.saved), TimersChanged(draft.timers)], draft.responses)

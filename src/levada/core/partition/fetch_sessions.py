"""Incremental fetch sessions (KIP-227): a consumer of many partitions names only what changed, and so do we.

The machine is pure: time is an argument and so is what draws a session id. A handler uses it in three steps:

    context = sessions.begin(session_id, epoch, wanted, forgotten, ...)
    for partition in context.partitions: ...read it, perhaps wait and read again...
    answer = [... for partition in context.partitions if context.include(partition, ...)]

`begin` raises KafkaError for an error of the session; the answer then carries its code, session id 0 and no
partition. `include` is called once for each partition, when the answer is built: it records what the client
now knows. A partition that gave records goes to the end of its session's order, so that none starves when the
bytes of a response are few. Without a session (most clients but Java's) all this costs one small object.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import ELEMENTS_MAX

NO_SESSION = 0  # the session id of a request or an answer outside of any session
INITIAL_EPOCH = 0  # a full request that wants a session
FINAL_EPOCH = -1  # a full request that wants none, and the end of the session it names
EVICTION_MS = 120_000  # a session unused for that long is stale; one younger than that is left alone
PARTITIONS_MAX = 500_000  # remembered in all sessions together

_EPOCH_MAX = 0x7FFFFFFF

TopicKey = bytes  # as on the wire: a name in requests up to version 12, an id in later ones


@dataclass(slots=True)
class FetchPartition:
    """What a client wants of one partition, and what it was last told about it."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    log_start_offset: int = -1  # of the follower that asks
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start_offset: int = -1


class _Session:
    __slots__ = ("by_topic_id", "created_ms", "epoch", "id", "last_used_ms", "partitions", "privileged")

    def __init__(self, session_id: int, by_topic_id: bool, privileged: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_topic_id = by_topic_id
        self.privileged = privileged
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = 1  # the one that the next request must carry
        self.partitions: dict[tuple[TopicKey, int], FetchPartition] = {}  # in the order of reading

    @property
    def worth(self) -> tuple[bool, int, int]:
        """Sessions of followers, then those with many partitions, are kept before others."""
        return (self.privileged, len(self.partitions), self.id)


class FetchContext:
    """One Fetch request: the partitions to read, in order, and which of them the answer must name."""

    __slots__ = ("_epoch", "_incremental", "_session", "partitions", "session_id")

    def __init__(
        self, partitions: Sequence[FetchPartition], session: _Session | None, incremental: bool
    ) -> None:
        self.partitions = partitions
        self.session_id = NO_SESSION if session is None else session.id  # to be answered
        self._session = session
        self._incremental = incremental
        self._epoch = 0 if session is None else session.epoch

    @property
    def superseded(self) -> bool:
        """A later request of the session came while this one waited: answer INVALID_FETCH_SESSION_EPOCH."""
        return self._session is not None and self._session.epoch != self._epoch

    def include(
        self,
        partition: FetchPartition,
        high_watermark: int,
        log_start_offset: int,
        records_bytes: int,
        error: int = 0,
        diverges: bool = False,
    ) -> bool:
        """Whether the answer must name the partition. `diverges`: an epoch to cut at, or another replica."""
        session = self._session
        if session is None:
            return True
        news = (
            records_bytes > 0
            or error != 0
            or diverges
            or not self._incremental
            or high_watermark != partition.told_high_watermark
            or log_start_offset != partition.told_log_start_offset
        )
        # After an error the partition is sent once more when it is well again.
        partition.told_high_watermark = -1 if error else high_watermark
        partition.told_log_start_offset = log_start_offset
        if records_bytes > 0 and self._incremental:
            key = (partition.topic, partition.partition)
            if session.partitions.pop(key, None) is not None:
                session.partitions[key] = partition
        return news


class FetchSessions:
    """The sessions of one broker, at most `slots` (max.incremental.fetch.session.cache.slots)."""

    __slots__ = ("_draw_id", "_sessions", "evictions", "partitions_cached", "partitions_max", "slots")

    def __init__(self, slots: int, draw_id: Callable[[], int], partitions_max: int = PARTITIONS_MAX) -> None:
        """`draw_id` gives a random id from 1 to 2^31-1."""
        self.slots = slots
        self.partitions_max = partitions_max
        self.partitions_cached = 0  # exactly the sum over all sessions
        self.evictions = 0
        self._draw_id = draw_id
        self._sessions: dict[int, _Session] = {}  # the one unused for longest comes first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[FetchPartition],
        forgotten: Iterable[tuple[TopicKey, int]],
        *,
        by_topic_id: bool,
        privileged: bool,
        now_ms: int,
    ) -> FetchContext:
        """Open, continue or close a session. `privileged` is a follower's request."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION and (closed := self._sessions.get(session_id)) is not None:
                self._remove(closed)
            if epoch == FINAL_EPOCH or not wanted:
                return FetchContext(wanted, None, False)
            return self._open(wanted, by_topic_id, privileged, now_ms)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        if session.by_topic_id != by_topic_id:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session_id} mixes topic names and ids",
            )
        return self._continue(session, wanted, forgotten, now_ms)

    def _open(
        self, wanted: Sequence[FetchPartition], by_topic_id: bool, privileged: bool, now_ms: int
    ) -> FetchContext:
        if self.partitions_cached + len(wanted) > self.partitions_max or not (
            len(self._sessions) < self.slots or self._evict_for(len(wanted), privileged, now_ms)
        ):
            return FetchContext(wanted, None, False)
        session_id = self._draw_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._draw_id()
        session = self._sessions[session_id] = _Session(session_id, by_topic_id, privileged, now_ms)
        for partition in wanted:
            session.partitions[partition.topic, partition.partition] = partition
        self.partitions_cached += len(session.partitions)
        return FetchContext(list(session.partitions.values()), session, False)

    def _continue(
        self,
        session: _Session,
        wanted: Sequence[FetchPartition],
        forgotten: Iterable[tuple[TopicKey, int]],
        now_ms: int,
    ) -> FetchContext:
        partitions = session.partitions
        before = len(partitions)
        for partition in wanted:
            key = (partition.topic, partition.partition)
            known = partitions.get(key)
            if known is not None:
                partition.told_high_watermark = known.told_high_watermark
                partition.told_log_start_offset = known.told_log_start_offset
            partitions[key] = partition  # a known one keeps its place in the order
        for key in forgotten:
            partitions.pop(key, None)
        self.partitions_cached += len(partitions) - before
        if not partitions:
            self._remove(session)
            return FetchContext(wanted, None, False)
        if len(partitions) > ELEMENTS_MAX or self.partitions_cached > self.partitions_max:
            self._remove(session)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session.id} grew past the limit"
            )
        del self._sessions[session.id]
        self._sessions[session.id] = session
        session.last_used_ms = now_ms
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        return FetchContext(list(partitions.values()), session, True)

    def _remove(self, session: _Session) -> None:
        del self._sessions[session.id]
        self.partitions_cached -= len(session.partitions)

    def _evict_for(self, size: int, privileged: bool, now_ms: int) -> bool:
        """Make room for a session of that size by Kafka's rules: a stale one goes, else the least worthy."""
        if not self._sessions:
            return False
        victim = next(iter(self._sessions.values()))
        if now_ms - victim.last_used_ms <= EVICTION_MS:
            evictable = [
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms > EVICTION_MS or (privileged and not session.privileged)
            ]
            if not evictable:
                return False
            victim = min(evictable, key=lambda session: session.worth)
            if (privileged, size, 0) < victim.worth:
                return False
        self._remove(victim)
        self.evictions += 1
        return True

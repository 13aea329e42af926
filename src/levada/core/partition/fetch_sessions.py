"""Incremental fetch sessions (KIP-227): requests and responses contain only the partitions that changed.

The state machine is pure: time and the source of session ids are arguments. A handler uses it in three steps:

    context = sessions.new_context(session_id, epoch, fetch_data, to_forget, ...)
    for partition in context.partitions: ...read it, possibly wait and read again...
    response = [... for partition in context.partitions if context.include(partition, ...)]

`new_context` raises KafkaError for an error of the session; the response then has its code, session id 0 and no
partitions. `include` is called once for each partition when the response is built: it caches what the client receives.
A partition with records moves to the end of the session's order, so that none starves when responses are small.
A follower's session has thousands of partitions, and most of them have nothing new. So its owner marks those that are
`due`, and a request reads these and the ones that it names.
Without a session (most clients except Java's) a request costs one small object.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import ELEMENTS_MAX

NO_SESSION = 0  # the session id of a request or response without a session
INITIAL_EPOCH = 0  # a full request that creates a session
FINAL_EPOCH = -1  # a full request without a session; closes the given one
EVICTION_MS = 120_000  # sessions unused for so long are stale; younger ones are not evicted
PARTITIONS_MAX = 500_000  # cached in all sessions together

_EPOCH_MAX = 0x7FFFFFFF

TopicKey = bytes  # as on the wire: a name up to version 12, an id in later versions


@dataclass(slots=True)
class FetchPartition:
    """A partition of a Fetch request, and the values of the last response that contained it."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    log_start_offset: int = -1  # of the follower
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1


class FetchSession:
    """The cached partitions of one client, and the epoch of its next request."""

    __slots__ = ("by_topic_id", "created_ms", "due", "epoch", "id", "last_used_ms", "partitions", "privileged")

    def __init__(self, session_id: int, by_topic_id: bool, privileged: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_topic_id = by_topic_id
        self.privileged = privileged
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = 1  # expected in the next request
        self.partitions: dict[tuple[TopicKey, int], FetchPartition] = {}  # in the order they are read
        self.due: dict[tuple[TopicKey, int], None] = {}  # of a follower: what the next read must include

    @property
    def eviction_key(self) -> tuple[bool, int, int]:
        """The least key is evicted first: sessions of consumers before followers, then those with few partitions."""
        return (self.privileged, len(self.partitions), self.id)


class FetchContext:
    """One Fetch request: the partitions to read, in order, and which of them the response contains."""

    __slots__ = ("_epoch", "_incremental", "_session", "partitions", "session_id")
    partitions: Sequence[FetchPartition]

    def __init__(self, partitions: Sequence[FetchPartition], session: FetchSession | None, incremental: bool) -> None:
        self.partitions = partitions
        self.session_id = NO_SESSION if session is None else session.id  # of the response
        self._session = session
        self._incremental = incremental
        self._epoch = 0 if session is None else session.epoch

    @property
    def follower_session(self) -> FetchSession | None:
        """The session of a follower; None without one, and for consumers."""
        return self._session if self._session is not None and self._session.privileged else None

    def add_due(self) -> None:
        """Read also the partitions that have become due since the request: after a wait."""
        session = self.follower_session
        if session is not None and session.due:
            present = {(partition.topic, partition.partition) for partition in self.partitions}
            more = [session.partitions[key] for key in session.due if key in session.partitions and key not in present]
            self.partitions = [*self.partitions, *more]
            session.due.clear()

    @property
    def superseded(self) -> bool:
        """Whether a later request of the session arrived meanwhile: the response is INVALID_FETCH_SESSION_EPOCH."""
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
        """Whether the response contains the partition. `diverges`: it has a diverging epoch or preferred replica."""
        session = self._session
        if session is None:
            return True
        changed = (
            records_bytes > 0
            or error != 0
            or diverges
            or not self._incremental
            or high_watermark != partition.sent_high_watermark
            or log_start_offset != partition.sent_log_start_offset
        )
        # After an error the next response without one contains the partition again.
        partition.sent_high_watermark = -1 if error else high_watermark
        partition.sent_log_start_offset = log_start_offset
        if records_bytes > 0 and self._incremental:
            key = (partition.topic, partition.partition)
            if session.partitions.pop(key, None) is not None:
                session.partitions[key] = partition
        return changed


class FetchSessions:
    """The sessions of one broker, at most `slots` (max.incremental.fetch.session.cache.slots)."""

    __slots__ = ("_new_id", "_sessions", "evictions", "partitions_cached", "partitions_max", "slots")

    def __init__(self, slots: int, new_id: Callable[[], int], partitions_max: int = PARTITIONS_MAX) -> None:
        """`new_id` returns a random id from 1 to 2^31-1."""
        self.slots = slots
        self.partitions_max = partitions_max
        self.partitions_cached = 0  # the sum over all sessions
        self.evictions = 0
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(
        self,
        session_id: int,
        epoch: int,
        fetch_data: Sequence[FetchPartition],
        to_forget: Iterable[tuple[TopicKey, int]],
        *,
        by_topic_id: bool,
        privileged: bool,
        now_ms: int,
    ) -> FetchContext:
        """Create, continue or close a session. `privileged` requests come from followers."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != NO_SESSION and (closed := self._sessions.get(session_id)) is not None:
                self._remove(closed)
            if epoch == FINAL_EPOCH or not fetch_data:
                return FetchContext(fetch_data, None, False)
            return self._create(fetch_data, by_topic_id, privileged, now_ms)
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
        return self._continue(session, fetch_data, to_forget, now_ms)

    def _create(
        self, fetch_data: Sequence[FetchPartition], by_topic_id: bool, privileged: bool, now_ms: int
    ) -> FetchContext:
        if self.partitions_cached + len(fetch_data) > self.partitions_max or not (
            len(self._sessions) < self.slots or self._evict_for(len(fetch_data), privileged, now_ms)
        ):
            return FetchContext(fetch_data, None, False)
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = self._sessions[session_id] = FetchSession(session_id, by_topic_id, privileged, now_ms)
        for partition in fetch_data:
            session.partitions[partition.topic, partition.partition] = partition
        self.partitions_cached += len(session.partitions)
        return FetchContext(list(session.partitions.values()), session, False)

    def _continue(
        self,
        session: FetchSession,
        fetch_data: Sequence[FetchPartition],
        to_forget: Iterable[tuple[TopicKey, int]],
        now_ms: int,
    ) -> FetchContext:
        partitions = session.partitions
        before = len(partitions)
        for partition in fetch_data:
            key = (partition.topic, partition.partition)
            known = partitions.get(key)
            if known is not None:
                partition.sent_high_watermark = known.sent_high_watermark
                partition.sent_log_start_offset = known.sent_log_start_offset
            partitions[key] = partition  # a known one keeps its position in the order
        for key in to_forget:
            partitions.pop(key, None)
        self.partitions_cached += len(partitions) - before
        if not partitions:
            self._remove(session)
            return FetchContext(fetch_data, None, False)
        if len(partitions) > ELEMENTS_MAX or self.partitions_cached > self.partitions_max:
            self._remove(session)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session.id} has too many partitions"
            )
        del self._sessions[session.id]
        self._sessions[session.id] = session
        session.last_used_ms = now_ms
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        if session.privileged:
            context = FetchContext(fetch_data, session, True)
            context.add_due()
            return context
        return FetchContext(list(partitions.values()), session, True)

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.partitions_cached -= len(session.partitions)

    def _evict_for(self, size: int, privileged: bool, now_ms: int) -> bool:
        """Evict a session for one of that size by Kafka's rules: a stale one, else the one with the least key."""
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
            victim = min(evictable, key=lambda session: session.eviction_key)
            if (privileged, size, 0) < victim.eviction_key:
                return False
        self._remove(victim)
        self.evictions += 1
        return True

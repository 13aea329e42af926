"""Fetches the partitions that this broker follows from one of their leaders, over one connection.

A fetch waits at the leader until there are records (long poll), in a fetch session: a request names only what has
changed. Its response is appended in the callback that receives it, and the next request is sent at once. While a fetch
waits, a partition that becomes ready is fetched by a second request in the same session, which ends the first.

Each request names the leader epoch of a partition, and the epoch of its last batch. So a leader of another epoch
refuses it, and one whose log differs tells up to where they can agree (KIP-595): the follower truncates to that.
"""

import asyncio
from struct import error as StructError
from typing import TYPE_CHECKING, Final

from levada.broker.partition.follower import OffsetsMissingError, append_received
from levada.broker.partition.partition import Partition
from levada.broker.replication.throttle import names_replica
from levada.client.connection import Address, Connection
from levada.client.errors import FAILURES, ConnectionFailed, error_code
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.wire.fast.replica_fetch import VERSION, FetchLimits, ReplicaData, ReplicaFetch, read_response, write_request
from levada.wire.schema import messages

if TYPE_CHECKING:
    from levada.broker.replication.replication import Replication

log = EventLog(__name__)

FETCH: Final = messages.api_key("fetch")
FIRST_BACKOFF_S: Final = 0.02  # a leader may not know yet that it leads, or this broker
LOG_FROM_FAILURE: Final = 5
NO_SESSION: Final = 0
IN_FLIGHT_MAX: Final = 2
EPOCH_MAX: Final = 0x7FFFFFFF
NEVER: Final = 1 << 62
BUFFER_BYTES: Final = 1 << 20

Key = tuple[bytes, int]  # topic id and partition


class FollowedPartition:
    """A partition that is fetched in one leader epoch, and why it may have to wait."""

    __slots__ = ("failures", "fetcher", "key", "lag", "partition", "retry_at", "sent", "sent_in")

    def __init__(self, partition: Partition, fetcher: "ReplicaFetcher") -> None:
        self.partition = partition
        self.key = (partition.topic_id.bytes, partition.index)
        self.fetcher = fetcher
        self.retry_at = 0.0
        self.failures = 0
        self.lag = 0  # records up to the leader's high watermark
        self.sent: ReplicaFetch | None = None  # what the leader reads in its session
        self.sent_in = NEVER  # the number of the request that said so: responses to earlier ones mean something else

    def try_complete(self, published_bytes: int) -> None:
        """What was received is fsynced (`levada.acks.wait.for.fsync`)."""
        self.fetcher.changed(self)


class _Reply:
    """One request in flight: it completes with the response."""

    __slots__ = ("_fetcher", "_is_done", "connection", "number")

    def __init__(self, fetcher: "ReplicaFetcher", connection: Connection, number: int) -> None:
        self._fetcher = fetcher
        self._is_done = False
        self.connection = connection
        self.number = number

    def done(self) -> bool:
        return self._is_done

    def set_result(self, body: memoryview) -> None:
        self._is_done = True
        self._fetcher.received(self, body)

    def set_exception(self, failure: Exception) -> None:
        self._is_done = True
        self._fetcher.connection_failed(self.connection, failure)


class ReplicaFetcher:
    """One connection to a leader."""

    def __init__(self, replication: "Replication", leader: int) -> None:
        self.leader = leader
        self._replication = replication
        self._clock = replication.broker.clock
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[Key, FollowedPartition] = {}
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retry_at = 0.0  # before that nothing is sent
        self._failures = 0
        self._session = (NO_SESSION, 0)  # id and next epoch
        self._has_sessions = True  # the leader has granted the last one
        self._in_session: dict[Key, FollowedPartition] = {}  # the leader reads these
        self._changed: dict[FollowedPartition, None] = {}  # their requests may differ from what the leader reads
        self._waiting: set[FollowedPartition] = set()  # until a point in time
        self._forgotten: set[Key] = set()  # to be taken out of the session
        self._number = 0  # of the last request
        self._in_flight = 0
        self._wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._buffer = bytearray(BUFFER_BYTES)  # for responses: what is in one is written when the next is sent

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def lag_max(self) -> int:
        """The largest lag of its partitions, in records."""
        return max([followed.lag for followed in self._partitions.values()], default=0)

    def lags(self) -> list[tuple[Partition, int]]:
        """The lag of each partition, in records."""
        return [(followed.partition, followed.lag) for followed in self._partitions.values()]

    def add(self, partition: Partition) -> None:
        """Begin to fetch a partition in its present leader epoch."""
        followed = FollowedPartition(partition, self)
        self._partitions[followed.key] = followed
        partition.log_end_watch.watchers.add(followed)
        self.changed(followed)

    def remove(self, partition: Partition) -> None:
        """Do not fetch a partition any more."""
        followed = self._partitions.pop((partition.topic_id.bytes, partition.index), None)
        if followed is not None:
            partition.log_end_watch.watchers.discard(followed)
            self._changed.pop(followed, None)
            self._waiting.discard(followed)
            self._leave_session(followed)
            self.wake()

    def partition_changed(self, partition: Partition) -> None:
        """A partition can be fetched again, after a truncation for example."""
        followed = self._partitions.get((partition.topic_id.bytes, partition.index))
        if followed is not None:
            self.changed(followed)

    def changed(self, followed: FollowedPartition) -> None:
        """A partition can be fetched, or from another offset: tell the leader soon."""
        self._changed[followed] = None
        self.wake()

    def wake(self) -> None:
        """Send a request soon, if there is anything to fetch."""
        if not self._wake_scheduled and not self._closed:
            self._wake_scheduled = True
            self._loop.call_soon(self._on_wake)

    def close(self) -> None:
        """Close the connection; nothing is fetched any more."""
        self._closed = True
        self._disconnect()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._timer is not None:
            self._timer.cancel()

    # Connecting.

    def _on_wake(self) -> None:
        self._wake_scheduled = False
        if self._closed:
            return
        if not self._partitions:
            self._disconnect()
        elif self._connection is None:
            self._connect()
        else:
            self._send()

    def _connect(self) -> None:
        now = self._clock.monotonic()
        if self._connecting is not None:
            return
        if now < self._retry_at:
            self._wake_at(self._retry_at)
            return
        self._connecting = self._replication.broker.tasks.start(f"fetch-from-{self.leader}", self._open())

    async def _open(self) -> None:
        config = self._replication.config
        try:
            address = self._replication.address_of(self.leader)
            client_id = f"broker-{self._replication.broker.node_id}-fetcher"
            connection = await Connection.open(address, client_id, timeout_s=config.replica_socket_timeout_ms / 1000)
            self._check_version(connection, address)
        except FAILURES as error:
            self._connecting = None
            self._failed(error)
            return
        self._connecting = None
        if self._closed:
            connection.close()
            return
        self._connection = connection
        self._begin_session()
        self._on_wake()

    def _check_version(self, connection: Connection, address: Address) -> None:
        supported = connection.api_versions.apis.get(FETCH)
        if supported is None or VERSION not in supported:
            connection.close()
            raise ConnectionFailed(f"{address} does not support version {VERSION} of Fetch: another kind of broker?")

    def _begin_session(self) -> None:
        self._session = (NO_SESSION, 0)
        for followed in self._in_session.values():
            followed.sent, followed.sent_in = None, NEVER
        self._in_session.clear()
        self._forgotten.clear()
        self._waiting.clear()
        self._changed = dict.fromkeys(self._partitions.values())

    def _leave_session(self, followed: FollowedPartition) -> None:
        followed.sent, followed.sent_in = None, NEVER
        if self._in_session.get(followed.key) is followed:
            del self._in_session[followed.key]
            self._forgotten.add(followed.key)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._in_flight = 0
        self._begin_session()
        if connection is not None:
            connection.close()

    def connection_failed(self, connection: Connection, failure: Exception) -> None:
        """A connection is lost, perhaps because this fetcher has closed it."""
        if connection is self._connection:
            self._failed(failure)

    def _failed(self, failure: Exception) -> None:
        """Connect again after a backoff."""
        if self._closed:
            return
        self._disconnect()
        if not self._partitions:
            return
        self._failures += 1
        if self._failures == LOG_FROM_FAILURE:
            log.warning("leader cannot be fetched from", leader=self.leader, why=str(failure))
        self._retry_at = self._clock.monotonic() + self._backoff_s(self._failures)
        self.wake()

    def _backoff_s(self, failures: int) -> float:
        longest = self._replication.config.replica_fetch_backoff_ms / 1000
        return min(longest, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 10))

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, when - self._clock.monotonic()), self.wake)

    # Requests.

    def _send(self) -> None:
        """Send a request, unless the leader has one already and nothing has changed, or there is nothing to fetch."""
        if self._in_flight >= IN_FLIGHT_MAX or (self._in_flight and self._session[0] == NO_SESSION):
            return
        if self._connection is None or self._replication.broker_epoch < 0:
            return  # without a registration the next image wakes this fetcher
        changes = self._changes()
        if (changes or not self._in_flight) and (changes or self._in_session):
            self._post(self._connection, changes)

    def _changes(self) -> list[tuple[FollowedPartition, ReplicaFetch]]:
        """Take the partitions whose requests differ from what the leader reads; a timer is set for those that wait."""
        now = self._clock.monotonic()
        for followed in [one for one in self._waiting if one.retry_at <= now] if self._waiting else ():
            self._waiting.discard(followed)
            self._changed[followed] = None
        if not self._changed and not self._waiting:
            return []
        is_throttled, changes = self._replication.follower_throttle.is_exceeded(now), []
        changed, self._changed = self._changed, {}
        for followed in changed:
            if is_throttled and self._is_throttled(followed.partition):
                followed.retry_at = max(followed.retry_at, now + FIRST_BACKOFF_S)
            request = self._request(followed, now)
            if request is None:
                self._leave_session(followed)
            elif request != followed.sent:
                changes.append((followed, request))
        if self._waiting:
            self._wake_at(min([followed.retry_at for followed in self._waiting]))
        return changes

    def _request(self, followed: FollowedPartition, now: float) -> ReplicaFetch | None:
        """The request of a partition; None if it must not be fetched now."""
        partition = followed.partition
        segments = partition.log
        if partition.offline or partition.truncating or partition.written_offset < segments.log_end_offset:
            return None  # its owner says when this has changed
        if followed.retry_at > now:
            self._waiting.add(followed)
            return None
        epochs, config = segments.leader_epochs.entries, self._replication.config
        return ReplicaFetch(
            *followed.key,
            partition.leader_epoch,
            segments.log_end_offset,
            epochs[-1][0] if epochs else -1,
            segments.log_start_offset,
            config.replica_fetch_max_bytes,
        )

    def _is_throttled(self, partition: Partition) -> bool:
        names = partition.log.config.follower_replication_throttled_replicas
        return names_replica(names, partition, self._replication.broker.node_id)

    def _post(self, connection: Connection, changes: list[tuple[FollowedPartition, ReplicaFetch]]) -> None:
        replication, (session_id, epoch) = self._replication, self._session
        self._number += 1
        for followed, request in changes:
            followed.sent, followed.sent_in = request, self._number
            self._in_session[followed.key] = followed
            self._forgotten.discard(followed.key)
        config = replication.config
        begins = session_id == NO_SESSION and self._has_sessions  # no wait: more partitions may follow at once
        wait_ms = 0 if begins else config.replica_fetch_wait_max_ms
        limits = FetchLimits(wait_ms, config.replica_fetch_min_bytes, config.replica_fetch_response_max_bytes)
        forgotten, self._forgotten = (self._forgotten if session_id != NO_SESSION else ()), set()
        replica = (replication.broker.node_id, replication.broker_epoch)
        body = write_request(replica, self._session, limits, [request for _, request in changes], forgotten)
        if session_id != NO_SESSION:
            self._session = (session_id, epoch + 1 if epoch < EPOCH_MAX else 1)
        self._in_flight += 1
        timeout_s = (config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000
        reply = _Reply(self, connection, self._number)
        try:
            connection.post(FETCH, VERSION, body, reply, timeout_s=timeout_s, allocate=self._allocate)
        except ConnectionFailed as error:
            self._failed(error)

    def _allocate(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]

    # Responses.

    def received(self, reply: _Reply, body: memoryview) -> None:
        """Append what a response holds, and send the next request."""
        if self._closed or reply.connection is not self._connection:
            return
        self._in_flight -= 1
        try:
            error, session_id, results = read_response(body)
        except (ValueError, StructError) as malformed:
            self._failed(ConnectionFailed(f"the leader sent a malformed response: {malformed}"))
            return
        if error != ErrorCode.NONE:
            self._session_failed(error)
            return
        self._failures = 0
        if self._session[0] == NO_SESSION and session_id != NO_SESSION:
            self._session = (session_id, 1)
        for data in results:
            followed = self._partitions.get((data.topic_id, data.partition))
            if followed is not None and reply.number >= followed.sent_in:
                self._handle(followed, data)
                self._changed[followed] = None
        self._has_sessions = session_id != NO_SESSION
        if session_id == NO_SESSION:
            self._begin_session()  # the leader has too many: every request names all partitions
        self._send()

    def _session_failed(self, error: int) -> None:
        """A request that a later one has ended is nothing to repair; otherwise begin a new session."""
        if self._in_flight:
            return
        is_repeated = self._session[0] == NO_SESSION
        self._begin_session()
        if is_repeated:
            self._failed(KafkaError(error_code(error), "the leader refuses the fetch session"))
        else:
            self._send()

    def _handle(self, followed: FollowedPartition, data: ReplicaData) -> None:
        partition, sent = followed.partition, followed.sent
        if sent is None or partition.offline or partition.truncating:
            return
        if data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._leave_session(followed)
            self._replication.restart(partition, data.log_start_offset)
        elif data.error != ErrorCode.NONE:
            self._wait(followed, KafkaError(error_code(data.error), "from the leader"))
        elif data.diverging is not None:
            self._leave_session(followed)
            self._replication.truncate(partition, *data.diverging)
        else:
            self._append(followed, data)

    def _append(self, followed: FollowedPartition, data: ReplicaData) -> None:
        partition, replication = followed.partition, self._replication
        try:
            if data.records:
                now_ms = self._clock.now_ms()
                size = append_received(partition, data.records, now_ms, replication.may_be_compacted)
                if self._is_throttled(partition):
                    replication.follower_throttle.record(size)
        except OffsetsMissingError:
            replication.allow_gaps(partition)
            self._wait(followed, KafkaError(ErrorCode.NONE, "the leader has compacted its log"))
            return
        except KafkaError as error:
            self._wait(followed, error)
            return
        followed.failures = 0
        if not partition.offline:
            partition.advance_follower(data.high_watermark, data.log_start_offset)
            followed.lag = max(0, data.high_watermark - partition.log.log_end_offset)

    def _wait(self, followed: FollowedPartition, error: KafkaError) -> None:
        """Fetch a partition again after a backoff."""
        followed.failures += 1
        if followed.failures == LOG_FROM_FAILURE:
            name = f"{followed.partition.topic}-{followed.partition.index}"
            log.warning("partition cannot be fetched", partition=name, leader=self.leader, why=str(error))
        followed.retry_at = self._clock.monotonic() + self._backoff_s(followed.failures)

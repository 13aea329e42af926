"""Fetch: reads partitions within the request's limits, and delays the response while there is less than min.bytes.

Records are sent as views of the mapped segments, never copied. A delayed Fetch is one small object that watches its
partitions, and one timer.

A follower fetches up to the log end of its leader, and each of its fetches tells the leader what it has. Consumers read
committed records from any replica; a leader names the one that is closest to them (KIP-392).
"""

from levada.api.data.follower_session import FollowerSession
from levada.api.data.leader_hints import LEADER_CHANGED, current_leader, node_endpoints
from levada.api.registry import handles_frames
from levada.broker.broker import Broker
from levada.broker.partition.partition import READ_COMMITTED, Partition
from levada.broker.purgatory import DelayedFetch, DelayedResponse, Watched
from levada.core.partition.fetch_sessions import FetchContext, FetchPartition
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection
from levada.storage.log.reader import NOTHING, Slice
from levada.wire.fast.fetch import (
    LEADER_HINTS_FROM,
    NO_REPLICA,
    TOPIC_IDS_FROM,
    VERSIONS,
    FetchRequest,
    PartitionData,
    read_request,
    write_response,
)
from levada.wire.fast.leader_hints import NodeEndpoint
from levada.wire.frames import Response
from levada.wire.schema import messages

FETCH = messages.api_key("fetch")
FOLLOWER = -1  # in the caches of a connection, which have API keys: its FollowerSession
NO_SESSION = 0
CLOSEST_REPLICA_FROM = 11  # consumers may read from followers


@handles_frames("fetch", versions=VERSIONS)
def fetch(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> None:
    """Read the partitions of a request, or of its fetch session."""
    begin(broker, connection, read_request(view, position, stop, version), version, correlation_id)


def begin(broker: Broker, connection: Connection, request: FetchRequest, version: int, correlation_id: int) -> None:
    """Enter the request's fetch session, then read. A follower that does not wait any longer ends its last Fetch."""
    if request.replica_id >= 0:
        broker.replication.follower_seen(request.replica_id, request.broker_epoch)
        for slot in connection.outbox.slots:
            if isinstance(slot, DelayedFetch):
                slot.expire()
    wanted = [
        FetchPartition(topic, index, offset, limit, start, epoch, last_epoch)
        for topic, index, epoch, offset, last_epoch, start, limit in request.partitions
    ]
    try:
        context = broker.sessions.new_context(
            request.session_id,
            request.session_epoch,
            wanted,
            request.forgotten,
            by_topic_id=version >= TOPIC_IDS_FROM,
            privileged=request.replica_id >= 0 and is_broker(broker, request),
            now_ms=broker.clock.now_ms(),
        )
    except KafkaError as error:
        broker.request_metrics.error(FETCH, error.code)
        connection.respond(write_response(version, correlation_id, error.code, NO_SESSION, []))
        return
    FetchRead(broker, connection, request, context, version, correlation_id).begin()


def is_broker(broker: Broker, request: FetchRequest) -> bool:
    """Whether a request comes from a registered broker: only that knows its broker epoch."""
    known = broker.image.brokers.get(request.replica_id)
    return known is not None and known.epoch == request.broker_epoch


def _follower_session(broker: Broker, connection: Connection, context: FetchContext) -> FollowerSession | None:
    """Return what watches the partitions of a follower's fetch session; None without one."""
    session, known = context.follower_session, connection.caches.get(FOLLOWER)
    if session is None:
        return None
    if known is None or known.session is not session:
        if known is not None:
            known.close()
        known = FollowerSession(session, connection, broker.replication.selects_replicas)
        connection.caches[FOLLOWER] = known
    known.delayed = None
    known.forget_missing()
    return known


class FetchRead:
    """The read of one Fetch; it is repeated after a wait."""

    __slots__ = (
        "_began",
        "_broker",
        "_connection",
        "_context",
        "_correlation_id",
        "_follower",
        "_request",
        "_results",
        "_served",
        "_version",
        "cold",
        "diverges",
        "failed",
        "found",
        "size",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        request: FetchRequest,
        context: FetchContext,
        version: int,
        correlation_id: int,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._request = request
        self._context = context
        self._version = version
        self._correlation_id = correlation_id
        self._follower = _follower_session(broker, connection, context)
        self._results: list[PartitionData] = []
        self._served: list[tuple[Partition, int]] = []  # with how many bytes
        self.size = 0
        self.diverges = False  # whether a partition has a diverging epoch or a preferred replica: reported at once
        self.failed = False  # whether a partition has an error, which is reported at once
        self.found: list[Partition] = []  # the partitions without an error
        self.cold: list[Slice] = []  # what is not in the page cache

    def begin(self) -> None:
        """Respond at once, after reading from the disk, or when the request's min.bytes are there."""
        request = self._request
        self.read()
        missing = request.min_bytes - self.size
        if self.cold:
            self._read_ahead()
        elif missing <= 0 or self.failed or self.diverges or request.max_wait_ms <= 0 or not self._can_wait:
            self._connection.respond(self.encode(), self.size)
        else:
            self._began = self._broker.request_metrics.delay(FETCH)
            delayed = DelayedFetch(self._connection, missing, self.read_again)
            delayed.watch(self._watched(), request.max_wait_ms, self._broker.call_later)
            if self._follower is not None:
                self._follower.delayed = delayed
            self._connection.respond(delayed)

    @property
    def _can_wait(self) -> bool:
        """Whether there is a partition without an error to wait for."""
        return bool(self.found) or self._follower is not None

    def _watched(self) -> list[Watched]:
        """What a delayed fetch waits for; a follower's session watches by itself."""
        if self._follower is not None:
            return []
        if self._request.replica_id >= 0:
            return [partition.log_end_watch for partition in self.found]
        if self._request.isolation_level == READ_COMMITTED:
            return [partition.last_stable_watch for partition in self.found]
        return list(self.found)

    def read(self) -> None:
        """Read each partition, within the limits of the request."""
        self._results.clear()
        self._served.clear()
        self.found.clear()
        self.cold.clear()
        self.size, self.failed, self.diverges = 0, False, False
        room = min(self._request.max_bytes, self._broker.config.fetch_max_bytes)
        for wanted in self._context.partitions:
            try:
                partition = self._broker.route(wanted.topic, wanted.partition, self._version)
                if self._follower is not None:
                    self._follower.subscribe((wanted.topic, wanted.partition), partition)
                self._results.append(self._read_partition(partition, wanted, room - self.size))
                self.found.append(partition)
            except KafkaError as error:
                self.failed = True
                self._results.append(self._failure(wanted, error))

    def _read_partition(self, partition: Partition, wanted: FetchPartition, room: int) -> PartitionData:
        """The first partition that has a batch gets at least one, whatever its size (KIP-74)."""
        request = self._request
        partition.check_leader_epoch(wanted.current_leader_epoch)
        is_follower = request.replica_id >= 0
        if not partition.is_leader and (is_follower or self._version < CLOSEST_REPLICA_FROM):
            raise partition.not_leader()
        replication, replica = self._broker.replication, NO_REPLICA
        if is_follower:
            replication.check_follower(partition, request.replica_id, request.broker_epoch)
        elif request.rack:
            rack = request.rack.decode(errors="replace")
            replica = replication.preferred_read_replica(partition, rack, wanted.fetch_offset)
        if wanted.last_fetched_epoch >= 0 and (diverging := partition.diverging_epoch(wanted)) is not None:
            self.diverges = True
            return self._data(partition, wanted, NOTHING, None)._replace(diverging=diverging)
        limit = min(wanted.max_bytes, room)
        committed = request.isolation_level == READ_COMMITTED
        if is_follower:
            piece = replication.read(partition, request.replica_id, wanted, max(limit, 0), not self.size)
            replication.fetched(partition, request.replica_id, request.broker_epoch, wanted)
            if not piece.size and self._follower is not None and wanted.fetch_offset < partition.log.log_end_offset:
                self._follower.session.due[wanted.topic, wanted.partition] = None  # without room, or throttled
        elif (limit <= 0 and self.size) or replica >= 0:
            piece = NOTHING
        else:
            piece = partition.read(wanted.fetch_offset, limit, not self.size, committed)
        if piece.cold:
            self.cold.append(piece)
        if piece.size:
            self.size += piece.size
            self._served.append((partition, piece.size))
        aborted = partition.transactions.aborted(wanted.fetch_offset, piece.size) if committed else None
        data = self._data(partition, wanted, piece, aborted)
        if replica >= 0:
            self.diverges = True
            return data._replace(preferred_replica=replica)
        return data

    def _data(
        self, partition: Partition, wanted: FetchPartition, piece: Slice, aborted: list[tuple[int, int]] | None
    ) -> PartitionData:
        return PartitionData(
            wanted.topic,
            wanted.partition,
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
            piece.views,
            piece.size,
            aborted=aborted,
        )

    def _failure(self, wanted: FetchPartition, error: KafkaError) -> PartitionData:
        """A follower that is out of range learns where the log starts."""
        data = PartitionData(wanted.topic, wanted.partition, error.code)
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._request.replica_id >= 0:
            partition = self._broker.route(wanted.topic, wanted.partition, self._version)
            return data._replace(log_start_offset=partition.log.log_start_offset)
        return data

    def read_again(self) -> Response:
        """The response when the wait is over."""
        self._broker.request_metrics.complete(FETCH, self._began)
        if not self._context.superseded:
            self._context.add_due()
            self.read()
        return self.encode()

    def encode(self) -> Response:
        """The frame, with the partitions that changed since the last response of the fetch session."""
        context = self._context
        if context.superseded:
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if self._follower is None:  # a follower means to do so
                self._broker.request_metrics.error(FETCH, error)
            return write_response(self._version, self._correlation_id, error, NO_SESSION, [])
        for partition, size in self._served:
            if self._request.replica_id >= 0:
                partition.replication_bytes_out += size
            else:
                partition.bytes_out += size
        included = [
            data
            for wanted, data in zip(context.partitions, self._results, strict=True)
            if context.include(
                wanted,
                data.high_watermark,
                data.log_start_offset,
                data.size,
                data.error,
                data.diverging is not None or data.preferred_replica >= 0,
            )
        ]
        endpoints: list[NodeEndpoint] = []
        if self.failed:
            for code in filter(None, [data.error for data in included]):
                self._broker.request_metrics.error(FETCH, code)
            if self._version >= LEADER_HINTS_FROM:
                included = [self._with_leader(data) for data in included]
                leaders = [data.current_leader for data in included]
                endpoints = node_endpoints(self._broker, self._connection.listener_name, leaders)
        return write_response(self._version, self._correlation_id, 0, context.session_id, included, endpoints)

    def _with_leader(self, data: PartitionData) -> PartitionData:
        """Tell the client of an error who leads the partition instead."""
        if data.error not in LEADER_CHANGED:
            return data
        leader = current_leader(self._broker, data.topic, data.partition, by_id=True)
        return data._replace(current_leader=leader)

    def _read_ahead(self) -> None:
        """Have a thread read cold pages, so that the loop does not wait for the disk; respond then."""
        self._began = self._broker.request_metrics.delay(FETCH)
        delayed = DelayedResponse(self._connection)
        self._connection.respond(delayed)
        self._broker.read_ahead(list(self.cold), lambda: delayed.complete(self.read_again()))

"""Fetch: reads partitions within the request's limits, and delays the response while there is less than min.bytes.

Records are sent as views of the mapped segments, never copied. A delayed Fetch is one small object that watches its
partitions, and one timer.
"""

from collections.abc import Iterable, Sequence

from levada.api.data.large_fetch import PARTITIONS_PER_ITERATION, LargeFetch
from levada.api.registry import handles_frames
from levada.broker.broker import Broker
from levada.broker.partition.partition import READ_COMMITTED, Partition
from levada.broker.purgatory import DelayedFetch, DelayedResponse, Watched
from levada.core.partition.fetch_sessions import FetchContext, FetchPartition
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection
from levada.storage.log.reader import NOTHING, Slice
from levada.wire.fast.fetch import (
    TOPIC_IDS_FROM,
    VERSIONS,
    FetchRequest,
    PartitionData,
    read_request,
    write_response,
)
from levada.wire.frames import Response
from levada.wire.schema import messages

FETCH = messages.api_key("fetch")
NO_SESSION = 0


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
    """Enter the request's fetch session, then read."""
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
            privileged=False,  # no follower reads here, whatever replica id a client claims
            now_ms=broker.clock.now_ms(),
        )
    except KafkaError as error:
        broker.request_metrics.error(FETCH, error.code)
        connection.respond(write_response(version, correlation_id, error.code, NO_SESSION, []))
        return
    read = FetchRead(broker, connection, request, context, version, correlation_id)
    if len(context.partitions) > PARTITIONS_PER_ITERATION:
        LargeFetch(broker, connection, read).begin()
    else:
        read.begin()


class FetchRead:
    """The read of one Fetch; it is repeated after a wait."""

    __slots__ = (
        "_began",
        "_broker",
        "_connection",
        "_context",
        "_correlation_id",
        "_request",
        "_results",
        "_served",
        "_version",
        "cold",
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
        self._results: list[PartitionData] = []
        self._served: list[tuple[Partition, int]] = []  # with how many bytes
        self.size = 0
        self.failed = False  # whether a partition has an error, which is reported at once
        self.found: list[Partition] = []  # the partitions without an error
        self.cold: list[Slice] = []  # what is not in the page cache

    @property
    def partitions(self) -> Sequence[FetchPartition]:
        return self._context.partitions

    @property
    def max_wait_ms(self) -> int:
        return self._request.max_wait_ms

    @property
    def missing_bytes(self) -> int:
        """What is missing of the request's min.bytes; 0 if the response has no reason to wait for it."""
        request = self._request
        if self.failed or request.max_wait_ms <= 0 or not self.found:
            return 0
        return max(0, request.min_bytes - self.size)

    def begin(self) -> None:
        """Respond at once, after reading from the disk, or when the request's min.bytes are there."""
        self.read(self._context.partitions)
        missing = self.missing_bytes
        if self.cold:
            self._read_ahead()
        elif not missing:
            self._connection.respond(self.encode(), self.size)
        else:
            self.delay()
            delayed = DelayedFetch(self._connection, missing, self.read_again)
            delayed.watch(self.watched(), self._request.max_wait_ms, self._broker.call_later)
            self._connection.respond(delayed)

    def delay(self) -> None:
        """Count the time of the request until `complete`."""
        self._began = self._broker.request_metrics.delay(FETCH)

    def complete(self) -> None:
        """Count the time since `delay`."""
        self._broker.request_metrics.complete(FETCH, self._began)

    def watched(self) -> list[Watched]:
        """What advances when the records that are missing arrive."""
        if self._request.isolation_level == READ_COMMITTED:
            return [partition.last_stable_watch for partition in self.found]
        return list(self.found)

    def reset(self) -> None:
        """Forget what was read."""
        self._results.clear()
        self._served.clear()
        self.found.clear()
        self.cold.clear()
        self.size, self.failed = 0, False

    def read(self, partitions: Iterable[FetchPartition]) -> None:
        """Read partitions, within what others have left of the limits of the request."""
        room = min(self._request.max_bytes, self._broker.config.fetch_max_bytes)
        for wanted in partitions:
            try:
                partition = self._broker.route(wanted.topic, wanted.partition, self._version)
                self._results.append(self._read_partition(partition, wanted, room - self.size))
                self.found.append(partition)
            except KafkaError as error:
                self.failed = True
                self._results.append(_failure(wanted, error))

    def _read_partition(self, partition: Partition, wanted: FetchPartition, room: int) -> PartitionData:
        """The first partition that has a batch gets at least one, whatever its size (KIP-74)."""
        if self._request.replica_id >= 0:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._request.replica_id} is not a replica of {partition.topic}-{partition.index}",
            )
        partition.check_leader_epoch(wanted.current_leader_epoch)
        limit = min(wanted.max_bytes, room)
        committed = self._request.isolation_level == READ_COMMITTED
        if limit <= 0 and self.size:
            piece = NOTHING
        else:
            piece = partition.read(wanted.fetch_offset, limit, not self.size, committed)
            if piece.cold:
                self.cold.append(piece)
        if piece.size:
            self.size += piece.size
            self._served.append((partition, piece.size))
        return PartitionData(
            wanted.topic,
            wanted.partition,
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
            piece.views,
            piece.size,
            aborted=partition.transactions.aborted(wanted.fetch_offset, piece.size) if committed else None,
        )

    def read_again(self) -> Response:
        """The response when the wait is over."""
        self.complete()
        self.reset()
        self.read(self._context.partitions)
        return self.encode()

    def encode(self) -> Response:
        """The frame, with the partitions that changed since the last response of the fetch session."""
        context = self._context
        if context.superseded:
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            self._broker.request_metrics.error(FETCH, error)
            return write_response(self._version, self._correlation_id, error, NO_SESSION, [])
        for partition, size in self._served:
            partition.bytes_out += size
        included = [
            data
            for wanted, data in zip(context.partitions, self._results, strict=True)
            if context.include(wanted, data.high_watermark, data.log_start_offset, data.size, data.error)
        ]
        if self.failed:
            for code in filter(None, [data.error for data in included]):
                self._broker.request_metrics.error(FETCH, code)
        return write_response(self._version, self._correlation_id, 0, context.session_id, included)

    def _read_ahead(self) -> None:
        """Have a thread read cold pages, so that the loop does not wait for the disk; respond then."""
        self.delay()
        delayed = DelayedResponse(self._connection)
        self._connection.respond(delayed)
        self._broker.read_ahead(list(self.cold), lambda: delayed.complete(self.read_again()))


def _failure(wanted: FetchPartition, error: KafkaError) -> PartitionData:
    return PartitionData(wanted.topic, wanted.partition, error.code)

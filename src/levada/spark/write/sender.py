"""Sends record batches to the leaders, with several requests in flight while the task encodes more.

Batches are sent in groups with at most one batch of each partition. A few groups are in flight at once; a broker
handles them in order, and each batch has a sequence number. If one fails, the sender waits for all and sends those
that are not stored again in order, one group at a time: a broker remembers the last five batches of a producer in a
partition, so it stores none twice as long as no more are in flight. The second batch of a partition waits for the
first one: a broker that does not know a producer accepts any first sequence number.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from levada.client.connection import Connection
from levada.client.data import ProducedPartition
from levada.client.errors import FAILURES, Failure, as_fenced, error_code
from levada.client.metadata import TopicInfo
from levada.client.producer.producer import DELIVERY_TIMEOUT_MS
from levada.client.producer.sender import produce
from levada.client.retry import PRODUCE_RETRIABLE, STALE_METADATA, Retries, RetryPolicy, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark.blocking import timed_out
from levada.spark.formats.encoder import EncodedBatch

if TYPE_CHECKING:
    from levada.client.client import Client

IN_FLIGHT_MAX = 4  # groups; brokers remember five batches
GROUP_BYTES = 4 << 20
STORED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # the batches after one that failed get it too
RETRIABLE = (PRODUCE_RETRIABLE | {OUT_OF_ORDER}) - {ErrorCode.UNKNOWN_PRODUCER_ID}

Batches = dict[TopicPartition, EncodedBatch]


class BatchGroup:
    """Batches that are sent together: `left` are those not known to be stored."""

    __slots__ = ("left", "size")

    def __init__(self) -> None:
        self.left: Batches = {}
        self.size = 0

    def accepts(self, partition: TopicPartition, batch: EncodedBatch) -> bool:
        """Whether a batch may be added."""
        fits = not self.left or self.size + len(batch.data) <= GROUP_BYTES
        return fits and partition not in self.left

    def add(self, partition: TopicPartition, batch: EncodedBatch) -> None:
        self.left[partition] = batch
        self.size += len(batch.data)


class Sender:
    """Sends the batches of one producer; with a transactional id they belong to its transaction."""

    def __init__(
        self,
        client: "Client",
        transactional_id: str | None,
        *,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._policy = RetryPolicy(RETRIABLE, delivery_timeout_ms)
        self._loop = asyncio.get_running_loop()
        self._next = BatchGroup()
        self._sent: list[BatchGroup] = []  # sent in this order, and not known to be stored
        self._in_flight: set[asyncio.Task[None]] = set()
        self._failure: Failure | None = None  # the first failure of a batch
        self._started: set[TopicPartition] = set()  # where a batch is stored
        self.has_sent = False

    async def send(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Queue batches in order and send them; waits while too many are in flight."""
        for batch in batches:
            partition = TopicPartition(topic, batch.partition)
            if not self._next.accepts(partition, batch):
                await self._send_next()
            self._next.add(partition, batch)

    async def flush(self) -> None:
        """Wait until everything is stored."""
        if self._next.left:
            await self._send_next()
        await self._wait(0)
        if self._failure is not None:
            await self._resend()

    async def stop(self) -> None:
        """Cancel the requests in flight."""
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _send_next(self) -> None:
        await self._wait(IN_FLIGHT_MAX - 1 if self._next.left.keys() <= self._started else 0)
        if self._failure is not None:
            await self._resend()
        group, self._next = self._next, BatchGroup()
        self.has_sent = True
        self._sent.append(group)
        self._in_flight.add(self._loop.create_task(self._send(group), name="levada-spark produce"))
        await asyncio.sleep(0)  # so that requests are written to a connection in order

    async def _wait(self, remaining: int) -> None:
        """Wait until at most `remaining` groups are in flight, or one has failed."""
        while len(self._in_flight) > remaining and self._failure is None:
            await self._collect(asyncio.FIRST_COMPLETED)

    async def _collect(self, until: str) -> None:
        done, self._in_flight = await asyncio.wait(self._in_flight, return_when=until)
        for task in done:
            task.result()
        self._sent = [one for one in self._sent if one.left]

    async def _resend(self) -> None:
        """Send the batches that are not stored again, in order."""
        if self._in_flight:
            await self._collect(asyncio.ALL_COMPLETED)
        retries = Retries(self._client, self._policy)
        retries.since = self._loop.time()
        while self._sent:
            await self._back_off(retries)
            first = self._sent[0]
            before = len(first.left)
            self._failure = None
            await self._send(first)
            self._sent = [one for one in self._sent if one.left]
            if _is_out_of_order(self._failure):
                break  # although everything before it is stored
            if len(first.left) < before:
                retries.count = 0
        if self._failure is not None:
            raise self._failure

    async def _back_off(self, retries: Retries) -> None:
        """Wait after a retriable failure; raise any other."""
        failure = self._failure
        if failure is None:
            return
        if not is_retriable(failure, RETRIABLE) or self._client.closed:
            raise as_fenced(failure)
        pause_s = retries.pause_s(failure, self._loop.time())
        if pause_s is None:
            raise timed_out(self._client, failure, self._policy.timeout_ms / 1000)
        await asyncio.sleep(pause_s)

    async def _send(self, group: BatchGroup) -> None:
        """Send a group to the leaders of its partitions; batches that are stored are removed from it."""
        by_leader: dict[int, Batches] = {}
        topics: dict[str, TopicInfo] = {}
        try:
            for partition, batch in group.left.items():
                topics[partition.topic] = await self._client.topic(partition.topic)
                by_leader.setdefault(await self._client.leader(partition), {})[partition] = batch
            connections = {leader: await self._client.connection(leader) for leader in by_leader}
        except FAILURES as failure:
            self._note(failure, group.left)
            return
        await asyncio.gather(
            *[self._produce(connections[leader], batches, topics, group) for leader, batches in by_leader.items()]
        )

    async def _produce(
        self, connection: Connection, batches: Batches, topics: dict[str, TopicInfo], group: BatchGroup
    ) -> None:
        try:
            responses = await produce(
                connection,
                {partition: batch.data for partition, batch in batches.items()},
                topics,
                transactional_id=self._transactional_id,
                timeout_ms=self._client.request_timeout_ms,
            )
        except FAILURES as failure:
            self._note(failure, batches)
            return
        for partition in batches:
            response = responses.get(partition, ProducedPartition(ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1, None))
            code = error_code(response.error)
            if code in STORED:
                del group.left[partition]
                self._started.add(partition)
            else:
                self._note(KafkaError(code, response.error_message or str(partition)), (partition,))

    def _note(self, failure: Failure, partitions: Iterable[TopicPartition]) -> None:
        """Keep a failure, unless it only follows from an earlier one; refresh the metadata if it is stale."""
        if not _is_out_of_order(failure) or self._failure is None:
            self._failure = failure
        if is_retriable(failure, STALE_METADATA):
            for partition in partitions:
                self._client.invalidate_metadata(partition.topic)


def _is_out_of_order(failure: Failure | None) -> bool:
    return isinstance(failure, KafkaError) and failure.code is OUT_OF_ORDER

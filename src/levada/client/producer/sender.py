"""Sends the batches of the accumulator: one Produce request for each leader, retried by the retry policy."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from levada.client.connection import Connection
from levada.client.data import (
    INIT_PRODUCER_ID,
    PRODUCE,
    PRODUCE_IN_TRANSACTION,
    ProducedPartition,
    ProducerIdentity,
    read_init_producer_id,
    read_produce,
    write_init_producer_id,
    write_produce,
)
from levada.client.errors import FAILURES, Failure, as_fenced, error_code, raise_for_code
from levada.client.metadata import TopicInfo
from levada.client.producer.accumulator import (
    PartitionQueue,
    ProducerBatch,
    RecordAccumulator,
    RecordMetadata,
)
from levada.client.retry import PRODUCE_RETRIABLE, STALE_METADATA, backoff_s, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec, TopicPartition
from levada.wire.batches import TRANSACTIONAL_BIT, encode

if TYPE_CHECKING:
    from levada.client.client import Client

REQUEST_BYTES_MAX = 8 * 1024 * 1024  # of batches in one request, before compression


class Sender:
    """Sends batches when they are ready; `schedule` starts it for a partition."""

    def __init__(
        self,
        client: "Client",
        accumulator: RecordAccumulator,
        *,
        acks: int,
        codec: Codec,
        idempotent: bool,
        in_flight_max: int,
        transaction: ProducerIdentity | None,
    ) -> None:
        self._client = client
        self._accumulator = accumulator
        self._acks = acks
        self._codec = codec
        self._idempotent = idempotent
        self._in_flight_max = in_flight_max
        self._transaction = transaction
        self.failure: Exception | None = None  # in a transaction, why it cannot be committed
        self._loop = asyncio.get_running_loop()
        self._ready: dict[TopicPartition, PartitionQueue] = {}
        self._scheduled = False
        self._retriable = PRODUCE_RETRIABLE
        if transaction is not None:
            self._retriable -= {ErrorCode.UNKNOWN_PRODUCER_ID}
        self._in_flight: dict[int, asyncio.Semaphore] = {}  # requests by node
        self._tasks: set[asyncio.Task[None]] = set()
        self._producer_id: asyncio.Task[tuple[int, int]] | None = None  # of all partitions until one is reset
        self._stopped = False

    def schedule(self, queue: PartitionQueue) -> None:
        """Send the queue's first batch at the end of this loop iteration if it is ready and the queue not muted."""
        if self._stopped or queue.muted or not queue.batches:
            return
        wait_s = queue.batches[0].ready_at - self._loop.time()
        if wait_s > 0.0005:
            if queue.linger_timer is None:
                queue.linger_timer = self._loop.call_later(wait_s, self._linger_expired, queue)
            return
        self._ready[queue.partition] = queue
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send_ready)

    def _linger_expired(self, queue: PartitionQueue) -> None:
        queue.linger_timer = None
        self.schedule(queue)

    async def stop(self) -> None:
        """Cancel the requests in flight."""
        self._stopped = True
        tasks = [*self._tasks, *([self._producer_id] if self._producer_id else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send_ready(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        by_leader: dict[int, list[PartitionQueue]] = {}
        for queue in ready.values():
            if queue.batches and not queue.muted:
                queue.muted = True
                by_leader.setdefault(self._client.cached_leader(queue.partition), []).append(queue)
        for leader, queues in by_leader.items():
            work = self._send(leader, queues) if leader >= 0 else self._find_leaders(queues)
            task = self._loop.create_task(work, name=f"produce to node {leader}")
            self._tasks.add(task)
            task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a producer's task failed", "exception": error})

    async def _find_leaders(self, queues: list[PartitionQueue]) -> None:
        for queue in queues:
            try:
                await self._client.leader(queue.partition)
            except FAILURES as failure:
                self._handle_failure(queue, queue.batches.popleft(), failure)
            except Exception as bug:
                for one in queues[queues.index(queue) :]:
                    self._fail_batch(one, one.batches.popleft(), bug)
                raise
            else:
                self._unmute(queue)

    async def _send(self, leader: int, queues: list[PartitionQueue]) -> None:
        slot = self._in_flight.setdefault(leader, asyncio.Semaphore(self._in_flight_max))
        async with slot:
            drained = self._drain(queues)
            try:
                responses = await self._produce(leader, drained)
            except FAILURES as failure:
                for queue, batch in drained:
                    self._handle_failure(queue, batch, failure)
                return
            except Exception as bug:
                for queue, batch in drained:
                    self._fail_batch(queue, batch, bug)
                raise
        for queue, batch in drained:
            response = responses.get(queue.partition)
            if response is None:
                detail = f"the Produce response lacks {queue.partition}"
                self._handle_failure(queue, batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail))
            else:
                self._handle_response(queue, batch, response)

    def _drain(self, queues: list[PartitionQueue]) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Take the first batch of each queue, as many as fit into a request; the other queues go next."""
        drained: list[tuple[PartitionQueue, ProducerBatch]] = []
        size = 0
        for queue in queues:
            if drained and size + queue.batches[0].size > REQUEST_BYTES_MAX:
                self._unmute(queue)
                continue
            batch = queue.batches.popleft()
            size += batch.size
            drained.append((queue, batch))
        return drained

    async def _produce(
        self, leader: int, drained: list[tuple[PartitionQueue, ProducerBatch]]
    ) -> dict[TopicPartition, ProducedPartition]:
        topics: dict[str, TopicInfo] = {}
        for queue, _ in drained:
            topics[queue.partition.topic] = await self._client.topic(queue.partition.topic)
        if self._idempotent:
            for queue, _ in drained:
                await self._assign_producer_id(queue, topics[queue.partition.topic])
        return await produce(
            await self._client.connection(leader),
            {queue.partition: self._encode(queue, batch) for queue, batch in drained},
            topics,
            acks=self._acks,
            transactional_id=None if self._transaction is None else self._transaction.transactional_id,
            timeout_ms=self._client.request_timeout_ms,
        )

    def _encode(self, queue: PartitionQueue, batch: ProducerBatch) -> bytearray:
        batch.attempts += 1
        if not self._idempotent:
            return encode(batch.records, codec=self._codec)
        return encode(
            batch.records,
            codec=self._codec,
            producer_id=queue.producer_id,
            producer_epoch=queue.producer_epoch,
            base_sequence=queue.sequence,
            attributes=0 if self._transaction is None else TRANSACTIONAL_BIT,
        )

    # Producer ids: all partitions share one until a partition has to be reset.

    async def _assign_producer_id(self, queue: PartitionQueue, topic: TopicInfo) -> None:
        if queue.topic_id is not None and queue.topic_id != topic.topic_id:
            self._reset_producer_id(queue)  # the topic was deleted and created again
        queue.topic_id = topic.topic_id
        if queue.producer_id >= 0:
            return
        if self._transaction is not None:
            _, queue.producer_id, queue.producer_epoch = self._transaction
            return
        if self._producer_id is None or (self._producer_id.done() and not _succeeded(self._producer_id)):
            self._producer_id = self._loop.create_task(init_producer_id(self._client), name="producer id")
        queue.producer_id, queue.producer_epoch = await asyncio.shield(self._producer_id)
        queue.sequence = 0

    def _reset_producer_id(self, queue: PartitionQueue) -> None:
        """Go on with a new producer id: the sequence number that the broker expects next is unknown."""
        if queue.producer_id >= 0 and self._transaction is None:
            queue.producer_id = queue.producer_epoch = -1
            self._producer_id = None

    # Responses

    def _handle_response(self, queue: PartitionQueue, batch: ProducerBatch, response: ProducedPartition) -> None:
        code = error_code(response.error)
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            detail = response.error_message or str(queue.partition)
            self._handle_failure(queue, batch, KafkaError(code, detail))
            return
        queue.sequence += len(batch.records)
        topic, partition = queue.partition
        appended = response.log_append_time_ms
        for index, future in enumerate(batch.futures):
            if future.done():
                continue
            offset = response.base_offset + index if response.base_offset >= 0 else -1
            timestamp = appended if appended >= 0 else batch.records[index].timestamp
            future.set_result(RecordMetadata(topic, partition, offset, timestamp))
        self._complete(queue, batch)

    def _handle_failure(self, queue: PartitionQueue, batch: ProducerBatch, failure: Failure) -> None:
        code = failure.code if isinstance(failure, KafkaError) else ErrorCode.NETWORK_EXCEPTION
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            self._accumulator.split(queue, batch)
            self._unmute(queue)
            return
        if is_retriable(failure, STALE_METADATA):
            self._client.invalidate_metadata(queue.partition.topic)
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            self._reset_producer_id(queue)
        if code in self._retriable and self._loop.time() < batch.deadline:
            queue.batches.appendleft(batch)
            pause_s = backoff_s(self._client.retry_backoff_s, batch.attempts, failure)
            self._loop.call_later(pause_s, self._unmute, queue)
            return
        self._fail_batch(queue, batch, failure)

    def _fail_batch(self, queue: PartitionQueue, batch: ProducerBatch, failure: Exception) -> None:
        self._reset_producer_id(queue)
        if self._transaction is not None:
            failure = self.failure = self.failure or as_fenced(failure)
        for future in batch.futures:
            if not future.done():
                # An exception of its own, since raising one adds to its traceback.
                future.set_exception(type(failure)(*failure.args))
                if self._transaction is not None:
                    future.exception()  # the end of the transaction raises it, if nothing awaits this one
        self._complete(queue, batch)

    def _complete(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self._accumulator.complete(batch)
        self._unmute(queue)

    def _unmute(self, queue: PartitionQueue) -> None:
        queue.muted = False
        self.schedule(queue)


async def produce(
    connection: Connection,
    batches: Mapping[TopicPartition, bytes | bytearray | memoryview],
    topics: Mapping[str, TopicInfo],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int,
) -> dict[TopicPartition, ProducedPartition]:
    """One Produce to the leader of these partitions; with acks=0 there is no response, and offsets are -1."""
    version = connection.version(PRODUCE if transactional_id is None else PRODUCE_IN_TRANSACTION)
    body = write_produce(version, acks, timeout_ms, batches, topics, transactional_id)
    if acks == 0:
        await connection.send_without_response(PRODUCE.key, version, body)
        return dict.fromkeys(batches, ProducedPartition(0, -1, -1, None))
    response = await connection.send(PRODUCE.key, version, body, timeout_s=timeout_ms / 1000)
    return connection.parse(lambda view: read_produce(version, view, topics), response)


async def init_producer_id(client: "Client") -> tuple[int, int]:
    """InitProducerId without a transactional id: a new producer id and its epoch."""
    connection = await client.connection()
    version = connection.version(INIT_PRODUCER_ID)
    body = await connection.send(
        INIT_PRODUCER_ID.key,
        version,
        write_init_producer_id(version),
        timeout_s=client.request_timeout_ms / 1000,
    )
    error, producer_id, producer_epoch = connection.parse(read_init_producer_id, body)
    raise_for_code(error, "no producer id")
    return producer_id, producer_epoch


def _succeeded(task: asyncio.Task[tuple[int, int]]) -> bool:
    return not task.cancelled() and task.exception() is None

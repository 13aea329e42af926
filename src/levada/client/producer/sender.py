"""The sending half of the producer: gathers what is due, one request for each leader, and deals with the answers."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from levada.client.data import (
    INIT_PRODUCER_ID,
    PRODUCE,
    PRODUCE_IN_TRANSACTION,
    ProducedPartition,
    read_init_producer_id,
    read_produce,
    write_init_producer_id,
    write_produce,
)
from levada.client.errors import FAILURES, Failure, as_fenced, error_code
from levada.client.metadata import TopicInfo
from levada.client.producer.producer import Batch, Lane, ProducerIdentity, RecordMetadata
from levada.client.retry import PRODUCE_RETRIABLE, STALE_METADATA, backoff_s, is_retriable
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec, TopicPartition
from levada.wire.batches import TRANSACTIONAL_BIT, encode

if TYPE_CHECKING:
    from levada.client.client import Client

REQUEST_BYTES_MAX = 8 * 1024 * 1024  # of batches in one request, before compression


class Sender:
    """Sends lanes that are due; `finished` is called with each batch that is stored or given up."""

    def __init__(
        self,
        client: "Client",
        *,
        acks: int,
        codec: Codec,
        idempotent: bool,
        in_flight_max: int,
        unfinished: set[Batch],
        finished: Callable[[Batch], None],
        writer: ProducerIdentity | None,
    ) -> None:
        self._client = client
        self._acks = acks
        self._codec = codec
        self._idempotent = idempotent
        self._in_flight_max = in_flight_max
        self._writer = writer
        self.failure: Exception | None = None  # in a transaction, why it cannot be committed
        self._unfinished = unfinished  # every batch whose records wait for an answer
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._ready: dict[TopicPartition, Lane] = {}
        self._scheduled = False
        self._retriable = (
            PRODUCE_RETRIABLE if writer is None else PRODUCE_RETRIABLE - {ErrorCode.UNKNOWN_PRODUCER_ID}
        )
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._identity: asyncio.Task[tuple[int, int]] | None = None  # shared by all lanes that never failed
        self._stopped = False

    def consider(self, lane: Lane) -> None:
        """Send the lane's first batch in this turn if it is due and nothing of the lane is on the wire."""
        if self._stopped or lane.busy or not lane.batches:
            return
        wait_s = lane.batches[0].due - self._loop.time()
        if wait_s > 0.0005:
            if lane.timer is None:
                lane.timer = self._loop.call_later(wait_s, self._lingered, lane)
            return
        self._ready[lane.partition] = lane
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _lingered(self, lane: Lane) -> None:
        lane.timer = None
        self.consider(lane)

    async def stop(self) -> None:
        """Give up what is on the wire."""
        self._stopped = True
        tasks = [*self._tasks, *([self._identity] if self._identity else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _dispatch(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        by_leader: dict[int, list[Lane]] = {}
        for lane in ready.values():
            if lane.batches and not lane.busy:
                lane.busy = True
                by_leader.setdefault(self._client.known_leader(lane.partition), []).append(lane)
        for leader, lanes in by_leader.items():
            work = self._send(leader, lanes) if leader >= 0 else self._find_leaders(lanes)
            task = self._loop.create_task(work, name=f"produce to node {leader}")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a producer's task failed", "exception": error})

    async def _find_leaders(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            try:
                await self._client.leader(lane.partition)
            except FAILURES as failure:
                self._settle_failure(lane, lane.batches.popleft(), failure)
            except Exception as bug:
                for one in lanes[lanes.index(lane) :]:
                    self._give_up(one, one.batches.popleft(), bug)
                raise
            else:
                self._retry(lane)

    async def _send(self, leader: int, lanes: list[Lane]) -> None:
        slot = self._slots.setdefault(leader, asyncio.Semaphore(self._in_flight_max))
        async with slot:
            taken = self._take(lanes)
            try:
                answers = await self._produce(leader, taken)
            except FAILURES as failure:
                for lane, batch in taken:
                    self._settle_failure(lane, batch, failure)
                return
            except Exception as bug:
                for lane, batch in taken:
                    self._give_up(lane, batch, bug)
                raise
        for lane, batch in taken:
            answer = answers.get(lane.partition)
            if answer is None:
                detail = f"the answer says nothing of {lane.partition}"
                self._settle_failure(lane, batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail))
            else:
                self._settle(lane, batch, answer)

    def _take(self, lanes: list[Lane]) -> list[tuple[Lane, Batch]]:
        """The first batch of each lane, as many as fit into a request; the other lanes go next."""
        taken: list[tuple[Lane, Batch]] = []
        size = 0
        for lane in lanes:
            if taken and size + lane.batches[0].size > REQUEST_BYTES_MAX:
                lane.busy = False
                self.consider(lane)
                continue
            batch = lane.batches.popleft()
            size += batch.size
            taken.append((lane, batch))
        return taken

    async def _produce(
        self, leader: int, taken: list[tuple[Lane, Batch]]
    ) -> dict[TopicPartition, ProducedPartition]:
        topics: dict[str, TopicInfo] = {}
        for lane, _ in taken:
            topics[lane.partition.topic] = await self._client.topic(lane.partition.topic)
        if self._idempotent:
            for lane, _ in taken:
                await self._identify(lane, topics[lane.partition.topic])
        connection = await self._client.connection(leader)
        version = connection.version(PRODUCE if self._writer is None else PRODUCE_IN_TRANSACTION)
        body = write_produce(
            version,
            self._acks,
            self._client.request_timeout_ms,
            {lane.partition: self._encode(lane, batch) for lane, batch in taken},
            topics,
            None if self._writer is None else self._writer.transactional_id,
        )
        if self._acks == 0:
            await connection.send_unanswered(PRODUCE.key, version, body)
            return {lane.partition: ProducedPartition(0, -1, -1, None) for lane, _ in taken}
        timeout_s = self._client.request_timeout_ms / 1000
        answer = await connection.send(PRODUCE.key, version, body, timeout_s=timeout_s)
        return connection.parse(lambda view: read_produce(version, view, topics), answer)

    def _encode(self, lane: Lane, batch: Batch) -> bytearray:
        batch.attempts += 1
        if not self._idempotent:
            return encode(batch.records, codec=self._codec)
        return encode(
            batch.records,
            codec=self._codec,
            producer_id=lane.producer_id,
            producer_epoch=lane.producer_epoch,
            base_sequence=lane.sequence,
            attributes=0 if self._writer is None else TRANSACTIONAL_BIT,
        )

    # Identity: all lanes share one producer id until one of them has to begin anew.

    async def _identify(self, lane: Lane, topic: TopicInfo) -> None:
        if lane.topic_id is not None and lane.topic_id != topic.topic_id:
            self._begin_anew(lane)  # the topic was deleted and made again
        lane.topic_id = topic.topic_id
        if lane.producer_id >= 0:
            return
        if self._writer is not None:
            _, lane.producer_id, lane.producer_epoch = self._writer
            return
        if self._identity is None or (self._identity.done() and not _succeeded(self._identity)):
            self._identity = self._loop.create_task(self._ask_identity(), name="producer id")
        lane.producer_id, lane.producer_epoch = await asyncio.shield(self._identity)
        lane.sequence = 0

    def _begin_anew(self, lane: Lane) -> None:
        """Nobody knows which sequence the broker expects next, so the lane goes on as another producer."""
        if lane.producer_id >= 0 and self._writer is None:
            lane.producer_id = lane.producer_epoch = -1
            self._identity = None

    async def _ask_identity(self) -> tuple[int, int]:
        connection = await self._client.connection()
        version = connection.version(INIT_PRODUCER_ID)
        body = await connection.send(
            INIT_PRODUCER_ID.key,
            version,
            write_init_producer_id(version),
            timeout_s=self._client.request_timeout_ms / 1000,
        )
        error, producer_id, producer_epoch = connection.parse(read_init_producer_id, body)
        if error:
            raise KafkaError(error_code(error), "no producer id")
        return producer_id, producer_epoch

    # Answers

    def _settle(self, lane: Lane, batch: Batch, answer: ProducedPartition) -> None:
        code = error_code(answer.error)
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._settle_failure(lane, batch, KafkaError(code, answer.error_message or str(lane.partition)))
            return
        lane.sequence += len(batch.records)
        topic, partition = lane.partition
        for index, future in enumerate(batch.answers):
            if future.done():
                continue
            offset = answer.base_offset + index if answer.base_offset >= 0 else -1
            appended = answer.log_append_time_ms
            timestamp = appended if appended >= 0 else batch.records[index].timestamp
            future.set_result(RecordMetadata(topic, partition, offset, timestamp))
        self._release(lane, batch)

    def _settle_failure(self, lane: Lane, batch: Batch, failure: Failure) -> None:
        code = failure.code if isinstance(failure, KafkaError) else ErrorCode.NETWORK_EXCEPTION
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            self._split(lane, batch)
            return
        if is_retriable(failure, STALE_METADATA):
            self._client.forget(lane.partition.topic)
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            self._begin_anew(lane)
        if code in self._retriable and self._loop.time() < batch.deadline:
            lane.batches.appendleft(batch)
            pause_s = backoff_s(self._client.retry_backoff_s, batch.attempts, failure)
            self._loop.call_later(pause_s, self._retry, lane)
            return
        self._give_up(lane, batch, failure)

    def _give_up(self, lane: Lane, batch: Batch, failure: Exception) -> None:
        self._begin_anew(lane)
        if self._writer is not None:
            failure = self.failure = self.failure or as_fenced(failure)
        for future in batch.answers:
            if not future.done():
                # Its own, since raising one adds to its trace.
                future.set_exception(type(failure)(*failure.args))
                if self._writer is not None:
                    future.exception()  # the end of the transaction tells, if nobody looks at this one
        self._release(lane, batch)

    def _retry(self, lane: Lane) -> None:
        lane.busy = False
        self.consider(lane)

    def _release(self, lane: Lane, batch: Batch) -> None:
        lane.busy = False
        self._finished(batch)
        self.consider(lane)

    def _split(self, lane: Lane, batch: Batch) -> None:
        """The broker takes no batch of this size: send its halves, the first one first."""
        half = len(batch.records) // 2
        first = Batch(0, batch.deadline, self._loop.create_future())
        first.records, batch.records = batch.records[:half], batch.records[half:]
        first.answers, batch.answers = batch.answers[:half], batch.answers[half:]
        first.size = batch.size // 2
        batch.size -= first.size
        self._unfinished.add(first)
        lane.batches.extendleft((batch, first))
        self._retry(lane)


def _succeeded(task: asyncio.Task[tuple[int, int]]) -> bool:
    return not task.cancelled() and task.exception() is None

"""Record batches to their leaders, several requests on the way: what a task has encoded leaves while it encodes more.

Batches go in *rounds*, one batch for each partition at most. A few rounds are on the way at once; a broker takes them
in order, and each carries sequence numbers. When one fails, all are waited for and what is not stored is sent again in
order, one round at a time: the broker remembers the last five batches of a producer in a partition, so none is stored
twice as long as no more than that are on the way. A second batch waits for the first one of its partition: a broker
that does not know a producer takes whatever number comes first.
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

ROUNDS_MAX = 4  # on the way; brokers remember five batches
ROUND_BYTES = 4 << 20
STORED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # to be expected after a batch that failed
RETRIABLE = (PRODUCE_RETRIABLE | {OUT_OF_ORDER}) - {ErrorCode.UNKNOWN_PRODUCER_ID}

Batches = dict[TopicPartition, EncodedBatch]


class Round:
    """Batches on the way: `left` is what is not known to be stored."""

    __slots__ = ("left", "size")

    def __init__(self) -> None:
        self.left: Batches = {}
        self.size = 0

    def takes(self, partition: TopicPartition, batch: EncodedBatch) -> bool:
        """Whether a batch may go with it."""
        fits = not self.left or self.size + len(batch.data) <= ROUND_BYTES
        return fits and partition not in self.left

    def add(self, partition: TopicPartition, batch: EncodedBatch) -> None:
        self.left[partition] = batch
        self.size += len(batch.data)


class Pipeline:
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
        self._next = Round()
        self._rounds: list[Round] = []  # that left, in order, and are not known to be stored
        self._on_the_way: set[asyncio.Task[None]] = set()
        self._failure: Failure | None = None  # why some of them were not
        self._begun: set[TopicPartition] = set()  # a batch is stored there
        self.has_sent = False

    async def send(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Take batches, in order; waits while much is on the way."""
        for batch in batches:
            partition = TopicPartition(topic, batch.partition)
            if not self._next.takes(partition, batch):
                await self._launch()
            self._next.add(partition, batch)

    async def flush(self) -> None:
        """Everything is stored when this returns."""
        if self._next.left:
            await self._launch()
        await self._wait(0)
        if self._failure is not None:
            await self._recover()

    async def stop(self) -> None:
        """Give up what is on the way."""
        for task in self._on_the_way:
            task.cancel()
        await asyncio.gather(*self._on_the_way, return_exceptions=True)

    async def _launch(self) -> None:
        await self._wait(ROUNDS_MAX - 1 if self._next.left.keys() <= self._begun else 0)
        if self._failure is not None:
            await self._recover()
        leaving, self._next = self._next, Round()
        self.has_sent = True
        self._rounds.append(leaving)
        self._on_the_way.add(self._loop.create_task(self._send(leaving), name="levada-spark produce"))
        await asyncio.sleep(0)  # it writes to its connection before the next one does

    async def _wait(self, remaining: int) -> None:
        """Until at most so many rounds are on the way, or one has failed."""
        while len(self._on_the_way) > remaining and self._failure is None:
            await self._collect(asyncio.FIRST_COMPLETED)

    async def _collect(self, until: str) -> None:
        done, self._on_the_way = await asyncio.wait(self._on_the_way, return_when=until)
        for task in done:
            task.result()
        self._rounds = [one for one in self._rounds if one.left]

    async def _recover(self) -> None:
        """Send again what was not stored, first things first, until it is."""
        if self._on_the_way:
            await self._collect(asyncio.ALL_COMPLETED)
        retries = Retries(self._client, self._policy)
        retries.since = self._loop.time()
        while self._rounds:
            await self._back_off(retries)
            first = self._rounds[0]
            before = len(first.left)
            self._failure = None
            await self._send(first)
            self._rounds = [one for one in self._rounds if one.left]
            if _is_out_of_order(self._failure):
                break  # though everything before it is stored
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

    async def _send(self, leaving: Round) -> None:
        """Send a round to the leaders of its partitions; what is stored leaves it."""
        by_leader: dict[int, Batches] = {}
        topics: dict[str, TopicInfo] = {}
        try:
            for partition, batch in leaving.left.items():
                topics[partition.topic] = await self._client.topic(partition.topic)
                by_leader.setdefault(await self._client.leader(partition), {})[partition] = batch
            connections = {leader: await self._client.connection(leader) for leader in by_leader}
        except FAILURES as failure:
            self._note(failure, leaving.left)
            return
        await asyncio.gather(
            *[
                self._exchange(connections[leader], batches, topics, leaving)
                for leader, batches in by_leader.items()
            ]
        )

    async def _exchange(
        self, connection: Connection, batches: Batches, topics: dict[str, TopicInfo], leaving: Round
    ) -> None:
        try:
            answers = await produce(
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
            answer = answers.get(partition, ProducedPartition(ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1, None))
            code = error_code(answer.error)
            if code in STORED:
                del leaving.left[partition]
                self._begun.add(partition)
            else:
                self._note(KafkaError(code, answer.error_message or str(partition)), (partition,))

    def _note(self, failure: Failure, partitions: Iterable[TopicPartition]) -> None:
        """Remember why, unless it only follows from what failed before."""
        if not _is_out_of_order(failure) or self._failure is None:
            self._failure = failure
        if is_retriable(failure, STALE_METADATA):
            for partition in partitions:
                self._client.invalidate_metadata(partition.topic)


def _is_out_of_order(failure: Failure | None) -> bool:
    return isinstance(failure, KafkaError) and failure.code is OUT_OF_ORDER

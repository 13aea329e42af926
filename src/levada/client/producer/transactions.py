"""A producer whose records count all together or not at all, with the offsets they were made from (R26).

Transactions are those of version 2 (KIP-890): a Produce adds its partitions to the transaction by itself, and each
end gives the producer a new epoch. So every transaction is a producer of its own here: it numbers its records from 0,
and what is left on the wire of one that was given up meets a broker that knows the next epoch already.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from levada.client.consumer.offsets import commit_in_transaction
from levada.client.coordinator import Coordinator, KeyType
from levada.client.data import ProducerIdentity
from levada.client.errors import as_fenced, raise_for_code
from levada.client.producer.accumulator import RecordMetadata
from levada.client.producer.producer import DELIVERY_TIMEOUT_MS, BatchingOptions, Headers, Producer
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.end_txn.v5 as end_txn
    import kio.schema.init_producer_id.v6 as init_producer_id

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.consumer.group_consumer import GroupConsumer

FEATURE, FEATURE_LEVEL = "transaction.version", 2
TWO_PHASE_FROM = 6  # of InitProducerId (KIP-939)
OVER = "the transaction is over"


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all stored, and which waits to be ended."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


async def end_prepared(client: "Client", prepared: PreparedTransaction, *, committed: bool) -> None:
    """End a transaction of whomever; ended in the same way before it is no error, ProducerFenced if it was not."""
    coordinator = Coordinator(client, KeyType.TRANSACTION, prepared.transactional_id)
    await end_transaction(coordinator, *prepared, committed=committed)


async def end_transaction(
    coordinator: Coordinator, transactional_id: str, producer_id: int, producer_epoch: int, *, committed: bool
) -> tuple[int, int]:
    """Commit or abort, and who the producer is from then on: id and epoch."""
    request = end_txn.request.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=committed,
    )
    try:
        response = await coordinator.request(
            "end_txn",
            request,
            lambda answer: raise_for_code(answer.error_code, f"transactional id {transactional_id}"),
        )
    except KafkaError as error:
        raise as_fenced(error) from None
    return response.producer_id, response.producer_epoch


class TransactionalProducer:
    """Sends records in transactions, one after the other; made by `Client.producer` with a transactional id.

    >>> async with client.producer(transactional_id="billing-1") as producer:
    ...     async with producer.transaction() as tx:
    ...         await tx.send("invoices", b"...")
    ...         await tx.commit_offsets(consumer)

    Whoever starts with a transactional id last has it: the transaction of the one before is aborted, and it gets
    ProducerFenced. With `two_phase` transactions never time out; with `keep_prepared` one that is open when it
    starts is not aborted but stands in `prepared`, until `complete_transaction` ends it.
    """

    def __init__(
        self,
        client: "Client",
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        two_phase: bool = False,
        keep_prepared: bool = False,
        **options: Unpack[BatchingOptions],
    ) -> None:
        unknown = options.keys() - BatchingOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"a producer with transactions has no {', '.join(sorted(unknown))}")
        self._client = client
        self._timeout = timedelta(milliseconds=transaction_timeout_ms)
        self._two_phase = two_phase
        self._keep_prepared = keep_prepared
        self._options = options
        self._coordinator = Coordinator(
            client,
            KeyType.TRANSACTION,
            transactional_id,
            timeout_ms=options.get("delivery_timeout_ms", DELIVERY_TIMEOUT_MS),
        )
        self._open: Transaction | None = None
        self._writer: ProducerIdentity | None = (
            None  # None while nobody knows: before the start, and while one is ended
        )
        self._failure: Exception = RuntimeError("the producer is not started")
        self.transactional_id = transactional_id
        self.prepared: PreparedTransaction | None = None  # was open at the start, and is to be completed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Take over the transactional id; what an earlier owner left open is aborted, unless it shall be kept."""
        request = init_producer_id.request.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=self._timeout,
            enable2_pc=self._two_phase,
            keep_prepared_txn=self._keep_prepared,
        )
        version_min = TWO_PHASE_FROM if self._two_phase or self._keep_prepared else 0
        response = await self._coordinator.request(
            "init_producer_id", request, self._check, version_min=version_min
        )
        level = (await self._coordinator.connection()).api_versions.features.get(FEATURE, 0)
        if level < FEATURE_LEVEL:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster has {FEATURE} {level}; this client needs {FEATURE_LEVEL} (Kafka 4.0 or later)",
            )
        self._writer = ProducerIdentity(self.transactional_id, response.producer_id, response.producer_epoch)
        if self._keep_prepared and response.ongoing_txn_producer_id >= 0:
            self.prepared = PreparedTransaction(
                self.transactional_id, response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
            )

    async def complete_transaction(self, decided: PreparedTransaction | None) -> bool:
        """End what was found open at the start: committed, and True, if it is the one that was decided on.

        Anything else is aborted: nobody has kept that it was prepared. Where nothing is open there is nothing to do.
        """
        found = self.prepared
        if found is None:
            return False
        self.prepared = None
        await self.end(committed=found == decided, touched=True)
        return found == decided

    async def close(self) -> None:
        """Abort what is open, but for what is prepared."""
        if self._open is not None and not self._open.is_prepared:
            await self._open.abort()
        self._writer, self._failure = None, RuntimeError("the producer is closed")

    def transaction(self) -> "Transaction":
        """A transaction for the length of an `async with` block: committed at its end, aborted at an exception."""
        return Transaction(self)

    def begin(self, transaction: "Transaction") -> tuple[ProducerIdentity, Producer]:
        """Who writes in a transaction that begins, and through what."""
        if self._open is not None:
            raise RuntimeError(f"a transaction of {self.transactional_id!r} is open already")
        if self.prepared is not None:
            raise RuntimeError(f"complete_transaction first: {self.prepared} is open")
        if self._writer is None:
            raise self._failure
        self._open = transaction
        return self._writer, Producer(self._client, transaction=self._writer, **self._options)

    async def end(self, *, committed: bool, touched: bool) -> None:
        """End the open transaction; if nobody has heard of it yet there is nothing to do."""
        self._open = None
        writer = self._writer
        if not touched or writer is None:
            return
        self._writer = None
        self._failure = RuntimeError(
            "nobody knows how the last transaction ended: start another producer with this transactional id"
        )
        try:
            identity = await end_transaction(self._coordinator, *writer, committed=committed)
        except KafkaError as error:
            self._failure = error
            raise
        self._writer = ProducerIdentity(self.transactional_id, *identity)

    def _check(self, response: Any) -> None:
        raise_for_code(response.error_code, f"transactional id {self.transactional_id}")


class Transaction:
    """Records and offsets that count together; made by `TransactionalProducer.transaction`."""

    def __init__(self, owner: TransactionalProducer) -> None:
        self._owner = owner
        self._touched = False  # the coordinator may know of it
        self._writer: ProducerIdentity
        self._producer: Producer | None = None  # while records are taken
        self.is_prepared = False

    async def __aenter__(self) -> Self:
        self._writer, self._producer = self._owner.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is None:
            return
        if error is None:
            await self.commit()
        else:
            await self._abort_after(error)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record into the buffer, as `Producer.send` does; a failure also shows at the end."""
        producer = self._opened()
        self._touched = True
        return await producer.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    async def commit_offsets(
        self, consumer: "GroupConsumer", offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Let the consumer's group go on after what it handed out, or at these offsets, if this is committed."""
        self._opened()
        wanted = consumer.positions() if offsets is None else offsets
        if not wanted:
            return
        self._touched = True
        member = consumer.membership
        try:
            await member.act(
                lambda committer: commit_in_transaction(member.coordinator, committer, self._writer, wanted)
            )
        except KafkaError as error:
            raise as_fenced(error) from None

    async def prepare(self) -> PreparedTransaction | None:
        """Wait for the records and leave the transaction open: the end of the block does not end it, nor does `close`.

        What it gives is all that `Client.commit_prepared` needs, in any process; None if nothing was sent. Without
        `two_phase` the transaction still times out.
        """
        await self._flush()
        if not self._touched:
            await self._end(committed=False)
            return None
        await self._seal()
        self.is_prepared = True
        return PreparedTransaction(*self._writer)

    async def commit(self) -> None:
        """Wait for the records and commit; at the end of the block unless it is done before."""
        if not self.is_prepared:
            await self._flush()
        await self._end(committed=True)

    async def abort(self) -> None:
        """Make it as if nothing had been sent; records on the way are given up."""
        if self._producer is not None or self.is_prepared:
            await self._end(committed=False)

    async def _flush(self) -> None:
        if self._producer is None:
            raise RuntimeError(OVER)
        try:
            await self._producer.flush()
            self._opened()
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """What went wrong first is what the caller must see."""
        try:
            await self.abort()
        except Exception as failure:  # noqa: BLE001
            error.add_note(f"The transaction could not be aborted: {failure}")

    async def _end(self, *, committed: bool) -> None:
        await self._seal()
        self.is_prepared = False
        await self._owner.end(committed=committed, touched=self._touched)

    async def _seal(self) -> None:
        """Take no more records."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)

    def _opened(self) -> Producer:
        if self._producer is None:
            raise RuntimeError(OVER)
        if self._producer.failure is not None:
            raise self._producer.failure
        return self._producer

"""Transactions: records, and the offsets they were made from, that are committed together or not at all.

They need transaction.version 2 (KIP-890): a Produce adds its partitions to the transaction by itself, and each end
gives the producer a new epoch. So each transaction has a `Producer` of its own, whose sequence numbers begin at 0; the
broker fences requests of an aborted transaction that are still in flight by their older epoch.
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
from levada.client.producer.producer import DELIVERY_TIMEOUT_MS, BatchingOptions, Producer, RecordOptions
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
TWO_PHASE_VERSION = 6  # of InitProducerId (KIP-939)
ENDED = "the transaction has ended"


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all stored, and which waits for its end."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


async def init_transactions(
    coordinator: Coordinator,
    transactional_id: str,
    timeout_ms: int,
    *,
    two_phase: bool = False,
    keep_prepared: bool = False,
) -> Any:
    """InitProducerId: take over a transactional id, which fences its former producer."""
    request = init_producer_id.request.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=timedelta(milliseconds=timeout_ms),
        enable2_pc=two_phase,
        keep_prepared_txn=keep_prepared,
    )
    return await coordinator.request(
        "init_producer_id",
        request,
        lambda response: raise_for_code(response.error_code, f"transactional id {transactional_id}"),
        version_min=TWO_PHASE_VERSION if two_phase or keep_prepared else 0,
    )


async def require_feature(coordinator: Coordinator) -> None:
    """UNSUPPORTED_VERSION if the cluster's transactions are those of an older version."""
    level = (await coordinator.connection()).api_versions.features.get(FEATURE, 0)
    if level < FEATURE_LEVEL:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the cluster has {FEATURE} {level}; this client needs {FEATURE_LEVEL} (Kafka 4.0 or later)",
        )


async def end_prepared(client: "Client", prepared: PreparedTransaction, *, committed: bool) -> None:
    """End a transaction of any producer, as often as wanted; ProducerFenced if it has ended the other way."""
    coordinator = Coordinator(client, KeyType.TRANSACTION, prepared.transactional_id)
    await end_transaction(coordinator, *prepared, committed=committed)


async def end_transaction(
    coordinator: Coordinator, transactional_id: str, producer_id: int, producer_epoch: int, *, committed: bool
) -> tuple[int, int]:
    """EndTxn: commit or abort; returns the producer id and epoch of the next transaction."""
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
            lambda response: raise_for_code(response.error_code, f"transactional id {transactional_id}"),
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

    `start` fences the former producer of the transactional id and aborts its open transaction. With `two_phase`
    transactions never time out; with `keep_prepared` a transaction that is open at the start is not aborted: it is in
    `prepared` until `complete_transaction` ends it.
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
        self._timeout_ms = transaction_timeout_ms
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
        self._identity: ProducerIdentity | None = None  # None before the start, and while a transaction ends
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

    @property
    def can_begin(self) -> bool:
        """Whether the last transaction has ended, and its coordinator had no other producer then."""
        return self._identity is not None and self._open is None

    async def start(self) -> None:
        """Take over the transactional id; the open transaction of its former producer is aborted or kept."""
        response = await init_transactions(
            self._coordinator,
            self.transactional_id,
            self._timeout_ms,
            two_phase=self._two_phase,
            keep_prepared=self._keep_prepared,
        )
        await require_feature(self._coordinator)
        self._identity = ProducerIdentity(self.transactional_id, response.producer_id, response.producer_epoch)
        if self._keep_prepared and response.ongoing_txn_producer_id >= 0:
            self.prepared = PreparedTransaction(
                self.transactional_id, response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
            )

    async def complete_transaction(self, decided: PreparedTransaction | None) -> bool:
        """End the transaction that was open at the start: commit it, and return True, if it is `decided`.

        Any other is aborted, since nothing records that it was prepared. Without an open one nothing is done.
        """
        found = self.prepared
        if found is None:
            return False
        self.prepared = None
        await self.end(committed=found == decided, begun=True)
        return found == decided

    async def close(self) -> None:
        """Abort the open transaction, unless it is prepared."""
        if self._open is not None and not self._open.is_prepared:
            await self._open.abort()
        self._identity, self._failure = None, RuntimeError("the producer is closed")

    def transaction(self) -> "Transaction":
        """A transaction for the length of an `async with` block: committed at its end, aborted at an exception."""
        return Transaction(self)

    def begin(self, transaction: "Transaction") -> tuple[ProducerIdentity, Producer]:
        """Open a transaction: its identity, and the producer that sends its records."""
        if self._open is not None:
            raise RuntimeError(f"a transaction of {self.transactional_id!r} is open already")
        if self.prepared is not None:
            raise RuntimeError(f"complete_transaction first: {self.prepared} is open")
        if self._identity is None:
            raise self._failure
        self._open = transaction
        return self._identity, Producer(self._client, transaction=self._identity, **self._options)

    async def end(self, *, committed: bool, begun: bool) -> None:
        """End the open transaction; if the coordinator has not begun it there is nothing to do."""
        self._open = None
        identity = self._identity
        if not begun or identity is None:
            return
        self._identity = None
        self._failure = RuntimeError(
            "the outcome of the last transaction is unknown: start another producer with this transactional id"
        )
        try:
            following = await end_transaction(self._coordinator, *identity, committed=committed)
        except KafkaError as error:
            self._failure = error
            raise
        self._identity = ProducerIdentity(self.transactional_id, *following)


class Transaction:
    """Records and offsets that are committed together; made by `TransactionalProducer.transaction`."""

    def __init__(self, owner: TransactionalProducer) -> None:
        self._owner = owner
        self._begun = False  # the coordinator may have begun it
        self._identity: ProducerIdentity
        self._producer: Producer | None = None  # while it accepts records
        self.is_prepared = False

    async def __aenter__(self) -> Self:
        self._identity, self._producer = self._owner.begin(self)
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
        self, topic: str, value: bytes | None, **options: Unpack[RecordOptions]
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record into the buffer, as `Producer.send` does; a failure is also raised at the end."""
        producer = self._check_open()
        self._begun = True
        return await producer.send(topic, value, **options)

    async def commit_offsets(
        self, consumer: "GroupConsumer", offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit the consumer's positions, or these offsets, for its group as part of the transaction."""
        self._check_open()
        wanted = consumer.positions() if offsets is None else offsets
        if not wanted:
            return
        self._begun = True
        member = consumer.membership
        try:
            await member.run(
                lambda committer: commit_in_transaction(member.coordinator, committer, self._identity, wanted)
            )
        except KafkaError as error:
            raise as_fenced(error) from None

    async def prepare(self) -> PreparedTransaction | None:
        """Wait until the records are stored and leave the transaction open, after the block and `close` as well.

        `Client.commit_prepared` ends it in any process by what is returned; None if nothing was sent. Without
        `two_phase` the transaction still times out.
        """
        await self._flush()
        if not self._begun:
            await self._end(committed=False)
            return None
        await self._seal()
        self.is_prepared = True
        return PreparedTransaction(*self._identity)

    async def commit(self) -> None:
        """Wait until the records are stored and commit; the end of the block does so unless it is done before."""
        if not self.is_prepared:
            await self._flush()
        await self._end(committed=True)

    async def abort(self) -> None:
        """Abort: consumers with read_committed see none of its records. Records in flight are cancelled."""
        if self._producer is not None or self.is_prepared:
            await self._end(committed=False)

    async def _flush(self) -> None:
        if self._producer is None:
            raise RuntimeError(ENDED)
        try:
            await self._producer.flush()
            self._check_open()
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """Abort and keep the first error: a failure to abort is a note to it."""
        try:
            await self.abort()
        except Exception as failure:  # noqa: BLE001
            error.add_note(f"The transaction could not be aborted: {failure}")

    async def _end(self, *, committed: bool) -> None:
        await self._seal()
        self.is_prepared = False
        await self._owner.end(committed=committed, begun=self._begun)

    async def _seal(self) -> None:
        """Accept no more records."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)

    def _check_open(self) -> Producer:
        if self._producer is None:
            raise RuntimeError(ENDED)
        if self._producer.failure is not None:
            raise self._producer.failure
        return self._producer

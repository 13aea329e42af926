"""The admin client for transactions: list, describe, abort, commit, and find hanging ones (KIP-664, KIP-939).

A coordinator ends the transactions that it knows. A *hanging* transaction is open in a partition and unknown to its
coordinator: it holds back the last stable offset until a marker is written to the partition.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.client.coordinator import Coordinator, KeyType
from levada.client.errors import raise_for_code
from levada.client.producer.transactions import PreparedTransaction, end_prepared, init_transactions
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_producers.v0 as describe_producers
    import kio.schema.describe_transactions.v0 as describe_transactions
    import kio.schema.list_transactions.v2 as list_transactions
    import kio.schema.write_txn_markers.v2 as write_txn_markers

if TYPE_CHECKING:
    from levada.client.client import Client

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)
UNLIMITED_MS = (1 << 31) - 1
IDS_PER_REQUEST = 100  # ids may be long, and the size of a request is limited
ACTIVE_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
TIMEOUT_MS = 1  # where the producer's own is not to be had; within every broker's limit, no transaction begins with it


class TransactionState(NamedTuple):
    """A transactional id, and its open or last transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int | None  # None: it has no timeout of its own (two-phase commit)
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms is None


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int

    @property
    def identity(self) -> tuple[TopicPartition, int, int]:
        """Identifies the transaction for as long as it is open."""
        return self.partition, self.producer_id, self.start_offset


class TransactionAdmin:
    """Administrative requests for transactions."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list_transactions(self, states: Iterable[str] = ()) -> list[TransactionState]:
        """The transactional ids of all coordinators in these states, or in any, by name."""
        client, wanted, found = self._client, tuple(states), list[TransactionState]()
        policy = RetryPolicy(COORDINATOR_RETRIABLE, client.request_timeout_ms)
        for node in (await client.metadata(())).brokers:
            found += await retry(client, partial(self._list_at, node, wanted), policy)
        return sorted(found)

    async def _list_at(self, node: int, states: tuple[str, ...]) -> list[TransactionState]:
        request = list_transactions.request.ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=(),
            duration_filter=-1,
            transactional_id_pattern=None,
        )
        response = await self._client.request("list_transactions", request, node=node)
        raise_for_code(response.error_code, "transactions")
        return await self._describe([one.transactional_id for one in response.transaction_states], node)

    async def describe(self, name: str) -> TransactionState:
        """One transactional id; TRANSACTIONAL_ID_NOT_FOUND if its coordinator does not know it."""
        request = describe_transactions.request.DescribeTransactionsRequest(transactional_ids=(name,))
        response = await Coordinator(self._client, KeyType.TRANSACTION, name).request(
            "describe_transactions",
            request,
            lambda response: raise_for_code(response.transaction_states[0].error_code, f"no transactional id {name!r}"),
        )
        return _state(response.transaction_states[0])

    async def _describe(self, names: Sequence[str], node: int) -> list[TransactionState]:
        found: list[describe_transactions.response.TransactionState] = []
        for start in range(0, len(names), IDS_PER_REQUEST):
            some = tuple(names[start : start + IDS_PER_REQUEST])
            request = describe_transactions.request.DescribeTransactionsRequest(transactional_ids=some)
            response = await self._client.request("describe_transactions", request, node=node)
            found += (
                one
                for one in response.transaction_states
                if one.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # expired meanwhile
            )
        for one in found:
            raise_for_code(one.error_code, f"transactional id {one.transactional_id!r}")
        return [_state(one) for one in found]

    async def find_open(self, topics: Iterable[str] = ()) -> list[OpenTransaction]:
        """Transactions that are open in the partitions of these topics, or of all."""
        request = describe_producers.request
        wanted: dict[int, dict[str, list[int]]] = {}
        metadata = await self._client.metadata(set(topics) or None)
        for name, topic in metadata.topics.items():
            for partition in topic.partitions:
                if partition.leader >= 0:
                    wanted.setdefault(partition.leader, {}).setdefault(name, []).append(partition.partition)
        found: list[OpenTransaction] = []
        for node, partitions in wanted.items():
            describe = request.DescribeProducersRequest(
                topics=tuple(
                    request.TopicRequest(name=name, partition_indexes=tuple(indexes))
                    for name, indexes in partitions.items()
                )
            )
            found += _open(await self._client.request("describe_producers", describe, node=node))
        return sorted(found)

    async def find_hanging(self, topics: Iterable[str] = ()) -> list[OpenTransaction]:
        """The open transactions that no coordinator knows.

        Partitions are described before and after the coordinators: a transaction that begins meanwhile is not in the
        first result, and one that ends meanwhile, which its coordinator has forgotten, not in the second.
        """
        before = await self.find_open(topics)
        known = {
            (state.producer_id, partition)
            for state in await self.list_transactions()
            if state.state in ACTIVE_STATES
            for partition in state.partitions
        }
        after = {one.identity for one in await self.find_open(topics)}
        return [one for one in before if (one.producer_id, one.partition) not in known and one.identity in after]

    async def abort(self, name: str) -> None:
        """Abort the open transaction of a transactional id; its producer is fenced.

        The state of a prepared transaction is CompleteAbort then, which its owner may have to read.
        """
        if (await self.describe(name)).is_two_phase:
            await self._end_prepared(name, committed=False)
        else:
            await self._init(name, keep_prepared=False)

    async def commit(self, name: str) -> None:
        """Commit the prepared transaction of a transactional id in place of its producer, which is fenced."""
        await self._end_prepared(name, committed=True)

    async def _end_prepared(self, name: str, *, committed: bool) -> None:
        response = await self._init(name, keep_prepared=True)
        owner = PreparedTransaction(name, response.producer_id, response.producer_epoch)
        await end_prepared(self._client, owner, committed=committed)

    async def _init(self, name: str, *, keep_prepared: bool) -> Any:
        """Take over a transactional id, whose timeout stays as it is; a lowered limit of the broker may refuse it."""
        coordinator = Coordinator(self._client, KeyType.TRANSACTION, name)
        timeout_ms = (await self.describe(name)).timeout_ms or TIMEOUT_MS
        try:
            return await init_transactions(coordinator, name, timeout_ms, keep_prepared=keep_prepared)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            return await init_transactions(coordinator, name, TIMEOUT_MS, keep_prepared=keep_prepared)

    async def abort_hanging(self, hanging: OpenTransaction) -> None:
        """Write an abort marker to the partition."""
        request, (topic, index) = write_txn_markers.request, hanging.partition
        marker = request.WritableTxnMarker(
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            transaction_result=False,
            topics=(request.WritableTxnMarkerTopic(name=topic, partition_indexes=(index,)),),
            coordinator_epoch=max(hanging.coordinator_epoch, 0),
            transaction_version=0,
        )
        metadata = await self._client.metadata({topic})
        leader = metadata.topics[topic].partitions[index].leader
        markers = request.WriteTxnMarkersRequest(markers=(marker,))
        response = await self._client.request("write_txn_markers", markers, node=leader)
        (written,) = response.markers[0].topics[0].partitions
        raise_for_code(written.error_code, f"marker for producer {hanging.producer_id} in {topic}-{index}")


def _state(found: Any) -> TransactionState:
    timeout_ms = found.transaction_timeout // MILLISECOND
    started_ms = (found.transaction_start_time - EPOCH) // MILLISECOND
    return TransactionState(
        found.transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        None if timeout_ms == UNLIMITED_MS else timeout_ms,
        started_ms if started_ms >= 0 else None,
        tuple(TopicPartition(topic.topic, index) for topic in found.topics for index in topic.partitions),
    )


def _open(response: Any) -> list[OpenTransaction]:
    return [
        OpenTransaction(
            TopicPartition(topic.name, part.partition_index),
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
            producer.last_timestamp,
        )
        for topic in response.topics
        for part in topic.partitions
        for producer in part.active_producers
        if producer.current_txn_start_offset >= 0
    ]

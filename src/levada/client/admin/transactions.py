"""Transactions from an operator's side: which there are, what they hold up, and how to end them (KIP-664, KIP-939).

A transaction that its coordinator knows is ended through the coordinator. One that only a partition knows hangs: no
coordinator will ever end it, and it holds up readers of committed records; a marker written to the partition does.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.client.coordinator import Coordinator, KeyType
from levada.client.errors import raise_for_code
from levada.client.producer.transactions import PreparedTransaction, end_prepared, init_transactions
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy, retry
from levada.errors import ErrorCode
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
NEVER_MS = (1 << 31) - 1
IDS_AT_ONCE = 100  # they may be long, and a request not
UNDER_WAY = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
TIMEOUT_MS = (
    1  # of the producer that an operator pretends to be, who opens nothing; no broker refuses it as too long
)


class TransactionState(NamedTuple):
    """A transactional id, and its open or last transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int | None  # None: only its owner ends it
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
        """What is the same as long as it is open, and of no other."""
        return self.partition, self.producer_id, self.start_offset


class TransactionAdmin:
    """Calls on transactions over a client."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def known(self, states: Iterable[str] = ()) -> list[TransactionState]:
        """Every transactional id of every broker, by name; in these states, or in any."""
        client, wanted, found = self._client, tuple(states), list[TransactionState]()
        policy = RetryPolicy(COORDINATOR_RETRIABLE, client.request_timeout_ms)
        for node in (await client.metadata(())).brokers:
            found += await retry(client, partial(self._known_to, node, wanted), policy)
        return sorted(found)

    async def _known_to(self, node: int, states: tuple[str, ...]) -> list[TransactionState]:
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
        """One transactional id; TRANSACTIONAL_ID_NOT_FOUND if nobody has it."""
        request = describe_transactions.request.DescribeTransactionsRequest(transactional_ids=(name,))
        response = await Coordinator(self._client, KeyType.TRANSACTION, name).request(
            "describe_transactions",
            request,
            lambda answer: raise_for_code(
                answer.transaction_states[0].error_code, f"no transactional id {name!r}"
            ),
        )
        return _state(response.transaction_states[0])

    async def _describe(self, names: Sequence[str], node: int) -> list[TransactionState]:
        found: list[describe_transactions.response.TransactionState] = []
        for start in range(0, len(names), IDS_AT_ONCE):
            some = tuple(names[start : start + IDS_AT_ONCE])
            request = describe_transactions.request.DescribeTransactionsRequest(transactional_ids=some)
            response = await self._client.request("describe_transactions", request, node=node)
            found += (
                one
                for one in response.transaction_states
                if one.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # forgotten meanwhile
            )
        for one in found:
            raise_for_code(one.error_code, f"transactional id {one.transactional_id!r}")
        return [_state(one) for one in found]

    async def open_in(self, topics: Iterable[str] = ()) -> list[OpenTransaction]:
        """Transactions that are open in the partitions of these topics, or of all."""
        request = describe_producers.request
        wanted: dict[int, dict[str, list[int]]] = {}
        metadata = await self._client.metadata(set(topics) or None)
        for name, topic in metadata.topics.items():
            for partition in topic.partitions:
                if partition.leader >= 0:
                    wanted.setdefault(partition.leader, {}).setdefault(name, []).append(partition.partition)
        found: list[OpenTransaction] = []
        for node, places in wanted.items():
            asked = request.DescribeProducersRequest(
                topics=tuple(
                    request.TopicRequest(name=name, partition_indexes=tuple(indexes))
                    for name, indexes in places.items()
                )
            )
            found += _open(await self._client.request("describe_producers", asked, node=node))
        return sorted(found)

    async def hanging(self, topics: Iterable[str] = ()) -> list[OpenTransaction]:
        """Those of the open ones that no coordinator will ever end.

        They are looked for before and after the coordinators are asked: one that begins meanwhile is not among the
        first, and one that ends meanwhile, of which its coordinator knows no more, not among the last.
        """
        opened = await self.open_in(topics)
        known = {
            (state.producer_id, partition)
            for state in await self.known()
            if state.state in UNDER_WAY
            for partition in state.partitions
        }
        still = {one.identity for one in await self.open_in(topics)}
        return [
            one for one in opened if (one.producer_id, one.partition) not in known and one.identity in still
        ]

    async def abort(self, name: str) -> None:
        """Abort the open transaction of a transactional id; its producer is fenced."""
        await self._init(name, keep_prepared=False)

    async def commit(self, name: str) -> None:
        """Commit the prepared transaction of a transactional id in place of its producer, which is fenced."""
        response = await self._init(name, keep_prepared=True)
        owner = PreparedTransaction(name, response.producer_id, response.producer_epoch)
        await end_prepared(self._client, owner, committed=True)

    async def _init(self, name: str, *, keep_prepared: bool) -> Any:
        coordinator = Coordinator(self._client, KeyType.TRANSACTION, name)
        return await init_transactions(coordinator, name, TIMEOUT_MS, keep_prepared=keep_prepared)

    async def abort_hanging(self, hanging: OpenTransaction) -> None:
        """Write the marker that nobody else will write."""
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
        asked = request.WriteTxnMarkersRequest(markers=(marker,))
        response = await self._client.request("write_txn_markers", asked, node=leader)
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
        None if timeout_ms == NEVER_MS else timeout_ms,
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

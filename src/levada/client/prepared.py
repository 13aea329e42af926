"""Transactions that are ended elsewhere than they were begun: in another process, after a crash (KIP-939).

Whoever knows the transactional id, the producer id and the epoch may end a transaction. So these three are what a
producer hands over once its records are stored; whoever decides keeps them where decisions are kept.
"""

from typing import TYPE_CHECKING, NamedTuple

from levada.client.coordinator import Coordinator, KeyType
from levada.client.errors import as_fenced, raise_for_code
from levada.errors import KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.end_txn.v5 as end_txn

if TYPE_CHECKING:
    from levada.client.client import Client


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

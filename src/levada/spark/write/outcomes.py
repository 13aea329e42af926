"""Tells how the transactions of a committed batch have ended, by the states of their transactional ids.

A state is only that of the last transaction. It is replaced when somebody takes the id over, so that of a batch which
may be repeated must be read before: tasks skip the batch, and drivers fence only what is open.
"""

from typing import TYPE_CHECKING

from levada.client.admin.transactions import TransactionAdmin
from levada.client.producer.transactions import PreparedTransaction
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.spark.errors import BatchLost

if TYPE_CHECKING:
    from levada.client.client import Client

OPEN, COMMITTED, ABORTED, UNKNOWN = "Ongoing", "CompleteCommit", "CompleteAbort", "Unknown"
ENDING = ("PrepareCommit", "PrepareAbort")
POLICY = RetryPolicy(COORDINATOR_RETRIABLE, 120_000)


async def read_outcome(client: "Client", one: PreparedTransaction) -> str:
    """The state of a transaction in the commit log; another one if its transactional id was used again or expired."""

    async def read() -> str:
        try:
            found = await TransactionAdmin(client).describe(one.transactional_id)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return UNKNOWN
        if found.state in ENDING:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{one.transactional_id} is ending")
        is_other = found.state == OPEN and (found.producer_id, found.producer_epoch) != one[1:]
        return UNKNOWN if is_other else found.state

    return await retry(client, read, POLICY)


def batch_lost(query: str, batch: int, lost: dict[str, str]) -> BatchLost:
    """The error for a committed batch with transactions, by transactional id, that are not known to be committed."""
    name = next((name for name, end in lost.items() if end == ABORTED), next(iter(lost)))
    how = (
        "was aborted, by an operator or because levada.transaction.two.phase.commit.timeout.ms had passed: its rows "
        "are not in the topics"
        if lost[name] == ABORTED
        else "has ended, and its coordinator does not know any more how: its rows may not be in the topics"
    )
    others = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return BatchLost(f"batch {batch} of query {query} is in the commit log, but the transaction {name}{others} {how}")

"""Transactions of the sink: tasks begin and renew them; `driver` ends them by the commit protocol.

A task's transactional id consists of the query, the task's partition and a number. A task never ends a transaction
that it finds open: the driver may be about to commit it, while this task attempt is an old one that Spark has given
up. It takes the next number; the driver aborts what is left open with the next batch. So the numbers stay small: 0 as
a rule, and one more for each killed task attempt of the current batch.

A transaction has a timeout until the driver fences it, which it does before it appends to the commit log: then it is a
transaction of two-phase commit, which waits for its driver. If the append fails, the driver aborts what it has fenced.
If it dies between the two, or cannot know whether the append has failed, these transactions are not in the commit log
and wait nevertheless: for the next start of the query, or the broker's bound. All others that are not in the commit log
end in time. As long as a task of the query runs, it renews all of them: those of tasks that have ended wait for the
slowest one.
"""

import asyncio
import re
from collections.abc import Collection
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from levada.client.admin.transactions import TransactionAdmin, TransactionState
from levada.client.coordinator import Coordinator, KeyType
from levada.client.data import ProducerIdentity
from levada.client.errors import FAILURES, raise_for_code
from levada.client.producer.transactions import (
    PreparedTransaction,
    init_transactions,
    require_feature,
)
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.spark.write.commit_log import read_commits, read_last_commit
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.add_partitions_to_txn.v5 as add_partitions_to_txn
    import kio.schema.list_transactions.v2 as list_transactions

if TYPE_CHECKING:
    from levada.client.client import Client

log = EventLog(__name__)
T = TypeVar("T")

IDS_PER_PARTITION_MAX = 32
DRIVER_TIMEOUT_MS = 10_000  # how long the open transaction of a killed driver blocks readers of the commit log
RENEWALS_PER_TIMEOUT = 3
APP_PREFIX = "app."
TIMEOUT_MS = 120_000
POLICY = RetryPolicy(COORDINATOR_RETRIABLE, TIMEOUT_MS)
COORDINATORS_MAX = 1_000
CONCURRENT_REQUESTS_MAX = 32  # of a driver

NEEDS_TWO_PHASE = (
    'delivery "exactly_once" needs two-phase commit (KIP-939) on the broker: set '
    "transaction.two.phase.commit.enable=true on Levada, or use option delivery=at_least_once"
)


NO_TWO_PHASE = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)


_coordinators: "dict[Client, dict[str, Coordinator]]" = {}
# By query, when its transactions are to be renewed next, in seconds of the loop's clock. Spark runs many tasks in one
# process, and each of them may be shorter than the time between two renewals.
_renewals_due: "WeakKeyDictionary[Client, dict[str, float]]" = WeakKeyDictionary()
_renewing: "dict[tuple[Client, str], asyncio.Task[None]]" = {}


class Fenced(NamedTuple):
    """A transactional id that was taken over, and its open transaction."""

    producer: ProducerIdentity
    ongoing: PreparedTransaction | None


def kept_for(client: "Client", kept: "dict[Client, dict[str, T]]") -> dict[str, T]:
    """What a process keeps for the next batches with this client; what belongs to closed clients is dropped."""
    for closed in [one for one in kept if one.closed]:
        del kept[closed]
    return kept.setdefault(client, {})


def coordinator(client: "Client", transactional_id: str) -> Coordinator:
    """The coordinator of a transactional id; it is kept, because tasks and batches use the same ids again."""
    known = kept_for(client, _coordinators)
    if transactional_id not in known:
        if len(known) == COORDINATORS_MAX:
            known.clear()
        known[transactional_id] = Coordinator(client, KeyType.TRANSACTION, transactional_id, timeout_ms=TIMEOUT_MS)
    return known[transactional_id]


def prefix(query: str) -> str:
    """The prefix of the transactional ids of a query's tasks."""
    return f"spark-{query}-"


def driver_transactional_id(query: str) -> str:
    """The transactional id with which a driver appends to the commit log; it has another prefix than the tasks'."""
    return f"spark-{query}"


def task_transactional_id(query: str, partition: int, number: int) -> str:
    """A transactional id of a task's partition; the number of a batch job is its task attempt id."""
    return f"{prefix(query)}{partition}-{number}"


def app_query(app: str) -> str:
    """The name of an application in the commit log; its prefix is not a prefix of any other application's ids."""
    return APP_PREFIX + quote(app, safe="").replace("-", "%2D")


async def fence(client: "Client", transactional_id: str, timeout_ms: int | None = None) -> Fenced:
    """Take over a transactional id and keep its open transaction.

    Without a timeout the transaction becomes one of two-phase commit, and stays one.
    """
    try:
        response = await init_producer(client, transactional_id, timeout_ms, keep_prepared=True)
    except KafkaError as error:
        if error.code in NO_TWO_PHASE:
            raise KafkaError(error.code, NEEDS_TWO_PHASE) from None
        raise
    ongoing = None
    if response.ongoing_txn_producer_id >= 0:
        ongoing = PreparedTransaction(
            transactional_id, response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
        )
    return Fenced(ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch), ongoing)


async def init_producer(client: "Client", transactional_id: str, timeout_ms: int | None, *, keep_prepared: bool) -> Any:
    """InitProducerId; without a timeout for two-phase commit."""
    found = coordinator(client, transactional_id)
    try:
        response = await init_transactions(
            found,
            transactional_id,
            DRIVER_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            two_phase=timeout_ms is None,
            keep_prepared=keep_prepared,
        )
    except KafkaError as error:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            detail = (
                f"option transactionTimeout is {timeout_ms} ms, above the broker's transaction.max.timeout.ms; "
                "lower the option"
            )
            raise KafkaError(error.code, detail) from None
        raise
    await require_feature(found)
    return response


# Tasks


async def begin_stream_task(client: "Client", query: str, partition: int, timeout_ms: int) -> ProducerIdentity:
    """The producer of a stream's task: with the first transactional id that has no open transaction."""
    for number in range(IDS_PER_PARTITION_MAX):
        fenced = await fence(client, task_transactional_id(query, partition, number), timeout_ms)
        if fenced.ongoing is None:
            return fenced.producer
    raise KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"{IDS_PER_PARTITION_MAX} task attempts of this batch were killed and left a transaction open. Find out why, "
        f"then abort them: levada txn abort {task_transactional_id(query, partition, 0)} (and the others that "
        "`levada txn list --open` shows)",
    )


async def last_committed_batch(client: "Client", query: str) -> int:
    """The id of the last committed batch; -1 if there is none.

    A task reads it to skip a batch that is committed already. It waits for open transactions of other drivers, because
    a task that missed a record would use the transactional ids whose last state tells how the batch has ended.
    """
    last, _ = await read_last_commit(client, query)
    return last.batch


async def find_queries(client: "Client", checkpoint: str) -> list[str]:
    """The queries that have committed with this checkpoint; several, if it was deleted between them."""
    commits = await read_commits(client)
    return [query for query, last in commits.items() if last.run.checkpoint == checkpoint]


async def begin_job_task(client: "Client", transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """The producer of one task attempt of a batch job: its transaction is never one of two-phase commit."""
    response = await init_producer(client, transactional_id, timeout_ms, keep_prepared=False)
    return ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch)


async def keep_renewed(client: "Client", query: str, timeout_ms: int) -> None:
    """Renew the open transactions of a query in time, until cancelled: at once if a renewal is due in this process.

    A renewal that has begun is finished also if it is cancelled: the tasks of a batch may be shorter than a renewal.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = _renewals_due.get(client, {}).get(query, 0.0)
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        renewing = _renewing.get((client, query))
        if renewing is None:
            renewing = _renewing[client, query] = loop.create_task(_renew_now(client, query, timeout_ms))
        await asyncio.shield(renewing)


async def _renew_now(client: "Client", query: str, timeout_ms: int) -> None:
    """Renew, and set when the next renewal is due; after a failure sooner."""
    began_s = asyncio.get_running_loop().time()
    interval_s = timeout_ms / 1000 / RENEWALS_PER_TIMEOUT
    try:
        # One that has just begun is renewed the next time, which saves the requests in a short batch.
        await renew(client, query, older_than_ms=timeout_ms // RENEWALS_PER_TIMEOUT // 2)
    except FAILURES as failure:
        log.warning("transactions not renewed", query=query, why=str(failure))
        interval_s /= RENEWALS_PER_TIMEOUT
    finally:
        del _renewing[client, query]
    later = {name: due_s for name, due_s in _renewals_due.get(client, {}).items() if due_s > began_s}
    _renewals_due[client] = later | {query: began_s + interval_s}


async def renew(client: "Client", query: str, *, older_than_ms: int = -1) -> None:
    """Restart the timeouts of a query's open transactions, by adding partitions that they have; only Levada does so."""
    names = await open_transactions(client, query, older_than_ms)
    states = await run_all([TransactionAdmin(client).describe(name) for name in names])
    await run_all([_add_partitions(client, one) for one in states if one.state == "Ongoing" and not one.is_two_phase])


async def _add_partitions(client: "Client", state: TransactionState) -> None:
    """Add its partitions to a transaction again. A coordinator refuses that if it has ended or was fenced meanwhile."""
    request = add_partitions_to_txn.request
    topics = [
        request.AddPartitionsToTxnTopic(name=topic, partitions=tuple(index for _, index in partitions))
        for topic, partitions in groupby(sorted(state.partitions), key=lambda partition: partition.topic)
    ]
    one = request.AddPartitionsToTxnTransaction(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        topics=tuple(topics),
    )
    wanted = request.AddPartitionsToTxnRequest(transactions=(one,))
    await coordinator(client, state.transactional_id).request(
        "add_partitions_to_txn", wanted, lambda response: None, version_min=5
    )


# For both


async def open_transactions(client: "Client", query: str, older_than_ms: int = -1) -> list[str]:
    """The transactional ids of a query's tasks with an open transaction; older brokers ignore the filters.

    Coordinators that are moving from one broker to another are left out of the response.
    """
    id_prefix = prefix(query)
    request = list_transactions.request.ListTransactionsRequest(
        state_filters=("Ongoing",),
        producer_id_filters=(),
        duration_filter=older_than_ms,
        transactional_id_pattern=re.escape(id_prefix) + ".*",
    )
    names: list[str] = []
    for node in (await client.metadata(())).brokers:
        response = await client.request("list_transactions", request, node=node)
        raise_for_code(response.error_code, "transactions")
        names += [one.transactional_id for one in response.transaction_states]
    return [name for name in names if name.startswith(id_prefix)]


async def run_all(work: Collection[Any]) -> list[Any]:
    """Run all, a limited number at a time; the first failure is raised when all have ended."""
    limit = asyncio.Semaphore(CONCURRENT_REQUESTS_MAX)

    async def one(task: Any) -> Any:
        async with limit:
            return await task

    results = await asyncio.gather(*(one(task) for task in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

"""Transactions of the sink: tasks begin them, the driver ends them by the commit protocol.

A task's transactional id consists of the query, the task's partition and a number. A task never ends a transaction
that it finds open: the driver may be about to commit it, while this task attempt is an old one that Spark has given
up. It takes the next number; the driver aborts what is left open with the next batch. So the numbers stay small: 0 as
a rule, and one more for each killed task attempt of the current batch.
"""

import asyncio
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from weakref import WeakKeyDictionary

from levada.client.admin.transactions import TransactionAdmin
from levada.client.coordinator import Coordinator, KeyType
from levada.client.data import ProducerIdentity
from levada.client.errors import ProducerFenced, raise_for_code
from levada.client.producer.transactions import (
    PreparedTransaction,
    end_prepared,
    init_transactions,
    require_feature,
)
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.spark.errors import CommitRefused
from levada.spark.write.commit_log import append_commit, read_last_commit
from levada.spark.write.commit_protocol import (
    UNKNOWN_CONTENT,
    BatchContent,
    CommitPlan,
    CommitRecord,
    plan_commit,
)
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.list_transactions.v2 as list_transactions

if TYPE_CHECKING:
    from levada.client.client import Client

IDS_PER_PARTITION_MAX = 32
DRIVER_TIMEOUT_MS = 10_000  # how long the open transaction of a killed driver blocks readers of the commit log
TIMEOUT_MS = 120_000
POLICY = RetryPolicy(COORDINATOR_RETRIABLE, TIMEOUT_MS)
CONCURRENT_REQUESTS_MAX = 32  # of a driver
COMMIT_ATTEMPTS_MAX = 20

NEEDS_TWO_PHASE = (
    'delivery "exactly_once" needs two-phase commit (KIP-939) on the broker: set '
    "transaction.two.phase.commit.enable=true on Levada, or use option delivery=at_least_once"
)


NO_TWO_PHASE = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)


# By query, the commit record whose transactions have all ended: the next batch need not fence them again.
_completed: "WeakKeyDictionary[Client, dict[str, CommitRecord]]" = WeakKeyDictionary()


class Fenced(NamedTuple):
    """A transactional id that was taken over, and its open transaction."""

    producer: ProducerIdentity
    ongoing: PreparedTransaction | None


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
    return "app." + quote(app, safe="").replace("-", "%2D")


async def fence(client: "Client", transactional_id: str) -> Fenced:
    """Take over a transactional id and keep its open transaction; transactions begun with it never time out."""
    try:
        response = await _init(client, transactional_id, DRIVER_TIMEOUT_MS, two_phase=True)
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


async def _init(client: "Client", transactional_id: str, timeout_ms: int, *, two_phase: bool) -> Any:
    """InitProducerId."""
    coordinator = Coordinator(client, KeyType.TRANSACTION, transactional_id, timeout_ms=TIMEOUT_MS)
    response = await init_transactions(
        coordinator, transactional_id, timeout_ms, two_phase=two_phase, keep_prepared=two_phase
    )
    await require_feature(coordinator)
    return response


# Tasks


async def begin_stream_task(client: "Client", query: str, partition: int) -> ProducerIdentity:
    """The producer of a stream's task: with the first transactional id that has no open transaction."""
    for number in range(IDS_PER_PARTITION_MAX):
        fenced = await fence(client, task_transactional_id(query, partition, number))
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

    A task reads it to skip a batch that is committed already. If it misses a record, the driver still reads it.
    """
    last, _ = await read_last_commit(client, query, wait_for_open=False)
    return last.batch


async def begin_job_task(client: "Client", transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """The producer of one task attempt of a batch job: its transaction is an ordinary one, which may time out."""
    try:
        response = await _init(client, transactional_id, timeout_ms, two_phase=False)
    except KafkaError as error:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            detail = (
                f"option transactionTimeout is {timeout_ms} ms, above the broker's transaction.max.timeout.ms; "
                "lower the option"
            )
            raise KafkaError(error.code, detail) from None
        raise
    return ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch)


# The driver


async def end_batch(
    client: "Client",
    query: str,
    batch: int,
    written: Collection[PreparedTransaction],
    *,
    content: BatchContent = UNKNOWN_CONTENT,
    failed: bool = False,
) -> CommitPlan:
    """Commit the transactions of a batch's tasks, or abort them; and end those that earlier attempts left open."""
    done = _completed.setdefault(client, {})
    driver = client.producer(transactional_id=driver_transactional_id(query), transaction_timeout_ms=DRIVER_TIMEOUT_MS)
    try:
        await driver.start()
        last, partition = await read_last_commit(client, query)
        known = [*written, *(() if done.pop(query, None) == last else last.prepared)]
        fenced = await _fence_all(client, query, {one.transactional_id for one in known})
        ongoing = {name: one.ongoing for name, one in fenced.items() if one.ongoing is not None}
        plan = plan_commit(last, batch, written, ongoing, content=content, failed=failed)
        if plan.record != last or plan.commit or plan.abort:
            await append_commit(driver, query, plan.record, partition)
    except ProducerFenced as error:
        raise CommitRefused(
            f"another driver runs query {query} with the same checkpoint; stop one of the two ({error.detail})"
        ) from None
    prepared = {one.transactional_id: one for one in plan.record.prepared}
    await _all(
        [_commit(client, fenced[name], prepared[name]) for name in plan.commit]
        + [_end(client, PreparedTransaction(*fenced[name].producer), False) for name in plan.abort]
    )
    done[query] = plan.record
    return plan


async def end_job(client: "Client", job: str, written: Collection[PreparedTransaction], *, committed: bool) -> None:
    """Commit the transactions of a batch job's tasks, all or none, or abort them; abort those of killed attempts."""
    if committed:
        states = await _all([TransactionAdmin(client).describe(one.transactional_id) for one in written])
        ongoing = {
            (state.transactional_id, state.producer_id, state.producer_epoch)
            for state in states
            if state.state == "Ongoing"
        }
        timed_out = [one for one in written if one not in ongoing]
        if timed_out:
            await end_job(client, job, written, committed=False)
            raise CommitRefused(
                f"the transaction {timed_out[0].transactional_id} has timed out: the job took longer than option "
                "transactionTimeout. Nothing of it is visible; raise the option, or use delivery=at_least_once"
            )
    await _all([_end(client, one, committed) for one in written])
    left = await retry(client, lambda: _open_transactions(client, job), POLICY)
    await _all([_init(client, name, DRIVER_TIMEOUT_MS, two_phase=False) for name in left])


async def _end(client: "Client", one: PreparedTransaction, committed: bool) -> None:
    try:
        await end_prepared(client, one, committed=committed)
    except ProducerFenced:
        if committed:
            raise  # an aborted transaction may be ended by others too


async def _fence_all(client: "Client", query: str, known: Collection[str]) -> dict[str, Fenced]:
    """Fence all open transactions of a query, and the known ids; an id whose transaction has ended has none open."""
    names = await retry(client, lambda: _open_transactions(client, query), POLICY)
    found = await _all([fence(client, name) for name in {*names, *known}])
    return {one.producer.transactional_id: one for one in found}


async def _open_transactions(client: "Client", query: str) -> list[str]:
    """The transactional ids of a query's tasks with an open transaction; older brokers ignore the pattern.

    Coordinators that are moving from one broker to another are left out of the response.
    """
    id_prefix = prefix(query)
    request = list_transactions.request.ListTransactionsRequest(
        state_filters=("Ongoing",),
        producer_id_filters=(),
        duration_filter=-1,
        transactional_id_pattern=re.escape(id_prefix) + ".*",
    )
    names: list[str] = []
    for node in (await client.metadata(())).brokers:
        response = await client.request("list_transactions", request, node=node)
        raise_for_code(response.error_code, "transactions")
        names += [one.transactional_id for one in response.transaction_states]
    return [name for name in names if name.startswith(id_prefix)]


async def _commit(client: "Client", fenced: Fenced, prepared: PreparedTransaction) -> None:
    """Commit a transaction of the last commit record. Another driver may fence it, but can only commit it too."""
    for _ in range(COMMIT_ATTEMPTS_MAX):
        if fenced.ongoing != prepared:
            return  # it was committed: no driver aborts it
        try:
            await end_prepared(client, PreparedTransaction(*fenced.producer), committed=True)
        except ProducerFenced:
            fenced = await fence(client, prepared.transactional_id)
        else:
            return
    raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{prepared.transactional_id} was fenced {COMMIT_ATTEMPTS_MAX} times")


async def _all(work: Collection[Any]) -> list[Any]:
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

"""Transactions of the sink: tasks begin them, the driver ends them by the commit protocol.

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
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from weakref import WeakKeyDictionary

from levada.client.admin.transactions import TransactionAdmin, TransactionState
from levada.client.coordinator import Coordinator, KeyType
from levada.client.data import ProducerIdentity
from levada.client.errors import FAILURES, ProducerFenced, raise_for_code
from levada.client.producer.transactions import (
    PreparedTransaction,
    end_prepared,
    init_transactions,
    require_feature,
)
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy, retry
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.spark.errors import BatchLost, CommitRefused
from levada.spark.write.commit_log import append_commit, read_commits, read_last_commit
from levada.spark.write.commit_protocol import (
    UNKNOWN_CONTENT,
    UNKNOWN_RUN,
    BatchContent,
    CommitPlan,
    CommitRecord,
    QueryRun,
    plan_commit,
)
from levada.spark.write.outcomes import ABORTED, COMMITTED, OPEN, batch_lost, read_outcome
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.add_partitions_to_txn.v5 as add_partitions_to_txn
    import kio.schema.list_transactions.v2 as list_transactions

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.producer.transactions import TransactionalProducer

log = EventLog(__name__)

IDS_PER_PARTITION_MAX = 32
DRIVER_TIMEOUT_MS = 10_000  # how long the open transaction of a killed driver blocks readers of the commit log
RENEWALS_PER_TIMEOUT = 3
APP_PREFIX = "app."
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
# By query, when its transactions are to be renewed next, in seconds of the loop's clock. Spark runs many tasks in one
# process, and each of them may be shorter than the time between two renewals.
_renewals_due: "WeakKeyDictionary[Client, dict[str, float]]" = WeakKeyDictionary()
_renewing: "dict[tuple[Client, str], asyncio.Task[None]]" = {}


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
    return APP_PREFIX + quote(app, safe="").replace("-", "%2D")


async def fence(client: "Client", transactional_id: str, timeout_ms: int | None = None) -> Fenced:
    """Take over a transactional id and keep its open transaction.

    Without a timeout the transaction becomes one of two-phase commit, and stays one.
    """
    try:
        response = await _init(client, transactional_id, timeout_ms, keep_prepared=True)
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


async def _init(client: "Client", transactional_id: str, timeout_ms: int | None, *, keep_prepared: bool) -> Any:
    """InitProducerId; without a timeout for two-phase commit."""
    coordinator = Coordinator(client, KeyType.TRANSACTION, transactional_id, timeout_ms=TIMEOUT_MS)
    try:
        response = await init_transactions(
            coordinator,
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
    await require_feature(coordinator)
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
    response = await _init(client, transactional_id, timeout_ms, keep_prepared=False)
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
    names = await _open_transactions(client, query, older_than_ms)
    states = await _all([TransactionAdmin(client).describe(name) for name in names])
    await _all([_add_partitions(client, one) for one in states if one.state == "Ongoing" and not one.is_two_phase])


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
    coordinator = Coordinator(client, KeyType.TRANSACTION, state.transactional_id)
    wanted = request.AddPartitionsToTxnRequest(transactions=(one,))
    await coordinator.request("add_partitions_to_txn", wanted, lambda response: None, version_min=5)


# The driver


async def end_batch(
    client: "Client",
    query: str,
    batch: int,
    written: Collection[PreparedTransaction],
    *,
    content: BatchContent = UNKNOWN_CONTENT,
    run: QueryRun = UNKNOWN_RUN,
    failed: bool = False,
) -> CommitPlan:
    """Commit the transactions of a batch's tasks, or abort them; and end those that earlier attempts left open.

    BatchLost if the batch is in the commit log already and one of its transactions was not committed.
    """
    done = _completed.setdefault(client, {})
    driver = client.producer(transactional_id=driver_transactional_id(query), transaction_timeout_ms=DRIVER_TIMEOUT_MS)
    try:
        await driver.start()
        last, partition = await read_last_commit(client, query)
        unended = () if done.pop(query, None) == last else last.prepared
        ends = dict(zip(unended, await _all([read_outcome(client, one) for one in unended]), strict=True))
        # An id whose transaction has ended is not fenced: that would replace the state which tells how it ended.
        known = [*written, *(one for one, end in ends.items() if end == OPEN)]
        # What will be committed must not time out; what fails keeps its timeout, should this driver die.
        timeout_ms = DRIVER_TIMEOUT_MS if failed else None
        fenced = await _fence_all(client, query, {one.transactional_id for one in known}, timeout_ms)
        ongoing = {name: one.ongoing for name, one in fenced.items() if one.ongoing is not None}
        plan = plan_commit(last, batch, written, ongoing, content=content, run=run, failed=failed)
        if plan.record != last or plan.commit or plan.abort:
            await _append(client, driver, query, last, partition, plan, fenced)
    except ProducerFenced as error:
        raise CommitRefused(
            f"another driver runs query {query} with the same checkpoint; stop one of the two ({error.detail})"
        ) from None
    prepared = {one.transactional_id: one for one in plan.record.prepared}
    await _all(
        [
            _commit(client, fenced[name], prepared[name], batch_lost(query, batch, {name: ABORTED}))
            for name in plan.commit
        ]
        + [_end(client, PreparedTransaction(*fenced[name].producer), False) for name in plan.abort]
    )
    lost = {one.transactional_id: end for one, end in ends.items() if end not in (OPEN, COMMITTED)}
    if last.batch == batch and lost and not failed:
        raise batch_lost(query, batch, lost)
    if plan.record != last or not lost:
        done[query] = plan.record
    return plan


async def _append(
    client: "Client",
    driver: "TransactionalProducer",
    query: str,
    last: CommitRecord,
    partition: int,
    plan: CommitPlan,
    fenced: dict[str, Fenced],
) -> None:
    """Append the commit record; if that fails for certain, abort what was fenced for it and has no timeout any more.

    It is certain if the driver's transaction was aborted: then no other driver had taken over, so that none has fenced
    these transactions in order to commit them.
    """
    try:
        await append_commit(driver, query, plan.record, partition)
    except FAILURES as error:
        names = {*plan.abort, *(name for name in plan.commit if fenced[name].ongoing not in last.prepared)}
        if driver.can_begin:
            try:
                await _all([_end(client, PreparedTransaction(*fenced[name].producer), False) for name in names])
            except FAILURES as failure:
                error.add_note(f"The transactions of the batch could not be aborted: {failure}")
        raise


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
    await _all([_init(client, name, DRIVER_TIMEOUT_MS, keep_prepared=False) for name in left])


async def _end(client: "Client", one: PreparedTransaction, committed: bool) -> None:
    try:
        await end_prepared(client, one, committed=committed)
    except ProducerFenced:
        if committed:
            raise  # an aborted transaction may be ended by others too


async def _fence_all(client: "Client", query: str, known: Collection[str], timeout_ms: int | None) -> dict[str, Fenced]:
    """Fence all open transactions of a query, and the known ids; an id whose transaction has ended has none open."""
    names = await retry(client, lambda: _open_transactions(client, query), POLICY)
    found = await _all([fence(client, name, timeout_ms) for name in {*names, *known}])
    return {one.producer.transactional_id: one for one in found}


async def _open_transactions(client: "Client", query: str, older_than_ms: int = -1) -> list[str]:
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


async def _commit(client: "Client", fenced: Fenced, prepared: PreparedTransaction, lost: BatchLost) -> None:
    """Commit a transaction of the last commit record; `lost` is raised if it was aborted.

    Another driver may fence it, but can only commit it too.
    """
    for _ in range(COMMIT_ATTEMPTS_MAX):
        if fenced.ongoing != prepared:
            return  # another driver has committed it since it was found open
        try:
            await end_prepared(client, PreparedTransaction(*fenced.producer), committed=True)
        except ProducerFenced:
            end = await read_outcome(client, prepared)
            if end == ABORTED:
                raise lost from None
            if end != OPEN:
                return  # another driver has committed it, and its tasks may have used the id again
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

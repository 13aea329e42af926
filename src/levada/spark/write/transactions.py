"""Transactions of a streaming query: tasks begin them, the driver ends them by the commit protocol.

A task's transactional id is made of the query, the sink partition and a *slot*. A task never ends a transaction that
it finds open: that may be the one which the driver is about to commit, while this task is one that everybody believes
dead. It takes the next slot; what is left in others the driver aborts with the next batch. So slots are few: 0 as a
rule, one more for each attempt at the present batch that was killed.
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
from levada.spark.write.commit_log import read_decision, write_decision
from levada.spark.write.commit_protocol import UNKNOWN, CommitRefused, Content, Decision, Verdict, judge
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.list_transactions.v2 as list_transactions

if TYPE_CHECKING:
    from levada.client.client import Client

SLOTS_MAX = 32
LOCK_TIMEOUT_MS = 10_000  # a driver that dies as it decides holds up others for so long
TIMEOUT_MS = 120_000
POLICY = RetryPolicy(COORDINATOR_RETRIABLE, TIMEOUT_MS)
AT_ONCE_MAX = 32  # requests of a driver on the way
TRIES_MAX = 20

NEEDS_TWO_PHASE = (
    'delivery "exactly_once" needs two-phase commit (KIP-939) of the broker: Levada with '
    "transaction.two.phase.commit.enable=true. With option delivery=at_least_once any Kafka will do"
)


NO_TWO_PHASE = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)


# By query, a decision of which nothing is open any more: so a batch need not look for what the one before has ended.
_carried_out: "WeakKeyDictionary[Client, dict[str, Decision]]" = WeakKeyDictionary()


class Held(NamedTuple):
    """A transactional id in our hands, and the transaction that is open in it."""

    client: ProducerIdentity
    ongoing: PreparedTransaction | None


def prefix(query: str) -> str:
    """How the transactional ids of a query's tasks begin."""
    return f"spark-{query}-"


def lock_id(query: str) -> str:
    """The transactional id that a driver must have to decide; not one of the tasks'."""
    return f"spark-{query}"


def task_id(query: str, partition: int, slot: int) -> str:
    """One of the transactional ids of a sink partition; in a batch job, that of one attempt."""
    return f"{prefix(query)}{partition}-{slot}"


def query_of(app: str) -> str:
    """The name under which the output of an application is decided: no other's ids begin with its ids' prefix."""
    return "app." + quote(app, safe="").replace("-", "%2D")


async def hold(client: "Client", transactional_id: str) -> Held:
    """Take over a transactional id without ending what is open in it; its transactions never time out."""
    try:
        reply = await _init(client, transactional_id, LOCK_TIMEOUT_MS, two_phase=True)
    except KafkaError as error:
        if error.code in NO_TWO_PHASE:
            raise KafkaError(error.code, NEEDS_TWO_PHASE) from None
        raise
    ongoing = None
    if reply.ongoing_txn_producer_id >= 0:
        ongoing = PreparedTransaction(
            transactional_id, reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch
        )
    return Held(ProducerIdentity(transactional_id, reply.producer_id, reply.producer_epoch), ongoing)


async def _init(client: "Client", transactional_id: str, timeout_ms: int, *, two_phase: bool) -> Any:
    """InitProducerId."""
    coordinator = Coordinator(client, KeyType.TRANSACTION, transactional_id, timeout_ms=TIMEOUT_MS)
    response = await init_transactions(
        coordinator, transactional_id, timeout_ms, two_phase=two_phase, keep_prepared=two_phase
    )
    await require_feature(coordinator)
    return response


# A task's part.


async def begin(client: "Client", query: str, partition: int) -> ProducerIdentity:
    """Who writes the rows of a sink partition: the first of its transactional ids that has nothing open."""
    for slot in range(SLOTS_MAX):
        held = await hold(client, task_id(query, partition, slot))
        if held.ongoing is None:
            return held.client
    raise KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"{SLOTS_MAX} attempts at this batch were killed and left a transaction open. Find out why, then end them: "
        f"levada txn abort {task_id(query, partition, 0)} (and the others that `levada txn list --open` shows)",
    )


async def last_batch(client: "Client", query: str) -> int:
    """The last batch that is committed, or will be by whoever comes next; -1 if there is none.

    A task asks so that it need not write; should it overlook a decision, the driver does not.
    """
    last, _ = await read_decision(client, query, patiently=False)
    return last.batch


async def begin_job(client: "Client", transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """Who writes for one attempt at a task of a batch job: an ordinary transaction, which ends if nobody ends it."""
    try:
        reply = await _init(client, transactional_id, timeout_ms, two_phase=False)
    except KafkaError as error:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            detail = (
                f"option transactionTimeout is {timeout_ms} ms, above the broker's transaction.max.timeout.ms"
            )
            raise KafkaError(error.code, detail) from None
        raise
    return ProducerIdentity(transactional_id, reply.producer_id, reply.producer_epoch)


# The driver's part.


async def settle(
    client: "Client",
    query: str,
    batch: int,
    written: Collection[PreparedTransaction],
    *,
    content: Content = UNKNOWN,
    failed: bool = False,
) -> Verdict:
    """Commit what the tasks of a batch have written, or abort it; and end what earlier attempts left open."""
    done = _carried_out.setdefault(client, {})
    lock = client.producer(transactional_id=lock_id(query), transaction_timeout_ms=LOCK_TIMEOUT_MS)
    try:
        await lock.start()
        last, place = await read_decision(client, query)
        known = [*written, *(() if done.pop(query, None) == last else last.prepared)]
        held = await _hold_all(client, query, {one.transactional_id for one in known})
        ongoing = {name: one.ongoing for name, one in held.items() if one.ongoing is not None}
        verdict = judge(last, batch, written, ongoing, content=content, failed=failed)
        if verdict.decision != last or verdict.commit or verdict.abort:
            await write_decision(lock, query, verdict.decision, place)
    except ProducerFenced as error:
        raise CommitRefused(
            f"another driver runs query {query}: two have started from the same checkpoint ({error.detail})"
        ) from None
    prepared = {one.transactional_id: one for one in verdict.decision.prepared}
    await _all(
        [_commit(client, held[name], prepared[name]) for name in verdict.commit]
        + [_end(client, PreparedTransaction(*held[name].client), False) for name in verdict.abort]
    )
    done[query] = verdict.decision
    return verdict


async def end_job(
    client: "Client", job: str, written: Collection[PreparedTransaction], *, committed: bool
) -> None:
    """Commit what the tasks of a batch job have written, all or nothing; or abort it. Killed attempts are aborted."""
    if committed:
        states = await _all([TransactionAdmin(client).describe(one.transactional_id) for one in written])
        open_now = {
            (state.transactional_id, state.producer_id, state.producer_epoch)
            for state in states
            if state.state == "Ongoing"
        }
        over = [one for one in written if one not in open_now]
        if over:
            await end_job(client, job, written, committed=False)
            raise CommitRefused(
                f"the transaction {over[0].transactional_id} is over: the job took longer than option "
                "transactionTimeout. Nothing of it is visible; raise that, or use delivery=at_least_once"
            )
    await _all([_end(client, one, committed) for one in written])
    left = await retry(client, lambda: _open(client, job), POLICY)
    await _all([_init(client, name, LOCK_TIMEOUT_MS, two_phase=False) for name in left])


async def _end(client: "Client", one: PreparedTransaction, committed: bool) -> None:
    try:
        await end_prepared(client, one, committed=committed)
    except ProducerFenced:
        if committed:
            raise  # an abort was all that was left to do


async def _hold_all(client: "Client", query: str, known: Collection[str]) -> dict[str, Held]:
    """Hold what is open, and these: one that has ended, or that its coordinator has forgotten, has nothing open."""
    names = await retry(client, lambda: _open(client, query), POLICY)
    found = await _all([hold(client, name) for name in {*names, *known}])
    return {one.client.transactional_id: one for one in found}


async def _open(client: "Client", query: str) -> list[str]:
    """The transactional ids of a query's tasks in which a transaction is open; older brokers ignore patterns.

    Coordinators that are on their way from one broker to another are not heard.
    """
    begins = prefix(query)
    request = list_transactions.request.ListTransactionsRequest(
        state_filters=("Ongoing",),
        producer_id_filters=(),
        duration_filter=-1,
        transactional_id_pattern=re.escape(begins) + ".*",
    )
    names: list[str] = []
    for node in (await client.metadata(())).brokers:
        response = await client.request("list_transactions", request, node=node)
        raise_for_code(response.error_code, "transactions")
        names += [one.transactional_id for one in response.transaction_states]
    return [name for name in names if name.startswith(begins)]


async def _commit(client: "Client", held: Held, decided: PreparedTransaction) -> None:
    """Commit what was decided on, until it is; whoever takes it from us can do nothing else with it either."""
    for _ in range(TRIES_MAX):
        if held.ongoing != decided:
            return  # it is committed: nobody aborts it
        try:
            await end_prepared(client, PreparedTransaction(*held.client), committed=True)
        except ProducerFenced:
            held = await hold(client, decided.transactional_id)
        else:
            return
    raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{decided.transactional_id} is taken over again and again")


async def _all(work: Collection[Any]) -> list[Any]:
    """All of it, a few at a time; the first failure is raised when all have ended."""
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(task: Any) -> Any:
        async with slots:
            return await task

    results = await asyncio.gather(*(one(task) for task in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

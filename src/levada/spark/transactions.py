"""The transactions of a streaming query: begun by tasks, ended by the driver, as `levada.spark.judging` tells (R62).

A task's transactional id is made of the query, the sink partition and a *slot*. A task never ends a transaction that
it finds open: that may be the one which the driver is about to commit, while this task is one that everybody believes
dead. It takes the next slot; what is left in others the driver aborts with the next batch. So slots are few: 0 as a
rule, one more for each attempt at the present batch that was killed.
"""

import asyncio
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.net.coordinator import Coordinator, KeyType, check, patiently
from levada.net.fencing import ProducerFenced
from levada.net.prepared import PreparedTransaction, end_prepared
from levada.net.producer import Writer
from levada.net.transactions import FEATURE, FEATURE_LEVEL, TWO_PHASE_FROM
from levada.spark.decisions import read_decision, write_decision
from levada.spark.judging import Verdict, judge
from levada.wire.lazy import kio_modules

with kio_modules():
    import kio.schema.init_producer_id.v6 as init_producer_id
    import kio.schema.list_transactions.v2 as list_transactions

if TYPE_CHECKING:
    from levada.net.client import Client

SLOTS_MAX = 32
LOCK_TIMEOUT_MS = 30_000
PATIENCE_MS = 120_000
AT_ONCE_MAX = 32  # requests of a driver on the way
TRIES_MAX = 20

NEEDS_TWO_PHASE = (
    'delivery "exactly_once" needs two-phase commit (KIP-939) of the broker: Levada with '
    "transaction.two.phase.commit.enable=true. With option delivery=at_least_once any Kafka will do"
)


class CommitRefused(RuntimeError):  # noqa: N818
    """A batch cannot be committed; nothing of it is visible."""


class Held(NamedTuple):
    """A transactional id in our hands, and the transaction that is open in it."""

    client: Writer
    ongoing: PreparedTransaction | None


def prefix(query: str) -> str:
    """How the transactional ids of a query's tasks begin."""
    return f"spark-{query}-"


def lock_id(query: str) -> str:
    """The transactional id that a driver must have to decide; not one of the tasks'."""
    return f"spark-{query}"


def task_id(query: str, partition: int, slot: int) -> str:
    """One of the transactional ids of a sink partition."""
    return f"{prefix(query)}{partition}-{slot}"


async def hold(client: "Client", transactional_id: str) -> Held:
    """Take over a transactional id without ending what is open in it."""
    coordinator = Coordinator(client, KeyType.TRANSACTION, transactional_id, patience_ms=PATIENCE_MS)
    request = init_producer_id.request.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=timedelta(milliseconds=LOCK_TIMEOUT_MS),
        enable2_pc=True,
        keep_prepared_txn=True,
    )
    try:
        reply = await coordinator.request(
            "init_producer_id",
            request,
            lambda answer: check(answer.error_code, f"transactional id {transactional_id}"),
            version_min=TWO_PHASE_FROM,
        )
        level = (await coordinator.connection()).served.features.get(FEATURE, 0)
    except KafkaError as error:
        if error.code in (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.UNSUPPORTED_VERSION,
        ):
            raise KafkaError(error.code, NEEDS_TWO_PHASE) from None
        raise
    if level < FEATURE_LEVEL:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, NEEDS_TWO_PHASE)
    ongoing = None
    if reply.ongoing_txn_producer_id >= 0:
        ongoing = PreparedTransaction(
            transactional_id, reply.ongoing_txn_producer_id, reply.ongoing_txn_producer_epoch
        )
    return Held(Writer(transactional_id, reply.producer_id, reply.producer_epoch), ongoing)


# A task's part.


async def begin(client: "Client", query: str, partition: int) -> Writer:
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


async def is_committed(client: "Client", query: str, batch: int) -> bool:
    """Whether a batch that is to be written was committed before its driver died."""
    last, _ = await read_decision(client, query)
    return last.batch == batch


# The driver's part.


async def settle(
    client: "Client", query: str, batch: int, written: Iterable[PreparedTransaction], *, failed: bool = False
) -> Verdict:
    """Commit what the tasks of a batch have written, or abort it; and abort what earlier attempts left open."""
    lock = client.producer(transactional_id=lock_id(query), transaction_timeout_ms=LOCK_TIMEOUT_MS)
    try:
        await lock.start()
        last, place = await read_decision(client, query)
        held = await _hold_all(client, query)
        ongoing = {name: one.ongoing for name, one in held.items() if one.ongoing is not None}
        verdict = judge(last, batch, written, ongoing, failed=failed)
        if verdict.decision != last or verdict.commit or verdict.abort:
            await write_decision(lock, query, verdict.decision, place)
    except ProducerFenced as error:
        raise CommitRefused(
            f"another driver runs query {query}: two have started from the same checkpoint ({error.detail})"
        ) from None
    prepared = {one.transactional_id: one for one in verdict.decision.prepared}
    await _all(
        [_commit(client, held[name], prepared[name]) for name in verdict.commit]
        + [_abort(client, held[name]) for name in verdict.abort]
    )
    return verdict


async def _hold_all(client: "Client", query: str) -> dict[str, Held]:
    names = await patiently(client, lambda: _open(client, query), PATIENCE_MS)
    found = await _all([hold(client, name) for name in names])
    return {one.client.transactional_id: one for one in found}


async def _open(client: "Client", query: str) -> list[str]:
    """The transactional ids of a query's tasks in which a transaction is open."""
    request = list_transactions.request.ListTransactionsRequest(
        state_filters=("Ongoing",),
        producer_id_filters=(),
        duration_filter=-1,
        transactional_id_pattern=prefix(query) + ".*",
    )
    names: list[str] = []
    for node in (await client.metadata(())).brokers:
        response = await client.request("list_transactions", request, node=node, version_min=2)
        check(response.error_code, "transactions")
        names += [one.transactional_id for one in response.transaction_states]
    return names


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


async def _abort(client: "Client", held: Held) -> None:
    try:
        await end_prepared(client, PreparedTransaction(*held.client), committed=False)
    except ProducerFenced:
        pass  # somebody else has it in hand


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

"""The driver's side of the sink's transactions: ends those of a batch by the commit protocol."""

import sys
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from levada.client.admin.transactions import TransactionAdmin
from levada.client.errors import FAILURES, ProducerFenced
from levada.client.producer.transactions import PreparedTransaction, end_transaction
from levada.client.retry import retry
from levada.errors import ErrorCode, KafkaError
from levada.spark.errors import BatchLost, CommitRefused
from levada.spark.write import transactions
from levada.spark.write.commit_log import append_commit, read_last_commit
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

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.producer.transactions import TransactionalProducer

COMMIT_ATTEMPTS_MAX = 20
ANY_BATCH = sys.maxsize  # later than all that are committed


class _Driver(NamedTuple):
    """The producer of a query's driver transactional id, and the query's last commit record.

    The record stays the last one as long as no other driver takes the id over, which fences this producer.
    """

    producer: "TransactionalProducer"
    last: CommitRecord
    partition: int  # of the commit log


# By query; all transactions of their commit records have ended.
_drivers: "dict[Client, dict[str, _Driver]]" = {}


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
    drivers = transactions.kept_for(client, _drivers)
    kept = drivers.pop(query, None)
    commit = partial(_commit_batch, client, query, batch, written, content=content, run=run, failed=failed)
    made = None
    if kept is not None and kept.last.batch == batch - 1 and not failed:
        with suppress(KafkaError):  # another driver has taken over, or the id has expired
            made = await commit(kept, kept.last, aborts=False)
    if made is None or made.plan.conflict is not None:
        try:
            made = await commit(await _take_over(client, query), None if kept is None else kept.last, aborts=True)
        except ProducerFenced as error:
            raise CommitRefused(
                f"another driver runs query {query} with the same checkpoint; stop one of the two ({error.detail})"
            ) from None
    plan, fenced = made.plan, made.fenced
    prepared = {one.transactional_id: one for one in plan.record.prepared}
    await transactions.run_all(
        [
            _commit(client, fenced[name], prepared[name], batch_lost(query, batch, {name: ABORTED}))
            for name in plan.commit
        ]
        + [_end(client, PreparedTransaction(*fenced[name].producer), False) for name in plan.abort]
    )
    last = made.driver.last
    if last.batch == batch and made.lost and not failed:
        raise batch_lost(query, batch, made.lost)
    if plan.record != last or not made.lost:
        drivers[query] = made.driver._replace(last=plan.record)
    return plan


class _Made(NamedTuple):
    """A batch whose commit record is appended, if it needs one."""

    driver: _Driver
    plan: CommitPlan
    fenced: dict[str, transactions.Fenced]
    lost: dict[str, str]  # states by transactional id: of the last commit record, neither open nor committed


async def _take_over(client: "Client", query: str) -> _Driver:
    """Fence the query's former driver, and read its last commit record."""
    producer = client.producer(
        transactional_id=transactions.driver_transactional_id(query),
        transaction_timeout_ms=transactions.DRIVER_TIMEOUT_MS,
    )
    await producer.start()
    return _Driver(producer, *await read_last_commit(client, query))


async def _commit_batch(
    client: "Client",
    query: str,
    batch: int,
    written: Collection[PreparedTransaction],
    driver: _Driver,
    ended: CommitRecord | None,
    *,
    content: BatchContent,
    run: QueryRun,
    failed: bool,
    aborts: bool,
) -> _Made:
    """Fence the transactions of a batch and append its commit record; those of `ended` are known to have ended.

    With `aborts` no other attempt follows.
    """
    last = driver.last
    unended = () if last == ended else last.prepared
    ends = dict(zip(unended, await transactions.run_all([read_outcome(client, one) for one in unended]), strict=True))
    # An id whose transaction has ended is not fenced: that would replace the state which tells how it ended.
    known = [*written, *(one for one, end in ends.items() if end == OPEN)]
    # What will be committed must not time out; what fails keeps its timeout, should this driver die.
    timeout_ms = transactions.DRIVER_TIMEOUT_MS if failed else None
    fenced = await _fence_all(client, query, {one.transactional_id for one in known}, timeout_ms)
    ongoing = {name: one.ongoing for name, one in fenced.items() if one.ongoing is not None}
    plan = plan_commit(last, batch, written, ongoing, content=content, run=run, failed=failed)
    if plan.record != last or plan.commit or plan.abort:
        await _append(client, driver, query, plan, fenced, aborts=aborts)
    lost = {one.transactional_id: end for one, end in ends.items() if end not in (OPEN, COMMITTED)}
    return _Made(driver, plan, fenced, lost)


async def _append(
    client: "Client",
    driver: _Driver,
    query: str,
    plan: CommitPlan,
    fenced: dict[str, transactions.Fenced],
    *,
    aborts: bool,
) -> None:
    """Append the commit record; if that fails for certain, abort what was fenced for it and has no timeout any more.

    It is certain if the driver's transaction was aborted: then no other driver had taken over, so that none has fenced
    these transactions in order to commit them.
    """
    try:
        await append_commit(driver.producer, query, plan.record, driver.partition)
    except FAILURES as error:
        names = {*plan.abort, *(name for name in plan.commit if fenced[name].ongoing not in driver.last.prepared)}
        if aborts and driver.producer.can_begin:
            ends = [_end(client, PreparedTransaction(*fenced[name].producer), False) for name in names]
            try:
                await transactions.run_all(ends)
            except FAILURES as failure:
                error.add_note(f"The transactions of the batch could not be aborted: {failure}")
        raise


async def settle(client: "Client", query: str) -> None:
    """End what an earlier driver left, before the first batch of a new one: commit what is in the commit log."""
    if await transactions.open_transactions(client, query):
        await end_batch(client, query, ANY_BATCH, (), failed=True)


async def end_job(client: "Client", job: str, written: Collection[PreparedTransaction], *, committed: bool) -> None:
    """Commit the transactions of a batch job's tasks, all or none, or abort them; abort those of killed attempts."""
    if committed:
        states = await transactions.run_all(
            [TransactionAdmin(client).describe(one.transactional_id) for one in written]
        )
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
    await transactions.run_all([_end(client, one, committed) for one in written])
    left = await retry(client, lambda: transactions.open_transactions(client, job), transactions.POLICY)
    await transactions.run_all(
        [transactions.init_producer(client, name, transactions.DRIVER_TIMEOUT_MS, keep_prepared=False) for name in left]
    )


async def _end(client: "Client", one: PreparedTransaction, committed: bool) -> None:
    try:
        await end_transaction(transactions.coordinator(client, one.transactional_id), *one, committed=committed)
    except ProducerFenced:
        if committed:
            raise  # an aborted transaction may be ended by others too


async def _fence_all(
    client: "Client", query: str, known: Collection[str], timeout_ms: int | None
) -> dict[str, transactions.Fenced]:
    """Fence the known ids and all open transactions of a query; an id whose transaction has ended has none open."""
    listing = retry(client, lambda: transactions.open_transactions(client, query), transactions.POLICY)
    names, *found = await transactions.run_all(
        [listing, *(transactions.fence(client, name, timeout_ms) for name in known)]
    )
    found += await transactions.run_all(
        [transactions.fence(client, name, timeout_ms) for name in names if name not in known]
    )
    return {one.producer.transactional_id: one for one in found}


async def _commit(
    client: "Client", fenced: transactions.Fenced, prepared: PreparedTransaction, lost: BatchLost
) -> None:
    """Commit a transaction of the last commit record; `lost` is raised if it was aborted.

    Another driver may fence it, but can only commit it too.
    """
    for _ in range(COMMIT_ATTEMPTS_MAX):
        if fenced.ongoing != prepared:
            return  # another driver has committed it since it was found open
        try:
            await end_transaction(
                transactions.coordinator(client, prepared.transactional_id), *fenced.producer, committed=True
            )
        except ProducerFenced:
            end = await read_outcome(client, prepared)
            if end == ABORTED:
                raise lost from None
            if end != OPEN:
                return  # another driver has committed it, and its tasks may have used the id again
            fenced = await transactions.fence(client, prepared.transactional_id)
        else:
            return
    raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{prepared.transactional_id} was fenced {COMMIT_ATTEMPTS_MAX} times")

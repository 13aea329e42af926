"""A model of a streaming query with the sink: drivers, tasks and the transaction coordinator, one request at a time.

Every request is a step, so anything may happen between any two: a driver or a task dies, or pauses and continues when
Spark has given it up. The coordinator is the broker's own state machine; `plan_commit` is the sink's own. While a
coordinator moves, requests for its transactional ids fail, and ListTransactions leaves them out. Transactions time out
between any two steps, unless a driver has fenced them: those the broker aborts when nobody has come back for long.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from levada.client.producer.transactions import PreparedTransaction
from levada.core.transactions.machine import (
    EndRequest,
    InitRequest,
    NeedsProducerIdError,
    TransactionLimits,
    TransactionMarkers,
    TransactionsMachine,
)
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.spark.write.commit_protocol import (
    NO_COMMIT,
    UNKNOWN_CONTENT,
    BatchContent,
    CommitPlan,
    CommitRecord,
    plan_commit,
)
from levada.spark.write.outcomes import COMMITTED, OPEN, UNKNOWN
from levada.spark.write.transactions import driver_transactional_id, task_transactional_id
from levada.wire.internal.transaction_records import Status

QUERY = "q"
ROWS = 4  # of each batch, as it is first planned
TIMEOUT_MS = 1_000
TWO_PHASE_TIMEOUT_MS = 1_000_000  # longer than any driver or task lives
IDS = 50
Steps = Iterator[None]
Txn = tuple[str, int, int]


class Dead(Exception):
    """An actor that was refused gives up."""


class Moving(KafkaError):
    """The coordinator of a transactional id is on its way to another broker."""


@dataclass
class Bugs:
    """What the design forbids, to see that it would be found."""

    tasks_abort: bool = False  # a task aborts what it finds open in its transactional id
    no_fence: bool = False  # a driver commits without fencing the transactions
    no_driver_fence: bool = False  # a commit record is appended by a fenced driver too
    abort_first: bool = False  # a driver aborts what is left over before it appends to the commit log
    listed_only: bool = False  # a driver fences what is listed as open, and not what it knows by name
    believes: bool = False  # a driver takes a commit for finished before it is
    keeps_timeouts: bool = False  # a driver commits transactions that may time out
    unread: bool = False  # a driver does not read how the transactions of a repeated batch have ended
    uncounted: bool = False  # a batch that was committed is skipped, however many rows it has now


class Kept(NamedTuple):
    """What a driver keeps of the batch before: a commit whose transactions have ended, and its own epoch, 0 if none."""

    ended: CommitRecord
    epoch: int


def _ends(plan: CommitPlan) -> list[tuple[str, bool]]:
    return [(name, True) for name in plan.commit] + [(name, False) for name in plan.abort]


@dataclass
class World:
    """The cluster and Spark's checkpoint."""

    first_epoch: int = 0
    bugs: Bugs = field(default_factory=Bugs)
    moves: Callable[[str], bool] = lambda _: False  # whether the coordinator of an id is on its way just now
    machine: TransactionsMachine = field(
        default_factory=lambda: TransactionsMachine(
            TransactionLimits(two_phase_commit=True, two_phase_timeout_ms=TWO_PHASE_TIMEOUT_MS)
        )
    )
    commit_log: list[CommitRecord] = field(default_factory=list)  # the compacted topic, all of it
    rows: dict[Txn, list[tuple[int, int]]] = field(default_factory=dict)
    visible: list[tuple[int, int]] = field(default_factory=list)
    permitted: dict[str, Txn] = field(default_factory=dict)  # the transactions that partitions know
    driver_epoch: int = 0
    commits: set[int] = field(default_factory=set)  # Spark's commit log
    plans: dict[int, int] = field(default_factory=dict)  # Spark's offset log: how many rows a batch has
    available: int = ROWS  # for the next batch that is planned
    refused: bool = False  # a driver's batch cannot be committed
    lost: set[int] = field(default_factory=set)  # committed batches that a driver refuses: perhaps they were aborted
    goes_on: bool = False  # after such a batch: repeatedBatch=skip
    next_id: int = 1
    now_ms: int = 0

    # The coordinator.

    def _reach(self, name: str) -> None:
        if self.moves(name):
            raise Moving(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _submit(self, decide: Callable[[int], Any]) -> Any:
        try:
            outcome = decide(-1)
        except NeedsProducerIdError:
            self.next_id += 1
            outcome = decide(self.next_id)
        for event in outcome.events:
            self.machine.apply(event)
        for ending in outcome.effects:
            self._mark(ending)
        reply = outcome.responses[0][1]
        if isinstance(reply, KafkaError):
            raise reply
        return reply

    def _mark(self, ending: TransactionMarkers) -> None:
        """Markers are written at once; the machine's own tests are about those that come late."""
        written = self.permitted.pop(ending.transactional_id, None)
        if written is not None and ending.committed:
            self.visible += self.rows[written]
        for event in self.machine.complete(ending, self.now_ms, None).events:
            self.machine.apply(event)

    def let_time_out(self, ms: int = TIMEOUT_MS) -> None:
        """Time passes, and no transaction is renewed."""
        self.now_ms += ms
        outcome = self.machine.expire(self.now_ms)
        for event in outcome.events:
            self.machine.apply(event)
        for ending in outcome.effects:
            self._mark(ending)

    def fence(self, name: str, *, two_phase: bool) -> tuple[ProducerIdAndEpoch, PreparedTransaction | None]:
        self._reach(name)
        known = self.machine.transactions.get(name)
        reply = self._submit(
            lambda new_id: self.machine.init(
                InitRequest(name, TIMEOUT_MS, two_phase=two_phase, keep_prepared=True, new_producer_id=new_id),
                self.now_ms,
                None,
            )
        )
        if known is None and self.first_epoch:
            (state,) = [self.machine.transactions[name]]
            self.machine.transactions[name] = state.with_producer(
                ProducerIdAndEpoch(state.producer_id, self.first_epoch), -1, state.timeout_ms, self.now_ms
            )
            return self.machine.transactions[name].client, None
        ongoing = reply.ongoing
        return reply.client, None if ongoing.producer_id < 0 else PreparedTransaction(name, *ongoing)

    def end(self, name: str, client: ProducerIdAndEpoch, committed: bool) -> None:
        self._reach(name)
        self._submit(lambda new_id: self.machine.end(EndRequest(name, client, committed, 2, new_id), self.now_ms, None))

    def produce(self, name: str, client: ProducerIdAndEpoch, row: tuple[int, int]) -> None:
        txn = (name, *client)
        if self.permitted.get(name) != txn:
            self._submit(lambda _: self.machine.add(name, client, [("t", 0)], 2, self.now_ms, None))
            self.permitted[name] = txn
        self.rows.setdefault(txn, []).append(row)

    def outcome(self, one: PreparedTransaction) -> str:
        """As `outcomes.read_outcome`; the model's markers are written at once."""
        self._reach(one.transactional_id)
        state = self.machine.transactions.get(one.transactional_id)
        if state is None or (state.status is Status.ONGOING and (state.producer_id, state.producer_epoch) != one[1:]):
            return UNKNOWN
        return state.status.title

    def open(self) -> list[str]:
        """The open transactions that brokers list; those of moving coordinators are left out."""
        return [
            name
            for name, state in self.machine.transactions.items()
            if state.status is Status.ONGOING and name != driver_transactional_id(QUERY) and not self.moves(name)
        ]

    def last(self) -> CommitRecord:
        return self.commit_log[-1] if self.commit_log else NO_COMMIT

    # Actors: generators that stop before each request.

    def task(
        self, batch: int, partition: int, width: int, returned: dict[int, PreparedTransaction | None], reads: bool
    ) -> Steps:
        """An attempt at a task, up to its message for the driver; it `reads` the commit log in a run's first batch."""
        rows = [(batch, row) for row in range(self.plans[batch]) if (batch + row % 2) % width == partition]
        yield
        if not rows or (reads and self.last().batch == batch):
            returned[partition] = None
            return
        for number in range(IDS):
            yield
            name = task_transactional_id(QUERY, partition, number)
            client, ongoing = self.fence(name, two_phase=False)
            if ongoing is not None and self.bugs.tasks_abort:
                yield
                self.end(name, client, committed=False)
                yield
                client, ongoing = self.fence(name, two_phase=False)
            if ongoing is None:
                break
        else:
            raise AssertionError("no transactional id is left")
        for row in rows:
            yield
            self.produce(name, client, row)
        yield
        returned[partition] = PreparedTransaction(name, *client)

    def end_batch(
        self, batch: int, written: list[PreparedTransaction], failed: bool, kept: Kept
    ) -> Generator[None, None, Kept]:
        """As `driver.end_batch`; `kept` is what this driver knows of the batch before."""
        made = None
        if kept.epoch and kept.ended.batch == batch - 1 and not failed:
            with suppress(Dead, KafkaError):
                made = yield from self._append(batch, written, failed, kept.ended, kept)
        if made is None or made[0].conflict:
            yield
            self.driver_epoch += 1
            kept = Kept(kept.ended, self.driver_epoch)
            yield
            last = self.last()
            made = yield from self._append(batch, written, failed, last, kept)
        else:
            last = kept.ended
        plan, fenced, has_lost = made
        yield from self._end(_ends(plan), fenced, plan.record)
        if plan.conflict:
            self.refused = True
            raise Dead
        if last.batch == batch and has_lost and not failed:
            self.lost.add(batch)
            if not self.goes_on:
                raise Dead
        return Kept(plan.record, kept.epoch) if plan.record != last or not has_lost else Kept(NO_COMMIT, 0)

    def _append(
        self, batch: int, written: list[PreparedTransaction], failed: bool, last: CommitRecord, kept: Kept
    ) -> Generator[None, None, tuple[CommitPlan, dict[str, Any], bool]]:
        fenced = {}
        outcomes: dict[PreparedTransaction, str] = {}
        for one in () if self.bugs.unread or self.bugs.listed_only or last == kept.ended else last.prepared:
            yield
            outcomes[one] = self.outcome(one)
        known: set[str] = set()
        if not self.bugs.listed_only:
            known |= {one.transactional_id for one in written}
            known |= {one.transactional_id for one, state in outcomes.items() if state == OPEN}
        for name in sorted(known):
            yield
            fenced[name] = self.fence(name, two_phase=not failed and not self.bugs.keeps_timeouts)
        yield
        for name in sorted(set(self.open()) - known):
            yield
            fenced[name] = self.fence(name, two_phase=not failed and not self.bugs.keeps_timeouts)
        ongoing = {name: one for name, (_, one) in fenced.items() if one is not None}
        seen = {one.transactional_id: one for one in written} if self.bugs.no_fence else ongoing
        content = UNKNOWN_CONTENT if self.bugs.uncounted else BatchContent(self.plans[batch])
        plan = plan_commit(last, batch, written, ongoing | seen, content=content, failed=failed)
        if self.bugs.abort_first:
            yield from self._end([one for one in _ends(plan) if not one[1]], fenced, plan.record)
        yield
        if kept.epoch != self.driver_epoch and not self.bugs.no_driver_fence:
            raise Dead
        self.commit_log.append(plan.record)
        return plan, fenced, not set(outcomes.values()) <= {OPEN, COMMITTED}

    def _end(self, ends: list[tuple[str, bool]], fenced: dict[str, Any], record: CommitRecord) -> Steps:
        committing = {one.transactional_id: one for one in record.prepared}
        for name, committed in ends:
            client, ongoing = fenced.get(name, (None, None))
            while ongoing is not None:
                yield
                try:
                    self.end(name, client, committed)
                    break
                except Moving:
                    raise
                except KafkaError:
                    if not committed:
                        break
                yield
                client, ongoing = self.fence(name, two_phase=True)
                if ongoing != committing[name]:
                    break

    def driver(
        self,
        width: int,
        batches: int,
        spawn: Callable[[Steps], None],
        again: Callable[[], bool],
        fails: Callable[[], bool],
    ) -> Steps:
        """Run batch after batch; a task that is refused is tried again, now and then one that was not as well.

        A batch that fails is aborted and ends the query.
        """
        kept, first = Kept(NO_COMMIT, 0), max(self.commits, default=-1) + 1
        while len(self.commits) < batches:
            batch = max(self.commits, default=-1) + 1
            self.plans.setdefault(batch, self.available)
            returned: dict[int, PreparedTransaction | None] = {}
            for partition in range(width):
                spawn(self.retried(batch, partition, width, returned, batch == first))
                if again():
                    spawn(self.retried(batch, partition, width, returned, batch == first))
            while len(returned) < width:
                yield
            written = [one for one in returned.values() if one is not None]
            if fails():
                with suppress(Moving):
                    yield from self.end_batch(batch, written, failed=True, kept=kept)
                raise Dead
            while True:
                try:
                    kept = yield from self.end_batch(batch, written, failed=False, kept=kept)
                    break
                except Moving:  # brokers are waited for
                    kept = Kept(self.last() if self.bugs.believes else NO_COMMIT, 0)
                    yield
            yield
            self.commits.add(batch)

    def restore_checkpoint(self) -> None:
        """The checkpoint loses its last batch while no driver runs; Spark plans the batch again, with more rows."""
        self.available += 1
        last = max(self.plans, default=-1)
        self.plans.pop(last, None)
        self.commits.discard(last)

    def retried(self, batch: int, partition: int, width: int, returned: dict[int, Any], reads: bool) -> Steps:
        """Attempts at a task until one has returned, as Spark makes them; the first that returns counts."""
        while partition not in returned:
            own: dict[int, PreparedTransaction | None] = {}
            try:
                yield from self.task(batch, partition, width, own, reads)
            except KafkaError:
                yield
            else:
                returned.setdefault(partition, own[partition])

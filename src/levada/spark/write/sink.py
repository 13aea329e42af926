"""DataFrames to topics: the writers behind `write.format("levada")` and `writeStream.format("levada")` (R60-R62).

A stream with exactly_once leaves the transactions of its tasks open and ends them from the driver, by the rules of
`levada.spark.write.commit_protocol`. So does a batch job that has a name and a version, as in foreachBatch. Any other
batch job cannot be repeated, so there is nothing to decide: its transactions are ordinary ones that end by themselves
if the driver dies.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from levada.client.data import ProducerIdentity
from levada.client.producer.sender import init_producer_id
from levada.client.producer.transactions import PreparedTransaction
from levada.client.retry import RetryPolicy
from levada.spark import blocking
from levada.spark.failures import spark_callback
from levada.spark.options import OptionError
from levada.spark.worker import QuickAck
from levada.spark.write import transactions
from levada.spark.write.checkpoints import location_of, plan_of
from levada.spark.write.commit_protocol import UNKNOWN, CommitRefused, Content, Verdict
from levada.spark.write.options import (
    EXACTLY_ONCE,
    SKIP,
    JobOptions,
    StreamOptions,
    WriteOptions,
    check_columns,
    job_options,
    stream_options,
)
from levada.spark.write.topics import look_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from levada.client.client import Client

T = TypeVar("T")
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"  # a stream runs its jobs in a group of its own, new at each start

_checked: set[tuple[str, ...]] = set()  # runs of queries whose last decision this process has looked at


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has done: the transaction that holds its rows, if it had rows and has transactions."""

    query: str
    batch: int
    rows: int  # also those that were not written again
    prepared: PreparedTransaction | None


def stream_writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> "StreamWriter":
    """The writer of a stream; output mode complete appends all rows in each micro-batch."""
    options = stream_options(given)
    return StreamWriter(options, check_columns(schema, options), location_of(given))


def batch_writer(
    given: Mapping[str, str], schema: "StructType", overwrite: bool
) -> "NamedJobWriter | JobWriter":
    """The writer of a batch job."""
    if overwrite:
        raise OptionError("a topic cannot be overwritten: use mode append, or delete the topic first")
    options = job_options(given)
    columns = check_columns(schema, options)
    if options.app:
        return NamedJobWriter(options, columns)
    return JobWriter(options, columns, uuid4().hex)


class _Writer(QuickAck):
    """What all have in common."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def check_cluster(self) -> None:
        """In the driver, before any task runs: whether brokers answer, and have the topic if one is named for all."""
        look_for(self._client(), self._options.topic, self._options.retry_policy)

    @property
    def _is_exactly_once(self) -> bool:
        return self._options.delivery == EXACTLY_ONCE

    def _client(self) -> "Client":
        return blocking.client(self._options.bootstrap, **self._options.client_options())

    def _ask(self, work: Callable[["Client"], Coroutine[Any, Any, T]]) -> T:
        """What a task asks of brokers; those that are away for a while are waited for."""
        return self._call(work, self._options.retry_policy)

    def _call(self, work: Callable[["Client"], Coroutine[Any, Any, T]], policy: RetryPolicy) -> T:
        client = self._client()
        blocking.connect(client, policy)
        return blocking.call(client, lambda: work(client), policy)

    def _write(
        self, batches: Iterable[Any], begin: Callable[["Client"], Coroutine[Any, Any, ProducerIdentity]]
    ) -> tuple[int, PreparedTransaction | None]:
        """Write rows as the producer that `begin` gives: how many they were, and the transaction that has them."""
        from levada.spark.write.task import RowWriter

        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return 0, None
        writer = self._ask(begin)
        client = self._client()
        rows = RowWriter(client, self._options, self._columns, writer)
        try:
            rows.write(chain([first], batches))
        except BaseException as failure:
            if rows.has_sent and writer.transactional_id:
                _abort_after(failure, client, PreparedTransaction(*writer))
            raise
        return rows.rows, PreparedTransaction(*writer) if writer.transactional_id else None

    def _write_plainly(self, batches: Iterable[Any]) -> Written:
        """At least once: without transactions."""
        rows, _ = self._write(batches, _plain_producer)
        return Written("", -1, rows, None)

    def _write_once(self, batches: Iterable[Any], query: str, batch: int) -> Written:
        """Exactly once: in a transaction that stays open."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        rows, prepared = self._write(batches, lambda client: transactions.begin(client, query, partition))
        return Written(query, batch, rows, prepared)

    def _settle(
        self,
        query: str,
        batch: int,
        messages: Sequence[WriterCommitMessage | None],
        content: Content = UNKNOWN,
        *,
        failed: bool,
    ) -> Verdict:
        """The driver's part; whoever does it again does what is left of it."""
        written, policy = _prepared(messages), self._options.retry_policy
        return self._call(
            lambda client: transactions.settle(client, query, batch, written, content=content, failed=failed),
            # The tasks of a batch that succeeded have reached the brokers; those of a failed one may not have.
            policy if failed else policy._replace(bootstrap_timeout_ms=None),
        )


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: StreamOptions, columns: tuple[str, ...], checkpoint: str) -> None:
        super().__init__(options, columns)
        self._checkpoint, self._counts = checkpoint, options.repeated_batch != SKIP

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> Written:
        if not self._is_exactly_once:
            return self._write_plainly(iterator)
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        if context is None or query is None:
            raise RuntimeError("delivery exactly_once is for micro-batches of a query")
        batch = int(context.getLocalProperty(BATCH_ID) or -1)
        if self._is_repeated(query, batch, context.getLocalProperty(RUN_ID)):
            return _skip(iterator, query, batch)
        return self._write_once(iterator, query, batch)

    def _is_repeated(self, query: str, batch: int, run: str | None) -> bool:
        """Whether the batch was committed before a driver died; in later batches of a run nobody has to ask."""
        key = (self._options.bootstrap, query, run or str(batch))
        if key in _checked:
            return False
        if self._ask(lambda client: transactions.last_batch(client, query)) == batch:
            return True
        _checked.add(key)
        return False

    @spark_callback()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._end(messages, batchId, failed=False)

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._end(messages, batchId, failed=True)

    def _end(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, failed: bool) -> None:
        query = next((one.query for one in messages if isinstance(one, Written)), "")
        if not query:
            return  # at least once; or every task failed, and took back its own
        rows = sum(one.rows for one in messages if isinstance(one, Written))
        content = Content(rows if self._counts else None, plan_of(self._checkpoint, batch))
        verdict = self._settle(query, batch, messages, content, failed=failed)
        if verdict.refusal is not None and not failed:
            raise CommitRefused(f"batch {batch} of query {query}: {verdict.refusal}")


class NamedJobWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch job that has a name and a version: once, however often it is done."""

    def __init__(self, options: JobOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        assert options.version is not None
        self._query, self._version = transactions.query_of(options.app), options.version
        self._name = f"{options.app} version {options.version}"

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> Written:
        if self._ask(lambda client: transactions.last_batch(client, self._query)) >= self._version:
            return _skip(iterator, self._query, self._version)
        return self._write_once(iterator, self._query, self._version)

    @spark_callback()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        verdict = self._settle(self._query, self._version, messages, failed=False)
        if verdict.refusal is not None and verdict.decision.batch < self._version:
            raise CommitRefused(f"{self._name}: {verdict.refusal}")

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._settle(self._query, self._version, messages, failed=True)


class JobWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch job that nobody can do again."""

    def __init__(self, options: JobOptions, columns: tuple[str, ...], job: str) -> None:
        super().__init__(options, columns)
        self._job, self._timeout_ms = job, options.transaction_timeout_ms

    def check_cluster(self) -> None:
        look_for(self._client(), self._options.topic, self._options.probe_policy)

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> Written:
        if not self._is_exactly_once:
            return self._write_plainly(iterator)
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = transactions.task_id(self._job, partition, attempt)
        rows, prepared = self._write(
            iterator, lambda client: transactions.begin_job(client, name, self._timeout_ms)
        )
        return Written(self._job, -1, rows, prepared)

    @spark_callback()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, committed=True)

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, committed=False)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, committed: bool) -> None:
        if not self._is_exactly_once:
            return
        client = self._client()
        if not committed:  # what is left open ends by itself: no wait for brokers that were never there
            blocking.connect(client, self._options.probe_policy)
        blocking.run(transactions.end_job(client, self._job, _prepared(messages), committed=committed))


def _prepared(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    return [one.prepared for one in messages if isinstance(one, Written) and one.prepared is not None]


def _skip(batches: Iterable[Any], query: str, batch: int) -> Written:
    """Rows that are in the topics already; whatever is computed on their way is computed, for it may keep state."""
    return Written(query, batch, sum(one.num_rows for one in batches), None)


async def _plain_producer(client: "Client") -> ProducerIdentity:
    """An idempotent producer without transactions."""
    return ProducerIdentity("", *await init_producer_id(client))


def _abort_after(failure: BaseException, client: "Client", prepared: PreparedTransaction) -> None:
    """A task that fails takes back what it wrote; one that cannot leaves it to the driver's next batch."""
    try:
        blocking.run(client.abort_prepared(prepared))
    except Exception as error:  # noqa: BLE001 (what failed first is what must be seen)
        failure.add_note(f"Its transaction {prepared.transactional_id} could not be aborted: {error}")

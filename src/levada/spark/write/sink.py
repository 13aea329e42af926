"""The writer behind `writeStream.format("levada")`, and what it shares with those of batch jobs.

A stream with exactly_once leaves the transactions of its tasks open, and the driver ends them by the commit protocol
(`levada.spark.write.commit_protocol`).
"""

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from levada.client.data import ProducerIdentity
from levada.client.producer.sender import init_producer_id
from levada.client.producer.transactions import PreparedTransaction
from levada.client.retry import RetryPolicy
from levada.spark import blocking
from levada.spark.errors import EXPLAINED, BatchLost, CommitRefused, spark_callback, warn
from levada.spark.worker import QuickAck, is_input_closed, retain_freed_memory
from levada.spark.write import driver, transactions
from levada.spark.write.checkpoint import checkpoint_location, has_authority, offsets_digest, query_id, spark_option
from levada.spark.write.commit_protocol import UNKNOWN_CONTENT, UNKNOWN_RUN, BatchContent, CommitPlan, QueryRun
from levada.spark.write.options import EXACTLY_ONCE, SKIP, StreamOptions, WriteOptions, check_columns, stream_options
from levada.spark.write.topics import check_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from levada.client.client import Client

T = TypeVar("T")
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"  # of a stream: its run id, new at each start
CONTINUOUS_UNSUPPORTED = (
    "Spark does not pass rows to a Python sink in continuous processing, so nothing is written. Stop the query and "
    "start it with another trigger than continuous, and with a new checkpoint"
)
BATCH_LOST = (
    "To write them again, start with a new checkpoint from the offsets at which this batch begins; to go on without "
    "them, start the query once with option repeatedBatch=skip"
)
# Spark gathers so much (spark.buffer.size) of a task and its first rows before it sends anything to the Python worker.
# A task that is larger begins before its first row is computed, and renews the transactions of its query meanwhile.
TASK_BUFFER_BYTES = 64 << 10

_checked: set[tuple[str, ...]] = set()  # runs of queries whose last commit this process has read
_settled: set[tuple[str, str]] = set()  # servers and checkpoints of queries whose earlier drivers left nothing open


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The commit message of a task: the transaction with its rows, if it has rows and uses transactions."""

    query: str
    batch: int
    rows: int  # also those that were skipped
    prepared: PreparedTransaction | None
    run: str = ""  # of the query
    digest: int | None = None  # of all rows, of a job with a name whose columns are plain


def stream_writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> "StreamWriter":
    """The writer of a stream; output mode complete appends all rows in each micro-batch."""
    options = stream_options(given)
    columns = check_columns(schema, options)
    return StreamWriter(options, columns, checkpoint_location(given), spark_option(given, "queryName"), schema)


class Writer(QuickAck):
    """What the writers of streams and batch jobs share."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles a writer for its tasks when it plans them; with transactions one that is sent at once."""
        if not self._is_exactly_once:
            return self.__dict__
        _check_buffer_size()
        return self.__dict__ | {"_padding": bytes(TASK_BUFFER_BYTES)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "_padding"})

    def check_cluster(self) -> None:
        """On the driver, before any task runs: raise if no broker responds; find or create the topic of all rows."""
        self._check_cluster(self._options.retry_policy)

    def _check_cluster(self, policy: RetryPolicy) -> None:
        check_topic(self._client(), self._options.topic, policy, create=self._options.creates_topics)

    def register_schemas(self, schema: "StructType") -> None:
        """On the driver, before any task runs: register the schemas of typed columns."""
        if self._options.formats:
            from levada.spark.registry.writing import register_schemas

            register_schemas(self._options, schema)

    @property
    def _is_exactly_once(self) -> bool:
        return self._options.delivery == EXACTLY_ONCE

    def _client(self) -> "Client":
        return blocking.client(self._options.bootstrap, **self._options.client_options())

    def _request(self, work: Callable[["Client"], Coroutine[Any, Any, T]]) -> T:
        """Requests of a task, retried while brokers are unavailable."""
        return self._call(work, self._options.retry_policy)

    def _call(self, work: Callable[["Client"], Coroutine[Any, Any, T]], policy: RetryPolicy) -> T:
        client = self._client()
        blocking.connect(client, policy)
        return blocking.call(client, lambda: work(client), policy)

    def _write(
        self, batches: Iterable[Any], query: str, begin: Callable[["Client"], Coroutine[Any, Any, ProducerIdentity]]
    ) -> tuple[int, PreparedTransaction | None]:
        """Write rows with the producer that `begin` returns: their number and their transaction, which stays open.

        The transactions of the query, if it has a name, are renewed meanwhile, also while the first row is computed.
        """
        retain_freed_memory()
        batches = (batch for batch in batches if batch.num_rows)
        with self._renewed(query):
            first = next(batches, None)
            return (0, None) if first is None else self._write_rows(chain([first], batches), self._request(begin))

    def _write_rows(self, batches: Iterable[Any], producer: ProducerIdentity) -> tuple[int, PreparedTransaction | None]:
        from levada.spark.write.task import RowWriter

        client = self._client()
        rows = RowWriter(client, self._options, self._columns, producer)
        try:
            rows.write(_until_closed(batches))
        except BaseException as failure:
            if rows.has_sent and producer.transactional_id:
                _abort_after(failure, client, PreparedTransaction(*producer))
            raise
        return rows.rows, PreparedTransaction(*producer) if producer.transactional_id else None

    def _renewed(self, query: str) -> AbstractContextManager[None]:
        if not query:
            return nullcontext()
        timeout_ms = self._options.transaction_timeout_ms
        return blocking.background(transactions.keep_renewed(self._client(), query, timeout_ms))

    def _write_at_least_once(self, batches: Iterable[Any]) -> TaskCommit:
        """Without transactions."""
        rows, _ = self._write(batches, "", _idempotent_producer)
        return TaskCommit("", -1, rows, None)

    def _write_in_transaction(self, batches: Iterable[Any], query: str, batch: int) -> TaskCommit:
        """In a transaction that stays open for the driver."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        timeout_ms = self._options.transaction_timeout_ms
        rows, prepared = self._write(
            batches, query, lambda client: transactions.begin_stream_task(client, query, partition, timeout_ms)
        )
        return TaskCommit(query, batch, rows, prepared)

    def _end_batch(
        self,
        query: str,
        batch: int,
        messages: Sequence[WriterCommitMessage | None],
        content: BatchContent = UNKNOWN_CONTENT,
        run: QueryRun = UNKNOWN_RUN,
        *,
        failed: bool,
    ) -> CommitPlan:
        """Commit or abort a batch from the driver; may be repeated, and does what is left then."""
        written, policy = prepared_transactions(messages), self._options.retry_policy
        return self._call(
            lambda client: driver.end_batch(client, query, batch, written, content=content, run=run, failed=failed),
            # The tasks of a batch that succeeded have reached the brokers; those of a failed one may not have.
            policy if failed else policy._replace(bootstrap_timeout_ms=None),
        )


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(
        self, options: StreamOptions, columns: tuple[str, ...], checkpoint: str, name: str, schema: "StructType"
    ) -> None:
        super().__init__(options, columns)
        self._name = name
        self._checkpoint, self._compares_rows = checkpoint, options.repeated_batch != SKIP
        self._schema: StructType | None = schema  # until its schemas are registered
        self._failure: Exception | None = None  # of that

    def __getstate__(self) -> dict[str, Any]:
        """Spark makes a writer to plan a batch and another one to commit or abort it; it pickles only the first."""
        self._settle()
        self._register_once()
        return super().__getstate__()

    def _register_once(self) -> None:
        """Register the schemas; tasks raise its failure, since one of the caller would be an error of pickle.

        Called when the writer is pickled: a commit or abort must not fail because a registry is down.
        """
        if self._schema is None:
            return
        schema, self._schema = self._schema, None
        try:
            self.register_schemas(schema)
        except EXPLAINED as error:
            self._failure = error

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        if self._failure is not None:
            raise self._failure
        if not self._is_exactly_once:
            return self._write_at_least_once(iterator)
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        if context is None or query is None:
            raise RuntimeError("delivery exactly_once needs a micro-batch of a streaming query; there is none")
        batch = int(context.getLocalProperty(BATCH_ID) or -1)
        run = context.getLocalProperty(RUN_ID)
        if self._is_repeated(query, batch, run):
            return skip_committed(iterator, query, batch)
        return replace(self._write_in_transaction(iterator, query, batch), run=run or "")

    def _is_repeated(self, query: str, batch: int, run: str | None) -> bool:
        """Whether the batch was committed before a driver died; only the first batch of a run can be."""
        key = (self._options.bootstrap, query, run or str(batch))
        if key in _checked:
            return False
        if self._request(lambda client: transactions.last_committed_batch(client, query)) == batch:
            return True
        _checked.add(key)
        return False

    @spark_callback()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if None in messages:  # Spark has dropped the rows of a task without calling write()
            raise CommitRefused(f"epoch {batchId}: {CONTINUOUS_UNSUPPORTED}")
        self._end(messages, batchId, failed=False)

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._end(messages, batchId, failed=True)

    def _end(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, failed: bool) -> None:
        if not self._is_exactly_once:
            return
        tasks = [one for one in messages if isinstance(one, TaskCommit)]
        if not tasks:
            if failed:  # a batch without tasks has nothing to commit
                self._abort_open(batch)
            return
        query = tasks[0].query
        rows = sum(one.rows for one in tasks)
        content = BatchContent(rows if self._compares_rows else None, offsets_digest(self._checkpoint, batch))
        run = QueryRun(self._name, next((one.run for one in tasks if one.run), ""), self._checkpoint)
        try:
            plan = self._end_batch(query, batch, messages, content, run, failed=failed)
        except BatchLost as lost:
            if self._compares_rows:
                raise CommitRefused(f"{lost}. {BATCH_LOST}") from None
            warn(f"{lost}. The query continues without them (option repeatedBatch=skip)")
            return
        if plan.conflict is not None and not failed:
            raise CommitRefused(f"batch {batch} of query {query}: {plan.conflict}")

    def _settle(self) -> None:
        """Once in a process, before tasks of the query run: readers need not wait for the end of the first batch."""
        key = (self._options.bootstrap, self._checkpoint)
        if not self._is_exactly_once or key in _settled:
            return
        try:
            for query in self._queries():
                self._request(partial(driver.settle, query=query))
        except EXPLAINED as error:
            warn(f"transactions that an earlier run of the query left open end with its next batch: {error}")
        _settled.add(key)

    def _abort_open(self, batch: int) -> None:
        """Abort the transactions of a batch without a message of a task, which would name the query."""
        for query in self._queries():
            self._end_batch(query, batch, (), failed=True)

    def _queries(self) -> list[str]:
        """The query of the checkpoint, or those in the commit log.

        The log is read if Python cannot read the checkpoint and its location is that of one file system, whichever
        cluster uses it. Without both there is none, and open transactions time out.
        """
        location = self._checkpoint
        query = query_id(location)
        if not query and has_authority(location):
            return self._request(lambda client: transactions.find_queries(client, location))
        return [query] if query else []


def _check_buffer_size() -> None:
    """Warn if tasks that wait for their first row do not renew transactions; Spark sets the variable in its workers."""
    size = int(os.environ.get("SPARK_BUFFER_SIZE") or 0)
    if size > TASK_BUFFER_BYTES:
        warn(
            f"spark.buffer.size is {size}, above {TASK_BUFFER_BYTES}: a task does not renew the transactions of its "
            "query before its first row; raise option transactionTimeout if that may take long, or lower the setting"
        )


def prepared_transactions(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    """The transactions of tasks, which are open."""
    return [one.prepared for one in messages if isinstance(one, TaskCommit) and one.prepared is not None]


def skip_committed(batches: Iterable[Any], query: str, batch: int) -> TaskCommit:
    """Count rows that are in the topics already; they are still computed, because operators may keep state."""
    return TaskCommit(query, batch, sum(one.num_rows for one in batches), None)


def _until_closed(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches of a task; EOFError if Spark has closed its input before the end."""
    yield from batches
    if is_input_closed():
        raise EOFError("Spark closed the input of this task: an operator before the sink failed, or the task is killed")


async def _idempotent_producer(client: "Client") -> ProducerIdentity:
    """An idempotent producer without transactions: each batch is stored once."""
    return ProducerIdentity("", *await init_producer_id(client))


def _abort_after(failure: BaseException, client: "Client", prepared: PreparedTransaction) -> None:
    """Abort the transaction of a failed task; if that fails too, the driver aborts it with its next batch."""
    try:
        blocking.run(client.abort_prepared(prepared))
    except Exception as error:  # noqa: BLE001 (the first failure is the one to report)
        failure.add_note(f"The transaction {prepared.transactional_id} of this task could not be aborted: {error}")

"""The writers behind `write.format("levada")` and `writeStream.format("levada")`.

A stream with exactly_once leaves the transactions of its tasks open, and the driver ends them by the commit protocol
(`levada.spark.write.commit_protocol`). So does a batch job with a name and a version, as in foreachBatch. Any other
batch job cannot be repeated and needs no commit log: its transactions are ordinary ones, which time out if the driver
dies.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
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
from levada.spark.errors import CommitRefused, OptionError, spark_callback
from levada.spark.worker import QuickAck
from levada.spark.write import transactions
from levada.spark.write.commit_protocol import UNKNOWN_CONTENT, BatchContent, CommitPlan
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
from levada.spark.write.topics import check_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from levada.client.client import Client

T = TypeVar("T")
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
CHECKPOINT_LOCATION = "checkpointlocation"
OFFSET_LOG_HEADER_LINES = 2  # its version; when the batch was planned and the session's settings
RUN_ID = "spark.jobGroup.id"  # of a stream: its run id, new at each start

_checked: set[tuple[str, ...]] = set()  # runs of queries whose last commit this process has read


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The commit message of a task: the transaction with its rows, if it has rows and uses transactions."""

    query: str
    batch: int
    rows: int  # also those that were skipped
    prepared: PreparedTransaction | None


def stream_writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> "StreamWriter":
    """The writer of a stream; output mode complete appends all rows in each micro-batch."""
    options = stream_options(given)
    return StreamWriter(options, check_columns(schema, options), checkpoint_location(given))


def batch_writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> "NamedJobWriter | JobWriter":
    """The writer of a batch job."""
    if overwrite:
        raise OptionError("a topic cannot be overwritten: use mode append, or delete the topic first")
    options = job_options(given)
    columns = check_columns(schema, options)
    if options.app:
        return NamedJobWriter(options, columns)
    return JobWriter(options, columns, uuid4().hex)


class _Writer(QuickAck):
    """What all writers share."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def check_cluster(self) -> None:
        """On the driver, before any task runs: raise if no broker responds or option `topic` names a missing topic."""
        check_topic(self._client(), self._options.topic, self._options.retry_policy)

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
        self, batches: Iterable[Any], begin: Callable[["Client"], Coroutine[Any, Any, ProducerIdentity]]
    ) -> tuple[int, PreparedTransaction | None]:
        """Write rows with the producer that `begin` returns: their number and their transaction."""
        from levada.spark.write.task import RowWriter

        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return 0, None
        producer = self._request(begin)
        client = self._client()
        rows = RowWriter(client, self._options, self._columns, producer)
        try:
            rows.write(chain([first], batches))
        except BaseException as failure:
            if rows.has_sent and producer.transactional_id:
                _abort_after(failure, client, PreparedTransaction(*producer))
            raise
        return rows.rows, PreparedTransaction(*producer) if producer.transactional_id else None

    def _write_at_least_once(self, batches: Iterable[Any]) -> TaskCommit:
        """Without transactions."""
        rows, _ = self._write(batches, _idempotent_producer)
        return TaskCommit("", -1, rows, None)

    def _write_in_transaction(self, batches: Iterable[Any], query: str, batch: int) -> TaskCommit:
        """In a transaction that stays open for the driver."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        rows, prepared = self._write(batches, lambda client: transactions.begin_stream_task(client, query, partition))
        return TaskCommit(query, batch, rows, prepared)

    def _end_batch(
        self,
        query: str,
        batch: int,
        messages: Sequence[WriterCommitMessage | None],
        content: BatchContent = UNKNOWN_CONTENT,
        *,
        failed: bool,
    ) -> CommitPlan:
        """Commit or abort a batch from the driver; may be repeated, and does what is left then."""
        written, policy = _prepared(messages), self._options.retry_policy
        return self._call(
            lambda client: transactions.end_batch(client, query, batch, written, content=content, failed=failed),
            # The tasks of a batch that succeeded have reached the brokers; those of a failed one may not have.
            policy if failed else policy._replace(bootstrap_timeout_ms=None),
        )


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: StreamOptions, columns: tuple[str, ...], checkpoint: str) -> None:
        super().__init__(options, columns)
        self._checkpoint, self._compares_rows = checkpoint, options.repeated_batch != SKIP

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        if not self._is_exactly_once:
            return self._write_at_least_once(iterator)
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        if context is None or query is None:
            raise RuntimeError("delivery exactly_once needs a micro-batch of a streaming query; there is none")
        batch = int(context.getLocalProperty(BATCH_ID) or -1)
        if self._is_repeated(query, batch, context.getLocalProperty(RUN_ID)):
            return _skip_committed(iterator, query, batch)
        return self._write_in_transaction(iterator, query, batch)

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
        self._end(messages, batchId, failed=False)

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._end(messages, batchId, failed=True)

    def _end(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, failed: bool) -> None:
        query = next((one.query for one in messages if isinstance(one, TaskCommit)), "")
        if not query:
            return  # at least once; or every task failed and aborted its own transaction
        rows = sum(one.rows for one in messages if isinstance(one, TaskCommit))
        content = BatchContent(rows if self._compares_rows else None, offsets_digest(self._checkpoint, batch))
        plan = self._end_batch(query, batch, messages, content, failed=failed)
        if plan.conflict is not None and not failed:
            raise CommitRefused(f"batch {batch} of query {query}: {plan.conflict}")


class NamedJobWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch job with a name and a version: once, however often it is repeated."""

    def __init__(self, options: JobOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        assert options.version is not None
        self._query, self._version = transactions.app_query(options.app), options.version
        self._name = f"{options.app} version {options.version}"

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        if self._request(lambda client: transactions.last_committed_batch(client, self._query)) >= self._version:
            return _skip_committed(iterator, self._query, self._version)
        return self._write_in_transaction(iterator, self._query, self._version)

    @spark_callback()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        plan = self._end_batch(self._query, self._version, messages, failed=False)
        if plan.conflict is not None and plan.record.batch < self._version:
            raise CommitRefused(f"{self._name}: {plan.conflict}")

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end_batch(self._query, self._version, messages, failed=True)


class JobWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch job that cannot be repeated."""

    def __init__(self, options: JobOptions, columns: tuple[str, ...], job: str) -> None:
        super().__init__(options, columns)
        self._job, self._timeout_ms = job, options.transaction_timeout_ms

    def check_cluster(self) -> None:
        check_topic(self._client(), self._options.topic, self._options.probe_policy)

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        if not self._is_exactly_once:
            return self._write_at_least_once(iterator)
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = transactions.task_transactional_id(self._job, partition, attempt)
        rows, prepared = self._write(
            iterator, lambda client: transactions.begin_job_task(client, name, self._timeout_ms)
        )
        return TaskCommit(self._job, -1, rows, prepared)

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
        if not committed:  # open transactions time out: no long wait for brokers that never responded
            blocking.connect(client, self._options.probe_policy)
        blocking.run(transactions.end_job(client, self._job, _prepared(messages), committed=committed))


def _prepared(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    return [one.prepared for one in messages if isinstance(one, TaskCommit) and one.prepared is not None]


def _skip_committed(batches: Iterable[Any], query: str, batch: int) -> TaskCommit:
    """Count rows that are in the topics already; they are still computed, because operators may keep state."""
    return TaskCommit(query, batch, sum(one.num_rows for one in batches), None)


async def _idempotent_producer(client: "Client") -> ProducerIdentity:
    """An idempotent producer without transactions: each batch is stored once."""
    return ProducerIdentity("", *await init_producer_id(client))


def _abort_after(failure: BaseException, client: "Client", prepared: PreparedTransaction) -> None:
    """Abort the transaction of a failed task; if that fails too, the driver aborts it with its next batch."""
    try:
        blocking.run(client.abort_prepared(prepared))
    except Exception as error:  # noqa: BLE001 (the first failure is the one to report)
        failure.add_note(f"The transaction {prepared.transactional_id} of this task could not be aborted: {error}")


def checkpoint_location(given: Mapping[str, str]) -> str:
    """The checkpoint directory in the options of a query; empty if they do not have it."""
    found = next((value for name, value in given.items() if name.lower() == CHECKPOINT_LOCATION), "")
    return re.sub("^file:(//)?/", "/", found)


def offsets_digest(location: str, batch: int) -> str | None:
    """A digest of the end offsets of a batch in Spark's offset log; None if Python cannot read the checkpoint.

    Spark writes the offset log before it runs a batch, and repeats a batch from it; a batch that is planned again may
    have other offsets.
    """
    try:
        lines = (Path(location) / "offsets" / str(batch)).read_bytes().splitlines() if location else []
    except OSError:
        return None
    offsets = lines[OFFSET_LOG_HEADER_LINES:]
    return sha256(b"\n".join(offsets)).hexdigest()[:32] if offsets else None

"""The writers behind `write.format("levada")`.

A job with a name and a version, as in foreachBatch, commits as a stream does. Any other job cannot be repeated and
needs no commit log: its transactions are ordinary ones, which time out if the driver dies.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from levada.spark import blocking
from levada.spark.errors import BatchLost, CommitRefused, OptionError, spark_callback, warn
from levada.spark.write import driver, transactions
from levada.spark.write.commit_protocol import BatchContent, CommitRecord
from levada.spark.write.digest import RowsDigest, sum_digests
from levada.spark.write.options import REFUSE, JobOptions, check_columns, job_options
from levada.spark.write.sink import TaskCommit, Writer, prepared_transactions, skip_committed

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def batch_writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> "NamedJobWriter | JobWriter":
    """The writer of a batch job."""
    if overwrite:
        raise OptionError("a topic cannot be overwritten: use mode append, or delete the topic first")
    options = job_options(given)
    columns = check_columns(schema, options)
    if options.app:
        return NamedJobWriter(options, columns)
    return JobWriter(options, columns, uuid4().hex)


class NamedJobWriter(Writer, DataSourceArrowWriter):
    """Writes a batch job with a name and a version: once, however often it is repeated."""

    def __init__(self, options: JobOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        assert options.version is not None
        self._query, self._version = transactions.app_query(options.app), options.version
        self._name = f"{options.app} version {options.version}"
        self._refuses_skipping = options.repeated_batch == REFUSE

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        digest = RowsDigest()
        batches = iterator if self._options.formats else digest.of(iterator)
        if self._request(lambda client: transactions.last_committed_batch(client, self._query)) >= self._version:
            task = skip_committed(batches, self._query, self._version)
        else:
            task = self._write_in_transaction(batches, self._query, self._version)
        return task if self._options.formats else replace(task, digest=digest.value)

    @spark_callback()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tasks = [one for one in messages if isinstance(one, TaskCommit)]
        content = BatchContent(sum(one.rows for one in tasks), None, sum_digests([one.digest for one in tasks]))
        try:
            plan = self._end_batch(self._query, self._version, messages, content, failed=False)
        except BatchLost as lost:
            raise CommitRefused(f"{self._name}: {lost}. To write them, use another txnAppId") from None
        if plan.conflict is not None and plan.record.batch < self._version:
            raise CommitRefused(f"{self._name}: {plan.conflict}")
        skipped = self._skipped(plan.record, content)
        if skipped and self._refuses_skipping:
            raise CommitRefused(skipped)
        if skipped:
            warn(skipped)

    def _skipped(self, last: CommitRecord, now: BatchContent) -> str:
        """Says which rows are not written, unless the job repeats the last one; empty if there are none."""
        rows, before = now.rows, last.content
        if last.batch > self._version and rows:
            return (
                f"{self._name}: {rows} rows are not written, because version {last.batch} is written already. "
                "If a checkpoint was deleted or restored, continue with another txnAppId"
            )
        if last.batch == self._version and before.rows not in (None, rows):
            return f"{self._name} is written already, with {before.rows} rows; {rows} rows are not written now"
        is_compared = last.batch == self._version and None not in (before.rows_digest, now.rows_digest)
        if is_compared and before.rows_digest != now.rows_digest:
            return f"{self._name} is written already, with other content; {rows} rows are not written now"
        return ""

    @spark_callback()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end_batch(self._query, self._version, messages, failed=True)


class JobWriter(Writer, DataSourceArrowWriter):
    """Writes a batch job that cannot be repeated."""

    def __init__(self, options: JobOptions, columns: tuple[str, ...], job: str) -> None:
        super().__init__(options, columns)
        self._job = job

    def check_cluster(self) -> None:
        self._check_cluster(self._options.probe_policy)

    @spark_callback()
    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        if not self._is_exactly_once:
            return self._write_at_least_once(iterator)
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = transactions.task_transactional_id(self._job, partition, attempt)
        timeout_ms = self._options.transaction_timeout_ms
        rows, prepared = self._write(
            iterator, self._job, lambda client: transactions.begin_job_task(client, name, timeout_ms)
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
        blocking.run(driver.end_job(client, self._job, prepared_transactions(messages), committed=committed))

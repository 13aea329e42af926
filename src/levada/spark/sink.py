"""DataFrames to topics: the writers behind `write.format("levada")` and `writeStream.format("levada")` (R60-R62).

A stream with exactly_once leaves the transactions of its tasks open and ends them from the driver, by the rules of
`levada.spark.judging`. A batch job has no name under which it could be repeated, so there is nothing to decide: its
transactions are ordinary ones that end by themselves if the driver dies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from levada.errors import KafkaError
from levada.net.bootstrap import error_code
from levada.net.data import INIT_PRODUCER_ID, read_init_producer_id, write_init_producer_id
from levada.net.prepared import PreparedTransaction
from levada.net.producer import Writer
from levada.spark import blocking, transactions
from levada.spark.write_options import WriteOptions, check_columns, write_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from levada.net.client import Client

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"  # a stream runs its jobs in a group of its own, new at each start

_checked: set[tuple[str, ...]] = set()  # runs of queries whose last decision this process has looked at


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has done: the transaction that holds its rows, if it had rows and has transactions."""

    query: str
    batch: int
    rows: int
    prepared: PreparedTransaction | None


def stream_writer(
    given: Mapping[str, str], schema: "StructType", overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of a stream; output mode complete appends all rows in each micro-batch."""
    options = write_options(given)
    return StreamWriter(options, check_columns(schema, options))


def batch_writer(given: Mapping[str, str], schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:
    """The writer of a batch job."""
    if overwrite:
        raise ValueError("a topic cannot be overwritten: use mode append, or delete the topic first")
    options = write_options(given)
    return BatchWriter(options, check_columns(schema, options), uuid4().hex)


class _Writer:
    """What both have in common."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @property
    def is_exactly_once(self) -> bool:
        return self._options.delivery == "exactly_once"

    def _client(self) -> "Client":
        return blocking.client(self._options.bootstrap, **self._options.client_options())

    def _write(
        self, batches: Iterable[Any], begin: Callable[["Client"], Writer]
    ) -> tuple[int, Writer | None]:
        """Write rows as the producer that `begin` gives; without rows there is none."""
        from levada.spark.writing import RowWriter

        batches = _filled(batches)
        first = next(batches, None)
        if first is None:
            return 0, None
        client = self._client()
        writer = begin(client)
        try:
            rows = RowWriter(client, self._options, self._columns, writer)
            rows.write(chain([first], batches))
        except BaseException as failure:
            _abort_after(failure, client, writer)
            raise
        return rows.rows, writer


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def write(self, iterator: Iterator[Any]) -> Written:
        if not self.is_exactly_once:
            rows, _ = self._write(iterator, _begin_plain)
            return Written("", -1, rows, None)
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        if context is None or query is None:
            raise RuntimeError("delivery exactly_once is for micro-batches of a query")
        batch = int(context.getLocalProperty(BATCH_ID) or -1)
        if self._is_repeated(query, batch, context.getLocalProperty(RUN_ID)):
            for _ in iterator:
                pass  # whatever the query computes on the way has to be computed: it keeps state
            return Written(query, batch, 0, None)
        partition = context.partitionId()
        rows, writer = self._write(
            iterator, lambda client: blocking.run(transactions.begin(client, query, partition))
        )
        return Written(query, batch, rows, None if writer is None else PreparedTransaction(*writer))

    def _is_repeated(self, query: str, batch: int, run: str | None) -> bool:
        """Whether the batch was committed before a driver died; in later batches of a run nobody has to ask."""
        key = (self._options.bootstrap, query, run or str(batch))
        if key in _checked:
            return False
        if blocking.run(transactions.is_committed(self._client(), query, batch)):
            return True
        _checked.add(key)
        return False

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._settle(messages, batchId, failed=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._settle(messages, batchId, failed=True)

    def _settle(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, failed: bool) -> None:
        told = [one for one in messages if isinstance(one, Written) and one.query]
        if not told:
            return
        prepared = [one.prepared for one in told if one.prepared is not None]
        work = transactions.settle(self._client(), told[0].query, batch, prepared, failed=failed)
        verdict = blocking.run(work)
        if verdict.refusal is not None and not failed:
            raise transactions.CommitRefused(f"batch {batch} of query {told[0].query}: {verdict.refusal}")


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch job."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...], job: str) -> None:
        super().__init__(options, columns)
        self._job = job

    def write(self, iterator: Iterator[Any]) -> Written:
        if not self.is_exactly_once:
            rows, _ = self._write(iterator, _begin_plain)
            return Written("", -1, rows, None)
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = f"spark-{self._job}-{partition}-{attempt}"
        timeout_ms = self._options.transaction_timeout_ms
        rows, writer = self._write(
            iterator, lambda client: blocking.run(transactions.begin_job(client, name, timeout_ms))
        )
        return Written(self._job, -1, rows, None if writer is None else PreparedTransaction(*writer))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, committed=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, committed=False)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, committed: bool) -> None:
        prepared = [one.prepared for one in messages if isinstance(one, Written) and one.prepared is not None]
        if prepared:
            blocking.run(transactions.end_job(self._client(), prepared, committed=committed))


def _filled(batches: Iterable[Any]) -> Iterator[Any]:
    return (batch for batch in batches if batch.num_rows)


def _begin_plain(client: "Client") -> Writer:
    """A producer without transactions, whose batches are still stored once each."""
    return blocking.run(_ask_identity(client))


async def _ask_identity(client: "Client") -> Writer:
    connection = await client.connection()
    version = connection.version(INIT_PRODUCER_ID)
    timeout_s = client.request_timeout_ms / 1000
    body = await connection.send(
        INIT_PRODUCER_ID.key, version, write_init_producer_id(version), timeout_s=timeout_s
    )
    error, producer_id, epoch = connection.parse(read_init_producer_id, body)
    if error:
        raise KafkaError(error_code(error), "no producer id")
    return Writer("", producer_id, epoch)


def _abort_after(failure: BaseException, client: "Client", writer: Writer) -> None:
    """A task that fails takes back what it wrote; one that cannot leaves it to the driver's next batch."""
    if not writer.transactional_id:
        return
    try:
        blocking.run(client.abort_prepared(PreparedTransaction(*writer)))
    except Exception as error:  # noqa: BLE001 (what failed first is what must be seen)
        failure.add_note(f"Its transaction {writer.transactional_id} could not be aborted: {error}")

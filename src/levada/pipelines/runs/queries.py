"""A running pipeline: its queries, followed until they end.

A query is a streaming query of Spark, or a `DriverQuery`: batches that the driver runs in a thread.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from levada.pipelines.errors import PipelineError, explain_failure, jvm_end
from levada.pipelines.runs.progress import Progress, ProgressCounter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.25
RECENT_BATCHES = 100  # kept in `recentProgress`, as Spark does


class Query(Protocol):
    """The part of Spark's StreamingQuery that a pipeline uses."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802
    @property
    def recentProgress(self) -> Any: ...  # noqa: N802
    def exception(self) -> Any: ...
    def stop(self) -> None: ...


class RunningPipeline:
    """Queries that run in the background until `stop`, or with `once` until all available records are processed."""

    def __init__(self, name: str, queries: Sequence[Query]) -> None:
        self.name = name
        self.queries = queries
        self._counter = ProgressCounter()
        self._reported: dict[str, Progress] = {}  # by query: the last progress given to `watch`

    def progress(self) -> Progress:
        """The current progress of all queries together."""
        self._collect_progress()
        return self._counter.total()

    def _collect_progress(self) -> None:
        for query in self.queries:
            self._counter.add(query.recentProgress)

    @property
    def is_active(self) -> bool:
        return all(query.isActive for query in self.queries)

    def wait(self, seconds: float | None = None, watch: Callable[[Progress], None] = lambda progress: None) -> bool:
        """Wait until the pipeline has ended; return whether it has, within `seconds`.

        `watch` is called with each new progress of each query. Raises PipelineError if a query failed; the other
        queries are stopped then.
        """
        try:
            return self._wait(seconds, watch)
        except PipelineError:
            raise
        except Exception:  # a JVM that has ended answers no question about its queries
            ended = jvm_end()
            if not ended:
                raise
            raise PipelineError(f"pipeline {self.name} failed: {ended}") from None

    def _wait(self, seconds: float | None, watch: Callable[[Progress], None]) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        failure = self._failure()
        while not failure and any(query.isActive for query in self.queries):
            self._report(watch)
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
            failure = self._failure()
        failure = failure or self._failure()  # of a query that failed after it was looked at
        self.stop()
        if failure:
            raise PipelineError(f"pipeline {self.name} failed: {failure}")
        self._report(watch)
        return True

    def _report(self, watch: Callable[[Progress], None]) -> None:
        self._collect_progress()
        for progress in self._counter.by_query():
            if progress != self._reported.get(progress.query):
                self._reported[progress.query] = progress
                watch(progress if len(self.queries) > 1 else progress._replace(query=""))

    def stop(self) -> None:
        """Stop all queries. The next run repeats an unfinished micro-batch, of which no reader sees anything."""
        for query in self.queries:
            query.stop()

    def _failure(self) -> str:
        """The reason of the first failed query; empty if none has failed."""
        for query in self.queries:
            error = query.exception()
            if error is not None:
                return explain_failure(error)
        return ""


class Batch(NamedTuple):
    """A completed batch of a DriverQuery."""

    number: int  # counted over all runs
    rows: int
    rows_done: int
    rows_total: int


class DriverQuery:
    """A thread that runs one batch after the other until there are no more, or until `stop` between two."""

    def __init__(self, name: str, spark: "SparkSession", batches: Callable[[threading.Event], Iterator[Batch]]) -> None:
        self._name = name
        self._spark = spark
        self._batches = batches
        self._progress: deque[dict[str, Any]] = deque(maxlen=RECENT_BATCHES)
        self._error: Exception | None = None
        self._stopped = threading.Event()  # interrupts a batch that waits for its time
        self._thread = threading.Thread(target=self._run, name=f"levada {name}", daemon=True)

    def start(self) -> "DriverQuery":
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            # Spark looks up Python data sources in the session of the thread, and a new thread has none.
            jvm: Any = self._spark._jvm
            jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
            started = time.monotonic()
            for batch in self._batches(self._stopped):
                seconds = time.monotonic() - started
                self._progress.append(_spark_progress(self._name, batch, seconds))
                started += seconds
                if self._stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 (raised by RunningPipeline.wait)
            self._error = error

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return list(self._progress)

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopped.set()
        self._thread.join()


def _spark_progress(name: str, batch: Batch, seconds: float) -> dict[str, Any]:
    """The progress of a batch in the form of Spark's StreamingQueryProgress; row counts stand for offsets."""
    end, latest = ({"rows": {"0": rows}} for rows in (batch.rows_done, batch.rows_total))
    return {
        "id": name,
        "batchId": batch.number,
        "numInputRows": batch.rows,
        "processedRowsPerSecond": batch.rows / max(seconds, 1e-3),
        "durationMs": {"triggerExecution": round(seconds * 1000)},
        "sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}],
    }

"""The progress of a pipeline, computed from the StreamingQueryProgress of its queries (pure)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

WINDOW_AGGREGATIONS = ("stateStoreSave", "sessionWindowStateStoreSaveExec")  # Spark's operator names


class Progress(NamedTuple):
    """The progress of a pipeline, or of one of its queries. The field names are those of progress.json."""

    batches: int = 0  # completed, by the query that has completed most
    rows: int = 0  # read since the start
    rows_per_second: float = 0.0  # of the last batch that had rows
    lag: int | None = None  # records not read yet; None if unknown
    batch_seconds: float = 0.0  # the last batch, of the slowest query
    open_rows: int = 0  # state of windows and sessions that have not ended
    query: str = ""  # the name of the query, where a pipeline has several

    def line(self) -> str:
        """The progress in a line of text."""
        lag = "?" if self.lag is None else f"{self.lag:,}"
        query = f"{self.query}: " if self.query else ""
        return (
            f"{query}batch {self.batches:,}: {self.rows:,} rows so far, {self.rows_per_second:,.0f} rows/s, "
            f"lag {lag}, {self.batch_seconds:.2f} s a batch"
        )


class ProgressCounter:
    """Adds up the micro-batches of one run, each once."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, int]] = {}  # by query and batch
        self._rates: dict[str, float] = {}  # by query
        self._newest: dict[str, Mapping[str, Any]] = {}  # by query: its last batch

    def add(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Add batches as in `StreamingQuery.recentProgress`; a batch may be added again."""
        for batch in batches:
            query = batch["id"]
            self._rows.setdefault(query, {})[batch["batchId"]] = batch["numInputRows"]
            if batch["numInputRows"]:
                self._rates[query] = batch.get("processedRowsPerSecond", 0.0)
            self._newest[query] = batch

    def by_query(self) -> list[Progress]:
        """The progress of each query."""
        return [self._of(query, batch) for query, batch in self._newest.items()]

    def total(self) -> Progress:
        """The progress of all queries together."""
        queries = self.by_query()
        return Progress(
            batches=max((one.batches for one in queries), default=0),
            rows=sum(one.rows for one in queries),
            rows_per_second=sum(one.rows_per_second for one in queries),
            lag=_sum_known(one.lag for one in queries),
            batch_seconds=max((one.batch_seconds for one in queries), default=0.0),
            open_rows=sum(one.open_rows for one in queries),
        )

    def _of(self, query: str, newest: Mapping[str, Any]) -> Progress:
        return Progress(
            batches=newest["batchId"] + 1,
            rows=sum(self._rows[query].values()),
            rows_per_second=self._rates.get(query, 0.0),
            lag=_sum_known(map(_lag, newest["sources"])),
            batch_seconds=newest["durationMs"].get("triggerExecution", 0) / 1000,
            open_rows=_open_rows(newest),
            query=newest.get("name") or query,
        )


def _sum_known(lags: Iterable[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _open_rows(batch: Mapping[str, Any]) -> int:
    """The state rows of window aggregations. Without a watermark no window ever ends, so none counts as open."""
    if "watermark" not in (batch.get("eventTime") or {}):
        return 0
    operators = batch.get("stateOperators") or ()
    return sum(one["numRowsTotal"] for one in operators if one["operatorName"] in WINDOW_AGGREGATIONS)


def _lag(source: Mapping[str, Any]) -> int | None:
    """The records after the end of the batch; None for a source whose offsets are not those of topics."""
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items())


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """Offsets by topic and partition; Spark gives them as JSON in a string, encoded once or twice."""
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping):
        return None
    found = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, Mapping):
            return None
        for partition, offset in partitions.items():
            if not isinstance(offset, int):
                return None
            found[topic, partition] = offset
    return found

"""How far a pipeline is: what Spark tells of its queries, in few words (pure)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

AGGREGATIONS = ("stateStoreSave", "sessionWindowStateStoreSaveExec")  # as Spark calls them


class Progress(NamedTuple):
    """One look at a pipeline, or at one query of several."""

    batches: int = 0  # finished, by the query that has finished most
    rows: int = 0  # read since the start
    rows_per_second: float = 0.0  # of the last batch that had rows
    lag: int | None = None  # records that are there and not read yet; None while nobody knows
    batch_seconds: float = 0.0  # the last batch, of the slowest query
    open_rows: int = 0  # kept for windows and sessions that have not ended
    query: str = ""  # which it is, where there are several

    def line(self) -> str:
        """For a person who watches."""
        lag = "?" if self.lag is None else f"{self.lag:,}"
        which = f"{self.query}: " if self.query else ""
        return (
            f"{which}batch {self.batches:,}: {self.rows:,} rows so far, {self.rows_per_second:,.0f} rows/s, "
            f"lag {lag}, {self.batch_seconds:.2f} s a batch"
        )


class Counter:
    """Adds up the batches of one run, each once."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, int]] = {}  # by query and batch
        self._rates: dict[str, float] = {}  # by query
        self._newest: dict[str, Mapping[str, Any]] = {}  # by query, what it said last

    def hear(self, told: Iterable[Mapping[str, Any]]) -> None:
        """What queries say of batches (`StreamingQuery.recentProgress`); the same may come again."""
        for batch in told:
            query = batch["id"]
            self._rows.setdefault(query, {})[batch["batchId"]] = batch["numInputRows"]
            if batch["numInputRows"]:
                self._rates[query] = batch.get("processedRowsPerSecond", 0.0)
            self._newest[query] = batch

    def each(self) -> list[Progress]:
        """As of what was heard, of each query."""
        return [self._of(query, batch) for query, batch in self._newest.items()]

    def progress(self) -> Progress:
        """Of all queries together."""
        each = self.each()
        known = [one.lag for one in each if one.lag is not None]
        return Progress(
            batches=max((one.batches for one in each), default=0),
            rows=sum(one.rows for one in each),
            rows_per_second=sum(one.rows_per_second for one in each),
            lag=sum(known) if known else None,
            batch_seconds=max((one.batch_seconds for one in each), default=0.0),
            open_rows=sum(one.open_rows for one in each),
        )

    def _of(self, query: str, newest: Mapping[str, Any]) -> Progress:
        lags = [_lag(source) for source in newest["sources"]]
        known = [lag for lag in lags if lag is not None]
        return Progress(
            batches=newest["batchId"] + 1,
            rows=sum(self._rows[query].values()),
            rows_per_second=self._rates.get(query, 0.0),
            lag=sum(known) if known else None,
            batch_seconds=newest["durationMs"].get("triggerExecution", 0) / 1000,
            open_rows=_open_rows(newest),
            query=newest.get("name") or query,
        )


def _open_rows(batch: Mapping[str, Any]) -> int:
    """What aggregations over time keep; without a watermark nothing is ever over, so nothing counts as open."""
    if "watermark" not in (batch.get("eventTime") or {}):
        return 0
    kept = batch.get("stateOperators") or ()
    return sum(one["numRowsTotal"] for one in kept if one["operatorName"] in AGGREGATIONS)


def _lag(source: Mapping[str, Any]) -> int | None:
    """What the source has beyond the batch, if it tells positions in topics."""
    latest, end = _positions(source.get("latestOffset")), _positions(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())


def _positions(told: Any) -> dict[tuple[str, str], int] | None:
    """Spark gives them as JSON in a string, in one of two layers of it."""
    while isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    if not isinstance(told, Mapping):
        return None
    found = {}
    for topic, partitions in told.items():
        if not isinstance(partitions, Mapping):
            return None
        for partition, offset in partitions.items():
            if not isinstance(offset, int):
                return None
            found[topic, partition] = offset
    return found

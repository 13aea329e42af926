"""How far a pipeline is: what Spark tells of its queries, in few words (pure)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """One look at all queries of a pipeline."""

    batches: int = 0  # finished, by the query that has finished most
    rows: int = 0  # read since the start
    rows_per_second: float = 0.0
    lag: int | None = None  # records that are there and not read yet; None while nobody knows
    batch_seconds: float = 0.0  # the last batch, of the slowest query

    def line(self) -> str:
        """For a person who watches."""
        lag = "?" if self.lag is None else f"{self.lag:,}"
        return (
            f"batch {self.batches:,}: {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s, "
            f"lag {lag}, {self.batch_seconds:.2f} s a batch"
        )


class Counter:
    """Adds up the batches of one run, each once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], int] = {}  # by query and batch
        self._newest: dict[str, Mapping[str, Any]] = {}  # by query, what it said last

    def hear(self, told: Iterable[Mapping[str, Any]]) -> None:
        """What queries say of batches (`StreamingQuery.recentProgress`); the same may come again."""
        for batch in told:
            self._rows[batch["id"], batch["batchId"]] = batch["numInputRows"]
            self._newest[batch["id"]] = batch

    def progress(self) -> Progress:
        """As of what was heard."""
        if not self._newest:
            return Progress()
        newest = self._newest.values()
        lags = [_lag(source) for batch in newest for source in batch["sources"]]
        known = [lag for lag in lags if lag is not None]
        return Progress(
            batches=max(batch["batchId"] for batch in newest) + 1,
            rows=sum(self._rows.values()),
            rows_per_second=sum(batch.get("processedRowsPerSecond", 0.0) for batch in newest),
            lag=sum(known) if known else None,
            batch_seconds=max(batch["durationMs"].get("triggerExecution", 0) for batch in newest) / 1000,
        )


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

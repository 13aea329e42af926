"""Adds the lag of a topic's reader to the progress of a streaming query, as Spark's own Kafka connector reports it.

Spark asks a source for metrics only if its class in Java implements `ReportsSourceMetrics`. The one that stands for a
Python source, `PythonMicroBatchStreamWithTriggerAvailableNow`, does not, so `sources[].metrics` is empty. But the
progress has the offsets from which the stock connector computes its metrics.
"""

import json
from collections.abc import Mapping
from typing import Any

PartitionOffsets = dict[tuple[str, str], int]


def source_metrics(progress: Mapping[str, Any]) -> list[dict[str, str]]:
    """The metrics of each source in a progress, such as `query.lastProgress` or `event.progress` of a listener.

    A source that reports metrics keeps them. One without offsets of topics has none.
    """
    return [dict(source.get("metrics") or {}) or _offsets_behind_latest(source) for source in progress["sources"]]


def _offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, str]:
    """The metrics of the stock connector: how many offsets the partitions are behind their latest one."""
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if not latest or not end:
        return {}
    behind = [offset - end.get(partition, 0) for partition, offset in latest.items()]
    return {
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "minOffsetsBehindLatest": str(min(behind)),
    }


def _offsets(text: str | None) -> PartitionOffsets:
    """Offsets by topic and partition; empty if the source is not one of topics, or has not read yet."""
    try:
        found = json.loads(text or "null")
        return {(topic, part): int(offset) for topic, parts in found.items() for part, offset in parts.items()}
    except (ValueError, TypeError, AttributeError):
        return {}

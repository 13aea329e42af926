"""Progress of a run's queries, and the reason of a failure."""

import json

import pytest

from levada.pipelines.errors import root_cause
from levada.pipelines.runs.progress import Progress, ProgressCounter


def batch(query: str, number: int, rows: int, latest: object, end: object) -> dict[str, object]:
    source = {"latestOffset": latest, "endOffset": end}
    return {
        "id": query,
        "batchId": number,
        "numInputRows": rows,
        "processedRowsPerSecond": 10.0,
        "durationMs": {"triggerExecution": 250},
        "sources": [source],
    }


def test_batches_are_counted_once_and_lag_is_what_is_left() -> None:
    counter = ProgressCounter()
    assert counter.total() == Progress()
    first = batch("a", 0, 5, '{"t":{"0":9,"1":4}}', '{"t":{"0":5}}')
    counter.add([first])
    counter.add([first, batch("a", 1, 7, json.dumps('{"t":{"0":20,"1":4}}'), {"t": {"0": 9, "1": 4}})])
    counter.add([batch("b", 4, 1, None, None)])
    assert counter.total() == Progress(5, 13, 20.0, 11, 0.25)
    assert counter.total().line() == "batch 5: 13 rows so far, 20 rows/s, lag 11, 0.25 s a batch"


def test_each_query_of_several_is_reported_by_its_name_and_with_its_own_rate() -> None:
    counter = ProgressCounter()
    counter.add([batch("a", 0, 5, None, None) | {"name": "logs-lake"}])
    idle = {"name": "logs", "processedRowsPerSecond": 0.0}
    counter.add([batch("b", 0, 30, None, None) | {"name": "logs"}, batch("b", 1, 0, None, None) | idle])
    assert [progress.line() for progress in counter.by_query()] == [
        "logs-lake: batch 1: 5 rows so far, 10 rows/s, lag ?, 0.25 s a batch",
        "logs: batch 2: 30 rows so far, 10 rows/s, lag ?, 0.25 s a batch",  # of the batch that had rows
    ]


@pytest.mark.parametrize(("event_time", "rows"), [({"watermark": "2026-11-15T12:00:00.000Z"}, 7), ({}, 0)])
def test_windows_are_open_while_their_rows_are_kept(event_time: dict[str, str], rows: int) -> None:
    counter = ProgressCounter()
    kept = [
        {"operatorName": name, "numRowsTotal": count}
        for name, count in (("stateStoreSave", 3), ("sessionWindowStateStoreSaveExec", 4), ("dedupe", 9))
    ]
    counter.add([batch("a", 0, 5, None, None) | {"eventTime": event_time, "stateOperators": kept}])
    assert counter.total().open_rows == rows


@pytest.mark.parametrize(
    ("trace", "printed"),
    [
        ("[STREAM_FAILED] Query ended\n  at x\nCaused by: java.io.IOException: disk full\n  at y", "disk full"),
        ("Job aborted\nTraceback ...\n  File x\na.b.SourceError: orders is gone\n", "orders is gone"),
        ("[PYTHON_DATA_SOURCE_ERROR] Failed to create: a.b.OptionError: there is no option x", "there is no option x"),
        ("An error occurred while calling o1.start.\n: java.io.IOException: disk full\n  at y", "disk full"),
        ("py4j.Py4JJavaError: An error occurred while calling o1.parquet.\n: java.io.IOException: full", "full"),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "Division by zero."),
        ("something else", "something else"),
        ("Traceback (most recent call last):\n  File x\n    y\nKeyError: 'number'\n\n=== X", "KeyError: 'number'"),
        ("Traceback (most recent call last):\n  File x\na.b.Odd: it is odd: very\nand more", "it is odd: very"),
        ("aborted\nCaused by: a.b.SparkException: a worker died\nCaused by: java.io.EOFException", "a worker died"),
    ],
)  # fmt: skip
def test_a_failure_is_reported_in_a_sentence(trace: str, printed: str) -> None:
    assert root_cause(trace) == printed

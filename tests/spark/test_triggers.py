"""Triggers that Spark does not offer for Python sources and sinks: what a user sees who tries them."""

from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException, UnsupportedOperationException
from tests.spark.support.connector import Connector, Levada, Stock, eventually
from tests.spark.support.feeds import TIMEOUT_S

CONTINUOUS = {"continuous": "1 second"}
REAL_TIME = {"realTime": "5 seconds"}
EPOCHS = 3


def test_a_source_in_continuous_processing_is_refused(topics: Levada) -> None:
    source, target = topics.broker.topic(), topics.broker.topic()
    with pytest.raises(UnsupportedOperationException, match="levada does not support continuous processing"):
        topics.start(topics.stream(subscribe=source), target, CONTINUOUS)


def test_a_sink_in_continuous_processing_commits_nothing(topics: Levada, stock: Stock, tmp_path: Path) -> None:
    """Spark drops the rows without calling the sink. The query would go on, and its checkpoint too."""
    source, target = topics.broker.topic(), topics.broker.topic()
    topics.produce(source, range(5))
    rows = stock.stream(subscribe=source, startingOffsets="earliest").select("value")
    query = topics.start(rows, target, CONTINUOUS, mode="append")
    epochs, commits = tmp_path / target / "offsets", tmp_path / target / "commits"
    eventually(lambda: len(list(epochs.glob("[0-9]*"))) > EPOCHS, query)
    query.stop()
    assert not list(commits.glob("[0-9]*")) and topics.values(target) == []


@pytest.mark.parametrize("source_of", ["stock", "levada"])
def test_a_sink_in_real_time_mode_is_refused(topics: Levada, stock: Stock, source_of: str) -> None:
    connector: Connector = stock if source_of == "stock" else topics
    source, target = topics.broker.topic(), topics.broker.topic()
    rows = connector.stream(subscribe=source, startingOffsets="earliest").select("value")
    with pytest.raises(IllegalArgumentException, match=r"SINK_NOT_IN_ALLOWLIST.*python\.PythonTable"):
        topics.start(rows, target, REAL_TIME)


def test_a_source_in_real_time_mode_is_refused(topics: Levada, stock: Stock) -> None:
    source, target = topics.broker.topic(), topics.broker.topic()
    rows = topics.stream(subscribe=source, startingOffsets="earliest").select("value")
    query = stock.start(rows, target, REAL_TIME)
    with pytest.raises(StreamingQueryException, match=r"INPUT_STREAM_NOT_SUPPORTED.*python\.PythonMicroBatchStream"):
        query.awaitTermination(TIMEOUT_S)

"""A query that changes its format: the checkpoint of one connector continues with the other, with the same metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.support.connector import Connector, Levada, Stock
from tests.spark.support.queries import run, written

from levada.spark import source_metrics

Connectors = tuple[Connector, Connector]


@pytest.fixture(params=["stock first", "levada first"])
def both(request: pytest.FixtureRequest, stock: Stock, topics: Levada) -> Connectors:
    """The connector that starts a query, and the one that continues it."""
    return (stock, topics) if request.param == "stock first" else (topics, stock)


@pytest.mark.parametrize("option", ["subscribe", "subscribePattern"])
def test_a_checkpoint_continues_under_the_other_format_and_back(both: Connectors, option: str, tmp_path: Path) -> None:
    first, second = both
    topic = first.broker.topic(partitions=2)
    for number, connector in enumerate((first, second, first)):
        connector.produce(topic, range(10 * number, 10 * number + 7), partition=0)
        connector.produce(topic, range(10 * number + 7, 10 * number + 10), partition=1)
        query = run(connector.stream(**{option: topic}, startingOffsets="earliest"), tmp_path)
        assert sum(batch["numInputRows"] for batch in query.recentProgress) == 10
    assert written(first, tmp_path) == sorted(map(str, range(30)))


def test_topics_and_partitions_created_between_two_formats_are_read_whole(both: Connectors, tmp_path: Path) -> None:
    first, second = both
    topic = first.broker.topic()
    grown: dict[int, Callable[[], None]] = {
        1: lambda: first.grow(topic, 2),
        2: lambda: first.create(f"{topic}-later"),
    }
    for number, connector in enumerate((first, second, first)):
        grown.get(number, lambda: None)()
        connector.produce(topic, [f"0 {number}"], partition=0)
        if number >= 1:
            connector.produce(topic, [f"1 {number}"], partition=1)
        if number >= 2:
            connector.produce(f"{topic}-later", [f"later {number}"])
        run(connector.stream(subscribePattern=f"^{topic}(-later)?$", startingOffsets="earliest"), tmp_path)
    first.delete(f"{topic}-later")
    assert written(first, tmp_path) == ["0 0", "0 1", "0 2", "1 1", "1 2", "later 2"]


def test_metrics_are_those_of_the_stock_connector(stock: Stock, topics: Levada, tmp_path: Path) -> None:
    topic = stock.broker.topic(partitions=3)
    stock.produce(topic, range(40), partition=0)
    stock.produce(topic, range(20), partition=1)
    found: list[list[Any]] = []
    for connector in (stock, topics):
        stream = connector.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
        query = run(stream, tmp_path / connector.form)
        found.append([source_metrics(progress) for progress in query.recentProgress])
        own = query.lastProgress["sources"][0]["metrics"] if query.lastProgress else {}
        assert bool(own) == (connector is stock)  # Spark has no way for a Python source to report them
    ours, theirs = found[1], found[0]
    assert ours == theirs
    behind = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "20", "avgOffsetsBehindLatest": "10.0"}
    assert ours[0] == [behind]
    assert ours[-1] == [{name: "0.0" if name.startswith("avg") else "0" for name in behind}]

"""sql: topics as tables, results as a topic, errors in words."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from tests.spark.support.feeding import forget_the_last_commit, results

from levada.pipelines.errors import PipelineError
from levada.pipelines.flows.sql import sql
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Shop:
    """A topic of orders, and queries over it."""

    def __init__(self, spark: "SparkSession", broker: EmbeddedBroker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.orders = broker.topic()
        self.messages: list[str] = []
        self._producer = Producer({"bootstrap.servers": broker.bootstrap})

    def sell(self, minutes: range) -> None:
        for minute in minutes:
            for shop in ("tea", "coffee"):
                order = {"shop": shop, "amount": minute + 0.5, "ts": f"2026-11-15T12:{minute:02d}:30Z"}
                self.write(json.dumps(order), shop)

    def write(self, value: str, key: str | None = None, topic: str = "") -> None:
        self._producer.produce(topic or self.orders, value, key)
        self._producer.flush()

    def ask(self, query: str, to: str, name: str = "", **options: Any) -> list[dict[str, Any]]:
        running = sql(
            query.replace("orders", f"`{self.orders}`"),
            to,
            bootstrap=self.broker.bootstrap,
            checkpoint=str(self.folder / (name or to)),
            once=True,
            spark=self.spark,
            notify=self.messages.append,
            name=name or to,
            **options,
        )
        assert running.wait()
        return results(self.broker, to)


@pytest.fixture
def shop(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    return Shop(spark, broker, tmp_path)


WINDOWS = """
    SELECT shop, sum(amount) AS total, window.end AS until
    FROM orders GROUP BY shop, window(ts, '5 minutes')
"""


def test_windows_are_written_once_when_they_are_over(shop: Shop) -> None:
    """Also when a batch is done again; the columns that were inferred first stay."""
    shop.sell(range(12))
    shop.write("no JSON")
    shop.ask(WINDOWS, "totals", watermarks={"ts": "1 minute"}, key="shop")
    assert "columns inferred from its newest 25 records" in shop.messages[0] and "ts TIMESTAMP" in shop.messages[0]
    assert shop.messages[1].startswith("mode append")
    forget_the_last_commit(shop.folder / "totals")
    shop.sell(range(12, 17))
    shop.write('{"shop": 7, "new": true}')
    found = shop.ask(WINDOWS, "totals", watermarks={"ts": "1 minute"}, key="shop")
    assert len(shop.messages) == 3  # nothing was inferred again
    expected = [
        {"shop": name, "total": sum(minute + 0.5 for minute in range(start, start + 5)), "until": until}
        for name in ("coffee", "tea")
        for start, until in (
            (0, "2026-11-15T12:05:00.000Z"),
            (5, "2026-11-15T12:10:00.000Z"),
            (10, "2026-11-15T12:15:00.000Z"),
        )
    ]
    assert found == sorted(expected, key=json.dumps)
    keys = {record.key for record in shop.broker.records("totals")}
    assert keys == {b"tea", b"coffee"}


def test_the_checkpoint_is_below_that_of_the_session(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session on a cluster has a location that all its machines reach; without one the run's directory is used."""
    monkeypatch.setenv("LEVADA_PIPELINES", str(tmp_path / "runs"))
    location = "spark.sql.streaming.checkpointLocation"
    query = f"SELECT shop, amount FROM `{shop.orders}`"
    shop.sell(range(1))
    shop.spark.conf.set(location, f"file://{tmp_path}/shared/")
    try:
        assert sql(query, "sold", bootstrap=shop.broker.bootstrap, once=True, spark=shop.spark, name="sold").wait()
    finally:
        shop.spark.conf.unset(location)
    assert sql(query, "sold", bootstrap=shop.broker.bootstrap, once=True, spark=shop.spark, name="again").wait()
    assert (tmp_path / "shared" / "sold" / "metadata").exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["again"]


def test_groups_without_windows_are_written_as_they_change(shop: Shop) -> None:
    shop.sell(range(3))
    query = "SELECT shop, count(*) AS n FROM orders WHERE shop = 'tea' GROUP BY shop"
    schemas = {shop.orders: "shop string"}
    shop.ask(query, "counts", schemas=schemas)
    forget_the_last_commit(shop.folder / "counts")
    shop.sell(range(3, 5))
    shop.ask(query, "counts", schemas=schemas)
    values = [json.loads(record.value or b"") for record in shop.broker.records("counts")]
    assert values == [{"shop": "tea", "n": 3}, {"shop": "tea", "n": 5}]
    assert all("mode update: a group is written again" in text for text in shop.messages)


def test_text_is_a_table_too(shop: Shop) -> None:
    shop.write("all is well", "a")
    shop.write("ERROR: all is lost", "b")
    query = "SELECT _key AS who, value FROM orders WHERE value LIKE 'ERROR%'"
    assert shop.ask(query, "errors") == [{"who": "b", "value": "ERROR: all is lost"}]
    assert "not JSON objects" in shop.messages[0]


def test_what_does_not_fit_can_be_kept(shop: Shop) -> None:
    shop.sell(range(1))
    shop.write("rubbish")
    found = shop.ask("SELECT amount FROM orders", "amounts", dead_letters="unread")
    assert found == [{"amount": 0.5}, {"amount": 0.5}]
    assert [record.value for record in shop.broker.records("unread")] == [b"rubbish"]


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("SELECT shopp FROM orders", {}, r"shopp.*cannot be resolved.*`shop`.*line 1, position 7"),
    ("SELECT shop FROM orders ORDR BY 1", {}, r"(?s)^Syntax error at or near.*ORDR BY 1"),
    ("DROP TABLE x", {}, "only queries can be run"),
    ("SELECT 1 AS one", {}, "reads no topic"),
    ("SELECT * FROM range(3)", {}, "reads no topic"),
    ("SELECT * FROM `no-such-topic`", {}, "there is no topic no-such-topic"),
    ("SELECT shop FROM orders ORDER BY shop", {}, "cannot run over a stream. Sorting is not supported"),
    ("SELECT shop, count(*) FROM orders GROUP BY 1", {"mode": "append"}, "use update or complete"),
    ("SELECT shop FROM orders", {"watermarks": {"shop": "1 minute"}}, "it is string, not timestamp"),
    (
        "SELECT shop FROM orders",
        {"watermarks": {"when": "1 minute"}},
        "no table of the query has a column when",
    ),
    ("SELECT shop FROM orders", {"watermarks": {"ts": "soon"}}, "watermark ts: soon is not a duration"),
    ("SELECT shop FROM orders", {"key": "id"}, "no column id for the key; the query has shop"),
]


def test_errors_are_plain_sentences(shop: Shop) -> None:
    shop.sell(range(1))
    for number, (query, options, printed) in enumerate(ERRORS):
        with pytest.raises(PipelineError, match=printed):
            shop.ask(query, "never", name=f"wrong-{number}", **options)
    empty = shop.broker.topic()
    with pytest.raises(PipelineError, match=f"--schema {empty}="):
        shop.ask(f"SELECT * FROM `{empty}`", "never", name="wrong-empty")


def test_a_name_belongs_to_one_query(shop: Shop) -> None:
    shop.sell(range(1))
    shop.ask("SELECT shop FROM orders", "shops")
    with pytest.raises(PipelineError, match=r"started with other arguments.*query was SELECT shop"):
        shop.ask("SELECT amount FROM orders", "amounts", name="shops")


def test_a_query_does_not_read_what_it_writes(shop: Shop) -> None:
    shop.sell(range(1))
    with pytest.raises(PipelineError, match=f"the query reads {shop.orders}"):
        shop.ask("SELECT shop FROM orders", shop.orders)


def test_a_query_that_never_ran_keeps_no_name(shop: Shop) -> None:
    shop.sell(range(1))
    with pytest.raises(PipelineError, match="no column shpo"):
        shop.ask("SELECT shop FROM orders", "keys", name="again", key="shpo")
    shop.ask("SELECT amount FROM orders", "keys", name="again", key="amount")

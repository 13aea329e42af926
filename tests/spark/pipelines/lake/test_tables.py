"""A lake is a table that SQL finds by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.support.lakes import DAY_MS, archive_once, fill, fill_json, typed

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.tables import PARTITIONS_IN_CATALOG, register
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEXT_DAY_MS = DAY_MS + 86_400_000
COUNTS = "SELECT topic, string(date), count(*) FROM archived GROUP BY topic, date"


@pytest.fixture(autouse=True)
def no_tables(spark: "SparkSession") -> Iterator[None]:
    yield
    for view in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if view.tableType == 'TEMPORARY' else 'TABLE'} {view.name}")


def counts(spark: "SparkSession") -> set[tuple[str, str, int]]:
    return {tuple(row) for row in spark.sql(COUNTS).collect()}


@pytest.mark.parametrize("lake_format", ["parquet", "delta"])
def test_a_table_follows_the_commits(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, lake_format: str
) -> None:
    topic, other, lake = broker.topic(), broker.topic(), tmp_path / "lake"
    fill(broker, topic, 0, 5, DAY_MS)
    fill(broker, other, 0, 7, DAY_MS)
    archive_once(spark, broker, lake, topic, other, lake_format=lake_format, table="archived")
    first = {(topic, "2025-10-09", 5), (other, "2025-10-09", 7)}
    assert counts(spark) == first
    fill(broker, topic, 5, 5, NEXT_DAY_MS)
    archive_once(spark, broker, lake, topic, other, table="archived", files_max=1)
    assert counts(spark) == first | {(topic, "2025-10-10", 5)}
    tables = [(table.name, table.tableType) for table in spark.catalog.listTables()]
    assert tables == [("archived", "EXTERNAL" if lake_format == "parquet" else "TEMPORARY")]


def unmoved(lake: Path) -> None:
    """Put the file of the newest commit back to the staging area, as after a kill before it was moved."""
    commit = json.loads(max(lake.glob("_levada/commits/*.json")).read_text())
    for target, source in commit["staged"].items():
        staged = lake / "_levada" / "staging" / commit["area"] / source
        staged.parent.mkdir(parents=True)
        (lake / target).rename(staged)


def test_one_topic_is_a_table(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic, other, lake = broker.topic(), broker.topic(), tmp_path / "lake"
    with pytest.raises(LakeError, match="there is no lake at"):
        register(str(lake), "orders", spark=spark)
    fill(broker, topic, 0, 5, DAY_MS)
    archive_once(spark, broker, lake, topic)
    with pytest.raises(LakeError, match=f"has no records of {other} yet"):
        register(str(lake), "orders", topic=other, spark=spark)
    fill(broker, topic, 5, 1, DAY_MS)
    archive_once(spark, broker, lake, topic)
    unmoved(lake)
    before = spark.conf.get(PARTITIONS_IN_CATALOG)
    register(str(lake), "orders", topic=topic, spark=spark)
    register(str(lake), "orders", topic=topic, spark=spark)
    assert spark.conf.get(PARTITIONS_IN_CATALOG) == before
    found = spark.sql(
        "SELECT string(key), string(value) FROM orders WHERE date = '2025-10-09' ORDER BY offset"
    ).collect()
    assert [tuple(row) for row in found] == [(f"k{number}", f"v{number}") for number in range(5)]
    with pytest.raises(LakeError, match=f"the table orders exists, at .*topic={topic}; choose another name"):
        register(str(lake), "orders", spark=spark)
    with pytest.raises(LakeError, match="'my orders' cannot be the name of a table"):
        register(str(lake), "my orders", spark=spark)
    spark.range(1).createOrReplaceTempView("seen")
    with pytest.raises(LakeError, match="the table seen exists, at no path"):
        archive_once(spark, broker, lake, topic, table="seen")
    spark.sql("DROP TABLE orders")
    assert list(lake.glob("topic=*/date=*/*.parquet"))


@pytest.mark.parametrize("lake_format", ["parquet", "delta"])
def test_a_table_gets_the_columns_of_a_run(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, lake_format: str
) -> None:
    topic, lake = broker.topic(), tmp_path / "lake"
    for number, schema in enumerate(["a INT", "a INT, b STRING"]):
        fill_json(broker, topic, [{"a": number, "b": "x"}])
        archive_once(spark, broker, lake, topic, lake_format=lake_format, table="archived", **typed(schema))
        if number == 0 and lake_format == "parquet":
            spark.sql("ALTER TABLE archived SET TBLPROPERTIES ('by' = 'me')")
    found = spark.sql("SELECT value.a, value.b FROM archived ORDER BY offset").collect()
    assert [tuple(row) for row in found] == [(0, None), (1, "x")]
    if lake_format == "parquet":  # the same table: to drop and create it would hide it from other sessions meanwhile
        properties = {row.key: row.value for row in spark.sql("SHOW TBLPROPERTIES archived").collect()}
        assert properties["by"] == "me"


def test_topics_that_cannot_be_one_table_are_refused_before_the_claim(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic, other, lake = broker.topic(), broker.topic(), tmp_path / "lake"
    fill(broker, topic, 0, 1)
    archive_once(spark, broker, lake, topic)
    fill_json(broker, other, [{"a": 1}])
    before = sorted(lake.glob("_levada/commits/*.json"))
    with pytest.raises(
        LakeError, match=r"column value is (BINARY|STRUCT<a: INT>) in one topic of the lake .* in another"
    ):
        archive_once(spark, broker, lake, other, table="archived", **typed("a INT"))
    assert sorted(lake.glob("_levada/commits/*.json")) == before

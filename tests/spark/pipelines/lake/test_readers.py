"""Readers beside a running archive: their files stay, and filters read only the directories they need."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.spark.support.lakes import DAY_MS, archive_once, fill, send_at

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.commits import CompactionPolicy
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake
from levada.pipelines.lake.tables import register
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMS = pytest.mark.parametrize("form", ["parquet", "delta"])
NEXT_DAY_MS = DAY_MS + 86_400_000


def records(spark: "SparkSession", topic: str, first: int, count: int) -> "DataFrame":
    return spark.range(first, first + count, 1, 1).selectExpr(
        "binary(string(id)) AS key",
        "binary(concat('v', id)) AS value",
        f"'{topic}' AS topic",
        "0 AS partition",
        "id AS offset",
        f"timestamp_millis({DAY_MS}) AS timestamp",
    )


def values(rows: "DataFrame") -> list[str]:
    return sorted(row.v for row in rows.selectExpr("string(value) v").collect())


@FORMS
def test_files_of_a_reader_stay_for_the_retention(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    """Through a merge, and through the move of merged files that comes after the retention."""
    path, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 6, DAY_MS)
    lake = open_lake(spark, str(path), form)
    lake.claim()
    for first in range(0, 6, 2):
        lake.add(records(spark, topic, first, 2), {topic: {0: first + 2}})

    def read() -> "DataFrame":
        return history(topic, str(path), bootstrap=broker.bootstrap, spark=spark)

    def in_directory() -> list[str]:
        return values(spark.read.parquet(str(path)) if form == "parquet" else read())

    everything = [f"v{number}" for number in range(6)]
    before = read()
    assert lake.compact(spark, CompactionPolicy(files_max=2)) == 3
    lake.vacuum()
    after = read()
    assert len(after.inputFiles()) == 1 < len(before.inputFiles()) == 3
    assert values(before) == values(after) == in_directory() == everything
    lake.vacuum(1)  # of a millisecond: the originals go
    assert values(after) == values(read()) == in_directory() == everything
    lake.vacuum(0)
    assert values(read()) == in_directory() == everything
    assert len(list(path.glob("topic=*/date=*/*.parquet"))) == 1
    assert not list((path / "_levada" / "staging").glob("*/**/*.parquet"))


def test_planned_readers_of_the_directory_are_whole_or_fail(spark: "SparkSession", tmp_path: Path) -> None:
    """A directory has the originals or the merged file. What was planned before fails after that; it loses no rows."""
    path, everything = tmp_path / "lake", [f"v{number}" for number in range(3)]
    lake = open_lake(spark, str(path))
    lake.claim()
    for first in range(3):
        lake.add(records(spark, "t", first, 1), {"t": {0: first + 1}})
    register(str(path), "planned", spark=spark)
    try:
        held = [spark.read.parquet(str(path)), spark.table("planned")]
        lake.compact(spark, CompactionPolicy(files_max=2))
        lake.vacuum()
        assert [values(rows) for rows in [*held, spark.read.parquet(str(path))]] == [everything] * 3
        lake.vacuum(0)
        for rows in held:
            with pytest.raises(Exception, match=r"FILE_NOT_EXIST"):
                values(rows)
        spark.sql("REFRESH TABLE planned")
        assert values(spark.table("planned")) == values(spark.read.parquet(str(path))) == everything
    finally:
        spark.sql("DROP TABLE planned")


@FORMS
def test_history_prunes_by_date_and_topic(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    lake, topic, other = tmp_path / "lake", broker.topic(), broker.topic()
    fill(broker, topic, 0, 5, DAY_MS)
    fill(broker, topic, 5, 3, NEXT_DAY_MS)
    fill(broker, other, 0, 1, DAY_MS)
    archive_once(spark, broker, lake, topic, other, lake_format=form)
    fill(broker, topic, 8, 2, NEXT_DAY_MS)  # in the log only
    whole = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark)
    days = {row.date: row.n for row in whole.groupBy("date").agg({"*": "count"}).toDF("date", "n").collect()}
    assert days == {date(2025, 10, 9): 5, date(2025, 10, 10): 5}
    for condition, wanted, files in [
        ("true", 10, 2),
        ("date = '2025-10-10'", 5, 1),
        ("date > '2025-10-10'", 0, 0),
        (f"topic = '{topic}' AND date = '2025-10-09'", 5, 1),
        (f"topic = '{other}'", 0, 0),
    ]:
        found = whole.where(condition).select("offset")
        assert (len(found.collect()), files_read(found)) == (wanted, files), condition
    plan = whole.where("date = '2025-10-10'")._jdf.queryExecution().toString()
    assert "PartitionFilters: [isnotnull(date" in plan


def files_read(rows: "DataFrame") -> int:
    """How many files of a lake the executed plan has read."""
    leaves = rows._jdf.queryExecution().executedPlan().collectLeaves()
    names = [leaves.apply(index) for index in range(leaves.size())]
    scans = [leaf for leaf in names if leaf.metrics().contains("numFiles")]
    return sum(int(scan.metrics().apply("numFiles").value()) for scan in scans)


def test_dates_are_of_utc_in_every_session(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    late_ms = DAY_MS - DAY_MS % 86_400_000 + 86_399_000  # a second before midnight
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 1, late_ms)
    tokyo = spark.newSession()
    tokyo.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    archive_once(tokyo, broker, lake, topic)
    assert [path.name for path in lake.glob("topic=*/date=*")] == ["date=2025-10-09"]
    fill(broker, topic, 0, 1, late_ms)
    rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=tokyo)
    assert [row.d for row in rows.selectExpr("string(date) d").collect()] == ["2025-10-09"] * 2


def test_a_delta_table_keeps_merged_files_for_delta_s_own_retention(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "lake"
    lake = open_lake(spark, str(path), "delta")
    lake.claim()
    for first in range(3):
        lake.add(records(spark, "t", first, 1), {"t": {0: first + 1}})
    lake.compact(spark, CompactionPolicy(files_max=2))
    lake.vacuum()
    assert len(list(path.glob("topic=*/date=*/*.parquet"))) == 4 and len(DeltaTable(path).file_uris()) == 1
    assert DeltaTable(path, version=DeltaTable(path).version() - 1).count() == 3


@FORMS
def test_dates_that_readers_cannot_parse_are_null(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    """A client may send any time. One such date in a Delta table would be the end of it for all readers."""
    lake, topic = tmp_path / "lake", broker.topic(retention_ms=-1)
    outside = [-9_223_372_036_854_775, -199_997 * 31_556_952_000, -62_135_596_800_001]
    for times in ([DAY_MS], [*outside, -62_135_596_800_000], [-1]):
        send_at(broker, topic, *times)
        archive_once(spark, broker, lake, topic, lake_format=form, files_max=1, retention_ms=0)
    rows = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark)
    days = [row.d for row in rows.orderBy("offset").selectExpr("string(date) d").collect()]
    assert days == ["2025-10-09", None, None, None, "0001-01-01", "1969-12-31"]
    if form == "delta":
        assert DeltaTable(lake).to_pyarrow_table(columns=["offset", "date"])["date"].null_count == 3
    rows = rows.where("date IS NULL").selectExpr("unix_millis(timestamp) ms")
    assert sorted(row.ms for row in rows.collect()) == sorted(outside)


@FORMS
def test_a_file_of_another_size_is_not_read(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    """Spark reads an empty file as one without rows."""
    lake, topic = tmp_path / "lake", broker.topic()
    for first in (0, 5):
        fill(broker, topic, first, 5, DAY_MS)
        archive_once(spark, broker, lake, topic, lake_format=form)
    file = min(lake.glob("topic=*/date=*/*.parquet"))
    size = file.stat().st_size
    file.write_bytes(b"")
    file.with_name(f".{file.name}.crc").unlink()
    with pytest.raises(LakeError, match=rf"{file} is damaged: it has 0 bytes instead of {size}. Restore"):
        history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark)

"""A lake as a Delta table: readers of Delta and Levada's own see every record once."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from tests.spark.support.lakes import DAY_MS, archive_once, fill

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.delta import DeltaLake
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_table_grows_with_its_topic(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic(partitions=2)
    fill(broker, topic, 0, 100)
    archive_once(spark, broker, lake, topic, lake_format="delta")
    fill(broker, topic, 100, 50)
    shutil.rmtree(lake / "_levada" / "checkpoint")
    archive_once(spark, broker, lake, topic)
    table = DeltaTable(lake)
    rows = table.to_pyarrow_table(columns=["value", "topic", "partition", "offset", "timestamp", "date"])
    assert sorted(rows["value"].to_pylist()) == sorted(f"v{number}".encode() for number in range(150))
    assert set(rows["topic"].to_pylist()) == {topic}
    ends = open_lake(spark, str(lake)).end_offsets(topic, [0, 1, 2])
    assert sum(ends.values()) == 150 and set(ends) == {0, 1}
    fill(broker, topic, 150, 10)  # in the log only
    whole = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark)
    assert sorted(row.v for row in whole.selectExpr("string(value) v").collect()) == sorted(
        f"v{number}" for number in range(160)
    )


def test_small_files_are_joined(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    for first in range(0, 30, 10):
        fill(broker, topic, first, 10, DAY_MS)
        archive_once(spark, broker, lake, topic, lake_format="delta", files_max=2)
    table = DeltaTable(lake)
    assert len(table.file_uris()) == 1
    assert sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist()) == list(range(30))


def test_what_was_not_committed_is_not_there(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    """As after a crash between Delta's commit and Spark's, and with files that no commit names."""
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 20, DAY_MS)
    archive_once(spark, broker, lake, topic, lake_format="delta")
    (known,) = lake.glob("topic=*/date=*/*.parquet")
    shutil.copy(known, known.parent / "left-by-a-killed-writer.parquet")
    (lake / "_levada" / "staging" / "half").mkdir(parents=True)
    for commits in (lake / "_levada" / "checkpoint").glob("*/commits"):
        shutil.rmtree(commits)
    archive_once(spark, broker, lake, topic)
    assert DeltaTable(lake).count() == 20
    assert not (lake / "_levada" / "staging" / "half").exists()
    assert history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark).count() == 20


def test_who_makes_the_table_is_its_writer(spark: "SparkSession", tmp_path: Path) -> None:
    """Before there is one, nothing can be claimed."""
    rows = spark.sql("SELECT 't' AS topic, 0 AS partition, id AS offset, now() AS timestamp FROM range(5)")
    first, second = (DeltaLake(Files(spark, str(tmp_path / "lake"))) for _ in range(2))
    first.claim()
    second.claim()
    first.add(rows, {"t": {0: 5}})
    first.check()
    with pytest.raises(DeltaError):
        second.add(rows, {"t": {0: 5}})
    with pytest.raises(LakeError, match="has another writer"):
        second.check()
    second.claim()
    assert second.end_offsets("t", [0]) == {0: 5} and first.claim_name < second.claim_name
    with pytest.raises(DeltaError):
        first.add(rows, {"u": {0: 5}})  # of another topic, so that only the claims meet
    with pytest.raises(DeltaError):
        first.add(rows.withColumn("more", rows["offset"]), {"u": {0: 5}})
    assert "more" not in [field.name for field in DeltaTable(tmp_path / "lake").schema().fields]
    with pytest.raises(LakeError, match="has another writer"):
        first.check()
    assert DeltaTable(tmp_path / "lake").count() == 5


def test_a_lake_keeps_its_format(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = broker.topic()
    fill(broker, topic, 0, 5)
    archive_once(spark, broker, tmp_path / "lake", topic, lake_format="delta")
    with pytest.raises(LakeError, match="in the format delta and cannot change to"):
        open_lake(spark, str(tmp_path / "lake"), "parquet")
    with pytest.raises(LakeError, match="unknown lake format 'orc'"):
        open_lake(spark, str(tmp_path / "other"), "orc")

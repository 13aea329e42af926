"""archive: every record of a topic is in the lake once, whatever dies or is lost in between (R61)."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.lakes import archive_once, fill

from levada.pipelines.files import Files
from levada.pipelines.lake import Lake
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def values(spark: "SparkSession", lake: Path) -> list[str]:
    found = spark.read.parquet(str(lake)).selectExpr("string(value) v", "topic", "date").collect()
    return sorted(row.v for row in found)


def test_a_lake_grows_with_its_topics(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, first, second = tmp_path / "lake", broker.topic(partitions=2), broker.topic()
    fill(broker, first, 0, 100)
    fill(broker, second, 1000, 10)
    archive_once(spark, broker, lake, first, second)
    assert len(values(spark, lake)) == 110
    fill(broker, first, 100, 50)
    archive_once(spark, broker, lake, first, second)
    archive_once(spark, broker, lake, first, second)
    assert len(values(spark, lake)) == len(set(values(spark, lake))) == 160
    state = Lake(Files(spark, str(lake))).state
    assert sum(state.ends[first].values()) == 150 and state.ends[second] == {0: 10} and state.rows == 160


def test_the_topics_of_a_lake_may_change(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    lake, first, second = tmp_path / "lake", broker.topic(), broker.topic()
    fill(broker, first, 0, 10)
    fill(broker, second, 10, 10)
    archive_once(spark, broker, lake, first)
    archive_once(spark, broker, lake, second)
    fill(broker, first, 20, 10)
    archive_once(spark, broker, lake, first, second)
    assert values(spark, lake) == sorted(f"v{number}" for number in range(30))


def test_a_lost_checkpoint_loses_and_doubles_nothing(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    lake, topic = tmp_path / "lake", broker.topic(partitions=2)
    fill(broker, topic, 0, 100)
    archive_once(spark, broker, lake, topic)
    shutil.rmtree(lake / "_levada" / "checkpoint")
    fill(broker, topic, 100, 20)
    archive_once(spark, broker, lake, topic)
    assert sorted(values(spark, lake)) == sorted(f"v{number}" for number in range(120))


@pytest.mark.parametrize("kept", [True, False])
def test_a_batch_that_comes_again_is_left_out(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, kept: bool
) -> None:
    """As after a crash between the lake's commit and Spark's, or (not kept) before the lake's."""
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 100)
    archive_once(spark, broker, lake, topic)
    commits = sorted((lake / "_levada" / "checkpoint" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    for hidden in (lake / "_levada" / "checkpoint" / "commits").glob(".*.crc"):
        hidden.unlink()
    if not kept:
        shutil.rmtree(lake / "_levada" / "commits")
        shutil.rmtree(lake / f"topic={topic}")
    fill(broker, topic, 100, 20)
    archive_once(spark, broker, lake, topic)
    assert sorted(values(spark, lake)) == sorted(f"v{number}" for number in range(120))


def test_small_files_are_joined(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    for first in range(0, 40, 10):
        fill(broker, topic, first, 10)
        archive_once(spark, broker, lake, topic, files_max=2)
    files = list(lake.glob("topic=*/date=*/*.parquet"))
    assert len(files) <= 2
    assert values(spark, lake) == sorted(f"v{number}" for number in range(40))
    offsets = [row.offset for row in spark.read.parquet(str(lake)).select("offset").collect()]
    assert sorted(offsets) == list(range(40))


def test_the_commits_can_be_read_by_people(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 7)
    archive_once(spark, broker, lake, topic)
    (commit,) = (lake / "_levada" / "commits").glob("*.json")
    content = json.loads(commit.read_text())
    assert content["ends"] == {topic: {"0": 7}} and content["rows"] == 7

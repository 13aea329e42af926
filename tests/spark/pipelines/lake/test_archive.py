"""archive: every record of a topic is in the lake once, whatever dies or is lost in between."""

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.support.lakes import DAY_MS, archive_once, fill

from levada.pipelines.errors import PipelineError
from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.lake import open_lake
from levada.pipelines.lake.parquet import ParquetLake
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
    state = ParquetLake(Files(spark, str(lake))).state
    assert sum(state.ends[first].values()) == 150 and state.ends[second] == {0: 10} and state.rows == 160


def test_the_topics_of_a_lake_may_change(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
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
def test_the_lake_says_where_a_run_begins(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, kept: bool
) -> None:
    """As after a crash between the lake's commit and Spark's, or (not kept) before the lake's."""
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 100)
    archive_once(spark, broker, lake, topic)
    (checkpoint,) = (lake / "_levada" / "checkpoint").iterdir()
    shutil.rmtree(checkpoint / "commits")
    if not kept:
        shutil.rmtree(lake / "_levada" / "commits")
        shutil.rmtree(lake / f"topic={topic}")
    fill(broker, topic, 100, 20)
    archive_once(spark, broker, lake, topic)
    assert sorted(values(spark, lake)) == sorted(f"v{number}" for number in range(120))


def test_records_that_come_again_are_left_out(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 100)
    archive_once(spark, broker, lake, topic)
    fill(broker, topic, 100, 20)
    again = archive([topic], str(lake), bootstrap=broker.bootstrap, once=True, spark=spark, startingOffsets="earliest")
    assert again.wait(300)
    assert sorted(values(spark, lake)) == sorted(f"v{number}" for number in range(120))


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_the_last_run_has_the_lake(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str) -> None:
    """The writer before it fails with an error that says so and adds nothing; a later run goes on with its topic."""
    lake, first, second = str(tmp_path / "lake"), broker.topic(), broker.topic()
    fill(broker, first, 0, 10)
    running = archive(
        [first],
        lake,
        bootstrap=broker.bootstrap,
        every="0 seconds",
        lake_format=form,
        spark=spark,
        name="first",
    )
    next(query for query in spark.streams.active if query.name == "first").processAllAvailable()
    fill(broker, second, 10, 10)
    archive_once(spark, broker, lake, second)
    assert running.is_active
    fill(broker, first, 20, 10)
    with pytest.raises(PipelineError, match="has another writer"):
        running.wait(300)

    def kept() -> list[str]:
        rows = spark.read.parquet(*open_lake(spark, lake).paths()).selectExpr("string(value) v").collect()
        return sorted(row.v for row in rows)

    assert kept() == sorted(f"v{number}" for number in range(20))
    archive_once(spark, broker, lake, first, second)
    assert kept() == sorted(f"v{number}" for number in range(30))


def test_of_many_who_create_a_file_one_succeeds(spark: "SparkSession", tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path / "a lake"))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda index: files.create("log/0.json", str(index)), range(40)))
    assert made.count(True) == 1
    assert files.read("log/0.json") == str(made.index(True))
    assert files.names("log") == ["0.json"]


def test_a_file_that_is_replaced_is_never_missing(spark: "SparkSession", tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path / "a lake"))
    files.write("kept/done", "0")

    def write_on() -> None:
        for number in range(100):
            files.write("kept/done", str(number))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_on)
        while not writing.done():
            assert int((tmp_path / "a lake/kept/done").read_text()) < 100
        writing.result()
    assert files.read("kept/done") == "99" and files.names("kept") == ["done"]


def test_a_file_is_created_once_where_there_are_no_links(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    files = Files(spark, str(tmp_path / "lake"))
    assert files.create("log/0.json", "first") and not files.create("log/0.json", "second")
    files.link("log/0.json", "other/1.json")
    assert files.read("log/0.json") == files.read("other/1.json") == "first"
    assert files.names("log") == ["0.json"] and files.names("other") == ["1.json"]


def test_small_files_are_joined(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    for first in range(0, 40, 10):
        fill(broker, topic, first, 10, DAY_MS)
        archive_once(spark, broker, lake, topic, files_max=2, retention_ms=0)
    files = list(lake.glob("topic=*/date=*/*.parquet"))
    assert len(files) <= 2
    assert values(spark, lake) == sorted(f"v{number}" for number in range(40))
    offsets = [row.offset for row in spark.read.parquet(str(lake)).select("offset").collect()]
    assert sorted(offsets) == list(range(40))


def test_the_commits_can_be_read_by_people(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 7)
    archive_once(spark, broker, lake, topic)
    claim, commit = sorted((lake / "_levada" / "commits").glob("*.json"))
    assert json.loads(claim.read_text())["added"] == []
    content = json.loads(commit.read_text())
    assert content["ends"] == {topic: {"0": 7}} and content["rows"] == 7

"""A lake on HDFS is the same lake."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.support.hdfs import hdfs
from tests.spark.support.lakes import DAY_MS, archive_once, fill
from tests.support.downloads import Unavailable, must_be_had

from levada.pipelines.lake.files import Files
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake
from levada.pipelines.lake.parquet import STAGING
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_lake_on_hdfs(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = broker.topic(partitions=2)
    try:
        with hdfs(tmp_path) as address:
            lake = f"{address}/lakes/main"
            for first in range(0, 90, 30):
                fill(broker, topic, first, 30, DAY_MS)
                archive_once(spark, broker, lake, topic, files_max=2, retention_ms=1)
            found = spark.read.parquet(lake).selectExpr("string(value) v").collect()
            assert sorted(row.v for row in found) == sorted(f"v{number}" for number in range(90))
            files = Files(spark, lake)
            writer = open_lake(spark, lake)
            writer.claim()
            writer.vacuum(0)
            assert len(list(files.walk(f"topic={topic}"))) <= 2 and not list(files.walk(STAGING))
            for text in ("one", "another"):
                files.write("kept/done", text)
                assert files.read("kept/done") == text
            fill(broker, topic, 90, 10)
            whole = history(topic, lake, bootstrap=broker.bootstrap, spark=spark)
            assert whole.select("partition", "offset").distinct().count() == whole.count() == 100
    except Unavailable as reason:
        must_be_had("Hadoop's minicluster", reason)

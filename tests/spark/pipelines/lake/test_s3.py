"""A lake on S3 is the same lake: against the API of S3, with Hadoop's own client and deltalake's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake.exceptions import CommitFailedError
from tests.spark.support.jars import jar_settings
from tests.spark.support.lakes import DAY_MS, archive_once, fill
from tests.spark.support.s3 import Bucket, s3
from tests.support.downloads import Unavailable, must_be_had

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake
from levada.pipelines.lake.parquet import STAGING
from levada.pipelines.lake.replay import replay
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def bucket(spark: "SparkSession") -> Iterator[Bucket]:
    try:
        with s3("lakes") as own:
            own.configure(spark)
            yield own
    except Unavailable as reason:
        must_be_had("Hadoop's client of S3", reason)


def staged(spark: "SparkSession", lake: str) -> list[str]:
    return [file.path for file in Files(spark, lake).walk(STAGING) if file.path.endswith(".parquet")]


@pytest.mark.parametrize("lake_format", ["parquet", "delta"])
def test_a_topic_goes_to_s3_and_comes_back(
    spark: "SparkSession", broker: EmbeddedBroker, bucket: Bucket, lake_format: str
) -> None:
    topic, again = broker.topic(partitions=2), broker.topic(partitions=2, retention_ms=-1)
    lake = bucket.path(lake_format)
    for first in range(0, 60, 30):
        fill(broker, topic, first, 30, DAY_MS)
        archive_once(spark, broker, lake, topic, files_max=1, lake_format=lake_format)
    fill(broker, topic, 60, 10)
    whole = history(topic, lake, bootstrap=broker.bootstrap, spark=spark)
    found = [row.v for row in whole.selectExpr("string(value) v").collect()]
    assert sorted(found) == sorted(f"v{number}" for number in range(70))
    if lake_format == "parquet":  # a rename is a copy, which a reader does not wait for
        assert staged(spark, lake)
        open_lake(spark, lake).vacuum(0)
    assert not staged(spark, lake)
    assert replay(topic, lake, again, bootstrap=broker.bootstrap, spark=spark).wait(300)
    assert sorted(record.value or b"" for record in broker.records(again)) == sorted(
        f"v{number}".encode() for number in range(60)
    )


@pytest.mark.parametrize("lake_format", ["parquet", "delta"])
def test_an_earlier_writer_is_fenced(
    spark: "SparkSession", broker: EmbeddedBroker, bucket: Bucket, lake_format: str
) -> None:
    topic, lake = broker.topic(), bucket.path(f"fenced-{lake_format}")
    fill(broker, topic, 0, 5)
    archive_once(spark, broker, lake, topic, lake_format=lake_format)
    earlier, later = open_lake(spark, lake), open_lake(spark, lake)
    earlier.claim()
    later.claim()
    source = spark.read.format("levada").option("kafka.bootstrap.servers", broker.bootstrap)
    rows = source.option("subscribe", topic).load()
    with pytest.raises((LakeError, CommitFailedError)):
        earlier.add(rows, {topic: {0: 6}})
    with pytest.raises(LakeError, match="has another writer"):
        earlier.check()
    assert open_lake(spark, lake).end_offsets(topic, [0]) == {0: 5}


def test_one_of_many_writers_creates_a_commit(spark: "SparkSession", bucket: Bucket) -> None:
    files = Files(spark, bucket.path("commits"))
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            created = list(pool.map(files.create, [f"{number}.json"] * 8, map(str, range(8))))
            assert created.count(True) == 1, created
            assert files.read(f"{number}.json") == str(created.index(True))
    assert len(files.names("")) == 10  # and nothing temporary


def test_the_command_takes_the_settings_of_s3(broker: EmbeddedBroker, bucket: Bucket, tmp_path: Path) -> None:
    topic = broker.topic()
    fill(broker, topic, 0, 5)
    words = ["run", "archive", "--topic", topic, "--to", bucket.path("command"), "--once", "--master", "local[1]"]
    settings = jar_settings() | {f"spark.hadoop.{name}": value for name, value in bucket.settings.items()}
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(Path(sys.executable).parent / "levada"), "pipeline", *words, *given]
    environment = os.environ | {"LEVADA_BOOTSTRAP": broker.bootstrap, "LEVADA_PIPELINES": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "has processed all records" in done.stderr


@pytest.mark.parametrize(
    ("lake", "advice"),
    [("s3a://bucket/lake", "with the --conf lines of docs/lakes.md#s3"), ("s3://bucket/lake", "write s3a:// instead")],
)
def test_a_session_without_the_client_of_s3_says_what_it_needs(
    broker: EmbeddedBroker, tmp_path: Path, lake: str, advice: str
) -> None:
    topic = broker.topic()
    words = ["run", "archive", "--topic", topic, "--to", lake, "--once", "--master", "local[1]"]
    command = [str(Path(sys.executable).parent / "levada"), "pipeline", *words]
    environment = os.environ | {"LEVADA_BOOTSTRAP": broker.bootstrap, "LEVADA_PIPELINES": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert f"Spark cannot open {lake}: " in done.stderr and advice in done.stderr


def test_a_bucket_that_does_not_exist_is_reported(
    spark: "SparkSession", broker: EmbeddedBroker, bucket: Bucket
) -> None:
    other = Bucket("nosuch", bucket.settings)
    other.configure(spark)
    with pytest.raises(LakeError, match="a lake at s3a://nosuch/lake: The specified bucket does not exist"):
        archive([broker.topic()], other.path("lake"), bootstrap=broker.bootstrap, spark=spark)

"""A lake belongs to topics, not to names: one that was deleted and made again is never taken for the old one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.spark.support.lakes import archive_once, fill

from levada.pipelines.errors import LakeError, PipelineError
from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import open_lake
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMS = pytest.mark.parametrize("form", ["parquet", "delta"])
REFUSED = "has the records of another topic .*archive this topic to another lake"


def make_again(broker: EmbeddedBroker, topic: str, count: int) -> None:
    """Delete the topic and make one of its name, with other records."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    fill(broker, topic, 1000, count)


@FORMS
@pytest.mark.parametrize("count", [30, 300])
def test_a_topic_made_again_is_another_one(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str, count: int
) -> None:
    """Whether its log is shorter than what the lake has, or longer."""
    lake, topic = str(tmp_path / "lake"), broker.topic()
    fill(broker, topic, 0, 100)
    archive_once(spark, broker, lake, topic, lake_format=form)
    make_again(broker, topic, count)
    with pytest.raises(LakeError, match=REFUSED):
        archive([topic], lake, bootstrap=broker.bootstrap, once=True, spark=spark, failOnDataLoss="false")
    with pytest.raises(LakeError, match=REFUSED):
        history(topic, lake, bootstrap=broker.bootstrap, spark=spark, gaps=True)
    assert spark.read.parquet(*open_lake(spark, lake).paths(topic)).count() == 100
    archive_once(spark, broker, tmp_path / "other", topic)
    assert history(topic, str(tmp_path / "other"), bootstrap=broker.bootstrap, spark=spark).count() == count


@FORMS
@pytest.mark.parametrize("count", [30, 300])
def test_a_topic_made_again_under_a_run_ends_it(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str, count: int
) -> None:
    lake, topic = str(tmp_path / "lake"), broker.topic()
    fill(broker, topic, 0, 100)
    running = archive(
        [topic],
        lake,
        bootstrap=broker.bootstrap,
        every="0 seconds",
        lake_format=form,
        spark=spark,
        name="made again",
        failOnDataLoss="false",
    )
    next(query for query in spark.streams.active if query.name == "made again").processAllAvailable()
    make_again(broker, topic, count)
    with pytest.raises(PipelineError, match=REFUSED):
        running.wait(300)
    assert spark.read.parquet(*open_lake(spark, lake).paths(topic)).count() == 100


def test_an_older_lake_takes_the_id_it_meets_first(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Also if there is nothing new to archive."""
    lake, topic = tmp_path / "lake", broker.topic()
    fill(broker, topic, 0, 10)
    archive_once(spark, broker, lake, topic)
    for path in (lake / "_levada" / "commits").glob("*.json"):
        content = json.loads(path.read_text())
        del content["ids"]
        path.write_text(json.dumps(content))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    assert history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark).count() == 10
    archive_once(spark, broker, lake, topic)
    make_again(broker, topic, 20)
    with pytest.raises(LakeError, match=REFUSED):
        archive_once(spark, broker, lake, topic)


def test_what_means_no_topic_is_no_topic_of_a_lake(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="cannot be archived"):
        archive(["__HIVE_DEFAULT_PARTITION__"], str(tmp_path / "lake"), spark=spark)

"""Values of 1 MB go through a lake within Spark's default memory: archived, compacted, queried and replayed."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from tests.spark.support.lakes import archive_once

from levada.pipelines.lake.history import history
from levada.pipelines.lake.replay import replay
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, SIZE = 120, 1_000_000


def test_values_of_1_mb_fit_into_1_gb(spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic, again, lake = broker.topic(partitions=2), broker.topic(partitions=2), tmp_path / "lake"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 2 * SIZE})
    noise = random.Random(7).randbytes(2 * SIZE)  # does not compress
    for number in range(COUNT):
        producer.produce(topic, noise[number : number + SIZE], partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    archive_once(spark, broker, lake, topic, files_max=1)
    found = history(topic, str(lake), bootstrap=broker.bootstrap, spark=spark)
    assert tuple(found.selectExpr("count(*)", "sum(length(value))").collect()[0]) == (COUNT, COUNT * SIZE)
    assert replay(topic, str(lake), again, bootstrap=broker.bootstrap, spark=spark).wait(300)
    assert len(broker.records(again)) == COUNT

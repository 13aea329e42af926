"""Large values pass through Spark's default memory of 1 GB: written, read, and in users' own Arrow functions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.spark.support.connector import Levada

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT, SIZE = 800, 1_000_000
MAX_HEAP = 1 << 30  # of a JVM without settings of its memory


def large_values(spark: "SparkSession") -> "DataFrame":
    jvm: Any = spark.sparkContext._jvm
    assert jvm.Runtime.getRuntime().maxMemory() <= MAX_HEAP
    return spark.range(0, COUNT, 1, 2).selectExpr("string(id) key", f"repeat('x', {SIZE}) value")


def test_800_values_of_1_mb_are_written_and_read(topics: Levada, spark: "SparkSession") -> None:
    topic = topics.broker.topic(partitions=2)
    options = {"kafka.bootstrap.servers": topics.broker.bootstrap, "topic": topic, "kafka.compression.type": "lz4"}
    large_values(spark).write.format("levada").mode("append").options(**options).save()
    found = topics.read(subscribe=topic).selectExpr("count(*)", "sum(length(value))").collect()[0]
    assert tuple(found) == (COUNT, COUNT * SIZE)


def test_arrow_functions_of_users_take_large_values(spark: "SparkSession") -> None:
    def sizes(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            sizes = pc.binary_length(batch.column("value")).cast(pa.int64())
            yield pa.RecordBatch.from_arrays([sizes], names=["size"])

    found = large_values(spark).mapInArrow(sizes, "size long").selectExpr("count(*)", "sum(size)").collect()[0]
    assert tuple(found) == (COUNT, COUNT * SIZE)

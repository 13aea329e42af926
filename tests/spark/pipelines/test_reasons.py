"""A failed pipeline reports its cause in a sentence, wherever Python raised it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from levada.pipelines.errors import PipelineError
from levada.pipelines.runs.queries import RunningPipeline
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def fail(explained: bool) -> None:
    """On a worker, with an exception whose name ends as it likes."""
    from levada.errors import ErrorCode
    from levada.spark.errors import DataLoss, spark_callback

    class Odd(Exception):
        pass

    if explained:
        with spark_callback():
            raise DataLoss(ErrorCode.OFFSET_OUT_OF_RANGE, "the value is odd")
    raise Odd("the value is odd")


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("explained", [True, False])
def test_the_cause_on_a_worker_is_reported(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, in_batch: bool, explained: bool
) -> None:
    from pyspark.sql.functions import udf

    failing = udf(lambda _: fail(explained), "long")
    rows = spark.readStream.format("rate").load()

    def write(batch: "DataFrame", number: int) -> None:
        batch.select(failing("value")).write.format("noop").mode("overwrite").save()

    writer = rows.writeStream if in_batch else rows.select(failing("value")).writeStream.format("noop")
    writer = writer.foreachBatch(write) if in_batch else writer
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(PipelineError, match=r"^pipeline odd failed: [^\n]*the value is odd") as failure:
        RunningPipeline("odd", [query]).wait(300)
    assert "Odd" not in str(failure.value) and "Traceback" not in str(failure.value)

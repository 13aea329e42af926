"""Invalid paths of lakes give clear errors."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.support.lakes import fill

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.archive import archive, batch_ends
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.history import query_history
from levada.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("form", ["parquet", "delta"])
@pytest.mark.parametrize("place", ["a-file", "a-file/below", "x" * 300, "/proc/lake", "nowhere://host/lake"])
def test_where_nothing_can_be_written_is_no_lake(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path, form: str, place: str
) -> None:
    (tmp_path / "a-file").write_text("of somebody else")
    topic = broker.topic()
    fill(broker, topic, 0, 1)
    path = place if ":" in place else str(tmp_path / place)
    with pytest.raises(LakeError, match=r"cannot open or create a lake at [^\n\x1b]+: (?!Generic)[^\n\x1b]+$"):
        archive([topic], path, bootstrap=broker.bootstrap, lake_format=form, spark=spark)


def test_what_spark_would_not_find_again_is_not_written(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="a glob pattern"):
        archive(["orders"], str(tmp_path / "lake[1]"), spark=spark)
    with pytest.raises(LakeError, match="a glob pattern"):
        query_history("orders", str(tmp_path / "lake"), "SELECT 1", str(tmp_path / "{a,b}"), spark=spark)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "v1\n{}\n", "v1\n{}\n[]", "v1\n{}\n{"])
def test_a_damaged_checkpoint_is_named(spark: "SparkSession", tmp_path: Path, text: str) -> None:
    """It is of one run: the next begins where the lake ends, with one of its own."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(text)
    with pytest.raises(LakeError, match="offsets/3 is damaged; start the pipeline again"):
        batch_ends(Files(spark, str(tmp_path)), 3)

"""A lake by its path, in whichever of its formats it is kept."""

from typing import TYPE_CHECKING

from levada.pipelines.compacting import Sizes, compact
from levada.pipelines.delta import LOG, DeltaLake
from levada.pipelines.files import Files
from levada.pipelines.lake import COMMITS, Lake, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyLake = Lake | DeltaLake
FORMATS: dict[str, type[AnyLake]] = {"parquet": Lake, "delta": DeltaLake}


def open_lake(spark: "SparkSession", path: str, form: str | None = None) -> AnyLake:
    """The lake at a path, in the format it has; a new one in the one that is wanted, Parquet unless told."""
    files = Files(spark, path)
    has = "delta" if files.exists(LOG) else "parquet" if files.exists(COMMITS) else None
    if form is not None and form not in FORMATS:
        raise LakeError(f"{form!r} is no format of a lake; there are: {', '.join(FORMATS)}")
    if has is not None and form is not None and has != form:
        raise LakeError(f"{path} is a lake in the format {has} already; it cannot become one in {form}")
    return FORMATS[has or form or "parquet"](files)


def check_lake(spark: "SparkSession", path: str) -> None:
    """LakeError unless there is a lake."""
    files = Files(spark, path)
    if not files.exists(LOG) and not files.exists(COMMITS):
        raise LakeError(f"there is no lake at {path}")


def tidy(spark: "SparkSession", lake: AnyLake, sizes: Sizes) -> int:
    """Join small files where there are many; how many went."""
    return compact(spark, lake, sizes) if isinstance(lake, Lake) else lake.compact(sizes)

"""A lake by its path, in whichever of its formats it is kept."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from levada.pipelines.lake.compaction import Sizes, compact
from levada.pipelines.lake.delta import LOG, DeltaLake
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.lake import COMMITS, Lake, LakeError
from levada.pipelines.runs.queries import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyLake = Lake | DeltaLake
CONFIGURED = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
PATTERN = "{}[]*?\\"  # a path with one of these means several to Spark
FORMATS: dict[str, type[AnyLake]] = {"parquet": Lake, "delta": DeltaLake}


def check_path(path: str) -> None:
    """LakeError for a path that Spark could not write, or would not find again."""
    if not path.strip():
        raise LakeError("the path is empty")
    found = [letter for letter in PATTERN if letter in path]
    if found:
        raise LakeError(
            f"{path} cannot be the path: to Spark, {' '.join(found)} makes it a pattern of several"
        )


@contextmanager
def told_of(path: str) -> Iterator[None]:
    """What file systems and Delta have against a path, as LakeError."""
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException, DeltaError, OSError) as error:
        deepest = str(error).rpartition("\u21b3\x1b[0m ")[2]  # as Delta shows causes, in colours
        raise LakeError(f"there can be no lake at {path}: {reason(deepest)}") from error


def open_lake(spark: "SparkSession", path: str, form: str | None = None) -> AnyLake:
    """The lake at a path, in the format it has; a new one in the one that is wanted, Parquet unless told."""
    check_path(path)
    files = Files(spark, path)
    has = "delta" if files.exists(LOG) else "parquet" if files.exists(COMMITS) else None
    if form is not None and form not in FORMATS:
        raise LakeError(f"{form!r} is no format of a lake; there are: {', '.join(FORMATS)}")
    if has is not None and form is not None and has != form:
        raise LakeError(f"{path} is a lake in the format {has} already; it cannot become one in {form}")
    return FORMATS[has or form or "parquet"](files)


def check_lake(spark: "SparkSession", path: str) -> None:
    """LakeError unless there is a lake."""
    check_path(path)
    files = Files(spark, path)
    if not files.exists(LOG) and not files.exists(COMMITS):
        raise LakeError(f"there is no lake at {path}")


def check_local_lake(path: str) -> None:
    """LakeError if it can be told without Spark that there is none: a plain path, which means this machine's disk."""
    has_scheme = ":" in path.partition("/")[0]
    if has_scheme or _has_configuration():
        return
    if not any(os.path.exists(os.path.join(path, name)) for name in (LOG, COMMITS)):
        raise LakeError(f"there is no lake at {path}")


def _has_configuration() -> bool:
    """Whether Spark was given files or arguments, by which plain paths may be those of HDFS."""
    home = os.environ.get("SPARK_HOME")
    installed = home is not None and os.path.isdir(os.path.join(home, "conf"))
    return installed or any(name in os.environ for name in CONFIGURED)


def tidy(spark: "SparkSession", lake: AnyLake, sizes: Sizes) -> int:
    """Join small files where there are many; how many went."""
    return compact(spark, lake, sizes) if isinstance(lake, Lake) else lake.compact(sizes)

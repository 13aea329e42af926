"""Opens the lake at a path, in whichever format it has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from levada.pipelines.errors import LakeError, root_cause
from levada.pipelines.lake.delta import DELTA_LOG, DeltaLake
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.parquet import COMMITS, ParquetLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Lake = ParquetLake | DeltaLake
SPARK_CONFIGURATION = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
GLOB_CHARACTERS = "{}[]*?\\"  # Spark takes a path with one of these for a glob pattern
FORMATS: dict[str, type[Lake]] = {"parquet": ParquetLake, "delta": DeltaLake}
PLACES = {"delta": DELTA_LOG, "parquet": COMMITS}  # by format: where a lake of it has its commits


def check_path(path: str) -> None:
    """Raise LakeError for a path that Spark cannot write, or would not find again."""
    if not path.strip():
        raise LakeError("the path is empty")
    found = [letter for letter in GLOB_CHARACTERS if letter in path]
    if found:
        raise LakeError(f"invalid path {path}: Spark takes {' '.join(found)} for a glob pattern")


@contextmanager
def lake_errors(path: str) -> Iterator[None]:
    """Raise errors of file systems, Spark and Delta as LakeError."""
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException, DeltaError, OSError) as error:
        deepest = str(error).rpartition("\u21b3\x1b[0m ")[2]  # Delta prints causes as a coloured tree
        raise LakeError(f"cannot open or create a lake at {path}: {root_cause(deepest)}") from error


def open_lake(spark: "SparkSession", path: str, lake_format: str | None = None) -> Lake:
    """The lake at a path; a new one has `lake_format`, by default Parquet."""
    if lake_format is not None and lake_format not in FORMATS:
        raise LakeError(f"unknown lake format {lake_format!r}; use one of: {', '.join(FORMATS)}")
    check_path(path)
    files = Files(spark, path)
    found = _format(files)
    if found is not None and lake_format is not None and found != lake_format:
        raise _other_format(path, found, lake_format)
    return FORMATS[found or lake_format or "parquet"](files)


def _other_format(path: str, found: str, wanted: str) -> LakeError:
    return LakeError(f"{path} is a lake in the format {found} and cannot change to {wanted}")


def check_lake(spark: "SparkSession", path: str) -> None:
    """Raise LakeError unless there is a lake at the path."""
    check_path(path)
    if _format(Files(spark, path)) is None:
        raise LakeError(f"there is no lake at {path}")


def _format(files: Files) -> str | None:
    return next((name for name, place in PLACES.items() if files.exists(place)), None)


def check_local_lake(path: str) -> None:
    """Raise LakeError if there is no lake at a path of the local disk; checked without Spark."""
    has_scheme = ":" in path.partition("/")[0]
    if has_scheme or _has_spark_configuration():
        return
    if not any(os.path.exists(os.path.join(path, place)) for place in PLACES.values()):
        raise LakeError(f"there is no lake at {path}")


def check_local_target(path: str, lake_format: str | None) -> None:
    """Raise LakeError for a path of the local disk that cannot be a lake of this format; checked without Spark."""
    if ":" in path.partition("/")[0] or _has_spark_configuration():
        return
    existing = os.path.abspath(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise LakeError(f"cannot create a lake at {path}: {existing} is a file, and a lake is a directory")
    found = next((name for name, place in PLACES.items() if os.path.exists(os.path.join(path, place))), None)
    if found is not None and lake_format not in (None, found):
        raise _other_format(path, found, str(lake_format))


def is_delta(path: str) -> bool:
    """Whether there is a Delta lake at a path of the local disk; checked without Spark."""
    return os.path.exists(os.path.join(path, DELTA_LOG))


def _has_spark_configuration() -> bool:
    """Whether Spark is configured by files or arguments, so that plain paths may be on HDFS."""
    home = os.environ.get("SPARK_HOME")
    installed = home is not None and os.path.isdir(os.path.join(home, "conf"))
    return installed or any(name in os.environ for name in SPARK_CONFIGURATION)

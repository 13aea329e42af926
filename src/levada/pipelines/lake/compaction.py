"""Merges small Parquet files of a lake, and checks that the merged file has their rows and columns."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.commits import CompactionPolicy, LakeFile
from levada.pipelines.lake.files import PARQUET_OPTIONS, PARTITION_COLUMNS, Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def small_files(files: Iterable[LakeFile], policy: CompactionPolicy) -> dict[str, list[LakeFile]]:
    """The directories with too many small files, and those files."""
    small: dict[str, list[LakeFile]] = {}
    for file in files:
        if file.size < policy.small_bytes:
            small.setdefault(file.directory, []).append(file)
    return {directory: found for directory, found in small.items() if len(found) > policy.files_max}


def merge_files(
    spark: "SparkSession", paths: Sequence[str], schema: "StructType", directory: str, files_max: int
) -> None:
    """Write the records of files with the schema of their lake into a new directory, in the order of offsets."""
    from pyspark.sql.types import StructType

    columns = StructType([field for field in schema.fields if field.name not in PARTITION_COLUMNS])
    rows = spark.read.schema(columns).parquet(*paths)
    merged = rows.repartitionByRange(files_max, "partition", "offset") if files_max > 1 else rows.coalesce(1)
    rows = merged.sortWithinPartitions("partition", "offset")
    rows.write.options(**PARQUET_OPTIONS).mode("overwrite").parquet(directory)


def check_merged(files: Files, merged: Sequence[str], originals: Iterable[str], rows: int = 0) -> dict[str, int]:
    """The rows of the merged files by name.

    Raises LakeError unless they have all rows and columns of the originals, and `rows` more rows.
    """
    from pyspark.sql.types import StructType

    from levada.pipelines.lake.schemas import READING, IncompatibleSchemaError, merge_schemas

    new, old = ([files.parquet_footer(name) for name in names] for names in (merged, originals))
    expected, found = rows + sum(footer.rows for footer in old), sum(footer.rows for footer in new)
    if found != expected:
        raise LakeError(f"{files.root}: {expected} records were written, {found} are in the files")
    originals_schemas = {footer.schema for footer in old}
    for text in {footer.schema for footer in new} if old else ():
        schema = StructType.fromJson(json.loads(text))
        for original in originals_schemas - {text}:
            try:
                whole = merge_schemas(schema, StructType.fromJson(json.loads(original)), READING)
            except IncompatibleSchemaError as error:
                raise LakeError(f"{files.root}: column {error.column} changed when files were merged") from None
            lost = [field.name for field in whole.fields if field not in schema.fields]
            if lost:
                raise LakeError(f"{files.root}: columns were lost when files were merged: {', '.join(lost)}")
    return {name: footer.rows for name, footer in zip(merged, new, strict=True)}

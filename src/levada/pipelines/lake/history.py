"""history: one DataFrame over lake and log, each record once.

The lake has the records below its end offsets, the log the rest. Both are read as of the call. A filter by `date` or
`topic` prunes the directories of the lake.
"""

import json
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import LakeError, PipelineError, explain_query
from levada.pipelines.lake.files import PARQUET_OPTIONS, Files
from levada.pipelines.lake.integrity import damaged_file
from levada.pipelines.lake.lake import Lake, check_lake, check_path, open_lake
from levada.pipelines.runs.queries import Batch, DriverQuery, RunningPipeline
from levada.pipelines.topics import check_topic_ids, earliest_offsets, topic_ids
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RESULT_MARKER = "_levada_history"  # holds the query of a complete result; Spark ignores the file
RESULT_FILES = re.compile(rf"{RESULT_MARKER}|_SUCCESS|part-.*|\..*\.crc")
ROWS_SHOWN_MAX = 1_000


@from_environment
def history(
    topic: str,
    lake: str,
    *,
    bootstrap: str = BOOTSTRAP,
    spark: "SparkSession | None" = None,
    gaps: bool = False,
    **options: str,
) -> "DataFrame":
    """All records of a topic, from `lake` and log, with the columns of `format("levada")` and their `date` (UTC).

    Records that the log has deleted and the lake never had are a gap: an error, unless `gaps` is true. A topic that
    was deleted and created again since it was archived is always an error. `options` are those of `format("levada")`.
    """
    from pyspark.sql.functions import expr

    from levada.pipelines.lake.schemas import DATE, DATE_EXPRESSION, lake_schema, with_schema

    spark = session_or(spark)
    earliest = earliest_offsets(bootstrap, [topic], options)
    begins = {partition: begin for (_, partition), begin in earliest.items()}
    opened = open_lake(spark, lake)
    check_topic_ids(opened, topic_ids(bootstrap, [topic], options))
    old = read_archived(opened, topic, spark)
    ends = opened.end_offsets(topic, begins)
    lost = {index: begin - ends.get(index, 0) for index, begin in begins.items() if begin > ends.get(index, 0)}
    if lost and not gaps:
        counts = ", ".join(f"{count:,} of partition {index}" for index, count in sorted(lost.items()))
        raise LakeError(
            f"records of {topic} are neither in the lake {lake} nor in the log any more: {counts}; "
            "gaps=True reads the rest"
        )
    offsets = {str(index): max(begin, ends.get(index, 0)) for index, begin in begins.items()}
    source = (
        spark.read.format("levada")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps({topic: offsets}))
        .options(**options)
    )
    new = source.load().withColumn(DATE, expr(DATE_EXPRESSION))
    if old is None:
        return new
    schema = _common_schema(lake, old.schema, lake_schema(new.schema))
    return with_schema(old, schema).union(with_schema(new, schema))


def _common_schema(lake: str, archived: "StructType", log: "StructType") -> "StructType":
    """The columns of lake and log; LakeError if they have incompatible types."""
    from levada.pipelines.lake.schemas import READING, IncompatibleSchemaError, merge_schemas

    try:
        return merge_schemas(archived, log, READING)
    except IncompatibleSchemaError as error:
        if error.column == "value" and error.old == "BINARY":
            advice = "read without valueFormat, and decode values with a function such as from_json"
        else:
            advice = "read with the options of the archive (valueFormat, valueSchema)"
        raise error.lake_error(f"the lake {lake}", "the records of the log", advice) from None


@from_environment
def query_history(
    topic: str,
    lake: str,
    query: str,
    to: str | None = None,
    *,
    bootstrap: str = BOOTSTRAP,
    gaps: bool = False,
    spark: "SparkSession | None" = None,
    name: str = "history",
    **options: str,
) -> RunningPipeline:
    """Run an SQL query over the table `history`; print the result, or write it to `to` as Parquet."""
    from pyspark.errors import AnalysisException

    if to is not None:
        check_path(to)
    session = session_or(spark).newSession()  # the caller's may have a view of that name

    def run(stopped: threading.Event) -> Iterator[Batch]:
        check_lake(session, lake)
        if to is not None:
            _check_result_path(Files(session, to), Files(session, lake))
        rows = history(topic, lake, bootstrap=bootstrap, spark=session, gaps=gaps, **options)
        rows.createOrReplaceTempView("history")
        try:
            result = session.sql(query)
        except AnalysisException as error:
            raise PipelineError(explain_query(error)) from None
        if to is None:
            result.show(ROWS_SHOWN_MAX, truncate=False)
            count = min(ROWS_SHOWN_MAX, result.count())
        else:
            result.write.options(**PARQUET_OPTIONS).mode("overwrite").parquet(to)
            Files(session, to).write(RESULT_MARKER, query)
            count = session.read.parquet(to).count()
        yield Batch(0, count, count, count)

    return RunningPipeline(name, [DriverQuery(name, session, run).start()])


def _check_result_path(result: Files, lake: Files) -> None:
    """Raise LakeError unless the directory is empty or has a previous result, which the new one replaces."""
    if f"{result.root.rstrip('/')}/".startswith(f"{lake.root.rstrip('/')}/"):
        raise LakeError(f"{result.root} is inside the lake {lake.root}; write the result to another path")
    found = result.names("")
    others = [name for name in found if not RESULT_FILES.fullmatch(name)]
    if others or (found and RESULT_MARKER not in found):
        raise LakeError(
            f"{result.root} is not empty ({(others or found)[0]}), and its files would be overwritten; use a path that "
            "does not exist or has a complete previous result (delete the incomplete result of a killed run)"
        )


def read_archived(lake: Lake, topic: str | None, spark: "SparkSession") -> "DataFrame | None":
    """The archived records of a topic, or of all, with the schema of the lake; None if there are none.

    Raises LakeError if a file has not the size of its commit.
    """
    from functools import reduce

    from pyspark.sql import DataFrame

    sizes, schema = lake.sizes(topic), lake.schema(topic)
    if not sizes or schema is None:
        return None
    by_root: dict[str, list[str]] = {}  # files that are not moved yet have the same directories in the staging area
    for path in sizes:
        by_root.setdefault(path[: path.rindex("/topic=")], []).append(path)
    found = [spark.read.schema(schema).option("basePath", root).parquet(*files) for root, files in by_root.items()]
    if sum(map(_listed_bytes, found)) != sum(sizes.values()):  # Spark has listed them anyway
        damage = damaged_file(lake.files, sizes)
        if damage:
            raise LakeError(damage)
    return reduce(DataFrame.union, found).select(*schema.names)


def _listed_bytes(rows: "DataFrame") -> int:
    """The size of the files that a DataFrame of files will read."""
    return int(rows._jdf.queryExecution().analyzed().relation().location().sizeInBytes())

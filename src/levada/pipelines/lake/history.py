"""history: one DataFrame over lake and live log, each record once (R61).

The lake has what is below its ends, the log gives the rest. Both are taken at one moment, when the DataFrame is made.
"""

import json
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.pipelines.lake.files import Files
from levada.pipelines.lake.formats import AnyLake, check_lake, check_path, open_lake
from levada.pipelines.lake.lake import LakeError
from levada.pipelines.runs.queries import PipelineError, Running
from levada.pipelines.runs.steps import Step, Steps
from levada.pipelines.topics import beginnings, check_same, topic_ids
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = "_levada_history"  # the file that tells of a whole result what was asked; Spark reads over it
OF_A_RESULT = re.compile(rf"{RESULT}|_SUCCESS|part-.*|\..*\.crc")
SHOWN_MAX = 1_000  # rows of an answer that are printed
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def history(
    topic: str,
    lake: str,
    *,
    bootstrap: str = "127.0.0.1:9092",
    spark: "SparkSession | None" = None,
    gaps: bool = False,
    **options: str,
) -> "DataFrame":
    """All that a topic ever had, from `lake` and broker, with the columns of `format("levada")`.

    If the log has lost records that the lake does not have, there is a gap: an error, unless `gaps` are allowed. A
    topic that was deleted and made again since it was archived is another one: always an error.
    `options` are those of `format("levada")`.
    """
    spark = session_or(spark)
    begins = {place.partition: begin for place, begin in beginnings(bootstrap, [topic], options).items()}
    the_lake = open_lake(spark, lake)
    check_same(the_lake, topic_ids(bootstrap, [topic], options))
    old = archived(the_lake, topic, spark)
    ends = the_lake.ends(topic, begins)
    lost = {
        index: begin - ends.get(index, 0) for index, begin in begins.items() if begin > ends.get(index, 0)
    }
    if lost and not gaps:
        told = ", ".join(f"{count:,} of partition {index}" for index, count in sorted(lost.items()))
        raise LakeError(
            f"records of {topic} are neither in the lake {lake} nor in the log any more: {told}; "
            "with gaps=True the rest is given"
        )
    offsets = {str(index): max(begin, ends.get(index, 0)) for index, begin in begins.items()}
    source = (
        spark.read.format("levada")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps({topic: offsets}))
    )
    for key, value in options.items():
        source = source.option(key, value)
    new = source.load().select(*COLUMNS)
    return new if old is None else old.unionByName(new)


def answer(
    topic: str,
    lake: str,
    query: str,
    to: str | None = None,
    *,
    bootstrap: str = "127.0.0.1:9092",
    gaps: bool = False,
    spark: "SparkSession | None" = None,
    name: str = "history",
    **options: str,
) -> Running:
    """Ask an SQL query over the table `history`; the result is printed, or written to `to` as Parquet."""
    from pyspark.errors import AnalysisException

    from levada.pipelines.flows.sql import explain

    if to is not None:
        check_path(to)
    own = session_or(spark).newSession()  # a view of that name may be somebody else's

    def ask(stopped: threading.Event) -> Iterator[Step]:
        check_lake(own, lake)
        if to is not None:
            _check_result(Files(own, to), Files(own, lake))
        rows = history(topic, lake, bootstrap=bootstrap, spark=own, gaps=gaps, **options)
        rows.createOrReplaceTempView("history")
        try:
            found = own.sql(query)
        except AnalysisException as error:
            raise PipelineError(explain(error)) from None
        if to is None:
            found.show(SHOWN_MAX, truncate=False)
            count = min(SHOWN_MAX, found.count())
        else:
            found.write.mode("overwrite").parquet(to)
            Files(own, to).write(RESULT, query)
            count = own.read.parquet(to).count()
        yield Step(0, count, count, count)

    return Running(name, [Steps(name, own, ask).start()])


def _check_result(result: Files, lake: Files) -> None:
    """LakeError unless a result can be written here: where nothing is, or one of before, which it replaces."""
    if f"{result.root.rstrip('/')}/".startswith(f"{lake.root.rstrip('/')}/"):
        raise LakeError(f"{result.root} is in the lake {lake.root}; a result needs a place of its own")
    found = result.names("")
    others = [name for name in found if not OF_A_RESULT.fullmatch(name)]
    if others or (found and RESULT not in found):
        raise LakeError(
            f"{result.root} is not empty ({(others or found)[0]}), and what is in it would be gone; give a path that "
            "is not there yet, or has a whole result of before (delete what a run left that was killed)"
        )


def archived(lake: AnyLake, topic: str, spark: "SparkSession") -> "DataFrame | None":
    """What the lake has of a topic, by its commits; None if that is nothing."""
    from pyspark.sql.functions import lit

    paths = lake.paths(topic)
    if not paths:
        return None
    return spark.read.parquet(*paths).withColumn("topic", lit(topic)).select(*COLUMNS)

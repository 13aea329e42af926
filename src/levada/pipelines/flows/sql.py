"""sql: topics as tables, and what a query over them gives as a topic, for as long as records come (R60, R62).

A table has the name of its topic. Its columns are the fields of the JSON values, told by the user or inferred from the
newest records; those of the record follow, with an underscore: `_key`, `_partition`, `_offset`, `_timestamp`. What was
inferred is kept beside the checkpoint, since a query that goes on must see the columns it began with.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame

from levada.pipelines.durations import check_lengths
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import Plan, Result
from levada.pipelines.flows.tables import Tables
from levada.pipelines.lake.files import Files
from levada.pipelines.runs.arguments import remembered
from levada.pipelines.runs.queries import PipelineError, Running
from levada.pipelines.runs.runs import Run, home_directory
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES = ("append", "update", "complete")  # the first that fits is taken
MEANINGS = {
    "append": "every result is written once, when it is final",
    "update": "a group is written again whenever it changes, the newest record of it counts",
    "complete": "all groups are written again in every batch",
}
NOISE = "SQLQueryContextLogger"  # writes errors of queries to standard error, plans and all
MISSING = "TABLE_OR_VIEW_NOT_FOUND"
ASKS = re.compile(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*(?:SELECT|WITH|FROM|\()", re.IGNORECASE | re.DOTALL)

Tell = Callable[[str], None]


def sql(
    query: str,
    to: str,
    *,
    schemas: Mapping[str, str] | None = None,
    watermarks: Mapping[str, str] | None = None,
    mode: str | None = None,
    key: str | None = None,
    dead_letters: str | None = None,
    tell: Tell = lambda text: None,
    bootstrap: str = flow.BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "sql",
    **options: str,
) -> Running:
    """Write what `query` gives to the topic `to`, as JSON.

    `schemas` has the columns of tables (`{"orders": "id bigint, amount double, ts timestamp"}`), `watermarks` how late
    records may be by a column of time (`{"ts": "10 minutes"}`, or `orders.ts` for one table). Notices go to `tell`.
    """
    check_lengths(every=every)
    spark = session_or(spark)
    checkpoint = checkpoint or Run(home_directory(), name).checkpoint
    known = remembered(Files(spark, checkpoint))
    tables = Tables(spark, bootstrap, options, dead_letters, tell)
    tables.schemas = dict(known["schemas"] if known else {}) | dict(schemas or {})
    tables.watermarks = dict(watermarks or {})
    found = select(spark, query, tables)
    if to in tables.made:
        raise PipelineError(f"the query reads {to}: what it writes there it would read again, for ever")
    chosen = output_mode(spark, found, mode, tell)
    if key is not None and key not in found.columns:
        raise PipelineError(f"no column {key} for the key: the query gives {', '.join(found.columns)}")
    result = Result(to, found, key)
    asked = {
        "query": query,
        "to": to,
        "watermarks": tables.watermarks,
        "mode": chosen,
        "schemas": tables.schemas,
    }
    return flow.start([result], Plan(name, bootstrap, checkpoint, once, every, chosen, asked))


def select(spark: "SparkSession", query: str, tables: Tables) -> DataFrame:
    """The query as a DataFrame; every name of a table that Spark does not know is that of a topic."""
    if not ASKS.match(query):
        raise PipelineError(
            f"only queries can be run (SELECT ..., WITH ... SELECT ...), this is: {query[:60]}"
        )
    logger = PySparkLogger.getLogger(NOISE)
    logger.disabled = True  # a table that is not there yet is no error here
    try:
        found = _resolved(spark, query, tables)
        tables.check_watermarks()
    finally:
        logger.disabled = False
        tables.forget()
    if not found.isStreaming:
        raise PipelineError("the query reads no topic; name one after FROM")
    return found


def _resolved(spark: "SparkSession", query: str, tables: Tables) -> DataFrame:
    while True:
        try:
            return spark.sql(query)
        except AnalysisException as error:
            missing = _missing_table(error)
            if missing is None:
                raise PipelineError(explain(error)) from None
            if missing in tables.made:
                raise PipelineError(f"write the name of the topic in backquotes: `{missing}`") from None
            tables.make(missing)


def _missing_table(error: AnalysisException) -> str | None:
    if error.getCondition() != MISSING:
        return None
    named = (error.getMessageParameters() or {}).get("relationName", "")
    parts = re.findall(r"`((?:[^`]|``)+)`", named)
    return ".".join(part.replace("``", "`") for part in parts) or named


def explain(error: AnalysisException) -> str:
    """What is wrong with a query, without Spark's plan: its sentence, and where in the text it is."""
    text = str(error).split("\n\nJVM stacktrace")[0].strip()
    text = re.sub(r"\s*SQLSTATE: \w+", "", re.sub(r"^\[[A-Z_.]+\]\s*", "", text))
    if isinstance(error, ParseException):
        return text
    where = re.search(r"line (\d+) pos (\d+)", text)
    sentence = re.sub(r";\s*(?:line \d+ pos \d+;?)?\s*$", "", text.partition("\n")[0]).strip()
    return f"{sentence} (line {where[1]}, position {where[2]})" if where else sentence


def output_mode(spark: "SparkSession", found: DataFrame, wanted: str | None, tell: Tell) -> str:
    """The wanted mode, or the first one that a query of this kind can have."""
    reasons = {mode: _refusal(spark, found, mode) for mode in MODES}
    if wanted is not None:
        if wanted not in MODES:
            raise PipelineError(f"no such mode: {wanted}; there are {', '.join(MODES)}")
        if reasons[wanted]:
            others = [mode for mode in MODES if not reasons[mode]]
            hint = f"; it can be {' or '.join(others)}" if others else ""
            raise PipelineError(f"mode {wanted} does not fit this query{hint}. {reasons[wanted]}")
        return wanted
    fitting = [mode for mode in MODES if not reasons[mode]]
    if not fitting:
        raise PipelineError(f"this query cannot run over a stream. {reasons['append']}")
    tell(f"mode {fitting[0]}: {MEANINGS[fitting[0]]}{_advice(fitting[0])}")
    return fitting[0]


def _advice(mode: str) -> str:
    if mode == "append":
        return ""
    return "; for final results once, group by a window of a column with a watermark (--watermark ts='10 minutes')"


def _refusal(spark: "SparkSession", found: DataFrame, mode: str) -> str:
    """Why Spark does not run the query in this mode; empty if it does."""
    jvm: Any = spark._jvm
    assert jvm is not None
    output = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    plan = found._jdf.queryExecution().analyzed()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(plan, output)
    except AnalysisException as error:
        return explain(error)
    return ""

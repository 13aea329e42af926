"""sql: a streaming SQL query over topics, with its results as JSON in a topic.

A table has the name of its topic. Its columns are the fields of the JSON values, given by the user or inferred from the
newest records, followed by those of the record: `_key`, `_partition`, `_offset`, `_timestamp`. Inferred columns are
kept with the checkpoint: a query that continues must see the columns it started with.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import PipelineError, check_durations, explain_query
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import QueryOptions, Result
from levada.pipelines.flows.sql_text import check_query, reads_its_results, reads_no_topic, run_name
from levada.pipelines.lake.files import Files
from levada.pipelines.runs.queries import RunningPipeline
from levada.pipelines.runs.run import default_checkpoint, load_arguments
from levada.pipelines.topics import connection, create_topics, logs_of
from levada.spark.errors import OptionError
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES = {  # in the order of preference
    "append": "every result is written once, when it is final",
    "update": "a group is written again whenever it changes, the newest record of it counts",
    "complete": "all groups are written again in every batch",
}
QUERY_LOGGER = "SQLQueryContextLogger"  # prints errors of queries with their plans to standard error
TABLE_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
SAMPLE_RECORDS = 1_000  # newest records from which columns are inferred
TEXT = "text"  # instead of columns: values are text, in a column `value`
RECORD_COLUMNS = {
    "_key": "string(key)",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
}

Notify = Callable[[str], None]


@from_environment
def sql(
    query: str,
    to: str,
    *,
    schemas: Mapping[str, str] | None = None,
    watermarks: Mapping[str, str] | None = None,
    mode: str | None = None,
    key: str | None = None,
    dead_letters: str | None = None,
    notify: Notify = lambda text: None,
    bootstrap: str = BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str | None = None,
    **options: str,
) -> RunningPipeline:
    """Write the results of `query` to the topic `to`, as JSON; the name of the run is by default that of `run_name`.

    `schemas` has the columns of tables (`{"orders": "id bigint, amount double, ts timestamp"}`), `watermarks` the delay
    of late rows by a timestamp column (`{"ts": "10 minutes"}`, or `orders.ts` for one table). `notify` gets notices
    about inferred columns and the output mode.
    """
    check_durations(every=every)
    check_query(query, to, watermarks or {})
    spark, name = session_or(spark), name or run_name(to)
    checkpoint = checkpoint or default_checkpoint(spark, name)
    known = load_arguments(Files(spark, checkpoint))
    tables = Tables(spark, bootstrap, options, dead_letters, notify)
    tables.schemas = dict(known["schemas"] if known else {}) | dict(schemas or {})
    tables.watermarks = dict(watermarks or {})
    rows = select(spark, query, tables)
    if to in tables.created:
        raise reads_its_results(to)
    chosen = output_mode(spark, rows, mode, notify)
    if key is not None and key not in rows.columns:
        raise PipelineError(f"no column {key} for the key; the query has {', '.join(rows.columns)}")
    arguments = {"query": query, "to": to, "watermarks": tables.watermarks, "mode": chosen, "schemas": tables.schemas}
    query_options = QueryOptions(name, bootstrap, checkpoint, once, every, chosen, arguments)
    return flow.start([Result(to, rows, key)], query_options)


@from_environment
def query_topics(
    query: str,
    *,
    schemas: Mapping[str, str] | None = None,
    watermarks: Mapping[str, str] | None = None,
    notify: Notify = lambda text: None,
    bootstrap: str = BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> DataFrame:
    """The results of `query` over the records that topics have now; the arguments are those of `sql`.

    Watermarks are only checked: no record is late for a query that ends.
    """
    check_query(query, None, watermarks or {})
    spark = session_or(spark)
    tables = Tables(spark, bootstrap, options, None, notify, streaming=False)
    tables.schemas, tables.watermarks = dict(schemas or {}), dict(watermarks or {})
    return select(spark, query, tables)


def select(spark: "SparkSession", query: str, tables: "Tables") -> DataFrame:
    """The query as a DataFrame; a table that Spark does not know is a topic."""
    logger = PySparkLogger.getLogger(QUERY_LOGGER)
    logger.disabled = True  # a missing table is expected here
    try:
        rows = _resolve(spark, query, tables)
        tables.check_watermarks()
    finally:
        logger.disabled = False
        tables.drop_views()
    if not tables.created:
        raise reads_no_topic()
    return rows


def _resolve(spark: "SparkSession", query: str, tables: "Tables") -> DataFrame:
    while True:
        try:
            return spark.sql(query)
        except AnalysisException as error:
            missing = _missing_table(error)
            if missing is None:
                raise PipelineError(explain_query(error)) from None
            if missing in tables.created:
                raise PipelineError(f"write the name of the topic in backquotes: `{missing}`") from None
            tables.create(missing)


def _missing_table(error: AnalysisException) -> str | None:
    if error.getCondition() != TABLE_NOT_FOUND:
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    parts = re.findall(r"`((?:[^`]|``)+)`", name)
    return ".".join(part.replace("``", "`") for part in parts) or name


def output_mode(spark: "SparkSession", rows: DataFrame, wanted: str | None, notify: Notify) -> str:
    """The wanted output mode, or the first one that Spark supports for this query."""
    errors = {mode: _mode_error(spark, rows, mode) for mode in MODES}
    supported = [mode for mode in MODES if not errors[mode]]
    if wanted is not None:
        if wanted not in MODES:
            raise PipelineError(f"unknown mode {wanted}; use one of: {', '.join(MODES)}")
        if errors[wanted]:
            hint = f"; use {' or '.join(supported)}" if supported else ""
            raise PipelineError(f"mode {wanted} does not fit this query{hint}. {errors[wanted]}")
        return wanted
    if not supported:
        raise PipelineError(f"this query cannot run over a stream. {errors['append']}")
    mode, advice = supported[0], ""
    if mode != "append":
        advice = "; for final results, group by a window of a column with a watermark (--watermark ts='10 minutes')"
    notify(f"mode {mode}: {MODES[mode]}{advice}")
    return mode


def _mode_error(spark: "SparkSession", rows: DataFrame, mode: str) -> str:
    """Why Spark does not support the query in this mode; empty if it does."""
    jvm: Any = spark._jvm
    assert jvm is not None
    output = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    plan = rows._jdf.queryExecution().analyzed()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(plan, output)
    except AnalysisException as error:
        return explain_query(error)
    return ""


class Tables:
    """Creates temporary views of topics when a query needs them."""

    def __init__(
        self,
        spark: "SparkSession",
        bootstrap: str,
        options: Mapping[str, str],
        dead_letters: str | None,
        notify: Notify,
        *,
        streaming: bool = True,
    ) -> None:
        self.schemas: dict[str, str] = {}  # by topic: given or inferred
        self.watermarks: Mapping[str, str] = {}  # by column, or topic.column
        self.created: set[str] = set()
        self._spark = spark
        self._bootstrap = bootstrap
        self._options = options
        self._dead_letters = dead_letters
        self._notify = notify
        self._read = flow.read_stream if streaming else flow.read_batch

    def create(self, topic: str) -> None:
        """Create the view of a topic; PipelineError if the topic does not exist."""
        if topic not in self.schemas:
            self.schemas[topic] = self._infer(topic)
        _check_schema(topic, self.schemas[topic])
        rows = self._rows(topic, self.schemas[topic])
        for name, delay in self.watermarks.items():
            table, _, column = name.rpartition(".")
            if table in ("", topic) and (table or column in rows.columns):
                rows = _with_watermark(rows, topic, column, delay)
        rows.createOrReplaceTempView(f"`{topic}`")
        self.created.add(topic)

    def drop_views(self) -> None:
        """Drop the views; DataFrames over them remain valid."""
        for topic in self.created:
            self._spark.catalog.dropTempView(topic)

    def check_watermarks(self) -> None:
        """Raise PipelineError for a watermark that no table of the query uses."""
        for name in self.watermarks:
            table, _, column = name.rpartition(".")
            if table and table not in self.created:
                raise PipelineError(f"watermark {name}: the query does not read {table}")
            if not table and not any(self._has(topic, column) for topic in self.created):
                raise PipelineError(f"watermark {name}: no table of the query has a column {column}")

    def _has(self, topic: str, column: str) -> bool:
        return column in self._spark.table(f"`{topic}`").columns

    def _rows(self, topic: str, schema: str) -> DataFrame:
        options = {"includeHeaders": "false"} | dict(self._options)
        if schema == TEXT:
            raw = self._read(self._spark, self._bootstrap, [topic], options)
            return raw.selectExpr("string(value) value", *_record_columns({"value"}))
        options |= {"valueFormat": "json", "valueSchema": schema}
        if self._dead_letters is not None:
            options["deadLetterTopic"] = self._dead_letters
            create_topics(self._bootstrap, [self._dead_letters])
        raw = self._read(self._spark, self._bootstrap, [topic], options)
        names = set(raw.select("value.*").columns)
        return raw.where("value IS NOT NULL").selectExpr("value.*", *_record_columns(names))

    def _infer(self, topic: str) -> str:
        """Infer the columns from the newest records, and send a notice."""
        texts = self._newest(topic)
        if not texts:
            raise PipelineError(
                f"topic {topic} has no records to infer columns from; "
                f"name them: --schema {topic}='id bigint, at timestamp'"
            )
        objects = [text for text in texts if _is_object(text)]
        if not objects:
            self._notify(f"{topic}: values are not JSON objects; the table has them as text, in the column value")
            return TEXT
        lines = self._spark.sparkContext.parallelize(objects, 1)
        schema = self._spark.read.option("inferTimestamp", "true").json(lines).schema.toDDL().replace(",", ", ")
        self._notify(
            f"{topic}: columns inferred from its newest {len(texts):,} records; records that do not fit them "
            f"{'go to ' + self._dead_letters if self._dead_letters else 'are left out'}. "
            f"To name them yourself: --schema {topic}='{schema}'"
        )
        return schema

    def _newest(self, topic: str) -> list[str]:
        logs = logs_of(self._bootstrap, [topic], self._options)
        try:
            partitions = list(logs.partitions(missing_is_error=True))
        except OptionError as error:
            raise PipelineError(str(error)) from None
        earliest, latest = logs.earliest(partitions), logs.latest(partitions)
        count = max(1, SAMPLE_RECORDS // len(partitions))
        starts = {str(one.partition): max(earliest[one], latest[one] - count) for one in partitions}
        options = {"startingOffsets": json.dumps({topic: starts})} | connection(self._options)
        rows = flow.read_batch(self._spark, self._bootstrap, [topic], options).selectExpr("string(value) v")
        return [row.v for row in rows.limit(SAMPLE_RECORDS).collect() if row.v is not None]


def _check_schema(topic: str, schema: str) -> None:
    try:
        if schema != TEXT:
            StructType.fromDDL(schema)
    except ParseException as error:
        reason = str(error).partition(". SQLSTATE")[0].partition("] ")[2]
        raise PipelineError(f"--schema {topic}: {schema!r} is not a list of columns: {reason}") from None


def _record_columns(taken: set[str]) -> list[str]:
    return [f"{source} AS {name}" for name, source in RECORD_COLUMNS.items() if name not in taken]


def _with_watermark(rows: DataFrame, topic: str, column: str, delay: str) -> DataFrame:
    if column not in rows.columns:
        raise PipelineError(f"watermark {topic}.{column}: {topic} has {', '.join(rows.columns)}")
    kind = rows.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise PipelineError(
            f"watermark {column}: in {topic} it is {kind.simpleString()}, not timestamp; "
            f"name its columns: --schema {topic}='{column} timestamp, ...'"
        )
    try:
        return rows.withWatermark(column, delay)
    except (AnalysisException, IllegalArgumentException):
        raise PipelineError(f"watermark {column}: {delay} is not a duration, such as 10 minutes") from None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False

"""Topics as tables of a SQL query: columns told or inferred, watermarks, and what to do with values that do not fit."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from levada.pipelines.flows import flow
from levada.pipelines.runs.queries import PipelineError
from levada.spark.options import OptionError
from levada.spark.read.offset_reader import OffsetReader
from levada.spark.read.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLES = 1_000  # newest records from which columns are inferred
TEXT = "text"  # instead of columns: values are text, in a column `value`
RECORD = {
    "_key": "string(key)",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
}


class Tables:
    """Makes a view of a topic when a query needs it."""

    def __init__(
        self,
        spark: "SparkSession",
        bootstrap: str,
        options: Mapping[str, str],
        dead_letters: str | None,
        tell: Callable[[str], None],
    ) -> None:
        self.schemas: dict[str, str] = {}  # by topic, as they were told or inferred
        self.watermarks: Mapping[str, str] = {}  # by column, or topic.column
        self.made: set[str] = set()
        self._spark = spark
        self._bootstrap = bootstrap
        self._options = options
        self._dead_letters = dead_letters
        self._tell = tell

    def make(self, topic: str) -> None:
        """Let the query find a table of this name; PipelineError if there is no such topic."""
        if topic not in self.schemas:
            self.schemas[topic] = self._infer(topic)
        _check_schema(topic, self.schemas[topic])
        rows = self._rows(topic, self.schemas[topic])
        for place, delay in self.watermarks.items():
            table, _, column = place.rpartition(".")
            if table in ("", topic) and (table or column in rows.columns):
                rows = _with_watermark(rows, topic, column, delay)
        rows.createOrReplaceTempView(f"`{topic}`")
        self.made.add(topic)

    def forget(self) -> None:
        """Drop the views; DataFrames made of them stay."""
        for topic in self.made:
            self._spark.catalog.dropTempView(topic)

    def check_watermarks(self) -> None:
        """PipelineError for one that no table has used."""
        for place in self.watermarks:
            table, _, column = place.rpartition(".")
            if table and table not in self.made:
                raise PipelineError(f"watermark {place}: the query does not read {table}")
            if not table and not any(self._has(topic, column) for topic in self.made):
                raise PipelineError(f"watermark {place}: no table of the query has a column {column}")

    def _has(self, topic: str, column: str) -> bool:
        return column in self._spark.table(f"`{topic}`").columns

    def _rows(self, topic: str, schema: str) -> DataFrame:
        options = {"includeHeaders": "false"} | dict(self._options)
        if schema == TEXT:
            raw = flow.stream_of(self._spark, self._bootstrap, [topic], options)
            return raw.selectExpr("string(value) value", *_record_columns({"value"}))
        options |= {"valueFormat": "json", "valueSchema": schema}
        if self._dead_letters is not None:
            options["deadLetterTopic"] = self._dead_letters
            flow.make_topics(self._bootstrap, [self._dead_letters])
        raw = flow.stream_of(self._spark, self._bootstrap, [topic], options)
        names = set(raw.select("value.*").columns)
        return raw.where("value IS NOT NULL").selectExpr("value.*", *_record_columns(names))

    def _infer(self, topic: str) -> str:
        """Columns by the newest records, and a notice of them."""
        texts = self._newest(topic)
        if not texts:
            raise PipelineError(
                f"topic {topic} has no records to infer columns from; "
                f"tell them: --schema {topic}='id bigint, at timestamp'"
            )
        objects = [text for text in texts if _is_object(text)]
        if not objects:
            self._tell(
                f"{topic}: values are not JSON objects; the table has them as text, in the column value"
            )
            return TEXT
        lines = self._spark.sparkContext.parallelize(objects, 1)
        schema = (
            self._spark.read.option("inferTimestamp", "true").json(lines).schema.toDDL().replace(",", ", ")
        )
        self._tell(
            f"{topic}: columns inferred from its newest {len(texts):,} records; records that do not fit them "
            f"{'go to ' + self._dead_letters if self._dead_letters else 'are left out'}. "
            f"To tell them yourself: --schema {topic}='{schema}'"
        )
        return schema

    def _newest(self, topic: str) -> list[str]:
        asked = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic}
        connection = {
            name: value for name, value in self._options.items() if name.lower().startswith("kafka.")
        }
        logs = OffsetReader(read_options(asked | {name.lower(): value for name, value in connection.items()}))
        try:
            places = list(logs.partitions(missing_is_error=True))
        except OptionError as error:
            raise PipelineError(str(error)) from None
        firsts, ends = logs.earliest(places), logs.latest(places)
        each = max(1, SAMPLES // len(places))
        starts = {str(place.partition): max(firsts[place], ends[place] - each) for place in places}
        newest = {"startingOffsets": json.dumps({topic: starts})} | connection
        rows = flow.table_of(self._spark, self._bootstrap, [topic], newest).selectExpr("string(value) v")
        return [row.v for row in rows.limit(SAMPLES).collect() if row.v is not None]


def _check_schema(topic: str, schema: str) -> None:
    try:
        if schema != TEXT:
            StructType.fromDDL(schema)
    except ParseException as error:
        what = str(error).partition(". SQLSTATE")[0].partition("] ")[2]
        raise PipelineError(f"--schema {topic}: {schema!r} are no columns: {what}") from None


def _record_columns(taken: set[str]) -> list[str]:
    return [f"{source} AS {name}" for name, source in RECORD.items() if name not in taken]


def _with_watermark(rows: DataFrame, topic: str, column: str, delay: str) -> DataFrame:
    if column not in rows.columns:
        raise PipelineError(f"watermark {topic}.{column}: {topic} has {', '.join(rows.columns)}")
    kind = rows.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise PipelineError(
            f"watermark {column}: in {topic} it is {kind.simpleString()}, not timestamp; "
            f"tell its columns: --schema {topic}='{column} timestamp, ...'"
        )
    try:
        return rows.withWatermark(column, delay)
    except (AnalysisException, IllegalArgumentException):
        raise PipelineError(f"watermark {column}: {delay} is no length of time, such as 10 minutes") from None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False

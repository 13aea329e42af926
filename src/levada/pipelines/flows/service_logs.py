"""logs: the log lines of many services, as rates, alerts and a lake to search.

A line is a JSON object, logfmt (`level=error msg="..."`) or plain text that begins with a time and a level. The names
of fields differ from service to service; missing fields come from the record. No line is dropped: one without level
and time is an INFO with the record's timestamp.

Errors are grouped by pattern: the message without its variable parts (numbers, ids, addresses). A thousand timeouts
are one alert.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import check_durations
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import QueryOptions, Result
from levada.pipelines.lake.archive import archive
from levada.pipelines.reports.report import records
from levada.pipelines.runs.queries import RunningPipeline
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("logs",)
FIELDS = {  # the names of each field, the most common first
    "time": ("time", "ts", "timestamp", "@timestamp", "at"),
    "level": ("level", "lvl", "severity", "levelname"),
    "service": ("service", "app", "logger", "name"),
    "message": ("message", "msg", "event", "text"),
}
PLAIN = r"(?s)^\[?(\d{4}-\d\d-\d\d[T ][0-9:.,]+(?:Z|[+-]\d\d:?\d\d)?)\]?\s+"  # a time, followed by
PLAIN += r"\[?(?:(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b\]?\s+)?"
PLAIN += r"(?:([A-Za-z][\w.-]*)(?:\[\d+\])?:\s+)?(.*)$"
LEVELS = {
    "TRACE": "DEBUG",
    "NOTICE": "INFO",
    "WARNING": "WARN",
    "ERR": "ERROR",
    "CRITICAL": "FATAL",
    "PANIC": "FATAL",
}
ERROR_LEVELS = ("ERROR", "FATAL")
VARIABLE_PARTS = (  # replaced in this order
    (r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "<id>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b", "<id>"),
    (r'"[^"]*"', "<text>"),
    (r"\b\d+(?:[.,]\d+)*\b", "<n>"),
)


@from_environment
def logs(
    topics: Sequence[str] = TOPICS,
    *,
    to: str = "logs",
    lake: str | None = None,
    window: str = "1 minute",
    late: str = "30 seconds",
    alert_at: int = 5,
    bootstrap: str = BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "logs",
    **options: str,
) -> RunningPipeline:
    """Write the topics `to`-rates and `to`-alerts, and archive all lines to `lake` if it is given.

    An alert is a pattern of errors that a service logged at least `alert_at` times in a window. `late` is the delay of
    the watermark; the lake also has later lines. `options` are those of `format("levada")`.
    """
    check_durations(window=window, late=late, every=every)
    spark = session_or(spark)
    arguments = {"topics": sorted(topics), "to": to, "window": window, "late": late, "alert_at": alert_at}
    parsed = lines(flow.read_stream(spark, bootstrap, topics, options)).withWatermark("at", late)
    results = [
        Result(f"{to}-rates", rates(parsed, window), key="service"),
        Result(f"{to}-alerts", alerts(parsed, window, alert_at), key="service"),
    ]
    running = flow.start(results, QueryOptions(name, bootstrap, checkpoint, once, every, arguments=arguments))
    if lake is None:
        return running
    where: dict[str, Any] = {"bootstrap": bootstrap, "spark": spark, "name": f"{name}-lake"} | options
    try:
        archiving = archive(topics, lake, once=once, every=every, **where)
    except BaseException:
        running.stop()
        raise
    return RunningPipeline(name, [*archiving.queries, *running.queries])


def lines(raw: DataFrame) -> DataFrame:
    """Records as lines: `at`, `service`, `level` (DEBUG to FATAL), `message`, `pattern` and the original `line`."""
    line = raw.withColumn("line", F.col("value").cast("string")).where(F.col("line").isNotNull())
    line = line.withColumn("json", F.from_json("line", "map<string, string>"))
    fields = line.select("line", "key", "topic", "timestamp", *(_field(name).alias(name) for name in FIELDS))
    level = F.upper(F.coalesce("level", F.lit("INFO")))
    known = F.create_map(*(F.lit(word) for pair in LEVELS.items() for word in pair))
    found = fields.select(
        flow.event_time("time").alias("at"),
        F.coalesce("service", F.col("key").cast("string"), "topic").alias("service"),
        F.coalesce(known[level], level).alias("level"),
        F.coalesce("message", "line").alias("message"),
        "line",
    )
    return found.withColumn("pattern", pattern(F.col("message")))


def _field(name: str) -> Column:
    """A field of the line, from JSON, plain text or logfmt; null if it is missing."""
    words = FIELDS[name]
    as_json = F.coalesce(*(F.col("json")[word] for word in words))
    plain = F.regexp_extract("line", PLAIN, 1 + list(FIELDS).index(name))
    pair = F.regexp_extract("line", rf'(?:^|\s)(?:{"|".join(words)})=("(?:[^"\\]|\\.)*"|\S+)', 1)
    logfmt = F.regexp_replace(pair, '^"|"$', "")
    nothing = F.lit("")
    otherwise = F.coalesce(F.nullif(plain, nothing), F.nullif(logfmt, nothing))
    return F.when(F.col("json").isNotNull(), as_json).otherwise(otherwise)


def pattern(message: Column) -> Column:
    """The message without its variable parts."""
    for part, word in VARIABLE_PARTS:
        message = F.regexp_replace(message, part, word)
    return message


def rates(lines: DataFrame, window: str) -> DataFrame:
    """The lines of each service in each window, by level, and the share of errors."""
    grouped = lines.groupBy(F.window("at", window).alias("window"), "service")
    found = grouped.agg(
        F.count("*").alias("lines"),
        *(
            F.count_if(F.col("level") == level).alias(level.lower())
            for level in ("DEBUG", "INFO", "WARN", *ERROR_LEVELS)
        ),
    )
    share = F.round((F.col("error") + F.col("fatal")) / F.col("lines"), 4)
    return found.select(*flow.window_bounds(), "*", share.alias("error_rate")).drop("window")


def alerts(lines: DataFrame, window: str, at: int) -> DataFrame:
    """The patterns of errors that were logged at least `at` times in a window, with the first message."""
    errors = lines.where(F.col("level").isin(*ERROR_LEVELS))
    grouped = errors.groupBy(F.window("at", window).alias("window"), "service", "pattern")
    found = grouped.agg(
        F.count("*").alias("lines"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
        F.min_by("message", "at").alias("example"),
    )
    return found.where(F.col("lines") >= at).select(*flow.window_bounds(), "*").drop("window")


@from_environment
def search(
    lake: str | None = None,
    *,
    topics: Sequence[str] = TOPICS,
    text: str | None = None,
    service: str | None = None,
    level: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    bootstrap: str = BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> DataFrame:
    """The lines of lake and log that match all conditions, each once, oldest first; without `lake` those of the log.

    `text` is a part of the message, ignoring case; `level` is the lowest level.
    """
    found = lines(records(session_or(spark), topics, bootstrap, lake, options))
    if text is not None:
        found = found.where(F.contains(F.lower("message"), F.lit(text.lower())))
    if service is not None:
        found = found.where(F.col("service") == service)
    if level is not None:
        found = found.where(F.col("level").isin(*levels_from(level)))
    if since is not None:
        found = found.where(F.col("at") >= F.lit(since))
    if until is not None:
        found = found.where(F.col("at") < F.lit(until))
    return found.select("at", "service", "level", "message").orderBy("at")


LEVEL_ORDER = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL")


def levels_from(least: str) -> tuple[str, ...]:
    """This level and all higher ones (pure)."""
    level = LEVELS.get(least.upper(), least.upper())
    if level not in LEVEL_ORDER:
        raise ValueError(f"unknown level {least}; use one of: {', '.join(LEVEL_ORDER)}")
    return LEVEL_ORDER[LEVEL_ORDER.index(level) :]

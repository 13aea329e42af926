"""logs: the lines of many services in one place: rates, alerts, and a lake to search (R64).

A line may be a JSON object, logfmt (`level=error msg="..."`) or plain text that begins with a time and a level; the
words differ from service to service, and what a line does not tell, its record does. Nothing is left out: a line
that says neither level nor time is an INFO of the time it was recorded.

Errors are gathered by their pattern, the message without what changes from line to line (numbers, ids, addresses), so
that a thousand timeouts are one alert.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from levada.pipelines.durations import check_lengths
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import Plan, Result
from levada.pipelines.lake.archive import archive
from levada.pipelines.lake.compaction import SIZES
from levada.pipelines.reports.reports import records
from levada.pipelines.runs.queries import Running
from levada.pipelines.runs.steps import Query
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("logs",)
FIELDS = {  # what services call it, the commonest first
    "time": ("time", "ts", "timestamp", "@timestamp", "at"),
    "level": ("level", "lvl", "severity", "levelname"),
    "service": ("service", "app", "logger", "name"),
    "message": ("message", "msg", "event", "text"),
}
PLAIN = r"(?s)^\[?(\d{4}-\d\d-\d\d[T ][0-9:.,]+(?:Z|[+-]\d\d:?\d\d)?)\]?\s+"  # a time, and what follows it:
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
WRONG = ("ERROR", "FATAL")
CHANGING = (  # in the order in which they are replaced
    (r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "<id>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b", "<id>"),
    (r'"[^"]*"', "<text>"),
    (r"\b\d+(?:[.,]\d+)*\b", "<n>"),
)


def logs(
    topics: Sequence[str] = TOPICS,
    *,
    to: str = "logs",
    lake: str | None = None,
    window: str = "1 minute",
    late: str = "30 seconds",
    alert_at: int = 5,
    bootstrap: str = flow.BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "logs",
    **options: str,
) -> Running:
    """Keep the topics `to`-rates and `to`-alerts, and the lines themselves in `lake`, if one is told.

    There is an alert for a pattern of errors that a service wrote `alert_at` times or more in a window. Lines may be
    `late` by so much; the lake has the later ones too. `options` are those of `format("levada")`.
    """
    check_lengths(window=window, late=late, every=every)
    spark = session_or(spark)
    asked = {"topics": sorted(topics), "to": to, "window": window, "late": late, "alert_at": alert_at}
    plan = Plan(name, bootstrap, checkpoint, once, every, asked=asked)
    written = lines(flow.stream_of(spark, bootstrap, topics, options)).withWatermark("at", late)
    results = [
        Result(f"{to}-rates", rates(written, window), key="service"),
        Result(f"{to}-alerts", alerts(written, window, alert_at), key="service"),
    ]
    running = flow.start(results, plan)
    if lake is None:
        return running
    try:
        kept = _archived(topics, lake, plan, spark, options)
    except BaseException:
        running.stop()
        raise
    return Running(name, [*kept, *running.queries])


def _archived(
    topics: Sequence[str], lake: str, plan: Plan, spark: "SparkSession", options: Mapping[str, str]
) -> Sequence[Query]:
    running = archive(
        topics,
        lake,
        bootstrap=plan.bootstrap,
        once=plan.once,
        every=plan.every,
        sizes=SIZES,
        spark=spark,
        name=f"{plan.name}-lake",
        **options,
    )
    return running.queries


def lines(raw: DataFrame) -> DataFrame:
    """Records as lines: `at`, `service`, `level` (DEBUG to FATAL), `message`, `pattern` and the `line` as it was."""
    line = raw.withColumn("line", F.col("value").cast("string")).where(F.col("line").isNotNull())
    line = line.withColumn("json", F.from_json("line", "map<string, string>"))
    told = line.select("line", "key", "topic", "timestamp", *(_told(name).alias(name) for name in FIELDS))
    level = F.upper(F.coalesce("level", F.lit("INFO")))
    known = F.create_map(*(F.lit(word) for pair in LEVELS.items() for word in pair))
    found = told.select(
        flow.moment("time").alias("at"),
        F.coalesce("service", F.col("key").cast("string"), "topic").alias("service"),
        F.coalesce(known[level], level).alias("level"),
        F.coalesce("message", "line").alias("message"),
        "line",
    )
    return found.withColumn("pattern", pattern(F.col("message")))


def _told(name: str) -> Column:
    """A field of the line: of its JSON, plain text or logfmt; null if there is none."""
    words = FIELDS[name]
    as_json = F.coalesce(*(F.col("json")[word] for word in words))
    plain = F.regexp_extract("line", PLAIN, 1 + list(FIELDS).index(name))
    pair = F.regexp_extract("line", rf'(?:^|\s)(?:{"|".join(words)})=("(?:[^"\\]|\\.)*"|\S+)', 1)
    logfmt = F.regexp_replace(pair, '^"|"$', "")
    nothing = F.lit("")
    otherwise = F.coalesce(F.nullif(plain, nothing), F.nullif(logfmt, nothing))
    return F.when(F.col("json").isNotNull(), as_json).otherwise(otherwise)


def pattern(message: Column) -> Column:
    """The message without what changes."""
    for changing, word in CHANGING:
        message = F.regexp_replace(message, changing, word)
    return message


def rates(written: DataFrame, window: str) -> DataFrame:
    """Lines of each service in each window, by level, and the share of them that tell of errors."""
    grouped = written.groupBy(F.window("at", window).alias("window"), "service")
    found = grouped.agg(
        F.count("*").alias("lines"),
        *(
            F.count_if(F.col("level") == level).alias(level.lower())
            for level in ("DEBUG", "INFO", "WARN", *WRONG)
        ),
    )
    share = F.round((F.col("error") + F.col("fatal")) / F.col("lines"), 4)
    return found.select(*flow.window_bounds(), "*", share.alias("error_rate")).drop("window")


def alerts(written: DataFrame, window: str, at: int) -> DataFrame:
    """Patterns of errors that came `at` times or more in a window, with the first such line."""
    wrong = written.where(F.col("level").isin(*WRONG))
    grouped = wrong.groupBy(F.window("at", window).alias("window"), "service", "pattern")
    found = grouped.agg(
        F.count("*").alias("lines"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
        F.min_by("message", "at").alias("example"),
    )
    return found.where(F.col("lines") >= at).select(*flow.window_bounds(), "*").drop("window")


def search(
    lake: str | None = None,
    *,
    topics: Sequence[str] = TOPICS,
    text: str | None = None,
    service: str | None = None,
    level: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    bootstrap: str = flow.BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> DataFrame:
    """Lines that fit all that is told, the oldest first: of lake and live log, each once; without a lake of the log.

    `text` is part of the message in any case of letters, `level` the least one.
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


ORDER = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL")


def levels_from(least: str) -> tuple[str, ...]:
    """This level and those above it (pure)."""
    level = LEVELS.get(least.upper(), least.upper())
    if level not in ORDER:
        raise ValueError(f"no such level: {least}; there are {', '.join(ORDER)}")
    return ORDER[ORDER.index(level) :]

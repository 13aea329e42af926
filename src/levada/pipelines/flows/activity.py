"""activity: events of website visitors, as counts, sessions and top pages.

Events are JSON objects with `at` (ISO 8601), `visitor`, `page`, and further fields of each kind. The kind is the name
of the topic, or the field `kind`. The result of a window is written once, when the watermark has passed its end; later
events are dropped.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import check_durations
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import QueryOptions, Result
from levada.pipelines.reports import report as reports
from levada.pipelines.reports.panels import Bars, Counts, Panel
from levada.pipelines.reports.report import Report
from levada.pipelines.runs.queries import RunningPipeline
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE_VIEWS = "page-views"
TOPICS = (PAGE_VIEWS, "searches", "clicks", "scrolls", "ads")
SCHEMA = (
    "at string, kind string, visitor string, page string, country string, query string, element string, "
    "depth double, placement string, campaign string, clicked boolean"
)


@from_environment
def activity(
    topics: Sequence[str] = TOPICS,
    *,
    to: str = "activity",
    window: str = "10 seconds",
    gap: str = "30 minutes",
    late: str = "10 seconds",
    top: int = 10,
    bootstrap: str = BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "activity",
    **options: str,
) -> RunningPipeline:
    """Write the topics `to`-counts, `to`-pages and `to`-sessions.

    A session ends when its visitor has no event for `gap`. `late` is the delay of the watermark. `options` are those of
    `format("levada")`.
    """
    check_durations(window=window, gap=gap, late=late, every=every)
    raw = flow.read_stream(session_or(spark), bootstrap, topics, options)
    parsed = events(raw).withWatermark("at", late)
    results = [
        Result(f"{to}-counts", counts(parsed, window), key="kind"),
        Result(f"{to}-pages", top_pages(parsed, window, top)),
        Result(f"{to}-sessions", sessions(parsed, gap), key="visitor"),
    ]
    arguments = {"topics": sorted(topics), "to": to, "window": window, "gap": gap, "late": late, "top": top}
    return flow.start(results, QueryOptions(name, bootstrap, checkpoint, once, every, arguments=arguments))


def events(raw: DataFrame) -> DataFrame:
    """Records as events: `at`, `kind`, `visitor`, `page` and the rest of SCHEMA, without records of no visitor."""
    fields = ("page", "country", "query", "element", "depth", "placement", "campaign", "clicked")
    found = flow.parse_json(raw, SCHEMA).select(
        flow.event_time().alias("at"),
        F.coalesce("event.kind", "topic").alias("kind"),
        F.coalesce("event.visitor", F.col("key").cast("string")).alias("visitor"),
        *(f"event.{name}" for name in fields),
    )
    return found.where(F.col("visitor").isNotNull())


def counts(events: DataFrame, window: str) -> DataFrame:
    """Events and visitors of each kind in each window."""
    grouped = events.groupBy(F.window("at", window).alias("window"), "kind")
    counted = grouped.agg(F.count("*").alias("events"), F.approx_count_distinct("visitor").alias("visitors"))
    return counted.select(*flow.window_bounds(), "kind", "events", "visitors")


def top_pages(events: DataFrame, window: str, top: int) -> DataFrame:
    """The pages with most views in each window, in descending order."""
    views = events.where((F.col("kind") == PAGE_VIEWS) & F.col("page").isNotNull())
    by_page = views.groupBy(F.window("at", window).alias("window"), "page").agg(F.count("*").alias("views"))
    best = flow.top_n(by_page, ["window"], "page", "views", top)
    return best.select(*flow.window_bounds(), F.col("most").alias("pages"))


def sessions(events: DataFrame, gap: str) -> DataFrame:
    """The sessions of each visitor; a session ends when the visitor has no event for `gap`."""
    grouped = events.groupBy(F.session_window("at", gap).alias("session"), "visitor")
    found = grouped.agg(
        F.min("at").alias("from"),
        F.max("at").alias("to"),
        F.count("*").alias("events"),
        F.count_if(F.col("kind") == PAGE_VIEWS).alias("views"),
        F.count_if(F.col("kind") == "searches").alias("searches"),
        F.count_if(F.col("kind") == "clicks").alias("clicks"),
        F.count_if(F.col("clicked")).alias("ad_clicks"),
        F.max("country").alias("country"),
        F.min_by("page", "at").alias("first_page"),
        F.max_by("page", "at").alias("last_page"),
    )
    return found.drop("session").withColumn("seconds", flow.seconds_between("from", "to"))


@from_environment
def report(
    topics: Sequence[str] = TOPICS,
    *,
    lake: str | None = None,
    gap: str = "30 minutes",
    top: int = 10,
    bootstrap: str = BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> Report:
    """A report over all events: totals by kind, top pages and session averages.

    With a `lake` of `archive` also those that the log has deleted. `options` are those of `format("levada")`.
    """
    check_durations(gap=gap)
    parsed = events(reports.records(session_or(spark), topics, bootstrap, lake, options)).cache()
    try:
        windows = reports.windows(parsed)
        found = reports.series(counts(parsed, windows.duration), "kind", "events")
        kinds = reports.table("Events", totals(parsed))
        pages = reports.table(f"Top {top} pages", pages_by_views(parsed).limit(top))
        visits = reports.table("Sessions", session_averages(sessions(parsed, gap)))
    finally:
        parsed.unpersist()
    lines = {kind: {start: events for start, (events,) in values.items()} for kind, values in found.items()}
    panels: list[Panel] = [
        Counts("Events", f"events per {windows.words}", windows, lines),
        Bars("Views of pages", "views", [(page, float(views)) for page, views, _ in pages.rows]),
    ]
    return Report("Activity of a website", [kinds, pages, visits], panels)


def totals(events: DataFrame) -> DataFrame:
    """Events and visitors of each kind."""
    grouped = events.groupBy("kind")
    counted = grouped.agg(F.count("*").alias("events"), F.count_distinct("visitor").alias("visitors"))
    return counted.orderBy(F.desc("events"), "kind")


def pages_by_views(events: DataFrame) -> DataFrame:
    """Pages with their views and visitors, in descending order of views."""
    views = events.where((F.col("kind") == PAGE_VIEWS) & F.col("page").isNotNull()).groupBy("page")
    counted = views.agg(F.count("*").alias("views"), F.count_distinct("visitor").alias("visitors"))
    return counted.orderBy(F.desc("views"), "page")


def session_averages(sessions: DataFrame) -> DataFrame:
    """The number of sessions and their average events, views and seconds, in one row."""
    return sessions.agg(
        F.count("*").alias("sessions"),
        F.round(F.avg("events"), 2).alias("events"),
        F.round(F.avg("views"), 2).alias("views"),
        F.round(F.avg("seconds"), 2).alias("seconds"),
    )

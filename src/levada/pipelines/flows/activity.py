"""activity: what visitors of a website do, as counts, sessions and the most seen pages (R63).

Events are JSON objects: `at` (ISO 8601), `visitor`, `page`, and what else each kind has. What kind an event is, its
topic's name says, or its field `kind`. Results of a window are final: they come once, when the watermark has passed
its end, and events later than that are left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from levada.pipelines.durations import check_lengths
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import Plan, Result
from levada.pipelines.reports import charts, reports
from levada.pipelines.reports.reports import Report
from levada.pipelines.runs.queries import Running
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE_VIEWS = "page-views"
TOPICS = (PAGE_VIEWS, "searches", "clicks", "scrolls", "ads")
SCHEMA = (
    "at string, kind string, visitor string, page string, country string, query string, element string, "
    "depth double, placement string, campaign string, clicked boolean"
)


def activity(
    topics: Sequence[str] = TOPICS,
    *,
    to: str = "activity",
    window: str = "10 seconds",
    gap: str = "30 minutes",
    late: str = "10 seconds",
    top: int = 10,
    bootstrap: str = flow.BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "activity",
    **options: str,
) -> Running:
    """Keep the topics `to`-counts, `to`-pages and `to`-sessions.

    A session ends when its visitor did nothing for `gap`; events may be `late` by so much. `options` are those of
    `format("levada")`.
    """
    check_lengths(window=window, gap=gap, late=late, every=every)
    raw = flow.stream_of(session_or(spark), bootstrap, topics, options)
    happened = events(raw).withWatermark("at", late)
    results = [
        Result(f"{to}-counts", counts(happened, window), key="kind"),
        Result(f"{to}-pages", top_pages(happened, window, top)),
        Result(f"{to}-sessions", sessions(happened, gap), key="visitor"),
    ]
    asked = {"topics": sorted(topics), "to": to, "window": window, "gap": gap, "late": late, "top": top}
    return flow.start(results, Plan(name, bootstrap, checkpoint, once, every, asked=asked))


def events(raw: DataFrame) -> DataFrame:
    """Records as events: `at`, `kind`, `visitor`, `page` and the rest of SCHEMA; what names no visitor is left out."""
    fields = ("page", "country", "query", "element", "depth", "placement", "campaign", "clicked")
    found = flow.parsed(raw, SCHEMA).select(
        flow.moment().alias("at"),
        F.coalesce("event.kind", "topic").alias("kind"),
        F.coalesce("event.visitor", F.col("key").cast("string")).alias("visitor"),
        *(f"event.{name}" for name in fields),
    )
    return found.where(F.col("visitor").isNotNull())


def counts(happened: DataFrame, window: str) -> DataFrame:
    """Events and visitors of each kind in each window."""
    grouped = happened.groupBy(F.window("at", window).alias("window"), "kind")
    counted = grouped.agg(F.count("*").alias("events"), F.approx_count_distinct("visitor").alias("visitors"))
    return counted.select(*flow.window_bounds(), "kind", "events", "visitors")


def top_pages(happened: DataFrame, window: str, top: int) -> DataFrame:
    """The pages seen most in each window, with their views, the first one first."""
    views = happened.where((F.col("kind") == PAGE_VIEWS) & F.col("page").isNotNull())
    by_page = views.groupBy(F.window("at", window).alias("window"), "page").agg(F.count("*").alias("views"))
    best = flow.most(by_page, ["window"], "page", "views", top)
    return best.select(*flow.window_bounds(), F.col("most").alias("pages"))


def sessions(happened: DataFrame, gap: str) -> DataFrame:
    """What each visitor did until he did nothing for `gap`."""
    grouped = happened.groupBy(F.session_window("at", gap).alias("session"), "visitor")
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


def report(
    topics: Sequence[str] = TOPICS,
    *,
    lake: str | None = None,
    gap: str = "30 minutes",
    top: int = 10,
    bootstrap: str = flow.BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> Report:
    """All events there are, counted at once: totals by kind, the most seen pages, and how sessions were.

    With a `lake` of `archive`, also those that the log has no longer. `options` are those of `format("levada")`.
    """
    check_lengths(gap=gap)
    happened = events(reports.records(session_or(spark), topics, bootstrap, lake, options)).cache()
    try:
        step = reports.step(*reports.span(happened))
        lines = reports.series(counts(happened, step), "kind", "events")
        kinds = reports.table("Events", totals(happened))
        pages = reports.table(f"Top {top} pages", pages_by_views(happened).limit(top))
        visits = reports.table("Sessions", session_figures(sessions(happened, gap)))
    finally:
        happened.unpersist()
    bars = charts.Bars("Views of pages", [(str(row[0]), float(row[1])) for row in pages.rows])
    panels: list[charts.Panel] = [charts.Lines(f"Events, each {reports.each(step)}", lines), bars]
    return Report("Activity of a website", [kinds, pages, visits], panels)


def totals(happened: DataFrame) -> DataFrame:
    """Events and visitors of each kind."""
    grouped = happened.groupBy("kind")
    counted = grouped.agg(F.count("*").alias("events"), F.count_distinct("visitor").alias("visitors"))
    return counted.orderBy(F.desc("events"), "kind")


def pages_by_views(happened: DataFrame) -> DataFrame:
    """Pages with their views and visitors, the most seen first."""
    views = happened.where((F.col("kind") == PAGE_VIEWS) & F.col("page").isNotNull()).groupBy("page")
    counted = views.agg(F.count("*").alias("views"), F.count_distinct("visitor").alias("visitors"))
    return counted.orderBy(F.desc("views"), "page")


def session_figures(visits: DataFrame) -> DataFrame:
    """How many sessions there were and what they were like on average, in one row."""
    return visits.agg(
        F.count("*").alias("sessions"),
        F.round(F.avg("events"), 2).alias("events"),
        F.round(F.avg("views"), 2).alias("views"),
        F.round(F.avg("seconds"), 2).alias("seconds"),
    )

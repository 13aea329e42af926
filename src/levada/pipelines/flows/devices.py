"""devices: readings of many devices, as statistics, spells of presence and the highest values (R63).

The same shape as `activity`: JSON objects with `at`, `device`, `measure`, `value` and perhaps `site`; final results
of windows, each once; devices instead of visitors, and a device that is not heard of for a while was away.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
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

TOPICS = ("readings",)
SCHEMA = "at string, device string, site string, measure string, value double"


def devices(
    topics: Sequence[str] = TOPICS,
    *,
    to: str = "devices",
    window: str = "1 minute",
    gap: str = "5 minutes",
    late: str = "10 seconds",
    top: int = 10,
    bootstrap: str = flow.BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "devices",
    **options: str,
) -> Running:
    """Keep the topics `to`-statistics, `to`-highest and `to`-spells.

    A spell ends when its device said nothing for `gap`; readings may be `late` by so much. `options` are those of
    `format("levada")`.
    """
    check_lengths(window=window, gap=gap, late=late, every=every)
    raw = flow.stream_of(session_or(spark), bootstrap, topics, options)
    taken = readings(raw).withWatermark("at", late)
    results = [
        Result(f"{to}-statistics", statistics(taken, window), key="device"),
        Result(f"{to}-highest", highest(taken, window, top), key="measure"),
        Result(f"{to}-spells", spells(taken, gap), key="device"),
    ]
    asked = {"topics": sorted(topics), "to": to, "window": window, "gap": gap, "late": late, "top": top}
    return flow.start(results, Plan(name, bootstrap, checkpoint, once, every, asked=asked))


def readings(raw: DataFrame) -> DataFrame:
    """Records as readings: `at`, `device`, `site`, `measure`, `value`; what has no device or no value is left out."""
    found = flow.parsed(raw, SCHEMA).select(
        flow.moment().alias("at"),
        F.coalesce("event.device", F.col("key").cast("string")).alias("device"),
        *(f"event.{name}" for name in ("site", "measure", "value")),
    )
    return found.where(F.col("device").isNotNull() & F.col("value").isNotNull())


def statistics(taken: DataFrame, window: str) -> DataFrame:
    """Of each measure of each device in each window: how many readings, and their mean, least and greatest."""
    grouped = taken.groupBy(F.window("at", window).alias("window"), "device", "measure")
    found = grouped.agg(F.max("site").alias("site"), *_figures())
    return found.select(*flow.window_bounds(), "device", "site", "measure", *FIGURES)


FIGURES = ("readings", "mean", "least", "greatest")


def _figures() -> list[Column]:
    return [
        F.count("*").alias("readings"),
        F.round(F.avg("value"), 3).alias("mean"),
        F.min("value").alias("least"),
        F.max("value").alias("greatest"),
    ]


def highest(taken: DataFrame, window: str, top: int) -> DataFrame:
    """The devices with the greatest value of each measure in each window, the first one first."""
    grouped = taken.groupBy(F.window("at", window).alias("window"), "device", "measure")
    best = flow.most(
        grouped.agg(F.max("value").alias("value")), ["window", "measure"], "device", "value", top
    )
    return best.select(*flow.window_bounds(), "measure", F.col("most").alias("devices"))


def spells(taken: DataFrame, gap: str) -> DataFrame:
    """When each device was heard of, without silence longer than `gap`."""
    grouped = taken.groupBy(F.session_window("at", gap).alias("session"), "device")
    found = grouped.agg(
        F.min("at").alias("from"),
        F.max("at").alias("to"),
        F.count("*").alias("readings"),
        F.max("site").alias("site"),
    )
    return found.drop("session").withColumn("seconds", flow.seconds_between("from", "to"))


def report(
    topics: Sequence[str] = TOPICS,
    *,
    lake: str | None = None,
    gap: str = "5 minutes",
    top: int = 10,
    bootstrap: str = flow.BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> Report:
    """All readings there are: figures of each measure, and the devices with the highest values and most silences.

    With a `lake` of `archive`, also those that the log has no longer. `options` are those of `format("levada")`.
    """
    check_lengths(gap=gap)
    taken = readings(reports.records(session_or(spark), topics, bootstrap, lake, options)).cache()
    try:
        step = reports.step(*reports.span(taken))
        lines = reports.series(means(taken, step), "measure", "mean")
        measures = reports.table("Measures", taken.groupBy("measure").agg(*_figures()).orderBy("measure"))
        peaks = reports.table("Farthest above the usual", peaks_by_measure(taken).limit(top))
        silent = reports.table("Most often silent", silences(spells(taken, gap)).limit(top))
    finally:
        taken.unpersist()
    panels: list[charts.Panel] = [
        charts.Lines(f"Mean of {name}, each {reports.each(step)}", {name: points}, from_zero=False)
        for name, points in lines.items()
    ]
    bars = [(f"{device} ({measure})", float(far or 0)) for device, measure, _, far in peaks.rows]
    panels.append(charts.Bars("Farthest above the usual, in standard deviations of the measure", bars))
    return Report("Readings of devices", [measures, peaks, silent], panels)


def means(taken: DataFrame, window: str) -> DataFrame:
    """Of each measure in each window, over all devices."""
    grouped = taken.groupBy(F.window("at", window).alias("window"), "measure").agg(
        F.avg("value").alias("mean")
    )
    return grouped.select(*flow.window_bounds(), "measure", "mean")


def peaks_by_measure(taken: DataFrame) -> DataFrame:
    """Devices by how far their greatest value is above what is usual for the measure, the farthest first."""
    usual = taken.groupBy("measure").agg(F.avg("value").alias("usual"), F.stddev("value").alias("spread"))
    peaks = taken.groupBy("device", "measure").agg(F.max("value").alias("value")).join(usual, "measure")
    far = (F.col("value") - F.col("usual")) / F.col("spread")
    found = peaks.select("device", "measure", "value", F.round(far, 2).alias("deviations"))
    return found.orderBy(F.col("deviations").desc_nulls_last(), "device")


def silences(heard: DataFrame) -> DataFrame:
    """Devices by how often they went silent and came back, the most often first."""
    counted = heard.groupBy("device").agg(
        (F.count("*") - 1).alias("silences"), F.sum("readings").alias("readings")
    )
    return counted.where("silences > 0").orderBy(F.desc("silences"), "device")

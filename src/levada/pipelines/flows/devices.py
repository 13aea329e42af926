"""devices: readings of devices, as statistics, spells of presence and highest values.

The same shape as `activity`: JSON objects with `at`, `device`, `measure`, `value` and an optional `site`, and one final
result per window. A spell is a session window of a device: it ends when the device sends nothing for a while.
"""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import check_durations
from levada.pipelines.flows import flow
from levada.pipelines.flows.flow import QueryOptions, Result
from levada.pipelines.reports import report as reports
from levada.pipelines.reports.panels import Bars, Panel, Ranges
from levada.pipelines.reports.report import Report
from levada.pipelines.runs.queries import RunningPipeline
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("readings",)
CHARTS_MAX = 12  # of measures in a report
SCHEMA = "at string, device string, site string, measure string, value double"


@from_environment
def devices(
    topics: Sequence[str] = TOPICS,
    *,
    to: str = "devices",
    window: str = "1 minute",
    gap: str = "5 minutes",
    late: str = "10 seconds",
    top: int = 10,
    bootstrap: str = BOOTSTRAP,
    checkpoint: str | None = None,
    once: bool = False,
    every: str = "5 seconds",
    spark: "SparkSession | None" = None,
    name: str = "devices",
    **options: str,
) -> RunningPipeline:
    """Write the topics `to`-statistics, `to`-highest and `to`-spells.

    A spell ends when its device sends nothing for `gap`. `late` is the delay of the watermark. `options` are those of
    `format("levada")`.
    """
    check_durations(window=window, gap=gap, late=late, every=every)
    raw = flow.read_stream(session_or(spark), bootstrap, topics, options)
    parsed = readings(raw).withWatermark("at", late)
    results = [
        Result(f"{to}-statistics", statistics(parsed, window), key="device"),
        Result(f"{to}-highest", highest(parsed, window, top), key="measure"),
        Result(f"{to}-spells", spells(parsed, gap), key="device"),
    ]
    arguments = {"topics": sorted(topics), "to": to, "window": window, "gap": gap, "late": late, "top": top}
    return flow.start(results, QueryOptions(name, bootstrap, checkpoint, once, every, arguments=arguments))


def readings(raw: DataFrame) -> DataFrame:
    """Records as readings: `at`, `device`, `site`, `measure`, `value`, without those of no device or value."""
    found = flow.parse_json(raw, SCHEMA).select(
        flow.event_time().alias("at"),
        F.coalesce("event.device", F.col("key").cast("string")).alias("device"),
        *(f"event.{name}" for name in ("site", "measure", "value")),
    )
    return found.where(F.col("device").isNotNull() & F.col("value").isNotNull())


def statistics(readings: DataFrame, window: str) -> DataFrame:
    """The number, mean, least and greatest of the readings of each device and measure in each window."""
    grouped = readings.groupBy(F.window("at", window).alias("window"), "device", "measure")
    found = grouped.agg(F.max("site").alias("site"), *_aggregates())
    return found.select(*flow.window_bounds(), "device", "site", "measure", *AGGREGATES)


AGGREGATES = ("readings", "mean", "least", "greatest")


def _aggregates() -> list[Column]:
    return [
        F.count("*").alias("readings"),
        F.round(F.avg("value"), 3).alias("mean"),
        F.min("value").alias("least"),
        F.max("value").alias("greatest"),
    ]


def highest(readings: DataFrame, window: str, top: int) -> DataFrame:
    """The devices with the greatest values of each measure in each window, in descending order."""
    grouped = readings.groupBy(F.window("at", window).alias("window"), "device", "measure")
    best = flow.top_n(grouped.agg(F.max("value").alias("value")), ["window", "measure"], "device", "value", top)
    return best.select(*flow.window_bounds(), "measure", F.col("most").alias("devices"))


def spells(readings: DataFrame, gap: str) -> DataFrame:
    """The spells of each device: the time from its first to its last reading without a pause longer than `gap`."""
    grouped = readings.groupBy(F.session_window("at", gap).alias("session"), "device")
    found = grouped.agg(
        F.min("at").alias("from"),
        F.max("at").alias("to"),
        F.count("*").alias("readings"),
        F.max("site").alias("site"),
    )
    return found.drop("session").withColumn("seconds", flow.seconds_between("from", "to"))


@from_environment
def report(
    topics: Sequence[str] = TOPICS,
    *,
    lake: str | None = None,
    gap: str = "5 minutes",
    top: int = 10,
    bootstrap: str = BOOTSTRAP,
    spark: "SparkSession | None" = None,
    **options: str,
) -> Report:
    """A report over all readings: statistics by measure, and the devices with the highest values and most silences.

    With a `lake` of `archive` also those that the log has deleted. `options` are those of `format("levada")`.
    """
    check_durations(gap=gap)
    parsed = readings(reports.records(session_or(spark), topics, bootstrap, lake, options)).cache()
    try:
        windows = reports.windows(parsed)
        found = reports.series(ranges(parsed, windows.duration), "measure", "mean", "least", "greatest")
        measures = reports.table("Measures", parsed.groupBy("measure").agg(*_aggregates()).orderBy("measure"))
        peaks = reports.table("Farthest above the usual", peaks_by_measure(parsed).limit(top))
        silent = reports.table("Most often silent", silences(spells(parsed, gap)).limit(top))
    finally:
        parsed.unpersist()
    panels: list[Panel] = [
        Ranges(f"Range of {name}, each {windows.words}", f"{name} (unit of the readings)", windows, values)
        for name, values in list(found.items())[:CHARTS_MAX]
    ]
    note = f"the charts show {CHARTS_MAX} of {len(found)} measures" if len(found) > CHARTS_MAX else ""
    bars = [(f"{device} ({measure})", far or 0.0) for device, measure, _, far in peaks.rows if isfinite(far or 0)]
    panels.append(Bars("Farthest above the usual", "standard deviations above the mean", bars))
    return Report("Readings of devices", [measures, peaks, silent], panels, note)


def ranges(readings: DataFrame, window: str) -> DataFrame:
    """The mean, least and greatest value of each measure in each window, over all devices."""
    grouped = readings.groupBy(F.window("at", window).alias("window"), "measure")
    found = grouped.agg(F.avg("value").alias("mean"), F.min("value").alias("least"), F.max("value").alias("greatest"))
    return found.select(*flow.window_bounds(), "measure", "mean", "least", "greatest")


def peaks_by_measure(readings: DataFrame) -> DataFrame:
    """Devices by the distance of their greatest value from the mean of the measure, in descending order."""
    means = readings.groupBy("measure").agg(F.avg("value").alias("usual"), F.stddev("value").alias("spread"))
    peaks = readings.groupBy("device", "measure").agg(F.max("value").alias("value")).join(means, "measure")
    far = (F.col("value") - F.col("usual")) / F.col("spread")
    found = peaks.select("device", "measure", "value", F.round(far, 2).alias("deviations"))
    return found.orderBy(F.col("deviations").desc_nulls_last(), "device")


def silences(spells: DataFrame) -> DataFrame:
    """Devices by the number of pauses between their spells, in descending order."""
    counted = spells.groupBy("device").agg((F.count("*") - 1).alias("silences"), F.sum("readings").alias("readings"))
    return counted.where("silences > 0").orderBy(F.desc("silences"), "device")

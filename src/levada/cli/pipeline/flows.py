"""`levada pipeline run activity|devices|logs`, and `levada pipeline report` and `search` over the same topics."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from levada.cli.options import (
    Command,
    TimeType,
    client_options,
    notice,
    output_option,
)
from levada.cli.output import Output, emit
from levada.cli.pipeline.options import (
    ChartType,
    PathType,
    duration_option,
    format_option,
    spark_options,
    stream_options,
    topics_option,
)
from levada.cli.pipeline.process import check_inputs, new_session, plain_errors, require_spark, run_pipeline
from levada.cli.settings import ClientProperties, parse_settings

ACTIVITY_TOPICS = ("page-views", "searches", "clicks", "scrolls", "ads")
WINDOW_HELP = "The length of the windows in which events are counted."
LATE_HELP = "How late an event may come; a window is written when the watermark has passed its end."

every_option = duration_option("--every", "5 seconds", "The interval of micro-batches.")
top_option = click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="The length of rankings.",
)


def to_option(default: str) -> Callable[[Command], Command]:
    """Add --to, the prefix of the result topics."""
    return click.option(
        "--to", metavar="NAME", default=default, show_default=True, help="The prefix of the result topics."
    )


@click.command()
@topics_option(*ACTIVITY_TOPICS)
@format_option("source")
@to_option("activity")
@duration_option("--window", "10 seconds", WINDOW_HELP)
@duration_option("--gap", "30 minutes", "A session ends when its visitor has no event for so long.")
@duration_option("--late", "10 seconds", LATE_HELP)
@top_option
@every_option
@stream_options
def activity(**given: Any) -> None:
    """Analyse the events of website visitors: counts, top pages and sessions, each to a topic.

    \b
    Examples:
      levada pipeline run activity
      levada pipeline run activity --window '1 minute' --late '30 seconds' --once
      levada pipeline run activity --topic events --to shop --name shop
    """
    _run("activity", given)


@click.command()
@topics_option("readings")
@format_option("source")
@to_option("devices")
@duration_option("--window", "1 minute", WINDOW_HELP)
@duration_option("--gap", "5 minutes", "A spell ends when its device has sent nothing for so long.")
@duration_option("--late", "10 seconds", LATE_HELP)
@top_option
@every_option
@stream_options
def devices(**given: Any) -> None:
    """Analyse the readings of devices: statistics, highest values and spells of presence, each to a topic.

    \b
    Examples:
      levada pipeline run devices
      levada pipeline run devices --topic sensors --window '5 minutes' --late '2 minutes'
    """
    _run("devices", given)


@click.command()
@topics_option("logs")
@format_option("source")
@to_option("logs")
@click.option("--lake", metavar="PATH", type=PathType(), help="Archive all lines to this lake, for search.")
@duration_option("--window", "1 minute", WINDOW_HELP)
@duration_option("--late", "30 seconds", LATE_HELP)
@click.option(
    "--alert-at",
    metavar="LINES",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="The number of errors of one pattern in a window that is an alert.",
)
@every_option
@stream_options
def logs(**given: Any) -> None:
    """Collect the logs of services: rates by level and alerts to topics, all lines to a lake.

    \b
    Examples:
      levada pipeline run logs --lake ./lake
      levada pipeline run logs --topic app-logs --topic nginx --alert-at 20
      levada pipeline search --lake ./lake --text timeout --level error
    """
    _run("logs", given)


def _run(pipeline: str, given: dict[str, Any]) -> None:
    outside = ("once", "name", "home", "master", "conf", "properties", "more")
    shown = {key: value for key, value in given.items() if key not in outside and value is not None}
    shown["topics"] = ", ".join(given["topics"])
    run_pipeline(pipeline, given, shown, topics=given["topics"])


@click.command()
@click.argument("pipeline", type=click.Choice(["activity", "devices"]))
@topics_option(default="; by default those of the pipeline")
@click.option(
    "--lake",
    metavar="PATH",
    type=PathType(),
    help="A lake of `levada pipeline run archive`: adds records that the log has deleted.",
)
@click.option(
    "--chart",
    "charts",
    metavar="FILE",
    type=ChartType(),
    multiple=True,
    help="The file of the chart: an image (.svg), or a page to open in a browser and zoom (.html); can be repeated."
    "  [default: PIPELINE.svg]",
)
@spark_options
@format_option("source")
@client_options
def report(
    pipeline: str,
    topics: tuple[str, ...],
    lake: str | None,
    charts: tuple[str, ...],
    master: str | None,
    conf: Mapping[str, str],
    more: tuple[str, ...],
    properties: ClientProperties,
) -> None:
    """Report on all events of topics and of a lake: tables, and a chart as an image or a page.

    \b
    Examples:
      levada pipeline report activity
      levada pipeline report activity --lake ./lake --chart november.svg --chart november.html
      levada pipeline report devices --topic sensors
    """
    options = properties.spark_options() | parse_settings(more, "--option")
    require_spark("matplotlib", "plotly")  # before Spark starts
    module = import_module(f"levada.pipelines.flows.{pipeline}")
    topics = topics or module.TOPICS
    with plain_errors():
        check_inputs(topics, properties, lake)
        spark = new_session("report", master, conf)
        found = module.report(topics, lake=lake, bootstrap=properties.bootstrap, spark=spark, **options)
    click.echo(found.text())
    for chart in charts or (f"{pipeline}.svg",):
        notice(f"chart: {found.write(chart)}")


@click.command()
@topics_option("logs")
@format_option("source")
@click.option(
    "--lake",
    metavar="PATH",
    type=PathType(),
    help="A lake of `levada pipeline run logs`: adds lines that the log has deleted.",
)
@click.option("--text", metavar="WORDS", help="A part of the message, ignoring case.")
@click.option("--service", metavar="NAME", help="Lines of this service.")
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warn", "error", "fatal"], case_sensitive=False),
    help="Lines of this level and above.",
)
@click.option("--since", type=TimeType(), help="From this time on: 2026-11-15T12:00:00Z.")
@click.option("--until", type=TimeType(), help="Before this time.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most so many lines.",
)
@spark_options
@output_option
@client_options
def search(
    limit: int,
    output: Output,
    master: str | None,
    conf: Mapping[str, str],
    more: tuple[str, ...],
    properties: ClientProperties,
    **given: Any,
) -> None:
    """Search the logs of services, in the lake and in the topic: each line once, oldest first.

    \b
    Examples:
      levada pipeline search --lake ./lake --text timeout --level error
      levada pipeline search --service payments --since 2026-11-15T12:00:00Z -o jsonl
    """
    options: dict[str, Any] = properties.spark_options() | parse_settings(more, "--option")
    require_spark()
    from levada.pipelines.flows.service_logs import search as find

    with plain_errors():
        check_inputs(given["topics"], properties, given["lake"])
        found = find(spark=new_session("search", master, conf), bootstrap=properties.bootstrap, **given, **options)
        rows = found.selectExpr("string(at) at", "service", "level", "message").limit(limit).collect()
    emit([row.asDict() for row in rows], output, ("at", "service", "level", "message"))

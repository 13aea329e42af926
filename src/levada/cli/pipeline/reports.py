"""`levada pipeline report` and `search`: answers from all that topics and lakes have, once."""

from importlib import import_module
from typing import Any

import click

from levada.cli.options import TimeType, complete_topics, names_brokers, parse_settings, prints, say
from levada.cli.output import Output, emit
from levada.cli.pipeline.commands import there_is
from levada.cli.pipeline.flows import reads
from levada.cli.pipeline.process import PathType, needs_spark, new_session, said_plainly


@click.command()
@click.argument("pipeline", type=click.Choice(["activity", "devices"]))
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="To read, if not those of the pipeline; more than once for several.",
)
@click.option(
    "--lake",
    metavar="PATH",
    type=PathType(),
    help="Of `levada pipeline run archive`: also what the log has no longer.",
)
@click.option("--chart", metavar="FILE", help="Where the chart is drawn, as SVG.  [default: PIPELINE.svg]")
@click.option("--master", metavar="URL", help="Spark to run on.")
@click.option("--option", "more", metavar="KEY=VALUE", multiple=True, help='As of format("levada").')
@names_brokers
def report(
    pipeline: str,
    topics: tuple[str, ...],
    lake: str | None,
    chart: str | None,
    master: str | None,
    more: tuple[str, ...],
    bootstrap: str,
) -> None:
    """Count all events that topics have, and those of a lake: tables, and a chart as an image.

    \b
    Examples:
      levada pipeline report activity
      levada pipeline report activity --lake ./lake --chart november.svg
      levada pipeline report devices --topic sensors
    """
    options = parse_settings(more, "--option")
    needs_spark()
    module = import_module(f"levada.pipelines.flows.{pipeline}")
    topics = topics or module.TOPICS
    with said_plainly():
        there_is(topics, bootstrap, lake)
        spark = new_session("report", master)
        found = module.report(topics, lake=lake, bootstrap=bootstrap, spark=spark, **options)
    click.echo(found.text())
    say(f"chart: {found.write(chart or f'{pipeline}.svg')}")


@click.command()
@reads("logs")
@click.option(
    "--lake",
    metavar="PATH",
    type=PathType(),
    help="Of `levada pipeline run logs`: also what the log has no longer.",
)
@click.option("--text", metavar="WORDS", help="Part of the message, in any case of letters.")
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
    help="At most so many.",
)
@click.option("--master", metavar="URL", help="Spark to run on.")
@prints
@names_brokers
def search(limit: int, output: Output, master: str | None, more: tuple[str, ...], **asked: Any) -> None:
    """Find lines in the logs of services: in the lake and in the live topic, each line once, the oldest first.

    \b
    Examples:
      levada pipeline search --lake ./lake --text timeout --level error
      levada pipeline search --service payments --since 2026-11-15T12:00:00Z -o jsonl
    """
    options: dict[str, Any] = dict(parse_settings(more, "--option"))
    needs_spark()
    from levada.pipelines.flows.service_logs import search as find

    with said_plainly():
        there_is(asked["topics"], asked["bootstrap"], asked["lake"])
        found = find(spark=new_session("search", master), **asked, **options)
        rows = found.selectExpr("string(at) at", "service", "level", "message").limit(limit).collect()
    emit([row.asDict() for row in rows], output, ("at", "service", "level", "message"))

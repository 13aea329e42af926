"""`levada pipeline report` and `search`: answers from all that topics and lakes have, once."""

from importlib import import_module
from typing import Any

import click

from levada.cli.failures import EXIT_USAGE, Failure
from levada.cli.options import complete_topics, names_brokers, parse_settings, prints, say
from levada.cli.output import Output, emit
from levada.cli.pipeline import new_session, said_plainly
from levada.cli.pipeline_flows import reads


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
    "--lake", metavar="PATH", help="Of `levada pipeline run archive`: also what the log has no longer."
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
    with said_plainly():
        say("starting Spark ...")
        spark = new_session(f"report of {pipeline}", master)
        module = import_module(f"levada.pipelines.{pipeline}")
        found = module.report(topics or module.TOPICS, lake=lake, bootstrap=bootstrap, spark=spark, **options)
    click.echo(found.text())
    say(f"chart: {found.write(chart or f'{pipeline}.svg')}")


@click.command()
@reads("logs")
@click.option(
    "--lake", metavar="PATH", help="Of `levada pipeline run logs`: also what the log has no longer."
)
@click.option("--text", metavar="WORDS", help="Part of the message, in any case of letters.")
@click.option("--service", metavar="NAME", help="Lines of this service.")
@click.option(
    "--level", metavar="LEVEL", help="Lines of this level and above: debug, info, warn, error, fatal."
)
@click.option("--since", metavar="TIME", help="From this time on: 2026-11-15T12:00:00Z.")
@click.option("--until", metavar="TIME", help="Before this time.")
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
    options = parse_settings(more, "--option")
    with said_plainly():
        say("starting Spark ...")
        spark = new_session("search", master)
        from levada.pipelines.service_logs import search as find

        try:
            found = find(spark=spark, **asked, **options)
        except ValueError as error:
            raise Failure(str(error), EXIT_USAGE) from None
        rows = found.selectExpr("string(at) at", "service", "level", "message").limit(limit).collect()
    emit([row.asDict() for row in rows], output, ("at", "service", "level", "message"))

"""`levada pipeline run activity`, `devices`, `logs`: from topics to topics of results."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from levada.cli.options import Command, complete_topics, parse_settings
from levada.cli.pipeline.commands import Begin, execute, streams_on_spark
from levada.cli.pipeline.process import PathType
from levada.pipelines.durations import check_lengths
from levada.pipelines.runs.queries import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.pipelines.runs.queries import Running
    from levada.pipelines.runs.runs import Run

MODULES = {"activity": "activity", "devices": "devices", "logs": "service_logs"}
ACTIVITY_TOPICS = ("page-views", "searches", "clicks", "scrolls", "ads")


def reads(*topics: str) -> Callable[[Command], Command]:
    """Adds --topic and --option; the topics are those that are read if none is told."""

    def add(command: Command) -> Command:
        topic = click.option(
            "--topic",
            "topics",
            metavar="TOPIC",
            multiple=True,
            default=topics,
            show_default=True,
            shell_complete=complete_topics,
            help="To read; more than once for several.",
        )
        more = click.option(
            "--option",
            "more",
            metavar="KEY=VALUE",
            multiple=True,
            help='Of the source, as of format("levada").',
        )
        return topic(more(command))

    return add


class LengthType(click.ParamType[str]):
    """A length of time in Spark's words."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_lengths(time=value)
        except PipelineError as error:
            self.fail(str(error).removeprefix("time: "), param, ctx)
        return value


def time_option(name: str, default: str, text: str) -> Callable[[Command], Command]:
    """An option that is a length of time."""
    return click.option(
        name, metavar="TIME", type=LengthType(), default=default, show_default=True, help=text
    )


def to_option(default: str) -> Callable[[Command], Command]:
    """Adds --to, the beginning of the names of results."""
    return click.option(
        "--to", metavar="NAME", default=default, show_default=True, help="The results' topics begin with it."
    )


window_help = "Events are counted in windows of this length."
late_help = "How late an event may come; a window is written when it can have no more."
every = time_option("--every", "5 seconds", "How often there is a batch.")
top = click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many are ranked.",
)


@click.command()
@reads(*ACTIVITY_TOPICS)
@to_option("activity")
@time_option("--window", "10 seconds", window_help)
@time_option("--gap", "30 minutes", "A session ends when its visitor does nothing for so long.")
@time_option("--late", "10 seconds", late_help)
@top
@every
@streams_on_spark
def activity(**given: Any) -> None:
    """Follow what visitors of a website do: counts, top pages and sessions, each to a topic.

    \b
    Examples:
      levada pipeline run activity
      levada pipeline run activity --window '1 minute' --late '30 seconds' --once
      levada pipeline run activity --topic events --to shop --name shop
    """
    _run("activity", given)


@click.command()
@reads("readings")
@to_option("devices")
@time_option("--window", "1 minute", window_help)
@time_option("--gap", "5 minutes", "A device was away when it said nothing for so long.")
@time_option("--late", "10 seconds", late_help)
@top
@every
@streams_on_spark
def devices(**given: Any) -> None:
    """Follow the readings of many devices: statistics, highest values and spells of presence, each to a topic.

    \b
    Examples:
      levada pipeline run devices
      levada pipeline run devices --topic sensors --window '5 minutes' --late '2 minutes'
    """
    _run("devices", given)


@click.command()
@reads("logs")
@to_option("logs")
@click.option("--lake", metavar="PATH", type=PathType(), help="Keep all lines there, to be searched.")
@time_option("--window", "1 minute", window_help)
@time_option("--late", "30 seconds", late_help)
@click.option(
    "--alert-at",
    metavar="LINES",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="There is an alert when so many errors of one pattern are in a window.",
)
@every
@streams_on_spark
def logs(**given: Any) -> None:
    """Gather the logs of many services: rates by level and alerts to topics, all lines to a lake.

    \b
    Examples:
      levada pipeline run logs --lake ./lake
      levada pipeline run logs --topic app-logs --topic nginx --alert-at 20
      levada pipeline search --lake ./lake --text timeout --level error
    """
    _run("logs", given)


def _run(pipeline: str, given: dict[str, Any]) -> None:
    name, home, master, bootstrap = (given.pop(key) for key in ("name", "home", "master", "bootstrap"))
    more: Sequence[str] = given.pop("more")
    options = parse_settings(more, "--option")

    def start(spark: "SparkSession", run: "Run") -> "Running":
        function = getattr(import_module(f"levada.pipelines.flows.{MODULES[pipeline]}"), pipeline)
        running: Running = function(
            spark=spark, bootstrap=bootstrap, checkpoint=run.checkpoint, name=run.name, **given, **options
        )
        return running

    shown = {key: value for key, value in given.items() if key != "once" and value is not None}
    shown["topics"] = ", ".join(given["topics"])
    execute(Begin(pipeline, shown, start, given["topics"]), bootstrap, name, home, master)

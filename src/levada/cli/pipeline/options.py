"""The options that commands of pipelines share."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from levada.cli.completion import matching
from levada.cli.options import Command, client_options, complete_topics
from levada.cli.settings import parse_settings
from levada.pipelines.errors import LakeError, PipelineError, check_chart_file, check_durations
from levada.pipelines.lake.lake import check_path
from levada.pipelines.runs.run import all_runs, default_directory

DRIVER_MEMORY = "spark.driver.memory"


class PathType(click.ParamType[str]):
    """The path of a lake or a result, which Spark can write."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_path(str(value))
        except LakeError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class ChartType(click.ParamType[str]):
    """The file of a chart."""

    name = "chart"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_chart_file(value)
        except PipelineError as error:
            self.fail(str(error), param, ctx)
        return value


class DurationType(click.ParamType[str]):
    """A duration in Spark's syntax."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_durations(time=value)
        except PipelineError as error:
            self.fail(str(error).removeprefix("time: "), param, ctx)
        return value


class MemoryType(click.ParamType[str]):
    """An amount of memory in Spark's syntax."""

    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[1-9]\d*[kmgt]b?", value, re.IGNORECASE):
            self.fail(f"{value!r} is not an amount of memory, such as 800m or 4g", param, ctx)
        return value


def duration_option(name: str, default: str, text: str) -> Callable[[Command], Command]:
    """Add an option that is a duration."""
    return click.option(name, metavar="TIME", type=DurationType(), default=default, show_default=True, help=text)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of runs on this machine for shell completion."""
    home = ctx.params.get("home") or default_directory()
    return matching((run.name for run in all_runs(home)), incomplete)


def home_option(command: Command) -> Command:
    """Add --home."""
    return click.option(
        "--home",
        metavar="DIR",
        envvar="LEVADA_PIPELINES",
        default=default_directory,
        show_default=False,
        show_envvar=True,
        help="The directory of runs and their checkpoints.  [default: ~/.local/state/levada/pipelines]",
    )(command)


def spark_options(command: Command) -> Command:
    """Add --master, --driver-memory and --conf; the command gets the last two as `conf`, settings of Spark."""

    @wraps(command)
    def with_conf(*, conf: tuple[str, ...], driver_memory: str | None, **given: Any) -> Any:
        settings = parse_settings(conf, "--conf")
        foreign = [name for name in settings if not name.startswith("spark.")]
        if foreign:
            text = f"{foreign[0]!r} is not a setting of Spark: these begin with spark."
            raise click.BadParameter(text, param_hint="--conf")
        if driver_memory is not None:
            settings[DRIVER_MEMORY] = driver_memory
        return command(conf=settings, **given)

    master = click.option(
        "--master", metavar="URL", help="The Spark master; by default this machine or Spark's settings."
    )
    memory = click.option(
        "--driver-memory",
        metavar="SIZE",
        type=MemoryType(),
        help="The heap of Spark's driver, which on this machine does all the work: 4g.  [default: Spark's, 1g]",
    )
    settings = click.option(
        "--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark, as for spark-submit; can be repeated."
    )
    return cast(Command, master(memory(settings(with_conf))))


def run_options(command: Command) -> Command:
    """Add the options of every pipeline: --name, those of Spark, --home, -b."""
    name = click.option(
        "--name", metavar="NAME", shell_complete=complete_runs, help="The name of the run; by default the pipeline's."
    )
    return name(spark_options(home_option(client_options(command))))


def stream_options(command: Command) -> Command:
    """Add --once and the options of every pipeline."""
    once = click.option("--once", is_flag=True, help="Process all available records, then end.")
    return once(run_options(command))


def format_option(side: str) -> Callable[[Command], Command]:
    """Add --option, for options of the source or sink."""
    text = f'An option of the {side}, as in format("levada").'
    return click.option("--option", "more", metavar="KEY=VALUE", multiple=True, help=text)


def topics_option(*topics: str, required: bool = False, default: str = "") -> Callable[[Command], Command]:
    """Add --topic, which can be repeated; `topics` are the default, or `default` describes it."""
    return click.option(
        "--topic",
        "topics",
        metavar="TOPIC",
        multiple=True,
        default=topics or None,
        required=required,
        show_default=bool(topics),
        shell_complete=complete_topics,
        help=f"A topic to read; can be repeated{default}.",
    )

"""`levada pipeline run|list|status|stop|forget`. The pipelines are commands of `run`, imported when they are used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from levada.cli.errors import EXIT_NOT_FOUND, EXIT_USAGE, CommandError, did_you_mean
from levada.cli.options import confirm, notice, output_option
from levada.cli.output import Output, emit, emit_one
from levada.cli.pipeline.options import complete_runs, home_option
from levada.cli.pipeline.process import plain_errors
from levada.clock import SystemClock
from levada.pipelines.runs.run import Run, RunStatus, all_runs

# Each pipeline: the module of its command, and a description.
PIPELINES = {
    "archive": (
        "levada.cli.pipeline.lake",
        "Topics to a lake, by topic and date: Parquet files or a Delta table.",
    ),
    "replay": (
        "levada.cli.pipeline.lake",
        "Archived records to a topic: in order, at a chosen speed.",
    ),
    "history": (
        "levada.cli.pipeline.lake",
        "A query over all records of a topic, in a lake and in its log.",
    ),
    "activity": ("levada.cli.pipeline.flows", "Events of website visitors: counts, sessions, top pages."),
    "devices": ("levada.cli.pipeline.flows", "Readings of devices: statistics, spells, highest values."),
    "logs": ("levada.cli.pipeline.flows", "Logs of services: rates, alerts, a lake to search."),
    "sql": ("levada.cli.pipeline.sql", "A streaming query over topics, its results to a topic."),
}
# Other commands that are imported when they are used.
COMMANDS = {
    "sql": ("levada.cli.pipeline.sql", "Run a query over topics, its results to a topic or the terminal."),
    "report": ("levada.cli.pipeline.flows", "Report on topics or a lake: tables and a chart."),
    "search": ("levada.cli.pipeline.flows", "Search the logs of services."),
}

DAY_MS = 24 * 3_600_000
COLUMNS = ("name", "pipeline", "state", "rows", "rows_per_second", "lag", "batch_seconds", "seconds_ago")


class Pipelines(click.Group):
    """The pipelines; a command is imported when it is used."""

    known: Mapping[str, tuple[str, str]] = PIPELINES

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.known, *self.commands]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.known:
            command: click.Command = getattr(import_module(self.known[name][0]), name)
            return command
        if name not in self.commands and self.known is PIPELINES and not ctx.resilient_parsing:
            hint = "try: levada pipeline list"
            raise CommandError(f"no such pipeline: {name}{did_you_mean(name, PIPELINES)}", EXIT_USAGE, hint)
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands" if own else "Pipelines"):
            formatter.write_dl([*own, *((name, text) for name, (_, text) in self.known.items())])


class Commands(Pipelines):
    """The commands of this module, and those of COMMANDS."""

    known = COMMANDS


@click.group(cls=Commands)
def pipeline() -> None:
    """Run pipelines on Spark, and show their progress.

    \b
    Examples:
      levada pipeline run archive --topic orders --to ./lake
      levada pipeline sql 'SELECT shop, amount FROM orders WHERE amount > 100' --to large-orders
      levada pipeline list
      levada pipeline status archive
      levada pipeline stop archive
      levada pipeline forget activity

    Needs Spark, which the extra `spark` of this package installs.
    """


@pipeline.group(cls=Pipelines, short_help="Run a pipeline until it is stopped, or with --once until it is done.")
def run() -> None:
    """Run a pipeline until it is stopped, or with --once until it has processed all available records.

    A pipeline continues where its last run of the same name ended, also after a crash: no record is lost or duplicated.

    \b
    Examples:
      levada pipeline run archive --topic orders --to ./lake
      levada pipeline run archive --topic orders --to ./lake --once
      levada pipeline run archive --topic clicks --to ./clicks --name clicks
    """


@pipeline.command("list", short_help="List pipelines, and their runs on this machine.")
@output_option
@home_option
def list_runs(output: Output, home: str) -> None:
    """List the pipelines, and their runs on this machine.

    \b
    Examples:
      levada pipeline list
      levada pipeline list -o json
    """
    rows = [_row(run) for run in all_runs(home)]
    if output == "table":
        emit([{"pipeline": name, "does": text} for name, (_, text) in PIPELINES.items()], output)
        click.echo()
        if not rows:
            notice(f"no pipeline has run yet (in {home})")
            return
    emit(rows, output, COLUMNS)


@pipeline.command(short_help="Show the options and progress of a run.")
@click.argument("name", shell_complete=complete_runs)
@output_option
@home_option
def status(name: str, output: Output, home: str) -> None:
    """Show the options, progress and rate of a run.

    \b
    Examples:
      levada pipeline status archive
      levada pipeline status archive -o json
    """
    found = _find(home, name)
    if output != "table":
        emit_one(_row(found) | {"options": dict(found.options), "pid": found.pid, "why": found.error}, output)
        return
    emit([_row(found)], output, COLUMNS)
    for key, value in found.options.items():
        if value is not None:
            click.echo(f"  {key}: {', '.join(value) if isinstance(value, list) else value}")
    if found.error:
        click.echo(f"  {found.state}: {found.error}")


@pipeline.command(short_help="Stop a run; the next one continues from there.")
@click.argument("name", shell_complete=complete_runs)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="How long to wait for its end.",
)
@home_option
def stop(name: str, wait: float, home: str) -> None:
    """Stop a run; the next one of its name continues from there.

    \b
    Examples:
      levada pipeline stop archive
    """
    pid = _find(home, name).pid
    with plain_errors():
        if not Run(home, name).stop(wait):
            raise CommandError(
                f"pipeline {name} (process {pid}) is still running after {wait:g} s",
                hint=f"try: levada pipeline stop {name} --wait 300, or kill -9 {pid}: the next run recovers",
            )
    notice(f"pipeline {name} has stopped")


@pipeline.command(short_help="Forget a run: the next one of its name starts from the beginning.")
@click.argument("name", required=False, shell_complete=complete_runs)
@click.option(
    "--older-than",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="Forget all runs that ended so long ago, instead of one by its name; killed runs stay.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@home_option
def forget(name: str | None, older_than: float | None, yes: bool, home: str) -> None:
    """Forget a run, or all that ended long ago: remove progress, options, checkpoint and log.

    The next run of its name reads its topics from their beginning. The results that are already written stay, and are
    written again. The end offsets of an archive are in the lake, so archive continues where the lake ends.

    It is not known when a killed run ended: forget it by its name.

    \b
    Examples:
      levada pipeline forget activity
      levada pipeline forget activity --yes
      levada pipeline forget --older-than 30
    """
    if (name is None) == (older_than is None):
        raise click.UsageError("give the name of a run, or --older-than")
    if name is not None:
        confirm(f"Forget the run {name} of {_find(home, name).pipeline or 'a pipeline'}?", yes)
        names = [name]
    else:
        names = _ended_before(home, older_than or 0)
        if not names:
            notice(f"no run ended more than {older_than:g} days ago (in {home})")
            return
        confirm(f"Forget the runs {', '.join(names)}?", yes)
    for one in names:
        with plain_errors():
            Run(home, one).forget()
        notice(f"run {one} is forgotten")


def _ended_before(home: str, days: float) -> list[str]:
    """The names of the runs that ended so many days ago.

    Killed and damaged runs are forgotten only by their names: a killed run has not recorded its end, and its last
    progress may be much older, since a stream without new records makes none.
    """
    before_ms = SystemClock().now_ms() - days * DAY_MS
    ended = (run for run in all_runs(home) if run.state not in ("running", "killed", "damaged"))
    return [run.name for run in ended if run.progress_ms < before_ms]


def _find(home: str, name: str) -> RunStatus:
    with plain_errors():
        found = Run(home, name).status()
    if found is None:
        similar = did_you_mean(name, [run.name for run in all_runs(home)])
        hint = "try: levada pipeline list"
        raise CommandError(f"there is no run of the name {name}{similar}", EXIT_NOT_FOUND, hint)
    return found


def _row(run: RunStatus) -> dict[str, Any]:
    progress = run.progress
    return {
        "name": run.name,
        "pipeline": run.pipeline,
        "state": run.state,
        "batches": progress.batches,
        "rows": progress.rows,
        "rows_per_second": round(progress.rows_per_second),
        "lag": progress.lag,
        "batch_seconds": round(progress.batch_seconds, 3),
        "seconds_ago": max(0, (SystemClock().now_ms() - run.progress_ms) // 1000),
    }

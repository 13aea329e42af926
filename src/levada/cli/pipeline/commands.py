"""`levada pipeline`: run, list, status, stop, forget. The pipelines are commands below `run`, loaded when used."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from levada.cli.errors import EXIT_NOT_FOUND, EXIT_USAGE, Failure, did_you_mean
from levada.cli.options import Command, confirm, existing_topic, names_brokers, prints, say, with_client
from levada.cli.output import Output, emit, emit_one
from levada.cli.pipeline.process import Signals, needs_spark, new_session, plain, said_plainly
from levada.clock import SystemClock
from levada.pipelines.lake.formats import check_local_lake
from levada.pipelines.runs.progress import Progress
from levada.pipelines.runs.queries import Running
from levada.pipelines.runs.runs import Run, Told, all_runs, home_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.client.client import Client

LOOKING_S = 10.0
SILENCE_MS = 5_000  # after which it is said what takes so long

# Each pipeline: the module that holds its command, and what it is for.
PIPELINES = {
    "archive": (
        "levada.cli.pipeline.lake",
        "Topics to a lake, by topic and date: Parquet files or a Delta table.",
    ),
    "replay": (
        "levada.cli.pipeline.lake",
        "What a lake has of a topic, to a topic: in order, at a chosen speed.",
    ),
    "history": (
        "levada.cli.pipeline.lake",
        "A query over all that a topic ever had, in a lake and in its log.",
    ),
    "activity": ("levada.cli.pipeline.flows", "What visitors of a website do: counts, sessions, top pages."),
    "devices": ("levada.cli.pipeline.flows", "Readings of devices: statistics, spells, highest values."),
    "logs": ("levada.cli.pipeline.flows", "Logs of services: rates, alerts, a lake to search."),
    "sql": ("levada.cli.pipeline.sql", "A query over topics, its results to a topic."),
}
# Commands of `levada pipeline` itself that are loaded when they are used.
MORE = {
    "sql": ("levada.cli.pipeline.sql", "Run a query over topics, its results to a topic."),
    "report": ("levada.cli.pipeline.reports", "Count all that topics or a lake have, and draw a chart."),
    "search": ("levada.cli.pipeline.reports", "Find lines in the logs of services."),
}

COLUMNS = ("name", "pipeline", "state", "rows", "rows_per_second", "lag", "batch_seconds", "seconds_ago")


class Pipelines(click.Group):
    """Knows the pipelines by name and imports one when it is used."""

    known: Mapping[str, tuple[str, str]] = PIPELINES

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.known, *self.commands]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.known:
            command: click.Command = getattr(import_module(self.known[name][0]), name)
            return command
        if name not in self.commands and self.known is PIPELINES and not ctx.resilient_parsing:
            hint = "try: levada pipeline list"
            raise Failure(f"no such pipeline: {name}{did_you_mean(name, PIPELINES)}", EXIT_USAGE, hint)
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands" if own else "Pipelines"):
            formatter.write_dl([*own, *((name, text) for name, (_, text) in self.known.items())])


class Commands(Pipelines):
    """Has commands of its own beside those it knows by name."""

    known = MORE


@click.group(cls=Commands)
def pipeline() -> None:
    """Run pipelines on Spark, and see how they do.

    \b
    Examples:
      levada pipeline run archive --topic orders --to ./lake
      levada pipeline sql 'SELECT shop, amount FROM orders WHERE amount > 100' --to large-orders
      levada pipeline list
      levada pipeline status archive
      levada pipeline stop archive
      levada pipeline forget activity

    Needs Spark: pip install 'levada[spark]'
    """


@pipeline.group(cls=Pipelines, short_help="Run a pipeline until it is stopped, or with --once all there is.")
def run() -> None:
    """Run a pipeline until it is stopped, or with --once until it has done all there is.

    A pipeline goes on where its last run under the same name ended, also after a crash: nothing is lost or done twice.

    \b
    Examples:
      levada pipeline run archive --topic orders --to ./lake
      levada pipeline run archive --topic orders --to ./lake --once
      levada pipeline run archive --topic clicks --to ./clicks --name clicks
    """


def keeps_runs(command: Command) -> Command:
    """Adds --home."""
    return click.option(
        "--home",
        metavar="DIR",
        envvar="LEVADA_PIPELINES",
        default=home_directory,
        show_default="~/.local/state/levada/pipelines",
        show_envvar=True,
        help="Where runs and their checkpoints are kept.",
    )(command)


def runs_on_spark(command: Command) -> Command:
    """Adds what every pipeline has: --name, --master, --home, -b."""
    name = click.option("--name", metavar="NAME", help="Of this run, if not that of the pipeline.")
    master = click.option(
        "--master", metavar="URL", help="Spark to run on; this machine unless Spark's settings say otherwise."
    )
    return name(master(keeps_runs(names_brokers(command))))


def streams_on_spark(command: Command) -> Command:
    """Adds --once too."""
    once = click.option("--once", is_flag=True, help="Do all that is there, and end.")
    return once(runs_on_spark(command))


class Begin(NamedTuple):
    """What a run is: the pipeline, what it was asked, for people to read, and how it starts."""

    pipeline: str
    options: Mapping[str, Any]
    start: Callable[["SparkSession", Run], Running]
    topics: Iterable[str] = ()  # that must be there
    lake: str | None = None  # that must be there


def execute(begin: Begin, bootstrap: str, name: str | None, home: str, master: str | None) -> None:
    """Be a run: start Spark and the pipeline, tell how it goes, end by a signal, by itself or by an error."""
    needs_spark()
    clock = SystemClock()
    with said_plainly():
        the_run = Run(home, name or begin.pipeline)
        with the_run.held(begin.pipeline, begin.options, clock.now_ms()), Signals() as signals:
            running = None
            try:
                there_is(begin.topics, bootstrap, begin.lake)
                running = begin.start(new_session(the_run.name, master, the_run.spark_log), the_run)
                _follow(the_run, running, signals, clock)
            except KeyboardInterrupt:
                the_run.tell(_last(the_run), "stopped", clock.now_ms())
                raise
            except BaseException as error:
                if running is None:
                    the_run.did_not_begin(plain(error), clock.now_ms())
                else:
                    the_run.tell(_last(the_run), "failed", clock.now_ms(), plain(error))
                raise
            last = _last(the_run)
            the_run.tell(last, "stopped" if signals.came else "finished", clock.now_ms())
            if last.open_rows and not signals.came:
                say("the last windows are still open: their final results come after later events")
            say(f"pipeline {the_run.name} has {'stopped' if signals.came else 'done all there was'}")


def there_is(topics: Iterable[str], bootstrap: str, lake: str | None = None) -> None:
    """What needs no Spark to be found wrong is said before it starts: no broker, no such topic, no lake."""

    async def look(client: "Client") -> None:
        await client.metadata([])
        for topic in topics:
            await existing_topic(client, topic)

    with_client(bootstrap, LOOKING_S, look)
    if lake is not None:
        check_local_lake(lake)


def _follow(the_run: Run, running: Running, signals: Signals, clock: SystemClock) -> None:
    """Until the end, by itself or because somebody asked for it."""

    heard = False
    silent_ms = clock.now_ms() + SILENCE_MS

    def watch(progress: Progress) -> None:
        nonlocal heard
        heard = True
        the_run.tell(running.progress(), "running", clock.now_ms())
        say(progress.line())

    say(f"pipeline {the_run.name} is at work; to end it: Ctrl-C, or levada pipeline stop {the_run.name}")
    while not running.wait(0.5, watch):
        if signals.came:
            say("stopping ...")
            running.stop()
        elif not heard and clock.now_ms() > silent_ms:
            heard = True
            say("the first batch takes longest: Spark compiles, and starts its workers ...")


def _last(the_run: Run) -> Progress:
    told = the_run.told()
    assert told is not None
    return told.progress


@pipeline.command("list", short_help="List pipelines, and their runs on this machine.")
@prints
@keeps_runs
def list_runs(output: Output, home: str) -> None:
    """List the pipelines there are, and their runs on this machine.

    \b
    Examples:
      levada pipeline list
      levada pipeline list -o json
    """
    rows = [_row(told) for told in all_runs(home)]
    if output == "table":
        emit([{"pipeline": name, "does": text} for name, (_, text) in PIPELINES.items()], output)
        click.echo()
        if not rows:
            say(f"no pipeline has run yet (in {home})")
            return
    emit(rows, output, COLUMNS)


@pipeline.command(short_help="Show what a run was asked, and how far it is.")
@click.argument("name")
@prints
@keeps_runs
def status(name: str, output: Output, home: str) -> None:
    """Show one run: what it was asked, how far and how fast it is.

    \b
    Examples:
      levada pipeline status archive
      levada pipeline status archive -o json
    """
    told = _told(home, name)
    if output != "table":
        emit_one(_row(told) | {"options": dict(told.options), "pid": told.pid, "why": told.why}, output)
        return
    row = _row(told)
    emit([row], output, COLUMNS)
    for key, value in told.options.items():
        if value is not None:
            click.echo(f"  {key}: {value}")
    if told.why:
        click.echo(f"  {told.state}: {told.why}")


@pipeline.command(short_help="Stop a run; the next one goes on from there.")
@click.argument("name")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="For its end.",
)
@keeps_runs
def stop(name: str, wait: float, home: str) -> None:
    """Stop a run; the next one under its name goes on from there.

    \b
    Examples:
      levada pipeline stop archive
    """
    told = _told(home, name)
    with said_plainly():
        if not Run(home, name).stop(wait):
            raise Failure(
                f"pipeline {name} (process {told.pid}) is still at work after {wait:g} s",
                hint=f"try: levada pipeline stop {name} --wait 300, or kill -9 {told.pid}: the next run repairs it",
            )
    say(f"pipeline {name} has stopped")


@pipeline.command(short_help="Forget a run: the next one under its name begins anew.")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@keeps_runs
def forget(name: str, yes: bool, home: str) -> None:
    """Forget a run: how far it was, what it was asked, its checkpoint and its log.

    The next one under its name begins anew and reads its topics from their beginning. What it has written stays where
    it is, and is written again then. A lake keeps for itself how far its archive is: that goes on where the lake ends.

    \b
    Examples:
      levada pipeline forget activity
      levada pipeline forget activity --yes
    """
    told = _told(home, name)
    confirm(f"Forget the run {name} of {told.pipeline or 'a pipeline'}?", yes)
    with said_plainly():
        Run(home, name).forget()
    say(f"run {name} is forgotten")


def _told(home: str, name: str) -> Told:
    with said_plainly():
        told = Run(home, name).told()
    if told is None:
        names = [known.name for known in all_runs(home)]
        hint = "try: levada pipeline list"
        raise Failure(
            f"no pipeline ran under the name {name}{did_you_mean(name, names)}", EXIT_NOT_FOUND, hint
        )
    return told


def _row(told: Told) -> dict[str, Any]:
    progress = told.progress
    return {
        "name": told.name,
        "pipeline": told.pipeline,
        "state": told.state,
        "batches": progress.batches,
        "rows": progress.rows,
        "rows_per_second": round(progress.rows_per_second),
        "lag": progress.lag,
        "batch_seconds": round(progress.batch_seconds, 3),
        "seconds_ago": max(0, (SystemClock().now_ms() - told.progress_ms) // 1000),
    }

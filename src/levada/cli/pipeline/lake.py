"""`levada pipeline run archive|replay|history`: topics to a lake, back again, and both as one."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import click

from levada.cli.options import Command, TimeType, complete_topics, parse_settings
from levada.cli.pipeline.commands import Begin, execute, runs_on_spark, streams_on_spark
from levada.cli.pipeline.flows import time_option
from levada.cli.pipeline.process import PathType
from levada.pipelines.lake.compaction import SIZES, Sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.pipelines.runs.queries import Running
    from levada.pipelines.runs.runs import Run


def options_of(side: str) -> Callable[[Command], Command]:
    """Adds --option."""
    text = f'Of {side}, as of format("levada").'
    return click.option("--option", "more", metavar="KEY=VALUE", multiple=True, help=text)


def reads_lake(command: Command) -> Command:
    """Adds --topic and --lake."""
    topic = click.option(
        "--topic", metavar="TOPIC", required=True, shell_complete=complete_topics, help="That was archived."
    )
    lake = click.option(
        "--lake", metavar="PATH", type=PathType(), required=True, help="Where archive keeps it."
    )
    return topic(lake(command))


@click.command()
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    required=True,
    shell_complete=complete_topics,
    help="To archive; more than once for several.",
)
@click.option(
    "--to", metavar="PATH", type=PathType(), required=True, help="The lake: a path that Spark can write."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta"]),
    help="Of a new lake; parquet unless told.",
)
@time_option("--every", "10 seconds", "How often a batch is committed.")
@click.option(
    "--small-mb",
    metavar="MB",
    type=click.IntRange(min=1),
    default=SIZES.small_bytes >> 20,
    show_default=True,
    help="Smaller files are joined when there are many of them.",
)
@options_of("the source")
@streams_on_spark
def archive(
    topics: tuple[str, ...],
    to: str,
    form: str | None,
    every: str,
    small_mb: int,
    more: tuple[str, ...],
    name: str | None,
    once: bool,
    master: str | None,
    home: str,
    bootstrap: str,
) -> None:
    """Keep topics in a lake, by topic and date, each record once: Parquet files, or a Delta table.

    \b
    Examples:
      levada pipeline run archive --topic orders --topic clicks --to ./lake
      levada pipeline run archive --topic orders --to ./lake --once
      levada pipeline run archive --topic orders --to ./tables/orders --format delta
      levada pipeline run archive --topic orders --to hdfs://namenode/lake --every '1 minute'
    """
    options = parse_settings(more, "--option")
    sizes = Sizes(small_bytes=small_mb << 20)

    def start(spark: "SparkSession", run: "Run") -> "Running":
        from levada.pipelines.lake.archive import archive

        return archive(
            topics,
            to,
            bootstrap=bootstrap,
            once=once,
            every=every,
            lake_format=form,
            sizes=sizes,
            spark=spark,
            name=run.name,
            **options,
        )

    asked = {"topic": ", ".join(topics), "to": to, "every": every}
    execute(Begin("archive", asked, start, topics), bootstrap, name, home, master)


@click.command()
@reads_lake
@click.option("--to", metavar="TOPIC", required=True, shell_complete=complete_topics, help="To send it to.")
@click.option("--from", "start_at", type=TimeType(), help="The time of the first record.")
@click.option("--until", "end_at", type=TimeType(), help="Before the time of the last.")
@click.option(
    "--speed",
    metavar="FACTOR",
    type=click.FloatRange(min=0, min_open=True),
    help="1 as fast as they came, 10 ten times as fast; without it as fast as possible.",
)
@click.option("--by-key", is_flag=True, help="To partitions by key, not to those the records came from.")
@options_of("the sink")
@runs_on_spark
def replay(
    topic: str,
    lake: str,
    to: str,
    start_at: datetime | None,
    end_at: datetime | None,
    speed: float | None,
    by_key: bool,
    more: tuple[str, ...],
    name: str | None,
    master: str | None,
    home: str,
    bootstrap: str,
) -> None:
    """Send what a lake has of a topic to a topic, in order, with its keys, headers and times.

    It ends when all is sent. Killed or stopped, it goes on when it is run again.

    \b
    Examples:
      levada pipeline run replay --topic orders --lake ./lake --to orders-again
      levada pipeline run replay --topic orders --lake ./lake --to test --from 2026-11-01 --until 2026-11-02
      levada pipeline run replay --topic clicks --lake ./lake --to clicks-live --speed 10 --by-key
    """
    options = parse_settings(more, "--option")

    def start(spark: "SparkSession", run: "Run") -> "Running":
        from levada.pipelines.lake.replay import replay

        return replay(
            topic,
            lake,
            to,
            bootstrap=bootstrap,
            start=start_at,
            end=end_at,
            speed=speed,
            by_key=by_key,
            checkpoint=run.checkpoint,
            spark=spark,
            name=run.name,
            **options,
        )

    asked = {"topic": topic, "lake": lake, "to": to, "speed": speed}
    execute(Begin("replay", asked, start, lake=lake), bootstrap, name, home, master)


@click.command()
@reads_lake
@click.option(
    "--sql",
    "query",
    metavar="QUERY",
    default="SELECT count(*) AS records, min(timestamp) AS first, max(timestamp) AS last FROM history",
    show_default=True,
    help='Over the table `history`, which has the columns of format("levada").',
)
@click.option(
    "--to",
    metavar="PATH",
    type=PathType(),
    help="Write the result there as Parquet, where nothing is or a result of before; it is shown otherwise.",
)
@click.option(
    "--gaps", is_flag=True, help="Allow that records are neither in the lake nor in the log any more."
)
@options_of("the source")
@runs_on_spark
def history(
    topic: str,
    lake: str,
    query: str,
    to: str | None,
    gaps: bool,
    more: tuple[str, ...],
    name: str | None,
    master: str | None,
    home: str,
    bootstrap: str,
) -> None:
    """Ask something of all that a topic ever had, each record once: the lake has the old, the log the new.

    It ends when the question is answered.

    \b
    Examples:
      levada pipeline run history --topic orders --lake ./lake
      levada pipeline run history --topic orders --lake ./lake --to ./orders.parquet --sql 'SELECT * FROM history'
      levada pipeline run history --topic orders --lake ./lake \\
        --sql 'SELECT date(timestamp) AS day, count(*) AS orders FROM history GROUP BY day ORDER BY day'
    """
    options = parse_settings(more, "--option")

    def start(spark: "SparkSession", run: "Run") -> "Running":
        from levada.pipelines.lake.history import answer

        return answer(
            topic,
            lake,
            query,
            to,
            bootstrap=bootstrap,
            gaps=gaps,
            spark=spark,
            name=run.name,
            **options,
        )

    asked = {"topic": topic, "lake": lake, "sql": query}
    execute(Begin("history", asked, start, [topic], lake), bootstrap, name, home, master)

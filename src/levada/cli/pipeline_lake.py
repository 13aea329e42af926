"""`levada pipeline run archive`: topics to a lake."""

from typing import TYPE_CHECKING

import click

from levada.cli.options import complete_topics, parse_settings
from levada.cli.pipeline import execute, runs_on_spark
from levada.pipelines.compacting import SIZES, Sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.pipelines.running import Running
    from levada.pipelines.runs import Run


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
@click.option("--to", metavar="PATH", required=True, help="The lake: a path that Spark can write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta"]),
    help="Of a new lake; parquet unless told.",
)
@click.option(
    "--every", metavar="TIME", default="10 seconds", show_default=True, help="How often a batch is committed."
)
@click.option(
    "--small-mb",
    metavar="MB",
    type=click.IntRange(min=1),
    default=SIZES.small_bytes >> 20,
    show_default=True,
    help="Smaller files are joined when there are many of them.",
)
@click.option(
    "--option", "more", metavar="KEY=VALUE", multiple=True, help='Of the source, as of format("levada").'
)
@runs_on_spark
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
        from levada.pipelines.archive import archive

        return archive(
            topics,
            to,
            bootstrap=bootstrap,
            checkpoint=run.checkpoint,
            once=once,
            every=every,
            lake_format=form,
            sizes=sizes,
            spark=spark,
            name=run.name,
            **options,
        )

    execute("archive", name, home, master, {"topic": ", ".join(topics), "to": to, "every": every}, start)

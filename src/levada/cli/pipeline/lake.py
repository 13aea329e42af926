"""`levada pipeline run archive|replay|history`: topics to a lake, back to topics, and queries over both."""

from typing import Any

import click

from levada.cli.options import Command, TimeType, complete_topics
from levada.cli.pipeline.options import (
    PathType,
    duration_option,
    format_option,
    run_options,
    stream_options,
    topics_option,
)
from levada.cli.pipeline.process import plain_errors, run_pipeline
from levada.pipelines.lake.commits import COMPACTION, CompactionPolicy
from levada.pipelines.lake.lake import check_local_target, is_delta


def archived_options(command: Command) -> Command:
    """Add --topic and --lake."""
    topic = click.option(
        "--topic", metavar="TOPIC", required=True, shell_complete=complete_topics, help="The archived topic."
    )
    lake = click.option("--lake", metavar="PATH", type=PathType(), required=True, help="The lake of archive.")
    return topic(lake(command))


@click.command()
@topics_option(required=True)
@click.option("--to", metavar="PATH", type=PathType(), required=True, help="The lake: a path that Spark can write.")
@click.option(
    "--format",
    "lake_format",
    type=click.Choice(["parquet", "delta"]),
    help="The format of a new lake; by default parquet.",
)
@duration_option("--every", "10 seconds", "The interval of micro-batches, each of which is a commit.")
@click.option(
    "--small-mb",
    metavar="MB",
    type=click.IntRange(min=1),
    default=COMPACTION.small_bytes >> 20,
    show_default=True,
    help="Smaller files are merged when a directory has many of them.",
)
@click.option(
    "--retention-minutes",
    metavar="MINUTES",
    type=click.FloatRange(min=0),
    show_default="60; a week in a Delta table, where hours count",
    help="Merged files stay that long for readers; 0 removes them at once.",
)
@click.option("--table", metavar="NAME", help="A Parquet lake as a table of a shared catalog, for SQL.")
@format_option("source")
@stream_options
def archive(small_mb: int, retention_minutes: float | None, **given: Any) -> None:
    """Archive topics to a lake by topic and date, each record once: Parquet files, or a Delta table.

    \b
    Examples:
      levada pipeline run archive --topic orders --topic clicks --to ./lake
      levada pipeline run archive --topic orders --to ./lake --once
      levada pipeline run archive --topic orders --to ./tables/orders --format delta
      levada pipeline run archive --topic orders --to hdfs://namenode/lake --every '1 minute'
      levada pipeline run archive --topic orders --to s3a://bucket/lake  # with --conf: docs/lakes.md#s3
    """
    if given["table"] is not None and (given["lake_format"] == "delta" or is_delta(given["to"])):
        raise click.UsageError("--table needs a Parquet lake: without jars Spark's catalog does not keep a Delta table")
    shown = {"topic": ", ".join(given["topics"]), "to": given["to"], "every": given["every"]}
    retention_ms = None if retention_minutes is None else round(retention_minutes * 60_000)
    given["compaction"] = CompactionPolicy(small_bytes=small_mb << 20, retention_ms=retention_ms)
    with plain_errors():
        check_local_target(given["to"], given["lake_format"])
    run_pipeline("archive", given, shown, topics=given["topics"], has_checkpoint=False)


@click.command()
@archived_options
@click.option("--to", metavar="TOPIC", required=True, shell_complete=complete_topics, help="The topic to send to.")
@click.option("--from", "start", type=TimeType(), help="Records from this timestamp on.")
@click.option("--until", "end", type=TimeType(), help="Records before this timestamp.")
@click.option(
    "--speed",
    metavar="FACTOR",
    type=click.FloatRange(min=0, min_open=True),
    help="1 is the original speed, 10 ten times that; by default as fast as possible.",
)
@click.option("--by-key", is_flag=True, help="To partitions by key instead of the original ones.")
@format_option("sink")
@run_options
def replay(**given: Any) -> None:
    """Send the archived records of a topic to a topic, in order, with keys, headers and timestamps.

    It ends when all records are sent. A killed or stopped replay continues when it is run again.

    \b
    Examples:
      levada pipeline run replay --topic orders --lake ./lake --to orders-again
      levada pipeline run replay --topic orders --lake ./lake --to test --from 2026-11-01 --until 2026-11-02
      levada pipeline run replay --topic clicks --lake ./lake --to clicks-live --speed 10 --by-key
    """
    shown = {key: given[key] for key in ("topic", "lake", "to", "speed")}
    run_pipeline("replay", given, shown, lake=given["lake"], sink=True)


@click.command()
@archived_options
@click.option(
    "--sql",
    "query",
    metavar="QUERY",
    default="SELECT count(*) AS records, min(timestamp) AS first, max(timestamp) AS last FROM history",
    show_default=True,
    help='A query over the table `history`: the columns of format("levada"), and `date`, which prunes the lake.',
)
@click.option(
    "--to",
    metavar="PATH",
    type=PathType(),
    help="Write the result as Parquet to a new path, or over a previous result; by default it is printed.",
)
@click.option("--gaps", is_flag=True, help="Allow that records are neither in the lake nor in the log any more.")
@format_option("source")
@run_options
def history(**given: Any) -> None:
    """Query all records of a topic, each once: the old ones in the lake, the new ones in the log.

    It ends with the result of the query.

    \b
    Examples:
      levada pipeline run history --topic orders --lake ./lake
      levada pipeline run history --topic orders --lake ./lake --to ./orders.parquet --sql 'SELECT * FROM history'
      levada pipeline run history --topic orders --lake ./lake \\
        --sql 'SELECT date, count(*) AS orders FROM history GROUP BY date ORDER BY date'
    """
    topic, lake = given["topic"], given["lake"]
    shown = {"topic": topic, "lake": lake, "sql": given["query"]}
    run_pipeline("history", given, shown, function="query_history", topics=[topic], lake=lake, has_checkpoint=False,
                 shows_batches=False)  # fmt: skip

"""`levada pipeline sql`: a query over topics, its results to a topic or to the terminal."""

from collections.abc import Mapping
from typing import Any

import click

from levada.cli.options import complete_topics, notice
from levada.cli.output import Output, emit
from levada.cli.pipeline.flows import every_option
from levada.cli.pipeline.options import format_option, stream_options
from levada.cli.pipeline.process import check_inputs, new_session, plain_errors, require_spark, run_pipeline
from levada.cli.settings import ClientProperties, parse_settings
from levada.pipelines.flows.sql_text import check_query, run_name
from levada.pipelines.runs.run import Run

ROWS_MAX = 1_000
AS_JSON = "to_json(struct(*), map('ignoreNullFields', 'false')) AS json"


@click.command()
@click.argument("query", metavar="QUERY")
@click.option("--to", metavar="TOPIC", shell_complete=complete_topics,
              help="The topic of the results; without it they are printed, of the records that exist.")  # fmt: skip
@click.option(
    "--schema",
    "schemas",
    metavar="TOPIC='COLUMNS'",
    multiple=True,
    help="The columns of a topic's JSON, or `text`; by default inferred from its newest records.",
)
@click.option(
    "--watermark",
    "watermarks",
    metavar="COLUMN='TIME'",
    multiple=True,
    help="How late records may come, by a timestamp column; TOPIC.COLUMN for one topic only.",
)
@click.option(
    "--mode",
    type=click.Choice(["append", "update", "complete"]),
    help="The output mode; by default the first one that fits the query.",
)
@click.option("--key", metavar="COLUMN", help="The column of the results that is the key of records.")
@click.option("--dead-letters", metavar="TOPIC", help="The topic for records that do not fit the columns.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Print at most so many rows.  [default: 1000]")
@click.option("-o", "--output", type=click.Choice(["table", "json", "jsonl"]),
              help="Print columns or JSON.  [default: table]")  # fmt: skip
@format_option("sources")
@every_option
@stream_options
def sql(query: str, limit: int | None, output: Output | None, **given: Any) -> None:
    """Run a streaming query over topics, and write its results to a topic as JSON; without --to print them.

    A topic is a table of its name (in backquotes, if it has more than letters, digits and _). Its columns are the
    fields of its JSON values, and _key, _partition, _offset and _timestamp.

    The name of the run is by default sql-TOPIC, of the topic of its results. A query that is refused changes nothing.

    \b
    Examples:
      levada pipeline sql 'SELECT shop, count(*) AS orders FROM orders GROUP BY shop'
      levada pipeline sql 'SELECT shop, amount FROM orders WHERE amount > 100' --to large-orders
      levada pipeline sql "SELECT shop, window.end AS until, sum(amount) AS total
        FROM orders GROUP BY shop, window(ts, '1 minute')" --to totals --watermark ts='10 minutes'
      levada pipeline sql 'SELECT shop, count(*) AS n FROM orders GROUP BY shop' --to counts --key shop \\
        --schema orders='shop string, amount double, ts timestamp'
    """
    schemas = parse_settings(given.pop("schemas"), "--schema")
    watermarks = parse_settings(given.pop("watermarks"), "--watermark")
    _check_flags(given, limit, output)
    to, mode, properties = given["to"], given["mode"], given["properties"]
    with plain_errors():
        tables = check_query(query, to, watermarks)
    if to is None:
        check_inputs(tables, properties)
        _print_results(query, schemas, watermarks, limit or ROWS_MAX, output or "table", given)
        return

    def check(run: Run) -> None:
        check_inputs(tables, properties)
        fixed = {"query": query, "to": to, "watermarks": watermarks}
        run.check_arguments(fixed | ({} if mode is None else {"mode": mode}))

    shown = {"query": query, "to": to, "schema": schemas, "watermark": watermarks}
    given |= {"query": query, "schemas": schemas, "watermarks": watermarks, "notify": notice}
    given["name"] = given["name"] or run_name(to)
    run_pipeline("sql", given, shown, check=check)


def _check_flags(given: Mapping[str, Any], limit: int | None, output: Output | None) -> None:
    """A usage error for options that go only with --to, or only without it."""
    with_topic = [flag for flag in ("name", "mode", "key", "dead_letters") if given[flag] is not None]
    if given["to"] is None and with_topic:
        raise click.UsageError(f"--{with_topic[0].replace('_', '-')} needs --to, the topic of the results")
    if given["to"] is not None and (limit is not None or output is not None):
        raise click.UsageError("--limit and -o are for a query without --to, whose results are printed")


def _print_results(
    query: str,
    schemas: Mapping[str, str],
    watermarks: Mapping[str, str],
    limit: int,
    output: Output,
    given: Mapping[str, Any],
) -> None:
    """Print the results of a query over the records that are there now."""
    import json

    properties: ClientProperties = given["properties"]
    options: dict[str, Any] = properties.spark_options() | parse_settings(given["more"], "--option")
    require_spark()
    with plain_errors():
        from levada.pipelines.flows.sql import query_topics

        options |= {"schemas": schemas, "watermarks": watermarks, "notify": notice}
        spark = new_session("sql", given["master"], given["conf"])
        found = query_topics(query, bootstrap=properties.bootstrap, spark=spark, **options)
        rows = found.limit(limit + 1).selectExpr(AS_JSON).collect()
    emit([json.loads(row.json) for row in rows[:limit]], output, found.columns)
    if len(rows) > limit:
        notice(f"there are more than {limit:,} rows; try: --limit, or --to a topic")

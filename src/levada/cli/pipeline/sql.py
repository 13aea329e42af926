"""`levada pipeline sql`: a query over topics, its results to a topic."""

from typing import TYPE_CHECKING, Any

import click

from levada.cli.options import complete_topics, parse_settings, say
from levada.cli.pipeline.commands import Begin, execute, streams_on_spark
from levada.cli.pipeline.flows import every

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.pipelines.runs.queries import Running
    from levada.pipelines.runs.runs import Run


@click.command()
@click.argument("query", metavar="QUERY")
@click.option(
    "--to", metavar="TOPIC", required=True, shell_complete=complete_topics, help="Gets the results."
)
@click.option(
    "--schema",
    "schemas",
    metavar="TOPIC='COLUMNS'",
    multiple=True,
    help="The columns of a topic's JSON, or `text`; inferred from its newest records if not told.",
)
@click.option(
    "--watermark",
    "watermarks",
    metavar="COLUMN='TIME'",
    multiple=True,
    help="How late records may come, by a column of time; TOPIC.COLUMN for one topic only.",
)
@click.option(
    "--mode",
    type=click.Choice(["append", "update", "complete"]),
    help="When results are written; chosen and told if not given.",
)
@click.option("--key", metavar="COLUMN", help="Of the results, for the keys of records.")
@click.option("--dead-letters", metavar="TOPIC", help="Gets the records that do not fit the columns.")
@click.option(
    "--option", "more", metavar="KEY=VALUE", multiple=True, help='Of the sources, as of format("levada").'
)
@every
@streams_on_spark
def sql(query: str, to: str, **given: Any) -> None:
    """Run a query over topics for as long as records come, and write its results to a topic as JSON.

    A topic is a table of its name (in backquotes, if it has more than letters, digits and _). Its columns are the
    fields of its JSON values, and _key, _partition, _offset and _timestamp.

    \b
    Examples:
      levada pipeline sql 'SELECT shop, amount FROM orders WHERE amount > 100' --to large-orders
      levada pipeline sql "SELECT shop, window.end AS until, sum(amount) AS total
        FROM orders GROUP BY shop, window(ts, '1 minute')" --to totals --watermark ts='10 minutes'
      levada pipeline sql 'SELECT shop, count(*) AS n FROM orders GROUP BY shop' --to counts --key shop \\
        --schema orders='shop string, amount double, ts timestamp'
    """
    name, home, master, bootstrap = (given.pop(key) for key in ("name", "home", "master", "bootstrap"))
    schemas, watermarks = given.pop("schemas"), given.pop("watermarks")
    told = parse_settings(schemas, "--schema")
    late = parse_settings(watermarks, "--watermark")
    options: dict[str, Any] = dict(parse_settings(given.pop("more"), "--option"))

    def start(spark: "SparkSession", run: "Run") -> "Running":
        from levada.pipelines.flows.sql import sql as run_sql

        return run_sql(
            query,
            to,
            schemas=told,
            watermarks=late,
            tell=say,
            bootstrap=bootstrap,
            checkpoint=run.checkpoint,
            spark=spark,
            name=run.name,
            **given,
            **options,
        )

    asked = {"query": query, "to": to, "schema": told, "watermark": late}
    execute(Begin("sql", asked, start), bootstrap, name, home, master)

"""`levada group lag`: the lag of groups, once or again and again."""

import sys
from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import EXIT_NOT_FOUND, CommandError
from levada.cli.options import (
    complete_groups,
    connection_options,
    notice,
    output_option,
    require_group,
    with_client,
)
from levada.cli.output import Output, emit
from levada.cli.settings import ClientProperties

if TYPE_CHECKING:
    from levada.client.admin.groups import PartitionLag
    from levada.client.client import Client

LAG_COLUMNS = ("topic", "partition", "committed", "end", "lag", "seconds_behind", "member")


@click.command(short_help="Show the lag in records and seconds.")
@click.argument("names", metavar="[GROUP...]", nargs=-1, shell_complete=complete_groups)
@click.option("--partitions", is_flag=True, help="One row per partition.")
@click.option("-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(min=0.1), default=2.0, show_default=True,
              help="With --watch: the interval.")  # fmt: skip
@output_option
@connection_options
def lag(
    names: tuple[str, ...],
    partitions: bool,
    watch: bool,
    every: float,
    output: Output,
    properties: ClientProperties,
) -> None:
    """Show the lag of groups in records, and the age of the oldest unread record.

    Partitions of the group's topics without a committed offset have no lag: it depends on where a consumer starts. They
    are counted as uncommitted.

    \b
    Examples:
      levada group lag
      levada group lag billing --partitions
      levada group lag --watch --every 5
      levada group lag -o jsonl | jq 'select(.lag > 1000)'
    """
    import asyncio

    async def work(client: "Client") -> None:
        while True:
            rows = await _lags(client, names, partitions)
            if watch and sys.stdout.isatty():
                click.clear()
            _print_lags(rows, partitions, output)
            sys.stdout.flush()
            if not watch:
                return
            await asyncio.sleep(every)

    with_client(properties, work)


async def _lags(client: "Client", names: tuple[str, ...], partitions: bool) -> list[dict[str, Any]]:
    from levada.client.admin.groups import GroupAdmin

    rows = []
    for name in names or [found.group for found in await GroupAdmin(client).list_groups()]:
        try:
            rows += await _lag_rows(client, name, partitions)
        except CommandError as error:
            if names or error.exit_code != EXIT_NOT_FOUND:  # otherwise it was deleted meanwhile
                raise
    return rows


def _print_lags(rows: list[dict[str, Any]], partitions: bool, output: Output) -> None:
    if not rows and output == "table":
        notice("no groups have committed offsets")
        return
    summary = ("group", "state", "members", "lag", "seconds_behind", "uncommitted")
    emit(rows, output, ("group", *LAG_COLUMNS) if partitions else summary)


async def _lag_rows(client: "Client", name: str, partitions: bool) -> list[dict[str, Any]]:
    from levada.client.admin.groups import group_lag

    found = await require_group(client, name)
    rows = [lag_row(one) for one in await group_lag(client, found)]
    if partitions:
        return [{"group": name, **row} for row in rows]
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    seconds = [row["seconds_behind"] for row in rows if row["seconds_behind"] is not None]
    return [
        {
            "group": name,
            "state": found.state,
            "members": len(found.members),
            "lag": sum(lags) if lags else None,  # unknown without committed offsets
            "seconds_behind": max(seconds, default=None),
            "uncommitted": sum(row["committed"] is None for row in rows),
        }
    ]


def lag_row(one: "PartitionLag") -> dict[str, Any]:
    """A partition in LAG_COLUMNS."""
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed": one.committed,
        "end": one.end,
        "lag": one.lag,
        "seconds_behind": None if one.lag_s is None else round(one.lag_s, 1),
        "metadata": one.metadata,
        "member": one.member,
    }

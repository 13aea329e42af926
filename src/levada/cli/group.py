"""`levada group list|describe|lag|reset|delete`."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import EXIT_NOT_FOUND, CommandError, did_you_mean
from levada.cli.lag import LAG_COLUMNS, lag, lag_row
from levada.cli.options import (
    complete_groups,
    confirm,
    connection_options,
    notice,
    output_option,
    require_group,
    require_topic,
    with_client,
)
from levada.cli.output import Output, Row, emit, emit_each, printable, table, wants_color
from levada.cli.settings import ClientProperties

if TYPE_CHECKING:
    from levada.client.admin.groups import (
        GroupMember,
        OffsetReset,
        ResetTarget,
    )
    from levada.client.client import Client
    from levada.model import TopicPartition

UNUSED = ("Empty", "Dead")


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups, and show their lag.

    \b
    Examples:
      levada group list
      levada group describe billing
      levada group lag
      levada group reset billing --topic orders --to-earliest
      levada group delete billing
    """


@group.command("list")
@click.option("-q", "--names", is_flag=True, help="Print only the names.")
@output_option
@connection_options
def list_groups(names: bool, output: Output, properties: ClientProperties) -> None:
    """List groups.

    \b
    Examples:
      levada group list
      levada group list -q | xargs levada group lag
    """
    from levada.client.admin.groups import GroupAdmin

    groups = with_client(properties, lambda client: GroupAdmin(client).list_groups())
    if names:
        # `color` keeps click from removing what looks like colour codes: this is data.
        click.echo("".join(f"{found.group}\n" for found in groups), nl=False, color=True)
    elif not groups and output == "table":
        notice("no groups; a consumer with a group.id creates one")
    else:
        emit([found._asdict() for found in groups], output, ("group", "state", "kind"))


@group.command(short_help="Show members, their partitions and lag.")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@output_option
@connection_options
def describe(names: tuple[str, ...], output: Output, properties: ClientProperties) -> None:
    """Show the members of groups, their partitions and their lag.

    \b
    Examples:
      levada group describe billing
      levada group describe billing -o json
    """

    async def work(client: "Client") -> list[dict[str, Any]]:
        return [await _description(client, name) for name in names]

    emit_each(with_client(properties, work), output, _print_description)


group.add_command(lag)


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    help="The partitions to reset; by default all with committed offsets.",
)
@click.option("--to-earliest", is_flag=True, help="To the earliest offset.")
@click.option("--to-latest", is_flag=True, help="To the latest offset.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset.")
@click.option("--to-datetime", metavar="TIME", help="To the first record at or after a time: 2026-05-01T12:00.")
@click.option("--shift-by", type=int, help="By this number of offsets; backwards if negative.")
@click.option("--execute", is_flag=True, help="Do not ask for confirmation.")
@output_option
@connection_options
def reset(
    name: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    execute: bool,
    output: Output,
    properties: ClientProperties,
) -> None:
    """Reset the committed offsets of a group without members. Shows the changes, and asks unless --execute is given.

    With --topic a group that does not exist is created: its consumers will start at these offsets.

    \b
    Examples:
      levada group reset billing --to-earliest
      levada group reset billing --topic orders:0,1 --to-offset 4200 --execute
      levada group reset billing --to-datetime 2026-05-01T12:00
      levada group reset billing --shift-by -100
      levada group reset audit --topic orders --to-datetime 2026-05-01T12:00
    """
    from levada.client.admin.groups import GroupAdmin, plan_reset

    target = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)

    async def plan(client: "Client") -> "list[OffsetReset]":
        await _check_resettable(client, name, topics)
        partitions = await _partitions(client, name, topics)
        return await plan_reset(client, name, partitions, target, shift=shift_by is not None)

    moves = with_client(properties, plan)
    emit([_move_row(move) for move in moves], output, ("topic", "partition", "committed", "new", "lag"))
    _report_limits(name, moves)
    count = "1 offset" if len(moves) == 1 else f"{len(moves)} offsets"
    if not execute:
        confirm(f"reset {count} of {name}?", yes=False, hint="try: --execute")
    new = {move.partition: move.target for move in moves}
    with_client(properties, lambda client: GroupAdmin(client).commit(name, new))
    notice(f"reset {count} of {name}")


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete(names: tuple[str, ...], yes: bool, properties: ClientProperties) -> None:
    """Delete groups that have no members, and their offsets.

    \b
    Examples:
      levada group delete billing
      levada group delete --yes billing shipping
    """
    from levada.client.admin.groups import GroupAdmin

    async def check(client: "Client") -> None:
        for name in names:
            await _check_unused(client, name)

    with_client(properties, check)
    confirm(f"delete {', '.join(names)} and all committed offsets?", yes)

    async def work(client: "Client") -> None:
        for name in names:
            await GroupAdmin(client).delete(name)
            notice(f"deleted {name}")

    with_client(properties, work)


def _target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None, shift_by: int | None
) -> "ResetTarget":
    numbers = [number for number in (to_offset, shift_by) if number is not None]
    if to_earliest + to_latest + (to_datetime is not None) + len(numbers) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by")
    if numbers:
        return numbers[0]
    if to_datetime is None:
        return "earliest" if to_earliest else "latest"
    try:
        return datetime.fromisoformat(to_datetime).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{to_datetime!r} is not a time; write 2026-05-01T12:00", param_hint="--to-datetime"
        ) from None


async def _check_unused(client: "Client", name: str) -> None:
    found = await require_group(client, name)
    if found.state not in UNUSED:
        raise CommandError(
            f"{name} is in use ({found.state}, members: {len(found.members)})",
            hint="stop its consumers first",
        )


async def _check_resettable(client: "Client", name: str, topics: tuple[str, ...]) -> None:
    """Raise CommandError unless the group has no members; a missing group needs --topic."""
    from levada.client.admin.groups import GroupAdmin

    known = [found.group for found in await GroupAdmin(client).list_groups()]
    if name in known or not topics:
        await _check_unused(client, name)
    else:
        notice(f"{name} will be a new group{did_you_mean(name, known)}")


async def _partitions(client: "Client", name: str, topics: tuple[str, ...]) -> "list[TopicPartition]":
    """The named partitions, or all with committed offsets."""
    from levada.client.admin.groups import GroupAdmin
    from levada.model import TopicPartition

    if not topics:
        known = (await client.metadata()).topics
        found = [one for one in await GroupAdmin(client).offsets(name) if one.topic in known]
        if not found:
            raise CommandError(f"{name} has committed no offsets", hint="try: --topic with the topics to reset")
        return found
    found = []
    for text in topics:
        topic, _, numbers = text.partition(":")
        await require_topic(client, topic)
        count = len((await client.topic(topic)).partitions)
        try:
            indexes = [int(number) for number in numbers.split(",")] if numbers else list(range(count))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not TOPIC[:PARTITION,...]", param_hint="--topic") from None
        if not all(0 <= index < count for index in indexes):
            raise CommandError(f"{topic} has partitions 0 to {count - 1}", EXIT_NOT_FOUND)
        found += [TopicPartition(topic, index) for index in indexes]
    return found


async def _description(client: "Client", name: str) -> dict[str, Any]:
    from levada.client.admin.groups import group_lag

    found = await require_group(client, name)
    rows = [lag_row(one) for one in await group_lag(client, found)]
    return {
        "group": found.group,
        "state": found.state,
        "kind": found.kind,
        "assignor": found.assignor or None,
        "coordinator": found.coordinator,
        "members": [_member_row(member) for member in found.members],
        "offsets": rows,
    }


def _member_row(member: "GroupMember") -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": None if member.partitions is None else [str(partition) for partition in member.partitions],
    }


def _move_row(move: "OffsetReset") -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "committed": move.committed,
        "new": move.target,
        "lag": move.end - move.target,
    }


def _report_limits(name: str, moves: "list[OffsetReset]") -> None:
    """Report partitions whose offsets end before, or begin after, the target."""
    for move in moves:
        if move.wanted is None:
            notice(f"{move.partition} has no records from that time on: {name} continues at its end, {move.target}")
        elif move.wanted > move.target:
            notice(f"{move.partition} ends at {move.target}: {name} continues there, not at {move.wanted}")
        elif move.wanted < move.target:
            notice(f"{move.partition} begins at {move.target}: {name} continues there, not at {move.wanted}")


def _print_description(info: Row) -> None:
    words = [info["state"], info["kind"], *([printable(info["assignor"])] if info["assignor"] else [])]
    title = click.style(printable(info["group"]), bold=True)
    click.echo(f"{title}   {', '.join(words)}   coordinator {info['coordinator']}", color=wants_color())
    if info["members"]:
        columns = ("member", "instance", "client", "host", "partitions")
        click.echo(table(info["members"], columns), nl=False, color=wants_color())
    if info["offsets"]:
        click.echo(table(info["offsets"], LAG_COLUMNS), nl=False, color=wants_color())

"""`levada topic list|create|describe|alter|trim|delete`."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from levada.cli.completion import complete_settings
from levada.cli.errors import CommandError, for_topic, not_found
from levada.cli.options import (
    TimeType,
    compile_pattern,
    complete_topics,
    confirm,
    connection_options,
    connection_options_beside_config,
    notice,
    output_option,
    require_topic,
    topic_argument,
    with_client,
)
from levada.cli.output import Output, Row, emit, emit_each, size_text, table, wants_color
from levada.cli.records.trim import offset_range, plan_trim
from levada.cli.settings import ClientProperties, parse_settings
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.metadata import TopicInfo


NO_TOPICS = "no topics; try: levada topic create NAME"


@click.group()
def topic() -> None:
    """List, create, describe, alter, trim and delete topics.

    \b
    Examples:
      levada topic list
      levada topic create orders -p 3 -c retention.ms=86400000
      levada topic describe orders
      levada topic alter orders --partitions 6
      levada topic trim orders --to-datetime 2026-05-01T12:00
      levada topic delete orders
    """


@topic.command("list")
@click.argument("pattern", metavar="[PATTERN]", required=False, shell_complete=complete_topics)
@click.option("-q", "--names", is_flag=True, help="Print only the names.")
@click.option("--internal", is_flag=True, help="Also show internal topics of brokers and of Levada.")
@output_option
@connection_options
def list_topics(pattern: str | None, names: bool, internal: bool, output: Output, properties: ClientProperties) -> None:
    """List topics, all or those whose whole names match a regular expression.

    \b
    Examples:
      levada topic list
      levada topic list 'shop-.*'
      levada topic list -o json
      levada topic list -q | xargs -n 1 levada topic describe
    """
    expression = compile_pattern(pattern or ".*", "PATTERN")
    metadata = with_client(properties, lambda client: client.metadata())
    visible = [info for name, info in sorted(metadata.topics.items()) if internal or not info.is_hidden]
    topics = [info for info in visible if expression.fullmatch(info.name)]
    if names:
        click.echo("".join(f"{info.name}\n" for info in topics), nl=False)
        return
    if not topics and output == "table":
        notice(f"no topic matches {pattern}{_glob_hint(pattern)}" if pattern else NO_TOPICS)
        return
    emit([_summary(info) for info in topics], output, ("name", "partitions", "replicas"))


@topic.command(short_help="Create topics.")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions.")
@click.option("-r", "--replication-factor", type=click.IntRange(min=1), help="Replicas of each partition.")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the topic.",
              shell_complete=complete_settings("topic", suffix="="))  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="Leave an existing topic unchanged.")
@output_option
@connection_options_beside_config
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    output: Output,
    properties: ClientProperties,
) -> None:
    """Create topics; defaults come from the broker's settings.

    The broker checks all of them first: if it refuses one, or one exists without --if-not-exists, none is created.

    \b
    Examples:
      levada topic create orders
      levada topic create orders payments -p 12
      levada topic create events -c cleanup.policy=compact -c segment.ms=3600000
    """
    wanted = {
        "partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": parse_settings(settings, "-c"),
    }
    rows = with_client(properties, lambda client: _create(client, list(dict.fromkeys(names)), if_not_exists, wanted))
    if output != "table":
        emit(rows, output)
        return
    for row in rows:
        verb = "created" if row["created"] else "exists already:"
        notice(f"{verb} {row['name']} ({_count(row['partitions'], 'partition')})")


async def _create(
    client: "Client", names: Collection[str], if_not_exists: bool, wanted: dict[str, Any]
) -> list[dict[str, Any]]:
    """Create topics, none if the broker refuses one of them."""

    async def create(name: str, validate_only: bool = False) -> bool:
        try:
            await client.admin.create_topic(name, **wanted, validate_only=validate_only)
        except KafkaError as error:
            if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
            return False
        return True

    if len(names) > 1:
        for name in names:
            try:
                await create(name, validate_only=True)
            except KafkaError as error:
                refused = for_topic(error, name)
                raise CommandError(f"{refused.message}; no topic is created", refused.exit_code, refused.hint) from None
    rows = []
    for name in names:
        created = await create(name)
        rows.append({**_summary(await client.topic(name, create=True)), "created": created})
    return rows


@topic.command(short_help="Show partitions, offsets, sizes and settings.")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@output_option
@connection_options
def describe(names: tuple[str, ...], output: Output, properties: ClientProperties) -> None:
    """Show partitions with their replicas, offsets and sizes, and settings that differ from the defaults.

    Records are counted by offsets: in a compacted topic, and in one with transactions, there are fewer. Sizes are those
    of the leaders' logs.

    \b
    Examples:
      levada topic describe orders
      levada topic describe orders -o json
    """

    async def work(client: "Client") -> list[dict[str, Any]]:
        return [await _description(client, name) for name in names]

    emit_each(with_client(properties, work), output, _print_description)


@topic.command()
@topic_argument
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="The new number of partitions.")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Change a setting.",
              shell_complete=complete_settings("topic", suffix="="))  # fmt: skip
@click.option("--unset", metavar="KEY", multiple=True, help="Reset a setting to its default.",
              shell_complete=complete_settings("topic"))  # fmt: skip
@connection_options_beside_config
def alter(
    topic: str,
    partitions: int | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    properties: ClientProperties,
) -> None:
    """Add partitions or change settings.

    \b
    Examples:
      levada topic alter orders --partitions 6
      levada topic alter orders -c retention.ms=3600000 --unset segment.bytes
    """
    changes: dict[str, str | None] = {**parse_settings(settings, "-c"), **dict.fromkeys(unset)}
    if partitions is None and not changes:
        raise click.UsageError("nothing to alter; give --partitions, -c or --unset")

    async def work(client: "Client") -> None:
        await require_topic(client, topic)
        if changes:
            await client.admin.alter_configs("topic", topic, changes)
        if partitions is not None:
            await client.admin.create_partitions(topic, partitions)

    with_client(properties, work)
    notice(f"altered {topic}")


@topic.command(short_help="Delete the oldest records.")
@topic_argument
@click.option("--to-offset", metavar="OFFSET", type=click.IntRange(min=0), help="The records before this offset.")
@click.option("--to-datetime", metavar="TIME", type=TimeType(), help="The records before this time.")
@click.option("--all", "everything", is_flag=True, help="All records.")
@click.option("-p", "--partition", "indexes", type=click.IntRange(min=0), multiple=True, help="Only of this partition.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
@connection_options
def trim(
    topic: str,
    to_offset: int | None,
    to_datetime: datetime | None,
    everything: bool,
    indexes: tuple[int, ...],
    yes: bool,
    output: Output,
    properties: ClientProperties,
) -> None:
    """Delete the oldest records of a topic: those before an offset or a time, or all. Offsets continue after them.

    \b
    Examples:
      levada topic trim orders --to-datetime 2026-05-01T12:00
      levada topic trim orders -p 0 --to-offset 4200
      levada topic trim orders --all --yes
    """
    from levada.client.admin.logs import LogAdmin

    if (to_offset is not None) + (to_datetime is not None) + everything != 1:
        raise click.UsageError("give one of --to-offset, --to-datetime and --all")
    target = to_offset if to_offset is not None else to_datetime
    plan = with_client(properties, lambda client: plan_trim(client, topic, indexes, target))
    emit(plan, output, ("partition", "earliest", "new", "latest", "deleted"))
    count = sum(row["deleted"] for row in plan)
    if not count:
        notice(f"{topic} has no records to delete")
        return
    confirm(f"delete {_count(count, 'record')} of {topic}?", yes)
    offsets = {TopicPartition(topic, row["partition"]): row["new"] for row in plan if row["deleted"]}
    with_client(properties, lambda client: LogAdmin(client).delete_records(offsets))
    notice(f"deleted {_count(count, 'record')} of {topic}")


@topic.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--if-exists", is_flag=True, help="Ignore topics that do not exist.")
@connection_options
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, properties: ClientProperties) -> None:
    """Delete topics and all their records.

    \b
    Examples:
      levada topic delete orders
      levada topic delete --yes orders payments
    """

    async def check(client: "Client") -> list[str]:
        known = (await client.metadata()).topics
        for name in names:
            if name not in known and not if_exists:
                raise not_found("topic", name, known, "try: levada topic list")
        return [name for name in names if name in known]

    existing = with_client(properties, check)
    if not existing:
        return
    confirm(f"delete {', '.join(existing)} and all records?", yes)

    async def work(client: "Client") -> None:
        for name in existing:
            await client.admin.delete_topic(name)
            notice(f"deleted {name}")

    with_client(properties, work)


def _summary(info: "TopicInfo") -> dict[str, Any]:
    return {
        "name": info.name,
        "id": None if info.topic_id is None else str(info.topic_id),
        "partitions": len(info.partitions),
        "replicas": max((len(part.replicas) for part in info.partitions), default=0),
        "internal": info.is_internal,
    }


async def _description(client: "Client", name: str) -> dict[str, Any]:
    await require_topic(client, name)
    info = await client.topic(name)
    leaders = {TopicPartition(name, part.partition): part.leader for part in info.partitions if part.leader >= 0}
    ranges = await offset_range(client, leaders)
    sizes = await _sizes(client, leaders)
    configs = await client.admin.describe_configs("topic", name)
    partitions = []
    for part in info.partitions:
        key = TopicPartition(name, part.partition)
        first, last = ranges.get(key, (None, None))
        partitions.append(
            {
                "partition": part.partition,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "earliest": first,
                "latest": last,
                "records": None if first is None or last is None else last - first,
                "bytes": sizes.get(key),
            }
        )
    set_here = {entry.name: entry.value for entry in configs if entry.source == "topic"}
    return {**_summary(info), "partitions": partitions, "configs": set_here}


async def _sizes(client: "Client", leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The sizes of the leaders' logs, as far as the brokers give them."""
    from levada.client.admin.logs import LogAdmin

    sizes: dict[TopicPartition, int] = {}
    for node in set(leaders.values()):
        led = [partition for partition, leader in leaders.items() if leader == node]
        try:
            log_dirs = await LogAdmin(client).log_dirs(node, led)
        except KafkaError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            continue
        for log_dir in log_dirs:
            sizes |= log_dir.sizes
    return sizes


def _print_description(info: Row) -> None:
    partitions = info["partitions"]
    records, size = (sum(part[field] or 0 for part in partitions) for field in ("records", "bytes"))
    total = f"{_count(records, 'record')}, {size_text(size)}"
    click.echo(f"{click.style(info['name'], bold=True)}   id {info['id'] or '-'}   {total}", color=wants_color())
    for key, value in info["configs"].items():
        click.echo(f"  {key}={value}")
    columns = ("partition", "leader", "replicas", "isr", "earliest", "latest", "records", "size")
    rows = [{**part, "size": size_text(part["bytes"])} for part in partitions]
    click.echo(table(rows, columns), nl=False, color=wants_color())


def _glob_hint(pattern: str) -> str:
    """A hint for a pattern of a shell, which is another regular expression than it seems."""
    wanted = pattern.replace("*", ".*")
    return f"; it is a regular expression, try: '{wanted}'" if "*" in pattern and ".*" not in pattern else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

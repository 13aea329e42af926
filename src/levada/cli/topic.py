"""`levada topic list|create|describe|alter|delete`."""

from typing import TYPE_CHECKING, Any

import click

from levada.cli.errors import not_found
from levada.cli.options import (
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
from levada.cli.output import Output, Row, emit, emit_each, table, wants_color
from levada.cli.settings import ClientProperties, parse_settings
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.metadata import TopicInfo


@click.group()
def topic() -> None:
    """List, create, describe, alter and delete topics.

    \b
    Examples:
      levada topic list
      levada topic create orders -p 3 -c retention.ms=86400000
      levada topic describe orders
      levada topic alter orders --partitions 6
      levada topic delete orders
    """


@topic.command("list")
@click.option("-q", "--names", is_flag=True, help="Print only the names.")
@click.option("--internal", is_flag=True, help="Also show internal topics of brokers and of Levada.")
@output_option
@connection_options
def list_topics(names: bool, internal: bool, output: Output, properties: ClientProperties) -> None:
    """List topics.

    \b
    Examples:
      levada topic list
      levada topic list -o json
      levada topic list -q | xargs -n 1 levada topic describe
    """
    metadata = with_client(properties, lambda client: client.metadata())
    topics = [
        metadata.topics[name] for name in sorted(metadata.topics) if internal or not metadata.topics[name].is_hidden
    ]
    if names:
        click.echo("".join(f"{info.name}\n" for info in topics), nl=False)
        return
    if not topics and output == "table":
        notice("no topics; try: levada topic create NAME")
        return
    emit([_summary(info) for info in topics], output, ("name", "partitions", "replicas"))


@topic.command(short_help="Create topics.")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions.")
@click.option("-r", "--replication-factor", type=click.IntRange(min=1), help="Replicas of each partition.")
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the topic.")
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

    \b
    Examples:
      levada topic create orders
      levada topic create orders payments -p 12
      levada topic create events -c cleanup.policy=compact -c segment.ms=3600000
    """
    configs = parse_settings(settings, "-c")

    async def work(client: "Client") -> list[dict[str, Any]]:
        rows = []
        for name in names:
            created = True
            try:
                await client.admin.create_topic(
                    name,
                    partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    configs=configs,
                )
            except KafkaError as error:
                if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise
                created = False
            rows.append({**_summary(await client.topic(name, create=True)), "created": created})
        return rows

    rows = with_client(properties, work)
    if output != "table":
        emit(rows, output)
        return
    for row in rows:
        verb = "created" if row["created"] else "exists already:"
        notice(f"{verb} {row['name']} ({_count(row['partitions'], 'partition')})")


@topic.command(short_help="Show partitions, offsets and settings.")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@output_option
@connection_options
def describe(names: tuple[str, ...], output: Output, properties: ClientProperties) -> None:
    """Show partitions with their replicas and offsets, and settings that differ from the defaults.

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
@click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help="Change a setting.")
@click.option("--unset", metavar="KEY", multiple=True, help="Reset a setting to its default.")
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
    from levada.client.data import EARLIEST, LATEST
    from levada.model import TopicPartition

    await require_topic(client, name)
    info = await client.topic(name)
    with_leader = [TopicPartition(name, part.partition) for part in info.partitions if part.leader >= 0]
    first = await client.list_offsets(dict.fromkeys(with_leader, EARLIEST))
    last = await client.list_offsets(dict.fromkeys(with_leader, LATEST))
    configs = await client.admin.describe_configs("topic", name)
    partitions = []
    for part in info.partitions:
        key = TopicPartition(name, part.partition)
        partitions.append(
            {
                "partition": part.partition,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "earliest": first[key].offset if key in first else None,
                "latest": last[key].offset if key in last else None,
            }
        )
    set_here = {entry.name: entry.value for entry in configs if entry.source == "topic"}
    return {**_summary(info), "partitions": partitions, "configs": set_here}


def _print_description(info: Row) -> None:
    click.echo(click.style(info["name"], bold=True) + f"   id {info['id'] or '-'}", color=wants_color())
    for key, value in info["configs"].items():
        click.echo(f"  {key}={value}")
    columns = ("partition", "leader", "replicas", "isr", "earliest", "latest")
    click.echo(table(info["partitions"], columns), nl=False, color=wants_color())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

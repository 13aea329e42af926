"""`levada config describe|set|unset`: settings of topics, brokers and groups."""

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from levada.cli.completion import complete_settings
from levada.cli.errors import EXIT_NOT_FOUND, CommandError, not_found
from levada.cli.options import (
    complete_brokers,
    complete_groups,
    complete_topics,
    connection_options,
    notice,
    output_option,
    require_topic,
    with_client,
)
from levada.cli.output import Output, emit
from levada.cli.settings import ClientProperties, parse_settings

if TYPE_CHECKING:
    from levada.client.admin.admin import Resource
    from levada.client.client import Client


def _complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    completions = {"topic": complete_topics, "broker": complete_brokers, "group": complete_groups}
    found = completions.get(ctx.params.get("resource", ""))
    return found(ctx, param, incomplete) if found else []


resource_argument = click.argument(
    "resource", metavar="topic|broker|group", type=click.Choice(["topic", "broker", "group"])
)
name_argument = click.argument("name", metavar="NAME", shell_complete=_complete_name)


@click.group()
def config() -> None:
    """Show and change the settings of topics and groups (by name) and brokers (by node id).

    \b
    Examples:
      levada config describe topic orders
      levada config set topic orders retention.ms=86400000
      levada config unset topic orders retention.ms
      levada config describe broker 1 --all
      levada config set group billing consumer.session.timeout.ms=60000
    """


@config.command(short_help="Show settings.")
@resource_argument
@name_argument
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_settings())
@click.option("-a", "--all", "everything", is_flag=True, help="Also show default values.")
@output_option
@connection_options
def describe(
    resource: "Resource",
    name: str,
    keys: tuple[str, ...],
    everything: bool,
    output: Output,
    properties: ClientProperties,
) -> None:
    """Show settings: those that differ from the defaults, the named ones, or all.

    \b
    Examples:
      levada config describe topic orders
      levada config describe topic orders retention.ms segment.bytes
      levada config describe broker 1 --all -o json
    """

    async def work(client: "Client") -> list[dict[str, Any]]:
        await _check(client, resource, name)
        entries = await client.admin.describe_configs(resource, name)
        for key in keys:
            if all(entry.name != key for entry in entries):
                known = [entry.name for entry in entries]
                raise not_found("setting", key, known)
        return [
            {
                "name": entry.name,
                "value": "(hidden)" if entry.is_sensitive else entry.value,
                "source": entry.source,
                "read_only": entry.is_read_only,
                "documentation": entry.documentation,
            }
            for entry in entries
            if (entry.name in keys if keys else everything or entry.source != "default")
        ]

    rows = with_client(properties, work)
    if not rows and output == "table":
        notice(f"{resource} {name} has only default settings; try: --all")
        return
    emit(rows, output, ("name", "value", "source"))


@config.command("set")
@resource_argument
@name_argument
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True,
                shell_complete=complete_settings(suffix="=", changes=True))  # fmt: skip
@connection_options
def set_values(resource: "Resource", name: str, settings: tuple[str, ...], properties: ClientProperties) -> None:
    """Change settings.

    \b
    Examples:
      levada config set topic orders retention.ms=86400000 max.message.bytes=2097152
      levada config set broker 1 log.retention.ms=3600000
    """
    _alter(resource, name, {**parse_settings(settings, "KEY=VALUE")}, properties)


@config.command()
@resource_argument
@name_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_settings(changes=True))
@connection_options
def unset(resource: "Resource", name: str, keys: tuple[str, ...], properties: ClientProperties) -> None:
    """Reset settings to their defaults.

    \b
    Examples:
      levada config unset topic orders retention.ms
    """
    _alter(resource, name, dict.fromkeys(keys), properties)


def _alter(resource: "Resource", name: str, changes: dict[str, str | None], properties: ClientProperties) -> None:
    async def work(client: "Client") -> None:
        await _check(client, resource, name)
        await client.admin.alter_configs(resource, name, changes)

    with_client(properties, work)
    notice(f"altered {resource} {name}")


async def _check(client: "Client", resource: "Resource", name: str) -> None:
    """Raise CommandError unless the topic or broker exists; a group may have settings before it exists."""
    if resource == "topic":
        await require_topic(client, name)
    elif resource == "broker":
        await _check_broker(client, name)


async def _check_broker(client: "Client", name: str) -> None:
    if not name.isdecimal():
        raise click.BadParameter(f"{name!r} is not a node id", param_hint="NAME")
    if int(name) not in (brokers := (await client.metadata(())).brokers):
        known = ", ".join(map(str, sorted(brokers)))
        raise CommandError(f"no such broker: {name}; brokers: {known}", EXIT_NOT_FOUND)

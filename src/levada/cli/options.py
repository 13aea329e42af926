"""The options that commands share, and their connection to a broker."""

import os
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from levada.cli.completion import matching
from levada.cli.errors import CommandError, not_found
from levada.cli.settings import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    ClientProperties,
    client_properties,
    complete_properties,
)
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.admin.groups import GroupDescription
    from levada.client.client import Client

COMPLETION_TIMEOUT_S = 0.4

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


def client_options(command: Command) -> Command:
    """Add -b, -X and --config; the command gets them as `properties`."""
    return _client_options(command, "-F", "--config")


def _client_options(command: Command, *file_names: str) -> Command:
    @wraps(command)
    def with_properties(**given: Any) -> Any:
        for name in ("bootstrap", "timeout", "client_settings", "properties_file"):
            given.pop(name, None)
        return command(properties=client_properties(click.get_current_context()), **given)

    bootstrap = click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="LEVADA_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        help="Bootstrap brokers, separated by commas.",
    )
    setting = click.option(
        "-X",
        "client_settings",
        metavar="KEY=VALUE",
        multiple=True,
        shell_complete=complete_properties,
        help="A setting of the client, by Kafka's name; can be repeated.",
    )
    file = click.option(
        *file_names,
        "properties_file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="A properties file with settings of the client.",
    )
    return cast(Command, bootstrap(setting(file(with_properties))))


def connection_options(command: Command) -> Command:
    """Add -b, --timeout, -X and --config; the command gets them as `properties`."""
    return client_options(_timeout_option(command))


def connection_options_beside_config(command: Command) -> Command:
    """The same for a command whose --config is a setting of a topic: the file is --command-config, as in Kafka."""
    return _client_options(_timeout_option(command), "-F", "--command-config")


def _timeout_option(command: Command) -> Command:
    return click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="How long to wait for a broker's response; a refused connection fails at once.",
    )(command)


def output_option(command: Command) -> Command:
    """Add -o."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "jsonl"]),
        default="table",
        show_default=True,
        help="Aligned columns, one JSON document, or one JSON object per line.",
    )(command)


class TimeType(click.ParamType[datetime]):
    """A time; without an offset in the local time zone."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        text = str(value)
        try:
            if text.isdecimal():
                return datetime.fromtimestamp(int(text) / 1000, UTC)
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            return self.fail(f"{text!r} is not a time: milliseconds since 1970 or 2026-05-01T12:00", param, ctx)


def with_client(properties: ClientProperties, work: Callable[["Client"], Awaitable[Result]]) -> Result:
    """Run `work` with a connected client."""
    import asyncio

    from levada.client.client import Client

    async def connected() -> Result:
        try:
            client = Client(**properties.arguments("client"))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="-b") from None
        async with client:
            return await work(client)

    return asyncio.run(connected())


async def require_topic(client: "Client", name: str, hint: str = "try: levada topic list") -> None:
    """End the command with exit code 4 unless the topic exists."""
    try:
        await client.topic(name)
    except KafkaError as error:
        if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            raise
        known = (await client.metadata()).topics
        raise not_found("topic", name, known, hint) from None


async def require_group(client: "Client", name: str) -> "GroupDescription":
    """The group; ends the command with exit code 4 if it does not exist."""
    from levada.client.admin.groups import GroupAdmin

    try:
        return await GroupAdmin(client).describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    known = [found.group for found in await GroupAdmin(client).list_groups()]
    raise not_found("group", name, known, "try: levada group list")


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topic names for shell completion."""

    async def names(client: "Client") -> Iterable[str]:
        return (await client.metadata()).topics

    return complete_from_broker(ctx, incomplete, names)


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Group names for shell completion."""

    async def names(client: "Client") -> Iterable[str]:
        from levada.client.admin.groups import GroupAdmin

        return [found.group for found in await GroupAdmin(client).list_groups()]

    return complete_from_broker(ctx, incomplete, names)


def complete_brokers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Node ids for shell completion."""

    async def names(client: "Client") -> Iterable[str]:
        return map(str, (await client.metadata(())).brokers)

    return complete_from_broker(ctx, incomplete, names)


def complete_from_broker(
    ctx: click.Context, incomplete: str, names: Callable[["Client"], Awaitable[Iterable[str]]]
) -> list[CompletionItem]:
    """Names that the broker knows; none if no broker responds quickly."""
    try:
        properties = client_properties(ctx)
        if not ctx.params.get("bootstrap") and "bootstrap.servers" not in properties.given:
            properties = properties._replace(bootstrap=os.environ.get("LEVADA_BOOTSTRAP") or DEFAULT_BOOTSTRAP)
        found = with_client(properties._replace(timeout_s=COMPLETION_TIMEOUT_S), names)
    except Exception:  # noqa: BLE001  # completion must not print errors
        return []
    return matching(found, incomplete)


def compile_pattern(pattern: str, hint: str) -> re.Pattern[str]:
    """A regular expression over whole names; a usage error if it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is not a regular expression: {error}", param_hint=hint) from None


def topic_argument(command: Command) -> Command:
    """Add the argument TOPIC."""
    return click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)(command)


def notice(text: str) -> None:
    """Print a message to standard error, apart from data."""
    click.echo(text, err=True)


def confirm(question: str, yes: bool, hint: str = "try: --yes") -> None:
    """Ask for confirmation unless `yes`; raise CommandError without a terminal."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"cannot ask for confirmation: standard input is not a terminal: {question}", hint=hint)
    if not click.confirm(question, err=True):
        raise CommandError("nothing was changed")

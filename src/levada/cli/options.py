"""What every command that talks to a broker has in common: where to connect, how long to wait, how to print."""

import os
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from levada.cli.errors import Failure, no_such_topic
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
COMPLETION_TIMEOUT_MS = 400

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


def names_brokers(command: Command) -> Command:
    """Adds -b."""
    return click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="LEVADA_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        help="Brokers to connect to first, separated by commas.",
    )(command)


def connects(command: Command) -> Command:
    """Adds -b and --timeout."""
    timeout = click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="How long to wait for a broker.",
    )
    return names_brokers(timeout(command))


def prints(command: Command) -> Command:
    """Adds -o."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "jsonl"]),
        default="table",
        show_default=True,
        help="How to print: aligned columns, one JSON document, or one JSON object a line.",
    )(command)


class TimeType(click.ParamType[datetime]):
    """A moment; without a zone it is meant here."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        text = str(value)
        try:
            if text.isdecimal():
                return datetime.fromtimestamp(int(text) / 1000, UTC)
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            return self.fail(f"{text!r} is no time: milliseconds since 1970 or 2026-05-01T12:00", param, ctx)


def with_client(bootstrap: str, timeout: float, work: Callable[["Client"], Awaitable[Result]]) -> Result:
    """Connect, do the work, close."""
    import asyncio

    from levada.client.client import Client

    async def connected() -> Result:
        timeout_ms = int(timeout * 1000)
        try:
            client = Client(
                bootstrap,
                client_id="levada-cli",
                request_timeout_ms=timeout_ms,
                connect_timeout_ms=min(timeout_ms, 10_000),
            )
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="-b") from None
        async with client:
            return await work(client)

    return asyncio.run(connected())


async def existing_topic(client: "Client", name: str) -> None:
    """Ends the command with code 4 if there is no such topic."""
    try:
        await client.topic(name)
    except KafkaError as error:
        if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            raise
        raise no_such_topic(name, (await client.metadata()).topics) from None


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of topics for the shell: quick, and silent if no broker answers."""
    bootstrap = ctx.params.get("bootstrap") or os.environ.get("LEVADA_BOOTSTRAP") or DEFAULT_BOOTSTRAP

    async def names(client: "Client") -> Iterable[str]:
        return (await client.metadata()).topics

    try:
        found = with_client(bootstrap, COMPLETION_TIMEOUT_MS / 1000, names)
    except Exception:  # noqa: BLE001  # whatever it is, a shell waiting for TAB must not see it
        return []
    return [CompletionItem(name) for name in sorted(found) if name.startswith(incomplete)]


def topic_argument(command: Command) -> Command:
    """The argument TOPIC."""
    return click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)(command)


def parse_settings(pairs: Iterable[str], hint: str) -> dict[str, str]:
    """`key=value` pairs."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{pair!r} is not key=value", param_hint=hint)
        settings[key.strip()] = value
    return settings


def say(text: str) -> None:
    """Talk, on standard error, so that it never mixes with data."""
    click.echo(text, err=True)


def confirm(question: str, yes: bool, hint: str = "try: --yes") -> None:
    """Ask before something is lost; without a terminal only --yes will do."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"cannot ask, since standard input is not a terminal: {question}", hint=hint)
    if not click.confirm(question, err=True):
        raise Failure("nothing was changed")

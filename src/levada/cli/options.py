"""The options that commands share, and their connection to a broker."""

import os
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from levada.cli.errors import CommandError, not_found
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
COMPLETION_TIMEOUT_MS = 400

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


def bootstrap_option(command: Command) -> Command:
    """Add -b."""
    return click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="LEVADA_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        help="Bootstrap brokers, separated by commas.",
    )(command)


def connection_options(command: Command) -> Command:
    """Add -b and --timeout."""
    timeout = click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="How long to wait for a broker.",
    )
    return bootstrap_option(timeout(command))


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


def with_client(bootstrap: str, timeout: float, work: Callable[["Client"], Awaitable[Result]]) -> Result:
    """Run `work` with a connected client."""
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


async def require_topic(client: "Client", name: str) -> None:
    """End the command with exit code 4 unless the topic exists."""
    try:
        await client.topic(name)
    except KafkaError as error:
        if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            raise
        known = (await client.metadata()).topics
        raise not_found("topic", name, known, f"try: levada topic create {name}") from None


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topic names for shell completion; empty if no broker responds quickly."""
    bootstrap = ctx.params.get("bootstrap") or os.environ.get("LEVADA_BOOTSTRAP") or DEFAULT_BOOTSTRAP

    async def names(client: "Client") -> Iterable[str]:
        return (await client.metadata()).topics

    try:
        found = with_client(bootstrap, COMPLETION_TIMEOUT_MS / 1000, names)
    except Exception:  # noqa: BLE001  # completion must not print errors
        return []
    return [CompletionItem(name) for name in sorted(found) if name.startswith(incomplete)]


def topic_argument(command: Command) -> Command:
    """Add the argument TOPIC."""
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

"""`levada start`: runs a broker in the foreground."""

import os
from collections.abc import Mapping, Sequence

import click

from levada.cli.completion import complete_settings
from levada.cli.errors import EXIT_USAGE, CommandError
from levada.cli.settings import parse_settings, read_properties

ADVERTISED_VARIABLE = "KAFKA_ADVERTISED_LISTENERS"


@click.command()
@click.argument(
    "properties", metavar="[SERVER.PROPERTIES]", required=False, type=click.Path(exists=True, dir_okay=False)
)
@click.option("--data", metavar="DIR", help="The log directory (log.dirs).  [default: levada-data]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The port on 127.0.0.1; 0 is any free port.  [default: 9092]",
)
@click.option(
    "--listener",
    "listeners",
    metavar="NAME://HOST:PORT",
    multiple=True,
    help="A listener; can be repeated.",
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting, by Kafka's name.",
              shell_complete=complete_settings("broker", suffix="="))  # fmt: skip
def start(
    properties: str | None,
    data: str | None,
    port: int | None,
    listeners: tuple[str, ...],
    settings: tuple[str, ...],
) -> None:
    """Start a broker; Ctrl-C or SIGTERM stops it.

    Settings have Kafka's names. They come from a server.properties, from KAFKA_ variables (KAFKA_LOG_RETENTION_MS for
    log.retention.ms) and from flags; later ones override earlier ones.

    \b
    Examples:
      levada start
      levada start --data /var/lib/levada --port 9092
      levada start server.properties
      levada start --set log.retention.ms=3600000 --set num.partitions=3
    """
    if port is not None and listeners:
        raise click.UsageError("--port and --listener exclude each other")
    flags = parse_settings(settings, "--set")
    if data is not None:
        flags["log.dirs"] = data
    if port is not None:
        flags["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    if listeners:
        flags["listeners"] = ",".join(listeners)
    if "listeners" in flags and (port is not None or listeners or ADVERTISED_VARIABLE not in os.environ):
        flags.setdefault("advertised.listeners", "")  # those of the file are addresses of its own listeners
    _run(properties, flags)


def _run(properties: str | None, flags: dict[str, str]) -> None:
    from levada.config.broker import BrokerConfig, InvalidSettings
    from levada.config.properties import merged

    text = read_properties(properties) if properties else None
    given = merged(text=text, environment=os.environ, flags=flags)
    try:
        config, warnings = BrokerConfig.load(given)
    except InvalidSettings as error:
        origins = [_origin(one.partition(":")[0], properties, text, flags) for one in error.problems]
        raise _failure(given, _refused(error.problems, origins)) from None
    from levada.server import CannotStartError, run

    try:
        run(config, warnings)
    except CannotStartError as error:
        hint = "try: another --port; 0 is any free port" if "cannot listen" in str(error) else ""
        raise _failure(given, CommandError(f"cannot start: {error}", hint=hint)) from error


def _refused(problems: Sequence[str], origins: Sequence[str]) -> CommandError:
    """The error for all problems of the settings, and where each was set."""
    if len(problems) == 1:
        return CommandError(problems[0], EXIT_USAGE, origins[0])
    lines = [f"{why} ({where})" if where else why for why, where in zip(problems, origins, strict=True)]
    return CommandError(f"{len(problems)} problems in the settings", EXIT_USAGE, "\n  ".join(lines))


def _origin(name: str, properties: str | None, text: str | None, flags: Mapping[str, str]) -> str:
    """Where a setting was given: the variable, or the line of the file; empty for a flag and for no setting."""
    from levada.config.properties import from_environment, parse

    if name in flags:
        return ""
    for variable, value in os.environ.items():
        if name in from_environment({variable: value}):
            return f"set by the variable {variable}"
    lines = [number for number, line in enumerate((text or "").splitlines(), 1) if name in parse(line)]
    return f"set in {properties}, line {lines[-1]}" if lines else ""


def _failure(given: Mapping[str, str], error: CommandError) -> BaseException:
    """The error for the terminal; with levada.log.format=json a log line and the exit code."""
    from levada import logs

    if given.get("levada.log.format") != logs.JSON:
        return error
    logs.configure(logs.JSON)
    logs.EventLog(__name__).error("broker cannot start", why=error.message, hint=error.hint)
    return SystemExit(error.exit_code)

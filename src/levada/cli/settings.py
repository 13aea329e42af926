"""Settings on the command line: key=value pairs, and those of the client by Kafka's names (-X, or a file).

A properties file of another client works: a setting without use in the command causes a warning. A misspelt name is
an error, and so are settings of TLS and SASL, without which a connection would be less secure than its user wants.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from levada.cli.client_names import ALIASES, UNUSED, UNUSED_PREFIXES
from levada.cli.completion import matching
from levada.cli.errors import EXIT_USAGE, CommandError, did_you_mean

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_MS_MAX = 10_000
SECURITY_PREFIXES = ("ssl.", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.")
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1

Role = Literal["client", "producer", "consumer"]


class Property(NamedTuple):
    """A client setting: the argument of the client, producer or consumer, and the parser of its value."""

    role: Role
    argument: str
    parse: Callable[[str], Any]


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"write {', '.join(choices[:-1])} or {choices[-1]}")
        return text.lower()

    return parse


def _number(minimum: int, maximum: int = INT32_MAX) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise ValueError(f"write a whole number, {minimum} or more")
        if int(text) > maximum:
            raise ValueError(f"the maximum is {maximum}")
        return int(text)

    return parse


def parse_acks(text: str) -> Literal[0, 1, "all"]:
    """The acknowledgements of a producer; -1 is all."""
    found = _choice("0", "1", "all", "-1")(text)
    return "all" if found in ("all", "-1") else (0 if found == "0" else 1)


def _milliseconds(text: str) -> float:
    """Milliseconds, with librdkafka's fractions."""
    whole, _, fraction = text.partition(".")
    return _number(0, INT64_MAX)(whole) + float(f"0.{_number(0)(fraction or '0')}")


def _reset(text: str) -> str:
    """The start without a committed offset, in the words of Java and of librdkafka."""
    names = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest"}
    return _choice("earliest", "latest")(names.get(text.lower(), text))


def _boolean(text: str) -> bool:
    return _choice("true", "false")(text) == "true"


PROPERTIES: Mapping[str, Property] = {
    "bootstrap.servers": Property("client", "bootstrap", str),
    "client.id": Property("client", "client_id", str),
    "request.timeout.ms": Property("client", "request_timeout_ms", _number(1)),
    "socket.connection.setup.timeout.ms": Property("client", "connect_timeout_ms", _number(1)),
    "retry.backoff.ms": Property("client", "retry_backoff_ms", _number(0, INT64_MAX)),
    "metadata.max.age.ms": Property("client", "metadata_max_age_ms", _number(0, INT64_MAX)),
    "acks": Property("producer", "acks", parse_acks),
    "batch.size": Property("producer", "batch_bytes", _number(0)),
    "buffer.memory": Property("producer", "buffer_bytes", _number(1, INT64_MAX)),
    "compression.type": Property("producer", "compression", _choice("none", "gzip", "snappy", "lz4", "zstd")),
    "delivery.timeout.ms": Property("producer", "delivery_timeout_ms", _number(1)),
    "enable.idempotence": Property("producer", "idempotent", _boolean),
    "linger.ms": Property("producer", "linger_ms", _milliseconds),
    "max.in.flight.requests.per.connection": Property("producer", "in_flight_max", _number(1)),
    "auto.commit.interval.ms": Property("consumer", "commit_interval_ms", _number(0)),
    "auto.offset.reset": Property("consumer", "start", _reset),
    "enable.auto.commit": Property("consumer", "auto_commit", _boolean),
    "fetch.max.bytes": Property("consumer", "fetch_bytes_max", _number(0)),
    "fetch.max.wait.ms": Property("consumer", "fetch_wait_ms", _number(0)),
    "fetch.min.bytes": Property("consumer", "fetch_bytes_min", _number(0)),
    "group.id": Property("consumer", "group", str),
    "group.instance.id": Property("consumer", "instance_id", str),
    "isolation.level": Property("consumer", "isolation", _choice("read_uncommitted", "read_committed")),
    "max.partition.fetch.bytes": Property("consumer", "fetch_bytes", _number(1)),
    "max.poll.interval.ms": Property("consumer", "max_poll_interval_ms", _number(1)),
}


class ClientProperties(NamedTuple):
    """How a command reaches the brokers; `given` has the settings of -X and the file, by Kafka's names."""

    bootstrap: str
    timeout_s: float
    given: Mapping[str, str]

    @property
    def timeout_ms(self) -> int:
        return int(self.timeout_s * 1000)

    def arguments(self, role: Role) -> dict[str, Any]:
        """The given arguments of `Client`, `Client.producer` or `Client.consumer`; the client has some always."""
        found = {
            PROPERTIES[name].argument: PROPERTIES[name].parse(text)
            for name, text in self.given.items()
            if PROPERTIES[name].role == role
        }
        if role != "client":
            return found
        connect_timeout_ms = min(self.timeout_ms, CONNECT_TIMEOUT_MS_MAX)
        defaults = {"client_id": "levada-cli", "connect_timeout_ms": connect_timeout_ms}
        return defaults | found | {"bootstrap": self.bootstrap, "request_timeout_ms": self.timeout_ms}

    def spark_options(self) -> dict[str, str]:
        """The given settings of the client as options of `format("levada")`, without the servers."""
        client = {name: text for name, text in self.given.items() if PROPERTIES[name].role == "client"}
        return {f"kafka.{name}": text for name, text in client.items() if name != "bootstrap.servers"}


def client_properties(ctx: click.Context) -> ClientProperties:
    """The client settings of a command line: flags override -X, which overrides the file, which overrides variables."""
    given: dict[str, str] = {}
    file = ctx.params.get("properties_file")
    if file:
        from levada.config.properties import parse

        given |= _checked(parse(read_properties(file)), file)
    given |= _checked(parse_settings(ctx.params.get("client_settings") or (), "-X"), "-X")
    if not ctx.resilient_parsing:  # completion prints no warnings
        _warn_of_unused(given, ctx.command.name)
    given = {name: text for name, text in given.items() if name in PROPERTIES}
    bootstrap = ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP
    if "bootstrap.servers" in given and ctx.get_parameter_source("bootstrap") is not ParameterSource.COMMANDLINE:
        bootstrap = given["bootstrap.servers"]
    timeout_s = ctx.params.get("timeout") or DEFAULT_TIMEOUT_S
    if "request.timeout.ms" in given and ctx.get_parameter_source("timeout") is not ParameterSource.COMMANDLINE:
        timeout_s = int(given["request.timeout.ms"]) / 1000
    return ClientProperties(bootstrap, timeout_s, given)


def _checked(given: Mapping[str, str], source: str) -> dict[str, str]:
    """The given settings, by Java's names; CommandError for an unknown name or an invalid value."""
    found: dict[str, str] = {}
    for name, text in ((name, text.strip()) for name, text in given.items()):
        if (name, text.upper()) == ("security.protocol", "PLAINTEXT"):
            continue
        if name.startswith(SECURITY_PREFIXES):
            hint = "try: without it, on a PLAINTEXT listener"
            raise CommandError(f"{source}: {name}: the client does not support TLS and SASL yet", EXIT_USAGE, hint)
        known = PROPERTIES.get(ALIASES.get(name, name))
        if known is None and name not in UNUSED and not name.startswith(UNUSED_PREFIXES):
            similar = did_you_mean(name, [*PROPERTIES, *ALIASES, *UNUSED])
            hint = f"try: one of {', '.join(PROPERTIES)}"
            raise CommandError(f"{source}: no client setting {name}{similar}", EXIT_USAGE, hint)
        found[ALIASES.get(name, name)] = text
        try:
            if known is not None:
                known.parse(text)
        except ValueError as error:
            raise CommandError(f"{source}: {name}={text}: {error}", EXIT_USAGE) from None
    return found


def _warn_of_unused(given: Iterable[str], command: str | None) -> None:
    """Name the settings that the command does not use, in one line."""
    roles = {"client", {"produce": "producer", "consume": "consumer"}.get(command or "")}
    unused = [name for name in given if name not in PROPERTIES or PROPERTIES[name].role not in roles]
    if unused:
        verb = "has" if len(unused) == 1 else "have"
        click.echo(f"warning: {', '.join(unused)} {verb} no effect here", err=True)


def parse_settings(pairs: Iterable[str], hint: str) -> dict[str, str]:
    """`key=value` pairs."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{pair!r} is not key=value", param_hint=hint)
        settings[key.strip()] = value
    return settings


def read_properties(path: str) -> str:
    """The text of a properties file, in UTF-8 or, as older Java wrote it, in Latin-1."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def complete_properties(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of client settings for shell completion."""
    return matching((f"{name}=" for name in PROPERTIES), incomplete)

"""Answers options of kcat and of Kafka's console tools with those of Levada."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

import click

from levada.cli.errors import EXIT_USAGE, CommandError

_CONSUME = "try: levada consume TOPIC..., without "
_PRODUCE = "try: levada produce TOPIC, without "
_METADATA = "try: levada cluster describe, levada topic list, levada topic describe TOPIC"
_OFFSETS = "try: levada consume TOPIC --from s@TIME -c 1 -f '%o\\n'"
_MEMBER = "try: levada consume --group GROUP TOPIC..."

# The options of other tools by command, with their answers; of several options the first one here is answered.
HINTS: Mapping[str, Mapping[str, str]] = {
    "levada": {
        "-C": "try: levada consume TOPIC",
        "-P": "try: levada produce TOPIC",
        "-G": _MEMBER,
        "-L": _METADATA,
        "-Q": _OFFSETS,
        "-J": "try: levada consume TOPIC -o jsonl",
        "-t": "try: levada consume TOPIC, or levada produce TOPIC",
        "-X": "try: levada COMMAND -X KEY=VALUE, after the command",
        "-F": "try: levada COMMAND -F FILE, after the command",
        "-b": "try: levada COMMAND -b HOST:PORT, after the command",
        "--bootstrap-server": "try: levada COMMAND -b HOST:PORT, after the command",
    },
    "consume": {
        "-C": _CONSUME + "-C",
        "-G": _MEMBER,
        "-P": "try: levada produce TOPIC",
        "-L": _METADATA,
        "-Q": _OFFSETS,
        "-J": "try: -o jsonl",
        "-t": _CONSUME + "-t",
        "-O": "try: -f '%o %s\\n'",
        "-r": 'try: format("levada") of Spark, which decodes with a schema registry',
        "-s": "try: -o jsonl; values are printed as they are",
        "-u": "try: without -u, records are printed as they come",
        "--include": "try: --pattern REGEX",
        "--whitelist": "try: --pattern REGEX",
        "--from-beginning": "try: without it, that is the default; --from end prints new records only",
        "--max-messages": "try: -c COUNT",
        "--isolation-level": "try: --committed",
        "--timeout-ms": "try: -e, which stops at the end",
        "--formatter": "try: -f FORMAT, or -o jsonl",
        "--formatter-property": "try: -K TEXT for keys, or -f FORMAT",
        "--formatter-config": "try: -K TEXT for keys, or -f FORMAT; formatters are not configured by a file",
        "--property": "try: -K TEXT for keys, or -f FORMAT",
        "--skip-message-on-error": "try: without it, records are printed as they are, so none fails",
        "--key-deserializer": "try: -o jsonl; keys are printed as they are",
        "--value-deserializer": "try: -o jsonl; values are printed as they are",
        "--topic": _CONSUME + "--topic",
        "--consumer.config": "try: --config FILE",
        "--consumer-property": "try: -X KEY=VALUE",
    },
    "produce": {
        "-C": "try: levada consume TOPIC",
        "-P": _PRODUCE + "-P",
        "-G": _MEMBER,
        "-L": _METADATA,
        "-t": _PRODUCE + "-t",
        "--property": "try: -K TEXT for keys",
        "--line-reader": "try: -K TEXT for keys, or -i jsonl; readers are not loaded from classes",
        "--reader-property": "try: -K TEXT for keys",
        "--reader-config": "try: -K TEXT for keys, or -i jsonl; readers are not configured by a file",
        "--compression-codec": "try: -z CODEC",
        "--request-required-acks": "try: --acks 0, 1 or all",
        "--request-timeout-ms": "try: -X request.timeout.ms=MS",
        "--retry-backoff-ms": "try: -X retry.backoff.ms=MS",
        "--metadata-expiry-ms": "try: -X metadata.max.age.ms=MS",
        "--max-block-ms": "try: --timeout SECONDS, which bounds the wait for brokers, or -X delivery.timeout.ms=MS",
        "--batch-size": "try: -X batch.size=BYTES",
        "--max-partition-memory-bytes": "try: -X batch.size=BYTES",
        "--max-memory-bytes": "try: -X buffer.memory=BYTES",
        "--message-send-max-retries": "try: -X delivery.timeout.ms=MS, which bounds retries by time",
        "--socket-buffer-size": "there is no such setting: the operating system chooses the size",
        "--sync": "try: -X linger.ms=0 -X max.in.flight.requests.per.connection=1",
        "--topic": _PRODUCE + "--topic",
        "--broker-list": "try: -b HOST:PORT",
        "--producer.config": "try: --config FILE",
        "--producer-property": "try: -X KEY=VALUE",
    },
    "topic": {
        "--list": "try: levada topic list",
        "--create": "try: levada topic create TOPIC",
        "--describe": "try: levada topic describe TOPIC",
        "--alter": "try: levada topic alter TOPIC",
        "--delete": "try: levada topic delete TOPIC",
        "--under-replicated-partitions": "try: levada cluster health",
        "--unavailable-partitions": "try: levada cluster health",
        "--topic": "try: levada topic describe TOPIC, without --topic",
        "--exclude-internal": "try: without it, that is the default",
    },
    "group": {
        "--list": "try: levada group list",
        "--reset-offsets": "try: levada group reset GROUP",
        "--delete": "try: levada group delete GROUP",
        "--describe": "try: levada group describe GROUP, or levada group lag GROUP",
        "--members": "try: levada group describe GROUP",
        "--state": "try: levada group list",
        "--offsets": "try: levada group lag GROUP",
        "--all-groups": "try: levada group lag, of all groups",
        "--group": "try: levada group describe GROUP, without --group",
    },
}
# In every command.
COMMON = {
    "-d": "there is no such option: the client has no debug log; levada.log.level sets the broker's",
    "-m": "try: --timeout SECONDS",
    "-E": "there is no such option: the client retries what can be retried, and ends at other errors",
    "-v": "there is no such option: errors are printed in full",
    "--bootstrap-server": "try: -b HOST:PORT",
    "--command-config": "try: --config FILE",
    "--command-property": "try: -X KEY=VALUE",
    "--zookeeper": "try: -b HOST:PORT",
}


def answer(error: click.NoSuchOption, arguments: Sequence[str]) -> CommandError | None:
    """The error with the hint for an option of another tool, and with topic and group of the arguments."""
    _, *words = error.ctx.command_path.split() if error.ctx else ("",)
    hints = HINTS.get(words[0] if words else "levada", {})
    if error.option_name not in {*hints, *COMMON}:
        return None
    before = _before_subcommand(error.ctx, arguments)
    option = next((known for known in hints if known in before), error.option_name)
    hint = hints.get(option) or COMMON[option]
    for name, flags in (("TOPIC", ("-t", "--topic")), ("GROUP", ("-G", "--group"))):
        value = next((value for flag, value in pairwise(arguments) if flag in flags), "")
        if value:
            hint = hint.replace(f"{name}...", name).replace(name, value)
    return CommandError(f"no such option: {option}", EXIT_USAGE, hint)


def _before_subcommand(ctx: click.Context | None, arguments: Sequence[str]) -> list[str]:
    """The arguments without a subcommand of this context and its options, which are right."""
    subcommands = ctx.command.list_commands(ctx) if ctx and isinstance(ctx.command, click.Group) else ()
    return list(takewhile(lambda argument: argument not in subcommands, arguments))


class OutputType(click.Choice[str]):
    """The output of `consume`; kcat's -o is a position, for which the error has the flag."""

    def __init__(self) -> None:
        super().__init__(["table", "json", "jsonl"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        hint = flag_of_position(str(value))
        if hint:
            raise CommandError(f"-o is the output, and {value} a position", EXIT_USAGE, f"try: {hint}")
        return super().convert(value, param, ctx)


def flag_of_position(text: str) -> str:
    """The flag for a value of kcat's -o; empty if it is none."""
    if text == "stored":
        return "--group GROUP, which continues at the committed offsets"
    if text.startswith("e@"):
        return f"--until s@{text[2:]}"
    is_position = text in ("beginning", "earliest", "end", "latest") or text.startswith("s@")
    return f"--from {text}" if is_position or text.removeprefix("-").isdecimal() else ""

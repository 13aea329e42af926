"""Answers options of kcat and of Kafka's console tools with those of Levada."""

from collections.abc import Mapping
from typing import Any

import click

from levada.cli.errors import EXIT_USAGE, CommandError

_CONSUME = "try: levada consume TOPIC..., without "
_PRODUCE = "try: levada produce TOPIC, without "

ROOT = {
    "-C": "try: levada consume TOPIC",
    "-G": "try: levada consume --group GROUP TOPIC...",
    "-P": "try: levada produce TOPIC",
    "-L": "try: levada cluster describe, levada topic list, levada topic describe TOPIC",
    "-Q": "try: levada consume TOPIC --from s@TIME -c 1 -f '%o\\n'",
    "-b": "try: levada COMMAND -b HOST:PORT, after the command",
}
CONSUME = {
    "-C": _CONSUME + "-C",
    "-G": "try: levada consume --group GROUP TOPIC...",
    "-J": "try: -o jsonl",
    "-P": "try: levada produce TOPIC",
    "-t": _CONSUME + "-t",
    "-O": "try: -f '%o %s\\n'",
    "-r": 'try: format("levada") of Spark, which decodes with a schema registry',
    "-s": "try: -o jsonl; values are printed as they are",
    "-u": "try: without -u, records are printed as they come",
    "--topic": _CONSUME + "--topic",
    "--include": "try: --pattern REGEX",
    "--whitelist": "try: --pattern REGEX",
    "--from-beginning": "try: without it, that is the default; --from end prints new records only",
    "--max-messages": "try: -c COUNT",
    "--isolation-level": "try: --committed",
    "--timeout-ms": "try: -e, which stops at the end",
    "--formatter": "try: -f FORMAT, or -o jsonl",
    "--formatter-property": "try: -K TEXT for keys, or -f FORMAT",
    "--property": "try: -K TEXT for keys, or -f FORMAT",
    "--key-deserializer": "try: -o jsonl; keys are printed as they are",
    "--value-deserializer": "try: -o jsonl; values are printed as they are",
    "--bootstrap-server": "try: -b HOST:PORT",
    "--consumer.config": "try: --config FILE",
    "--consumer-property": "try: -X KEY=VALUE",
    "--command-config": "try: --config FILE",
    "--command-property": "try: -X KEY=VALUE",
}
PRODUCE = {
    "-C": "try: levada consume TOPIC",
    "-P": _PRODUCE + "-P",
    "-t": _PRODUCE + "-t",
    "--topic": _PRODUCE + "--topic",
    "--property": "try: -K TEXT for keys",
    "--reader-property": "try: -K TEXT for keys",
    "--compression-codec": "try: -z CODEC",
    "--request-required-acks": "try: --acks 0, 1 or all",
    "--request-timeout-ms": "try: -X request.timeout.ms=MS",
    "--batch-size": "try: -X batch.size=BYTES",
    "--max-memory-bytes": "try: -X buffer.memory=BYTES",
    "--message-send-max-retries": "try: -X delivery.timeout.ms=MS, which bounds retries by time",
    "--sync": "try: -X linger.ms=0 -X max.in.flight.requests.per.connection=1",
    "--broker-list": "try: -b HOST:PORT",
    "--bootstrap-server": "try: -b HOST:PORT",
    "--producer.config": "try: --config FILE",
    "--producer-property": "try: -X KEY=VALUE",
    "--command-config": "try: --config FILE",
    "--command-property": "try: -X KEY=VALUE",
}


class Hints(click.Command):
    """A command whose `hints` answer options that other tools have."""

    hints: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in self.hints:
                raise
            hint = self.hints[error.option_name]
            raise CommandError(f"no such option: {error.option_name}", EXIT_USAGE, hint) from None


class ConsumeCommand(Hints):
    """`levada consume`."""

    hints = CONSUME


class ProduceCommand(Hints):
    """`levada produce`."""

    hints = PRODUCE


class OutputType(click.Choice[str]):
    """The output of `consume`; kcat's -o is a position, for which the error has the flag."""

    def __init__(self) -> None:
        super().__init__(["table", "json", "jsonl"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        hint = _flag_of_position(str(value))
        if hint:
            raise CommandError(f"-o is the output, and {value} a position", EXIT_USAGE, f"try: {hint}")
        return super().convert(value, param, ctx)


def _flag_of_position(text: str) -> str:
    """The flag for a value of kcat's -o; empty if it is none."""
    if text == "stored":
        return "--group GROUP, which continues at the committed offsets"
    if text.startswith("e@"):
        return f"--until s@{text[2:]}"
    is_position = text in ("beginning", "earliest", "end", "latest") or text.startswith("s@")
    return f"--from {text}" if is_position or text.removeprefix("-").isdecimal() else ""

"""`levada consume`: prints the records of a topic as text, columns or JSON."""

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import click

from levada.cli.options import (
    TimeType,
    connection_options,
    notice,
    require_topic,
    topic_argument,
    with_client,
)
from levada.cli.output import printable
from levada.cli.records.codecs import Formatter, formatter, to_json
from levada.cli.settings import ClientProperties

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.consumer.consumer import Consumer, Start
    from levada.model import ConsumerRecord

POLL_MS = 200
RawOutput = Literal["table", "json", "jsonl"]


class StartType(click.ParamType["Start"]):
    """A start position in kcat's syntax."""

    name = "start"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "Start":
        text = str(value)
        if text in ("beginning", "earliest"):
            return "earliest"
        if text in ("end", "latest"):
            return "latest"
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        if text.startswith("s@"):
            return TimeType().convert(text[2:], param, ctx)
        return self.fail(f"{text!r} is not beginning, end, an offset, -COUNT or s@TIME", param, ctx)


class Printer:
    """Writes records to standard output."""

    def __init__(self, output: RawOutput | None, fill: Formatter) -> None:
        self._output = output
        self._fill = fill
        self._out = sys.stdout.buffer
        self._count = 0
        if output == "table":
            self._out.write(b"PARTITION       OFFSET  TIME                     KEY               VALUE\n")

    def write(self, record: "ConsumerRecord") -> None:
        if self._output is None:
            self._out.write(self._fill(record))
        elif self._output == "table":
            self._out.write(_row(record))
        else:
            import json

            document = json.dumps(to_json(record), ensure_ascii=False).encode()
            if self._output == "json":
                self._out.write((b",\n  " if self._count else b"[\n  ") + document)
            else:
                self._out.write(document + b"\n")
        self._count += 1

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        if self._output == "json":
            self._out.write(b"\n]\n" if self._count else b"[]\n")
        self._out.flush()


def _row(record: "ConsumerRecord") -> bytes:
    when = datetime.fromtimestamp(max(record.timestamp, 0) / 1000).astimezone()
    key, value = (_printable(part) for part in (record.key, record.value))
    stamp = when.strftime("%Y-%m-%d %H:%M:%S.%f")[:23]
    return f"{record.partition:9}{record.offset:13}  {stamp}  {key:<16}  {value}\n".encode()


def _printable(value: bytes | None) -> str:
    return "-" if value is None else printable(value.decode(errors="replace"))


@click.command()
@topic_argument
@click.option("--from", "start", type=StartType(), metavar="WHERE", default="beginning", show_default=True,
              help="beginning, end, an offset, -COUNT (the last records of each partition), or s@TIME "
              "(milliseconds since 1970 or 2026-05-01T12:00).")  # fmt: skip
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Stop at the end of the topic.")
@click.option("-f", "--format", "template", help="%s value, %S its length, %R the same in 4 bytes, %k key, %K its "
              "length, %t topic, %p partition, %o offset, %T timestamp, %h headers.")  # fmt: skip
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Print key, TEXT and value.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", help="The end of a record.  [default: \\n]")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for keys and values that are null.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "jsonl"]), help="Print columns or JSON.")
@click.option("--committed", is_flag=True, help="Print committed records only (read_committed).")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the end offsets.")
@connection_options
def consume(
    topic: str,
    start: "Start",
    partitions: tuple[int, ...],
    count: int | None,
    exit_at_end: bool,
    template: str | None,
    key_delimiter: str | None,
    delimiter: str,
    show_null: bool,
    output: RawOutput | None,
    committed: bool,
    quiet: bool,
    properties: ClientProperties,
) -> None:
    """Print the records of a topic until Ctrl-C, the end (-e) or a count (-c).

    \b
    Examples:
      levada consume orders
      levada consume orders --from -10 -e
      levada consume orders --from s@2026-05-01T12:00 -o jsonl
      levada consume orders -e -K: | sort | uniq -c
      levada consume orders -f '%p:%o %T %k => %s\\n'
    """
    fill = _fill(template, key_delimiter, delimiter, b"NULL" if show_null else b"")

    async def work(client: "Client") -> None:
        await require_topic(client, topic)
        consumer = client.consumer(
            *(() if partitions else (topic,)),
            assign=[(topic, partition) for partition in partitions],
            start=start,
            isolation="read_committed" if committed else "read_uncommitted",
        )
        printer = Printer(output, fill)
        async with consumer:
            try:
                await _print_all(consumer, printer, count, exit_at_end)
            finally:
                printer.end()
            if exit_at_end and not quiet and sys.stderr.isatty():
                ends = ", ".join(f"{part} at {consumer.position(part)}" for part in consumer.assignment)
                notice(f"% reached the end: {ends}")

    with_client(properties, work)


def _fill(template: str | None, key_delimiter: str | None, delimiter: str, null: bytes) -> Formatter:
    if template is None:
        between = "" if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%")
        template = between + "%s" + delimiter.replace("%", "%%")
    try:
        return formatter(template, null)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-f") from None


async def _print_all(consumer: "Consumer", printer: Printer, count: int | None, exit_at_end: bool) -> None:
    ends = await consumer.end_offsets() if exit_at_end else {}
    printed = 0
    while not exit_at_end or any(consumer.position(part) < end for part, end in ends.items()):
        for record in await consumer.poll(POLL_MS if exit_at_end else None):
            printer.write(record)
            printed += 1
            if printed == count:
                return
        printer.flush()

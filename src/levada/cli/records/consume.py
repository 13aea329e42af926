"""`levada consume`: prints the records of topics as text, columns or JSON, alone or as a member of a group."""

import asyncio
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import click

from levada.cli.errors import EXIT_NOT_FOUND, EXIT_TIMEOUT, CommandError
from levada.cli.options import (
    compile_pattern,
    complete_groups,
    complete_topics,
    connection_options,
    notice,
    require_topic,
    with_client,
)
from levada.cli.output import printable
from levada.cli.records.codecs import Formatter, formatter, to_json
from levada.cli.records.failures import Failures, explained, poll, readable
from levada.cli.records.positions import (
    OutputOrPosition,
    StartType,
    Until,
    UntilType,
    check_offset,
    notice_of_wait,
    outside_log,
    stop_offsets,
)
from levada.cli.settings import ClientProperties
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.consumer.consumer import Consumer, Start
    from levada.client.consumer.group_consumer import GroupConsumer
    from levada.model import ConsumerRecord

POLL_MS = 200
TOPIC_WIDTH = 24
GROUP_OPTIONS = (
    "commit_interval_ms",
    "delivery",
    "instance_id",
    "max_poll_interval_ms",
)  # of a consumer in a group only
RawOutput = Literal["table", "json", "jsonl"]


class Printer:
    """Writes records to standard output."""

    def __init__(self, output: RawOutput | None, fill: Formatter, *, with_topic: bool = False) -> None:
        self._output = output
        self._fill = fill
        self._out = sys.stdout.buffer
        self._count = 0
        self._with_topic = with_topic
        if output == "table":
            topic = f"{'TOPIC':<{TOPIC_WIDTH}}  ".encode() if with_topic else b""
            self._out.write(topic + b"PARTITION       OFFSET  TIME                     KEY               VALUE\n")

    def write(self, record: "ConsumerRecord") -> None:
        if self._output is None:
            self._out.write(self._fill(record))
        elif self._output == "table":
            topic = f"{record.topic:<{TOPIC_WIDTH}}  ".encode() if self._with_topic else b""
            self._out.write(topic + _row(record))
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
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--pattern", metavar="REGEX", help="Also the topics whose whole names match; with --group also later ones."
)
@click.option("--group", "-g", metavar="GROUP", shell_complete=complete_groups,
              help="Read as a member of this group: continue at its committed offsets, and commit.")  # fmt: skip
@click.option("--from", "--offset", "start", type=StartType(), metavar="WHERE",
              help="beginning, end, an offset, -COUNT (the last records of each partition), or s@TIME "
              "(milliseconds since 1970 or 2026-05-01T12:00).  [default: beginning]")  # fmt: skip
@click.option("--until", type=UntilType(), metavar="WHERE", help="Stop before this offset, or before s@TIME.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Stop at the end of the topics.")
@click.option("-f", "--format", "template", help="%s value, %S its length, %R the same in 4 bytes, %k key, %K its "
              "length, %t topic, %p partition, %o offset, %T timestamp, %h headers.")  # fmt: skip
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Print key, TEXT and value.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", help="The end of a record.  [default: \\n]")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for keys and values that are null.")
@click.option("-o", "--output", type=OutputOrPosition(), help="Print columns or JSON.")
@click.option("--committed", is_flag=True, help="Print committed records only (read_committed).")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the end offsets.")
@connection_options
def consume(
    template: str | None,
    key_delimiter: str | None,
    delimiter: str,
    show_null: bool,
    output: RawOutput | None,
    quiet: bool,
    properties: ClientProperties,
    **given: Any,
) -> None:
    """Print the records of topics until Ctrl-C, the end (-e), a position (--until) or a count (-c).

    \b
    Examples:
      levada consume orders
      levada consume orders --from -10 -e
      levada consume orders --from 100 --until 200 -p 0
      levada consume orders --from s@2026-05-01T12:00 -o jsonl
      levada consume orders payments --pattern 'shop-.*' -f '%t %s\\n'
      levada consume --group billing orders
      levada consume orders -e -K: | sort | uniq -c
      levada consume orders -f '%p:%o %T %k => %s\\n'
    """
    if output is not None and not (template is None and key_delimiter is None):
        raise click.UsageError("-o excludes -f and -K: it decides the format")
    wanted = _selection(properties, quiet=quiet, **given)
    fill = _fill(template, key_delimiter, delimiter, b"NULL" if show_null else b"")
    several = len(wanted.topics) > 1 or wanted.pattern is not None

    async def work(client: "Client") -> None:
        failures = Failures(notices=not wanted.exit_at_end)
        consumer = await _new_consumer(client, wanted, failures)
        printer = Printer(output, fill, with_topic=several)
        async with consumer:
            try:
                await _until_output_closes(_print_all(client, consumer, printer, wanted, failures))
            finally:
                printer.end()
            failures.check(consumer.assignment)
            if wanted.exit_at_end and not quiet and sys.stderr.isatty():
                ends = ", ".join(f"{part} at {consumer.position(part)}" for part in consumer.assignment)
                notice(f"% reached the end: {ends}")

    with_client(properties, work)


@dataclass(frozen=True)
class Selection:
    """The records to print."""

    topics: tuple[str, ...]
    pattern: str | None
    partitions: tuple[int, ...]
    group: str | None
    start: "Start"
    until: Until | None
    count: int | None
    exit_at_end: bool
    quiet: bool
    options: dict[str, Any]  # of the consumer
    timeout_s: float


def _selection(
    properties: ClientProperties, *, committed: bool, group: str | None, start: "Start | None", **given: Any
) -> Selection:
    """What the command line selects; a usage error if its parts exclude each other."""
    options = properties.arguments("consumer")
    group = group or options.pop("group", None)
    reset = options.pop("start", None)  # auto.offset.reset
    start = (reset or "earliest") if start is None else start
    options["delivery"] = "at_least_once" if options.pop("auto_commit", True) else "manual"
    if committed:
        options["isolation"] = "read_committed"
    if not given["topics"] and given["pattern"] is None:
        raise click.UsageError("name a topic, or --pattern", click.get_current_context())
    if group is not None and (given["until"] is not None or given["partitions"]):
        raise click.UsageError("--group excludes --until and -p: the group shares the partitions and keeps the offsets")
    if isinstance(start, int) and isinstance(given["until"], int) and 0 <= given["until"] <= start:
        raise click.UsageError(f"no offset is from {start} on and before {given['until']}")
    if group is not None:
        options["reset"] = reset
    else:
        options = {name: value for name, value in options.items() if name not in GROUP_OPTIONS}
    return Selection(**given, group=group, start=start, options=options, timeout_s=properties.timeout_s)


async def _new_consumer(client: "Client", wanted: Selection, failures: Failures) -> "Consumer":
    for topic in wanted.topics:
        if not re.fullmatch(r"[a-zA-Z0-9._-]+", topic):
            hint = f"try: levada consume --pattern {shlex.quote(topic)}"
            raise CommandError(f"no topic can have the name {printable(topic)}", EXIT_NOT_FOUND, hint)
        await require_topic(client, topic, f"try: levada topic create {topic}")
    options = {"start": wanted.start} | wanted.options
    if wanted.group is not None:
        return client.consumer(*wanted.topics, group=wanted.group, pattern=wanted.pattern, **options)
    topics = [*wanted.topics, *(await _matching(client, wanted.pattern) if wanted.pattern is not None else ())]
    return client.consumer(assign=await readable(client, topics, wanted.partitions, failures), **options)


async def _matching(client: "Client", pattern: str) -> list[str]:
    """The topics of a pattern without hidden ones; CommandError if there are none."""
    expression = compile_pattern(pattern, "--pattern")
    topics = (await client.metadata()).topics
    found = sorted(name for name, info in topics.items() if expression.fullmatch(name) and not info.is_hidden)
    if not found:
        raise CommandError(f"no topic matches {pattern}", EXIT_NOT_FOUND, "try: levada topic list")
    return found


def _fill(template: str | None, key_delimiter: str | None, delimiter: str, null: bytes) -> Formatter:
    if template is None:
        between = "" if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%")
        template = between + "%s" + delimiter.replace("%", "%%")
    try:
        return formatter(template, null)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-f") from None


async def _print_all(
    client: "Client", consumer: "Consumer", printer: Printer, wanted: Selection, failures: Failures
) -> None:
    from levada.client.consumer.group_consumer import GroupConsumer

    if isinstance(consumer, GroupConsumer):
        try:
            await _print_as_member(consumer, printer, wanted)
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                raise await outside_log(client, consumer) from None
            raise explained(error) from None
        return
    if isinstance(wanted.start, int) and wanted.start >= 0:
        await check_offset(client, consumer, wanted.start)
    stops = await stop_offsets(client, consumer, wanted.until, wanted.exit_at_end)
    if not wanted.quiet:
        await notice_of_wait(consumer, stops)
    printed = 0
    while not _is_done(consumer, stops, failures):
        for record in await poll(consumer, POLL_MS if stops else None, failures):
            if stops and record.offset >= stops[TopicPartition(record.topic, record.partition)]:
                continue
            printer.write(record)
            printed += 1
            if printed == wanted.count:
                return
        printer.flush()


def _is_done(consumer: "Consumer", stops: Mapping[TopicPartition, int], failures: Failures) -> bool:
    """Whether each partition has failed, or is at its stop offset if there is one."""
    left = (part for part in consumer.assignment if part not in failures)
    return not any(not stops or consumer.position(part) < stops[part] for part in left)


async def _print_as_member(consumer: "GroupConsumer", printer: Printer, wanted: Selection) -> None:
    """Print the records of the assigned partitions; those that are printed are committed, and no others."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)  # leave the group, as at Ctrl-C
    deadline, printed = loop.time() + wanted.timeout_s, 0
    while True:
        records = await consumer.poll(POLL_MS)
        for record in records:
            printer.write(record)
            printed += 1
            if printed == wanted.count:
                consumer.seek((record.topic, record.partition), record.offset + 1)
                break
        printer.flush()
        if printed == wanted.count or (wanted.exit_at_end and not records and await _at_end(consumer)):
            return
        if wanted.exit_at_end and not consumer.assignment and loop.time() > deadline:
            raise CommandError(
                f"the group assigned no partition to this member within {wanted.timeout_s:g} s",
                EXIT_TIMEOUT,
                f"try: levada group describe {wanted.group}, its members may have all partitions",
            )


async def _at_end(consumer: "GroupConsumer") -> bool:
    """Whether the member has partitions, and has read all of them to the end."""
    if not consumer.assignment:
        return False
    ends = await consumer.end_offsets()
    return all(consumer.position(part) >= end for part, end in ends.items() if part in consumer.assignment)


async def _until_output_closes(work: Awaitable[None]) -> None:
    """Wait for `work`, or raise BrokenPipeError when the reader of standard output closes the pipe.

    Writing to it would find out too late: `| head -1` has its line, and the next record may never come.
    """
    try:
        descriptor = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        is_pipe = False
    if not is_pipe:
        return await work
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)

    def closed() -> None:
        loop.remove_reader(descriptor)
        scope.reschedule(loop.time())

    try:
        async with scope:
            loop.add_reader(descriptor, closed)  # the writing end of a pipe is readable once it is broken
            await work
    except TimeoutError:
        if scope.expired():
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(descriptor)

"""`levada produce`: sends lines, files or JSON as records."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import click

from levada.cli.errors import DENIED, EXIT_DENIED, EXIT_NOT_FOUND, EXIT_USAGE, CommandError, did_you_mean, for_topic
from levada.cli.options import connection_options, notice, topic_argument, with_client
from levada.cli.output import discard_output
from levada.cli.records.codecs import from_json, parse_json, unescape
from levada.cli.settings import ClientProperties, parse_acks, parse_settings
from levada.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from levada.client.client import Client
    from levada.client.producer.accumulator import RecordMetadata
    from levada.client.producer.producer import Compression, Producer, ProducerOptions

AUTO_CREATE = "auto.create.topics.enable"
READ_BYTES = 65_536
RECORD_BYTES_MAX = 100 * 1024 * 1024


@click.command()
@topic_argument
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("-l", "--lines", is_flag=True, help="Send each line of the files as a record, not each file.")
@click.option("-k", "--key", help="The key of every record.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="The separator of key and value in a line.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", help="The end of a record.  [default: \\n]")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition; by default by key, or spread.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
              help="The compression of batches.  [default: none]")  # fmt: skip
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="Send empty keys and values as null.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option("-T", "--tee", is_flag=True, help="Also print the records.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]),
              help="The acknowledgements that a record needs.  [default: all]")  # fmt: skip
@click.option("-i", "--input", "input_format", type=click.Choice(["raw", "jsonl"]), default="raw", show_default=True,
              help="jsonl reads what `levada consume -o jsonl` writes.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Do not print the number of records.")
@connection_options
def produce(topic: str, properties: ClientProperties, quiet: bool, **given: Any) -> None:
    """Send each line of standard input as a record, or each FILE as one.

    \b
    Examples:
      echo hello | levada produce orders
      levada produce orders -K: < pairs.txt
      levada produce images *.png -H type=png
      levada produce logs -l access.log -z zstd
      levada topic create new -p 3  # as many partitions as the old one has
      levada consume old -e -o jsonl | levada produce new -i jsonl
    """
    flags = {name: given.pop(name) for name in ("acks", "compression")}
    records = RecordReader(**given)
    options = _producer_options(properties, flags)

    async def work(client: "Client") -> int:
        await _require_writable(client, topic)
        return await _send_all(client, topic, records, options)

    try:
        sent = with_client(properties, work)
    except KafkaError as error:
        raise for_topic(error, topic) from None
    if not quiet and sys.stderr.isatty():
        notice(f"% sent {_count(sent)} to {topic}")


def _producer_options(properties: ClientProperties, flags: Mapping[str, str | None]) -> "ProducerOptions":
    """The options of the producer: those of flags, -X and --config, in this order."""
    given = {"delivery_timeout_ms": properties.timeout_ms} | properties.arguments("producer")
    options = cast("ProducerOptions", given)
    if flags["acks"] is not None:
        options["acks"] = parse_acks(flags["acks"])
    if flags["compression"] is not None:
        options["compression"] = cast("Compression", flags["compression"])
    return options


async def _require_writable(client: "Client", topic: str) -> None:
    """Let the broker create a missing topic; CommandError with the reason if it does not."""
    found = (await client.metadata([topic], create=True)).topics.get(topic)
    if found is None or found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        await _explain_missing(client, topic)
    await client.topic(topic, create=True)


async def _explain_missing(client: "Client", topic: str) -> None:
    """Raise CommandError if the broker refuses to create a topic, or creates none by itself."""
    cluster = await client.metadata()
    hint = f"try: levada topic create {topic}"
    try:
        await client.admin.create_topic(topic, validate_only=True)
    except KafkaError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return  # another client has created it meanwhile
        if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
            hint += f" -r {len(cluster.brokers)}"
        why = f"the broker cannot create it: {error.detail} ({error.code.name})"
        code = EXIT_DENIED if error.code in DENIED else EXIT_NOT_FOUND
        raise CommandError(f"topic {topic} does not exist, and {why}", code, hint) from None
    if await _creates_no_topics(client, min(cluster.brokers)):
        why = f"the broker creates none by itself ({AUTO_CREATE}=false)"
        message = f"no such topic: {topic}, and {why}{did_you_mean(topic, cluster.topics)}"
        raise CommandError(message, EXIT_NOT_FOUND, hint)


async def _creates_no_topics(client: "Client", node: int) -> bool:
    """Whether the broker is known to create no topics by itself; its settings may be hidden."""
    try:
        entries = await client.admin.describe_configs("broker", str(node), [AUTO_CREATE])
    except KafkaError as error:
        if error.code in DENIED:
            return False
        raise
    return any(entry.name == AUTO_CREATE and entry.value == "false" for entry in entries)


async def _send_all(client: "Client", topic: str, reader: "RecordReader", options: "ProducerOptions") -> int:
    failures: list[BaseException] = []

    def delivered(sending: "asyncio.Future[RecordMetadata]") -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            failures.append(error)

    sent = 0
    try:
        new_producer = client.producer(**options)
    except ValueError as error:  # options that exclude each other
        raise CommandError(str(error), EXIT_USAGE) from None
    async with new_producer as producer:
        try:
            async for record in reader.records():
                if record["partition"] is not None:
                    await _check_partition(client, topic, record["partition"])
                sending = await producer.send(topic, **record)
                sending.add_done_callback(delivered)
                sent += 1
                if failures or sent == reader.count:
                    break
        except CommandError as error:
            await _flush(producer)
            error.hint = "\n  ".join(filter(None, (f"sent before it: {_count(sent - len(failures))}", error.hint)))
            raise
        await _flush(producer)
    if failures:
        notice(f"% {len(failures)} of {sent} records were not acknowledged")
        raise failures[0]
    return sent


async def _flush(producer: "Producer") -> None:
    await producer.flush()
    await asyncio.sleep(0)  # let the callbacks of the last records run


def _count(records: int) -> str:
    return f"{records} {'record' if records == 1 else 'records'}"


async def _check_partition(client: "Client", topic: str, partition: int) -> None:
    """End the command unless the partition exists."""
    info = await client.topic(topic, create=True)
    if partition < len(info.partitions):
        return
    error = info.unknown_partition(partition)
    raise CommandError(
        f"{error.detail} ({error.code.name})",
        EXIT_NOT_FOUND,
        f"try: levada topic alter {topic} --partitions {partition + 1}, or more if other records need more",
    )


class RecordReader:
    """Reads records from files or standard input."""

    def __init__(
        self,
        *,
        files: tuple[str, ...],
        lines: bool,
        key: str | None,
        key_delimiter: str | None,
        delimiter: str,
        headers: tuple[str, ...],
        partition: int | None,
        empty_is_null: bool,
        count: int | None,
        tee: bool,
        input_format: str,
    ) -> None:
        self.count = count
        self._files = files
        self._whole_files = bool(files) and not lines and input_format == "raw"
        self._key = None if key is None else key.encode()
        self._key_delimiter = None if key_delimiter is None else unescape(key_delimiter)
        self._delimiter = b"\n" if input_format == "jsonl" else unescape(delimiter)
        self._headers = [(name, value.encode()) for name, value in parse_settings(headers, "-H").items()]
        self._partition = partition
        self._empty_is_null = empty_is_null
        self._tee = tee
        self._json = input_format == "jsonl"
        if not self._delimiter or self._key_delimiter == b"":
            raise click.UsageError("a delimiter must not be empty")

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        """The arguments of `Producer.send` for each record."""
        number = 0
        async for text in self._texts():
            number += 1
            if self._json and not text.strip():
                continue  # a blank line, with which some tools end their files
            record = self._from_json(text, number) if self._json else self._from_text(text)
            if self._tee:
                self._print(text)
            yield record

    def _print(self, text: bytes) -> None:
        try:
            sys.stdout.buffer.write(text + self._delimiter)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            discard_output()
            raise CommandError("the reader of standard output (-T) has closed it") from None

    async def _texts(self) -> AsyncIterator[bytes]:
        if not self._files:
            async for text in _split(sys.stdin.fileno(), self._delimiter):
                yield text
        for name in self._files:
            descriptor = os.open(name, os.O_RDONLY)
            try:
                if self._whole_files:
                    yield b"".join([chunk async for chunk in _chunks(descriptor)])
                    continue
                async for text in _split(descriptor, self._delimiter):
                    yield text
            finally:
                os.close(descriptor)

    def _from_text(self, text: bytes) -> dict[str, Any]:
        key, value = self._key, text
        if self._key_delimiter is not None and not self._whole_files:
            before, found, after = text.partition(self._key_delimiter)
            if found:
                key, value = before, after
        return {
            "key": self._null(key),
            "value": self._null(value),
            "headers": self._headers,
            "partition": self._partition,
        }

    def _from_json(self, text: bytes, number: int) -> dict[str, Any]:
        import json

        try:
            record = from_json(parse_json(text))
        except json.JSONDecodeError as error:
            raise CommandError(f"line {number} of the input: not JSON ({error.msg})", EXIT_USAGE) from None
        except RecursionError:
            raise CommandError(f"line {number} of the input: JSON that is nested too deeply", EXIT_USAGE) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"line {number} of the input: {error}", EXIT_USAGE) from None
        record["headers"] += self._headers
        if self._partition is not None:
            record["partition"] = self._partition
        if self._key is not None:
            record["key"] = self._key
        return record

    def _null(self, value: bytes | None) -> bytes | None:
        return None if self._empty_is_null and not value else value


async def _split(descriptor: int, delimiter: bytes) -> AsyncIterator[bytes]:
    """The texts between delimiters as they arrive; the text after the last one unless it is empty."""
    rest = b""
    async for chunk in _chunks(descriptor):
        *texts, rest = (rest + chunk).split(delimiter)
        for text in texts:
            yield text
        if len(rest) > RECORD_BYTES_MAX:
            raise CommandError(f"no delimiter within {RECORD_BYTES_MAX} bytes of input", hint="try: -D")
    if rest:
        yield rest


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """The bytes of a descriptor until its end. A daemon thread reads, so that Ctrl-C does not wait for a line."""
    loop = asyncio.get_running_loop()
    while True:
        result: asyncio.Future[bytes] = loop.create_future()
        Thread(target=_read, args=(descriptor, loop, result), daemon=True).start()
        chunk = await result
        if not chunk:
            return
        yield chunk


def _read(descriptor: int, loop: asyncio.AbstractEventLoop, result: "asyncio.Future[bytes]") -> None:
    try:
        chunk = os.read(descriptor, READ_BYTES)
    except OSError as error:
        _resolve(loop, result, result.set_exception, error)
    else:
        _resolve(loop, result, result.set_result, chunk)


def _resolve(
    loop: asyncio.AbstractEventLoop,
    result: "asyncio.Future[bytes]",
    resolve: Callable[[Any], None],
    value: object,
) -> None:
    try:
        loop.call_soon_threadsafe(lambda: None if result.done() else resolve(value))
    except RuntimeError:
        pass  # the event loop is closed: the command has ended

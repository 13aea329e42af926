"""Options of `format("levada")`: each is declared once, with name, documentation and parser.

Names are those of Spark's own Kafka connector wherever it has one, so that a query changes only its format. Spark
passes keys in lower case. An error names the option and what would be right.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from levada.client.client import parse_bootstrap
from levada.spark.errors import OptionError, warn

T = TypeVar("T", bound="ConnectionOptions")

# Options that Spark adds to those of a stream or a table; a table has each of its options a second time.
SPARK_OPTIONS = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "path", "provider", "owner", "comment", "location"}
)
TABLE_OPTION_PREFIX = "option."
NO_OPTIONS = (
    "there are no options: Spark does not pass those of CREATE TABLE to a Python source. Use CREATE TEMPORARY VIEW "
    "... USING levada OPTIONS (...), or give them in the query: SELECT ... FROM a_table WITH (...)"
)
ALTERNATIVES = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "use group to commit progress as a consumer group",
    "kafka.key.deserializer": "use valueFormat, or a schema with `key string`",
    "kafka.value.deserializer": "use valueFormat, or a schema with `value string`",
    "kafka.key.serializer": "cast the column to binary or string",
    "kafka.value.serializer": "cast the column to binary or string",
    "kafka.interceptor.classes": "there are no interceptors",
    "kafka.transactional.id": "use delivery=exactly_once: each task has its own transactional id",
    "kafka.partitioner.class": "write a column partition",
}
# Settings of Kafka's clients that have no meaning here: accepted with a warning.
IGNORED = frozenset(
    {
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "kafka.acks",
        "kafka.auto.commit.interval.ms",
        "kafka.buffer.memory",
        "kafka.check.crcs",
        "kafka.connections.max.idle.ms",
        "kafka.default.api.timeout.ms",
        "kafka.enable.idempotence",
        "kafka.exclude.internal.topics",
        "kafka.fetch.min.bytes",
        "kafka.heartbeat.interval.ms",
        "kafka.linger.ms",
        "kafka.max.block.ms",
        "kafka.max.in.flight.requests.per.connection",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.interval.ms",
        "kafka.max.poll.records",
        "kafka.max.request.size",
        "kafka.metadata.max.age.ms",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.ms",
        "kafka.retries",
        "kafka.retry.backoff.ms",
        "kafka.send.buffer.bytes",
        "kafka.session.timeout.ms",
        "kafka.transaction.timeout.ms",
        "kafkaconsumer.polltimeoutms",
    }
)
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
NAME_BYTES_MAX = (1 << 15) - 1
SHOWN_CHARACTERS_MAX = 200  # of a wrong value, in its error message
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECURITY = ("kafka.ssl.", "kafka.sasl.")


class Option(NamedTuple):
    """One declared option."""

    name: str
    doc: str
    default: str  # as documented
    parse: Callable[[str], Any]
    aliases: tuple[str, ...]


def option(
    name: str, doc: str, parse: Callable[[str], Any], default: Any, *aliases: str, shown: str | None = None
) -> Any:
    """Declare an option as a dataclass field; `shown` is its default in the documentation."""
    text = shown if shown is not None else ("" if default is None else str(default))
    return field(default=default, metadata={"option": Option(name, doc, text, parse, aliases)})


def declared(kind: type["ConnectionOptions"]) -> dict[str, Option]:
    """The options of a dataclass by field name."""
    return {one.name: one.metadata["option"] for one in fields(kind)}


# Parsers of values; the message of their ValueError is the expected form.


def boolean(text: str) -> bool:
    """True or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def integer(minimum: int = 1, maximum: int = INT64_MAX) -> Callable[[str], int]:
    """A whole number between these limits."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or int(text) < minimum:
            raise ValueError(f"write a whole number, {minimum} or more")
        if int(text) > maximum:
            raise ValueError(f"the maximum is {maximum}")
        return int(text)

    return parse


def size(text: str, maximum: int = INT64_MAX) -> int:
    """Bytes, with k, m or g for powers of 1024."""
    found = re.fullmatch(r"([0-9]{1,20})([kmg]?)b?", text.lower())
    if not found or int(found[1]) == 0:
        raise ValueError("write a size such as 500000, 64m or 1g")
    count = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]
    if count > maximum:
        raise ValueError(f"the maximum is {maximum} bytes")
    return count


def int32_size(text: str) -> int:
    """Bytes in a 32-bit field of the protocol."""
    return size(text, INT32_MAX)


def duration(text: str) -> int:
    """Milliseconds of a duration as Spark writes it: 30s, 15m, 2h."""
    found = re.fullmatch(r"([0-9]{1,10}) ?(ms|s|m|min|h|d)", text.lower())
    if not found:
        raise ValueError("write a duration such as 500ms, 30s, 15m or 2h")
    unit = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[found[2]]
    return int(found[1]) * unit


def timestamp(text: str) -> int:
    """Milliseconds since 1970, as a number or in ISO 8601; the default time zone is UTC."""
    if re.fullmatch(r"-?[0-9]{1,20}", text) and -INT64_MAX <= int(text) <= INT64_MAX:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("write milliseconds since 1970, or a time such as 2026-11-15T12:00:00Z") from None
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)


def format_timestamp(time_ms: int) -> str:
    """A timestamp in ISO 8601; as a number if it is beyond the calendar."""
    try:
        return (EPOCH + timedelta(milliseconds=time_ms)).isoformat()
    except OverflowError:
        return f"{time_ms} ms after 1970"


def one_of(*choices: str) -> Callable[[str], str]:
    """One of these words, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"write {' or '.join(choices)}{nearest(text.lower(), choices)}")
        return text.lower()

    return parse


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError("write at least one name; several are separated by commas")
    return tuple(map(protocol_string, found))


def non_empty(text: str) -> str:
    """Any text but an empty one."""
    if not text.strip():
        raise ValueError("it must not be empty")
    return text


def protocol_string(text: str) -> str:
    """A text that fits into a STRING of the protocol."""
    if len(non_empty(text).encode()) > NAME_BYTES_MAX:
        raise ValueError(f"the maximum is {NAME_BYTES_MAX} bytes")
    return text


def header_pairs(text: str) -> tuple[tuple[str, bytes], ...]:
    """Names and values of headers, as {"name": "value"} or name=value."""
    if not text.lstrip().startswith("{"):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError('write name=value, or {"name": "value", ...}')
        return ((name, value.encode()),)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError('write {"name": "value", ...}')
    return tuple((name, value.encode()) for name, value in found.items())


def bootstrap_servers(text: str) -> str:
    """Addresses of brokers."""
    parse_bootstrap(text)
    return text


def _protocol(text: str) -> str:
    if text.upper() != "PLAINTEXT":
        raise ValueError("the client supports PLAINTEXT only, so far")
    return text.upper()


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The options of every reader and writer: how brokers are reached."""

    bootstrap: str = option(
        "kafka.bootstrap.servers",
        "Brokers to begin with, `host:port` separated by commas. Required.",
        bootstrap_servers,
        "",
        "bootstrap.servers",
    )
    client_id: str = option(
        "kafka.client.id",
        "The client id of the connections.",
        protocol_string,
        "levada-spark",
        "groupIdPrefix",
        "kafka.group.id",
    )
    request_timeout_ms: int = option(
        "kafka.request.timeout.ms", "How long a broker may take to respond.", integer(1, INT32_MAX), 30_000
    )
    connect_timeout_ms: int = option(
        "kafka.socket.connection.setup.timeout.ms",
        "How long a connection may take to open.",
        integer(1, INT32_MAX),
        10_000,
    )
    security_protocol: str = option(
        "kafka.security.protocol", "PLAINTEXT, so far the only one.", _protocol, "PLAINTEXT"
    )

    def client_options(self) -> dict[str, Any]:
        """The arguments of `blocking.client` besides the servers."""
        return {
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "connect_timeout_ms": self.connect_timeout_ms,
        }


def parse(kind: type[T], given: Mapping[str, str]) -> T:
    """The options of a reader or writer from the user's; OptionError for an unknown one or an invalid value."""
    known = {
        name.lower(): (attribute, one) for attribute, one in declared(kind).items() for name in (one.name, *one.aliases)
    }
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key.lower() not in known:
            _check_unknown(key, known, declared(kind).values())
            continue
        attribute, one = known[key.lower()]
        if attribute in values and key.lower() != one.name.lower():
            continue  # the name takes precedence over aliases
        try:
            values[attribute] = one.parse(text.strip())
        except (ValueError, RecursionError, OverflowError) as error:
            why = str(error) if isinstance(error, ValueError) else "it is too deep or too large"
            found = repr(text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}...")
            raise OptionError(f"option {one.name}: {why}; found {found}") from None
    if not given:
        raise OptionError(NO_OPTIONS)
    if not values.get("bootstrap"):
        raise OptionError("option kafka.bootstrap.servers is missing; write for example 127.0.0.1:9092")
    return kind(**values)


def _check_unknown(key: str, known: Iterable[str], options: Iterable[Option]) -> None:
    """Accept options of Spark and ignored settings of Kafka's clients; OptionError for anything else."""
    name = key.lower()
    if name in SPARK_OPTIONS or name.startswith(TABLE_OPTION_PREFIX):
        return
    if name in ALTERNATIVES:
        raise OptionError(f"option {key} has no meaning for this connector: {ALTERNATIVES[name]}")
    if name.startswith(_SECURITY):
        raise OptionError(f"option {key}: the client does not support TLS or SASL yet")
    if name in IGNORED:
        warn(f"option {key} has no effect with format('levada')")
        return
    names = {spelling.lower(): spelling for one in options for spelling in (one.name, *one.aliases)}
    raise OptionError(f"there is no option {key}{nearest(name, known, names)}")


def nearest(name: str, known: Iterable[str], spelling: Mapping[str, str] | None = None) -> str:
    """`; did you mean ...?` if something is near."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {(spelling or {}).get(found[0], found[0])}?" if found else ""

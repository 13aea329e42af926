"""The options of formats and of a schema registry, for readers and writers; the registry's have Confluent's names."""

from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from levada.spark.errors import OptionError
from levada.spark.options import INT32_MAX, ConnectionOptions, integer, non_empty, one_of, option

LATEST = "latest"
UNKNOWN_IDS_MAX = 100  # schema ids in a task; each is one request
FORMATS = ("json", "avro", "protobuf")
NEEDS_FORMAT = ("Schema", "SchemaId", "SchemaVersion", "Subject", "Message")


class RegistryConnection(NamedTuple):
    """Where a registry is, and how it is reached."""

    urls: tuple[str, ...]
    user_info: str = ""  # user:password
    timeout_ms: int = 10_000
    retries: int = 3
    backoff_ms: int = 500

    @property
    def shown(self) -> str:
        """Its URLs without credentials, for messages."""
        return ", ".join(without_credentials(url)[0] for url in self.urls)


def without_credentials(url: str) -> tuple[str, str]:
    """A URL without its user and password, and these."""
    parts = urlsplit(url.rstrip("/"))
    user_info, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(user_info) if at else ""


class ColumnFormat(NamedTuple):
    """How the column `key` or `value` is encoded, and where its schema comes from."""

    column: str
    name: str  # json, avro or protobuf
    schema: str = ""
    schema_id: int | None = None
    version: int | str | None = None
    subject: str = ""
    message: str = ""
    registry: RegistryConnection | None = None
    unknown_ids_max: int = UNKNOWN_IDS_MAX  # for readers

    def option(self, suffix: str) -> str:
        """One of its options, for messages."""
        return f"option {self.column}{suffix}"

    def subject_of(self, topic: str) -> str:
        """The subject of its schemas: Confluent's TopicNameStrategy, unless one is given."""
        return self.subject or f"{topic}-{self.column}"


def _urls(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found or not all(urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname for url in found):
        raise ValueError("write a URL such as http://127.0.0.1:8081; several are separated by commas")
    return found


def _user_info(text: str) -> str:
    if ":" not in text:
        raise ValueError("write user:password")
    return text


def _version(text: str) -> int | str:
    return LATEST if text.lower() == LATEST else integer(1, INT32_MAX)(text)


def _format(column: str) -> Any:
    doc = f"`json`, `avro` or `protobuf`: the column `{column}` is typed."
    return option(f"{column}Format", doc, one_of(*FORMATS), "")


def _schema_id(column: str) -> Any:
    doc = f"The schema of the column `{column}` is the registry's with this id."
    return option(f"{column}SchemaId", doc, integer(0, INT32_MAX), None)


def _schema_version(column: str) -> Any:
    doc = f"The schema of the column `{column}` is this version of its subject, or `latest`."
    return option(f"{column}SchemaVersion", doc, _version, None, shown="latest")


def _subject(column: str) -> Any:
    doc = f"The registry's subject with the schemas of `{column}`."
    return option(f"{column}Subject", doc, non_empty, "", shown=f"<topic>-{column}")


def _message(column: str) -> Any:
    doc = f"With {column}Format protobuf: the message of the schema, such as `shop.Order`."
    return option(f"{column}Message", doc, non_empty, "", shown="the schema's first")


@dataclass(frozen=True, kw_only=True)
class FormatOptions(ConnectionOptions):
    """The options of a typed key and value."""

    value_format: str = _format("value")
    value_schema: str = option(
        "valueSchema",
        "The schema of a value: for json, columns as in SQL (`user string, amount double`) or a JSON Schema; for avro "
        "an Avro schema; for protobuf the text of a .proto file.",
        non_empty,
        "",
    )
    value_schema_id: int | None = _schema_id("value")
    value_schema_version: int | str | None = _schema_version("value")
    value_subject: str = _subject("value")
    value_message: str = _message("value")
    key_format: str = _format("key")
    key_schema: str = option("keySchema", "The schema of a key: as valueSchema.", non_empty, "")
    key_schema_id: int | None = _schema_id("key")
    key_schema_version: int | str | None = _schema_version("key")
    key_subject: str = _subject("key")
    key_message: str = _message("key")
    registry_urls: tuple[str, ...] = option(
        "schema.registry.url",
        "A schema registry with Confluent's API; several URLs of one registry are separated by commas. Keys and values "
        "with a format are in Confluent's wire format then: an id of a schema comes before the data.",
        _urls,
        (),
        shown="",
    )
    registry_user_info: str = option(
        "basic.auth.user.info",
        "`user:password` for the registry; it may be in the URL as well.",
        _user_info,
        "",
        "schema.registry.basic.auth.user.info",
    )
    registry_timeout_ms: int = option(
        "http.read.timeout.ms", "How long a registry may take to respond completely.", integer(1, INT32_MAX), 10_000
    )
    registry_retries: int = option(
        "max.retries",
        "How often a request to a registry is repeated that had no response or a server error.",
        integer(0, 1000),
        3,
    )
    registry_backoff_ms: int = option(
        "retries.wait.ms",
        "The wait before the first repetition; it doubles each time, up to 5 s.",
        integer(1, INT32_MAX),
        500,
    )

    @property
    def registry(self) -> RegistryConnection | None:
        """How to reach the registry, if one is given."""
        if not self.registry_urls:
            return None
        return RegistryConnection(
            self.registry_urls,
            self.registry_user_info,
            self.registry_timeout_ms,
            self.registry_retries,
            self.registry_backoff_ms,
        )

    def column_format(self, column: str) -> ColumnFormat | None:
        """The format of the column `key` or `value`; None if it is bytes or text."""
        name = getattr(self, f"{column}_format")
        if not name:
            return None
        return ColumnFormat(
            column,
            name,
            schema=getattr(self, f"{column}_schema"),
            schema_id=getattr(self, f"{column}_schema_id"),
            version=getattr(self, f"{column}_schema_version"),
            subject=getattr(self, f"{column}_subject"),
            message=getattr(self, f"{column}_message"),
            registry=self.registry,
        )

    @property
    def formats(self) -> list[ColumnFormat]:
        """The formats of the typed columns."""
        found = (self.column_format(column) for column in ("key", "value"))
        return [one for one in found if one is not None]


def check_formats(options: FormatOptions) -> None:
    """Raise OptionError if options of formats contradict each other."""
    for column in ("key", "value"):
        given = {
            f"{column}{suffix}": getattr(options, f"{column}_{attribute}")
            for suffix, attribute in zip(
                NEEDS_FORMAT, ("schema", "schema_id", "schema_version", "subject", "message"), strict=True
            )
        }
        used = [name for name, value in given.items() if value not in ("", None)]
        if used and not getattr(options, f"{column}_format"):
            raise OptionError(f"option {used[0]} needs {column}Format: json, avro or protobuf")
        chosen = [name for name in used if name.endswith(("Schema", "SchemaId", "SchemaVersion"))]
        if len(chosen) > 1:
            raise OptionError(f"the options {' and '.join(chosen)} exclude each other; set only one")
        if not options.registry_urls and any(name.endswith(("Id", "Version", "Subject")) for name in used):
            raise OptionError(f"option {used[0]} needs schema.registry.url")
        if given[f"{column}Message"] and getattr(options, f"{column}_format") != "protobuf":
            raise OptionError(f"option {column}Message needs {column}Format: protobuf")
    if options.registry_urls and not options.formats:
        raise OptionError("option schema.registry.url needs valueFormat or keyFormat: json, avro or protobuf")

"""The options of a writer: topic, delivery guarantee, and the columns that it writes."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levada.client.retry import CLUSTER_RETRIABLE, RetryPolicy
from levada.model import Codec
from levada.spark.errors import OptionError
from levada.spark.options import boolean, duration, integer, non_empty, one_of, option, parse, size
from levada.spark.registry.options import FormatOptions, check_formats

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

CODECS = tuple(codec.name.lower() for codec in Codec)
EXACTLY_ONCE = "exactly_once"
REFUSE, SKIP = "refuse", "skip"
COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")
APP_CHARACTERS_MAX = 250  # escaped they are part of transactional ids and patterns, which brokers limit
SIMILAR = 0.75  # a column whose name is so similar to a known one is a misspelling


@dataclass(frozen=True, kw_only=True)
class WriteOptions(FormatOptions):
    """The options of a batch and of a stream."""

    topic: str = option(
        "topic",
        "The topic of all rows; without it the column `topic` has the topic of each row.",
        non_empty,
        "",
        shown="",
    )
    creates_topics: bool = option(
        "kafka.allow.auto.create.topics",
        "Whether a topic that does not exist is created, if the broker has auto.create.topics.enable; `false`: it is "
        "an error.",
        boolean,
        True,
        shown="true",
    )
    delivery: str = option(
        "delivery",
        "`exactly_once`: a micro-batch of a stream is in the topics once, whatever fails; a batch job completely or "
        "not at all. `at_least_once`: rows are visible at once, and again when a task is tried again.",
        one_of(EXACTLY_ONCE, "at_least_once"),
        EXACTLY_ONCE,
    )
    compression: str = option(
        "kafka.compression.type",
        f"How record batches are compressed: {', '.join(CODECS)}.",
        one_of(*CODECS),
        "none",
        "compression",
    )
    batch_bytes: int = option(
        "kafka.batch.size",
        "The most bytes of a record batch before it is compressed.",
        size,
        512 << 10,
        shown="512k",
    )
    delivery_timeout_ms: int = option(
        "kafka.delivery.timeout.ms",
        "How long a task tries to write records, and a driver to commit them.",
        integer(),
        120_000,
    )
    transaction_timeout_ms: int = option(
        "transactionTimeout",
        "With exactly_once: brokers abort a transaction that is not committed so long after the last task of its query "
        "or job has ended. If the driver dies, readers of committed records wait at most for this time. At most the "
        "broker's transaction.max.timeout.ms.",
        duration,
        15 * 60_000,
        shown="15m",
    )

    auto_register: bool = option(
        "auto.register.schemas",
        "Whether schemas are registered; otherwise they must be registered already.",
        boolean,
        True,
        shown="true",
    )
    use_latest_version: bool = option(
        "use.latest.version",
        "Whether rows are written with the latest schema of the subject, instead of one made from their type.",
        boolean,
        False,
        shown="false",
    )

    @property
    def retry_policy(self) -> RetryPolicy:
        """For the requests of tasks; Spark starts new workers all the time, which have not reached a broker yet."""
        return self._policy(self.request_timeout_ms)

    @property
    def probe_policy(self) -> RetryPolicy:
        """For a driver before a job and after its failure: wrong bootstrap servers fail it soon."""
        return self._policy(self.connect_timeout_ms)

    def _policy(self, bootstrap_timeout_ms: int) -> RetryPolicy:
        timeout_ms = self.delivery_timeout_ms
        return RetryPolicy(CLUSTER_RETRIABLE, timeout_ms, min(bootstrap_timeout_ms, timeout_ms))


@dataclass(frozen=True, kw_only=True)
class StreamOptions(WriteOptions):
    """The options of a stream only."""

    repeated_batch: str = option(
        "repeatedBatch",
        "A micro-batch that is committed already and has another number of rows now: `refuse` fails the query, since "
        "its checkpoint may have been restored; `skip` continues, for a query that gives other rows each time.",
        one_of(REFUSE, SKIP),
        REFUSE,
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions(WriteOptions):
    """The options of a batch job only."""

    app: str = option(
        "txnAppId",
        "With txnVersion: the job is written once under this name and version, and a repeated job writes nothing; for "
        "foreachBatch. Versions must increase: one below the last that was written counts as written.",
        non_empty,
        "",
        shown="",
    )
    version: int | None = option(
        "txnVersion", "Which version of the application's output this job is: its batch id.", integer(0), None
    )
    repeated_batch: str = option(
        "repeatedBatch",
        "A job whose version, or a later one, is written already: `skip` writes nothing and warns if rows are skipped "
        "that are not those of the version; `refuse` fails the job then.",
        one_of(SKIP, REFUSE),
        SKIP,
    )


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """The options of a stream."""
    options = parse(StreamOptions, given)
    _check_schemas(options)
    return options


def job_options(given: Mapping[str, str]) -> JobOptions:
    """The options of a batch job."""
    options = parse(JobOptions, given)
    _check_schemas(options)
    if bool(options.app) != (options.version is not None):
        raise OptionError("options txnAppId and txnVersion belong together: set both, or none")
    if len(options.app) > APP_CHARACTERS_MAX:
        raise OptionError(f"option txnAppId has {len(options.app)} characters; the maximum is {APP_CHARACTERS_MAX}")
    if not options.app and options.repeated_batch == REFUSE:
        raise OptionError("option repeatedBatch needs txnAppId and txnVersion")
    if options.app and options.delivery != EXACTLY_ONCE:
        raise OptionError(f"option txnAppId needs delivery={EXACTLY_ONCE}")
    return options


def _check_schemas(options: WriteOptions) -> None:
    """Raise OptionError for options of formats that a writer cannot have."""
    check_formats(options)
    for form in options.formats:
        if form.name == "json" and form.schema and not form.schema.lstrip().startswith("{"):
            raise OptionError(f"{form.option('Schema')} of a writer must be a JSON Schema")
        if options.use_latest_version and (form.schema or form.schema_id is not None):
            raise OptionError(f"options use.latest.version and {form.column}Schema exclude each other; set only one")
    if options.use_latest_version and not options.registry_urls:
        raise OptionError("option use.latest.version needs schema.registry.url")


class ColumnError(OptionError):
    """The columns of a DataFrame do not fit a topic."""


def check_columns(schema: "StructType", options: WriteOptions) -> tuple[str, ...]:
    """The columns of a DataFrame that are written; ColumnError if one is missing, misspelt or of another type."""
    types = {field.name.lower(): field.dataType for field in schema.fields}
    wanted = tuple(name for name in COLUMNS if name in types)
    if "value" not in types:
        raise ColumnError(
            f"column value is missing{_nearest('value', types)}; there are {', '.join(types) or 'none'}. "
            "It must be string or binary: for example select to_json(struct(*)) AS value; or a struct with valueFormat"
        )
    if "topic" not in types and not options.topic:
        raise ColumnError('there is no topic: set option topic, .option("topic", "orders"), or add a column topic')
    for name in types:
        near = difflib.get_close_matches(name, [one for one in COLUMNS if one not in types], 1, SIMILAR)
        if name not in COLUMNS and near:
            raise ColumnError(
                f"column {name} would not be written; did you mean {near[0]}? If not, drop it before writing"
            )
    typed = {form.column: form.name for form in options.formats}
    if "key" in typed and "key" not in types:
        raise ColumnError("option keyFormat needs a column key")
    for name in wanted:
        if not _fits(name, types[name], typed.get(name)):
            expected = f"a struct for {name}Format {typed[name]}" if name in typed else EXPECTED[name]
            raise ColumnError(f"column {name} is {types[name].simpleString()}, it must be {expected}")
    return wanted


EXPECTED = {
    "key": "string or binary",
    "value": "string or binary: cast it, use to_json(struct(...)), or set valueFormat",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key: string, value: binary>>",
    "timestamp": "timestamp",
}


def _fits(name: str, kind: "DataType", form: str | None) -> bool:
    from pyspark.sql import types

    if form is not None:
        return form == "avro" or isinstance(kind, types.StructType)  # Avro also has schemas of plain types
    if name in ("key", "value"):
        return isinstance(kind, types.StringType | types.BinaryType)
    if name == "topic":
        return isinstance(kind, types.StringType)
    if name == "partition":
        return isinstance(kind, types.IntegerType | types.ShortType | types.ByteType)
    if name == "timestamp":
        return isinstance(kind, types.TimestampType | types.TimestampNTZType)
    struct = kind.elementType if isinstance(kind, types.ArrayType) else None
    return (
        isinstance(struct, types.StructType)
        and [field.name.lower() for field in struct.fields] == ["key", "value"]
        and isinstance(struct.fields[0].dataType, types.StringType)
        and isinstance(struct.fields[1].dataType, types.BinaryType)
    )


def _nearest(name: str, known: Mapping[str, object]) -> str:
    found = difflib.get_close_matches(name, list(known), 1, SIMILAR)
    return f" (is it {found[0]}?)" if found else ""

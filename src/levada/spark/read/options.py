"""The options of a reader: topics, start and end offsets, limits, filters and formats."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levada.client.retry import CLUSTER_RETRIABLE, RetryPolicy
from levada.core.patterns import Pattern
from levada.errors import KafkaError
from levada.model import TopicPartition
from levada.spark.errors import OptionError, warn
from levada.spark.options import (
    INT32_MAX,
    boolean,
    duration,
    header_pairs,
    int32_size,
    integer,
    names,
    nearest,
    one_of,
    option,
    parse,
    protocol_string,
    size,
    timestamp,
)
from levada.spark.read.fetcher import FetchOptions
from levada.spark.read.offsets import Offsets, OffsetSpec, parse_assign, parse_offsets, parse_times
from levada.spark.read.planner import SplitOptions
from levada.spark.registry.options import UNKNOWN_IDS_MAX, ColumnFormat, FormatOptions, check_formats

if TYPE_CHECKING:
    from levada.spark.formats.decoder import Filter

TYPES = frozenset(
    {"boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"}
    | {"float", "real", "double", "decimal", "dec", "numeric", "string", "char", "character", "varchar"}
    | {"date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval"}
    | {"binary", "variant", "void", "array", "map", "struct"}
)


def _pattern(text: str) -> str:
    try:
        topic_matcher(text)
    except re.error as error:
        raise ValueError(f"this is not a regular expression: {error}") from None
    return text


def topic_matcher(pattern: str, full_match: bool = False) -> Callable[[str], bool]:
    """Finds a pattern in names of topics in linear time (RE2); with Python's engine if only that supports it."""
    try:
        return Pattern(pattern if full_match else f".*(?:{pattern}).*").matches
    except KafkaError:
        own = re.compile(pattern)
        search = own.fullmatch if full_match else own.search
        return lambda name: search(name) is not None


@dataclass(frozen=True, kw_only=True)
class ReadOptions(FormatOptions):
    """The options of a batch and of a stream."""

    subscribe: tuple[str, ...] = option("subscribe", "Topics, separated by commas.", names, (), shown="")
    subscribe_pattern: str = option(
        "subscribePattern",
        "A regular expression (RE2, or else Python's syntax) that a part of a topic's name must match. Internal "
        "topics of brokers and of Levada (`__levada_...`) are read by name only; offsets of them in the checkpoint of "
        "another connector are skipped with a warning.",
        _pattern,
        "",
    )
    subscribe_pattern_full_match: bool = option(
        "subscribePatternFullMatch",
        "Whether the whole name of a topic must match subscribePattern.",
        boolean,
        False,
        shown="false",
    )
    assign: tuple[TopicPartition, ...] = option(
        "assign", 'Partitions by topic: `{"orders": [0, 1]}`.', parse_assign, (), shown=""
    )
    starting_offsets: OffsetSpec = option(
        "startingOffsets",
        '`earliest`, `latest`, or offsets: `{"orders": {"0": 23, "1": -2}}`, -2 being earliest and -1 latest. '
        "A stream uses it in its first run only; later it continues from its checkpoint.",
        parse_offsets("earliest", "latest"),
        None,
        shown="earliest in a batch, latest in a stream",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        "Start at the first record from this time on: milliseconds since 1970 or ISO 8601. It takes precedence over "
        "startingOffsetsByTimestamp, and that over startingOffsets.",
        timestamp,
        None,
    )
    starting_offsets_by_timestamp: Offsets | None = option(
        "startingOffsetsByTimestamp",
        'A time for each partition: `{"orders": {"0": 1763200000000}}`.',
        parse_times,
        None,
    )
    timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        "What to do in a partition without records since then: `error`, or start at the `latest` offset.",
        one_of("error", "latest"),
        "error",
    )
    ending_offsets: OffsetSpec = option(
        "endingOffsets",
        "Where a batch ends: `latest`, or offsets as for startingOffsets, -1 being latest. An offset beyond the end of "
        "the log is an error, with failOnDataLoss=false a warning.",
        parse_offsets("latest"),
        None,
        shown="latest",
    )
    ending_timestamp: int | None = option(
        "endingTimestamp", "A batch ends before the first record from this time on.", timestamp, None
    )
    ending_offsets_by_timestamp: Offsets | None = option(
        "endingOffsetsByTimestamp",
        "A time for each partition, before which a batch ends: as startingOffsetsByTimestamp.",
        parse_times,
        None,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        "Whether a query fails when records it had to read are gone (retention, a deleted topic), or continues "
        "with those that are left.",
        boolean,
        True,
        shown="true",
    )
    min_partitions: int = option(
        "minPartitions", "The least number of tasks, about.", integer(1, INT32_MAX), 0, shown=""
    )
    max_records: int = option("maxRecordsPerPartition", "The most records of a task.", integer(), 0, shown="")
    split_bytes: int = option(
        "splitBytes",
        "About how much of the log a task reads; a partition with more is read by several tasks.",
        size,
        64 << 20,
        shown="64m",
    )
    max_offsets: int = option(
        "maxOffsetsPerTrigger",
        "The most records of a micro-batch, shared among the partitions in proportion to what is there; a partition "
        "whose share is less than one record gets one.",
        integer(),
        0,
        shown="",
    )
    min_offsets: int = option(
        "minOffsetsPerTrigger",
        "The least records of a micro-batch; it waits for them.",
        integer(),
        0,
        shown="",
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        "The longest wait for minOffsetsPerTrigger.",
        duration,
        900_000,
        shown="15m",
    )
    max_bytes: int = option(
        "maxBytesPerTrigger",
        "About how much of the log a micro-batch reads at most, in bytes as they are stored (compressed or not).",
        size,
        0,
        shown="",
    )
    group: str = option(
        "group",
        "Commit the offsets of a stream for this consumer group, so that `levada group lag` and other tools "
        "show its lag. A query never reads them.",
        protocol_string,
        "",
    )
    key: str | None = option("key", "Only records with this key.", str, None)
    header: tuple[tuple[str, bytes], ...] = option(
        "header",
        'Only records with these headers: `name=value`, or `{"name": "value", ...}`.',
        header_pairs,
        (),
        shown="",
    )
    from_time: int | None = option(
        "fromTime", "Only records from this time on: milliseconds since 1970 or ISO 8601.", timestamp, None
    )
    to_time: int | None = option("toTime", "Only records before this time.", timestamp, None)
    isolation: str = option(
        "isolation",
        "`read_committed`: records of aborted transactions are left out, and a query reads up to the first open "
        "transaction; or `read_uncommitted`.",
        one_of("read_committed", "read_uncommitted"),
        "read_committed",
        "kafka.isolation.level",
    )
    include_headers: bool = option(
        "includeHeaders", "Whether there is a column `headers`.", boolean, True, shown="true"
    )
    value_skip_bytes: int = option(
        "valueSkipBytes",
        "Bytes to skip at the start of each value: 5 for values written by a schema registry's serializer, if there is "
        "no registry to ask.",
        integer(0, INT32_MAX),
        0,
    )
    unknown_ids_max: int = option(
        "schema.registry.max.unknown.ids",
        "How many schema ids of a column the registry may not know in a task; each is one request. With more the task "
        "fails.",
        integer(0, INT32_MAX),
        UNKNOWN_IDS_MAX,
    )
    dead_letter_topic: str = option(
        "deadLetterTopic",
        "The topic for records whose value is not of valueFormat, or whose key is not of keyFormat; without it these "
        "are in the columns `malformed` and `malformedKey`.",
        protocol_string,
        "",
    )
    fetch_bytes: int = option(
        "kafka.fetch.max.bytes",
        "The most bytes of one Fetch request.",
        int32_size,
        8 << 20,
        shown="8m",
    )
    fetch_wait_ms: int = option(
        "kafka.fetch.max.wait.ms",
        "How long a broker may wait for new records before it responds to a Fetch.",
        integer(1, INT32_MAX),
        500,
    )
    retry_timeout_ms: int = option(
        "kafka.default.api.timeout.ms",
        "How long brokers that have responded before may be unavailable until a query fails.",
        integer(1, INT32_MAX),
        60_000,
    )

    def column_format(self, column: str) -> ColumnFormat | None:
        found = super().column_format(column)
        return found and found._replace(unknown_ids_max=self.unknown_ids_max)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are read by name; none with subscribePattern."""
        return frozenset(self.subscribe) | {partition.topic for partition in self.assign}

    @property
    def topic_matcher(self) -> Callable[[str], bool]:
        """Whether subscribePattern selects a topic."""
        return topic_matcher(self.subscribe_pattern, self.subscribe_pattern_full_match)

    @property
    def retry_policy(self) -> RetryPolicy:
        """For the requests of a driver; its tasks read what the driver has found."""
        return RetryPolicy(CLUSTER_RETRIABLE, self.retry_timeout_ms, self.connect_timeout_ms)

    @property
    def read_committed(self) -> bool:
        return self.isolation == "read_committed"

    @property
    def where(self) -> "Filter | None":
        """The filter of key, header, fromTime and toTime, if any is given."""
        from levada.spark.formats.decoder import TIMESTAMP_MAX, TIMESTAMP_MIN, Filter  # loads the kernels

        found = Filter(
            None if self.key is None else self.key.encode(),
            self.header,
            TIMESTAMP_MIN if self.from_time is None else self.from_time,
            TIMESTAMP_MAX if self.to_time is None else self.to_time,
        )
        return None if found == Filter() else found

    @property
    def split(self) -> SplitOptions:
        """How the planner splits offset ranges into tasks."""
        return SplitOptions(self.split_bytes, self.min_partitions, self.max_records)

    @property
    def fetch_options(self) -> FetchOptions:
        """How a task fetches."""
        return FetchOptions(
            client_id=self.client_id,
            read_committed=self.read_committed,
            fetch_bytes=self.fetch_bytes,
            fetch_wait_ms=self.fetch_wait_ms,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=self.connect_timeout_ms,
            retry_timeout_ms=self.retry_timeout_ms,
            fail_on_data_loss=self.fail_on_data_loss,
        )


BATCH_ONLY = {
    "ending_offsets": "endingOffsets",
    "ending_timestamp": "endingTimestamp",
    "ending_offsets_by_timestamp": "endingOffsetsByTimestamp",
}
STREAM_ONLY = {"max_bytes": "maxBytesPerTrigger", "group": "group"}
# The stock connector accepts these in a batch without effect.
STREAM_ONLY_OF_STOCK = {"max_offsets": "maxOffsetsPerTrigger", "min_offsets": "minOffsetsPerTrigger"}


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a reader; OptionError if they contradict each other."""
    options = parse(ReadOptions, given)
    chosen = [
        name
        for name, value in (
            ("subscribe", options.subscribe),
            ("subscribePattern", options.subscribe_pattern),
            ("assign", options.assign),
        )
        if value
    ]
    if not chosen:
        raise OptionError("no topics are given: set one of the options subscribe, subscribePattern or assign")
    if len(chosen) > 1:
        raise OptionError(f"the options {' and '.join(chosen)} exclude each other; set only one")
    if options.max_offsets and options.min_offsets > options.max_offsets:
        raise OptionError("option minOffsetsPerTrigger is greater than maxOffsetsPerTrigger; lower it")
    check_formats(options)
    if options.dead_letter_topic and not options.formats:
        raise OptionError("option deadLetterTopic needs valueFormat or keyFormat: json, avro or protobuf")
    if options.dead_letter_topic and _is_read(options, options.dead_letter_topic):
        raise OptionError(
            f"option deadLetterTopic: {options.dead_letter_topic} is one of the topics that the query reads, so it "
            "would read its own dead letters; set another topic"
        )
    for form in options.formats:
        if form.name != "json" and not form.schema and form.registry is None:
            raise OptionError(f"{form.option('Format')} {form.name} needs {form.column}Schema, or schema.registry.url")
        if form.name == "json" and not form.schema.lstrip().startswith("{"):
            _check_columns(form.option("Schema"), form.schema)
    if options.value_skip_bytes and options.registry_urls:
        raise OptionError("option valueSkipBytes has no meaning with schema.registry.url; remove one of the two")
    return options


def _check_columns(option: str, schema: str) -> None:
    """Check columns in SQL for plain mistakes; Spark would report them in the DDL of the whole table."""
    plain = re.sub(r"\([\d\s,]*\)", "", schema)  # decimal(8, 2)
    if not re.fullmatch(r"[\w\s,:<>]*", plain):
        return  # names and comments in quotes
    if plain.count("<") != plain.count(">"):
        raise OptionError(f"{option}: each < needs a >; found {schema!r}")
    for part in re.split(r"[,<>]+", plain):
        found = re.split(r"[\s:]+", part.strip())
        if found[-1] and len(found) <= 2 and found[-1].lower() not in TYPES:
            wrong = f"{found[-1]} is not a type{nearest(found[-1].lower(), TYPES)}"
            raise OptionError(f"{option}: {wrong}; found {schema!r}")


def _is_read(options: ReadOptions, topic: str) -> bool:
    return (
        topic in options.subscribe
        or any(partition.topic == topic for partition in options.assign)
        or bool(options.subscribe_pattern and options.topic_matcher(topic))
    )


def for_batch(options: ReadOptions) -> ReadOptions:
    """Raise OptionError for options that have no meaning in a batch."""
    _reject(options, STREAM_ONLY, "a stream", "read")
    for attribute, name in STREAM_ONLY_OF_STOCK.items():
        if getattr(options, attribute):
            warn(f"option {name} is for a stream and has no effect in a batch")
    by_time = options.starting_timestamp is not None or options.starting_offsets_by_timestamp is not None
    if options.starting_offsets == "latest" and not by_time:
        raise OptionError("option startingOffsets: a batch that begins at the latest offset reads nothing")
    return options


def for_stream(options: ReadOptions) -> ReadOptions:
    """Raise OptionError for options that have no meaning in a stream."""
    _reject(options, BATCH_ONLY, "a batch", "readStream")
    return options


def _reject(options: ReadOptions, names: Mapping[str, str], meant_for: str, used: str) -> None:
    for attribute, name in names.items():
        if getattr(options, attribute):
            raise OptionError(f"option {name} is for {meant_for} and has no meaning for spark.{used}")

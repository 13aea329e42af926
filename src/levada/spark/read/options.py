"""What may be asked of a reader: which topics, from where to where, how much at a time, which rows, in which form."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from levada.client.retry import CLUSTER_RETRIABLE, RetryPolicy
from levada.core.regex.matcher import Pattern
from levada.errors import KafkaError
from levada.spark.formats.columns import TIMESTAMP_MAX, TIMESTAMP_MIN, Filter
from levada.spark.options import (
    INT32_MAX,
    ConnectionOptions,
    OptionError,
    boolean,
    duration,
    int32_size,
    moment,
    nearest,
    one_of,
    option,
    pairs,
    parse,
    short_name,
    size,
    text_of,
    whole,
    words,
)
from levada.spark.read.fetcher import FetchOptions
from levada.spark.read.offsets import Assigned, Offsets, Place, parse_assign, parse_offsets, parse_times
from levada.spark.warning import warn

PATTERN_WORK_MAX = 10_000_000  # steps, some seconds: patterns that people write take far less
TYPES = frozenset(
    {"boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"}
    | {"float", "real", "double", "decimal", "dec", "numeric", "string", "char", "character", "varchar"}
    | {"date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval"}
    | {"binary", "variant", "void", "array", "map", "struct"}
)


def _pattern(text: str) -> str:
    try:
        matcher(text)
    except re.error as error:
        raise ValueError(f"this is not a regular expression: {error}") from None
    return text


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether whole names match; what others name their topics cannot make it slow, unless only Python's own
    expressions can say the pattern (with a look ahead, say).
    """
    try:
        return Pattern(pattern, PATTERN_WORK_MAX).matches
    except KafkaError:
        own = re.compile(pattern)
        return lambda name: own.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    """The options of a batch and of a stream."""

    subscribe: tuple[str, ...] = option("subscribe", "Topics, separated by commas.", words, (), told="")
    subscribe_pattern: str = option(
        "subscribePattern",
        "A regular expression (RE2, or what Python has beyond it) that the whole name of a topic must match. Topics of "
        "the brokers' own and those that Levada keeps (`__levada_...`) are read by name only.",
        _pattern,
        "",
    )
    assign: Assigned = option(
        "assign", 'Partitions by topic: `{"orders": [0, 1]}`.', parse_assign, (), told=""
    )
    starting_offsets: Place = option(
        "startingOffsets",
        '`earliest`, `latest`, or offsets: `{"orders": {"0": 23, "1": -2}}`, -2 being earliest and -1 latest. '
        "A stream heeds it in its first run only, later it goes on from its checkpoint.",
        parse_offsets("earliest", "latest"),
        None,
        told="earliest in a batch, latest in a stream",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        "Begin at the first record from this time on: milliseconds since 1970 or ISO 8601.",
        moment,
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
        "What to do where nothing was written since: `error`, or begin at the `latest`.",
        one_of("error", "latest"),
        "error",
    )
    ending_offsets: Place = option(
        "endingOffsets",
        "Where a batch ends: `latest`, or offsets as for startingOffsets, -1 being latest.",
        parse_offsets("latest"),
        None,
        told="latest",
    )
    ending_timestamp: int | None = option(
        "endingTimestamp", "A batch ends before the first record from this time on.", moment, None
    )
    ending_offsets_by_timestamp: Offsets | None = option(
        "endingOffsetsByTimestamp",
        "A time for each partition, before which a batch ends: as startingOffsetsByTimestamp.",
        parse_times,
        None,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        "Whether a query fails when records it had to read are gone (retention, a deleted topic), or goes on "
        "with those that are left.",
        boolean,
        True,
        told="true",
    )
    min_partitions: int = option(
        "minPartitions", "At least so many tasks, about.", whole(1, INT32_MAX), 0, told=""
    )
    max_records: int = option(
        "maxRecordsPerPartition", "At most so many records in a task.", whole(), 0, told=""
    )
    split_bytes: int = option(
        "splitBytes",
        "A task reads about so much of the log; a partition with more is read by several tasks.",
        size,
        64 << 20,
        told="64m",
    )
    max_offsets: int = option(
        "maxOffsetsPerTrigger", "At most so many records in a micro-batch.", whole(), 0, told=""
    )
    min_offsets: int = option(
        "minOffsetsPerTrigger", "A micro-batch waits until there are so many records.", whole(), 0, told=""
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        "How long minOffsetsPerTrigger is waited for at most.",
        duration,
        900_000,
        told="15m",
    )
    max_bytes: int = option(
        "maxBytesPerTrigger",
        "At most about so much of the log (compressed, if it is) in a micro-batch.",
        size,
        0,
        told="",
    )
    group: str = option(
        "group",
        "Commit the progress of a stream as this consumer group, so that `levada group lag` and other tools "
        "see it. Nothing is ever read from there.",
        short_name,
        "",
    )
    key: str | None = option("key", "Only records with this key.", str, None)
    header: tuple[tuple[str, bytes], ...] = option(
        "header",
        'Only records with these headers: `name=value`, or `{"name": "value", ...}`.',
        pairs,
        (),
        told="",
    )
    from_time: int | None = option(
        "fromTime", "Only records from this time on: milliseconds since 1970 or ISO 8601.", moment, None
    )
    to_time: int | None = option("toTime", "Only records before this time.", moment, None)
    isolation: str = option(
        "isolation",
        "`read_committed`: records of aborted transactions are left out, open ones are waited for; or "
        "`read_uncommitted`.",
        one_of("read_committed", "read_uncommitted"),
        "read_committed",
        "kafka.isolation.level",
    )
    include_headers: bool = option(
        "includeHeaders", "Whether there is a column `headers`.", boolean, True, told="true"
    )
    value_format: str = option(
        "valueFormat", "`json` or `avro`: the column `value` is typed.", one_of("json", "avro"), ""
    )
    value_schema: str = option(
        "valueSchema",
        "What a value is: for json columns as in SQL (`user string, amount double`), for avro its schema.",
        text_of,
        "",
    )
    value_skip_bytes: int = option(
        "valueSkipBytes",
        "Bytes before each value that are no part of it: 5 where a schema registry's serializer wrote it.",
        whole(0, INT32_MAX),
        0,
    )
    dead_letter_topic: str = option(
        "deadLetterTopic",
        "Where values go that are not of valueFormat; without it their rows have them in the column `malformed`.",
        short_name,
        "",
    )
    fetch_bytes: int = option(
        "kafka.fetch.max.bytes",
        "How much of the log a task asks for at once.",
        int32_size,
        8 << 20,
        told="8m",
    )
    fetch_wait_ms: int = option(
        "kafka.fetch.max.wait.ms",
        "How long a broker may wait for records that are not there yet.",
        whole(1, INT32_MAX),
        500,
    )
    retry_timeout_ms: int = option(
        "kafka.default.api.timeout.ms",
        "How long brokers that have answered before may be away until a query fails.",
        whole(1, INT32_MAX),
        60_000,
    )

    @property
    def retry_policy(self) -> RetryPolicy:
        """For the requests of a driver; its tasks read what the driver has found."""
        return RetryPolicy(CLUSTER_RETRIABLE, self.retry_timeout_ms, self.connect_timeout_ms)

    @property
    def read_committed(self) -> bool:
        return self.isolation == "read_committed"

    @property
    def where(self) -> Filter | None:
        """What is asked of a row."""
        found = Filter(
            None if self.key is None else self.key.encode(),
            self.header,
            TIMESTAMP_MIN if self.from_time is None else self.from_time,
            TIMESTAMP_MAX if self.to_time is None else self.to_time,
        )
        return None if found == Filter() else found

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
# The stock connector takes these in a batch and does nothing with them.
STREAM_ONLY_OF_STOCK = {"max_offsets": "maxOffsetsPerTrigger", "min_offsets": "minOffsetsPerTrigger"}


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a reader, checked against each other."""
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
        raise OptionError("which topics? Give one of the options subscribe, subscribePattern or assign")
    if len(chosen) > 1:
        raise OptionError(f"the options {' and '.join(chosen)} exclude each other; give one")
    if options.max_offsets and options.min_offsets > options.max_offsets:
        raise OptionError("option minOffsetsPerTrigger is greater than maxOffsetsPerTrigger")
    if options.value_schema and not options.value_format:
        raise OptionError("option valueSchema needs valueFormat: json or avro")
    if options.dead_letter_topic and not options.value_format:
        raise OptionError("option deadLetterTopic needs valueFormat: json or avro")
    if options.dead_letter_topic and _is_read(options, options.dead_letter_topic):
        raise OptionError(
            f"option deadLetterTopic: {options.dead_letter_topic} is among the topics that are read, which would be "
            "fed with what cannot be read of them; name another"
        )
    if options.value_format == "avro" and not options.value_schema:
        raise OptionError("option valueFormat avro needs valueSchema: the Avro schema, as JSON")
    if options.value_format == "json":
        _check_columns(options.value_schema)
    return options


def _check_columns(schema: str) -> None:
    """Spark reads columns in a text of ours, of which it would complain; so what is plainly wrong is told here."""
    plain = re.sub(r"\([\d\s,]*\)", "", schema)  # decimal(8, 2)
    if not re.fullmatch(r"[\w\s,:<>]*", plain):
        return  # names and comments in quotes
    if plain.count("<") != plain.count(">"):
        raise OptionError(f"option valueSchema: each < needs a >; found {schema!r}")
    for part in re.split(r"[,<>]+", plain):
        found = re.split(r"[\s:]+", part.strip())
        if found[-1] and len(found) <= 2 and found[-1].lower() not in TYPES:
            wrong = f"{found[-1]} is no type{nearest(found[-1].lower(), TYPES)}"
            raise OptionError(f"option valueSchema: {wrong}; found {schema!r}")


def _is_read(options: ReadOptions, topic: str) -> bool:
    return (
        topic in options.subscribe
        or any(place.topic == topic for place in options.assign)
        or bool(options.subscribe_pattern and matcher(options.subscribe_pattern)(topic))
    )


def for_batch(options: ReadOptions) -> ReadOptions:
    """Refuse what has no meaning in a batch."""
    _refuse(options, STREAM_ONLY, "a stream", "read")
    for attribute, name in STREAM_ONLY_OF_STOCK.items():
        if getattr(options, attribute):
            warn(f"option {name} is for a stream and has no effect in a batch")
    if options.starting_offsets == "latest":
        raise OptionError("option startingOffsets: a batch that begins at the latest offset reads nothing")
    return options


def for_stream(options: ReadOptions) -> ReadOptions:
    """Refuse what has no meaning in a stream."""
    _refuse(options, BATCH_ONLY, "a batch", "readStream")
    return options


def _refuse(options: ReadOptions, names: Mapping[str, str], meant_for: str, used: str) -> None:
    for attribute, name in names.items():
        if getattr(options, attribute):
            raise OptionError(f"option {name} is for {meant_for} and means nothing to spark.{used}")

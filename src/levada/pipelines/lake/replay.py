"""replay: archived records to a topic, in order, by time range, at a chosen speed, exactly once.

The records are cut into slices of time. Each slice is one write of the sink under a transaction version, which the
sink commits once however often it is repeated, so a killed replay continues when it is started again. The first start
fixes the end offsets of the lake and keeps them in the checkpoint: later records are not replayed.

Timestamps need not rise with offsets. A slice therefore ends in each partition before the first record whose timestamp
is in a later slice; the order of records within a partition never changes.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import reduce
from itertools import groupby
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.model import NO_TIMESTAMP
from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import LakeError
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.history import read_archived
from levada.pipelines.lake.lake import check_lake, open_lake
from levada.pipelines.runs.queries import Batch, DriverQuery, RunningPipeline
from levada.pipelines.topics import create_topics, find_topic, timestamp_limits
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SLICE_ROWS = 1_000_000  # without a speed
SLICE_SECONDS = 1.0  # of real time, with a speed
FILE_GONE = ("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND")  # error conditions of Spark
HOUR_MS = 3_600_000
TRIES = 3  # compaction may replace files while they are read

AFTER_MAX, BEFORE_MAX = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
ANY_TIME_MS = (1 << 63) - 1

Offsets = Mapping[int, int]  # by partition
Times = tuple[int, int]  # the oldest and the newest timestamp


class ReplayRequest(NamedTuple):
    """The arguments of a replay, kept in plan.json; all but the speed are fixed by the first start."""

    topic: str
    lake: str
    to: str
    start_ms: int | None = None  # timestamps from this one on,
    end_ms: int | None = None  # and before this one
    speed: float | None = None  # a multiple of the original speed; None for as fast as possible
    by_key: bool = False  # to partitions by key; otherwise to the original partitions


class ReplayPlan(NamedTuple):
    """Fixed by the first start and kept in plan.json."""

    id: str  # the application id of the sink's transactions
    ends: Offsets  # the end offsets of the lake
    span_ms: int
    rows_min: int  # of a slice
    topic_id: str | None = None  # of the target topic, where brokers have topic ids


class Bucket(NamedTuple):
    """The records of a partition in one span of time."""

    partition: int
    span: int  # the number of the span; all spans have the same length
    first_offset: int
    rows: int


class Slice(NamedTuple):
    """The records of one batch."""

    span: int  # the number of its last span of time
    begins: Offsets
    ends: Offsets
    rows: int  # approximate where timestamps do not rise with offsets

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """By partition: the first offset and the one after the last, without empty partitions."""
        found = {index: (self.begins[index], end) for index, end in self.ends.items()}
        return {index: offsets for index, offsets in found.items() if offsets[0] < offsets[1]}


def slices(buckets: Iterable[Bucket], ends: Offsets, rows_min: int) -> Iterator[Slice]:
    """All records before `ends` in slices of at least `rows_min` records, except for the last (pure)."""
    by_span = sorted(buckets, key=lambda bucket: bucket.span)
    spans = [(span, list(found)) for span, found in groupby(by_span, key=lambda bucket: bucket.span)]
    first = _first_offsets(by_span)
    begins: Offsets = {index: min(end, first.get(index, end)) for index, end in ends.items()}
    span_ends = _span_ends([found for _, found in spans], ends)
    rows = 0
    for position, (span, found) in enumerate(spans):
        rows += sum(bucket.rows for bucket in found)
        if rows >= rows_min or position == len(spans) - 1:
            yield Slice(span, begins, span_ends[position], rows)
            begins, rows = span_ends[position], 0


def _first_offsets(buckets: Iterable[Bucket]) -> dict[int, int]:
    first: dict[int, int] = {}
    for bucket in buckets:
        first[bucket.partition] = min(bucket.first_offset, first.get(bucket.partition, bucket.first_offset))
    return first


def _span_ends(spans: list[list[Bucket]], ends: Offsets) -> list[Offsets]:
    """The end offsets of each span: before the first record of all later spans."""
    result: list[Offsets] = [ends]
    for buckets in reversed(spans[1:]):
        before = dict(result[-1])
        for bucket in buckets:
            before[bucket.partition] = min(before[bucket.partition], bucket.first_offset)
        result.append(before)
    return result[::-1]


@from_environment
def replay(
    topic: str,
    lake: str,
    to: str,
    *,
    bootstrap: str = BOOTSTRAP,
    start: datetime | None = None,
    end: datetime | None = None,
    speed: float | None = None,
    by_key: bool = False,
    checkpoint: str | None = None,
    spark: "SparkSession | None" = None,
    name: str = "replay",
    **options: str,
) -> RunningPipeline:
    """Send the archived records of `topic` to the topic `to`, with keys, values, headers and timestamps unchanged.

    Typed keys and values are sent as JSON. `start` and `end` limit the timestamps. `speed` 1 is the original speed, 10
    is ten times that, None is as fast as possible. A record goes to its original partition, or by its key. The topic is
    created if it does not exist. `options` are those of writing with `format("levada")`. The checkpoint is in the lake
    by default.
    """
    if speed is not None and speed <= 0:
        raise ValueError(f"invalid speed {speed:g}: it must be above 0")
    request = ReplayRequest(topic, lake, to, _ms(start), _ms(end), speed, by_key)
    spark = session_or(spark)
    files = Files(spark, checkpoint or f"{lake.rstrip('/')}/_levada/replays/{name}")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": to} | options
    query = DriverQuery(name, spark, Replay(spark, request, files, options).batches)
    return RunningPipeline(name, [query.start()])


def _ms(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


class Replay:
    """Runs the batches of a replay."""

    def __init__(
        self, spark: "SparkSession", request: ReplayRequest, checkpoint: Files, options: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._request = request
        self._checkpoint = checkpoint
        self._options = options
        self._bootstrap = options["kafka.bootstrap.servers"]

    def batches(self, stopped: threading.Event) -> Iterator[Batch]:
        """Send slice by slice from where the last run ended, each when it is due."""
        started = self._load_plan()
        plan = started or self._new_plan()
        buckets, times = self._buckets(plan)
        todo, first = list(slices(buckets, plan.ends, plan.rows_min)), self._first_slice()
        if first < len(todo):
            left = [times[span] for span in times if not first or span > todo[first - 1].span]
            found = (min(oldest for oldest, _ in left), max(newest for _, newest in left)) if left else None
            plan = self._with_topic(plan, is_new=started is None, times=found)
        if started is None:
            content = {"wanted": self._request._asdict(), "plan": plan._asdict()}
            self._checkpoint.write("plan.json", json.dumps(content))
        total, done = sum(one.rows for one in todo), 0
        origin = time.monotonic()
        for number, one in enumerate(todo):
            done += one.rows
            if number < first:
                continue
            if self._request.speed is not None:
                spans = one.span - todo[min(first, len(todo) - 1)].span
                due = origin + spans * plan.span_ms / 1000 / self._request.speed
                if stopped.wait(min(max(0.0, due - time.monotonic()), threading.TIMEOUT_MAX)):
                    return
            self._send(plan, number, one)
            self._checkpoint.write("done", str(number + 1))
            yield Batch(number, one.rows, done, total)

    def _first_slice(self) -> int:
        return int(self._checkpoint.read("done")) if self._checkpoint.exists("done") else 0

    def _with_topic(self, plan: ReplayPlan, *, is_new: bool, times: Times | None) -> ReplayPlan:
        """The plan with the id of the target topic, which is created for a new plan if it does not exist.

        Raises LakeError if the topic is another one than at the first start, has too few partitions, or does not take
        or keep records of these times.
        """
        bootstrap, to, count = self._bootstrap, self._request.to, max(plan.ends, default=0) + 1
        if times is not None and times[0] < 0:
            raise LakeError(
                f"the records begin at {_minute(times[0])} (UTC), and Kafka's clients do not send timestamps before "
                "1970. Nothing was sent; to replay the later records: --from 1970-01-01"
            )
        if is_new:
            configs = {"retention.ms": "-1"}  # the records may be of any age
            if times is not None and times[1] > time.time() * 1000:  # not every broker knows this setting
                configs[AFTER_MAX] = str(ANY_TIME_MS)
            create_topics(bootstrap, [to], count, configs)
        topic = find_topic(bootstrap, to)
        topic_id = None if topic is None or topic.topic_id is None else str(topic.topic_id)
        if topic is None and is_new:
            raise LakeError(f"topic {to} was created, but brokers do not know it yet; try again")
        if topic is None or (plan.topic_id and topic_id and topic_id != plan.topic_id):
            raise LakeError(
                f"topic {to} was deleted since this replay started, with the records it had sent; to send all of them "
                "to a topic of that name, start a replay under another name (--name)"
            )
        partitions = len(topic.partitions)
        if partitions < count and not self._request.by_key:
            raise LakeError(
                f"the records are of {count} partitions, and topic {to} has {partitions}: send them to "
                "partitions by key (--by-key), or to a topic that does not exist yet"
            )
        if times is not None:
            self._check_times(*times)
        return plan._replace(topic_id=topic_id)

    def _check_times(self, oldest_ms: int, newest_ms: int) -> None:
        """Raise LakeError if the target topic would refuse records of these times, or delete them at once."""
        to, now_ms = self._request.to, time.time() * 1000
        limits = timestamp_limits(self._bootstrap, to)
        begin, end = f"begin at {_minute(oldest_ms)}", f"end at {_minute(newest_ms)}"
        for limit, setting, exceeded, does, when in (
            (limits.retention_ms, "retention.ms", now_ms - oldest_ms, "deletes records older than", begin),
            (limits.before_max_ms, BEFORE_MAX, now_ms - oldest_ms, "refuses timestamps before now by more than", begin),
            (limits.after_max_ms, AFTER_MAX, newest_ms - now_ms, "refuses timestamps after now by more than", end),
        ):
            if limit is not None and exceeded > limit:
                any_time = -1 if setting == "retention.ms" else ANY_TIME_MS
                raise LakeError(
                    f"topic {to} {does} {limit / HOUR_MS:g} hours ({setting}), and the records of this replay {when} "
                    f"(UTC). Nothing was sent; change the setting (levada config set topic {to} {setting}={any_time}), "
                    "or send to a new topic, which takes and keeps them"
                )

    def _load_plan(self) -> ReplayPlan | None:
        """The plan of the first start, if there was one; LakeError if its arguments differ from these."""
        if not self._checkpoint.exists("plan.json"):
            return None
        content = json.loads(self._checkpoint.read("plan.json"))
        first = ReplayRequest(**content["wanted"])
        if first._replace(speed=self._request.speed) != self._request:
            changed = ", ".join(
                f"{field} was {value}"
                for field, value in first._asdict().items()
                if value != getattr(self._request, field) and field != "speed"
            )
            raise LakeError(
                f"a replay of this name was started with other arguments ({changed}); choose another name (--name)"
            )
        if first.speed is None and self._request.speed is not None:
            raise LakeError(
                "a replay of this name was started without a speed and continues in large batches; for a replay at "
                "this speed choose another name (--name)"
            )
        ends = {int(index): end for index, end in content["plan"].pop("ends").items()}
        return ReplayPlan(ends=ends, **content["plan"])

    def _new_plan(self) -> ReplayPlan:
        from pyspark.sql.functions import max as greatest

        found = self._rows().groupBy("partition").agg((greatest("offset") + 1).alias("end")).collect()
        ends = {row.partition: row.end for row in found}
        if not ends:
            raise LakeError(f"the lake {self._request.lake} has no records of {self._request.topic} in this time range")
        speed = self._request.speed
        span_ms = max(1, round(SLICE_SECONDS * 1000 * (speed or 60)))
        return ReplayPlan(uuid.uuid4().hex, ends, span_ms, SLICE_ROWS if speed is None else 1)

    def _rows(self) -> "DataFrame":
        """The archived records of the requested time range."""
        from pyspark.sql.functions import col

        request = self._request
        check_lake(self._spark, request.lake)
        rows = read_archived(open_lake(self._spark, request.lake), request.topic, self._spark)
        if rows is None:
            raise LakeError(f"the lake {request.lake} has no records of {request.topic}")
        if request.start_ms is not None:
            rows = rows.where(col("timestamp") >= datetime.fromtimestamp(request.start_ms / 1000, UTC))
        if request.end_ms is not None:
            rows = rows.where(col("timestamp") < datetime.fromtimestamp(request.end_ms / 1000, UTC))
        return rows

    def _buckets(self, plan: ReplayPlan) -> tuple[list[Bucket], dict[int, Times]]:
        """The records by partition and span of time, and the oldest and newest timestamp of each span.

        Records without a timestamp are in the first span, and in a later one where those before them are.
        """
        from pyspark.sql.functions import count, expr, lit
        from pyspark.sql.functions import max as greatest
        from pyspark.sql.functions import min as least

        time_ms = expr(f"nullif(unix_millis(timestamp), {NO_TIMESTAMP})")
        found = (
            _in_ranges(self._rows(), {index: (0, end) for index, end in plan.ends.items()})
            .withColumn("time_ms", time_ms)
            .groupBy("partition", expr(f"time_ms div {plan.span_ms}").alias("span"))
            .agg(least("offset"), count(lit(1)), least("time_ms"), greatest("time_ms"))
            .collect()
        )
        times: dict[int, Times] = {}
        for _, span, _, _, oldest, newest in found:
            if span is not None:
                known = times.get(span, (oldest, newest))
                times[span] = min(oldest, known[0]), max(newest, known[1])
        first = min(times, default=0)
        return [Bucket(index, first if span is None else span, *rest[:2]) for index, span, *rest in found], times

    def _send(self, plan: ReplayPlan, number: int, one: Slice) -> None:
        """Write one slice; the records of one partition go through one task, in order."""
        for tries_left in reversed(range(TRIES)):
            try:
                rows = _in_ranges(self._rows(), one.ranges)
                columns: list[Any] = [_sent(rows, "key"), _sent(rows, "value"), "headers", "timestamp"]
                rows = rows.repartition("partition").sortWithinPartitions("partition", "offset")
                rows = rows.select(*columns if self._request.by_key else [*columns, "partition"])
                writer = rows.write.format("levada").mode("append").options(**self._options)
                writer.option("txnAppId", f"replay-{plan.id}").option("txnVersion", number).save()
                return
            except Exception as error:
                if not tries_left or not is_file_gone(error):
                    raise


def _sent(rows: "DataFrame", column: str) -> "Column":
    """The keys or values as they were sent; typed ones as JSON without fields that are null, plain types as text."""
    from pyspark.sql.functions import coalesce, col, to_json
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    from levada.spark.read.rows import MALFORMED

    kind, sent = rows.schema[column].dataType, col(column)
    if isinstance(kind, StructType | ArrayType | MapType):
        sent = to_json(sent)
    elif not isinstance(kind, BinaryType):
        sent = sent.cast("string")
    malformed = [col(name) for name in rows.columns if name == MALFORMED[column]]
    return coalesce(sent.cast("binary"), *malformed).alias(column)


def is_file_gone(error: Exception) -> bool:
    """Whether Spark failed because a file of the query was removed before it was read."""
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        return error.getCondition() in FILE_GONE
    gateway = SparkContext._gateway
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    while cause is not None:  # the error of a task that was retried is below that of its job
        is_spark_error = is_instance_of(gateway, cause, "org.apache.spark.SparkThrowable")
        if is_spark_error and cause.getCondition() in FILE_GONE:
            return True
        cause = cause.getCause()
    return False


def _minute(time_ms: int) -> str:
    """A time in UTC, of any year."""
    import numpy as np

    return str(np.datetime64(time_ms, "ms").astype("datetime64[m]")).replace("T", " ")


def _in_ranges(rows: "DataFrame", ranges: Mapping[int, tuple[int, int]]) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    each: list[Any] = [
        (col("partition") == index) & (col("offset") >= first) & (col("offset") < end)
        for index, (first, end) in ranges.items()
    ]
    return rows.where(reduce(or_, each, lit(False)))

"""replay: records of a lake to a topic, in order, by time range, at a chosen speed, exactly once (R61).

The records are cut into slices of time. Each slice is one write under a number, which the sink does once however often
it is asked, so a replay that was killed is started again and goes on. What is to be replayed is settled at its first
start, by the offsets up to which the lake reaches then, and kept in its checkpoint.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.pipelines.flows.flow import make_topics
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.formats import check_lake, open_lake
from levada.pipelines.lake.history import archived
from levada.pipelines.lake.lake import LakeError
from levada.pipelines.lake.slices import Bucket, Slice, slices
from levada.pipelines.runs.queries import Running
from levada.pipelines.runs.steps import Step, Steps
from levada.pipelines.topics import kept_ms, there
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_SLICE = 1_000_000  # where no speed is asked for
SECONDS_A_SLICE = 1.0  # of real time, where one is
GONE = ("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND")  # conditions of Spark's errors
HOUR_MS = 3_600_000
TRIES = 3  # files that a reader is at may be joined to larger ones meanwhile


class Wanted(NamedTuple):
    """What a replay was asked for; a run that goes on must be asked for the same, but for its speed."""

    topic: str
    lake: str
    to: str
    start_ms: int | None = None  # the time of the first record, and
    end_ms: int | None = None  # before that of the last
    speed: float | None = None  # times as fast as they came; None for as fast as possible
    by_key: bool = False  # to partitions by key; otherwise to those they came from


class Plan(NamedTuple):
    """What its first start settled."""

    id: str  # under which the sink knows it
    ends: Mapping[int, int]  # of the lake then
    span_ms: int
    rows_min: int  # of a slice
    topic_id: str | None = None  # of the topic it sends to, where brokers give topics ids


def replay(
    topic: str,
    lake: str,
    to: str,
    *,
    bootstrap: str = "127.0.0.1:9092",
    start: datetime | None = None,
    end: datetime | None = None,
    speed: float | None = None,
    by_key: bool = False,
    checkpoint: str | None = None,
    spark: "SparkSession | None" = None,
    name: str = "replay",
    **options: str,
) -> Running:
    """Send what `lake` has of `topic` to the topic `to`, with keys, values, headers and times as they were.

    `start` and `end` limit the times of records; `speed` 1 sends them as fast as they came, 10 ten times as fast,
    None as fast as possible. A record goes to the partition it came from, or by its key; the topic is made if it is
    not there. `options` are those of writing with `format("levada")`. The checkpoint is kept in the lake unless told
    otherwise.
    """
    if speed is not None and speed <= 0:
        raise ValueError(f"a replay cannot have the speed {speed:g}; it must be above 0")
    wanted = Wanted(topic, lake, to, _ms(start), _ms(end), speed, by_key)
    spark = session_or(spark)
    kept = Files(spark, checkpoint or f"{lake.rstrip('/')}/_levada/replays/{name}")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": to} | options
    return Running(name, [Steps(name, spark, Replayer(spark, wanted, kept, options).steps).start()])


def _ms(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


class Replayer:
    """Takes the steps of a replay."""

    def __init__(
        self, spark: "SparkSession", wanted: Wanted, kept: Files, options: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._wanted = wanted
        self._kept = kept
        self._options = options
        self._bootstrap = options["kafka.bootstrap.servers"]

    def steps(self, stopped: threading.Event) -> Iterator[Step]:
        """Slice by slice, from where the last run ended; each when its time has come."""
        begun = self._begun()
        plan = begun or self._new_plan()
        buckets, oldest = self._buckets(plan)
        todo, first = list(slices(buckets, plan.ends, plan.rows_min)), self._first()
        if first < len(todo):
            plan = self._with_topic(plan, is_new=begun is None)
            self._check_kept(min(oldest[span] for span in oldest if not first or span > todo[first - 1].span))
        if begun is None:
            content = {"wanted": self._wanted._asdict(), "plan": plan._asdict()}
            self._kept.write("plan.json", json.dumps(content))
        wanted, done = sum(one.rows for one in todo), 0
        origin = time.monotonic()
        for number, one in enumerate(todo):
            done += one.rows
            if number < first:
                continue
            if self._wanted.speed is not None:
                spans = one.span - todo[min(first, len(todo) - 1)].span
                due = origin + spans * plan.span_ms / 1000 / self._wanted.speed
                if stopped.wait(max(0.0, due - time.monotonic())):
                    return
            self._send(plan, number, one)
            self._kept.write("done", str(number + 1))
            yield Step(number, one.rows, done, wanted)

    def _first(self) -> int:
        return int(self._kept.read("done")) if self._kept.exists("done") else 0

    def _with_topic(self, plan: Plan, *, is_new: bool) -> Plan:
        """The plan with the topic it sends to, made for a new one unless it is there.

        LakeError if it is another than the one it began with, or cannot take what is to be sent.
        """
        bootstrap, to, count = self._bootstrap, self._wanted.to, max(plan.ends, default=0) + 1
        if is_new:
            make_topics(bootstrap, [to], count, {"retention.ms": "-1"})  # what is sent may be of any age
        topic = there(bootstrap, to)
        found_id = None if topic is None or topic.topic_id is None else str(topic.topic_id)
        if topic is None and is_new:
            raise LakeError(f"topic {to} was made, and brokers do not know it yet; try again")
        if topic is None or (plan.topic_id and found_id and found_id != plan.topic_id):
            raise LakeError(
                f"topic {to} was deleted since this replay began, with what it had sent; to send all of it to the "
                "topic of that name, begin a replay under another name (--name)"
            )
        has = len(topic.partitions)
        if has < count and not self._wanted.by_key:
            raise LakeError(
                f"the records are of {count} partitions, and topic {to} has {has}: send them to "
                "partitions by their keys (--by-key), or to a topic that is not there yet"
            )
        return plan._replace(topic_id=found_id)

    def _check_kept(self, oldest_ms: int) -> None:
        """LakeError if the topic, which was there before, deletes records of this time as soon as it has them."""
        to = self._wanted.to
        kept = kept_ms(self._bootstrap, to)
        if kept is not None and oldest_ms < time.time() * 1000 - kept:
            oldest = datetime.fromtimestamp(oldest_ms / 1000, UTC)
            raise LakeError(
                f"topic {to} deletes records that are older than {kept / HOUR_MS:g} hours (retention.ms), and those to "
                f"be sent begin at {oldest:%Y-%m-%d %H:%M} (UTC): they would be gone soon after they came. Let it keep "
                f"them (levada config set topic {to} retention.ms=-1), or send to a new topic, which will keep them"
            )

    def _begun(self) -> Plan | None:
        """The plan of the first start, if there was one."""
        if not self._kept.exists("plan.json"):
            return None
        content = json.loads(self._kept.read("plan.json"))
        begun = Wanted(**content["wanted"])
        if begun._replace(speed=self._wanted.speed) != self._wanted:
            was = {
                field: value
                for field, value in begun._asdict().items()
                if value != getattr(self._wanted, field) and field != "speed"
            }
            told = ", ".join(f"{field} was {value}" for field, value in was.items())
            raise LakeError(
                f"a replay under this name was begun otherwise ({told}); give this one another name (--name)"
            )
        if begun.speed is None and self._wanted.speed is not None:
            raise LakeError(
                "a replay under this name was begun without a speed, in large steps, and goes on so; for one at this "
                "speed, give another name (--name)"
            )
        ends = {int(index): end for index, end in content["plan"].pop("ends").items()}
        return Plan(ends=ends, **content["plan"])

    def _new_plan(self) -> Plan:
        from pyspark.sql.functions import max as greatest

        found = self._rows().groupBy("partition").agg((greatest("offset") + 1).alias("end")).collect()
        ends = {row.partition: row.end for row in found}
        if not ends:
            raise LakeError(
                f"the lake {self._wanted.lake} has no records of {self._wanted.topic} of that time"
            )
        speed = self._wanted.speed
        span_ms = max(1, round(SECONDS_A_SLICE * 1000 * (speed or 60)))
        return Plan(uuid.uuid4().hex, ends, span_ms, ROWS_A_SLICE if speed is None else 1)

    def _rows(self) -> "DataFrame":
        """What the lake has now of the time that is wanted."""
        from pyspark.sql.functions import col

        wanted = self._wanted
        check_lake(self._spark, wanted.lake)
        rows = archived(open_lake(self._spark, wanted.lake), wanted.topic, self._spark)
        if rows is None:
            raise LakeError(f"there are no records of {wanted.topic} in the lake {wanted.lake}")
        if wanted.start_ms is not None:
            rows = rows.where(col("timestamp") >= datetime.fromtimestamp(wanted.start_ms / 1000, UTC))
        if wanted.end_ms is not None:
            rows = rows.where(col("timestamp") < datetime.fromtimestamp(wanted.end_ms / 1000, UTC))
        return rows

    def _buckets(self, plan: Plan) -> tuple[list[Bucket], dict[int, int]]:
        """How the records are spread over time, and of each span of it the time of the oldest."""
        from pyspark.sql.functions import count, expr, lit
        from pyspark.sql.functions import min as least

        found = (
            _within(self._rows(), {index: (0, end) for index, end in plan.ends.items()})
            .groupBy("partition", expr(f"unix_millis(timestamp) div {plan.span_ms}").alias("span"))
            .agg(least("offset"), count(lit(1)), least(expr("unix_millis(timestamp)")))
            .collect()
        )
        oldest: dict[int, int] = {}
        for _, span, _, _, time_ms in found:
            oldest[span] = min(time_ms, oldest.get(span, time_ms))
        return [Bucket(*bucket) for *bucket, _ in found], oldest

    def _send(self, plan: Plan, number: int, one: Slice) -> None:
        """Write one slice, in order: what came from one partition goes through one task."""
        for left in reversed(range(TRIES)):
            try:
                rows = _within(self._rows(), one.ranges)
                columns = ["key", "value", "headers", "timestamp"]
                rows = rows.repartition("partition").sortWithinPartitions("partition", "offset")
                rows = rows.select(*columns if self._wanted.by_key else [*columns, "partition"])
                writer = rows.write.format("levada").mode("append").options(**self._options)
                writer.option("txnAppId", f"replay-{plan.id}").option("txnVersion", number).save()
                return
            except Exception as error:
                if not left or not files_went(error):
                    raise


def files_went(error: Exception) -> bool:
    """Whether Spark failed because files are gone that were there when it was asked to read them."""
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        return error.getCondition() in GONE
    gateway = SparkContext._gateway
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    while (
        cause is not None
    ):  # where a task was tried more than once, the error of the job is around that of the file
        if is_instance_of(gateway, cause, "org.apache.spark.SparkThrowable") and cause.getCondition() in GONE:
            return True
        cause = cause.getCause()
    return False


def _within(rows: "DataFrame", ranges: Mapping[int, tuple[int, int]]) -> "DataFrame":
    from pyspark.sql.functions import col, lit

    each: list[Any] = [
        (col("partition") == index) & (col("offset") >= first) & (col("offset") < end)
        for index, (first, end) in ranges.items()
    ]
    return rows.where(reduce(or_, each, lit(False)))

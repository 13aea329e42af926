"""archive: topics to a lake, exactly once (R61).

A streaming query whose every micro-batch becomes one commit of the lake. Where the lake ends is the truth: every run
claims the lake and begins there, with a checkpoint of its own, so that it shares nothing with those before it, which
may still be at work; they fail with their next batch. A batch adds only what the lake does not have.

Offsets mean something in one topic only: with a topic's first records the lake keeps its id, and a topic of that name
with another one, made after it was deleted, is refused, also if that happens while a run is at work.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from levada.model import TopicPartition
from levada.pipelines.lake.compaction import SIZES, Sizes
from levada.pipelines.lake.files import Files
from levada.pipelines.lake.formats import AnyLake, open_lake, tidy, told_of
from levada.pipelines.lake.lake import Ids, LakeError, Positions, merged
from levada.pipelines.runs.queries import Running
from levada.pipelines.topics import beginnings, check_same, topic_ids
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINTS = "_levada/checkpoint"
NO_TOPIC = "__HIVE_DEFAULT_PARTITION__"  # as directories have it


def archive(
    topics: Sequence[str],
    to: str,
    *,
    bootstrap: str = "127.0.0.1:9092",
    once: bool = False,
    every: str = "10 seconds",
    lake_format: str | None = None,
    sizes: Sizes = SIZES,
    spark: "SparkSession | None" = None,
    name: str = "archive",
    **options: str,
) -> Running:
    """Keep the topics' records in the lake `to`, a path that Spark can write; `once` ends when all is there.

    `every` is how often a batch is committed; `lake_format` is parquet, the default of a new lake, or delta;
    `options` are those of `format("levada")`. A lake has one writer: whoever wrote to it before fails.
    """
    if NO_TOPIC in topics:
        raise LakeError(f"topic {NO_TOPIC} cannot be kept: in a lake that means a record of no topic")
    spark = session_or(spark)
    with told_of(to):
        lake = open_lake(spark, to, lake_format)
    begins = beginnings(bootstrap, topics, options)
    ask = partial(topic_ids, bootstrap, topics, options)
    ids = ask()
    check_same(lake, ids)
    with told_of(to):
        journal = claimed(lake, {topic: ids[topic] for topic in known_ends(lake, begins) if topic in ids})
    source = (
        spark.readStream.format("levada")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", starting_offsets(known_ends(lake, begins), begins))
        .options(**options)
    )
    writer = Archivist(lake, sizes, journal, ids, ask)
    stream = (
        source.load()
        .writeStream.queryName(name)
        .option("checkpointLocation", journal.root)
        .foreachBatch(writer.take)
    )
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)
    return Running(name, [stream.start()])


def claimed(lake: AnyLake, ids: Ids) -> Files:
    """Become the lake's writer: the place of this run's checkpoint, in the lake; those of runs long over go."""
    lake.claim(ids)
    number = lake.claimed.partition("-")[0]
    older = [name for name in lake.files.names(CHECKPOINTS) if name.partition("-")[0] < number]
    for name in older[:-1]:  # the last one may be at work until its next batch, and shall be told then
        lake.files.remove(f"{CHECKPOINTS}/{name}")
    return lake.files.below(f"{CHECKPOINTS}/{lake.claimed}")


def starting_offsets(ends: Positions, begins: Mapping[TopicPartition, int]) -> str:
    """Where the lake ends; in partitions that it does not know, where the log begins (pure)."""
    places: dict[str, dict[str, int]] = {}
    for place, begin in begins.items():
        places.setdefault(place.topic, {})[str(place.partition)] = ends.get(place.topic, {}).get(
            place.partition, begin
        )
    return json.dumps(places)


def known_ends(lake: AnyLake, places: Iterable[TopicPartition]) -> Positions:
    """Where the lake ends in these partitions; only of topics and partitions that it knows."""
    asked: dict[str, list[int]] = {}
    for place in places:
        asked.setdefault(place.topic, []).append(place.partition)
    found = {topic: lake.ends(topic, partitions) for topic, partitions in asked.items()}
    return {topic: ends for topic, ends in found.items() if ends}


class Archivist:
    """Writes micro-batches into the lake."""

    def __init__(
        self,
        lake: AnyLake,
        sizes: Sizes,
        checkpoint: Files,
        ids: Ids,
        ask: Callable[[], Ids],
    ) -> None:
        self._lake = lake
        self._sizes = sizes
        self._checkpoint = checkpoint
        self._ids = ids  # of the topics at the start
        self._ask = ask  # for those of now

    def take(self, batch: "DataFrame", number: int) -> None:
        """One micro-batch, which may be in the lake already."""
        try:
            self._keep(batch, number)
        except Exception:
            self._lake.check()  # what is missing may have been removed by another writer, and that is the reason then
            raise

    def _keep(self, batch: "DataFrame", number: int) -> None:
        ends = batch_ends(self._checkpoint, number)
        begins = batch_ends(self._checkpoint, number - 1) if number else {}
        known = {topic: self._lake.ends(topic, told) for topic, told in ends.items()}
        if known != merged(known, ends):  # the batch goes further than the lake
            self._lake.add(without(batch, known, begins), ends, self._same_topics)
            tidy(batch.sparkSession, self._lake, self._sizes)
        else:
            self._same_topics()

    def _same_topics(self) -> Ids:
        """The ids of the topics: what was read until now is of these."""
        now = self._ask()
        check_same(self._lake, now)
        for topic, topic_id in now.items():
            if self._ids.get(topic, topic_id) != topic_id:
                raise LakeError(
                    f"topic {topic} was deleted and made again while it was archived; run it again"
                )
        return now


def without(batch: "DataFrame", known: Positions, begins: Positions) -> "DataFrame":
    """The records at or after the lake's ends; nothing is filtered where the batch begins there anyway."""
    from pyspark.sql.functions import col

    for topic, ends in known.items():
        for index, end in ends.items():
            if begins.get(topic, {}).get(index, 0) < end:
                older = (col("topic") == topic) & (col("partition") == index) & (col("offset") < end)
                batch = batch.where(~older)
    return batch


def batch_ends(checkpoint: Files, number: int) -> Positions:
    """Where a micro-batch ends, by the journal that Spark writes before it runs one."""
    name = f"offsets/{number}"
    try:
        ends = json.loads(checkpoint.read(name).splitlines()[2])
        while isinstance(ends, str):
            ends = json.loads(ends)
        return {topic: {int(index): end for index, end in told.items()} for topic, told in ends.items()}
    except (ValueError, LookupError, AttributeError):
        path = checkpoint.path(name)
        raise LakeError(f"{path} is damaged; run it again: it begins where the lake ends") from None

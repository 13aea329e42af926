"""archive: topics to a lake, exactly once.

A streaming query commits each micro-batch to the lake. The end offsets of the lake are authoritative: every run claims
the lake and starts there, with a checkpoint of its own. It shares nothing with earlier runs, which may still be alive
and fail at their next batch. A batch adds only records that the lake does not have.

Offsets belong to one topic. The lake keeps a topic's id with its first records, and a topic of the same name with
another id (deleted and created again) is rejected, also during a run.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from levada.model import TopicPartition
from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.errors import LakeError
from levada.pipelines.lake.commits import COMPACTION, CompactionPolicy, EndOffsets, TopicIds, merge_offsets
from levada.pipelines.lake.files import NULL_PARTITION, Files
from levada.pipelines.lake.lake import Lake, lake_errors, open_lake
from levada.pipelines.lake.tables import LakeTable
from levada.pipelines.runs.queries import RunningPipeline
from levada.pipelines.topics import check_topic_ids, earliest_offsets, topic_ids
from levada.spark.errors import warn
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CHECKPOINTS = "_levada/checkpoint"


@from_environment
def archive(
    topics: Sequence[str],
    to: str,
    *,
    bootstrap: str = BOOTSTRAP,
    once: bool = False,
    every: str = "10 seconds",
    lake_format: str | None = None,
    compaction: CompactionPolicy = COMPACTION,
    table: str | None = None,
    spark: "SparkSession | None" = None,
    name: str = "archive",
    **options: str,
) -> RunningPipeline:
    """Archive the topics' records to the lake `to`, a path that Spark can write.

    With `once` the query ends when all available records are archived. `every` is the interval of micro-batches.
    `lake_format` is parquet, the default of a new lake, or delta. `table` is the lake's name in Spark's catalog, for
    SQL (see `register`). `options` are those of `format("levada")`. A lake has one writer: an earlier one fails.
    """
    session = session_or(spark)
    lake = _open(session, topics, to, lake_format)
    begins = earliest_offsets(bootstrap, topics, options)
    read_ids = partial(topic_ids, bootstrap, topics, options)
    ids = read_ids()
    check_topic_ids(lake, ids)
    lake_table = None if table is None else LakeTable(lake, table, session)
    source = session.readStream.option("kafka.bootstrap.servers", bootstrap).option("subscribe", ",".join(topics))

    def load() -> "tuple[EndOffsets, DataFrame]":
        ends = archived_ends(lake, begins)
        found = source.option("startingOffsets", starting_offsets(ends, begins)).options(**options)
        return ends, found.load(format="levada")

    ends, records = load()
    with lake_errors(to):
        _check_schema(lake, topics, records.schema, as_table=table is not None)
        checkpoint = claim(lake, {topic: ids[topic] for topic in ends if topic in ids})
        lake.vacuum(compaction.retention_ms)
    if archived_ends(lake, begins) != ends:  # the previous writer committed until the claim
        ends, records = load()
    stream = records.writeStream.queryName(name).option("checkpointLocation", checkpoint.root)
    stream = stream.foreachBatch(BatchWriter(lake, compaction, checkpoint, ids, read_ids, lake_table).write)
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)
    return RunningPipeline(name, [stream.start()])


def _open(spark: "SparkSession", topics: Sequence[str], path: str, lake_format: str | None) -> Lake:
    """The lake for these topics."""
    if NULL_PARTITION in topics:
        raise LakeError(f"topic {NULL_PARTITION} cannot be archived: in a lake this name stands for null")
    with lake_errors(path):
        return open_lake(spark, path, lake_format)


def _check_schema(lake: Lake, topics: Sequence[str], schema: "StructType", *, as_table: bool) -> None:
    """Raise LakeError if records of this schema cannot be added; warn if topics cannot be read together then."""
    lake.check_schema(topics, schema, as_table=as_table)
    try:
        lake.check_schema(topics, schema, as_table=True)
    except LakeError as error:
        warn(f"{error}. Spark cannot read the directory of the whole lake")


def claim(lake: Lake, ids: TopicIds) -> Files:
    """Become the lake's writer; return the directory of this run's checkpoint, and remove those of old runs."""
    lake.claim(ids)
    number = lake.claim_name.partition("-")[0]
    older = [name for name in lake.files.names(CHECKPOINTS) if name.partition("-")[0] < number]
    for name in older[:-1]:  # the previous run may be alive until its next batch, which must fail as fenced
        lake.files.remove(f"{CHECKPOINTS}/{name}")
    return lake.files.below(f"{CHECKPOINTS}/{lake.claim_name}")


def starting_offsets(ends: EndOffsets, begins: Mapping[TopicPartition, int]) -> str:
    """The end offsets of the lake; the earliest offset of the log for partitions that it does not have (pure)."""
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), begin in begins.items():
        offsets.setdefault(topic, {})[str(partition)] = ends.get(topic, {}).get(partition, begin)
    return json.dumps(offsets)


def archived_ends(lake: Lake, partitions: Iterable[TopicPartition]) -> EndOffsets:
    """The end offsets of the archived ones of these partitions."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    found = {topic: lake.end_offsets(topic, indexes) for topic, indexes in by_topic.items()}
    return {topic: ends for topic, ends in found.items() if ends}


class BatchWriter:
    """Commits micro-batches to the lake."""

    def __init__(
        self,
        lake: Lake,
        compaction: CompactionPolicy,
        checkpoint: Files,
        ids: TopicIds,
        read_ids: Callable[[], TopicIds],
        table: LakeTable | None = None,
    ) -> None:
        self._lake = lake
        self._compaction = compaction
        self._checkpoint = checkpoint
        self._ids = ids  # of the topics at the start
        self._read_ids = read_ids  # the current ones
        self._table = table
        self._update_table()

    def write(self, batch: "DataFrame", number: int) -> None:
        """Commit one micro-batch, which may be in the lake already."""
        try:
            self._commit(batch, number)
        except Exception:
            self._lake.check()  # the cause may be another writer that removed files
            raise

    def _commit(self, batch: "DataFrame", number: int) -> None:
        ends = batch_ends(self._checkpoint, number)
        begins = batch_ends(self._checkpoint, number - 1) if number else {}
        known = {topic: self._lake.end_offsets(topic, partitions) for topic, partitions in ends.items()}
        if known != merge_offsets(known, ends):  # the batch reaches beyond the lake
            self._lake.add(only_new(batch, known, begins), ends, self._check_topics)
            self._lake.compact(batch.sparkSession, self._compaction)
            self._lake.vacuum(self._compaction.retention_ms)
            self._update_table()
        else:
            self._check_topics()

    def _update_table(self) -> None:
        if self._table is not None:
            self._table.update()

    def _check_topics(self) -> TopicIds:
        """The ids of the topics that were read until now; LakeError if one has changed."""
        ids = self._read_ids()
        check_topic_ids(self._lake, ids)
        for topic, topic_id in ids.items():
            if self._ids.get(topic, topic_id) != topic_id:
                raise LakeError(
                    f"topic {topic} was deleted and created again while it was archived; start the pipeline again"
                )
        return ids


def only_new(batch: "DataFrame", known: EndOffsets, begins: EndOffsets) -> "DataFrame":
    """The records at or after the lake's end offsets; no filter where the batch begins there anyway."""
    from pyspark.sql.functions import col

    for topic, ends in known.items():
        for index, end in ends.items():
            if begins.get(topic, {}).get(index, 0) < end:
                older = (col("topic") == topic) & (col("partition") == index) & (col("offset") < end)
                batch = batch.where(~older)
    return batch


def batch_ends(checkpoint: Files, number: int) -> EndOffsets:
    """The end offsets of a micro-batch, from the offset log that Spark writes before it runs one."""
    name = f"offsets/{number}"
    try:
        ends = json.loads(checkpoint.read(name).splitlines()[2])
        while isinstance(ends, str):
            ends = json.loads(ends)
        return {topic: {int(index): end for index, end in found.items()} for topic, found in ends.items()}
    except (ValueError, LookupError, AttributeError):
        path = checkpoint.path(name)
        raise LakeError(f"{path} is damaged; start the pipeline again: it continues at the end of the lake") from None

"""A stream: where it begins, how far the next micro-batch goes, and who reads what of it.

Spark asks one object of this class in the driver, and tasks read with copies that know nothing of it. Limits do not
compose in Spark's interface, so all are weighed here. What Spark gives as the start of the next micro-batch is
finished work: there, and not in `commit`, which comes late, a group's progress is kept.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from levada.client.errors import FAILURES
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark.failures import told_plainly
from levada.spark.options import OptionError
from levada.spark.read.batch import ReadTask, splitting
from levada.spark.read.bounds import lost, starting
from levada.spark.read.logs import Logs
from levada.spark.read.offsets import from_json, to_json
from levada.spark.read.options import ReadOptions
from levada.spark.read.planning import Limits, Range, Sizes, admitted, average_sizes, tasks
from levada.spark.read.rows import Rows
from levada.spark.session.workers import Travels
from levada.spark.warning import warn

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Positions = dict[TopicPartition, int]

SIZES_AGE_S = 30.0  # averages of whole logs move slowly
LOOKS_MAX = 5  # while topics come and go under the reader


class StreamReader(Travels, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("levada")`."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._options = options
        self._rows = Rows(schema, options)
        self._logs = Logs(options)
        self._ids: dict[TopicPartition, UUID | None] = {}  # as they were last seen
        self._anew: Positions = {}  # where logs begin that were made again since the last micro-batch
        self._seen: Positions | None = None  # where logs ended when last asked
        self._target: Positions | None = None  # where to end for good
        self._committed: Positions = {}
        self._sizes: tuple[float, Sizes] = (-math.inf, {})
        self._triggered = -math.inf

    # Where it begins and goes

    @told_plainly()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as those below)
        self._ids = self._logs.partitions(missing_is_wrong=True)
        earliest, latest = self._logs.earliest(self._ids), self._logs.latest(self._ids)
        found = starting(self._options, self._logs, earliest, latest, "latest")
        for place, offset in found.items():
            if offset > latest[place]:
                raise OptionError(f"option startingOffsets: {place} ends at {latest[place]}, before {offset}")
        return to_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self._limits
        if limits.max_offsets or limits.max_bytes or limits.min_offsets:
            return ReadMaxRows(limits.max_offsets or 2**63 - 1)
        return ReadAllAvailable()

    @told_plainly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._look()

    @told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = from_json(start)
        latest = self._seen = self._look()
        self._commit(begun)
        if self._target is not None:
            latest = {
                place: min(end, self._target[place]) for place, end in latest.items() if place in self._target
            }
        gone = self._find_gone(begun)
        begun |= self._find_new(latest.keys() - begun.keys())
        begun |= self._find_anew(begun, latest)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        waited_ms = (time.monotonic() - self._triggered) * 1000
        end = admitted(begun, latest, limits, self._weights() if limits.max_bytes else {}, waited_ms)
        if not gone and not self._anew and all(end[place] == begun[place] for place in end):
            return start
        self._triggered = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._seen is None else to_json(self._seen)

    @property
    def _limits(self) -> Limits:
        options = self._options
        waits = self._target is None  # what is there now will not become more
        return Limits(
            options.max_offsets,
            options.max_bytes,
            options.min_offsets if waits else 0,
            options.max_trigger_delay_ms,
        )

    def _look(self) -> Positions:
        """Where the logs end now; topics that were made again meanwhile are noted."""
        for attempt in range(LOOKS_MAX):
            ids = self._logs.partitions(missing_is_wrong=False)
            try:
                latest = self._logs.latest(ids)
                for place, topic_id in ids.items():
                    if self._ids.get(place, topic_id) != topic_id:
                        lost(self._options, f"topic {place.topic} was deleted and made again")
                        self._anew[place] = self._logs.earliest([place])[place]
                self._ids = ids
                return latest
            except KafkaError as error:
                gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not gone or attempt == LOOKS_MAX - 1:
                    raise
        raise AssertionError("unreachable")

    def _find_gone(self, begun: Positions) -> bool:
        gone = sorted(begun.keys() - self._ids.keys())
        for place in gone:
            lost(self._options, f"{place} was read up to offset {begun[place]} and is not there any more")
        return bool(gone)

    def _find_new(self, places: set[TopicPartition]) -> Positions:
        """Partitions that came into being are read from their beginning."""
        earliest = self._logs.earliest(places)
        for place, offset in earliest.items():
            if offset:
                lost(self._options, f"{place} is new and begins at offset {offset} already")
        return earliest

    def _find_anew(self, begun: Positions, latest: Positions) -> Positions:
        """Logs that end before where we were are others than those we read."""
        short = [place for place, end in latest.items() if end < begun[place] and place not in self._anew]
        if short:
            found = Logs(self._uncommitted).latest(short)
            for place in short:
                if found[place] >= begun[place]:
                    latest[place] = begun[place]  # an open transaction, read over before
                    continue
                lost(
                    self._options,
                    f"{place} ends at offset {found[place]} and was read up to {begun[place]}: its topic was "
                    "deleted and made again, or its log was cut",
                )
                self._anew[place] = self._logs.earliest([place])[place]
        return {place: offset for place, offset in self._anew.items() if place in latest}

    @property
    def _uncommitted(self) -> ReadOptions:
        from dataclasses import replace

        return replace(self._options, isolation="read_uncommitted")

    # Who reads what

    @told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = from_json(start), from_json(end)
        ids = self._logs.partitions(missing_is_wrong=False)
        there = ended.keys() & ids.keys()
        earliest = self._logs.earliest(there)
        for place in sorted(ended.keys() - there):
            if ended[place] != begun.get(place):
                lost(self._options, f"{place} should be read up to {ended[place]} and is not there any more")
        ranges = []
        for place in sorted(there):
            first = self._anew.pop(place, begun.get(place, earliest[place]))
            if first > ended[place]:
                first = earliest[place]  # it was made again, and that was told
            if first < earliest[place] and first < ended[place]:
                lost(
                    self._options,
                    f"{place} begins at offset {earliest[place]} now, those from {first} on were deleted before "
                    "they were read",
                )
            first = max(first, earliest[place])
            ranges.append(Range(place, first, max(first, ended[place]), ids[place]))
        self._anew.clear()
        return [ReadTask(task) for task in tasks(ranges, self._weights(), splitting(self._options))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with told_plainly():
            yield from self._rows.read(partition.value)

    def _weights(self) -> Sizes:
        """Bytes of an offset in each log, asked for now and then."""
        asked, found = self._sizes
        if time.monotonic() - asked > SIZES_AGE_S:
            places = self._ids or self._logs.partitions(missing_is_wrong=False)
            logs = self._logs
            found = average_sizes(logs.sizes(places), logs.earliest(places), logs.latest(places))
            self._sizes = (time.monotonic(), found)
        return found

    # Who else is told

    def _commit(self, done: Positions) -> None:
        """Keep what is finished as the group's offsets; a query does not fail because others cannot see it."""
        group = self._options.group
        if not group or done == self._committed:
            return
        there = {place: offset for place, offset in done.items() if place in self._ids}
        try:
            if there:
                self._logs.commit(group, there)
            self._committed = done
        except FAILURES as error:
            warn(f"the progress of group {group} was not committed: {error}")


class RefusedReader(DataSourceStreamReader):
    """In place of a reader that cannot be made. Spark loses what is raised while a reader is made, so it is raised
    when the reader is first asked.
    """

    def __init__(self, why: OptionError) -> None:
        self._why = why

    @told_plainly()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._why

    @told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self._why

    @told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._why

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with told_plainly():
            raise self._why

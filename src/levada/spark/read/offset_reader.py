"""Reads the partitions of a query, their offsets and the sizes of their logs from the brokers.

Only the driver uses it; a task gets all it needs with its offset ranges.
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from levada.client.data import EARLIEST, LATEST
from levada.client.metadata import TopicInfo
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark import blocking
from levada.spark.errors import OptionError
from levada.spark.options import nearest
from levada.spark.read.offsets import Offsets
from levada.spark.read.options import ReadOptions
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_log_dirs.v5 as describe_log_dirs

if TYPE_CHECKING:
    from levada.client.client import Client

T = TypeVar("T")
Partitions = Collection[TopicPartition]


class OffsetReader:
    """Partitions and offsets of one query's topics; requests are retried while brokers are unavailable."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self, *, missing_is_error: bool) -> dict[TopicPartition, UUID | None]:
        """The partitions that the options select and that exist, with the ids of their topics."""
        options = self._options
        if options.subscribe_pattern:
            matches = options.topic_matcher
            # Internal topics are hidden: a query that read the commit log of its own sink would find new records there
            # after each of its batches.
            return _partitions(
                topic for topic in self._topics(None).values() if matches(topic.name) and not topic.is_hidden
            )
        names = options.subscribe or tuple({partition.topic for partition in options.assign})
        topics = self._topics(names)
        for name in names:
            if missing_is_error and name not in topics:
                raise OptionError(f"there is no topic {name}{nearest(name, self._topics(None))}")
        there = _partitions(topics.values())
        if not options.assign:
            return there
        if missing_is_error:
            for partition in set(options.assign) - there.keys():
                topic, count = partition.topic, len(topics[partition.topic].partitions)
                raise OptionError(f"option assign: {topic} has {count} partitions, there is no {partition}")
        return {partition: there[partition] for partition in options.assign if partition in there}

    def hidden_topics(self) -> set[str]:
        """The topics that patterns leave out."""
        return {topic.name for topic in self._topics(None).values() if topic.is_hidden}

    def _topics(self, names: Iterable[str] | None) -> dict[str, TopicInfo]:
        found = self._request(lambda client: client.metadata(names))
        for topic in found.topics.values():
            if topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic {topic.name}")
        return {name: topic for name, topic in found.topics.items() if topic.partitions}

    def earliest(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The earliest offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The latest offset of each partition for the query's isolation level."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset from a timestamp on, -1 where no record is that new.

        Kafka's protocol has no timestamps below 0: a time before 1970 is the earliest offset.
        """
        return self._offsets({partition: time if time >= 0 else EARLIEST for partition, time in times.items()})

    def _offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not times:
            return {}
        level = int(self._options.read_committed)
        found = self._request(lambda client: client.list_offsets(times, isolation_level=level))
        return {partition: response.offset for partition, response in found.items()}

    def log_bytes(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The size of each log on its leader's disk; empty if the brokers do not report it."""
        if not partitions:
            return {}
        try:
            return self._request(partial(_log_bytes, partitions=partitions))
        except KafkaError:
            return {}  # the broker is too old, or does not allow it

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit a group's offsets, without retries."""
        from levada.client.admin.groups import GroupAdmin

        blocking.run(GroupAdmin(self._client()).commit(group, offsets))

    def _request(self, work: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
        client = self._client()
        return blocking.call(client, lambda: work(client), self._options.retry_policy)

    def _client(self) -> "Client":
        return blocking.client(self._options.bootstrap, **self._options.client_options())


async def _log_bytes(client: "Client", partitions: Partitions) -> dict[TopicPartition, int]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        by_leader.setdefault(client.cached_leader(partition), []).append(partition)
    found: dict[TopicPartition, int] = {}
    for leader, led in by_leader.items():
        if leader >= 0:
            found |= await _log_bytes_on(client, leader, led)
    return found


async def _log_bytes_on(client: "Client", node: int, partitions: Partitions) -> dict[TopicPartition, int]:
    shape: Any = describe_log_dirs.request
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    request = shape.DescribeLogDirsRequest(
        topics=tuple(
            shape.DescribableLogDirTopic(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
        )
    )
    response = await client.request("describe_log_dirs", request, node=node)
    return {
        TopicPartition(topic.name, part.partition_index): int(part.partition_size)
        for result in response.results
        for topic in result.topics
        for part in topic.partitions
    }


def _partitions(topics: Iterable[TopicInfo]) -> dict[TopicPartition, UUID | None]:
    return {TopicPartition(topic.name, part.partition): topic.topic_id for topic in topics for part in topic.partitions}

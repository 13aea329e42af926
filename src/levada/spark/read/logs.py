"""The logs a reader covers, as brokers tell of them now: which there are, where they begin and end, how big they are.

Asked on the driver only; a task gets its answers with its ranges.
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
from levada.spark.options import OptionError, nearest
from levada.spark.read.offsets import Offsets
from levada.spark.read.options import ReadOptions, matcher
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_log_dirs.v5 as describe_log_dirs

if TYPE_CHECKING:
    from levada.client.client import Client

T = TypeVar("T")
Places = Collection[TopicPartition]


class Logs:
    """What a reader may ask of the cluster; brokers that are away for a while are waited for."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self, *, missing_is_wrong: bool) -> dict[TopicPartition, UUID | None]:
        """The partitions that the options name and that are there, with the ids of their topics."""
        options = self._options
        if options.subscribe_pattern:
            matches = matcher(options.subscribe_pattern)
            every = self._topics(None).values()
            # A query that read the decisions of its own sink would find news after each of its batches.
            found = [topic for topic in every if matches(topic.name) and not topic.is_hidden]
            return _partitions(found)
        names = options.subscribe or tuple({place.topic for place in options.assign})
        topics = self._topics(names)
        for name in names:
            if missing_is_wrong and name not in topics:
                raise OptionError(f"there is no topic {name}{nearest(name, self._topics(None))}")
        there = _partitions(topics.values())
        if not options.assign:
            return there
        if missing_is_wrong:
            for place in set(options.assign) - there.keys():
                count = len(topics[place.topic].partitions)
                raise OptionError(f"option assign: {place.topic} has {count} partitions, there is no {place}")
        return {place: there[place] for place in options.assign if place in there}

    def _topics(self, names: Iterable[str] | None) -> dict[str, TopicInfo]:
        found = self._ask(lambda client: client.metadata(names))
        for topic in found.topics.values():
            if topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic {topic.name}")
        return {name: topic for name, topic in found.topics.items() if topic.partitions}

    def earliest(self, places: Places) -> dict[TopicPartition, int]:
        """Where each log begins."""
        return self._offsets(dict.fromkeys(places, EARLIEST))

    def latest(self, places: Places) -> dict[TopicPartition, int]:
        """Where each log ends for this isolation level."""
        return self._offsets(dict.fromkeys(places, LATEST))

    def at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset from a time on, -1 where nothing was written since.

        For the protocol numbers below 0 are no times: before 1970 is where a log begins, whatever times it has there.
        """
        return self._offsets({place: time if time >= 0 else EARLIEST for place, time in times.items()})

    def _offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not times:
            return {}
        level = int(self._options.read_committed)
        found = self._ask(lambda client: client.list_offsets(times, isolation_level=level))
        return {place: answer.offset for place, answer in found.items()}

    def sizes(self, places: Places) -> dict[TopicPartition, int]:
        """Bytes of each log on the disk of its leader; none where the brokers do not tell."""
        if not places:
            return {}
        try:
            return self._ask(partial(_sizes, places=places))
        except KafkaError:
            return {}  # an old broker, or one that does not allow it

    def commit(self, group: str, offsets: Offsets) -> None:
        """Keep a group's offsets; nobody waits for brokers to do so."""
        from levada.client.admin.groups import GroupAdmin

        blocking.run(GroupAdmin(self._client()).commit(group, offsets))

    def _ask(self, work: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
        client = self._client()
        return blocking.call(client, lambda: work(client), self._options.retry_policy)

    def _client(self) -> "Client":
        return blocking.client(self._options.bootstrap, **self._options.client_options())


async def _sizes(client: "Client", places: Places) -> dict[TopicPartition, int]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for place in places:
        by_leader.setdefault(client.known_leader(place), []).append(place)
    found: dict[TopicPartition, int] = {}
    for leader, there in by_leader.items():
        if leader >= 0:
            found |= await _sizes_at(client, leader, there)
    return found


async def _sizes_at(client: "Client", node: int, places: Places) -> dict[TopicPartition, int]:
    shape: Any = describe_log_dirs.request
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    request = shape.DescribeLogDirsRequest(
        topics=tuple(
            shape.DescribableLogDirTopic(topic=topic, partitions=tuple(numbers))
            for topic, numbers in topics.items()
        )
    )
    answer = await client.request("describe_log_dirs", request, node=node)
    return {
        TopicPartition(topic.name, part.partition_index): int(part.partition_size)
        for result in answer.results
        for topic in result.topics
        for part in topic.partitions
    }


def _partitions(topics: Iterable[TopicInfo]) -> dict[TopicPartition, UUID | None]:
    return {
        TopicPartition(topic.name, part.partition): topic.topic_id
        for topic in topics
        for part in topic.partitions
    }

"""The admin client for logs: their sizes by log dir, and the deletion of records."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.client.data import by_topic
from levada.client.errors import error_code, raise_for_code
from levada.errors import ErrorCode
from levada.model import TopicPartition
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.delete_records.v2 as delete_records
    import kio.schema.describe_log_dirs.v5 as describe_log_dirs

if TYPE_CHECKING:
    from levada.client.client import Client


class LogDir(NamedTuple):
    """A log dir of a broker, and the sizes of the logs in it; brokers before Kafka 3.3 do not know their volumes."""

    node: int
    path: str
    error: ErrorCode
    total_bytes: int | None
    usable_bytes: int | None
    sizes: Mapping[TopicPartition, int]


class LogAdmin:
    """Administrative requests for logs."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def log_dirs(self, node: int, partitions: Collection[TopicPartition] | None = None) -> list[LogDir]:
        """The log dirs of a broker with these partitions, or with all."""
        request: Any = describe_log_dirs.request
        topics = None
        if partitions is not None:
            topics = tuple(
                request.DescribableLogDirTopic(topic=topic, partitions=tuple(one.partition for one in some))
                for topic, some in by_topic(partitions)
            )
        response = await self._client.request(
            "describe_log_dirs", request.DescribeLogDirsRequest(topics=topics), node=node
        )
        raise_for_code(response.error_code, f"log dirs of broker {node}")
        return [_log_dir(node, found) for found in response.results]

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before these offsets; returns the new log start offsets."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in offsets:
            by_leader.setdefault(await self._client.leader(partition), []).append(partition)
        found: dict[TopicPartition, int] = {}
        for node, partitions in by_leader.items():
            found |= await self._delete_at(node, {partition: offsets[partition] for partition in partitions})
        return found

    async def _delete_at(self, node: int, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        request: Any = delete_records.request
        topics = tuple(
            request.DeleteRecordsTopic(
                name=topic,
                partitions=tuple(
                    request.DeleteRecordsPartition(partition_index=one.partition, offset=offsets[one]) for one in some
                ),
            )
            for topic, some in by_topic(offsets)
        )
        timeout = timedelta(milliseconds=self._client.request_timeout_ms)
        message = request.DeleteRecordsRequest(topics=topics, timeout=timeout)
        response = await self._client.request("delete_records", message, node=node)
        found: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                raise_for_code(part.error_code, f"cannot delete records of {partition}")
                found[partition] = part.low_watermark
        return found


def _log_dir(node: int, found: Any) -> LogDir:
    return LogDir(
        node,
        found.log_dir,
        error_code(int(found.error_code)),
        found.total_bytes if found.total_bytes >= 0 else None,
        found.usable_bytes if found.usable_bytes >= 0 else None,
        {
            TopicPartition(topic.name, part.partition_index): part.partition_size
            for topic in found.topics
            for part in topic.partitions
            if not part.is_future_key
        },
    )

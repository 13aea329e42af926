"""Handler of DescribeLogDirs: the log dirs, and the partitions in them with their sizes."""

import os
from collections.abc import Awaitable, Sequence
from typing import Any, TypeAlias

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_log_dirs.v5 as describe_log_dirs_v5


TopicsByDir: TypeAlias = dict[str, dict[str, list[Any]]]  # the partitions' responses, by log dir and topic

PARTITIONS_PER_ITERATION = 500  # of which the response is built, before the handler yields to the event loop


@handles("describe_log_dirs", versions=range(1, 6))
def describe_log_dirs(
    context: RequestContext, request: "describe_log_dirs_v5.DescribeLogDirsRequest"
) -> "describe_log_dirs_v5.DescribeLogDirsResponse | Awaitable[describe_log_dirs_v5.DescribeLogDirsResponse]":
    """Return log dirs and their partitions. v3 adds a top-level error, v4 the size of the volume (KIP-827)."""
    partitions = _requested(context, request)
    if len(partitions) > PARTITIONS_PER_ITERATION:
        return _describe_in_slices(context, partitions)
    topics: TopicsByDir = {}
    for partition in partitions:
        _describe(context, partition, topics)
    return _described(context, topics)


async def _describe_in_slices(
    context: RequestContext, partitions: Sequence[Partition]
) -> "describe_log_dirs_v5.DescribeLogDirsResponse":
    topics: TopicsByDir = {}

    def describe(partition: Partition) -> None:
        _describe(context, partition, topics)

    await map_in_slices(context.broker, describe, partitions, PARTITIONS_PER_ITERATION)
    return _described(context, topics)


def _requested(context: RequestContext, request: "describe_log_dirs_v5.DescribeLogDirsRequest") -> Sequence[Partition]:
    partitions = context.broker.partitions
    if request.topics is None:
        return list(partitions.values())
    names = dict.fromkeys((topic.topic, index) for topic in request.topics for index in topic.partitions)
    return [partitions[name] for name in names if name in partitions]


def _describe(context: RequestContext, partition: Partition, topics: TopicsByDir) -> None:
    """Add a partition that is served to the topics of its log dir."""
    if partition.offline:
        return
    path = context.broker.log_dirs.log_dir_of(partition).path
    described = describe_log_dirs_v5.response.DescribeLogDirsPartition(
        partition_index=partition.index,
        partition_size=partition.log.size_bytes,
        offset_lag=0,
        is_future_key=False,
    )
    topics.setdefault(path, {}).setdefault(partition.topic, []).append(described)


def _described(context: RequestContext, topics: TopicsByDir) -> "describe_log_dirs_v5.DescribeLogDirsResponse":
    response = describe_log_dirs_v5.response
    log_dirs = context.broker.log_dirs
    results = []
    for path in log_dirs.paths:
        if path in log_dirs.offline:
            results.append(
                response.DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path, topics=())
            )
            continue
        volume = os.statvfs(path)
        results.append(
            response.DescribeLogDirsResult(
                error_code=ErrorCode.NONE,
                log_dir=path,
                topics=tuple(
                    response.DescribeLogDirsTopic(name=name, partitions=tuple(partitions))
                    for name, partitions in topics.get(path, {}).items()
                ),
                total_bytes=volume.f_blocks * volume.f_frsize,
                usable_bytes=volume.f_bavail * volume.f_frsize,
            )
        )
    return response.DescribeLogDirsResponse(
        throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, results=tuple(results)
    )

"""Handler of DescribeLogDirs: the log dirs, and the partitions in them with their sizes."""

import os
from collections.abc import Iterable
from typing import Any

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_log_dirs.v5 as describe_log_dirs_v5


@handles("describe_log_dirs", versions=range(1, 6))
def describe_log_dirs(
    context: RequestContext, request: "describe_log_dirs_v5.DescribeLogDirsRequest"
) -> "describe_log_dirs_v5.DescribeLogDirsResponse":
    """Return log dirs and their partitions. v3 adds a top-level error, v4 the size of the volume (KIP-827)."""
    response = describe_log_dirs_v5.response
    log_dirs = context.broker.log_dirs
    by_dir: dict[str, list[Partition]] = {path: [] for path in log_dirs.paths}
    for partition in _requested(context, request):
        if not partition.offline:
            by_dir[log_dirs.log_dir_of(partition).path].append(partition)
    results = []
    for path, partitions in by_dir.items():
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
                topics=_by_topic(partitions),
                total_bytes=volume.f_blocks * volume.f_frsize,
                usable_bytes=volume.f_bavail * volume.f_frsize,
            )
        )
    return response.DescribeLogDirsResponse(
        throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, results=tuple(results)
    )


def _requested(context: RequestContext, request: "describe_log_dirs_v5.DescribeLogDirsRequest") -> Iterable[Partition]:
    partitions = context.broker.partitions
    if request.topics is None:
        return partitions.values()
    names = dict.fromkeys((topic.topic, index) for topic in request.topics for index in topic.partitions)
    return [partitions[name] for name in names if name in partitions]


def _by_topic(partitions: list[Partition]) -> tuple[Any, ...]:
    response = describe_log_dirs_v5.response
    topics: dict[str, list[Any]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(
            response.DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
        )
    return tuple(response.DescribeLogDirsTopic(name=name, partitions=tuple(found)) for name, found in topics.items())

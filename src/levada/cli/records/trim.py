"""What `levada topic trim` deletes: the new log start offset of each partition."""

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

from levada.cli.errors import CommandError
from levada.cli.options import require_topic
from levada.model import TopicPartition

if TYPE_CHECKING:
    from levada.client.client import Client


async def plan_trim(
    client: "Client", topic: str, indexes: tuple[int, ...], target: int | datetime | None
) -> list[dict[str, Any]]:
    """The new log start offset of each partition; None as the target is the end. CommandError beyond the end."""
    await require_topic(client, topic)
    info = await client.topic(topic)
    for index in indexes:
        if index >= len(info.partitions):
            raise info.unknown_partition(index)
    partitions = [TopicPartition(topic, index) for index in sorted(indexes) or range(len(info.partitions))]
    wanted = await _trim_offsets(client, partitions, target)
    rows = []
    for partition, (first, end) in (await offset_range(client, partitions)).items():
        new = max(first, wanted.get(partition, end))
        if new > end:
            hint = "try: --all, or -p for one partition"
            raise CommandError(f"offset {new} is beyond the end: {partition} ends at {end}", hint=hint)
        row = {"partition": partition.partition, "earliest": first, "new": new, "latest": end, "deleted": new - first}
        rows.append(row)
    return rows


async def _trim_offsets(
    client: "Client", partitions: Collection[TopicPartition], target: int | datetime | None
) -> dict[TopicPartition, int]:
    """The offset of the target in each partition; a partition whose records are all older has none."""
    from levada.client.data import timestamp_of

    if not isinstance(target, datetime):
        return {} if target is None else dict.fromkeys(partitions, target)
    found = await client.list_offsets(dict.fromkeys(partitions, timestamp_of(target)))
    return {partition: one.offset for partition, one in found.items() if one.offset >= 0}


async def offset_range(
    client: "Client", partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """The earliest and the latest offset of each partition."""
    from levada.client.data import EARLIEST, LATEST

    first = await client.list_offsets(dict.fromkeys(partitions, EARLIEST))
    last = await client.list_offsets(dict.fromkeys(partitions, LATEST))
    return {partition: (first[partition].offset, last[partition].offset) for partition in partitions}

"""Elects leaders by writing the metadata store, as the controller would."""

import asyncio
from dataclasses import replace
from pathlib import Path

from levada.clock import SystemClock
from levada.core.cluster import metadata_records
from levada.core.cluster.image import PartitionImage, TopicChanged, TopicImage
from levada.metadata.sqlite import SqliteStore
from levada.metadata.store import CompareAndSet, ConflictError


async def _read(store: SqliteStore, topic: str) -> tuple[TopicImage, int]:
    snapshot = await store.open(lambda _: None)
    for record in snapshot.records:
        change = metadata_records.decode(record.key, record.value)
        if isinstance(change, TopicChanged) and change.topic.name == topic:
            return change.topic, record.version
    raise KeyError(topic)


def partition_state(path: Path, topic: str) -> PartitionImage:
    async def read() -> PartitionImage:
        store = SqliteStore(str(path), SystemClock())
        try:
            return (await _read(store, topic))[0].partitions[0]
        finally:
            await store.close()

    return asyncio.run(read())


def elect(path: Path, topic: str, leader: int, isr: tuple[int, ...]) -> None:
    """Make a broker the leader of partition 0."""

    async def write() -> None:
        store = SqliteStore(str(path), SystemClock())
        try:
            known, version = await _read(store, topic)
            state = known.partitions[0]
            epochs = (state.leader_epoch + 1, state.partition_epoch + 1)
            elected = PartitionImage(state.replicas, isr, leader, *epochs, state.directories)
            key, value = metadata_records.encode(TopicChanged(replace(known, partitions=(elected,))))
            await store.commit([CompareAndSet(key, value, version)])
        finally:
            await store.close()

    while True:
        try:
            asyncio.run(write())
        except ConflictError:
            continue
        return

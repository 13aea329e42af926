"""Writes a lost `meta.properties` again, from the metadata and the partitions of the log dir."""

import os
from collections.abc import Iterator, Sequence
from uuid import UUID

import click

METADATA_FILE = "levada-metadata.db"


def restore_identities(paths: Sequence[str]) -> None:
    """Write the `meta.properties` of log dirs that lack it, where the metadata in one of them leaves no doubt."""
    from levada.storage.log_dir import META_FILE

    stores = [store for path in paths if os.path.exists(store := os.path.join(path, METADATA_FILE))]
    for path in paths:
        if len(stores) == 1 and not os.path.exists(os.path.join(path, META_FILE)):
            _restore(path, stores[0])


def _restore(path: str, store: str) -> None:
    """Write the file if all partitions in the log dir that the metadata knows are of one broker and directory id."""
    from levada.core.cluster.image import UNASSIGNED, ClusterFormed, TopicChanged
    from levada.core.cluster.metadata_records import decode
    from levada.metadata.sqlite import read_closed_store
    from levada.metadata.store import StoreError
    from levada.storage.disk import OsDisk
    from levada.storage.log_dir import write_lost_meta_properties

    try:
        changes = [decode(record.key, record.value) for record in read_closed_store(store)]
    except (StoreError, ValueError):
        return  # the check says what is wrong with it
    topics = {change.topic.id: change.topic for change in changes if isinstance(change, TopicChanged)}
    clusters = [change.cluster_id for change in changes if isinstance(change, ClusterFormed)]
    owners = {
        (node, directory)
        for topic_id, index in _partitions(path)
        if topic_id in topics and index < len(topics[topic_id].partitions)
        for node in topics[topic_id].partitions[index].replicas
        if (directory := topics[topic_id].partitions[index].directory_of(node)) not in (None, UNASSIGNED)
    }
    if len(owners) != 1 or len(clusters) != 1:
        return
    ((node, directory),) = owners
    assert directory is not None
    file = write_lost_meta_properties(path, OsDisk(), clusters[0], node, directory)
    click.echo(f"{file}: written again: cluster.id={clusters[0]}, node.id={node}", err=True)


def _partitions(path: str) -> Iterator[tuple[UUID, int]]:
    """Yield the topic ids and indexes of the partitions in a log dir."""
    from levada.storage.file_names import METADATA_FILE as PARTITION_METADATA
    from levada.storage.file_names import parse_partition_directory
    from levada.storage.partition_directory import decode_partition_metadata

    for name in sorted(os.listdir(path)):
        file = os.path.join(path, name, PARTITION_METADATA)
        if (partition := parse_partition_directory(name)) and os.path.isfile(file):
            with open(file, "rb") as content:
                topic_id = decode_partition_metadata(content.read()).topic_id
            if topic_id is not None:
                yield topic_id, partition.partition

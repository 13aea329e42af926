"""The directory of a partition: what its `partition.metadata` says, and whether another partition uses it."""

import os
import uuid
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from crc32c import crc32c


class PartitionMetadata(NamedTuple):
    """The partition that a directory belongs to, as far as it is known."""

    topic_id: uuid.UUID | None = None
    partition: int | None = None  # former versions and Kafka do not write it


UNKNOWN = PartitionMetadata()


def encode_uuid(value: uuid.UUID) -> str:
    """Encode an id as Kafka does: URL-safe base64 without padding."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Decode what `encode_uuid` wrote; raise ValueError for anything else."""
    return uuid.UUID(bytes=b64decode(text + "==", altchars=b"-_", validate=True))


def shared_directories(links: Mapping[str, str], directories: Iterable[str]) -> dict[str, str]:
    """Return the directories of partitions that are links to the directory of another partition, and that one.

    `links` are the symbolic links among the directories, and the real paths of their targets.
    Two logs with the same files would overwrite each other's batches.
    """
    if not links:
        return {}
    paths: dict[str, list[str]] = {}  # by the real one
    for path in directories:
        real = links.get(path) or os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        paths.setdefault(real, []).append(path)
    return {path: other for same in paths.values() for path in same if path in links for other in same if other != path}


def encode_partition_metadata(topic_id: uuid.UUID, partition: int) -> bytes:
    """Encode `partition.metadata`: Kafka's two lines, the number of the partition, and their CRC."""
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\npartition: {partition}\n".encode()
    return text + b"crc32c: %08x\n" % crc32c(text)


def decode_partition_metadata(data: bytes) -> PartitionMetadata:
    """Decode a `partition.metadata`, which may lack the partition and the CRC; UNKNOWN if it is corrupt."""
    text, found, crc = data.partition(b"crc32c: ")
    fields = dict(line.partition(": ")[::2] for line in text.decode(errors="replace").splitlines())
    if found and crc.strip() != b"%08x" % crc32c(text):
        return UNKNOWN
    try:
        if fields.get("version") != "0":
            return UNKNOWN
        partition = fields.get("partition")
        return PartitionMetadata(decode_uuid(fields["topic_id"]), None if partition is None else int(partition))
    except (KeyError, ValueError):
        return UNKNOWN

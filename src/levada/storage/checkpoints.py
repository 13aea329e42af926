"""Kafka's small text files: a version, a count, and a line for each entry."""

from collections.abc import Iterable, Mapping

from levada.model import TopicPartition

_VERSION = 0


class BadCheckpointError(ValueError):
    """A checkpoint that is not what was written; it holds nothing that the logs do not know."""


def _encode(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "".join(f"{row}\n" for row in (str(_VERSION), str(len(rows)), *rows)).encode()


def _decode(data: bytes) -> list[str]:
    try:
        version, count, *rows = data.decode().splitlines()
        if int(version) != _VERSION or int(count) != len(rows):
            raise BadCheckpointError(f"version {version} with {len(rows)} entries of {count}")
    except ValueError as error:
        raise BadCheckpointError(str(error)) from None
    return rows


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """`topic partition offset` lines, as in recovery-point-offset-checkpoint."""
    return _encode(f"{place.topic} {place.partition} {offset}" for place, offset in offsets.items())


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """What `encode_offsets` wrote."""
    offsets: dict[TopicPartition, int] = {}
    for row in _decode(data):
        try:
            topic, partition, offset = row.split(" ")
            place, number = TopicPartition(topic, int(partition)), int(offset)
        except ValueError:
            raise BadCheckpointError(f"no offset: {row!r}") from None
        if number < 0 or place.partition < 0:
            raise BadCheckpointError(f"a negative number: {row!r}")
        offsets[place] = number
    return offsets


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """`leader_epoch start_offset` lines, as in leader-epoch-checkpoint."""
    return _encode(f"{epoch} {start}" for epoch, start in epochs)


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """What `encode_epochs` wrote."""
    epochs: list[tuple[int, int]] = []
    for row in _decode(data):
        try:
            epoch, start = map(int, row.split(" "))
        except ValueError:
            raise BadCheckpointError(f"no epoch: {row!r}") from None
        if epoch < 0 or start < 0 or (epochs and (epoch <= epochs[-1][0] or start <= epochs[-1][1])):
            raise BadCheckpointError(f"epochs and their offsets must rise: {row!r}")
        epochs.append((epoch, start))
    return epochs

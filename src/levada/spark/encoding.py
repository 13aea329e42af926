"""Arrow columns to record batches, one run of a kernel for all rows of an Arrow batch."""

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

from levada.model import NO_PRODUCER_ID, Codec


class Rows(NamedTuple):
    """Rows to be written, as columns of one length."""

    key: Any  # pyarrow binary or string array (also large), nullable; None: no row has a key
    value: Any  # pyarrow binary or string array (also large), nullable
    headers: Any | None = None  # pyarrow list<struct<key: string, value: binary>>, nullable
    timestamp: Any | None = None  # pyarrow timestamp of any unit, or int64 milliseconds; null: now
    partition: Any | None = None  # pyarrow int32, nullable; null: by key


class Identity(NamedTuple):
    """Which producer signs the batches."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    transactional: bool = False


class Spread:
    """Where rows without key and partition go: runs of them stay together, the next run goes elsewhere.

    Keep one for each topic and writer, so that runs go on over Arrow batches.
    """

    __slots__ = ("left", "partition")

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.left = 0  # rows of the present run still to come


class Encoded(NamedTuple):
    """One record batch, ready for Produce."""

    partition: int
    data: memoryview  # the whole batch; its base offset is 0, the broker sets it
    rows: int
    base_sequence: int  # -1 without a producer id


def partitions_of(rows: Rows, count: int, spread: Spread) -> Any:
    """A numpy int32 array with the partition of each row in a topic of `count` partitions.

    The partition column first, then murmur2 of the key as Kafka's clients have it, then `spread`. A partition that the
    topic does not have raises KafkaError(INVALID_PARTITIONS).
    """
    raise NotImplementedError


def encode_rows(
    rows: Rows,
    partitions: Any,
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    max_batch_bytes: int = 1 << 20,
    identity: Identity = Identity(),  # noqa: B008
    sequences: MutableMapping[int, int] | None = None,
) -> Iterator[Encoded]:
    """Record batches of at most `max_batch_bytes` before compression; a larger row is a batch by itself.

    `partitions` is what `partitions_of` gives. Rows of a partition keep their order. `sequences` holds the next
    sequence number of each partition, 0 if it is not there; it is moved on as batches are made. Without a producer id
    it is not needed. A header without a name raises KafkaError(INVALID_RECORD).
    """
    raise NotImplementedError

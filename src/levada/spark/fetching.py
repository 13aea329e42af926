"""Raw record batches of a range of one partition, the next ones being on their way while these are decoded."""

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from levada.errors import KafkaError
from levada.model import TopicPartition


class Chunk(NamedTuple):
    """What one Fetch brought."""

    data: memoryview  # for `decode_chunk`; may be overwritten when the next chunk is asked for
    aborted: tuple[tuple[int, int], ...]  # producer id, first offset
    start: int  # the first offset wanted of it
    next_offset: int  # after its last whole batch
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class FetchOptions(NamedTuple):
    """How to fetch."""

    client_id: str = "levada-spark"
    read_committed: bool = True
    fetch_bytes: int = 8 << 20  # asked for at once; a bigger batch comes whole nevertheless
    fetch_wait_ms: int = 500  # how long a broker may hold a Fetch that finds nothing
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000  # how long in all a broker or leader may be away
    stall_timeout_ms: int = 120_000  # how long nothing may come while the end is not reached
    fail_on_data_loss: bool = True  # False: go on with what is left of the range


class DataLoss(KafkaError):  # noqa: N818
    """OFFSET_OUT_OF_RANGE, or a topic deleted or made anew: records of the range are gone."""


def fetch_range(
    bootstrap: str,
    partition: TopicPartition,
    start: int,
    end: int,
    options: FetchOptions = FetchOptions(),  # noqa: B008
    topic_id: UUID | None = None,
) -> Iterator[Chunk]:
    """Chunks that together hold every record with start <= offset < end that is still there.

    It ends when `end` is reached, also where the last offsets before it do not exist any more. Closing the iterator
    closes nothing that others use. With `topic_id` a topic that was deleted and made again is not taken for the old one.

    Raises DataLoss; KafkaError for other answers that do not heal; ConnectionFailed naming the bootstrap servers when no
    broker is reached; StreamStalled when the last stable offset stays below `end` for too long.
    """
    raise NotImplementedError

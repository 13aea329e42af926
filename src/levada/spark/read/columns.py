"""A range of a partition as columns: fetching and decoding joined, which is what a task of Spark calls."""

from collections.abc import Iterator
from uuid import UUID

from levada.errors import KafkaError
from levada.model import TopicPartition
from levada.spark.formats.columns import Columns, Filter
from levada.spark.formats.decoding import decode_all
from levada.spark.read.fetcher import FetchOptions, fetch_range


def read_columns(
    bootstrap: str,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    want_headers: bool = True,
    where: Filter | None = None,
    options: FetchOptions = FetchOptions(),  # noqa: B008
    topic_id: UUID | None = None,
) -> Iterator[Columns]:
    """The records of [start, end) in order.

    See `fetch_range` for what it raises; what cannot be decoded is a KafkaError that names partition and offset.
    """
    for chunk in fetch_range(bootstrap, partition, start, end, options, topic_id):
        pieces = decode_all(chunk.data, chunk.start, end, chunk.aborted, want_headers, where)
        try:
            yield from pieces
        except KafkaError as error:
            raise KafkaError(error.code, f"{partition}: {error.detail}") from None

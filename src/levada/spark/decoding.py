"""Raw record batches to Arrow columns, without an object for any record."""

from collections.abc import Iterator, Sequence

from levada.spark.columns import Columns, Filter

DECODED_BYTES_SOFT = 256 << 20  # what one call unfolds, about; a single batch may pass it


def decode_chunk(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
    limit_bytes: int = DECODED_BYTES_SOFT,
) -> tuple[Columns, int]:
    """The records of `data` with start <= offset < end, and the offset to go on from.

    `data` is what a Fetch gave: batches in order, the first may begin before `start`, the last may be incomplete and is
    then left alone. `aborted` is the answer's list of (producer id, first offset); empty for read_uncommitted. Markers
    and aborted records make no rows. The offset returned is that after the last batch looked at (or `end`, if that is
    less), whether or not it had rows. It is before the last whole batch only if the records unfold to more than
    `limit_bytes`: then ask again with it as `start` and all else the same, or use `decode_all`.

    Broken data raises KafkaError(CORRUPT_MESSAGE) that names the offset.
    """
    raise NotImplementedError


def decode_all(
    data: memoryview,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    want_headers: bool = True,
    where: Filter | None = None,
    limit_bytes: int = DECODED_BYTES_SOFT,
) -> Iterator[Columns]:
    """All of a chunk, in as many pieces as `limit_bytes` asks for (nearly always one); pieces without rows are left out."""
    raise NotImplementedError

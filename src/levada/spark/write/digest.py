"""The digest of a job's rows: it differs if another job has the same name and version."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

DIGESTS = 1 << 64


class RowsDigest:
    """Adds up the hashes of the keys, values and headers of rows: in any order, in any number of tasks.

    Timestamps are left out, because a repeated job may have later ones.
    """

    def __init__(self) -> None:
        self.value = 0

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same Arrow batches, added as they pass."""
        for batch in batches:
            if batch.num_rows:
                self.value = (self.value + _digest(batch)) % DIGESTS
            yield batch


def sum_digests(digests: Sequence[int | None]) -> int | None:
    """The digest of all tasks' rows; None if one is unknown."""
    known = [one for one in digests if one is not None]
    return sum(known) % DIGESTS if len(known) == len(digests) else None


def _digest(batch: Any) -> int:
    from levada.spark.formats.encoder import rows_digest  # loads the kernels, which a driver does not need

    columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
    return rows_digest(columns.get("key"), columns["value"], columns.get("headers"))

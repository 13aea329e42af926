"""The seam between the cluster's metadata and what keeps it: rows under path-like keys, changed all or none.

A store gives rows, compare-and-set over several of them, leases, and one ordered stream of changes with a revision.
SQLite's revision is the id of a row in its table of changes; ZooKeeper's would be the zxid, its rows znodes, `commit`
a multi of checked writes, a lease an ephemeral node and the stream one recursive watch; a quorum's revision would be
the index in its log. No handler asks which store it is.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

ABSENT = 0  # the version of a row that does not exist


class Row(NamedTuple):
    """A key and its value. `version` differs after every write of the key; no value means the row is gone."""

    key: str
    value: bytes | None
    version: int


class Write(NamedTuple):
    """A new value for a key (None removes it), on condition that the row still has this version."""

    key: str
    value: bytes | None
    version: int


class Rows(NamedTuple):
    """Rows as of a revision: the changed ones, or the whole store where the stream cannot tell what changed."""

    revision: int
    rows: Sequence[Row]
    whole: bool = False


class Lease(NamedTuple):
    """The right to be the only one. A later holder has a higher epoch."""

    name: str
    epoch: int


class ConflictError(Exception):
    """A row has another version than the write expected: look again and decide again."""


class LeaseLostError(Exception):
    """Somebody else holds the lease by now, and nothing was written."""


class StoreError(Exception):
    """The store cannot be read or written; the words say what and where."""


class MetadataStore(Protocol):
    """What keeps metadata. All calls are made on the loop, and callbacks come on the loop."""

    async def open(self, on_change: Callable[[Rows], None]) -> Rows:
        """The whole store; from then on `on_change` gets every change after it, in order, by whomever made."""
        ...

    async def commit(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        """Make all writes or none and give the revision, after `on_change` has seen it.

        Raises ConflictError, or LeaseLostError if the lease under which the writes were decided has another holder.
        """
        ...

    async def acquire(self, name: str, on_lost: Callable[[], None]) -> Lease | None:
        """Take a lease, or None while somebody else has it. It ends with the process at the latest."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        ...

    async def close(self) -> None:
        """Give all leases back and stop."""
        ...
